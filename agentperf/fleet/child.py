"""One load process as its parent sees it: started with its job, listened to, watched, replaced, ended."""

import contextlib
import os
import signal
import sys

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectSendStream

from agentperf.clock import monotonic_ns
from agentperf.errors import ClientError
from agentperf.fleet.machine import running_of
from agentperf.fleet.messages import (
    LENGTH_BYTES,
    Batch,
    Command,
    Job,
    LevelEnded,
    Ping,
    Pong,
    Quit,
    Ready,
    Report,
    WorkerFailed,
    frame,
    report,
)

START_LIMIT_S = 120.0
"""How long a load process may take to read its job and say that it is ready."""
ANSWER_LIMIT_S = 3.0
"""How long it may take to answer when it has nothing to do."""
END_LIMIT_S = 3.0
SILENCE_S = 3.0
"""A load process that says nothing for this long is taken for stopped; while it holds a level it reports each 0.2 s."""
WATCH_S = 0.25
TOO_BUSY = "was too busy to report"
"""How the cause begins where the process had more to do than it could: the load is too much for it."""
_BUSY_SHARE = 0.5
CLOCK_TOLERANCE_NS = 1_000_000
_ERROR_TAIL_BYTES = 8192


def clock_error_ns(sent_ns: int, at_ns: int, received_ns: int) -> int:
    """How far the other process' clock is outside of the round trip in which it was read; 0 when inside."""
    return max(0, sent_ns - at_ns, at_ns - received_ns)


def ending(returncode: int) -> str:
    """`was killed (SIGKILL)`, `ended with code 1`."""
    if returncode >= 0:
        return f"ended with code {returncode}"
    try:
        return f"was killed ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"was killed (signal {-returncode})"


class Child:
    """A running load process.

    `lost` is None while it is well, else what became of it, once and for all. What it reports goes into the inbox; a
    WorkerFailed there only says that `lost` is to be looked at.
    """

    def __init__(self, worker: int, process: anyio.abc.Process, inbox: MemoryObjectSendStream[Report]) -> None:
        self.worker = worker
        self.lost: str | None = None
        self.reports_due = False
        """Whether it holds a level, so that silence means trouble."""
        self._process = process
        self._inbox = inbox
        self._settled = anyio.Event()
        self._ready = False
        self._heard = False
        self._handing_on = False
        self._silent_s = 0.0
        self._cpu_s: float | None = None
        self._pong: tuple[Pong, int] | None = None
        self._ponged = anyio.Event()
        self._errors = b""
        self._errors_read = anyio.Event()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def lose(self, cause: str) -> None:
        """It is gone, or of no use any more: kill what is left of it and tell. The first cause stands."""
        if self.lost is not None:
            return
        self.lost = cause
        self.reports_due = False
        self._settled.set()
        self._ponged.set()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        with contextlib.suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._inbox.send_nowait(WorkerFailed(worker=self.worker, error=cause))

    async def send(self, message: Command) -> None:
        """Hand over a command. One that is not taken in time loses the process."""
        limit_s = START_LIMIT_S if isinstance(message, Job) else ANSWER_LIMIT_S
        data = frame(message)
        assert self._process.stdin is not None
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            with anyio.move_on_after(limit_s) as scope:
                await self._process.stdin.send(data)
            if scope.cancelled_caught:
                self.lose(f"took no command for {limit_s:.0f} s")

    async def ready(self) -> None:
        """Return when it has taken its job. ClientError when it ended before, or does not come up."""
        with anyio.move_on_after(START_LIMIT_S):
            await self._settled.wait()
        if not self._ready:
            self.lose(f"was not ready within {START_LIMIT_S:.0f} s")
            memory = "SIGKILL" in str(self.lost) or "MemoryError" in str(self.lost)
            raise ClientError(
                f"load process {self.worker} could not start: it {self.lost}",
                "its memory may not suffice: use fewer --workers or a smaller trace set" if memory else None,
            )

    async def check_clock(self) -> None:
        """ClientError when its clock is not ours: no time difference between the processes would mean anything."""
        best: int | None = None
        for _ in range(3):
            sent_ns = monotonic_ns()
            if (answer := await self._ask()) is None:
                return
            pong, received_ns = answer
            error = clock_error_ns(sent_ns, pong.at_ns, received_ns)
            best = error if best is None else min(best, error)
        if best is not None and best > CLOCK_TOLERANCE_NS:
            raise ClientError(
                f"the monotonic clock of load process {self.worker} differs from this process' by {best / 1e9:.3f} s",
                "run agentperf where processes share one clock: not across time namespaces or emulators",
            )

    async def answers(self) -> bool:
        """Whether it answers when it holds no level; one that does not is lost."""
        return self.lost is None and await self._ask() is not None

    async def _ask(self) -> tuple[Pong, int] | None:
        self._pong, self._ponged = None, anyio.Event()
        await self.send(Ping())
        with anyio.move_on_after(ANSWER_LIMIT_S):
            await self._ponged.wait()
        if self._pong is None:
            self.lose(f"did not answer within {ANSWER_LIMIT_S:.0f} s (it was stopped, or this machine is overloaded)")
        return self._pong

    # -- listening

    async def listen(self) -> None:
        """Hand on its reports until its pipe closes, which its death does at once."""
        assert self._process.stdout is not None
        pending = bytearray()
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for data in self._process.stdout:
                self._heard = True
                pending += data
                while len(pending) >= LENGTH_BYTES:
                    length = int.from_bytes(pending[:LENGTH_BYTES], "big") + LENGTH_BYTES
                    if len(pending) < length:
                        break
                    message = report(bytes(pending[LENGTH_BYTES:length]))
                    del pending[:length]
                    await self._take(message)
        if self.lost is None:
            self.lose(await self._ending())

    async def _take(self, message: Report) -> None:
        match message:
            case Ready():
                self._ready = True
                self._settled.set()
            case Pong():
                self._pong = (message, monotonic_ns())
                self._ponged.set()
            case WorkerFailed():
                self.lose(f"failed: {message.error}")
            case Batch() | LevelEnded():
                if isinstance(message, LevelEnded):
                    self.reports_due = False
                # While the inbox is full we are the slow ones: that is not the silence of the process.
                self._handing_on = True
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._inbox.send(message)
                self._handing_on = False

    async def _ending(self) -> str:
        """How a process whose pipe is closed has ended."""
        with anyio.move_on_after(END_LIMIT_S):
            code = await self._process.wait()
            with anyio.move_on_after(END_LIMIT_S):
                await self._errors_read.wait()
            said = self._errors.decode("utf-8", "replace").strip().splitlines()
            return ending(code) + (f" ({said[-1].strip()[:300]})" if code > 0 and said else "")
        return "closed its pipe and did not end"

    async def keep_errors(self) -> None:
        """Keep the end of what it writes to stderr: the cause of its death is there."""
        assert self._process.stderr is not None
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for data in self._process.stderr:
                self._errors = (self._errors + data)[-_ERROR_TAIL_BYTES:]
        self._errors_read.set()

    def watch(self, elapsed_s: float) -> None:
        """Called every `WATCH_S` or so: silence is counted while this process itself is awake."""
        if not self.reports_due or self._heard or self._handing_on:
            self._heard = False
            self._silent_s = 0.0
            self._cpu_s = None
            return
        if self._cpu_s is None:
            state = running_of(self.pid)
            self._cpu_s = state[1] if state is not None else 0.0
        # After a pause of our own its reports lie unread in the pipe: such a pause counts for two looks at most.
        self._silent_s += min(elapsed_s, 2 * WATCH_S)
        if self._silent_s > SILENCE_S:
            self.lose(self._silence())

    def _silence(self) -> str:
        """Why it says nothing: it was stopped, or its event loop does not come round to it."""
        state = running_of(self.pid)
        if state is not None and state[0] and state[1] - (self._cpu_s or 0.0) > _BUSY_SHARE * self._silent_s:
            return f"{TOO_BUSY} for {SILENCE_S:.0f} s"
        return f"said nothing for {SILENCE_S:.0f} s (it was stopped, or this machine hangs)"

    async def end(self) -> None:
        """Ask it to end, and see that it does."""
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None and self.lost is None:
                self.lost = "was told to end"
                with anyio.move_on_after(END_LIMIT_S):
                    if self._process.stdin is not None:
                        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                            await self._process.stdin.send(frame(Quit()))
                            await self._process.stdin.aclose()
                    await self._process.wait()
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()


async def launch(
    worker: int, job: Job, inbox: MemoryObjectSendStream[Report], group: anyio.abc.TaskGroup, children: list[Child]
) -> Child:
    """Start a load process and give it its job. ClientError when it does not come up, or has another clock.

    It is appended to `children` as soon as it exists, so that whoever holds the list can end it.
    """
    process = await anyio.open_process(
        [sys.executable, "-m", "agentperf.fleet.process"],
        start_new_session=True,  # so that Ctrl-C reaches the parent alone
        env=dict(os.environ),
    )
    child = Child(worker, process, inbox)
    children.append(child)
    group.start_soon(child.listen)
    group.start_soon(child.keep_errors)
    await child.send(job)
    await child.ready()
    await child.check_clock()
    return child
