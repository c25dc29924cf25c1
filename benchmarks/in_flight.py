"""Are as many requests open as there are agents, when no tool makes them wait?

    python -m benchmarks.in_flight --streams 1000 --clients agentperf,aiperf --server truthserver.c

The server's log says how many were open, time-weighted over the window. Exits with 1 when agentperf held less than
99 %; with 2 when a client or the server is missing.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy import exit_code, one_round
from benchmarks.clients import NAMES, clients
from benchmarks.cores import cores_text
from benchmarks.figures import IN_FLIGHT_BOUND, Figures, table
from benchmarks.truth import TruthServerError, build, find
from benchmarks.work import add_server, add_work, work_of

SHOWN = ("in flight / wanted", "upload p99", "events/s", "CPU per event", "requests", "lost", "other work")


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 within the bound, 1 not, 2 when something is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.in_flight", description=__doc__.partition("\n")[0])
    add_work(parser, streams=1000, tps=50.0, seconds=10.0)
    parser.add_argument("--clients", default="agentperf", help=f"of {','.join(NAMES)} (default agentperf)")
    add_server(parser)
    options = parser.parse_args(argv)
    work = work_of(options, parser)
    with tempfile.TemporaryDirectory(prefix="agentperf-in-flight-") as name:
        try:
            binary = build(find(options.server), Path(name))
        except TruthServerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        found, missing = clients(options.clients)
        print(f"{work}; {cores_text()}\n", flush=True)
        measured = one_round(found, work, binary, Path(name), missing)
    if measured:
        print(table(measured, SHOWN))
    return conclude(measured, missing)


def conclude(found: Sequence[Figures], missing: Sequence[str]) -> int:
    """Print the verdict of each agentperf client and what is missing; the exit code."""
    print()
    met = True
    for f in (f for f in found if f.client.startswith("agentperf")):
        if not f.judged:
            print(f"- {f.client}: shown and not judged, since its processes shared a core")
            continue
        within = f.in_flight >= IN_FLIGHT_BOUND * f.wanted
        met = met and within
        wanted = f"{f.in_flight:,.1f} in flight >= {IN_FLIGHT_BOUND:.0%} of {f.wanted:,}"
        print(f"- {f.client}: {wanted}: {'within' if within else 'MISSED'}")
    for line in missing:
        print(f"- missing: {line}")
    return exit_code(met=met, missing=missing)


if __name__ == "__main__":
    sys.exit(main())
