"""What the views show of a run, computed once a moment from its progress; pure."""

from dataclasses import dataclass, field

import numpy as np

from agentperf.measure.health import assess, delays_of
from agentperf.measure.judge import ttft_limit
from agentperf.measure.metrics import counts_for_slo, speed_for_verdict
from agentperf.measure.window import look_at
from agentperf.run.probe import ProbeOutcome, ProbeState
from agentperf.slo.model import Slo

MARKS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "invalid": "!"}
ROUNDS = 3
"""Probes of one level that a strip still tells apart."""


def mark(outcome: ProbeOutcome) -> str:
    """One sign for a probe: of several SLOs, one each."""
    return "".join(MARKS[v.status] for v in outcome.verdicts.values()) or "·"


def bracket(history: list[ProbeOutcome], slo: str) -> tuple[int | None, int | None]:
    """Largest passing and smallest failing level of what has been probed so far."""
    passed = [o.level for o in history if slo in o.verdicts and o.verdicts[slo].status == "pass"]
    failed = [o.level for o in history if slo in o.verdicts and o.verdicts[slo].status == "fail"]
    low = max(passed, default=None)
    high = min((f for f in failed if low is None or f > low), default=None)
    return low, high


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The running level in figures; None is not measured yet."""

    phase: str
    elapsed_s: float
    share_done: float
    eta_s: float | None
    agents: int
    open: int
    waiting: int
    first_token: int
    ended: int
    failed: int
    p25_speed: float | None
    p95_ttft: float | None
    cached_share: float | None
    lag_p99_s: float | None
    send_delay_p99_s: float | None
    cpu_max: float | None
    in_flight_ratio: float | None
    rss_bytes: int | None
    fds: int | None
    health: str = "ok"
    reasons: list[str] = field(default_factory=list)


def _progress_of(state: ProbeState) -> tuple[float, float | None]:
    """Share of the current phase that is done, and the seconds that it will still take if nothing changes."""
    settings = state.plan.window
    if state.open_ns is None:
        elapsed = (state.now_ns - state.began_ns) / 1e9
        return min(1.0, elapsed / settings.warmup_max_s), None
    elapsed = (state.now_ns - state.open_ns) / 1e9
    if state.plan.duration_s is not None:
        return min(1.0, elapsed / state.plan.duration_s), max(0.0, state.plan.duration_s - elapsed)
    wanted = look_at(state.look, state.level, settings)
    ended = len(state.window_records())
    share = max(0.0, min(1.0, ended / wanted, elapsed / settings.window_min_s if settings.window_min_s else 1.0))
    if share <= 0:
        return 0.0, None
    return share, min(elapsed / share - elapsed, settings.window_max_s - elapsed)


def take(state: ProbeState, slos: tuple[Slo, ...]) -> Snapshot:
    """The state of the running probe; figures are of the window once it is open, of the warm-up before."""
    records = state.window_records() if state.open_ns is not None else state.records
    judged = [r for r in records if counts_for_slo(r)]
    ok = [r for r in judged if r.outcome == "ok"]
    measured = [s for r in judged if (s := speed_for_verdict(r)) is not None]
    ttfts = [r.ttft_s for r in ok if r.ttft_s is not None]
    prompt = sum(r.prompt_tokens or 0 for r in ok if r.cached_tokens is not None)
    cached = sum(r.cached_tokens or 0 for r in ok)
    sent = sum(r.end_ns - (r.t0_ns if r.sent_ns is None else r.sent_ns) for r in judged)
    wanted = sum(r.end_ns - r.due_ns for r in judged)
    since = state.open_ns or state.began_ns
    health = assess(
        [s for s in state.samples if s.at_ns >= since],
        *delays_of(judged),
        float(sent),
        float(wanted),
        ttft_limit(slos),
    )
    share, eta = _progress_of(state)
    latest = state.latest.values()
    return Snapshot(
        phase=state.phase,
        elapsed_s=(state.now_ns - (state.open_ns or state.began_ns)) / 1e9,
        share_done=share,
        eta_s=eta,
        agents=sum(b.agents for b in latest),
        open=sum(b.open for b in latest),
        waiting=sum(b.waiting for b in latest),
        first_token=sum(b.first_token for b in latest),
        ended=len(judged),
        failed=len(judged) - len(ok),
        p25_speed=float(np.percentile(measured, 25)) if measured else None,
        p95_ttft=float(np.percentile(ttfts, 95)) if ttfts else None,
        cached_share=cached / prompt if prompt else None,
        lag_p99_s=health.loop_lag_p99_s,
        send_delay_p99_s=health.send_delay_p99_s,
        cpu_max=health.cpu_share_max,
        in_flight_ratio=health.in_flight_ratio,
        rss_bytes=health.rss_bytes_max,
        fds=health.fds_max,
        health=health.status,
        reasons=health.reasons,
    )


def level_line(outcome: ProbeOutcome) -> str:
    """One line a level, stable for grep: `level=16 why=bisect verdict=pass ...`; a dash is not measured."""

    def show(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    m = outcome.metrics
    verdict = ",".join(f"{name}:{v.status}" for name, v in outcome.verdicts.items()) or "-"
    return (
        f"level={outcome.level} probe={outcome.probe} why={outcome.why} verdict={verdict} "
        f"p25_speed={show(m.speed.p25, 1)} p50_speed={show(m.speed.p50, 1)} p95_ttft={show(m.ttft.p95, 3)} "
        f"requests={m.started} ok={m.ok} failed={m.failed} truncated={m.truncated} plays={m.plays} "
        f"cached={show(m.cached_share, 3)} output_tps={show(m.output_tps, 1)} in_flight={m.in_flight:.2f} "
        f"window_s={m.window_s:.1f} client={outcome.health.status}"
    )
