"""The parent's side: load processes, or in virtual time tasks, that hold a level together."""

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectSendStream

from agentperf.clock import NowNs, loop_now_ns, monotonic_ns
from agentperf.errors import ClientError
from agentperf.fleet.messages import (
    LENGTH_BYTES,
    Batch,
    Command,
    Job,
    LevelEnded,
    Quit,
    Report,
    StartLevel,
    StopLevel,
    WorkerFailed,
    frame,
    report,
)
from agentperf.fleet.worker import serve
from agentperf.wire.exchange import Caller

SILENCE_S = 8.0
"""A load process that says nothing for this long is taken for dead or stopped; it reports five times a second."""


class Link(Protocol):
    """The way to one worker."""

    async def send(self, message: Command) -> None:
        """Hand over a command."""


@dataclass(slots=True)
class _ProcessLink:
    process: anyio.abc.Process

    async def send(self, message: Command) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.process.stdin.send(frame(message))


@dataclass(slots=True)
class _TaskLink:
    outbox: MemoryObjectSendStream[Command]

    async def send(self, message: Command) -> None:
        await self.outbox.send(message)


class Fleet:
    """N agents on its workers. `reports` yields what they say; a dead or silent worker raises ClientError there."""

    def __init__(self, links: list[Link], inbox: "anyio.abc.ObjectReceiveStream[Report]", now_ns: NowNs) -> None:
        self._links = links
        self._inbox = inbox
        self._heard_ns: dict[int, int] = {}
        self._running: set[int] = set()
        self.now_ns = now_ns

    @property
    def workers(self) -> int:
        """How many load processes there are."""
        return len(self._links)

    async def start_level(self, probe: int, level: int, spread_s: float) -> None:
        """Begin to hold `level` agents, dealt round to the workers."""
        now = self.now_ns()
        for worker, link in enumerate(self._links):
            agents = list(range(worker, level, len(self._links)))
            self._heard_ns[worker] = now
            self._running.add(worker)
            await link.send(StartLevel(probe=probe, level=level, agents=agents, spread_s=spread_s))

    async def stop_level(self, grace_s: float) -> None:
        """Begin to end the level."""
        for link in self._links:
            await link.send(StopLevel(grace_s=grace_s))

    async def reports(self) -> AsyncIterator[Batch]:
        """Batches of the running level until all workers have ended it."""
        while self._running:
            message: Report | None = None
            with anyio.move_on_after(1.0):  # nothing may be yielded inside: the scope belongs to this task alone
                message = await self._inbox.receive()
            if isinstance(message, WorkerFailed):
                raise ClientError(f"load process {message.worker} failed: {message.error}")
            if message is not None:
                self._heard_ns[message.worker] = self.now_ns()
            if isinstance(message, LevelEnded):
                self._running.discard(message.worker)
            self._check_silence()
            if isinstance(message, Batch):
                yield message

    def _check_silence(self) -> None:
        now = self.now_ns()
        for worker in self._running:
            silent_s = (now - self._heard_ns[worker]) / 1e9
            if silent_s > SILENCE_S:
                raise ClientError(
                    f"load process {worker} has said nothing for {silent_s:.0f} s",
                    "it was stopped, or this machine is overloaded; the level is void",
                )


async def _listen(worker: int, process: anyio.abc.Process, inbox: MemoryObjectSendStream[Report]) -> None:
    """Frames of one process until its pipe closes."""
    assert process.stdout is not None
    pending = bytearray()
    try:
        async for data in process.stdout:
            pending += data
            while len(pending) >= LENGTH_BYTES:
                length = int.from_bytes(pending[:LENGTH_BYTES], "big") + LENGTH_BYTES
                if len(pending) < length:
                    break
                message = report(bytes(pending[LENGTH_BYTES:length]))
                del pending[:length]
                await inbox.send(message)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        return
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await inbox.send(WorkerFailed(worker=worker, error=f"it ended with code {await process.wait()}"))


async def _stop(process: anyio.abc.Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.stdin is not None:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await process.stdin.send(frame(Quit()))
                await process.stdin.aclose()
        with anyio.move_on_after(3):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def open_fleet(make_job: Callable[[int, int], Job], workers: int) -> AsyncIterator[Fleet]:
    """Start `workers` load processes, each with its job; they end with the context, whatever happens in it."""
    send, receive = anyio.create_memory_object_stream[Report](1024)
    processes: list[anyio.abc.Process] = []
    async with receive, send, anyio.create_task_group() as group:
        try:
            links: list[Link] = []
            for worker in range(workers):
                process = await anyio.open_process(
                    [sys.executable, "-m", "agentperf.fleet.process"],
                    stderr=None,
                    start_new_session=True,  # so that Ctrl-C reaches the parent alone
                    env=dict(os.environ),
                )
                processes.append(process)
                group.start_soon(_listen, worker, process, send)
                link = _ProcessLink(process)
                await link.send(make_job(worker, workers))
                links.append(link)
            yield Fleet(links, receive, monotonic_ns)
        finally:
            for process in processes:
                await _stop(process)
            group.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def local_fleet(make_job: Callable[[int, int], Job], caller: Caller) -> AsyncIterator[Fleet]:
    """One worker as a task of this loop: for virtual time, where the loop's clock is the clock of the run."""
    reports_in, reports_out = anyio.create_memory_object_stream[Report](1024)
    commands_in, commands_out = anyio.create_memory_object_stream[Command](16)
    receive: Callable[[], Awaitable[Command]] = commands_out.receive
    async with reports_in, reports_out, commands_in, commands_out, anyio.create_task_group() as group:
        group.start_soon(serve, make_job(0, 1), caller, receive, reports_in.send, loop_now_ns)
        try:
            yield Fleet([_TaskLink(commands_in)], reports_out, loop_now_ns)
        finally:
            group.cancel_scope.cancel()
