"""Does the client stay as good as it was? Agents with large prompts and tool waits, for minutes.

    python -m benchmarks.endurance --minutes 10 --server truthserver.c

256 agents, prompts of 100 KB, one second of tool time between turns. Exits with 1 when a bound is missed: loop lag p99
< 5 ms, no growth of memory in the second half, overhead between turns p99 < 5 ms by the client's account and by the
server's log; with 2 without a server.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentperf.measure.health import WorkerSample, delays_of
from agentperf.measure.record import Record
from benchmarks.cores import cores_text, split_cores
from benchmarks.figures import markdown, percentile
from benchmarks.ours import Held, Level, LostError, Shape, hold
from benchmarks.truth import TruthRow, TruthServerError, build, find, read_log, truth_server
from benchmarks.work import add_server

LAG_BOUND_S = OVERHEAD_BOUND_S = 0.005
GROWTH_BOUND = 0.02
"""Memory in the last quarter over that in the third: more than this share is no noise of the allocator."""
TTFT_MS, TPS, TOKENS = 500.0, 50.0, 100
WAIT_MS = 1000.0
STREAM_S = TTFT_MS / 1e3 + (TOKENS - 1) / TPS


@dataclass(frozen=True, slots=True)
class Endurance:
    """What minutes of load came to; times in s, memory in bytes."""

    requests: int
    failed: int
    lag_p99_s: float
    lag_max_s: float
    overhead_p99_s: float
    """sent - due, of requests with a wait before them."""
    gap_p99_s: float
    """By the server: receipt of a turn's head - end of the reply before it - the wait."""
    rss: tuple[float, float, float, float]
    """Median of the load processes' memory in each quarter of the window, of the one that has most."""
    cpu_share: float

    @property
    def growth(self) -> float:
        """Memory in the last quarter over that in the third, less 1."""
        return self.rss[3] / self.rss[2] - 1

    @property
    def bounds(self) -> list[tuple[str, bool]]:
        """Each bound in words, with whether it is met."""
        return [
            (f"loop lag p99 {self.lag_p99_s * 1e3:.2f} ms < 5 ms", self.lag_p99_s < LAG_BOUND_S),
            (f"sent - due p99 {self.overhead_p99_s * 1e3:.2f} ms < 5 ms", self.overhead_p99_s < OVERHEAD_BOUND_S),
            (
                f"between turns by the server p99 {self.gap_p99_s * 1e3:.2f} ms < 5 ms",
                self.gap_p99_s < OVERHEAD_BOUND_S,
            ),
            (f"memory grows by {self.growth:+.2%} from third to last quarter <= 2 %", self.growth <= GROWTH_BOUND),
            (f"{self.failed} requests failed", self.failed == 0),
        ]


def quarters(samples: Iterable[WorkerSample], open_ns: int, close_ns: int) -> tuple[float, float, float, float]:
    """Median memory in each quarter of the window; nan where a quarter has no sample."""
    found: list[list[int]] = [[], [], [], []]
    for s in samples:
        if open_ns <= s.at_ns < close_ns:
            found[4 * (s.at_ns - open_ns) // (close_ns - open_ns)].append(s.rss_bytes)
    a, b, c, d = (float(statistics.median(q)) if q else float("nan") for q in found)
    return a, b, c, d


def gaps_by_server(records: Sequence[Record], log: Mapping[str, TruthRow], wait_s: float) -> list[float]:
    """Of each turn that followed another one of its play, by the server's log: time between them less the wait, in s"""
    plays: dict[tuple[int, str], list[Record]] = defaultdict(list)
    for r in records:
        plays[r.agent, r.play].append(r)
    found: list[float] = []
    for turns in plays.values():
        turns.sort(key=lambda r: r.turn)
        for before, r in itertools.pairwise(turns):
            if r.turn == before.turn + 1 and before.request_id in log and r.request_id in log:
                done, head = log[before.request_id].t_done, log[r.request_id].t_head
                found.append((head - done) / 1e9 - wait_s)
    return found


def endurance(held: Held, log: Mapping[str, TruthRow]) -> Endurance:
    """The figures of the window."""
    samples, population = held.window_samples(), held.population()
    lags = [lag for s in samples for lag in s.lags_s]
    waited = [r for r in population if r.turn > 0]
    by_worker: dict[int, list[WorkerSample]] = defaultdict(list)
    for s in samples:
        by_worker[s.worker].append(s)
    rss = [quarters(own, held.open_ns, held.close_ns) for own in by_worker.values()]
    return Endurance(
        requests=len(population),
        failed=sum(r.outcome != "ok" for r in population),
        lag_p99_s=percentile(lags, 99),
        lag_max_s=percentile(lags, 100),
        overhead_p99_s=percentile(delays_of(waited)[1], 99),
        gap_p99_s=percentile(gaps_by_server(population, log, WAIT_MS / 1e3), 99),
        rss=max(rss, key=lambda q: q[3]),
        cpu_share=held.cpu_s * 1e9 / (held.close_ns - held.open_ns),
    )


def measure(agents: int, kilobytes: int, seconds: float, workers: int, binary: Path, folder: Path) -> Endurance:
    """Hold the level and compare it with the server's log."""
    cores, server_core = split_cores(workers)
    log = folder / "truth.csv"
    spread_s = STREAM_S + WAIT_MS / 1e3
    lifetime_s = seconds + 4 * spread_s + 60
    with truth_server(
        binary, log, ttft_ms=TTFT_MS, tps=TPS, tokens=TOKENS, core=server_core, lifetime_s=lifetime_s
    ) as server:
        shape = Shape(TOKENS, trees=16, turns=8, first_chars=kilobytes * 1000, step_chars=2000, wait_ms=WAIT_MS)
        held = hold(
            Level(server.base_url, shape, agents, workers, spread_s, spread_s, seconds, 3 * STREAM_S + 5, cores)
        )
    return endurance(held, read_log(log))


def table(e: Endurance) -> str:
    """Markdown."""
    mb = " / ".join(f"{q / 1e6:.1f}" for q in e.rss)
    return markdown(
        [
            ["", "agentperf"],
            ["requests in the window", f"{e.requests:,}"],
            ["loop lag p99, max", f"{e.lag_p99_s * 1e3:.2f} ms, {e.lag_max_s * 1e3:.1f} ms"],
            ["sent - due p99", f"{e.overhead_p99_s * 1e3:.2f} ms"],
            ["between turns less the wait, by the server's log, p99", f"{e.gap_p99_s * 1e3:.2f} ms"],
            ["memory of a load process, by quarter", f"{mb} MB"],
            ["CPU, collector included", f"{e.cpu_share:.2f} cores"],
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 within the bounds, 1 not, 2 without a server."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="length of the window (default 1)")
    parser.add_argument("--agents", type=int, default=256, help="agents (default 256)")
    parser.add_argument("--kilobytes", type=int, default=100, help="size of a first prompt (default 100)")
    parser.add_argument("--workers", type=int, default=1, help="load processes (default 1)")
    add_server(parser)
    o = parser.parse_args(argv)
    if not (0.02 <= o.minutes <= 120 and 1 <= o.agents <= 4096 and 1 <= o.kilobytes <= 1000 and 1 <= o.workers <= 16):
        parser.error("up to 120 minutes, 1 to 4096 agents, 1 to 1000 KB, 1 to 16 workers")
    with tempfile.TemporaryDirectory(prefix="agentperf-endurance-") as name:
        try:
            binary = build(find(o.server), Path(name))
            print(
                f"{o.agents} agents, prompts of {o.kilobytes} KB and more, {WAIT_MS / 1e3:g} s between turns, "
                f"{o.minutes:g} min; {cores_text(o.workers)}\n",
                flush=True,
            )
            found = measure(o.agents, o.kilobytes, o.minutes * 60, o.workers, binary, Path(name))
        except TruthServerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except LostError as error:
            print(f"- {error}: MISSED")
            return 1
    print(f"{table(found)}\n")
    for text, met in found.bounds:
        print(f"- {text}: {'within' if met else 'MISSED'}")
    return 0 if all(met for _, met in found.bounds) else 1


if __name__ == "__main__":
    sys.exit(main())
