"""The two figures of a run: speed and TTFT by number of agents, and throughput against speed.

Figures are made without pyplot, so nothing global changes. What is drawn carries a gid (`p25`, `ttft_p95`,
`mark-<probe>`), by which it is found again in the axes and in the SVG.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import dist, log2
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from agentperf.report import style
from agentperf.report.points import Curve, Point, is_power, spread, tick_levels

FORMATS: Final = ("png", "svg")
FAR_LIMIT: Final = 5.0
Look = dict[str, Any]
Limits = tuple[tuple[str, float], ...]
LEFT: Final = 0.078
LOG_FROM: Final = 12.0
"""From this ratio of largest to smallest TTFT on, its axis is logarithmic."""


@contextmanager
def styled() -> Iterator[None]:
    """The project's look, for drawing and for saving."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style.RC)  # type: ignore[arg-type]  # a Literal of all names in newer stubs
        yield


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem.png` and `stem.svg`; the same figure gives the same bytes."""
    written = []
    with styled():
        for kind in FORMATS:
            path = stem.with_suffix(f".{kind}")
            metadata = {"Date": None, "Creator": "agentperf"} if kind == "svg" else {"Software": "agentperf"}
            figure.savefig(path, format=kind, metadata=metadata)
            path.chmod(0o600)  # like everything else in a run directory
            written.append(path)
    return written


def scaling_figure(curve: Curve) -> Figure:
    """Speed (p25, band p10 to p50) above, TTFT (p50, p95) below, over the number of agents."""
    with styled():
        figure = Figure(figsize=(9.6, 6.8))
        FigureCanvasAgg(figure)
        grid = {"height_ratios": (3, 2), "hspace": 0.13, "left": LEFT, "right": 0.945, "top": 0.845, "bottom": 0.105}
        speed, ttft = figure.subplots(2, 1, sharex=True, gridspec_kw=grid)
        _heading(figure, curve, curve.title, curve.remark)
        _agents_axis(ttft, curve)
        _bracket(speed, ttft, curve)
        _speed_panel(speed, curve)
        _ttft_panel(ttft, curve)
        _legend(figure, curve)
        figure.align_ylabels([speed, ttft])
        return figure


def throughput_figure(curve: Curve) -> Figure:
    """Output throughput, and the total where it is known, against p25 speed; labels are agents."""
    panels = [("output_tps", "output, tok/s")]
    if curve.series("total_tps")[1]:
        panels.append(("total_tps", "output + uncached input + cached input, tok/s"))
    with styled():
        figure = Figure(figsize=(9.6 if len(panels) > 1 else 6.8, 5.2))
        FigureCanvasAgg(figure)
        grid = {"wspace": 0.19, "left": LEFT, "right": 0.972, "top": 0.77, "bottom": 0.155}
        axes = figure.subplots(1, len(panels), squeeze=False, gridspec_kw=grid)[0]
        _heading(figure, curve, "Throughput against the speed of each agent", "numbers are concurrent agents")
        for ax, (name, label) in zip(axes, panels, strict=True):
            _throughput_panel(ax, curve, name, label)
        _legend(figure, curve)
        return figure


def _heading(figure: Figure, curve: Curve, title: str, remark: str) -> None:
    inch = 1 / figure.get_figheight()
    top = 1 - 0.24 * inch
    size = min(15.5, 15.5 * 68 * figure.get_figwidth() / 9.6 / max(len(title), 1))
    figure.text(LEFT, top, title, size=size, weight="bold", va="top", gid="title")
    subtitle = " · ".join(part for part in (remark, curve.subtitle) if part)
    size = min(9.5, 9.5 * 120 * figure.get_figwidth() / 9.6 / max(len(subtitle), 1))
    figure.text(LEFT, top - 0.33 * inch, subtitle, size=size, color=style.QUIET, va="top", gid="subtitle")
    if curve.label:
        box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": style.LIMIT, "linewidth": 1.2}
        look: Look = {"size": 9, "weight": "bold", "color": style.LIMIT, "ha": "right", "va": "top"}
        figure.text(0.972, top, curve.label.upper(), gid="simulated", bbox=box, **look)


def _legend(figure: Figure, curve: Curve) -> None:
    """What the marks mean, below the axes where nothing can lie under it."""
    present = [s for s in style.STATUS_WORDS if any(p.status == s for p in curve.points)]
    handles = [Line2D([], [], linestyle="none", label=style.STATUS_WORDS[s], **_mark_look(s)) for s in present]
    if handles:
        figure.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(LEFT - 0.012, 0.004),
            ncols=len(handles),
            handletextpad=0.1,
            columnspacing=1.4,
        )


def _agents_axis(ax: Axes, curve: Curve) -> None:
    levels = curve.levels
    ax.set_xlabel("concurrent agents", loc="right")
    if not levels:
        return
    ax.set_xscale("log", base=2)
    margin = max(log2(levels[-1] / levels[0]), 1.0) * 0.05
    ax.set_xlim(levels[0] / 2**margin, levels[-1] * 2**margin)
    labels = tick_levels(levels, (curve.largest_pass, curve.smallest_fail))
    ax.xaxis.set_major_locator(FixedLocator(labels))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.xaxis.set_minor_locator(FixedLocator([n for n in levels if n not in labels]))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _bracket(speed: Axes, ttft: Axes, curve: Curve) -> None:
    """Between the largest pass and the smallest fail lies the capacity."""
    low, high = curve.largest_pass, curve.smallest_fail
    for ax in (speed, ttft):
        if low is not None and high is not None:
            ax.axvspan(low, high, color=style.BRACKET, alpha=0.42, linewidth=0, zorder=0, gid="bracket")
        for edge in (e for e in (low, high) if e is not None):
            ax.axvline(edge, color=style.BRACKET, linewidth=1.4, zorder=0.5, gid=f"bracket-{edge}")
    parts = [f"passes at {low}"] * (low is not None) + [f"fails at {high}"] * (high is not None)
    if not parts:
        return
    at = ((low or high or 1) * (high or low or 1)) ** 0.5
    place = float(speed.transAxes.inverted().transform(speed.transData.transform((at, 0.0)))[0])
    speed.annotate(
        ", ".join(parts),
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 5),
        textcoords="offset points",
        ha="left" if place < 0.12 else "right" if place > 0.88 else "center",
        size=9.5,
        weight="bold",
        color="#7a5a00",
        annotation_clip=False,
        gid="bracket-label",
    )


def _speed_panel(ax: Axes, curve: Curve) -> None:
    ax.set_ylabel("output speed, tok/s per agent")
    low = dict(zip(*curve.series("speed_p10"), strict=True))
    high = dict(zip(*curve.series("speed_p50"), strict=True))
    both = [n for n in low if n in high]
    if both:
        edges = [low[n] for n in both], [high[n] for n in both]
        ax.fill_between(both, *edges, color=style.BAND, alpha=0.45, linewidth=0, gid="band")
    for name, width, gid in (("speed_p10", 0.9, "p10"), ("speed_p50", 0.9, "p50"), ("speed_p25", 2.2, "p25")):
        ax.plot(*curve.series(name), color=style.SPEED, linewidth=width, alpha=1 if gid == "p25" else 0.55, gid=gid)
    _marks(ax, curve.points, "level", "speed_p25")
    seen = [v for name in ("speed_p25", "speed_p50") for v in curve.series(name)[1]]
    seen += [p.speed_p25 for p in curve.points if p.speed_p25 is not None]
    ax.set_ylim(0, max([*seen, *(limit for _, limit in curve.speed_limits)], default=1.0) * 1.12 or 1.0)
    ax.yaxis.set_major_locator(MaxNLocator(6))
    _limit_lines(ax, curve.speed_limits, "≥", "tok/s", "speed-limit")
    _end_labels(ax, curve, (("speed_p50", "p50"), ("speed_p25", "p25"), ("speed_p10", "p10")), style.SPEED)


def _ttft_panel(ax: Axes, curve: Curve) -> None:
    ax.set_ylabel("time to first token, s")
    look: Look = {"linewidth": 1.9, "marker": "o", "markersize": 4, "markeredgecolor": "white", "markeredgewidth": 0.6}
    ax.plot(*curve.series("ttft_p50"), color=style.TTFT_P50, gid="ttft_p50", **look)
    ax.plot(*curve.series("ttft_p95"), color=style.TTFT_P95, linestyle="--", gid="ttft_p95", **look)
    values = [v for name in ("ttft_p50", "ttft_p95") for v in curve.series(name)[1] if v > 0]
    # A limit far above what was measured would press the curve to the floor: it is only named.
    far = FAR_LIMIT * max(values, default=math.inf)
    everything = values + [limit for _, limit in curve.ttft_limits if limit <= far]
    if values and max(everything) / min(values) >= LOG_FROM:
        ax.set_yscale("log")
        ax.set_ylim(min(values) / 1.6, max(everything) * 1.9)
        ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
        ax.yaxis.set_minor_locator(NullLocator())
    elif everything:
        ax.set_ylim(0, max(everything) * 1.18)
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    _limit_lines(ax, curve.ttft_limits, "≤", "s", "ttft-limit", beyond=far)
    _end_labels(ax, curve, (("ttft_p95", "p95"), ("ttft_p50", "p50")), style.TTFT_P95)
    _beyond(ax, curve)


def _beyond(ax: Axes, curve: Curve) -> None:
    """Levels whose p95 lies among failed requests have no finite value: a mark at the upper edge stands for it."""
    points = [p for p in curve.points if p.ttft_beyond and p.trusted]
    look: Look = {"marker": "^", "markersize": 8, "color": style.TTFT_P95, "linestyle": "none", "clip_on": False}
    for point in points:
        ax.plot([point.level], [1.0], transform=ax.get_xaxis_transform(), gid=f"beyond-{point.probe}", **look)
    if points:
        text = "▲ p95 lies among failed requests"
        ax.text(0.5, 1.02, text, transform=ax.transAxes, size=9, ha="center", va="bottom", color=style.TTFT_P95)


def _end_labels(ax: Axes, curve: Curve, names: tuple[tuple[str, str], ...], color: str) -> None:
    """Name the lines right of the axes, pushed apart where they meet. The limits of the axes must be final."""
    ends = [(levels[-1], values[-1], text) for n, text in names for levels, values in [curve.series(n)] if levels]
    point = ax.figure.dpi / 72
    heights = [float(ax.transData.transform((level, value))[1]) / point for level, value, _ in ends]
    for (_, value, text), height, place in zip(ends, heights, spread(heights, 10.5), strict=True):
        ax.annotate(
            text,
            (1.0, value),
            xycoords=("axes fraction", "data"),
            xytext=(5, place - height),
            textcoords="offset points",
            va="center",
            size=9,
            color=color,
            weight="bold" if text == "p25" else "normal",
            annotation_clip=False,
        )


def _limit_lines(ax: Axes, limits: Limits, sign: str, unit: str, gid: str, *, beyond: float = math.inf) -> None:
    """A dashed line for each limit; one above `beyond` is out of view and named at the upper edge."""
    look: Look = {"textcoords": "offset points", "size": 9, "color": style.LIMIT}
    unseen = []
    for name, limit in limits:
        ax.axhline(limit, color=style.LIMIT, linewidth=1.3, linestyle=style.LIMIT_DASH, zorder=1.5, gid=f"{gid}-{name}")
        text = f"SLO: {name} {sign} {limit:g} {unit}"
        if limit > beyond:
            unseen.append(f"{text}, far above")
        else:
            ax.annotate(text, (0.006, limit), xycoords=("axes fraction", "data"), xytext=(0, 3), **look)
    if unseen:
        ax.annotate("; ".join(unseen), (0.006, 1.0), xycoords="axes fraction", xytext=(0, -10), **look)


def _mark_look(status: str | None) -> dict[str, Any]:
    look = style.STATUS_STYLE[status or "none"]
    return {**look, "markeredgewidth": 1.0 if look["markeredgecolor"] == "white" else 1.6}


def _marks(ax: Axes, points: tuple[Point, ...], x: str, y: str) -> None:
    for point in points:
        px, py = getattr(point, x), getattr(point, y)
        if px is not None and py is not None:
            gid = f"mark-{point.probe}"
            ax.plot([px], [py], linestyle="none", zorder=5, clip_on=False, gid=gid, **_mark_look(point.status))


def _throughput_panel(ax: Axes, curve: Curve, name: str, label: str) -> None:
    ax.set_title(label, loc="left", size=10.5, pad=9)
    ax.set_xlabel("p25 speed, tok/s per agent", loc="right")
    ax.grid(visible=True, axis="both")
    speed = dict(zip(*curve.series("speed_p25"), strict=True))
    output = dict(zip(*curve.series(name), strict=True))
    levels = [n for n in curve.levels if n in speed and n in output]
    xs, ys = [speed[n] for n in levels], [output[n] for n in levels]
    ax.plot(xs, ys, color=style.SPEED, linewidth=1.8, gid=f"line-{name}")
    _marks(ax, curve.points, "speed_p25", name)
    floors = [limit for stat, limit in curve.speed_limits if stat == "p25"]
    shown = [(p.speed_p25, getattr(p, name)) for p in curve.points]
    known = [(x, y) for x, y in shown if x is not None and y is not None]
    ax.set_xlim(0, max([*(x for x, _ in known), *floors], default=1.0) * 1.12 or 1.0)
    ax.set_ylim(0, max([y for _, y in known], default=1.0) * 1.18 or 1.0)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.yaxis.set_major_locator(MaxNLocator(6))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
    for floor in floors:
        ax.axvspan(floor, ax.get_xlim()[1], color=style.BAND, alpha=0.16, linewidth=0, zorder=0)
        look: Look = {"color": style.LIMIT, "linewidth": 1.3, "linestyle": style.LIMIT_DASH}
        ax.axvline(floor, zorder=1, gid="speed-limit-p25", **look)
        at: Look = {"xycoords": ("data", "axes fraction"), "xytext": (4, 5), "textcoords": "offset points"}
        ax.annotate(f"SLO: p25 ≥ {floor:g}", (floor, 0.0), size=9, color=style.LIMIT, **at)
    _point_labels(ax, levels, xs, ys, (curve.largest_pass, curve.smallest_fail))


_OFFSETS: Final = ((6, 6), (6, -15), (-14, 7), (-14, -16))
_FAR_OFFSETS: Final = ((12, 26), (-26, 26), (12, -36), (-26, -36), (12, 42), (-26, 42))
"""With a line to the point, for labels that must not be left out."""


def _point_labels(ax: Axes, levels: list[int], xs: list[float], ys: list[float], first: tuple[int | None, ...]) -> None:
    """Agents beside the points, the ends of the bracket first; where no place is free, none but those."""
    point = ax.figure.dpi / 72
    marks = [tuple(map(float, ax.transData.transform(at) / point)) for at in zip(xs, ys, strict=True)]
    taken: list[tuple[float, float]] = []
    for i in sorted(range(len(levels)), key=lambda i: (levels[i] not in first, not is_power(levels[i]), levels[i])):
        bold = levels[i] in first
        others = [m for j, m in enumerate(marks) if j != i]
        width = 6.5 * len(str(levels[i]))
        for dx, dy in (*_OFFSETS, *(_FAR_OFFSETS if bold else ())):
            x, y = marks[i][0] + dx + width / 2, marks[i][1] + dy + 4
            far = (dx, dy) in _FAR_OFFSETS
            if _is_free((x, y), width, taken, others) and (far or _is_nearest((x, y), marks[i], others)):
                taken.append((x, y))
                _point_label(ax, levels[i], (xs[i], ys[i]), (dx, dy), bold=bold, far=far)
                break


Place = tuple[float, ...]


def _is_free(at: Place, width: float, labels: Sequence[Place], marks: Sequence[Place]) -> bool:
    """Whether a label of this width (all in points) covers neither a label nor a mark."""
    over_label = any(abs(at[0] - x) < width + 3 and abs(at[1] - y) < 11 for x, y in labels)
    return not over_label and not any(abs(at[0] - x) < width / 2 + 5 and abs(at[1] - y) < 9 for x, y in marks)


def _is_nearest(at: Place, own: Place, others: Sequence[Place]) -> bool:
    """Whether a label there would be read as belonging to its own mark."""
    return all(dist(at, other) > dist(at, own) for other in others)


def _point_label(
    ax: Axes, level: int, at: tuple[float, float], offset: tuple[int, int], *, bold: bool, far: bool
) -> None:
    leader = {"arrowstyle": "-", "color": style.QUIET, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 5}
    ax.annotate(
        f"{level}",
        at,
        xytext=offset,
        textcoords="offset points",
        size=9.5,
        weight="bold" if bold else "normal",
        color=style.INK if bold else style.QUIET,
        annotation_clip=False,
        arrowprops=leader if far else None,
        gid=f"label-{level}",
    )
