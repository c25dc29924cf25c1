"""Was the client good enough to be believed? Samples of the load processes, and the rules that void a level.

A level is invalid (client-limited) when one of its load processes was late:

- loop lag p99 above max(5 ms, 2 % of the strictest TTFT limit): a stamp is late by as much as the loop is;
- loop lag p99.5 above 5 ms and above 0.5 % of the time that the median reply takes to decode. A speed has two stamps
  that may be late, its first and its last, so the p99 of errors of speeds is the p99.5 of stamps;
- send delay p99 above the first of the two limits;
- fewer than 99 % of the streams that agents wanted open were open.

It is invalid too when a load process was lost (`process_lost`), or held more records than it may because this process
did not take them (`collector_limited`). A process above 90 % of a core warns.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, structs

from agentperf.measure.record import Record
from agentperf.stats.running import RunningValues

Values = Sequence[float] | RunningValues

MIN_LATENESS_S = 0.005
TTFT_SHARE = 0.02
SPEED_SHARE = 0.005
MIN_IN_FLIGHT = 0.99
CPU_WARNING = 0.90
TIMER_GRAIN_S = 0.002
BLOCKED_WARNING = 0.05
SKEW_WARNING_S = 0.1

CLIENT_LIMITED = "client_limited"
PROCESS_LOST = "process_lost"
COLLECTOR_LIMITED = "collector_limited"


class WorkerSample(Struct, array_like=True):
    """What a load process reports about itself a few times a second."""

    worker: int
    at_ns: int
    lags_s: list[float]
    """Lateness of reads, sampled every 20 ms since the last sample, in s."""
    cpu_share: float
    """CPU time over wall time since the last sample; 1.0 is one core."""
    rss_bytes: int
    fds: int
    sockets: int
    pending_records: int = 0
    """Records that waited for this batch: more than those of 0.2 s when the parent takes them slowly."""
    blocked_s: float = 0.0
    """Time since the last sample in which the parent did not take what was sent."""
    overfull: bool = False
    """More records waited than may: the process has stopped issuing turns."""


class MachineSample(Struct, array_like=True):
    """What the parent finds out about itself and the machine, about once a second."""

    at_ns: int
    cpu_share: float
    """CPU of the parent (collector, judge, files, view) over wall time."""
    free_cores: float | None
    """Idle time of all cores over wall time; None where the system does not tell."""


class Health(Struct, kw_only=True):
    """Client health of one probe; `status` invalid voids the level, for the `cause`."""

    status: str
    """ok | warn | invalid"""
    reasons: list[str]
    remedy: str | None
    loop_lag_p99_s: float | None
    """Of the load process where it is highest."""
    send_delay_p99_s: float | None
    cpu_share_max: float | None
    """Mean over the window of the load process that used most."""
    in_flight_ratio: float | None
    rss_bytes_max: int | None
    fds_max: int | None
    sockets_max: int | None
    """Of one load process, as `fds_max` and `rss_bytes_max`."""
    limit_s: float
    cause: str = CLIENT_LIMITED
    """Why an invalid level is invalid: client_limited | process_lost | collector_limited."""
    workers: int = 0
    """Load processes that reported."""
    loop_lag_max_s: float | None = None
    speed_error: float | None = None
    """Estimate of the p99: loop lag p99.5 over the decode time of the median reply."""
    turn_overhead_p99_s: float | None = None
    """sent - due: all that lies between the end of a turn and its wait, and the next request's last byte sent."""
    cpu_shares: list[float] = []
    """Of each load process in turn; 1.0 is one core."""
    parent_cpu_share: float | None = None
    free_cores: float | None = None
    start_skew_s: float | None = None
    """Between the first and the last load process to begin the level."""
    start_late_s: float | None = None
    """Of the last one, behind the common start."""
    pending_records_max: int | None = None
    blocked_share: float | None = None
    """Share of the window in which a load process waited for the parent to take records; of the worst one."""


def _percentile(values: Values, percent: float) -> float | None:
    if isinstance(values, RunningValues):
        return values.percentile(percent)
    return float(np.percentile(values, percent)) if len(values) else None


def _p99(values: Values) -> float | None:
    return _percentile(values, 99)


def _mean(values: Values) -> float | None:
    if isinstance(values, RunningValues):
        return values.mean()
    return float(np.mean(values)) if len(values) else None


def delays_of(records: Sequence[Record]) -> tuple[list[float], list[float]]:
    """Of each request in s: t0 - due (send delay), and sent - due (until its stream was open)."""
    return (
        [(r.t0_ns - r.due_ns) / 1e9 for r in records],
        [((r.sent_ns or r.t0_ns) - r.due_ns) / 1e9 for r in records],
    )


def decode_times(records: Sequence[Record]) -> list[float]:
    """Of each reply that has a speed: last - first visible event, in s."""
    return [
        (r.last_visible_ns - r.first_visible_ns) / 1e9
        for r in records
        if r.speed_tps is not None and r.last_visible_ns is not None and r.first_visible_ns is not None
    ]


def lateness_limit(ttft_limit_s: float | None) -> float:
    """How late the client may be, in s: max(5 ms, 2 % of the strictest TTFT limit)."""
    return max(MIN_LATENESS_S, TTFT_SHARE * (ttft_limit_s or 0.0))


def _by_worker(samples: Sequence[WorkerSample]) -> dict[int, list[WorkerSample]]:
    found: dict[int, list[WorkerSample]] = {}
    for s in samples:
        found.setdefault(s.worker, []).append(s)
    return dict(sorted(found.items()))


def _mean_cpu(samples: Sequence[WorkerSample]) -> float:
    """Mean of a process' CPU share, each sample weighing as long as it is."""
    spans = np.diff([s.at_ns for s in samples])
    if not len(spans) or spans.sum() <= 0:
        return float(np.mean([s.cpu_share for s in samples]))
    return float(np.average([s.cpu_share for s in samples[1:]], weights=spans))


def _blocked(samples: Sequence[WorkerSample]) -> float:
    span_ns = samples[-1].at_ns - samples[0].at_ns
    return sum(s.blocked_s for s in samples[1:]) * 1e9 / span_ns if span_ns > 0 else 0.0


def remedy_for(workers: int, free_cores: float | None, cores: int | None) -> str:
    """What to do about a client that was late: more load processes where cores are free, else another machine."""
    free = (
        free_cores if free_cores is not None else float(cores - workers - 1) if cores is not None and workers else None
    )
    if free is None:
        return "use more --workers, or a machine with free cores"
    if free >= 1 and workers:
        return f"use --workers {workers + int(free)}: {free:.1f} cores were free"
    return "no core was free: end other work on this machine, or measure from another one"


def assess(
    samples: Sequence[WorkerSample],
    send_delays_s: Values,
    open_delays_s: Values,
    in_flight: float,
    wanted: float,
    ttft_limit_s: float | None,
    *,
    decode_s: Values = (),
    machine: Sequence[MachineSample] = (),
    late_starts_s: Sequence[float] = (),
    cores: int | None = None,
) -> Health:
    """The verdict on the client over one window.

    `send_delays_s` are t0 - due of its requests, `open_delays_s` sent - due, `decode_s` the times between first and
    last visible event, `late_starts_s` how long after the common start each load process began. A shortfall of streams
    in flight that comes from a millisecond or two each, on requests that are short themselves, is the grain of timers:
    it voids nothing.
    """
    workers = _by_worker(samples)
    lags = [[lag for s in own for lag in s.lags_s] for own in workers.values()]
    lag = max((p for own in lags if (p := _p99(own)) is not None), default=None)
    pair_lag = max((p for own in lags if (p := _percentile(own, 99.5)) is not None), default=None)
    typical_s = _percentile(decode_s, 50) or 0.0
    free = [m.free_cores for m in machine if m.free_cores is not None]
    shares = [_mean_cpu(own) for own in workers.values()]
    health = Health(
        status="ok",
        reasons=[],
        remedy=None,
        loop_lag_p99_s=lag,
        send_delay_p99_s=_p99(send_delays_s),
        cpu_share_max=max(shares, default=None),
        in_flight_ratio=in_flight / wanted if wanted > 0 else None,
        rss_bytes_max=max((s.rss_bytes for s in samples), default=None),
        fds_max=max((s.fds for s in samples), default=None),
        sockets_max=max((s.sockets for s in samples), default=None),
        limit_s=lateness_limit(ttft_limit_s),
        workers=len(workers),
        loop_lag_max_s=max((one for own in lags for one in own), default=None),
        speed_error=pair_lag / typical_s if pair_lag is not None and typical_s > 0 else None,
        turn_overhead_p99_s=_p99(open_delays_s),
        cpu_shares=shares,
        parent_cpu_share=float(np.mean([m.cpu_share for m in machine])) if len(machine) else None,
        free_cores=float(np.mean(free)) if free else None,
        start_skew_s=max(late_starts_s) - min(late_starts_s) if len(late_starts_s) else None,
        start_late_s=max(late_starts_s, default=None),
        pending_records_max=max((s.pending_records for s in samples), default=None),
        blocked_share=max((_blocked(own) for own in workers.values()), default=None),
    )
    overfull = any(s.overfull for s in samples)
    return _judged(health, _mean(open_delays_s) or 0.0, pair_lag, overfull=overfull, cores=cores)


def _judged(
    health: Health, mean_open_delay_s: float, pair_lag_s: float | None, *, overfull: bool, cores: int | None
) -> Health:
    """Status, reasons and remedy by the rules of this module."""
    limit, lag, delay = health.limit_s, health.loop_lag_p99_s, health.send_delay_p99_s
    bad: list[str] = []
    if lag is not None and lag > limit:
        bad.append(f"event loop lag p99 {lag * 1e3:.1f} ms > {limit * 1e3:.0f} ms")
    elif pair_lag_s is not None and pair_lag_s > MIN_LATENESS_S and (health.speed_error or 0.0) > SPEED_SHARE:
        bad.append(
            f"event loop lag p99.5 {pair_lag_s * 1e3:.1f} ms makes speeds unsure by {health.speed_error or 0.0:.1%} > "
            f"{SPEED_SHARE:.1%}"
        )
    if delay is not None and delay > limit:
        bad.append(f"send delay p99 {delay * 1e3:.1f} ms > {limit * 1e3:.0f} ms")
    ratio = health.in_flight_ratio
    if ratio is not None and ratio < MIN_IN_FLIGHT and mean_open_delay_s > TIMER_GRAIN_S:
        bad.append(f"only {ratio:.1%} of the wanted streams were open")
    if overfull:
        return voided(health, COLLECTOR_LIMITED, "the collecting process did not take the records of a load process")
    warn = _warnings(health)
    return structs.replace(
        health,
        status="invalid" if bad else "warn" if warn else "ok",
        reasons=bad + warn,
        remedy=remedy_for(health.workers, health.free_cores, cores) if bad or warn else None,
    )


def _warnings(health: Health) -> list[str]:
    found: list[str] = []
    if health.cpu_share_max is not None and health.cpu_share_max > CPU_WARNING:
        found.append(f"a load process used {health.cpu_share_max:.0%} of a core")
    if health.parent_cpu_share is not None and health.parent_cpu_share > CPU_WARNING:
        found.append(f"the collecting process used {health.parent_cpu_share:.0%} of a core")
    if health.blocked_share is not None and health.blocked_share > BLOCKED_WARNING:
        found.append(f"a load process waited {health.blocked_share:.0%} of the time for its records to be taken")
    if health.start_skew_s is not None and health.start_skew_s > SKEW_WARNING_S:
        found.append(f"load processes began the level {health.start_skew_s * 1e3:.0f} ms apart")
    return found


_REMEDIES = {
    PROCESS_LOST: "it is replaced and the level measured again; if it happens often, watch this machine's memory",
    COLLECTOR_LIMITED: "end other work on this machine, or write to a faster disk",
}


def voided(health: Health, cause: str, reason: str) -> Health:
    """The same figures, of a level that is void whatever they are."""
    remedy = _REMEDIES.get(cause) or health.remedy or remedy_for(0, None, None)
    return structs.replace(health, status="invalid", cause=cause, reasons=[reason, *health.reasons], remedy=remedy)
