"""How far from the truth are the latencies that a client records? Loads a server that logs the truth, and compares.

    python -m benchmarks.accuracy --streams 256 --tps 50 --clients agentperf,httpx,bare --server truthserver.c

agentperf's load processes, started and told as `agentperf run` does it, hold the streams in closed loop; their records
come over the pipe and are joined with the server's log by X-Request-Id. The other clients do the same work in turn.
Exits with 1 when agentperf misses a bound: p99 of the TTFT error <= 5 ms, p99 of the speed error <= 0.5 %, CPU per
event <= 1.5 times that of the bare protocol where it runs too; with 2 when a client or the server is missing. The rest
is in README.md.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.clients import NAMES, Client, clients
from benchmarks.cores import cores_text, split_cores
from benchmarks.figures import (
    CPU_BOUND,
    PEER_CPU,
    PEER_SPEED,
    SPEED_BOUND,
    TTFT_BOUND_MS,
    Figures,
    Run,
    figures,
    quietest,
    table,
)
from benchmarks.truth import TruthRow, TruthServerError, build, find, read_log, server_of
from benchmarks.venvs import MissingError
from benchmarks.work import Work, add_server, add_work, work_of

DEFAULT = "agentperf,httpx,bare"


def measure(client: Client, work: Work, binary: Path, folder: Path) -> tuple[Run, dict[str, TruthRow]]:
    """One run of a client against a fresh server, and that server's log."""
    client_cores, server_core = split_cores(client.processes)
    log = folder / "truth.csv"
    with server_of(work, binary, log, server_core) as server:
        run = client.run(work, server, client_cores)
    return run, read_log(log)


def one_round(found: Sequence[Client], work: Work, binary: Path, folder: Path, missing: list[str]) -> list[Figures]:
    """Each client once. One that breaks is added to `missing`, and has no column."""
    made: list[Figures] = []
    for client in found:
        try:
            made.append(figures(*measure(client, work, binary, folder)))
        except MissingError as error:
            missing.append(str(error))
    return made


def verdicts(found: Sequence[Figures]) -> list[tuple[str, bool]]:
    """The bounds that apply, each in words with whether it is met; of agentperf, with any number of processes."""
    bare = next((f for f in found if f.client == "bare protocol"), None)
    peer = next((f for f in found if f.client == "aiperf"), None)
    made: list[tuple[str, bool]] = []
    for ours in (f for f in found if f.client.startswith("agentperf") and f.judged):
        errors = (
            f"{ours.client}: p99 TTFT error {ours.ttft_ms[1]:.2f} ms <= {TTFT_BOUND_MS:g} ms, p99 speed error "
            f"{ours.speed[1]:.3%} <= {SPEED_BOUND:.1%}, none lost"
        )
        made.append((errors, ours.within_bound))
        if bare is not None and ours.client == "agentperf":
            times = ours.us_per_event / bare.us_per_event
            made.append(
                (f"{ours.client}: CPU per event {times:.2f} times the bare one <= {CPU_BOUND:g}", times <= CPU_BOUND)
            )
        if peer is not None and ours.client == "agentperf":
            speed, cpu = peer.speed[1] / ours.speed[1], peer.us_per_event / ours.us_per_event
            made.append((f"aiperf's p99 speed error {speed:,.0f} times ours >= {PEER_SPEED:g}", speed >= PEER_SPEED))
            made.append((f"aiperf's CPU per event {cpu:.1f} times ours >= {PEER_CPU:g}", cpu >= PEER_CPU))
    return made


def _arguments(argv: list[str] | None) -> tuple[argparse.Namespace, Work]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__.partition("\n")[0])
    add_work(parser, streams=256, tps=50.0, seconds=20.0)
    parser.add_argument("--clients", default=DEFAULT, help=f"of {','.join(NAMES)} (default {DEFAULT})")
    parser.add_argument("--rounds", type=int, default=1, help="rounds; the one with least other work counts")
    parser.add_argument("--only-agentperf", action="store_true", help="the same as --clients agentperf")
    add_server(parser)
    options = parser.parse_args(argv)
    if not 1 <= options.rounds <= 20:
        parser.error("1 to 20 rounds")
    if options.only_agentperf:
        options.clients = "agentperf"
    return options, work_of(options, parser)


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 within the bounds, 1 not, 2 when something is missing."""
    options, work = _arguments(argv)
    rounds: list[list[Figures]] = []
    with tempfile.TemporaryDirectory(prefix="agentperf-accuracy-") as name:
        try:
            binary = build(find(options.server), Path(name))
        except TruthServerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        found, missing = clients(options.clients)
        print(f"{work}; {cores_text()}", flush=True)
        for number in range(options.rounds):
            rounds.append(one_round(found, work, binary, Path(name), missing))
            if rounds[-1]:
                print(f"\nround {number + 1}\n\n{table(rounds[-1])}", flush=True)
    return conclude(rounds, missing)


def conclude(rounds: Sequence[Sequence[Figures]], missing: Sequence[str]) -> int:
    """Print the verdicts of the round that counts, and what is missing; the exit code."""
    best = quietest(rounds)
    if len(rounds) > 1:
        print(f"\nround {best + 1} counts: least other work")
    made = verdicts(rounds[best])
    print()
    for text, met in made:
        print(f"- {text}: {'within' if met else 'MISSED'}")
    for f in (f for f in rounds[best] if not f.judged):
        print(f"- {f.client}: shown and not judged, since its processes shared a core")
    for line in missing:
        print(f"- missing: {line}")
    return exit_code(met=all(met for _, met in made), missing=missing)


def exit_code(*, met: bool, missing: Sequence[str]) -> int:
    """1 when a bound was missed or agentperf itself broke, else 2 when a peer is missing."""
    if not met or any(line.startswith("agentperf") for line in missing):
        return 1
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
