"""How far from the truth are the latencies that agentperf records? Loads a server that logs the truth, and compares.

    python -m benchmarks.accuracy --streams 256 --tps 50 --ttft-ms 500 --tokens 100 --seconds 20 --server truthserver.c

One agentperf load process, started and told as `agentperf run` does it, holds the streams in closed loop; its records
come over the pipe and are joined with the server's log by X-Request-Id. Plain httpx does the same work in turn. Exits
with 1 when agentperf misses the bound: p99 of the TTFT error <= 5 ms, p99 of the speed error <= 0.5 %. The rest is in
README.md.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import msgspec

from agentperf.fleet.fleet import open_fleet
from agentperf.fleet.messages import Batch, Job, Target
from agentperf.measure.record import Record
from agentperf.replay.bodies import EncodedTree, encode_tree
from agentperf.replay.settings import ReplaySettings
from agentperf.trace.render import RenderedSession, RenderedTree, RenderedTurn
from agentperf.wire.chat import BodySettings
from agentperf.wire.endpoint import Limits, parse_endpoint
from benchmarks.figures import SPEED_BOUND, TTFT_BOUND_MS, Figures, Run, Said, figures, quietest, table
from benchmarks.plain_httpx import Load, Result, Row
from benchmarks.truth import (
    OtherWork,
    TruthRow,
    TruthServer,
    TruthServerError,
    build,
    children_on,
    find,
    read_log,
    truth_server,
    two_cores,
)

MAX_STREAMS = 4096
MAX_SECONDS = 120.0
TREES, TURNS = 16, 4
PROMPT = "Read the file and say what it does, line by line. " * 20


@dataclass(frozen=True, slots=True)
class Work:
    """What every client is to do."""

    streams: int
    tps: float
    ttft_ms: float
    tokens: int
    seconds: float

    @property
    def stream_s(self) -> float:
        """How long one stream lasts on a server that is never late."""
        return self.ttft_ms / 1e3 + (self.tokens - 1) / self.tps

    @property
    def grace_s(self) -> float:
        """How long open streams may go on after the window."""
        return 3 * self.stream_s + 5

    @property
    def lifetime_s(self) -> float:
        """More than a run can last: after this the server ends by itself."""
        return 2 * self.stream_s + self.seconds + self.grace_s + 60


# -- agentperf


def trees(tokens: int) -> list[EncodedTree]:
    """Small sessions without waits: each turn is sent as soon as the one before has ended."""
    made = []
    for number in range(TREES):
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
        session = RenderedSession(session_id=name, root_session_id=name, tools=(), turns=tuple(turns), salt_message=0)
        made.append(encode_tree(RenderedTree((session,))))
    return made


def _job(work: Work, server: TruthServer, run_id: str) -> Job:
    secret = pickle.dumps((parse_endpoint(server.base_url), Limits()))
    return Job(
        worker=0,
        workers=1,
        target=Target(endpoint=secret),
        settings=ReplaySettings(body=BodySettings(model="truth", output="max"), run_id=run_id),
        trees=trees(work.tokens),
        chars_per_token=4.0,
    )


@dataclass(slots=True)
class Held:
    """A level that was held: records of the whole of it, and the window."""

    records: list[Record]
    open_ns: int
    close_ns: int
    cpu_s: float


async def _hold(work: Work, server: TruthServer, core: int | None) -> Held:
    job = _job(work, server, "accuracy")
    batches: list[Batch] = []
    async with contextlib.AsyncExitStack() as stack:
        with children_on(core):
            fleet = await stack.enter_async_context(open_fleet(lambda _worker, _workers: job, 1))
        await fleet.start_level(0, work.streams, work.stream_s)
        open_ns = close_ns = 0
        stopped = False
        async for batch in fleet.reports():
            batches.append(batch)
            if not close_ns:
                # The first batch comes when the load process is up; the streams start spread over the length of one.
                open_ns = batch.at_ns + round(2 * work.stream_s * 1e9)
                close_ns = open_ns + round(work.seconds * 1e9)
            if batch.at_ns >= close_ns and not stopped:
                stopped = True
                await fleet.stop_level(work.grace_s)
    cpu_s = sum(
        b.sample.cpu_share * (b.at_ns - a.at_ns) / 1e9
        for a, b in itertools.pairwise(batches)
        if open_ns <= a.at_ns and b.at_ns <= close_ns
    )
    covered = [b.at_ns for b in batches if open_ns <= b.at_ns <= close_ns]
    # The samples cover the window but for a fraction of a second at its edges; scaled to the whole of it.
    scale = (close_ns - open_ns) / (covered[-1] - covered[0]) if len(covered) > 1 else math.nan
    return Held([r for b in batches for r in b.records], open_ns, close_ns, cpu_s * scale)


def said_by_record(r: Record) -> Said:
    """A record as the benchmark compares it: TTFT and speed are the record's own columns."""
    first_ns = None if r.ttft_s is None else r.t0_ns + round(r.ttft_s * 1e9)
    return Said(r.request_id, r.t0_ns, first_ns, r.last_visible_ns, r.events, r.speed_tps, r.end_ns, r.outcome == "ok")


def run_agentperf(work: Work, server: TruthServer, core: int | None) -> Run:
    """One load process, through the fleet."""
    others, own = OtherWork(), [time.process_time(), server.cpu_s(), _children_cpu_s()]
    held = anyio.run(_hold, work, server, core, backend_options={"use_uvloop": True})
    used = [time.process_time() - own[0], server.cpu_s() - own[1], _children_cpu_s() - own[2]]
    said = [said_by_record(r) for r in held.records]
    return Run("agentperf", work.streams, held.open_ns, held.close_ns, said, held.cpu_s, others.cores(used))


def _children_cpu_s() -> float:
    """CPU time of children that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system


# -- plain httpx


def said_by_row(row: Row) -> Said:
    """A row of `plain_httpx` as the benchmark compares it; speed is (tokens - 1) / (last - first)."""
    first_ns = None if row.first is None else round(row.first * 1e9)
    last_ns = None if row.last is None else round(row.last * 1e9)
    speed = None
    if row.first is not None and row.last is not None and row.last > row.first and row.tokens > 1:
        speed = (row.tokens - 1) / (row.last - row.first)
    return Said(row.id, round(row.t0 * 1e9), first_ns, last_ns, row.events, speed, round(row.end * 1e9), row.ok)


def run_plain_httpx(work: Work, server: TruthServer, core: int | None) -> Run:
    """The same work by plain httpx, also in a process of its own on the client's core."""
    load = Load(
        base_url=server.base_url,
        streams=work.streams,
        tokens=work.tokens,
        prompt=PROMPT,
        spread_s=work.stream_s,
        warmup_s=work.stream_s,
        seconds=work.seconds,
        grace_s=work.grace_s,
    )
    others, own = OtherWork(), [time.process_time(), server.cpu_s(), _children_cpu_s()]
    command = [sys.executable, "-m", "benchmarks.plain_httpx", json.dumps(asdict(load))]
    with children_on(core):
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=work.lifetime_s)
    used = [time.process_time() - own[0], server.cpu_s() - own[1], _children_cpu_s() - own[2]]
    result = msgspec.json.decode(done.stdout, type=Result)
    said = [said_by_row(row) for row in result.rows]
    window = (round(result.open_s * 1e9), round(result.close_s * 1e9))
    return Run("plain httpx", work.streams, *window, said, result.cpu_s, others.cores(used))


Client = Callable[[Work, TruthServer, int | None], Run]
CLIENTS: tuple[Client, ...] = (run_agentperf, run_plain_httpx)


# -- the benchmark


def measure(client: Client, work: Work, binary: Path, folder: Path) -> tuple[Run, dict[str, TruthRow]]:
    """One run of a client against a fresh server, and that server's log."""
    client_core, server_core = two_cores()
    log = folder / "truth.csv"
    with truth_server(
        binary,
        log,
        ttft_ms=work.ttft_ms,
        tps=work.tps,
        tokens=work.tokens,
        core=server_core,
        lifetime_s=work.lifetime_s,
    ) as server:
        run = client(work, server, client_core)
    return run, read_log(log)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=256, help="streams held in closed loop (default 256)")
    parser.add_argument("--tps", type=float, default=50.0, help="tokens per second of each stream (default 50)")
    parser.add_argument("--ttft-ms", type=float, default=500.0, help="the server's time to first token (default 500)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each reply (default 100)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the window (default 20)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds; the one with least other work counts")
    parser.add_argument("--only-agentperf", action="store_true", help="leave plain httpx out")
    parser.add_argument("--server", help="C source or binary of the truth server (or $AGENTPERF_TRUTHSERVER)")
    options = parser.parse_args(argv)
    if not (1 <= options.streams <= MAX_STREAMS and 1 <= options.seconds <= MAX_SECONDS and options.tokens >= 2):
        parser.error(f"1 to {MAX_STREAMS} streams, 1 to {MAX_SECONDS:g} seconds, 2 tokens at least")
    if not (options.tps > 0 and options.ttft_ms >= 0 and 1 <= options.rounds <= 20):
        parser.error("--tps above 0, --ttft-ms 0 at least, 1 to 20 rounds")
    return options


def _cores_text() -> str:
    client_core, _ = two_cores()
    count = os.cpu_count()
    if client_core is None:
        return f"{count} core(s): client and server share them, so expect worse figures"
    return f"{count} cores, the client process on one, the server on another"


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 within the bound, 1 not, 2 without a server."""
    options = _arguments(argv)
    work = Work(options.streams, options.tps, options.ttft_ms, options.tokens, options.seconds)
    clients = CLIENTS[:1] if options.only_agentperf else CLIENTS
    rounds: list[list[Figures]] = []
    print(f"{work.streams} streams x {work.tps:g} tok/s, TTFT {work.ttft_ms:g} ms, {work.tokens} tokens, ", end="")
    print(f"window {work.seconds:g} s; {_cores_text()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="agentperf-accuracy-") as name:
        try:
            binary = build(find(options.server), Path(name))
            for number in range(options.rounds):
                rounds.append([figures(*measure(client, work, binary, Path(name))) for client in clients])
                print(f"\nround {number + 1}\n{table(rounds[-1])}", flush=True)
        except TruthServerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    best = quietest(rounds)
    ours = rounds[best][0]
    verdict = "within" if ours.within_bound else "MISSED"
    chosen = f" (round {best + 1}: least other work)" if len(rounds) > 1 else ""
    print(f"\nbound p99 TTFT error <= {TTFT_BOUND_MS:g} ms, p99 speed error <= {SPEED_BOUND:.1%}: {verdict}{chosen}")
    return 0 if ours.within_bound else 1


if __name__ == "__main__":
    sys.exit(main())
