"""Cells, columns and tables of a report, the same for the screen and for Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell; `style` is for the screen only, so no meaning may rest on it."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """`drop` orders what a narrow screen leaves out: the highest goes first, 0 never goes."""

    title: str
    justify: Literal["left", "right", "center"] = "right"
    drop: int = 0


@dataclass(slots=True)
class Section:
    """A further table of a report, with its title and what its cells mean."""

    title: str
    columns: list[Column] = field(default_factory=list)
    rows: list[list[Cell]] = field(default_factory=list)
    note: str = ""


def probe_section(
    title: str,
    columns: Sequence[Column],
    cells_of: Callable[[Mapping[str, Any]], list[Cell]],
    rows: Sequence[Mapping[str, Any]],
    note: str,
    *,
    repeated: bool,
) -> Section:
    """One row a probe, its first cell the level. `repeated`: levels have several probes, so each has its number."""
    section = Section(title, list(columns), [cells_of(row) for row in rows], note)
    if repeated:
        section.columns.insert(1, Column("probe", drop=1))
        for row, cells in zip(rows, section.rows, strict=True):
            cells.insert(1, Cell(str(row["probe"])))
    return section
