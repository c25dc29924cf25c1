"""A held level in figures: what the client recorded of each request, joined with what the server logged of it."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from agentperf.measure.record import Record
from agentperf.yardstick.held import Held
from agentperf.yardstick.rows import Row
from agentperf.yardstick.search import Verdict

TTFT_BOUND_MS = 5.0
SPEED_BOUND = 0.005
IN_FLIGHT_BOUND = 0.99
SERVER_LATE_MS = 5.0
"""A server that is later than this at p99 catches up in bursts that no server of its pace would send: a client that
misses a bound under them is not blamed."""
SERVER_BEHIND_MS = 20.0
"""A server that is later than this (1 % of a decode of 2 s) did not offer the pace, so nothing was shown at it."""
DISTURBED_CORES = 0.1
"""Other work from which on a probe counts as disturbed. On a quiet machine 0.00 to 0.03 are seen."""

Pair = tuple[Record, Row]


class Figures(Struct, kw_only=True, frozen=True):
    """One probe. Errors are absolute values, over requests issued in the window that both sides call whole."""

    level: int
    workers: int
    tps: float
    verdict: Verdict
    """pass; fail: beyond a bound of the client; server: the reference server could not hold the pace."""
    reasons: list[str]
    requests: int
    """Requests that were compared."""
    lost: int
    """Issued in the window, and failed, cut off, without figures, or not in the server's log."""
    blocked: int
    """Times that a socket took no more because the client did not read."""
    ttft_error_p50_ms: float | None
    """Of |client's stamp of the first token - the server's|."""
    ttft_error_p99_ms: float | None
    ttft_error_max_ms: float | None
    speed_error_p50: float | None
    """Of |client's speed / the server's - 1|."""
    speed_error_p99: float | None
    upload_p99_ms: float | None
    """Server's receipt of the whole request - client's t0."""
    in_flight: float
    """Time-weighted mean of the requests that the server had open in the window."""
    events_per_s: float
    """Tokens that the servers sent in the window, one an event."""
    us_per_event: float | None
    """CPU time of the load processes over those events: decoding, records and the pipe included."""
    cpu_share: float | None
    """The busiest load process; 1.0 is one core."""
    loop_lag_p99_ms: float | None
    server_late_p99_ms: float | None
    """How late the server was with first and last tokens."""
    server_us_per_event: float | None
    other_cores: float | None
    """Cores that other work used; null where the system does not tell."""

    @property
    def disturbed(self) -> bool:
        """Other work on the machine had a hand in it."""
        return self.other_cores is not None and self.other_cores > DISTURBED_CORES


def ttft_errors_ms(pairs: Sequence[Pair]) -> list[float]:
    """Client's TTFT less the server's, both from the client's t0: the difference of two stamps of the first token."""
    return [(r.t0_ns + r.ttft_s * 1e9 - row.first_ns) / 1e6 for r, row in pairs if r.ttft_s is not None]


def speed_errors(pairs: Sequence[Pair]) -> list[float]:
    """Client's speed over the server's own, less 1."""
    both = [(r.speed_tps, row.speed_tps) for r, row in pairs]
    return [ours / theirs - 1 for ours, theirs in both if ours is not None and theirs is not None]


def mean_in_flight(rows: Sequence[Row], open_ns: int, close_ns: int) -> float:
    """Time-weighted mean of requests between receipt and the last byte handed to the socket, in [open, close)."""
    held = sum(max(0, min(r.done_ns or close_ns, close_ns) - max(r.received_ns, open_ns)) for r in rows)
    return held / (close_ns - open_ns)


def percentile(values: Sequence[float], p: float) -> float | None:
    """Of absolute values, numpy's linear; None of nothing."""
    return float(np.percentile(np.abs(np.asarray(values)), p)) if len(values) else None


def matched(held: Held) -> tuple[list[Pair], int]:
    """(requests issued in the window that both sides call whole, how many were lost)."""
    log: Mapping[str, Row] = {row.id: row for row in held.rows}
    window = [r for r in held.records if held.open_ns <= r.t0_ns < held.close_ns]
    pairs = [
        (r, row)
        for r in window
        if r.outcome == "ok" and (row := log.get(r.request_id)) is not None and row.outcome == "ok"
    ]
    whole = [(r, row) for r, row in pairs if r.ttft_s is not None and r.speed_tps is not None and row.speed_tps]
    return whole, len(window) - len(whole)


def figures(held: Held, tps: float) -> Figures:
    """The figures of a held level, with their verdict."""
    pairs, lost = matched(held)
    ttft, speed = ttft_errors_ms(pairs), speed_errors(pairs)
    window_s = (held.close_ns - held.open_ns) / 1e9
    lag_s, tokens = held.lag_p99_s, held.server_tokens
    # A socket that took no more is late for the client's sake, which `blocked` counts.
    late = percentile([row.late_ns / 1e6 for _, row in pairs if not row.blocked], 99)
    blocked = sum(row.blocked for row in held.rows) if tps else 0
    flight = mean_in_flight(held.rows, held.open_ns, held.close_ns)
    p99 = percentile(ttft, 99), percentile(speed, 99)
    verdict, reasons = judge(
        requests=len(pairs),
        lost=lost,
        blocked=blocked,
        ttft_error_ms=p99[0],
        speed_error=p99[1],
        in_flight=flight / held.level,
        server_late_ms=late if tps else None,
    )
    return Figures(
        level=held.level,
        workers=held.workers,
        tps=tps,
        verdict=verdict,
        reasons=reasons,
        requests=len(pairs),
        lost=lost,
        blocked=blocked,
        ttft_error_p50_ms=percentile(ttft, 50),
        ttft_error_p99_ms=p99[0],
        ttft_error_max_ms=percentile(ttft, 100),
        speed_error_p50=percentile(speed, 50),
        speed_error_p99=p99[1],
        upload_p99_ms=percentile([(row.received_ns - r.t0_ns) / 1e6 for r, row in pairs], 99),
        in_flight=flight,
        events_per_s=tokens / window_s,
        us_per_event=held.cpu_s * 1e6 / tokens if held.cpu_s is not None and tokens else None,
        cpu_share=held.cpu_share_max,
        loop_lag_p99_ms=None if lag_s is None else lag_s * 1e3,
        server_late_p99_ms=late,
        server_us_per_event=held.server_cpu_s * 1e6 / tokens if tokens else None,
        other_cores=held.other_cores,
    )


def judge(
    *,
    requests: int,
    lost: int,
    blocked: int,
    ttft_error_ms: float | None,
    speed_error: float | None,
    in_flight: float,
    server_late_ms: float | None,
) -> tuple[Verdict, list[str]]:
    """The verdict and what it rests on. What a late server did is never blamed on the client.

    A client that stayed within its bounds has passed though the server was a little late: the stamps are what they
    are, and bursts only make it harder. `server_late_ms` is None where there is no pace to hold.
    """
    late_ms = server_late_ms or 0.0
    found = []
    if not requests:
        found.append("no request could be compared")
    if lost:
        found.append(f"{lost} requests lost")
    if blocked:
        found.append(f"sockets were full {blocked} times")
    if ttft_error_ms is not None and ttft_error_ms > TTFT_BOUND_MS:
        found.append(f"TTFT error p99 {ttft_error_ms:.1f} ms > {TTFT_BOUND_MS:g} ms")
    if speed_error is not None and speed_error > SPEED_BOUND:
        found.append(f"speed error p99 {speed_error:.2%} > {SPEED_BOUND:.1%}")
    if in_flight < IN_FLIGHT_BOUND:
        found.append(f"only {in_flight:.1%} of the streams were open")
    if not blocked and late_ms > (SERVER_LATE_MS if found else SERVER_BEHIND_MS):
        return "server", [f"the reference server was {late_ms:.1f} ms late at p99"]
    return ("fail", found) if found else ("pass", [])
