"""How soon are the requests of many new connections at the server, when all are asked for at once?

    python -m benchmarks.connections --connections 2000 --server truthserver.c

Each client opens as many connections as there are requests, all at the same moment, as a fleet does that begins with a
level. The server's log tells when the last request was there. Exits with 1 when that took agentperf's transport longer
than the bound, 1 s; with 2 when a client or the server is missing.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients import run_module
from benchmarks.cores import cores_text, split_cores
from benchmarks.figures import markdown, percentile, ratio
from benchmarks.load import Load, Result
from benchmarks.ours import PROMPT
from benchmarks.truth import TruthRow, TruthServerError, build, find, read_log, truth_server
from benchmarks.venvs import AIOHTTP_PEER, MissingError, python_for
from benchmarks.work import add_server

BOUND_S = 1.0
MODULES = {
    "agentperf": "benchmarks.own_transport",
    "httpx": "benchmarks.plain_httpx",
    "aiohttp": "benchmarks.plain_aiohttp",
    "bare": "benchmarks.bare_protocol",
}
TTFT_MS, TPS, TOKENS = 1000.0, 50.0, 10


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the server saw of one burst; times in s after the moment at which the client began."""

    client: str
    wanted: int
    arrived: int
    median_s: float
    last_s: float
    """When the last of those that arrived was there."""
    done_s: float
    """When the client was done with the last one, or gave up."""
    ok: int
    cpu_s: float

    @property
    def met(self) -> bool:
        """All arrived, and the last one in time."""
        return self.arrived == self.wanted and self.last_s <= BOUND_S


def arrival(client: str, wanted: int, result: Result, log: dict[str, TruthRow]) -> Arrival:
    """The figures of one burst: its rows, joined with the server's log."""
    known = [log[row.id].t_recv / 1e9 - result.open_s for row in result.rows if row.id in log]
    return Arrival(
        client=client,
        wanted=wanted,
        arrived=len(known),
        median_s=percentile(known, 50),
        last_s=percentile(known, 100),
        done_s=result.close_s - result.open_s,
        ok=sum(row.ok for row in result.rows),
        cpu_s=result.cpu_s,
    )


def table(found: Sequence[Arrival]) -> str:
    """Markdown, a row for each client; ratios are to the first one."""
    head = ["client", "at the server: median", "the last one", "ratio", "all done", "arrived", "ok", "CPU"]
    return markdown([head, *(_row(a, found[0]) for a in found)])


def _row(a: Arrival, first: Arrival) -> list[str]:
    return [
        a.client,
        f"{a.median_s * 1e3:,.0f} ms",
        f"{a.last_s * 1e3:,.0f} ms",
        ratio(a.last_s, first.last_s),
        f"{a.done_s:.1f} s",
        f"{a.arrived:,} of {a.wanted:,}",
        f"{a.ok:,}",
        f"{a.cpu_s:.2f} s",
    ]


def burst(name: str, connections: int, limit_s: float, binary: Path, folder: Path) -> Arrival:
    """One client against a fresh server."""
    python = python_for(AIOHTTP_PEER) if name == "aiohttp" else Path(sys.executable)
    cores, server_core = split_cores()
    log = folder / "truth.csv"
    lifetime_s = limit_s + 30
    with truth_server(
        binary, log, ttft_ms=TTFT_MS, tps=TPS, tokens=TOKENS, core=server_core, lifetime_s=lifetime_s
    ) as server:
        load = Load(server.base_url, connections, TOKENS, PROMPT, 0, 0, 0, limit_s, mode="burst")
        result = run_module(MODULES[name], load, python, cores, lifetime_s + 10)
    return arrival(name, connections, result, read_log(log))


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 within the bound, 1 not, 2 when something is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections", description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=2000, help="connections at once (default 2000)")
    parser.add_argument("--clients", default="agentperf,httpx,aiohttp,bare", help=f"of {','.join(MODULES)}")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a client may take (default 120)")
    add_server(parser)
    options = parser.parse_args(argv)
    names = options.clients.split(",")
    if not (1 <= options.connections <= 10_000 and 5 <= options.limit <= 600 and set(names) <= set(MODULES)):
        parser.error(f"1 to 10000 connections, a limit of 5 to 600 s, clients of {','.join(MODULES)}")
    found: list[Arrival] = []
    missing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="agentperf-connections-") as folder:
        try:
            binary = build(find(options.server), Path(folder))
        except TruthServerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{options.connections:,} fresh connections at once; {cores_text()}\n", flush=True)
        for name in names:
            try:
                found.append(burst(name, options.connections, options.limit, binary, Path(folder)))
            except MissingError as error:
                missing.append(str(error))
    if found:
        print(table(found))
    return conclude(found, missing)


def conclude(found: Sequence[Arrival], missing: Sequence[str]) -> int:
    """Print the verdict and what is missing; the exit code."""
    ours = next((a for a in found if a.client == "agentperf"), None)
    print()
    if ours is not None:
        verdict = "within" if ours.met else "MISSED"
        print(f"- agentperf: the last request at the server after {ours.last_s:.2f} s <= {BOUND_S:g} s: {verdict}")
    for line in missing:
        print(f"- missing: {line}")
    if ours is not None and not ours.met:
        return 1
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
