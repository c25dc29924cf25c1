"""What all levels together say of the capacity: the fitted curve of each term, and where the first of them crosses."""

from collections.abc import Sequence

from agentperf.search.levels import was_lost
from agentperf.search.model import Estimate, Point, ProbeResult
from agentperf.stats.isotonic import DRAWS, Crossing, Curve, crossing, fit, least

CONFIDENCE = 0.95


def pooled(slo: str, history: Sequence[ProbeResult]) -> dict[str, dict[int, Point]]:
    """By term and level, the shares of all sound probes taken together."""
    found: dict[str, dict[int, Point]] = {}
    for result in history:
        if was_lost(result) or result.statuses.get(slo, "invalid") == "invalid":
            continue
        for point in result.points.get(slo, ()):
            if point.n_eff <= 0:
                continue
            levels = found.setdefault(point.term, {})
            before = levels.get(result.level)
            levels[result.level] = point if before is None else _joined(before, point)
    return found


def _joined(a: Point, b: Point) -> Point:
    n = a.n_eff + b.n_eff
    share = min(1.0, (a.share * a.n_eff + b.share * b.n_eff) / n)
    return Point(term=a.term, share=share, n_eff=n, allowed=a.allowed)


def curves(slo: str, history: Sequence[ProbeResult], draws: int = DRAWS) -> dict[str, tuple[Curve, float]]:
    """By term, its curve over the levels and the share that is allowed; none for a term seen at one level only."""
    found = {}
    for term, points in pooled(slo, history).items():
        if len(points) < 2:
            continue
        levels = sorted(points)
        seen = [points[n] for n in levels]
        found[term] = (
            fit([float(n) for n in levels], [p.share for p in seen], [p.n_eff for p in seen], draws=draws),
            seen[0].allowed,
        )
    return found


def estimate(slo: str, history: Sequence[ProbeResult]) -> Estimate | None:
    """The likeliest capacity with its band; None where no term's curve crosses its limit inside the levels."""
    found = _first_crossing(slo, history, DRAWS)
    if found is None or found.at is None:
        return None
    return Estimate(agents=found.at, low=found.low, high=found.high, confidence=CONFIDENCE)


def likeliest(slo: str, history: Sequence[ProbeResult]) -> float | None:
    """The same without a band, and so at once."""
    found = _first_crossing(slo, history, 0)
    return None if found is None else found.at


def _first_crossing(slo: str, history: Sequence[ProbeResult], draws: int) -> Crossing | None:
    made = [
        crossing(curve, allowed, CONFIDENCE)
        for curve, allowed in curves(slo, history, draws).values()
        if 0 < allowed < 1
    ]
    return least(made) if made else None
