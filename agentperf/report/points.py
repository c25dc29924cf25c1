"""What the figures show, as data: taken from the summary, with nothing drawn yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from statistics import median
from typing import Any

from agentperf.report import words

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One probe. Speeds in tok/s, times in s; None is not measured (of a TTFT: failures reach into it)."""

    level: int
    probe: int
    status: str | None
    speed_p10: float | None
    speed_p25: float | None
    speed_p50: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    ttft_beyond: bool
    """p95 TTFT lies among failed requests."""
    output_tps: float | None
    total_tps: float | None

    @property
    def trusted(self) -> bool:
        """Whether curves may go through it."""
        return self.status != "invalid"


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of one SLO (or of none), its limits, its answer in words."""

    points: tuple[Point, ...]
    slo: str | None
    speed_limits: tuple[tuple[str, float], ...]
    """(percentile, tok/s) of each speed term."""
    ttft_limits: tuple[tuple[str, float], ...]
    largest_pass: int | None
    smallest_fail: int | None
    title: str
    remark: str
    """Why the title is to be taken with care, or empty."""
    subtitle: str
    label: str
    """simulated, virtual, or empty."""

    @property
    def levels(self) -> tuple[int, ...]:
        """Every level that was probed, ascending."""
        return tuple(sorted({p.level for p in self.points}))

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Levels and values of one measure: the median of the trusted probes of each level, gaps left out."""
        levels, values = [], []
        for level in self.levels:
            seen = [v for p in self.points if p.level == level and p.trusted and (v := getattr(p, name)) is not None]
            if seen:
                levels.append(level)
                values.append(float(median(seen)))
        return levels, values


def curve_points(summary: Json, slo: str | None = None) -> Curve:
    """The curve of a summary for one of its SLOs; by default the first, or none in a run without."""
    answer = next((a for a in summary["answers"] if slo in (None, a["slo"])), None)
    points = tuple(
        _point(row, answer["slo"] if answer else None)
        for row in sorted(summary["levels"], key=lambda r: (r["level"], r["probe"]))
    )
    if answer is None:
        title = "Speed by number of agents"
        return Curve(points, None, (), (), None, None, title, "", _subtitle(summary), words.label_of(summary))
    sentence = words.answer_sentence(answer, summary)
    named = words.slo_named(summary, answer["slo"])
    return Curve(
        points=points,
        slo=answer["slo"],
        speed_limits=_limits(named, "speed"),
        ttft_limits=_limits(named, "ttft"),
        largest_pass=answer["largest_pass"],
        smallest_fail=answer["smallest_fail"],
        title=sentence.headline[:1].upper() + sentence.headline[1:],
        remark=sentence.remark,
        subtitle=_subtitle(summary),
        label=words.label_of(summary),
    )


def _subtitle(summary: Json) -> str:
    """Where the figures come from, from how many requests, and what is in doubt about them."""
    rows = summary["levels"]
    n = sum(row["started"] or 0 for row in rows)
    counts = "token counts estimated" if any(words.doubt(row, "tokens") for row in rows) else ""
    doubtful = ", ".join(dict.fromkeys(str(row["level"]) for row in rows if words.doubt(row, "stamps")))
    bursts = f"streams came in bursts at {doubtful} agents: a buffer's figures" if doubtful else ""
    parts = (words.source_line(summary), f"n = {words.count(n)} requests", counts, bursts)
    return " · ".join(part for part in parts if part)


def _limits(slo: Json, metric: str) -> tuple[tuple[str, float], ...]:
    return tuple((t.subject.replace(f" {metric}", ""), t.limit) for t in words.terms_of(slo) if t.metric == metric)


def _point(row: Json, slo: str | None) -> Point:
    status = row["status"].get(slo) if slo else ("invalid" if row["health"] == "invalid" else None)
    return Point(
        level=row["level"],
        probe=row["probe"],
        status=status,
        speed_p10=row["speed_p10"],
        speed_p25=row["speed_p25"],
        speed_p50=row["speed_p50"],
        ttft_p50=row["ttft_p50"],
        ttft_p95=row["ttft_p95"],
        ttft_beyond=row["ttft_p95"] is None and bool(row["ttft_n"]),
        output_tps=row["output_tps"],
        total_tps=row["total_tps"],
    )


def is_power(level: int) -> bool:
    """Whether it is a power of two."""
    return level & (level - 1) == 0


def tick_levels(levels: Sequence[int], first: Sequence[int | None]) -> list[int]:
    """Which levels get a label on a log2 axis: the `first` ones, then powers of two, then the rest, none too close."""
    if not levels:
        return []
    span = max(log2(levels[-1] / levels[0]), 1.0)
    order = sorted(levels, key=lambda n: (n not in first, not is_power(n), n))
    shown: list[int] = []
    for level in order:
        # A digit takes about 1.2 % of the axis.
        gap = span * (0.006 + 0.012 * len(str(level)))
        if all(abs(log2(level / other)) >= gap for other in shown):
            shown.append(level)
    return sorted(shown)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Positions as near to the wanted ones as a least distance allows; their order is kept."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed: dict[int, float] = {}
    last = float("-inf")
    for i in order:
        last = max(wanted[i], last + gap)
        placed[i] = last
    shift = sum(placed[i] - wanted[i] for i in order) / len(order) if order else 0.0
    return [placed[i] - shift for i in range(len(wanted))]
