"""The parent's side: load processes, or in virtual time tasks, that hold a level together."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from agentperf.clock import NowNs, loop_now_ns, monotonic_ns
from agentperf.errors import ClientError, plain_errors
from agentperf.fleet import child as children_module
from agentperf.fleet.child import Child, launch
from agentperf.fleet.machine import Meter
from agentperf.fleet.messages import Batch, Command, Job, LevelEnded, Report, StartLevel, StopLevel
from agentperf.fleet.worker import serve
from agentperf.wire.exchange import Caller

INBOX = 64
"""Reports that may wait for the judge. Beyond that they wait in the pipes, and behind those in the load processes."""
START_AHEAD_NS = 50_000_000
"""How far ahead the common start of a level lies: long enough for the command to reach every load process."""


class ProcessLostError(ClientError):
    """A load process died or stopped answering while it held a level. `lost` has worker and cause of each."""

    def __init__(self, lost: Sequence[tuple[int, str]]) -> None:
        self.lost = tuple(lost)
        super().__init__("; ".join(f"load process {worker} {cause}" for worker, cause in lost))


class Link(Protocol):
    """The way to one worker. `lost` says what became of one that is gone."""

    lost: str | None
    reports_due: bool

    async def send(self, message: Command) -> None:
        """Hand over a command."""

    async def answers(self) -> bool:
        """Whether it is there, between levels."""


@dataclass(slots=True)
class _TaskLink:
    outbox: MemoryObjectSendStream[Command]
    lost: str | None = None
    reports_due: bool = False

    async def send(self, message: Command) -> None:
        await self.outbox.send(message)

    async def answers(self) -> bool:
        return True


class Fleet:
    """N agents on its workers.

    A level goes `start_level`, then `reports` until it ends, with `stop_level` in between. When a worker is lost, the
    others are stopped at once, what they still say is yielded, and `reports` raises ProcessLostError; `repair` then
    replaces it.
    """

    def __init__(
        self,
        links: list[Link],
        inbox: MemoryObjectReceiveStream[Report],
        now_ns: NowNs,
        replace: Callable[[int], Awaitable[Link]] | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._links = links
        self._inbox = inbox
        self._replace = replace
        self._running: set[int] = set()
        self._lost: list[tuple[int, str]] = []
        self._probe = -1
        self.now_ns = now_ns
        self.meter = meter
        """Samples the parent itself; None in virtual time."""

    @property
    def workers(self) -> int:
        """How many load processes there are."""
        return len(self._links)

    async def repair(self) -> list[tuple[int, str]]:
        """Between levels: replace the workers that are gone or do not answer; each with its cause.

        ClientError when a replacement does not start.
        """
        replaced: list[tuple[int, str]] = []
        for worker, link in enumerate(self._links):
            if await link.answers():
                continue
            cause = str(link.lost)
            if self._replace is None:
                raise ProcessLostError([(worker, cause)])
            self._links[worker] = await self._replace(worker)
            replaced.append((worker, cause))
        return replaced

    async def start_level(self, probe: int, level: int, spread_s: float) -> None:
        """Begin to hold `level` agents, dealt round to the workers; all begin at one moment."""
        self._probe, self._lost = probe, []
        self._running = set(range(len(self._links)))
        ahead = START_AHEAD_NS if len(self._links) > 1 else 0
        start_ns = self.now_ns() + ahead

        async def start(worker: int, link: Link) -> None:
            link.reports_due = link.lost is None
            agents = list(range(worker, level, len(self._links)))
            await link.send(
                StartLevel(probe=probe, level=level, agents=agents, spread_s=spread_s, start_ns=start_ns),
            )

        async with anyio.create_task_group() as group:
            for worker, link in enumerate(self._links):
                group.start_soon(start, worker, link)

    async def stop_level(self, grace_s: float) -> None:
        """Begin to end the level."""
        for worker in sorted(self._running):
            await self._links[worker].send(StopLevel(grace_s=grace_s))

    async def reports(self) -> AsyncIterator[Batch]:
        """Batches of the running level until all workers have ended it. ProcessLostError when one of them was lost."""
        while self._running:
            message: Report | None = None
            with anyio.move_on_after(1.0):  # nothing may be yielded inside: the scope belongs to this task alone
                message = await self._inbox.receive()
            if isinstance(message, LevelEnded) and message.probe == self._probe:
                self._running.discard(message.worker)
            await self._part_from_lost()
            if isinstance(message, Batch) and message.probe == self._probe:
                yield message
        if not self._lost:
            return
        with contextlib.suppress(anyio.WouldBlock):
            while True:  # what the lost ones had said before
                message = self._inbox.receive_nowait()
                if isinstance(message, Batch) and message.probe == self._probe:
                    yield message
        raise ProcessLostError(self._lost)

    async def _part_from_lost(self) -> None:
        gone = [(worker, cause) for worker in sorted(self._running) if (cause := self._links[worker].lost) is not None]
        if not gone:
            return
        self._lost += gone
        self._running -= {worker for worker, _ in gone}
        await self.stop_level(0.0)


@contextlib.asynccontextmanager
async def open_fleet(make_job: Callable[[int, int], Job], workers: int) -> AsyncIterator[Fleet]:
    """Start `workers` load processes, each with its job; they end with the context, whatever happens in it.

    Raises ClientError when one of them does not come up.
    """
    send, receive = anyio.create_memory_object_stream[Report](INBOX)
    children: list[Child] = []
    with plain_errors():
        async with receive, send, anyio.create_task_group() as group:

            async def start(worker: int) -> Child:
                return await launch(worker, make_job(worker, workers), send, group, children)

            try:
                links = await _start_all(start, workers)
                group.start_soon(_watch, children)
                yield Fleet(links, receive, monotonic_ns, start, Meter())
            finally:
                with anyio.CancelScope(shield=True):
                    async with anyio.create_task_group() as endings:
                        for child in children:
                            endings.start_soon(child.end)
                group.cancel_scope.cancel()


async def _start_all(start: Callable[[int], Awaitable[Child]], workers: int) -> list[Link]:
    """All at the same time: reading a large job takes seconds."""
    links: dict[int, Link] = {}

    async def one(worker: int) -> None:
        links[worker] = await start(worker)

    async with anyio.create_task_group() as group:
        for worker in range(workers):
            group.start_soon(one, worker)
    return [links[worker] for worker in range(workers)]


async def _watch(children: list[Child]) -> None:
    """Count the silence of load processes."""
    before = monotonic_ns()
    while True:
        await anyio.sleep(children_module.WATCH_S)
        now = monotonic_ns()
        for child in children:
            child.watch((now - before) / 1e9)
        before = now


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
