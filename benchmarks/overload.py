"""Does agentperf know when it is the bottleneck? Gives one load process more than it can drive.

    python -m benchmarks.overload --streams 4000 --tps 80 --server truthserver.c

The records and samples of the level go through the rules by which a run judges its client, and beside the verdict
stand the true errors, by the server's log. Exits with 1 when the figures are untrue and the level is not void; with 2
without a server. A client that keeps up is no fault: then the verdict must be that it did.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agentperf.measure.health import PROCESS_LOST, Health, assess, decode_times, delays_of, voided
from agentperf.measure.metrics import summarise
from benchmarks.clients import said_by_record
from benchmarks.cores import cores_text, split_cores
from benchmarks.figures import SPEED_BOUND, TTFT_BOUND_MS, Figures, Run, figures, table
from benchmarks.ours import Held, Level, Shape, hold
from benchmarks.truth import TruthServerError, build, find, read_log, server_of
from benchmarks.work import Work, add_server, add_work, work_of

SHOWN = (
    "TTFT error p99", "speed error p99", "speed bias (median)", "upload p99", "in flight / wanted", "events/s",
    "CPU per event", "requests", "lost", "server late p99",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judged:
    """What the rules say of a level, and what is true."""

    health: Health
    true: Figures
    cut: bool = False
    """A load process was lost before the window was over."""

    @property
    def untrue(self) -> bool:
        """The figures are further from the truth than agentperf promises, or the load was not held."""
        return self.cut or not self.true.within_bound or self.true.in_flight < 0.99 * self.true.wanted

    @property
    def caught(self) -> bool:
        """Void whenever untrue."""
        return self.health.status == "invalid" or not self.untrue


def judge(held: Held) -> Health:
    """The verdict on the client, by the rules and inputs of a run."""
    population = held.population()
    metrics = summarise(held.records, level=held.streams, open_ns=held.open_ns, close_ns=held.close_ns)
    health = assess(
        held.window_samples(),
        *delays_of(population),
        metrics.in_flight,
        metrics.wanted_in_flight,
        None,
        decode_s=decode_times(population),
        machine=[m for m in held.machine if held.open_ns <= m.at_ns <= held.close_ns],
    )
    return voided(health, PROCESS_LOST, held.lost) if held.lost is not None else health


def measure(work: Work, workers: int, binary: Path, folder: Path) -> Judged:
    """Hold the level, judge it, and compare it with the server's log."""
    cores, server_core = split_cores(workers)
    log = folder / "truth.csv"
    with server_of(work, binary, log, server_core) as server:
        held = hold(
            Level(
                base_url=server.base_url,
                shape=Shape(tokens=work.tokens),
                streams=work.streams,
                workers=workers,
                spread_s=work.stream_s,
                warmup_s=work.stream_s,
                seconds=work.seconds,
                grace_s=work.grace_s,
                cores=cores,
            ),
            may_be_lost=True,
        )
    said = [said_by_record(r) for r in held.records]
    run = Run("agentperf", work.streams, held.open_ns, held.close_ns, said, held.cpu_s, None)
    return Judged(judge(held), figures(run, read_log(log)), held.lost is not None)


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 when the verdict is right, 1 when untrue figures pass, 2 without a server."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__.partition("\n")[0])
    add_work(parser, streams=4000, tps=80.0, seconds=8.0)
    parser.add_argument("--workers", type=int, default=1, help="load processes (default 1)")
    add_server(parser)
    options = parser.parse_args(argv)
    work = work_of(options, parser)
    if not 1 <= options.workers <= 16:
        parser.error("1 to 16 workers")
    with tempfile.TemporaryDirectory(prefix="agentperf-overload-") as name:
        try:
            binary = build(find(options.server), Path(name))
            print(f"{work}, {options.workers} load process(es); {cores_text(options.workers)}\n", flush=True)
            judged = measure(work, options.workers, binary, Path(name))
        except TruthServerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    print(table([judged.true], SHOWN))
    return conclude(judged)


def conclude(judged: Judged) -> int:
    """Print both verdicts, and say whether they agree."""
    health = judged.health
    print(f"\n- verdict on the client: {health.status} ({health.cause if health.status == 'invalid' else 'believed'})")
    for reason in health.reasons:
        print(f"  - {reason}")
    if health.remedy:
        print(f"  - remedy: {health.remedy}")
    truth = "untrue" if judged.untrue else "true"
    print(f"- figures by the server's log: {truth} (bounds {TTFT_BOUND_MS:g} ms, {SPEED_BOUND:.1%}, 99 % in flight)")
    print(f"- void whenever untrue: {'within' if judged.caught else 'MISSED'}")
    return 0 if judged.caught else 1


if __name__ == "__main__":
    sys.exit(main())
