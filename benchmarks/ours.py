"""agentperf as a client of the benchmarks: its load processes, started and told as `agentperf run` does it."""

import contextlib
import itertools
import math
import os
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from agentperf.fleet.fleet import ProcessLostError, open_fleet
from agentperf.fleet.messages import Batch, Job, Target
from agentperf.measure.health import MachineSample, WorkerSample
from agentperf.measure.record import Record
from agentperf.replay.bodies import EncodedTree, encode_tree
from agentperf.replay.settings import ReplaySettings
from agentperf.trace.render import RenderedSession, RenderedTree, RenderedTurn
from agentperf.wire.chat import BodySettings
from agentperf.wire.endpoint import Limits, parse_endpoint
from agentperf.yardstick.cores import children_on
from benchmarks.cores import Cores
from benchmarks.venvs import MissingError

TREES, TURNS = 16, 4
PROMPT = "Read the file and say what it does, line by line. " * 20


@dataclass(frozen=True, slots=True)
class Shape:
    """Sessions to be played: prompts that begin with `first_chars` of text and grow by `step_chars` a turn."""

    tokens: int
    """Of each reply."""
    trees: int = TREES
    turns: int = TURNS
    first_chars: int = len(PROMPT)
    step_chars: int = len(PROMPT)
    wait_ms: float = 0.0
    """Before each turn but the first: a tool that runs."""


def text_of(chars: int, seed: str) -> str:
    """Text of a length, different from seed to seed from its first character on."""
    line = f"{seed}: {PROMPT}"
    return (line * (chars // len(line) + 1))[:chars]


def trees(shape: Shape) -> list[EncodedTree]:
    """The sessions, encoded as a run encodes them."""
    return [encode_tree(RenderedTree((_session(number, shape),))) for number in range(shape.trees)]


def _session(number: int, shape: Shape) -> RenderedSession:
    turns = []
    for index in range(shape.turns):
        chars = shape.step_chars if index else shape.first_chars
        content = text_of(chars, f"Step {index} of task {number}")
        new: list[dict[str, object]] = [{"role": "user", "content": content}]
        if index:
            new.insert(0, {"role": "assistant", "content": "Done."})
        turns.append(
            RenderedTurn(
                request_id=f"t{number}-{index}",
                index=index,
                keep_messages=max(0, 2 * index - 1),
                new_messages=tuple(new),
                depends_on=(),
                delay_ms=shape.wait_ms,
                input_tokens=(shape.first_chars + index * shape.step_chars) // 4,
                cached_tokens=(shape.first_chars + (index - 1) * shape.step_chars) // 4 if index else 0,
                output_tokens=shape.tokens,
                trigger="user",
            )
        )
    name = f"task-{number}"
    return RenderedSession(session_id=name, root_session_id=name, tools=(), turns=tuple(turns), salt_message=0)


@dataclass(frozen=True, slots=True)
class Level:
    """A level to hold: streams start spread over `spread_s`; the window opens `warmup_s` after that."""

    base_url: str
    shape: Shape
    streams: int
    workers: int
    spread_s: float
    warmup_s: float
    seconds: float
    grace_s: float
    cores: Cores = frozenset()


@dataclass(slots=True)
class Held:
    """A level that was held: records and samples of the whole of it, and its window."""

    streams: int
    workers: int
    records: list[Record] = field(default_factory=list)
    samples: list[WorkerSample] = field(default_factory=list)
    machine: list[MachineSample] = field(default_factory=list)
    open_ns: int = 0
    close_ns: int = 0
    collector_s: float = 0.0
    """CPU time of the parent, which takes the records, in the window."""
    lost: str | None = None
    """What became of a load process that was lost; a run declares such a level void."""

    @property
    def cpu_s(self) -> float:
        """CPU time of load processes and collector in the window."""
        return self.collector_s + sum(
            worker_cpu_s([s for s in self.samples if s.worker == w], self.open_ns, self.close_ns)
            for w in range(self.workers)
        )

    def window_samples(self) -> list[WorkerSample]:
        """Samples taken in the window."""
        return [s for s in self.samples if self.open_ns <= s.at_ns <= self.close_ns]

    def population(self) -> list[Record]:
        """Requests issued in the window."""
        return [r for r in self.records if self.open_ns <= r.t0_ns < self.close_ns]


def worker_cpu_s(samples: Sequence[WorkerSample], open_ns: int, close_ns: int) -> float:
    """CPU time of one load process in [open, close], out of its samples, which hold the share since the one before.

    What the samples cover of it is scaled to the whole; nan when they cover less than half.
    """
    covered = spent = 0.0
    for before, s in itertools.pairwise(samples):
        part = max(0, min(s.at_ns, close_ns) - max(before.at_ns, open_ns))
        covered += part
        spent += s.cpu_share * part / 1e9
    return spent * (close_ns - open_ns) / covered if covered > (close_ns - open_ns) / 2 else math.nan


def job(level: Level, encoded: list[EncodedTree], worker: int, run_id: str) -> Job:
    """What a load process is told."""
    secret = pickle.dumps((parse_endpoint(level.base_url), Limits()))
    return Job(
        worker=worker,
        workers=level.workers,
        target=Target(endpoint=secret),
        settings=ReplaySettings(body=BodySettings(model="truth", output="max"), run_id=run_id),
        trees=encoded,
        chars_per_token=4.0,
    )


class LostError(MissingError):
    """A load process of agentperf was lost: no peer is missing, agentperf has failed."""


def hold(level: Level, *, may_be_lost: bool = False) -> Held:
    """Hold a level by agentperf's load processes, and take what they report.

    LostError when one is lost, unless it may be: then what was reported before comes back, with the cause in `lost`.
    """
    held = Held(level.streams, level.workers)
    try:
        anyio.run(_hold, level, trees(level.shape), held, backend_options={"use_uvloop": True})
    except ProcessLostError as error:
        if not may_be_lost:
            raise LostError(f"agentperf: {error}") from error
        held.lost = str(error)
        last_ns = max((s.at_ns for s in held.samples), default=0)
        held.open_ns = min(held.open_ns, last_ns)
        held.close_ns = max(min(held.close_ns, last_ns), held.open_ns + 1)
    return held


async def _hold(level: Level, encoded: list[EncodedTree], held: Held) -> None:
    collector_s = 0.0
    async with contextlib.AsyncExitStack() as stack:
        with children_on(level.cores):
            fleet = await stack.enter_async_context(
                open_fleet(lambda worker, _workers: job(level, encoded, worker, "bench"), level.workers)
            )
        await fleet.start_level(0, level.streams, level.spread_s)
        opened = stopped = False
        async for batch in fleet.reports():
            _take(held, batch)
            if fleet.meter is not None and (sample := fleet.meter.sample()) is not None:
                held.machine.append(sample)
            if not held.close_ns:
                # The first batch comes when the load processes are up; the streams start spread from then on.
                held.open_ns = batch.at_ns + round((level.spread_s + level.warmup_s) * 1e9)
                held.close_ns = held.open_ns + round(level.seconds * 1e9)
            if batch.at_ns >= held.open_ns and not opened:
                opened, collector_s = True, time.process_time()
            if batch.at_ns >= held.close_ns and not stopped:
                stopped, held.collector_s = True, time.process_time() - collector_s
                await fleet.stop_level(level.grace_s)


def _take(held: Held, batch: Batch) -> None:
    held.records += batch.records
    held.samples.append(batch.sample)


def children_cpu_s() -> float:
    """CPU time of children that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system
