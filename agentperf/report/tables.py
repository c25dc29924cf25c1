"""The report as one set of cells, for the screen (rich) and for Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agentperf.report import words
from agentperf.report.cells import Cell, Column, Section
from agentperf.report.client import client_section
from agentperf.report.server import server_section
from agentperf.report.streams import streams_section
from agentperf.report.words import MARKS, Sentence

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Json = Mapping[str, Any]
COLOURS: Final = {"pass": "green", "fail": "red", "inconclusive": "yellow", "invalid": "magenta"}
HEALTH_COLOURS: Final = {"ok": "green", "warn": "yellow", "invalid": "red"}
INFINITE: Final = "∞"


@dataclass(slots=True)
class Report:
    """All that a report says, in its order."""

    answers: list[Sentence]
    source: str
    columns: list[Column] = field(default_factory=list)
    rows: list[list[Cell]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Verdicts in words, one a line."""
    warnings: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    """Further tables, after that of the levels."""
    legend: str = ""


def make_report(summary: Json, problems: Sequence[str] = (), unjudged: int | None = None) -> Report:
    """The report of a summary.

    `problems` are faults of the run directory itself, `unjudged` the number of records of a probe without an end.
    """
    answers = [words.answer_sentence(a, summary) for a in summary["answers"]]
    report = Report(answers, words.source_line(summary))
    names = [a["slo"] for a in summary["answers"]]
    rows = sorted(summary["levels"], key=lambda r: (r["level"], r["probe"]))
    repeated = len({r["level"] for r in rows}) < len(rows)
    looked_at = any(row.get("streams") for row in rows)
    report.columns = _columns(summary, names, streams=looked_at)
    if repeated:
        report.columns.insert(1, Column("probe", drop=1))
    for row in rows:
        cells = _row(row, names, streams=looked_at)
        if repeated:
            cells.insert(1, Cell(str(row["probe"])))
        report.rows.append(cells)
    report.reasons = [line for row in rows for line in _reasons(row, several=len(names) > 1)]
    report.warnings = _warnings(summary, rows, unjudged) + list(problems)
    report.legend = _legend(rows)
    if looked_at:
        report.sections.append(streams_section(rows, repeated=repeated))
    if any(row.get("client") for row in rows):
        report.sections.append(client_section(rows, repeated=repeated))
    if any(row.get("server") for row in rows):
        report.sections.append(server_section(rows, repeated=repeated))
    return report


def _columns(summary: Json, names: Sequence[str], *, streams: bool) -> list[Column]:
    slos = [words.slo_named(summary, name) for name in names]
    only = slos[0] if len(slos) == 1 else None
    floor = words.limit_of(only, "speed", "p25") if only else None
    ceiling = words.limit_of(only, "ttft", "p95") if only else None
    verdicts = [Column("verdict" if only else words.short_name(s), "center") for s in slos]
    return [
        Column("agents"),
        *verdicts,
        Column("p25 speed tok/s" + (f" ≥ {floor:g}" if floor is not None else "")),
        Column("p10 – p50 speed", drop=4),
        Column("TTFT p50", drop=3),
        Column("TTFT p95" + (f" ≤ {ceiling:g} s" if ceiling is not None else "")),
        Column("requests = ok + failed + cut", drop=2),
        Column("plays", drop=6),
        Column("cache hit", drop=5),
        Column("expected", drop=5),
        Column("output tok/s", drop=4),
        Column("total tok/s", drop=7),
        Column("in flight", drop=6),
        *([Column("streams", "left", drop=3)] if streams else []),
        Column("client", "left"),
    ]


def _row(row: Json, names: Sequence[str], *, streams: bool) -> list[Cell]:
    health = row["health"]
    counted, stamped = words.doubt(row, "tokens"), words.doubt(row, "stamps")
    both = stamped + counted
    return [
        Cell(str(row["level"]), "bold"),
        *(_mark(row["status"].get(name), (row.get("lean") or {}).get(name), short=len(names) > 1) for name in names),
        Cell(words.marked(both, _with_ok(row, "speed_p25", words.number, beyond=words.DASH))),
        Cell(words.marked(both, f"{words.number(row['speed_p10'])} – {words.number(row['speed_p50'])}")),
        Cell(words.marked(stamped, _with_ok(row, "ttft_p50", words.duration, beyond=INFINITE))),
        Cell(words.marked(stamped, _with_ok(row, "ttft_p95", words.duration, beyond=INFINITE))),
        Cell(_requests(row), "red" if row["failed"] else ""),
        Cell(words.count(row["plays"])),
        Cell(words.share(row["cached_share"])),
        Cell(words.share(row["expected_cached_share"])),
        Cell(words.marked(counted, words.rate(row["output_tps"]))),
        Cell(words.marked(counted, words.rate(row["total_tps"]))),
        Cell(words.number(row["in_flight"], 2)),
        *([Cell(words.stream_word(row), words.stream_style(row))] if streams else []),
        Cell(health or words.DASH, HEALTH_COLOURS.get(str(health), "")),
    ]


def _legend(rows: Sequence[Json]) -> str:
    """What the marks before figures mean, for those that are used."""
    parts = []
    if any(words.doubt(row, "tokens") for row in rows):
        parts.append("~ from token counts that are estimates, in part at least.")
    if any(words.doubt(row, "stamps") for row in rows):
        parts.append("≈ of a level whose streams came in bursts: the figure is that of a buffer.")
    return " ".join(parts)


def _mark(status: str | None, lean: str | None, *, short: bool) -> Cell:
    if status is None:
        return Cell(words.DASH)
    if status == "inconclusive" and lean is not None:
        return Cell(
            f"{MARKS[status]}{MARKS[lean]}" if short else f"{MARKS[status]} leans {MARKS[lean]}", COLOURS[status]
        )
    return Cell(MARKS[status] if short else f"{MARKS[status]} {status}", COLOURS[status])


def _with_ok(row: Json, name: str, show: Any, *, beyond: str) -> str:
    """A percentile with failures at their worst; where there were failures, that of the successful requests beside."""
    measure = name.partition("_")[0]
    value = row[name]
    text = beyond if value is None and row[f"{measure}_n"] and row["failed"] else show(value)
    ok = row.get(f"{measure}_ok_{name.rpartition('_')[2]}")
    return f"{text} (ok {show(ok)})" if row["failed"] else str(text)


def _requests(row: Json) -> str:
    """`168 = 166 + 2 + 0`."""
    parts = [row["ok"], row["failed"], row["truncated"]]
    return f"{words.count(row['started'])} = {' + '.join(map(words.count, parts))}"


def _where(row: Json) -> str:
    return f"{words.agents(row['level'])} (probe {row['probe']})"


def _reasons(row: Json, *, several: bool) -> list[str]:
    lines = []
    for name, status in row["status"].items():
        reason = row["verdict_reason"].get(name)
        if row["interrupted"]:
            reason = f"interrupted; so far: {reason}" if reason else "interrupted"
        slo = f" {name}" if several else ""
        lines.append(f"{MARKS[status]} {_where(row)}{slo}: {reason or status}")
    return lines


def _warnings(summary: Json, rows: Sequence[Json], unjudged: int | None) -> list[str]:
    found = []
    if not summary["complete"]:
        found.append(f"the run is not complete: {summary.get('error') or words.reason_words(summary['reason'])}")
    if (unfinished := summary.get("unfinished")) is not None:
        found.append(
            f"the probe of {words.agents(unfinished['level'])} (probe {unfinished['probe']}) has no end: "
            f"its {'' if unjudged is None else words.count(unjudged) + ' '}records are kept, and count for no verdict"
        )
    for answer in summary["answers"]:
        prefix = f"{answer['slo']}: " if len(summary["answers"]) > 1 else ""
        found.extend(f"{prefix}{note}" for note in answer["notes"])
    for row in rows:
        if row["errors_by_class"]:
            classes = ", ".join(f"{n} {c}" for c, n in sorted(row["errors_by_class"].items(), key=lambda i: -i[1]))
            found.append(f"{_where(row)}: failed requests: {classes}")
        found.extend(f"{_where(row)}: {warning}" for warning in row["warnings"])
    return found


def to_markdown(report: Report, figures: Sequence[tuple[str, str]] = (), facts: Sequence[tuple[str, str]] = ()) -> str:
    """The whole report as Markdown. `figures` are (text, file name), `facts` (name, value)."""
    lines: list[str] = []
    for answer in report.answers:
        lines += [f"**{answer.mark} {_md(answer.text)}** ({_md(answer.bracket)})", ""]
        lines += [f"- SLO: {_md(answer.slo)}", *(f"- {_md(line)}" for line in answer.evidence), ""]
    if report.source:
        lines += [_md(report.source), ""]
    for text, name in figures:
        lines += [f"![{_md(text)}]({name})", ""]
    if report.rows:
        lines += ["## Levels", "", *_markdown_table(report), ""]
        legend = f" {_md(report.legend)}" if report.legend else ""
        lines += [f"A dash is not measured. ✓ pass, ✗ fail, ? inconclusive, ! invalid.{legend}", ""]
    for section in report.sections:
        lines += [f"## {section.title}", "", *_markdown_table(section), ""]
        if section.note:
            lines += [_md(section.note), ""]
    for title, items in (("Verdicts", report.reasons), ("Warnings", report.warnings)):
        if items:
            lines += [f"## {title}", "", *(f"- {_md(item)}" for item in items), ""]
    if facts:
        lines += ["## Run", "", "| | |", "|---|---|", *(f"| {_md(k)} | {_md(v)} |" for k, v in facts), ""]
    return "\n".join(lines)


def _markdown_table(report: Report | Section) -> list[str]:
    rules = {"left": ":--", "right": "--:", "center": ":-:"}
    lines = ["| " + " | ".join(_md(c.title) for c in report.columns) + " |"]
    lines.append("|" + "|".join(rules[c.justify] for c in report.columns) + "|")
    lines += ["| " + " | ".join(_md(cell.text) for cell in row) + " |" for row in report.rows]
    return lines


def _md(text: str) -> str:
    """Text that must not become markup."""
    for sign in "\\`*_|[]<":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


GAP: Final = 3
"""Characters between two columns on the screen."""


def cell_widths(report: Report | Section) -> list[int]:
    """Characters that each column needs so that no cell is cut; only titles may wrap."""
    return [
        max(map(len, (*column.title.split(" "), *(row[i].text for row in report.rows))))
        for i, column in enumerate(report.columns)
    ]


def fitting(report: Report | Section, width: int) -> list[int]:
    """Indexes of the columns that fit a screen of this width, the least important ones left out."""
    widths = cell_widths(report)
    keep = list(range(len(report.columns)))
    while sum(widths[i] + GAP for i in keep) + 1 > width:
        droppable = [i for i in keep if report.columns[i].drop]
        if not droppable:
            break
        keep.remove(max(droppable, key=lambda i: (report.columns[i].drop, i)))
    return keep


def _screen_widths(report: Report | Section, keep: Sequence[int], width: int) -> list[int]:
    """The width of every column: titles on one line where all of them fit so."""
    narrow = cell_widths(report)
    wide = [max(least, len(column.title)) for least, column in zip(narrow, report.columns, strict=True)]
    return wide if sum(wide[i] + GAP for i in keep) + 1 <= width else narrow


def render(report: Report, width: int) -> "list[RenderableType]":
    """The report for a screen: answers, table, verdicts, warnings."""
    from rich.text import Text

    parts: list[RenderableType] = []
    for answer in report.answers:
        line = Text().append(f"{answer.mark} {answer.text}", style=f"bold {COLOURS[answer.status]}")
        parts.append(line.append(f"  [{answer.bracket}]"))
        parts.append(Text(f"  {answer.slo}", style="dim"))
        parts.extend(Text(f"  {line}", style="dim") for line in answer.evidence)
    if report.source:
        parts.append(Text(f"  {report.source}", style="dim"))
    if report.rows:
        parts.extend(_fitted(report, width))
        if report.legend:
            parts.append(Text(report.legend, style="dim"))
    for section in report.sections:
        parts.append(Text(f"\n{section.title.lower()}", style="bold"))
        parts.extend(_fitted(section, width))
    for title, items, style in (("verdicts", report.reasons, ""), ("warnings", report.warnings, "yellow")):
        if items:
            parts.append(Text(f"\n{title}", style="bold"))
            parts.extend(Text(f"  {item}", style=style) for item in items)
    return parts


def _fitted(table: Report | Section, width: int) -> "list[RenderableType]":
    """A table as wide as the screen lets it be, and what was left out."""
    from rich.text import Text

    keep = fitting(table, width)
    hidden = len(table.columns) - len(keep)
    parts: list[RenderableType] = [Text(), _rich_table(table, keep, _screen_widths(table, keep, width))]
    if hidden:
        parts.append(Text(f"{hidden} columns do not fit this screen; report.md has them", style="dim"))
    return parts


def _rich_table(report: Report | Section, keep: Sequence[int], widths: Sequence[int]) -> "RenderableType":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    for i in keep:
        column = report.columns[i]
        table.add_column(Text(column.title), justify=column.justify, vertical="bottom", width=widths[i])
    for row in report.rows:
        table.add_row(*(Text(row[i].text, style=row[i].style, no_wrap=True) for i in keep))
    return table


PAPER_WIDTH: Final = 240
"""Characters a line may have where the output is no screen."""


def show(report: Report, console: "Console") -> None:
    """Print it. Where there is no screen, nothing is left out and lines are as long as they need to be."""
    screen = console.width
    if not console.is_terminal:
        console.width = PAPER_WIDTH
    try:
        for part in render(report, console.width):
            console.print(part)
    finally:
        console.width = screen
