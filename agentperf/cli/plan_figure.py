"""Capacity against each parameter of a profile, one panel a parameter."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentperf.report import style
from agentperf.report.figures import save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from agentperf.cli.variants import Found


def series(found: "Sequence[Found]") -> dict[str, list[tuple[float, int, int | None]]]:
    """By parameter: (value, capacity, smallest fail), ascending; the profile as it is belongs to every parameter.

    Variants that change several parameters are in none.
    """
    names = dict.fromkeys(name for f in found for name, _ in f.variant.changes)
    lines: dict[str, list[tuple[float, int, int | None]]] = {}
    for name in names:
        rows = [
            (float(getattr(f.variant.profile, name)), f.capacity, f.smallest_fail)
            for f in found
            if f.capacity is not None and {n for n, _ in f.variant.changes} <= {name}
        ]
        lines[name] = sorted(rows, key=lambda row: row[0])
    return {name: rows for name, rows in lines.items() if rows}


def draw(found: "Sequence[Found]", title: str, path: Path) -> list[Path]:
    """Write the figure as PNG and SVG beside each other; the files' names. Nothing without a varied parameter."""
    from matplotlib.figure import Figure

    lines = series(found)
    if not lines:
        return []
    with styled():
        figure = Figure(figsize=(4.2 * len(lines), 3.6), layout="constrained")
        panels = figure.subplots(1, len(lines), squeeze=False, sharey=True)[0]
        for axes, (name, rows) in zip(panels, lines.items(), strict=True):
            _panel(axes, name, rows)
        panels[0].set_ylim(0, 1.05 * max(high or low for rows in lines.values() for _, low, high in rows) + 1)
        panels[0].set_ylabel("agents")
        figure.suptitle(f"{title} (virtual)", weight="bold")
        return save(figure, path.with_suffix(""))


def _panel(axes: "Axes", name: str, rows: list[tuple[float, int, int | None]]) -> None:
    values = [row[0] for row in rows]
    low = [row[1] for row in rows]
    high = [row[2] if row[2] is not None else row[1] for row in rows]
    axes.fill_between(values, low, high, color=style.BAND, alpha=0.35, linewidth=0)
    axes.plot(values, low, color=style.SPEED, marker="o")
    if min(values) > 0 and max(values) >= 4 * min(values):
        axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:,.10g}" for value in values], rotation=30, ha="right")
    axes.minorticks_off()
    axes.set_xlabel(name)
