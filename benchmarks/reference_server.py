"""Is the reference server of `agentperf calibrate` as true as one in C? The same client against both, in turn.

    python -m benchmarks.reference_server --server truthserver.c --levels 256,512 --tps 50 --rounds 3

The load process, the streams, the join and the figures are those of `agentperf calibrate`; only the server is another.
Of the rounds the one in which other work used least CPU counts, for each server and level by itself. Exits with 1 when
the client's errors at p99 differ by more than 1 ms or 0.1 %, with 2 when the server is missing.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import anyio

from agentperf.yardstick.figures import Figures, figures
from agentperf.yardstick.held import Held
from agentperf.yardstick.load import OpenServer, open_rig
from agentperf.yardstick.measure import Settings, quietest
from agentperf.yardstick.process import ServerProcess
from agentperf.yardstick.reply import Pace
from agentperf.yardstick.rows import Row, Work
from benchmarks.figures import markdown
from benchmarks.truth import TruthRow, TruthServer, TruthServerError, build, find, read_log, truth_server

TTFT_AGREE_MS, SPEED_AGREE = 1.0, 0.001
FLUSH_S = 0.8
"""The truth server writes its log out every half second."""
LIFE_S = 120.0


class Compiled:
    """The truth server, asked as the reference server is."""

    def __init__(self, pace: Pace, server: TruthServer) -> None:
        self.pace = pace
        self._server = server

    @property
    def base_url(self) -> str:
        """Base URL of its API."""
        return self._server.base_url

    def work(self) -> Work:
        """Its CPU time; the tokens are counted from the log afterwards."""
        return Work(self._server.cpu_s(), 0)

    def take_rows(self) -> list[Row]:
        """The whole log, so a server is held at one level only."""
        time.sleep(FLUSH_S)
        return [row_of(truth) for truth in read_log(self._server.log).values()]


def row_of(t: TruthRow) -> Row:
    """A row of its log as the reference server would have written it."""
    return Row(t.id, t.outcome, t.t_recv, t.t_first, t.t_last, t.t_done, t.s_first, t.s_last, t.tokens, 0)


@contextlib.contextmanager
def open_compiled(binary: Path, pace: Pace, life_s: float, cores: Sequence[int] | None) -> Iterator[Compiled]:
    """Run the truth server at a pace."""
    with tempfile.TemporaryDirectory(prefix="agentperf-reference-") as folder:
        options = {"ttft_ms": pace.ttft_ms, "tps": pace.tps, "tokens": pace.tokens, "lifetime_s": life_s}
        core = cores[-1] if cores else None
        with truth_server(binary, Path(folder) / "truth.csv", core=core, **options) as server:  # type: ignore[arg-type]
            yield Compiled(pace, server)


def tokens_in(held: Held) -> int:
    """Tokens sent in the window by the log, those of a stream spread evenly between its first and last one."""
    total = 0.0
    for r in held.rows:
        if r.last_ns > r.first_ns:
            inside = max(0, min(r.last_ns, held.close_ns) - max(r.first_ns, held.open_ns))
            total += r.tokens * inside / (r.last_ns - r.first_ns)
    return round(total)


async def probe(open_server: OpenServer, tps: float, level: int, seconds: float) -> Figures:
    """One level against one server."""
    async with open_rig(Settings().pace(tps), 1, LIFE_S, open_server) as rig:
        held = await rig.hold(level, seconds)
    held.server_tokens = tokens_in(held)
    return figures(held, tps)


def agree(a: Figures, b: Figures) -> bool:
    """The client's errors at p99 are the same against both, within 1 ms and 0.1 %."""
    return (
        a.lost == b.lost == 0
        and _apart(a.ttft_error_p99_ms, b.ttft_error_p99_ms) <= TTFT_AGREE_MS
        and _apart(a.speed_error_p99, b.speed_error_p99) <= SPEED_AGREE
    )


def _apart(a: float | None, b: float | None) -> float:
    return float("inf") if a is None or b is None else abs(a - b)


HEADERS = (
    "streams", "server", "TTFT error p50", "p99", "max", "speed error p50", "p99", "requests", "client CPU/event",
    "server CPU/event", "server late p99", "other work",
)  # fmt: skip


def cells(name: str, f: Figures) -> list[str]:
    """One row of the table."""

    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f} ms"

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.3%}"

    def us(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} us"

    others = "?" if f.other_cores is None else f"{f.other_cores:.2f} cores"
    errors = [ms(f.ttft_error_p50_ms), ms(f.ttft_error_p99_ms), ms(f.ttft_error_max_ms)]
    costs = [us(f.us_per_event), us(f.server_us_per_event), ms(f.server_late_p99_ms)]
    return [
        str(f.level),
        name,
        *errors,
        share(f.speed_error_p50),
        share(f.speed_error_p99),
        str(f.requests),
        *costs,
        others,
    ]


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reference_server", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--levels", default="256,512", help="numbers of streams (default 256,512)")
    parser.add_argument("--tps", type=float, default=50.0, help="tokens per second of each stream (default 50)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window (default 3)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds; the one with least other work counts (default 3)"
    )
    parser.add_argument("--server", help="C source or binary of the truth server (or $AGENTPERF_TRUTHSERVER)")
    options = parser.parse_args(argv)
    try:
        options.levels = [int(part) for part in options.levels.split(",")]
    except ValueError:
        parser.error("--levels is a list such as 256,512")
    if min(options.levels) < 1 or options.tps < 1 or not (0.5 <= options.seconds <= 60 and 1 <= options.rounds <= 20):
        parser.error("levels and --tps from 1, --seconds from 0.5 to 60, --rounds from 1 to 20")
    return options


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 the two agree, 1 not, 2 without a server."""
    options = _arguments(argv)
    rows, together, disturbed = [list(HEADERS)], True, False
    with tempfile.TemporaryDirectory(prefix="agentperf-reference-") as folder:
        try:
            binary = build(find(options.server), Path(folder))
        except TruthServerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        servers: dict[str, OpenServer] = {"reference": ServerProcess, "truth (C)": partial(open_compiled, binary)}
        for level in options.levels:
            rounds: dict[str, list[Figures]] = {name: [] for name in servers}
            for _ in range(options.rounds):
                for name, server in servers.items():
                    work = (server, options.tps, level, options.seconds)
                    rounds[name].append(anyio.run(probe, *work, backend_options={"use_uvloop": True}))
            best = {name: quietest(found) for name, found in rounds.items()}
            rows += [cells(name, found) for name, found in best.items()]
            together = agree(*best.values()) and together
            disturbed = disturbed or any(found.disturbed for found in best.values())
    print(f"streams of {options.tps:g} tok/s, window {options.seconds:g} s\n\n{markdown(rows)}\n")
    print(f"p99 errors within {TTFT_AGREE_MS:g} ms and {SPEED_AGREE:.1%} of each other: {'yes' if together else 'NO'}")
    if disturbed:
        print("other work ran in every round of one of them: repeat on a quiet machine")
    return 0 if together else 1


if __name__ == "__main__":
    sys.exit(main())
