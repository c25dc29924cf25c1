"""The two figures of a run: speed and TTFT by number of agents, and throughput against speed.

Figures are made without pyplot, so nothing global changes. What is drawn carries a gid (`p25`, `ttft_p95`,
`mark-<probe>`), by which it is found again in the axes and in the SVG.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite, log2
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from agentperf.report import style
from agentperf.report.points import Curve, Point, is_power, tick_levels

FORMATS: Final = ("png", "svg")
_MARGINS: Final = {"left": 0.085, "bottom": 0.085}
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
            written.append(path)
    return written


def scaling_figure(curve: Curve) -> Figure:
    """Speed (p25, band p10 to p50) above, TTFT (p50, p95) below, over the number of agents."""
    with styled():
        figure = Figure(figsize=(9.6, 6.8))
        FigureCanvasAgg(figure)
        speed, ttft = figure.subplots(
            2,
            1,
            sharex=True,
            gridspec_kw={
                "height_ratios": (3, 2),
                "hspace": 0.13,
                "left": 0.085,
                "right": 0.9,
                "top": 0.845,
                "bottom": 0.085,
            },
        )
        _heading(figure, curve)
        _agents_axis(ttft, curve)
        _bracket(speed, ttft, curve)
        _speed_panel(speed, curve)
        _ttft_panel(ttft, curve)
        return figure


def throughput_figure(curve: Curve) -> Figure:
    """Output throughput, and the total where it is known, against p25 speed; labels are agents."""
    panels = [("output_tps", "output tok/s")]
    if curve.series("total_tps")[1]:
        panels.append(("total_tps", "total tok/s (output + uncached + cached input)"))
    with styled():
        figure = Figure(figsize=(9.6 if len(panels) > 1 else 6.8, 5.2))
        FigureCanvasAgg(figure)
        axes = figure.subplots(
            1,
            len(panels),
            squeeze=False,
            gridspec_kw={"wspace": 0.24, "left": 0.085, "right": 0.975, "top": 0.78, "bottom": 0.115},
        )[0]
        _heading(figure, curve, "Throughput against the speed of each agent", top=0.955)
        for ax, (name, label) in zip(axes, panels, strict=True):
            _pareto_panel(ax, curve, name, label)
        return figure


def _heading(figure: Figure, curve: Curve, title: str | None = None, top: float = 0.965) -> None:
    left = 0.085
    height = figure.get_figheight()
    figure.text(left, top, title or curve.title, size=15, weight="bold", va="top", gid="title")
    subtitle = curve.subtitle if title is None else f"{curve.title} · {curve.subtitle}"
    figure.text(left, top - 0.34 / height, subtitle, size=9.5, color=style.QUIET, va="top", gid="subtitle")
    if curve.simulated:
        figure.text(
            0.975,
            top,
            "SIMULATED",
            size=9,
            weight="bold",
            color=style.LIMIT,
            ha="right",
            va="top",
            gid="simulated",
            bbox={"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": style.LIMIT, "linewidth": 1.2},
        )


def _agents_axis(ax: Axes, curve: Curve) -> None:
    levels = curve.levels
    ax.set_xlabel("concurrent agents")
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
    if low is None and high is None:
        return
    if low is not None and high is not None:
        text, at = f"capacity {low}, below {high}", (low * high) ** 0.5
    else:
        text, at = (f"{low} and above" if high is None else f"below {high}"), float(low or high or 1)
    speed.annotate(
        text,
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        size=9.5,
        weight="bold",
        color="#7a5a00",
        annotation_clip=False,
        gid="bracket-label",
    )


def _speed_panel(ax: Axes, curve: Curve) -> None:
    ax.set_ylabel("output speed, tok/s per agent")
    band_levels = [p for p in curve.series("speed_p10")[0] if p in curve.series("speed_p50")[0]]
    low = dict(zip(*curve.series("speed_p10"), strict=True))
    high = dict(zip(*curve.series("speed_p50"), strict=True))
    if band_levels:
        ax.fill_between(
            band_levels,
            [low[n] for n in band_levels],
            [high[n] for n in band_levels],
            color=style.BAND,
            alpha=0.45,
            linewidth=0,
            gid="band",
        )
    for name, width, gid in (("speed_p10", 0.9, "p10"), ("speed_p50", 0.9, "p50"), ("speed_p25", 2.2, "p25")):
        ax.plot(*curve.series(name), color=style.SPEED, linewidth=width, alpha=1 if gid == "p25" else 0.55, gid=gid)
    _end_labels(ax, curve, (("speed_p50", "p50"), ("speed_p25", "p25"), ("speed_p10", "p10")), style.SPEED)
    _marks(ax, curve.points, "level", "speed_p25")
    top = max([v for n in ("speed_p25", "speed_p50") for v in curve.series(n)[1]], default=1.0)
    top = max([top, *(limit for _, limit in curve.speed_limits)])
    ax.set_ylim(0, top * 1.12)
    ax.yaxis.set_major_locator(MaxNLocator(6))
    _limit_lines(ax, curve.speed_limits, ">=", lambda v: f"{v:g} tok/s", "speed-limit")
    _legend(ax, curve)


def _ttft_panel(ax: Axes, curve: Curve) -> None:
    ax.set_ylabel("time to first token")
    for name, color, line, gid in (
        ("ttft_p50", style.TTFT_P50, "-", "ttft_p50"),
        ("ttft_p95", style.TTFT_P95, "--", "ttft_p95"),
    ):
        ax.plot(
            *curve.series(name),
            color=color,
            linewidth=1.9,
            linestyle=line,
            marker="o",
            markersize=4,
            markeredgecolor="white",
            markeredgewidth=0.6,
            gid=gid,
        )
    values = [v for n in ("ttft_p50", "ttft_p95") for v in curve.series(n)[1] if v > 0]
    everything = values + [limit for _, limit in curve.ttft_limits]
    if values and max(everything) / min(values) >= LOG_FROM:
        ax.set_yscale("log")
        ax.set_ylim(min(values) / 1.6, max(everything) * 1.9)
        ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
        ax.yaxis.set_minor_locator(NullLocator())
    elif everything:
        ax.set_ylim(0, max(everything) * 1.16)
        ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: _tick(v)))
    _end_labels(ax, curve, (("ttft_p95", "p95"), ("ttft_p50", "p50")), style.TTFT_P95)
    _limit_lines(ax, curve.ttft_limits, "<=", duration_short, "ttft-limit")
    for point in curve.points:
        if point.ttft_beyond and point.trusted:
            ax.plot(
                [point.level],
                [1.0],
                transform=ax.get_xaxis_transform(),
                marker="^",
                markersize=8,
                color=style.TTFT_P95,
                clip_on=False,
                linestyle="none",
                gid=f"beyond-{point.probe}",
            )
    if any(p.ttft_beyond and p.trusted for p in curve.points):
        ax.text(
            0.004, 0.94, "▲ p95 among failed requests", transform=ax.transAxes, size=9, va="top", color=style.TTFT_P95
        )


def _tick(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"


def duration_short(value: float) -> str:
    """A limit as it was given: `5 s`, `250 ms`."""
    return _tick(round(value, 6))


def _end_labels(ax: Axes, curve: Curve, names: tuple[tuple[str, str], ...], color: str) -> None:
    """Name the lines at their right end, pushed apart where they meet."""
    ends = [
        (levels[-1], values[-1], text)
        for n, text in names
        if (s := curve.series(n)) and (levels := s[0]) and (values := s[1])
    ]
    for rank, (level, value, text) in enumerate(ends):
        shift = (len(ends) - 1) / 2 - rank
        ax.annotate(
            text,
            (level, value),
            xytext=(12, shift * 7.5),
            textcoords="offset points",
            va="center",
            size=9,
            color=color,
            weight="bold" if text == "p25" else "normal",
            annotation_clip=False,
        )


def _limit_lines(ax: Axes, limits: tuple[tuple[str, float], ...], sign: str, show: Any, gid: str) -> None:
    signs = {">=": "≥", "<=": "≤"}
    for name, limit in limits:
        ax.axhline(limit, color=style.LIMIT, linewidth=1.3, linestyle=(0, (5, 3)), zorder=1.5, gid=f"{gid}-{name}")
        ax.annotate(
            f"{name} {signs[sign]} {show(limit)}",
            (0.004, limit),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            size=9,
            color=style.LIMIT,
        )


def _marks(ax: Axes, points: tuple[Point, ...], x: str, y: str) -> None:
    for point in points:
        px, py = getattr(point, x), getattr(point, y)
        if px is None or py is None or not isfinite(py):
            continue
        look = style.STATUS_STYLE[point.status or "none"]
        edge = 1.0 if look["markeredgecolor"] == "white" else 1.6
        ax.plot(
            [px],
            [py],
            linestyle="none",
            markeredgewidth=edge,
            zorder=5,
            clip_on=False,
            gid=f"mark-{point.probe}",
            **look,
        )


def _legend(ax: Axes, curve: Curve) -> None:
    present = [s for s in style.STATUS_WORDS if any(p.status == s for p in curve.points)]
    for status in present:
        look = style.STATUS_STYLE[status]
        edge = 1.0 if look["markeredgecolor"] == "white" else 1.6
        ax.plot([], [], linestyle="none", markeredgewidth=edge, label=style.STATUS_WORDS[status], **look)
    if present:
        ax.legend(loc="upper right", ncols=1, handletextpad=0.2, borderaxespad=0.1)


def _pareto_panel(ax: Axes, curve: Curve, name: str, label: str) -> None:
    ax.set_xlabel("p25 output speed, tok/s per agent")
    ax.set_ylabel(label)
    ax.grid(visible=True, axis="both")
    speed = dict(zip(*curve.series("speed_p25"), strict=True))
    output = dict(zip(*curve.series(name), strict=True))
    levels = [n for n in curve.levels if n in speed and n in output]
    xs, ys = [speed[n] for n in levels], [output[n] for n in levels]
    ax.plot(xs, ys, color=style.SPEED, linewidth=1.6, alpha=0.8, gid=f"line-{name}")
    _marks(ax, curve.points, "speed_p25", name)
    if xs:
        floor = [limit for stat, limit in curve.speed_limits if stat == "p25"]
        ax.set_xlim(0, max([*xs, *floor]) * 1.1)
        ax.set_ylim(0, max(ys) * 1.16)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    for stat, limit in curve.speed_limits:
        if stat == "p25":
            ax.axvspan(limit, ax.get_xlim()[1], color=style.BAND, alpha=0.16, linewidth=0, zorder=0)
            ax.axvline(limit, color=style.LIMIT, linewidth=1.3, linestyle=(0, (5, 3)), zorder=1, gid="speed-limit-p25")
            ax.annotate(
                f"p25 ≥ {limit:g}",
                (limit, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(4, -11),
                textcoords="offset points",
                size=9,
                color=style.LIMIT,
            )
    _point_labels(ax, levels, xs, ys, (curve.largest_pass, curve.smallest_fail))


def _point_labels(ax: Axes, levels: list[int], xs: list[float], ys: list[float], first: tuple[int | None, ...]) -> None:
    """Agents beside the points, the ends of the bracket first, none on top of another."""
    placed: list[np.ndarray[Any, Any]] = []
    order = sorted(range(len(levels)), key=lambda i: (levels[i] not in first, not is_power(levels[i]), levels[i]))
    for i in order:
        at = ax.transData.transform((xs[i], ys[i]))
        if any(abs(at[0] - p[0]) < 26 and abs(at[1] - p[1]) < 14 for p in placed):
            continue
        placed.append(at)
        bold = levels[i] in first
        ax.annotate(
            f"{levels[i]}",
            (xs[i], ys[i]),
            xytext=(7, 6),
            textcoords="offset points",
            size=9.5,
            weight="bold" if bold else "normal",
            color=style.INK if bold else style.QUIET,
            annotation_clip=False,
            gid=f"label-{levels[i]}",
        )
