"""A load process: holds its share of the agents of each level and reports records and its own health.

`serve` is the same code in a child process and, for virtual time and tests, inside the parent's loop: it knows its
parent only as two callables.
"""

import gc
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio

from agentperf.clock import NowNs, loop_now_ns
from agentperf.fleet.messages import Batch, Command, Job, LevelEnded, Quit, Report, StartLevel, StopLevel
from agentperf.measure.derive import make_record
from agentperf.measure.health import WorkerSample
from agentperf.measure.record import Record
from agentperf.replay.agent import Level, run_agent
from agentperf.replay.deck import deal
from agentperf.replay.turns import TurnResult
from agentperf.wire.exchange import Caller

BATCH_S = 0.2
LAG_TICK_S = 0.02
FDS_EVERY_NS = 5_000_000_000
_FDS = Path("/proc/self/fd")

Receive = Callable[[], Awaitable[Command]]
Send = Callable[[Report], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the transport can tell about itself at any moment, for the view and for client health."""

    awaiting: Callable[[], int] = lambda: 0
    """Requests that wait for their first byte."""
    connections: Callable[[], int] = lambda: 0
    """Connections that exist, idle ones included."""


class _OpenFiles:
    """How many file descriptors this process has open; 0 where the system does not tell."""

    def __init__(self) -> None:
        self._listed = 0
        self._listed_ns = -FDS_EVERY_NS

    def count(self, now_ns: int) -> int:
        """Asked for with every batch, so it must cost microseconds however many sockets there are."""
        try:
            # Linux 6.2 and later: the size of the folder is the number of its entries.
            if size := _FDS.stat().st_size:
                return size
            if now_ns - self._listed_ns >= FDS_EVERY_NS:
                # A listing takes a millisecond per thousand sockets, in which no stream is read: once in a while.
                self._listed, self._listed_ns = sum(1 for _ in _FDS.iterdir()), now_ns
        except OSError:
            return 0
        return self._listed


def _rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _Probe:
    """One level as this process sees it."""

    def __init__(self, job: Job, start: StartLevel, caller: Caller, now_ns: NowNs, gauges: Gauges) -> None:
        self.gauges = gauges
        self.files = _OpenFiles()
        self.job = job
        self.start = start
        self.now_ns = now_ns
        self.virtual = now_ns is loop_now_ns
        self.records: list[Record] = []
        self.lags: list[float] = []
        self.cpu = time.process_time()
        self.sampled_ns = now_ns()
        self.ended = anyio.Event()
        self.grace = anyio.CancelScope()
        self.agents = 0
        self.level = Level(
            probe=start.probe,
            caller=caller,
            settings=job.settings,
            trees=job.trees,
            deck=deal(len(job.trees), job.settings.seed, start.probe, job.worker, job.workers),
            now_ns=now_ns,
            on_turn=self._take,
            spread_s=start.spread_s,
        )

    def _take(self, result: TurnResult) -> None:
        job, start = self.job, self.start
        self.records.append(
            make_record(
                result,
                probe=start.probe,
                level=start.level,
                worker=job.worker,
                chars_per_token=job.chars_per_token,
            )
        )

    async def _one(self, agent: int) -> None:
        self.agents += 1
        try:
            await run_agent(self.level, agent)
        finally:
            self.agents -= 1

    async def hold(self) -> None:
        """Run the agents until they have all ended."""
        with self.grace:
            async with anyio.create_task_group() as group:
                for agent in self.start.agents:
                    group.start_soon(self._one, agent)
        self.ended.set()

    async def watch_lag(self) -> None:
        """Lateness of a regular timer: how long a ready task waits for this loop."""
        while not self.ended.is_set():
            before = self.now_ns()
            await anyio.sleep(LAG_TICK_S)
            self.lags.append(max(0.0, (self.now_ns() - before) / 1e9 - LAG_TICK_S))

    def stop(self, grace_s: float) -> None:
        """End the level: no new turns; what is open after `grace_s` is cut off."""
        self.level.stop.set()
        self.grace.deadline = anyio.current_time() + grace_s

    def batch(self) -> Batch:
        """What happened since the last batch."""
        now = self.now_ns()
        cpu = time.process_time()
        sample = WorkerSample(
            worker=self.job.worker,
            at_ns=now,
            lags_s=self.lags,
            cpu_share=0.0 if self.virtual else (cpu - self.cpu) * 1e9 / max(1, now - self.sampled_ns),
            rss_bytes=_rss_bytes(),
            fds=self.files.count(now),
            sockets=self.gauges.connections(),
        )
        records, self.records, self.lags = self.records, [], []
        self.cpu, self.sampled_ns = cpu, now
        return Batch(
            worker=self.job.worker,
            probe=self.start.probe,
            at_ns=now,
            records=records,
            sample=sample,
            agents=self.agents,
            open=len(self.level.open_since),
            first_token=self.gauges.awaiting(),
            waiting=self.level.waiting,
            oldest_open_ns=min(self.level.open_since.values(), default=None),
        )


async def _pump(probe: _Probe, send: Send) -> None:
    while not probe.ended.is_set():
        with anyio.move_on_after(BATCH_S):
            await probe.ended.wait()
        await send(probe.batch())
    await send(LevelEnded(worker=probe.job.worker, probe=probe.start.probe))


async def serve(
    job: Job,
    caller: Caller,
    receive: Receive,
    send: Send,
    now_ns: NowNs,
    gauges: Gauges | None = None,
) -> None:
    """Obey commands until told to quit. A level that is still held then is cut off and its records are sent."""
    gauges = gauges or Gauges()
    probe: _Probe | None = None
    async with anyio.create_task_group() as group:
        while True:
            message = await receive()
            if isinstance(message, StartLevel):
                gc.collect()
                gc.freeze()
                probe = _Probe(job, message, caller, now_ns, gauges)
                group.start_soon(probe.hold)
                group.start_soon(probe.watch_lag)
                group.start_soon(_pump, probe, send)
            elif isinstance(message, StopLevel) and probe is not None:
                probe.stop(message.grace_s)
            elif isinstance(message, Quit):
                if probe is not None:
                    probe.stop(0.0)
                return
