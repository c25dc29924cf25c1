"""What the views show of a run, computed once a moment from its progress; pure."""

from dataclasses import dataclass, field

from agentperf.fleet.machine import cores
from agentperf.measure.health import assess
from agentperf.measure.judge import ttft_limit
from agentperf.measure.metrics import LevelMetrics
from agentperf.measure.running import RunningLevel
from agentperf.measure.window import look_at
from agentperf.run.probe import ProbeOutcome, ProbeState
from agentperf.server.compare import ServerMetrics
from agentperf.slo.model import Slo

MARKS = {"pass": "✓", "fail": "✗", "inconclusive": "?", "invalid": "!"}
RECENT_SAMPLES = 300
"""Samples of load processes that the view's loop lag, CPU and memory are of: a minute of one process."""
ROUNDS = 3
"""Probes of one level that a strip still tells apart."""


RECENT_MACHINE = 60
"""Samples of this process and the machine that the view looks at: of about a minute."""


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
    """Infinite where it lies among failed requests."""
    cached_share: float | None
    lag_p99_s: float | None
    send_delay_p99_s: float | None
    cpu_max: float | None
    in_flight_ratio: float | None
    rss_bytes: int | None
    fds: int | None
    health: str = "ok"
    reasons: list[str] = field(default_factory=list)
    streams: tuple[str, ...] = ()
    """What is odd about the streams so far, in a few words each; empty when nothing is."""
    suspect: bool = False
    """Enough streams came in bursts that the level's speeds and TTFTs are a buffer's."""
    estimated: bool = False
    """Token counts are estimates, in part at least."""
    largest_gap_s: float | None = None
    sockets: int | None = None
    parent_cpu: float | None = None
    """Of this process, in cores."""
    blocked_share: float | None = None
    """Share of the time in which load processes waited for this process to take records."""
    skew_s: float | None = None


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
    ended = len(state.running)
    share = max(0.0, min(1.0, ended / wanted, elapsed / settings.window_min_s if settings.window_min_s else 1.0))
    if share <= 0:
        return 0.0, None
    return share, min(elapsed / share - elapsed, settings.window_max_s - elapsed)


def oddities(level: RunningLevel) -> tuple[str, ...]:
    """The streams of a running level in a few words each: what its warnings will say in sentences."""
    population = level.population
    found = [
        (population.buffered, f"bursts {population.buffered}/{population.tellable}"),
        (population.at_once, f"at one moment {population.at_once}"),
        (level.estimates, f"estimated counts {level.estimates}"),
        (level.in_band_errors, f"errors inside streams {level.in_band_errors}"),
        (2 * level.new_connections > len(level), f"new connections {level.new_connections}/{len(level)}"),
        (level.stale_retries, f"stale connections {level.stale_retries}"),
    ]
    return tuple(text for count, text in found if count)


def take(state: ProbeState, slos: tuple[Slo, ...]) -> Snapshot:
    """The state of the running probe; figures are of the window once it is open, of the warm-up before.

    The work does not grow with the number of requests: all figures of requests are kept up to date as they come, and
    those of the load processes are of their last `RECENT_SAMPLES` samples.
    """
    level = state.running
    since = state.open_ns or state.began_ns
    health = assess(
        [s for s in state.samples[-RECENT_SAMPLES:] if s.at_ns >= since],
        level.send_delay_s,
        level.open_delay_s,
        level.in_flight,
        level.wanted,
        ttft_limit(slos),
        decode_s=level.decode_s,
        machine=state.machine[-RECENT_MACHINE:],
        late_starts_s=[b.late_ns / 1e9 for b in state.latest.values()],
        cores=cores(),
    )
    share, eta = _progress_of(state)
    latest = state.latest.values()
    population = level.population
    return Snapshot(
        phase=state.phase,
        elapsed_s=(state.now_ns - (state.open_ns or state.began_ns)) / 1e9,
        share_done=share,
        eta_s=eta,
        agents=sum(b.agents for b in latest),
        open=sum(b.open for b in latest),
        waiting=sum(b.waiting for b in latest),
        first_token=sum(b.first_token for b in latest),
        ended=len(population),
        failed=level.failed,
        p25_speed=level.speed.percentile(25),
        p95_ttft=level.ttft_s.percentile(95),
        cached_share=level.cached_share,
        lag_p99_s=health.loop_lag_p99_s,
        send_delay_p99_s=health.send_delay_p99_s,
        cpu_max=health.cpu_share_max,
        in_flight_ratio=health.in_flight_ratio,
        rss_bytes=health.rss_bytes_max,
        fds=health.fds_max,
        health=health.status,
        reasons=health.reasons,
        streams=oddities(level),
        suspect=population.suspect,
        estimated=level.estimates > 0,
        largest_gap_s=level.largest_gap_ns / 1e9 or None,
        sockets=health.sockets_max,
        parent_cpu=health.parent_cpu_share,
        blocked_share=health.blocked_share,
        skew_s=health.start_skew_s,
    )


def stream_words(metrics: LevelMetrics) -> str:
    """One word for a level's streams, stable for grep: `ok`, or what is odd, joined by commas."""
    facts = metrics.streams
    found = [
        (facts.suspect, "bursts"),
        (facts.without_speed, "at_once"),
        (facts.token_sources.get("estimate"), "estimated"),
        (facts.stalled, "stalls"),
        (facts.in_band_errors, "in_band_errors"),
    ]
    return ",".join(word for odd, word in found if odd) or "ok"


def level_line(outcome: ProbeOutcome) -> str:
    """One line a level, stable for grep: `level=16 why=bisect verdict=pass ...`; a dash is not measured."""

    def show(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    m, s = outcome.metrics, outcome.server or ServerMetrics()
    verdict = ",".join(f"{name}:{v.status}" for name, v in outcome.verdicts.items()) or "-"
    return (
        f"level={outcome.level} probe={outcome.probe} why={outcome.why} verdict={verdict} "
        f"p25_speed={show(m.speed.p25, 1)} p50_speed={show(m.speed.p50, 1)} p95_ttft={show(m.ttft.p95, 3)} "
        f"requests={m.started} ok={m.ok} failed={m.failed} truncated={m.truncated} plays={m.plays} "
        f"cached={show(m.cached_share, 3)} output_tps={show(m.output_tps, 1)} in_flight={m.in_flight:.2f} "
        f"window_s={m.window_s:.1f} client={outcome.health.status} "
        f"lag_p99={show(outcome.health.loop_lag_p99_s, 4)} send_delay_p99={show(outcome.health.send_delay_p99_s, 4)} "
        f"client_cpu={show(outcome.health.cpu_share_max, 2)} streams={stream_words(m)} "
        f"tokens_per_event={show(m.streams.tokens_per_event.p50, 2)} max_gap={show(m.streams.largest_gap_s, 3)} "
        f"server_ttft={show(s.ttft_mean_s, 3)} ttft_difference={show(s.ttft_difference_s, 4)}"
    )
