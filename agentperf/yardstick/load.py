"""Holds a level against reference servers with the very fleet that `agentperf run` uses."""

import contextlib
import itertools
import pickle
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from agentperf.errors import ClientError
from agentperf.fleet.fleet import Fleet, open_fleet
from agentperf.fleet.messages import Batch, Job, Target
from agentperf.replay.bodies import EncodedTree, encode_tree
from agentperf.replay.settings import ReplaySettings
from agentperf.trace.render import RenderedSession, RenderedTree, RenderedTurn
from agentperf.wire.chat import BodySettings
from agentperf.wire.endpoint import Limits, parse_endpoint
from agentperf.yardstick.cores import children_on, machine_busy_s, other_cores, split_cores, usable_cores
from agentperf.yardstick.held import Held
from agentperf.yardstick.process import ServerProcess
from agentperf.yardstick.reply import MODEL, Pace
from agentperf.yardstick.rows import Row, Work

TREES, TURNS = 16, 4
PROMPT = "Read the file and say what it does, line by line. " * 20
SETTLE_S = 0.4
"""After the last stream has started, before the window opens."""
GRACE_S = 5.0
"""Beyond three times the length of a stream, how long open streams may go on after the window."""


def session_trees(tokens: int) -> list[EncodedTree]:
    """Small sessions without waits: each turn is sent as soon as the one before has ended."""
    return [encode_tree(RenderedTree((_session(number, tokens),))) for number in range(TREES)]


def _session(number: int, tokens: int) -> RenderedSession:
    turns = []
    for index in range(TURNS):
        new: list[dict[str, object]] = [{"role": "user", "content": f"Step {index} of task {number}. {PROMPT}"}]
        if index:
            new.insert(0, {"role": "assistant", "content": "Done."})
        turns.append(
            RenderedTurn(
                request_id=f"t{number}-{index}",
                index=index,
                keep_messages=max(0, 2 * index - 1),
                new_messages=tuple(new),
                depends_on=(),
                delay_ms=0.0,
                input_tokens=300 * (index + 1),
                cached_tokens=300 * index,
                output_tokens=tokens,
                trigger="user",
            )
        )
    name = f"task-{number}"
    return RenderedSession(session_id=name, root_session_id=name, tools=(), turns=tuple(turns), salt_message=0)


class Server(Protocol):
    """A server with a log: the reference server, or another that it is compared with."""

    pace: Pace

    @property
    def base_url(self) -> str:
        """Base URL of its API."""

    def work(self) -> Work:
        """CPU time and tokens so far; asked in the middle of a level."""

    def take_rows(self) -> list[Row]:
        """Its log since the last time; asked between levels."""


OpenServer = Callable[[Pace, float, Sequence[int] | None], AbstractContextManager[Server]]
"""(pace, longest life in s, cores) -> a server that runs as long as the context."""


@dataclass(slots=True)
class Rig:
    """A fleet and the servers that its workers are spread over, all with one pace."""

    fleet: Fleet
    servers: Sequence[Server]
    probes: int = 0

    async def hold(self, level: int, window_s: float) -> Held:
        """Hold `level` streams: spread them over the length of one, open the window, close it, let the rest end."""
        stream_s = self.servers[0].pace.stream_s
        self.probes += 1
        await self.fleet.start_level(self.probes - 1, level, stream_s)
        batches: list[Batch] = []
        window = _Window(self.servers, stream_s + SETTLE_S, window_s)
        stopped = False
        async for batch in self.fleet.reports():
            batches.append(batch)
            window.at(batch.at_ns)
            if window.closed and not stopped:
                stopped = True
                await self.fleet.stop_level(3 * stream_s + GRACE_S)
        # Between levels nothing is timed, so this may wait for the servers here.
        rows = [row for server in self.servers for row in server.take_rows()]
        return window.held(level, self.fleet.workers, batches, rows)


@dataclass(frozen=True, slots=True)
class _Clocks:
    """What all processes had used at one edge of the window."""

    at_ns: int
    machine_s: float | None
    parent_s: float
    servers: tuple[Work, ...]

    @property
    def servers_s(self) -> float:
        return sum(work.cpu_s for work in self.servers)

    @property
    def server_tokens(self) -> int:
        return sum(work.tokens for work in self.servers)


class _Window:
    """Opens `after_s` after the first report, stays open for `length_s`, and reads the clocks of CPU at both ends."""

    def __init__(self, servers: Sequence[Server], after_s: float, length_s: float) -> None:
        self._servers = servers
        self._after_ns, self._length_ns = round(after_s * 1e9), round(length_s * 1e9)
        self._planned_ns = 0
        self._open: _Clocks | None = None
        self._close: _Clocks | None = None

    @property
    def closed(self) -> bool:
        """It has been opened and closed."""
        return self._close is not None

    def at(self, now_ns: int) -> None:
        """Told with each report of a load process; they come a few times a second, so the edges are where one is."""
        if not self._planned_ns:
            self._planned_ns = now_ns + self._after_ns
        if self._open is None:
            if now_ns >= self._planned_ns:
                self._open = self._read(now_ns)
        elif self._close is None and now_ns >= self._open.at_ns + self._length_ns:
            self._close = self._read(now_ns)

    def _read(self, now_ns: int) -> _Clocks:
        servers = tuple(server.work() for server in self._servers)
        return _Clocks(now_ns, machine_busy_s(), time.process_time(), servers)

    def held(self, level: int, workers: int, batches: Sequence[Batch], rows: list[Row]) -> Held:
        """What was seen, once the level has ended. ClientError when it ended before the window did."""
        a, b = self._open, self._close
        if a is None or b is None:
            raise ClientError(f"the level of {level} streams ended before it was measured", "try again")
        inside = [batch for batch in batches if a.at_ns <= batch.at_ns <= b.at_ns]
        shares = [share for w in range(workers) if (share := cpu_share(inside, w)) is not None]
        window_s = (b.at_ns - a.at_ns) / 1e9
        cpu_s = sum(shares) * window_s if len(shares) == workers else None
        server_s = b.servers_s - a.servers_s
        lags = [lag for batch in inside for lag in batch.sample.lags_s]
        own_s = (cpu_s or 0.0) + server_s + b.parent_s - a.parent_s
        return Held(
            level=level,
            workers=workers,
            open_ns=a.at_ns,
            close_ns=b.at_ns,
            records=[r for batch in batches for r in batch.records],
            rows=rows,
            cpu_s=cpu_s,
            cpu_share_max=max(shares, default=None),
            lag_p99_s=float(np.percentile(lags, 99)) if lags else None,
            server_cpu_s=server_s,
            server_tokens=b.server_tokens - a.server_tokens,
            other_cores=other_cores(a.machine_s, b.machine_s, own_s, window_s),
        )


def cpu_share(batches: Sequence[Batch], worker: int) -> float | None:
    """CPU time over wall time of one load process between its first and last of these reports; None below two."""
    own = [b for b in batches if b.worker == worker]
    if len(own) < 2 or own[-1].at_ns <= own[0].at_ns:
        return None
    used = sum(b.sample.cpu_share * (b.at_ns - a.at_ns) for a, b in itertools.pairwise(own))
    return used / (own[-1].at_ns - own[0].at_ns)


def lifetime_s(pace: Pace, probes: int, window_s: float) -> float:
    """More than this many levels can last: after it a server ends by itself."""
    return 60.0 + probes * (6 * pace.stream_s + window_s + GRACE_S + 5.0)


@contextlib.asynccontextmanager
async def open_rig(
    pace: Pace, workers: int, life_s: float, open_server: OpenServer = ServerProcess
) -> AsyncIterator[Rig]:
    """Load processes and as many servers, on different cores where there are enough; all end with the context."""
    parts = split_cores(usable_cores(), workers)
    ours, theirs = parts or (None, None)
    trees = session_trees(pace.tokens)
    settings = ReplaySettings(body=BodySettings(model=MODEL, output="max"), run_id=secrets.token_hex(4))
    async with contextlib.AsyncExitStack() as stack:
        servers = [stack.enter_context(open_server(pace, life_s, theirs)) for _ in range(workers)]

        def make_job(worker: int, workers: int) -> Job:
            secret = pickle.dumps((parse_endpoint(servers[worker % len(servers)].base_url), Limits()))
            return Job(
                worker=worker,
                workers=workers,
                target=Target(endpoint=secret),
                settings=settings,
                trees=trees,
                chars_per_token=4.0,
            )

        with children_on(ours):
            fleet = await stack.enter_async_context(open_fleet(make_job, workers))
        yield Rig(fleet, servers)
