"""The clients of the benchmarks by name: each takes the same work and a server, and gives back a `Run`."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from agentperf.measure.record import Record
from agentperf.yardstick.cores import children_on
from benchmarks import aiperf, ours
from benchmarks.cores import Cores, OtherWork
from benchmarks.figures import Run, Said
from benchmarks.load import Load, Result, Row
from benchmarks.truth import TruthServer
from benchmarks.venvs import AIOHTTP_PEER, AIPERF_PEER, MissingError, python_for
from benchmarks.work import Work

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Client:
    """A client that is at hand. `processes` is how many cores it can use at least."""

    name: str
    run: Callable[[Work, TruthServer, Cores], Run]
    processes: int = 1


def said_by_record(r: Record) -> Said:
    """A record as the benchmark compares it: TTFT and speed are the record's own columns."""
    first_ns = None if r.ttft_s is None else r.t0_ns + round(r.ttft_s * 1e9)
    return Said(r.request_id, r.t0_ns, first_ns, r.last_visible_ns, r.events, r.speed_tps, r.end_ns, r.outcome == "ok")


def run_agentperf(work: Work, server: TruthServer, cores: Cores, workers: int = 1) -> Run:
    """Load processes, through the fleet; its CPU is that of load processes and of this process, which collects."""
    level = ours.Level(
        base_url=server.base_url,
        shape=ours.Shape(tokens=work.tokens),
        streams=work.streams,
        workers=workers,
        spread_s=work.stream_s,
        warmup_s=work.stream_s,
        seconds=work.seconds,
        grace_s=work.grace_s,
        cores=cores,
    )
    spent = _Spent(server)
    held = ours.hold(level)
    name = "agentperf" if workers == 1 else f"agentperf x {workers}"
    said = [said_by_record(r) for r in held.records]
    window = (held.open_ns, held.close_ns)
    judged = not 0 < len(cores) < workers
    return Run(name, work.streams, *window, said, held.cpu_s, spent.others(), held.collector_s, judged)


def said_by_row(row: Row, *, first_tokens: int = 1) -> Said:
    """A row of a peer as the benchmark compares it; speed is (tokens - those of the first event) / (last - first).

    One that counts tokens itself knows nothing of the tokens of an event, and takes the first event for one token.
    """
    first_ns = None if row.first is None else round(row.first * 1e9)
    last_ns = None if row.last is None else round(row.last * 1e9)
    speed = None
    if row.first is not None and row.last is not None and row.last > row.first and row.tokens > first_tokens:
        speed = (row.tokens - first_tokens) / (row.last - row.first)
    return Said(row.id, round(row.t0 * 1e9), first_ns, last_ns, row.events, speed, round(row.end * 1e9), row.ok)


def load_of(work: Work, server: TruthServer) -> Load:
    """The work as the peers are told it."""
    return Load(
        base_url=server.base_url,
        streams=work.streams,
        tokens=work.tokens,
        prompt=ours.PROMPT,
        spread_s=work.stream_s,
        warmup_s=work.stream_s,
        seconds=work.seconds,
        grace_s=work.grace_s,
        tokens_per_event=work.tokens_per_event,
    )


def run_module(module: str, load: Load, python: Path, cores: Cores, timeout_s: float) -> Result:
    """One of the peers' modules as a process of its own."""
    command = [str(python), "-m", module, json.dumps(asdict(load))]
    try:
        with children_on(cores):
            done = subprocess.run(command, capture_output=True, check=False, timeout=timeout_s, cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise MissingError(f"{module} did not end within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise MissingError(f"{module} ended with {done.returncode}: {(said[-1] if said else 'no message')[:200]}")
    return msgspec.json.decode(done.stdout, type=Result)


def _peer(name: str, module: str, python: Path, *, knows_events: bool = False) -> Client:
    def run(work: Work, server: TruthServer, cores: Cores) -> Run:
        spent = _Spent(server)
        result = run_module(module, load_of(work, server), python, cores, work.lifetime_s)
        first_tokens = work.tokens_per_event if knows_events else 1
        said = [said_by_row(row, first_tokens=first_tokens) for row in result.rows]
        window = (round(result.open_s * 1e9), round(result.close_s * 1e9))
        return Run(name, work.streams, *window, said, result.cpu_s, spent.others())

    return Client(name, run)


def _two_workers(work: Work, server: TruthServer, cores: Cores) -> Run:
    return run_agentperf(work, server, cores, workers=2)


def _aiperf(python: Path) -> Client:
    def run(work: Work, server: TruthServer, cores: Cores) -> Run:
        spent = _Spent(server)
        found = aiperf.run(work, server, python, cores)
        return replace(found, others=spent.others())

    return Client("aiperf", run)


NAMES = ("agentperf", "agentperf-2", "httpx", "aiohttp", "transport", "bare", "aiperf")


def client(name: str) -> Client:
    """The client of that name; what it needs is installed when it is not there. MissingError when that fails."""
    here = Path(sys.executable)
    match name:
        case "agentperf":
            return Client("agentperf", run_agentperf)
        case "agentperf-2":
            return Client("agentperf x 2", _two_workers, processes=2)
        case "httpx":
            return _peer("plain httpx", "benchmarks.plain_httpx", here)
        case "aiohttp":
            return _peer("plain aiohttp", "benchmarks.plain_aiohttp", python_for(AIOHTTP_PEER))
        case "transport":
            return _peer("own transport", "benchmarks.own_transport", here, knows_events=True)
        case "bare":
            return _peer("bare protocol", "benchmarks.bare_protocol", here, knows_events=True)
        case "aiperf":
            return _aiperf(python_for(AIPERF_PEER))
        case _:
            raise MissingError(f"there is no client {name!r}: choose of {', '.join(NAMES)}")


def clients(names: str) -> tuple[list[Client], list[str]]:
    """Those of a comma-separated list that are at hand, and a line for each that is missing."""
    found: list[Client] = []
    missing: list[str] = []
    for name in names.split(","):
        try:
            found.append(client(name.strip()))
        except MissingError as error:
            missing.append(str(error))
    return found, missing


class _Spent:
    """What our own processes use meanwhile, so that the rest of the machine's CPU time is other work."""

    def __init__(self, server: TruthServer) -> None:
        self._server = server
        self._others = OtherWork()
        self._began = self._now()

    def _now(self) -> tuple[float, ...]:
        return time.process_time(), self._server.cpu_s(), ours.children_cpu_s()

    def others(self) -> float | None:
        """Cores that others used since this was made."""
        found = self._others.cores([b - a for a, b in zip(self._began, self._now(), strict=True)])
        return None if found is None or math.isnan(found) else found
