"""Cells, columns and tables of a report, the same for the screen and for Markdown."""

from dataclasses import dataclass, field
from typing import Literal


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
