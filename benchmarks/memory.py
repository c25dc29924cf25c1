"""How much memory does an agent take that carries a long context?

    python -m benchmarks.memory --agents 100,1000 --server truthserver.c

Sessions of about 131,000 tokens (500 KB of text), shared between the agents of a load process, against a client that
keeps each user's messages in a list of its own. Memory is the most that the process ever held, less what it holds with
one agent, over the other agents. Exits with 1 when that is more than 1 MB an agent; with 2 without a server.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ours
from benchmarks.accuracy import exit_code
from benchmarks.clients import run_module
from benchmarks.cores import Cores, cores_text, split_cores
from benchmarks.figures import markdown, ratio
from benchmarks.load import Load
from benchmarks.truth import TruthServer, TruthServerError, build, find, truth_server
from benchmarks.venvs import MissingError
from benchmarks.work import add_server

BOUND_MB = 1.0
TTFT_MS, TPS, TOKENS = 500.0, 20.0, 100
STREAM_S = TTFT_MS / 1e3 + (TOKENS - 1) / TPS
GRACE_S = 2 * STREAM_S + 10


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one client with a number of agents."""

    client: str
    agents: int
    rss_bytes: int
    base_bytes: int
    """With one agent."""
    ok: int
    failed: int

    @property
    def mb_per_agent(self) -> float:
        """What each agent beyond the first one adds."""
        return (self.rss_bytes - self.base_bytes) / 1e6 / (self.agents - 1)


def _agentperf(server: TruthServer, agents: int, kilobytes: int, seconds: float, cores: Cores) -> tuple[int, int, int]:
    """(most memory of the load process, requests that ended well, others)."""
    shape = ours.Shape(TOKENS, trees=16, turns=4, first_chars=kilobytes * 1000, step_chars=2000, wait_ms=1000)
    held = ours.hold(
        ours.Level(server.base_url, shape, agents, 1, STREAM_S, STREAM_S, seconds, GRACE_S, cores),
    )
    ok = sum(r.outcome == "ok" for r in held.records)
    return max(s.rss_bytes for s in held.samples), ok, len(held.records) - ok


def _naive(server: TruthServer, agents: int, kilobytes: int, seconds: float, cores: Cores) -> tuple[int, int, int]:
    load = Load(
        server.base_url, agents, TOKENS, ours.PROMPT, STREAM_S, STREAM_S, seconds, GRACE_S,
        history_chars=kilobytes * 1000,
    )  # fmt: skip
    result = run_module("benchmarks.naive", load, Path(sys.executable), cores, 2 * STREAM_S + seconds + GRACE_S + 60)
    ok = sum(row.ok for row in result.rows)
    return result.rss_bytes, ok, len(result.rows) - ok


CLIENTS = {"agentperf": _agentperf, "naive": _naive}


def measure(
    name: str, numbers: Sequence[int], kilobytes: int, seconds: float, binary: Path, folder: Path
) -> list[Memory]:
    """One client with one agent, and then with each of the numbers."""
    cores, server_core = split_cores()
    found: list[Memory] = []
    base = 0
    for agents in [1, *numbers]:
        lifetime_s = 2 * STREAM_S + seconds + GRACE_S + 90
        with truth_server(
            binary, folder / "truth.csv", ttft_ms=TTFT_MS, tps=TPS, tokens=TOKENS, core=server_core,
            lifetime_s=lifetime_s, prefix_cache=False,
        ) as server:  # fmt: skip
            rss, ok, failed = CLIENTS[name](server, agents, kilobytes, seconds, cores)
        if agents == 1:
            base = rss
        else:
            found.append(Memory(name, agents, rss, base, ok, failed))
    return found


def table(found: Sequence[Memory]) -> str:
    """Markdown; ratios are to agentperf with as many agents."""
    rows = [["agents", "client", "memory", "with one agent", "an agent", "ratio", "requests ok, failed"]]
    for m in sorted(found, key=lambda m: m.agents):
        same = next((o for o in found if o.agents == m.agents and o.client == "agentperf"), m)
        rows.append(
            [
                f"{m.agents:,}",
                m.client,
                f"{m.rss_bytes / 1e6:,.0f} MB",
                f"{m.base_bytes / 1e6:,.0f} MB",
                f"{m.mb_per_agent:.3f} MB",
                "" if m is same else ratio(m.mb_per_agent, same.mb_per_agent),
                f"{m.ok:,}, {m.failed:,}",
            ]
        )
    return markdown(rows)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 within the bound, 1 not, 2 when something is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=_numbers, default=[100, 1000], help="numbers of agents (default 100,1000)")
    parser.add_argument("--naive", type=_numbers, default=[100], help="those of the naive client (default 100)")
    parser.add_argument("--kilobytes", type=int, default=500, help="text of a session (default 500: 131k tokens)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the window (default 5)")
    add_server(parser)
    o = parser.parse_args(argv)
    if not (all(2 <= n <= 4000 for n in o.agents + o.naive) and 1 <= o.kilobytes <= 2000 and 1 <= o.seconds <= 60):
        parser.error("2 to 4000 agents, 1 to 2000 KB, 1 to 60 seconds")
    found: list[Memory] = []
    missing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="agentperf-memory-") as name:
        try:
            binary = build(find(o.server), Path(name))
            print(f"sessions of {o.kilobytes} KB; {cores_text()}\n", flush=True)
            found += measure("agentperf", o.agents, o.kilobytes, o.seconds, binary, Path(name))
            if o.naive:
                found += measure("naive", o.naive, o.kilobytes, o.seconds, binary, Path(name))
        except TruthServerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except MissingError as error:
            missing.append(str(error))
    print(f"{table(found)}\n")
    return conclude(found, missing)


def conclude(found: Sequence[Memory], missing: Sequence[str]) -> int:
    """Print the verdict for each number of agents and what is missing; the exit code."""
    met = True
    for m in (m for m in found if m.client == "agentperf"):
        within = m.mb_per_agent <= BOUND_MB and m.failed == 0
        verdict = "within" if within else "MISSED"
        print(
            f"- {m.agents:,} agents: {m.mb_per_agent:.3f} MB an agent <= {BOUND_MB:g} MB, {m.failed} failed: {verdict}"
        )
        met = met and within
    for line in missing:
        print(f"- missing: {line}")
    return exit_code(met=met, missing=missing)


if __name__ == "__main__":
    sys.exit(main())
