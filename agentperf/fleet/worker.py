"""A load process: holds its share of the agents of each level and reports records and its own health.

`serve` is the same code in a child process and, for virtual time and tests, inside the parent's loop: it knows its
parent only as two callables.
"""

import gc
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from agentperf.clock import NowNs, loop_now_ns
from agentperf.fleet.lag import LagWatch
from agentperf.fleet.machine import OpenFiles, rss_bytes
from agentperf.fleet.messages import (
    Batch,
    Command,
    Job,
    LevelEnded,
    Ping,
    Pong,
    Quit,
    Report,
    StartLevel,
    StopLevel,
)
from agentperf.measure.derive import make_record
from agentperf.measure.health import WorkerSample
from agentperf.measure.record import Record
from agentperf.replay.agent import Level, run_agent
from agentperf.replay.deck import deal
from agentperf.replay.turns import TurnResult
from agentperf.wire.exchange import Caller

BATCH_S = 0.2
BATCH_RECORDS = 500
"""Most records of one batch, a matter of a millisecond to encode; what is left follows at once."""
MAX_PENDING_RECORDS = 20_000
"""More records than this are not held back for a parent that does not take them: the level ends, and is void."""

Receive = Callable[[], Awaitable[Command]]
Send = Callable[[Report], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the transport can tell about itself at any moment, for the view and for client health."""

    awaiting: Callable[[], int] = lambda: 0
    """Requests that wait for their first byte."""
    connections: Callable[[], int] = lambda: 0
    """Connections that exist, idle ones included."""


class _Probe:
    """One level as this process sees it."""

    def __init__(self, job: Job, start: StartLevel, caller: Caller, now_ns: NowNs, gauges: Gauges) -> None:
        self.gauges = gauges
        self.files = OpenFiles()
        self.job = job
        self.start = start
        self.now_ns = now_ns
        self.virtual = now_ns is loop_now_ns
        self.records: list[Record] = []
        self.on_the_way = 0
        self.blocked_ns = 0
        self.overfull = False
        self.late_ns = 0
        self.lag = LagWatch(now_ns)
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
                one_token_first=job.settings.speed == "n-1",
            )
        )
        if self.pending > MAX_PENDING_RECORDS:
            # No record is ever dropped, so none may be added for long: no new turn is issued.
            self.overfull = True
            self.level.stop.set()

    @property
    def pending(self) -> int:
        """Records that the parent has not taken yet."""
        return len(self.records) + self.on_the_way

    async def _one(self, agent: int) -> None:
        self.agents += 1
        try:
            await run_agent(self.level, agent)
        finally:
            self.agents -= 1

    async def hold(self) -> None:
        """Run the agents, from the common start until they have all ended."""
        with self.grace:
            wait_ns = self.start.start_ns - self.now_ns()
            if self.start.start_ns and wait_ns > 0:
                await anyio.sleep(wait_ns / 1e9)
            if self.start.start_ns:
                self.late_ns = self.now_ns() - self.start.start_ns
            async with anyio.create_task_group() as group:
                for agent in self.start.agents:
                    group.start_soon(self._one, agent)
        self.ended.set()

    def stop(self, grace_s: float) -> None:
        """End the level: no new turns; what is open after `grace_s` is cut off."""
        self.level.stop.set()
        self.grace.deadline = anyio.current_time() + grace_s

    def _sample(self, now: int) -> WorkerSample:
        cpu = time.process_time()
        sample = WorkerSample(
            worker=self.job.worker,
            at_ns=now,
            lags_s=self.lag.taken(),
            cpu_share=0.0 if self.virtual else (cpu - self.cpu) * 1e9 / max(1, now - self.sampled_ns),
            rss_bytes=rss_bytes(),
            fds=self.files.count(now),
            sockets=self.gauges.connections(),
            pending_records=len(self.records),
            blocked_s=self.blocked_ns / 1e9,
            overfull=self.overfull,
        )
        self.cpu, self.sampled_ns, self.blocked_ns = cpu, now, 0
        return sample

    def batch(self) -> Batch:
        """What happened since the last batch, of the records at most `BATCH_RECORDS`."""
        now = self.now_ns()
        sample = self._sample(now)
        records, self.records = self.records[:BATCH_RECORDS], self.records[BATCH_RECORDS:]
        started = [*self.level.open_since.values(), *(r.t0_ns for r in self.records)]
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
            oldest_open_ns=min(started, default=None),
            late_ns=self.late_ns,
        )


async def _hand_over(probe: _Probe, send: Send) -> None:
    """One batch; the time in which the parent does not take it is counted."""
    batch = probe.batch()
    began_ns = probe.now_ns()
    probe.on_the_way = len(batch.records)
    await send(batch)
    probe.on_the_way = 0
    probe.blocked_ns += probe.now_ns() - began_ns


async def _pump(probe: _Probe, send: Send) -> None:
    while not probe.ended.is_set():
        with anyio.move_on_after(BATCH_S):
            await probe.ended.wait()
        await _hand_over(probe, send)
        while len(probe.records) >= BATCH_RECORDS or (probe.records and probe.ended.is_set()):
            await _hand_over(probe, send)
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
                if not probe.virtual:  # there, nothing is ever late
                    group.start_soon(probe.lag.watch, probe.ended)
                group.start_soon(_pump, probe, send)
            elif isinstance(message, StopLevel) and probe is not None:
                probe.stop(message.grace_s)
            elif isinstance(message, Ping):
                await send(Pong(worker=job.worker, at_ns=now_ns()))
            elif isinstance(message, Quit):
                if probe is not None:
                    probe.stop(0.0)
                return
