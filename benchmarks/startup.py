"""How long until the command answers? Import and `--help`, medians of several runs, and whether it asks the network.

    python -m benchmarks.startup

aiperf stands beside it where its environment exists (`venvs.py`). Exits with 1 when `agentperf --help` takes more than
0.3 s or opens a connection.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients import ROOT
from benchmarks.figures import markdown, ratio
from benchmarks.venvs import AIPERF_PEER, MissingError, find

BOUND_S = 0.3
LIMIT_S = 60.0

WATCHED = """
import sys
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        sys.stderr.write(f"network: {event}\\n")
        sys.exit(9)
sys.addaudithook(hook)
sys.argv = ["agentperf", "--help"]
from agentperf.cli.app import main
main()
"""
"""Runs `agentperf --help` in an interpreter that ends with 9 at the first use of the network."""


@dataclass(frozen=True, slots=True)
class Start:
    """One command, run several times; in s."""

    name: str
    times: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Of the runs."""
        return statistics.median(self.times)


def timed(name: str, command: Sequence[str], runs: int) -> Start:
    """Run a command `runs` times, after one that is not counted. MissingError when it fails."""
    times = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S, cwd=ROOT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MissingError(f"{name}: {error}") from error
        times.append(time.perf_counter() - began)
        if done.returncode != 0:
            raise MissingError(f"{name} ended with {done.returncode}")
    return Start(name, tuple(times[1:]))


def uses_network() -> bool:
    """Whether `agentperf --help` connects, or looks up a name."""
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], capture_output=True, check=False, timeout=LIMIT_S, cwd=ROOT, env=environment
    )
    if done.returncode not in (0, 9):
        raise MissingError(f"agentperf --help ended with {done.returncode}: {done.stderr.decode()[-200:]}")
    return done.returncode == 9


def commands(python: Path, module: str, program: list[str]) -> dict[str, list[str]]:
    """What is timed of one tool, by name."""
    return {"import": [str(python), "-c", f"import {module}"], "--help": [*program, "--help"]}


def table(found: Sequence[Start], others: Sequence[Start]) -> str:
    """Markdown; ratios are to the same of agentperf."""
    rows = [["", "median", "fastest", "slowest", "ratio"]]
    ours = {s.name.partition(" ")[2]: s for s in found}
    for s in [*found, *others]:
        base = ours[s.name.partition(" ")[2]]
        behind = "" if s is base else ratio(s.median_s, base.median_s)
        rows.append(
            [
                s.name,
                f"{s.median_s * 1e3:.0f} ms",
                f"{min(s.times) * 1e3:.0f} ms",
                f"{max(s.times) * 1e3:.0f} ms",
                behind,
            ]
        )
    return markdown(rows)


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 within the bound, 1 not, 2 when a command fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="runs of each (default 10)")
    parser.add_argument("--only-agentperf", action="store_true", help="leave aiperf out")
    options = parser.parse_args(argv)
    if not 1 <= options.runs <= 100:
        parser.error("1 to 100 runs")
    others: list[Start] = []
    missing: list[str] = []
    try:
        own = commands(Path(sys.executable), "agentperf.cli.app", [sys.executable, "-m", "agentperf"])
        found = [timed(f"agentperf {name}", command, options.runs) for name, command in own.items()]
        network = uses_network()
    except MissingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not options.only_agentperf:
        try:
            python = find(AIPERF_PEER)
            if python is None:
                missing.append("aiperf: no environment has it (the accuracy benchmark makes one)")
            else:
                theirs = commands(python, "aiperf.cli", [str(python.parent / "aiperf")])
                others = [timed(f"aiperf {name}", command, options.runs) for name, command in theirs.items()]
        except MissingError as error:
            missing.append(str(error))
    print(f"{table(found, others)}\n")
    return conclude(found[-1].median_s, network=network, missing=missing)


def conclude(help_s: float, *, network: bool, missing: Sequence[str]) -> int:
    """Print the verdict and what is missing; the exit code. A peer that is not installed is no fault here."""
    within = help_s <= BOUND_S and not network
    asks = "it asks the network" if network else "no network"
    print(f"- agentperf --help: {help_s:.3f} s <= {BOUND_S:g} s, {asks}: {'within' if within else 'MISSED'}")
    for line in missing:
        print(f"- missing: {line}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
