"""Screen and Markdown say the same, and what the summary says."""

import io
import re
from typing import Any

import pytest
from rich.console import Console
from run_journals import (
    answer,
    finished,
    health,
    manifest,
    probe_events,
    probe_records,
    record,
    search_journal,
)

from agentperf.report.tables import fitting, make_report, show, to_markdown
from agentperf.report.words import answer_sentence, duration, number, rate, share
from agentperf.store.summary import summarise_run

SWEPT = "all levels of the list were measured"
CLIENT = "this machine, not the endpoint, was the limit above"


def _summary(answers: list[dict[str, Any]] | None = None, *, simulated: bool = False) -> dict[str, Any]:
    events, _ = search_journal()
    end = [finished(answers or [answer("80tps", 16, 20)])]
    return summarise_run(manifest(["80tps"], simulated=simulated), [*events, *end])


def _screen(summary: dict[str, Any], width: int = 200, *, terminal: bool = False) -> str:
    out = io.StringIO()
    show(make_report(summary), Console(file=out, width=width, force_terminal=terminal, color_system=None))
    return out.getvalue()


def test_figures_in_words() -> None:
    assert [number(None), duration(None), share(None), rate(None)] == ["–"] * 4
    assert [number(0.0), share(0.0), duration(0.0)] == ["0.0", "0.0 %", "0 ms"]
    assert [duration(0.9994), duration(0.9996), duration(99.994), duration(1234.0)] == [
        "999 ms",
        "1.00 s",
        "99.99 s",
        "1,234 s",
    ]
    assert [rate(9.876), rate(98.76), rate(2452.36)] == ["9.88", "98.8", "2,452"]
    assert share(0.785) == "78.5 %"


def test_the_answer_comes_first_with_bracket_slo_and_evidence() -> None:
    lines = _screen(_summary()).splitlines()
    assert lines[0].rstrip() == "✓ 16 agents at 80tps  [passes at 16, fails at 20]"
    assert "80tps = p25 speed >= 80 tok/s, p95 ttft <= 5 s, errors <= 1 %" in lines[1]
    assert "pass at 16: 1 probe, 168 requests, 16 plays, 95 % confidence, close to the limit" in lines[2]
    assert "fail at 20: 1 probe, 200 requests, 20 plays, 95 % confidence" in lines[3]
    assert "http://localhost:8000/v1 · glm-5.3 · trace set coding-v1" in lines[4]


def test_every_row_is_the_summary() -> None:
    summary = _summary()
    report = make_report(summary)
    titles = [c.title for c in report.columns]
    assert titles[2] == "p25 speed tok/s ≥ 80"
    assert "TTFT p95 ≤ 5 s" in titles
    assert [int(r[0].text) for r in report.rows] == [1, 2, 4, 8, 16, 20, 24, 32]
    rows = {r["level"]: r for r in summary["levels"]}
    for cells in report.rows:
        row = rows[int(cells[0].text)]
        text = dict(zip(titles, (c.text for c in cells), strict=True))
        assert text["verdict"].endswith(row["status"]["80tps"])
        assert float(text["p25 speed tok/s ≥ 80"]) == pytest.approx(row["speed_p25"], abs=0.051)
        assert text["p10 – p50 speed"] == f"{row['speed_p10']:.1f} – {row['speed_p50']:.1f}"
        assert text["requests = ok + failed + cut"] == f"{row['started']} = {row['ok']} + 0 + 0"
        assert float(text["in flight"]) == pytest.approx(row["in_flight"], abs=0.0051)
        started, ok, failed, cut = map(int, re.findall(r"\d+", text["requests = ok + failed + cut"]))
        assert started == ok + failed + cut


def test_screen_and_markdown_share_their_cells() -> None:
    summary = _summary(simulated=True)
    report = make_report(summary)
    screen, markdown = _screen(summary), to_markdown(report)
    for row in report.rows:
        line = next(ln for ln in markdown.splitlines() if ln.startswith(f"| {row[0].text} |"))
        assert [c.strip() for c in line.strip("|").split("|")] == [c.text for c in row]
        assert all(cell.text in screen for cell in row)
    for text in (screen, markdown):
        assert "16 agents at 80tps (simulated)" in text
        assert "http://localhost:8000/v1 (simulated)" in text


def test_failures_show_both_percentiles_and_their_classes() -> None:
    records = probe_records(1, 4, 100, n=100)
    bad = [
        record(i, phase="window", outcome="failed", error_class="timeout", speed_tps=None, ttft_s=None)
        for i in range(10)
    ]
    cut = [record(50, phase="window", outcome="truncated", error_class="interrupted", speed_tps=None)]
    events = probe_events(1, 4, [*records, *bad, *cut], ["80tps"], warnings=["a cause (a remedy)"])
    report = make_report(summarise_run(manifest(["80tps"]), events))
    text = {c.title: cell.text for c, cell in zip(report.columns, report.rows[0], strict=True)}
    assert text["requests = ok + failed + cut"] == "111 = 100 + 10 + 1"
    p95 = next(v for k, v in text.items() if k.startswith("TTFT p95"))
    assert re.fullmatch(r"∞ \(ok [\d.]+ (ms|s)\)", p95)
    speed = next(v for k, v in text.items() if k.startswith("p25 speed"))
    worse, ok = map(float, re.findall(r"[\d.]+", speed))
    assert worse < ok
    assert "4 agents (probe 1): failed requests: 10 timeout" in report.warnings
    assert "4 agents (probe 1): a cause (a remedy)" in report.warnings


def test_null_is_a_dash() -> None:
    rows = [record(i, phase="window", cached_tokens=None, speed_tps=None) for i in range(30)]
    (cells,) = make_report(summarise_run(manifest(["80tps"]), probe_events(1, 4, rows, ["80tps"]))).rows
    text = [c.text for c in cells]
    assert text[2:4] == ["–", "– – –"]
    assert text[8] == "–"
    assert "None" not in " ".join(text)


def test_a_repeated_level_names_its_probes() -> None:
    events, _ = search_journal(levels=(4, 8, 8))
    report = make_report(summarise_run(manifest(["80tps"]), events))
    assert report.columns[1].title == "probe"
    assert [(r[0].text, r[1].text) for r in report.rows] == [("4", "1"), ("8", "2"), ("8", "3")]


def test_several_slos_have_a_column_each() -> None:
    events, _ = search_journal(["80tps", "20tps"], (4, 32))
    report = make_report(summarise_run(manifest(["80tps", "20tps"]), events))
    assert [c.title for c in report.columns[1:4]] == ["80tps", "20tps", "p25 speed tok/s"]
    assert [[c.text for c in row[1:3]] for row in report.rows] == [["✓", "✓"], ["✗", "✓"]]


@pytest.mark.parametrize(
    ("low", "high", "reason", "mark", "text"),
    [
        (16, 20, "found", "✓", "16 agents at 80tps"),
        (1, 2, "swept", "✓", "1 agent at 80tps"),
        (64, None, "all_pass", "✓", "at least 64 agents at 80tps: every level passed, the limit lies higher"),
        (None, 1, "none_pass", "✗", "not even 1 agent at 80tps"),
        (
            None,
            4,
            "swept",
            "✗",
            "fewer than 4 agents at 80tps: no level below passed, " + SWEPT,
        ),
        (
            16,
            None,
            "client_limited",
            "!",
            "at least 16 agents at 80tps: " + CLIENT,
        ),
        (16, None, "rate_limited", "!", None),
        (16, 20, "not_monotone", "?", None),
        (16, 32, "budget", "?", "16 agents at 80tps: not settled, the search was ended before its bracket closed"),
        (16, 32, "interrupted", "?", None),
        (None, None, "inconclusive", "?", "no answer for 80tps: no level was decided, levels stayed inconclusive"),
        (None, 8, "budget", "?", None),
    ],
)
def test_sentences(low: int | None, high: int | None, reason: str, mark: str, text: str | None) -> None:
    summary = _summary([answer("80tps", low, high, reason)])
    sentence = answer_sentence(summary["answers"][0], summary)
    assert sentence.mark == mark
    if text is not None:
        assert sentence.text == text
    assert str(low or high or "no answer") in sentence.text


def test_an_incomplete_run_says_so() -> None:
    events, _ = search_journal(levels=(4, 8))
    summary = summarise_run(manifest(["80tps"]), events[:-1])
    text = _screen(summary)
    assert "the run is not complete" in text
    assert "8 agents (probe 2) has no end" in text
    assert "at least 4 agents at 80tps" in text


def test_an_invalid_level_gives_cause_and_remedy() -> None:
    reason = "event loop lag p99 80.0 ms > 5 ms"
    events = probe_events(
        1, 4, probe_records(1, 4, 150), ["80tps"], health=health("invalid", reason), warnings=[f"client: {reason}"]
    )
    report = make_report(summarise_run(manifest(["80tps"]), events))
    assert report.rows[0][1].text == "! invalid"
    assert report.rows[0][-1].text == "invalid"
    assert any(reason in w for w in report.warnings)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160])
def test_a_narrow_screen_drops_whole_columns_and_cuts_no_figure(width: int) -> None:
    summary = _summary()
    report = make_report(summary)
    keep = fitting(report, width)
    text = _screen(summary, width, terminal=True)
    assert {0, 1, 2} <= set(keep)
    if width >= 60:
        assert "…" not in text
        for row in report.rows:
            assert all(row[i].text in text for i in keep)
    if len(keep) < len(report.columns):
        assert f"{len(report.columns) - len(keep)} columns do not fit" in text


def test_without_a_screen_nothing_is_dropped() -> None:
    text = _screen(_summary(), 40)
    assert "do not fit" not in text
    assert "requests = ok + failed + cut" in text


def test_names_cannot_break_the_markdown() -> None:
    summary = _summary()
    summary["model"] = "a|b*c_<script>"
    assert "a\\|b\\*c\\_\\<script>" in to_markdown(make_report(summary))
