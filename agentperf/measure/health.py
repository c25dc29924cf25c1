"""Was the client good enough to be believed? Samples of the load processes, and the rule that voids a level.

A level is invalid (client-limited) when the event loops were late (p99 of lag or of send delay above
max(5 ms, 2 % of the TTFT limit)) or when fewer than 99 % of the streams that agents wanted open were open.
A load process above 90 % of a core warns.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from agentperf.measure.record import Record

MIN_LATENESS_S = 0.005
TTFT_SHARE = 0.02
MIN_IN_FLIGHT = 0.99
CPU_WARNING = 0.90
TIMER_GRAIN_S = 0.002


class WorkerSample(Struct, array_like=True):
    """What a load process reports about itself a few times a second."""

    worker: int
    at_ns: int
    lags_s: list[float]
    """Lateness of a regular timer since the last sample, in s."""
    cpu_share: float
    """CPU time over wall time since the last sample; 1.0 is one core."""
    rss_bytes: int
    fds: int
    sockets: int


class Health(Struct, kw_only=True):
    """Client health of one probe; `status` invalid voids the level."""

    status: str
    """ok | warn | invalid"""
    reasons: list[str]
    remedy: str | None
    loop_lag_p99_s: float | None
    send_delay_p99_s: float | None
    cpu_share_max: float | None
    in_flight_ratio: float | None
    rss_bytes_max: int | None
    fds_max: int | None
    sockets_max: int | None
    limit_s: float


def _p99(values: Sequence[float]) -> float | None:
    return float(np.percentile(values, 99)) if len(values) else None


def delays_of(records: Sequence[Record]) -> tuple[list[float], list[float]]:
    """Of each request in s: t0 - due (send delay), and sent - due (until its stream was open)."""
    return (
        [(r.t0_ns - r.due_ns) / 1e9 for r in records],
        [((r.sent_ns or r.t0_ns) - r.due_ns) / 1e9 for r in records],
    )


def lateness_limit(ttft_limit_s: float | None) -> float:
    """How late the client may be, in s: max(5 ms, 2 % of the strictest TTFT limit)."""
    return max(MIN_LATENESS_S, TTFT_SHARE * (ttft_limit_s or 0.0))


def assess(
    samples: Sequence[WorkerSample],
    send_delays_s: Sequence[float],
    open_delays_s: Sequence[float],
    in_flight: float,
    wanted: float,
    ttft_limit_s: float | None,
) -> Health:
    """The verdict on the client over one window.

    `send_delays_s` are t0 - due of its requests, `open_delays_s` sent - due. A shortfall of streams in flight that
    comes from a millisecond or two each, on requests that are short themselves, is the grain of timers: it voids
    nothing.
    """
    limit = lateness_limit(ttft_limit_s)
    lag = _p99([lag for s in samples for lag in s.lags_s])
    delay = _p99(send_delays_s)
    per_worker: dict[int, list[float]] = {}
    for s in samples:
        per_worker.setdefault(s.worker, []).append(s.cpu_share)
    cpu = max((float(np.mean(v)) for v in per_worker.values()), default=None)
    ratio = in_flight / wanted if wanted > 0 else None
    bad: list[str] = []
    if lag is not None and lag > limit:
        bad.append(f"event loop lag p99 {lag * 1e3:.1f} ms > {limit * 1e3:.0f} ms")
    if delay is not None and delay > limit:
        bad.append(f"send delay p99 {delay * 1e3:.1f} ms > {limit * 1e3:.0f} ms")
    late_to_open = float(np.mean(open_delays_s)) > TIMER_GRAIN_S if len(open_delays_s) else False
    if ratio is not None and ratio < MIN_IN_FLIGHT and late_to_open:
        bad.append(f"only {ratio:.1%} of the wanted streams were open")
    warn = [f"a load process used {cpu:.0%} of a core"] if cpu is not None and cpu > CPU_WARNING else []
    remedy = "use more --workers, or a machine with free cores" if bad or warn else None
    return Health(
        status="invalid" if bad else "warn" if warn else "ok",
        reasons=bad + warn,
        remedy=remedy,
        loop_lag_p99_s=lag,
        send_delay_p99_s=delay,
        cpu_share_max=cpu,
        in_flight_ratio=ratio,
        rss_bytes_max=max((s.rss_bytes for s in samples), default=None),
        fds_max=max((s.fds for s in samples), default=None),
        sockets_max=max((s.sockets for s in samples), default=None),
        limit_s=limit,
    )
