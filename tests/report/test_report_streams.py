"""The report about streams: a table of their own, marks before doubtful figures, words in warnings and evidence."""

import io
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from run_journals import answer, finished, manifest, probe_events, probe_records, record, search_journal
from typer.testing import CliRunner

from agentperf.cli.report import report as report_command
from agentperf.errors import UsageError
from agentperf.report.points import curve_points
from agentperf.report.tables import make_report, show, to_markdown
from agentperf.report.words import doubt, marked, stream_word
from agentperf.report.write import write_report
from agentperf.store.rundir import RunWriter, read_run
from agentperf.store.summary import summarise_run
from tests.measure.records import S
from tests.measure.streams import seen, timer

SLO = "80tps"


def steady(events: int = 100) -> list[float]:
    return [0.5 + 0.01 * i for i in range(events)]


def level(times: list[float] | None = None, count: int = 40, **changes: Any) -> list[Any]:
    return [
        seen(times or steady(), request_id=f"r{i}", play=f"p{i % 40}", t0_ns=i, due_ns=i, **changes)
        for i in range(count)
    ]


def summary_of(records: list[Any], **extra: Any) -> dict[str, Any]:
    events = probe_events(1, 4, records, [SLO], **extra)
    return summarise_run(manifest([SLO]), [*events, finished([answer(SLO, 4, None, "all_pass")])])


def cells(report: Any, titles: Any, row: Any) -> dict[str, str]:
    return dict(zip((c.title for c in titles), (c.text for c in row), strict=True))


def screen(summary: dict[str, Any], width: int = 260) -> str:
    out = io.StringIO()
    show(make_report(summary), Console(file=out, width=width, force_terminal=True, color_system=None))
    return out.getvalue()


def test_a_clean_level_has_no_marks() -> None:
    summary = summary_of(level())
    report = make_report(summary)
    assert report.legend == ""
    row = cells(report, report.columns, report.rows[0])
    assert row["streams"] == "ok"
    assert not any(mark in text for text in row.values() for mark in "~≈")
    section = report.sections[0]
    assert section.title == "Streams"
    facts = cells(report, section.columns, section.rows[0])
    assert facts["in bursts"] == "0 of 40"
    assert facts["tokens / event p50"] == "1.00"
    assert facts["counts by usage + estimate"] == "40 + 0"
    assert facts["characters / token"] == "4.00"
    assert facts["largest gap"] == "10 ms"
    assert facts["in request"] == "r0"
    assert facts["stale retries"] == "0"


def test_a_suspect_level_is_marked_everywhere() -> None:
    summary = summary_of(level(timer(steady(), 0.25, 0.1)))
    facts = summary["levels"][0]["streams"]
    assert (facts["suspect"], facts["buffered"], facts["tellable"]) == (True, 40, 40)
    report = make_report(summary)
    row = cells(report, report.columns, report.rows[0])
    assert row["streams"] == "bursts"
    assert all(text.startswith("≈") for title, text in row.items() if "speed" in title or "TTFT" in title)
    assert not row["output tok/s"].startswith("≈"), "tokens over seconds of the window are what they are"
    for text in (to_markdown(report), screen(summary)):
        assert "40 of 40" in text
        assert "the figure is that of a buffer" in text


def test_estimated_counts_are_marked_where_they_are_used() -> None:
    records = [*level(count=30), *level(count=10, token_source="estimate")]
    report = make_report(summary_of(records))
    row = cells(report, report.columns, report.rows[0])
    for title in ("output tok/s", "p10 – p50 speed"):
        assert row[title].startswith("~"), title
    assert not row["TTFT p50"].startswith("~")
    assert "~ from token counts that are estimates" in report.legend
    facts = cells(report, report.sections[0].columns, report.sections[0].rows[0])
    assert facts["counts by usage + estimate"] == "30 + 10"


def test_the_evidence_of_an_answer_says_what_it_rests_on() -> None:
    records = level(count=300, token_source="estimate")
    report = make_report(summary_of(records))
    assert any("token counts estimated" in line for line in report.answers[0].evidence)


def test_figures_say_what_is_in_doubt() -> None:
    clean = curve_points(summary_of(level()), SLO)
    assert clean.subtitle.endswith("n = 40 requests")
    held = curve_points(summary_of(level(timer(steady(), 0.25, 0.1), token_source="estimate")), SLO)
    assert held.subtitle.endswith(
        "n = 40 requests · token counts estimated · streams came in bursts at 4 agents: a buffer's figures"
    )


def test_a_dash_needs_no_mark() -> None:
    assert marked("~", "–") == "–"
    assert marked("≈~", "80.1") == "≈~80.1"


def test_journals_of_before_have_no_such_table() -> None:
    events, _ = search_journal(levels=(4, 8))
    for event in events:
        event.get("metrics", {}).pop("streams", None)
    summary = summarise_run(manifest([SLO]), events)
    assert [row["streams"] for row in summary["levels"]] == [None, None]
    report = make_report(summary)
    assert not [s for s in report.sections if s.title == "Streams"]
    assert "streams" not in [c.title for c in report.columns]
    assert "## Streams" not in to_markdown(report)
    assert stream_word(summary["levels"][0]) == "–"
    assert doubt(summary["levels"][0], "tokens") == ""
    summary["levels"][0].pop("streams")  # a summary.json of before
    assert not [s for s in make_report(summary).sections if s.title == "Streams"]


def test_repeated_levels_name_their_probes() -> None:
    events, _ = search_journal(levels=(4, 8, 8))
    section = make_report(summarise_run(manifest([SLO]), events)).sections[0]
    assert section.columns[1].title == "probe"
    assert [row[1].text for row in section.rows] == ["1", "2", "3"]


def test_handshakes_and_failures_in_the_table() -> None:
    records = level()
    records[0].new_connection, records[0].connected_ns = True, 3_250_000
    records[1].outcome, records[1].error_class = "failed", "server_error_in_stream"
    section = make_report(summary_of(records)).sections[0]
    facts = cells(None, section.columns, section.rows[0])
    assert facts["handshake p50 / p99 / max"] == "3.25 ms / 3.25 ms / 3.25 ms"
    assert facts["new connections"] == "2.5 %"
    assert facts["errors inside streams"] == "1"


@pytest.mark.parametrize("width", [60, 100, 160])
def test_a_narrow_screen_cuts_no_figure_of_it(width: int) -> None:
    text = screen(summary_of(level()), width)
    assert "…" not in text
    assert ("columns do not fit" in text) is (width < 160)


def start(directory: Path, *, unfinished: int) -> None:
    writer = RunWriter.create(directory)
    writer.write_manifest(manifest([SLO]))
    first = probe_records(1, 4, 100, n=40)
    for event in probe_events(1, 4, first, [SLO]):
        writer.journal(event)
    writer.add(first)
    writer.journal({"event": "probe_started", "probe": 2, "level": 8, "why": "ramp", "at_ns": 60 * S})
    writer.add([record(i, request_id=f"u{i}", probe=2, level=8) for i in range(unfinished)])
    writer.flush()


def test_records_that_no_level_has_judged_yet_are_counted(tmp_path: Path) -> None:
    start(tmp_path / "run", unfinished=1234)
    text = write_report(tmp_path / "run", tmp_path / "out", figures=False)[0].read_text()
    assert "the probe of 8 agents (probe 2) has no end: its 1,234 records are kept, and count for no verdict" in text


def test_none_yet(tmp_path: Path) -> None:
    start(tmp_path / "run", unfinished=0)
    text = write_report(tmp_path / "run", tmp_path / "out", figures=False)[0].read_text()
    assert "its 0 records are kept" in text


def test_an_empty_manifest_is_no_run(tmp_path: Path) -> None:
    start(tmp_path / "run", unfinished=3)
    (tmp_path / "run" / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match=r"manifest\.json says nothing of a run"):
        read_run(tmp_path / "run")
    app = typer.Typer()
    app.command("report")(report_command)
    shown = CliRunner().invoke(app, [str(tmp_path / "run")])
    assert isinstance(shown.exception, UsageError)
    assert shown.exception.exit_code == 2
