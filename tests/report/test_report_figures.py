"""Figures show the figures of the summary: read back from the axes and from the SVG."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
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

from agentperf.report.figures import save, scaling_figure, throughput_figure
from agentperf.report.points import curve_points, spread, tick_levels
from agentperf.store.summary import summarise_run

SVG = "{http://www.w3.org/2000/svg}"


def _summary(levels: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 24, 20), *, simulated: bool = False) -> dict[str, Any]:
    events, _ = search_journal(levels=levels)
    return summarise_run(manifest(["80tps"], simulated=simulated), [*events, finished([answer("80tps", 16, 20)])])


def _line(axes: Axes, gid: str) -> dict[float, float]:
    (line,) = [ln for ln in axes.lines if ln.get_gid() == gid]
    return dict(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))


def _texts(figure: Figure) -> str:
    return "\n".join([t.get_text() for t in figure.texts] + [t.get_text() for a in figure.axes for t in a.texts])


def test_the_scaling_curve_is_the_summary() -> None:
    summary = _summary()
    speed, ttft = scaling_figure(curve_points(summary)).axes
    rows = summary["levels"]
    for gid, column, axes in (
        ("p10", "speed_p10", speed),
        ("p25", "speed_p25", speed),
        ("p50", "speed_p50", speed),
        ("ttft_p50", "ttft_p50", ttft),
        ("ttft_p95", "ttft_p95", ttft),
    ):
        assert _line(axes, gid) == {float(r["level"]): r[column] for r in rows}
        assert list(_line(axes, gid)) == sorted(_line(axes, gid))
    for row in rows:
        assert _line(speed, f"mark-{row['probe']}") == {row["level"]: row["speed_p25"]}
    (limit,) = [ln for ln in speed.lines if ln.get_gid() == "speed-limit-p25"]
    assert set(limit.get_ydata()) == {80.0}
    (limit,) = [ln for ln in ttft.lines if ln.get_gid() == "ttft-limit-p95"]
    assert set(limit.get_ydata()) == {5.0}
    (span,) = [p for p in speed.patches if p.get_gid() == "bracket"]
    assert (span.get_x(), span.get_x() + span.get_width()) == (16, 20)
    low, high = speed.get_ylim()
    assert low == 0 < max(r["speed_p50"] for r in rows) < high


def test_marks_tell_the_verdicts_apart_by_shape() -> None:
    events: list[dict[str, Any]] = []
    for probe, (level, speed, n) in enumerate([(1, 150, 200), (2, 60, 200), (4, 80, 25)], 1):
        events += probe_events(probe, level, probe_records(probe, level, speed, n=n), ["80tps"])
    events += probe_events(4, 8, probe_records(4, 8, 50), ["80tps"], health=health("invalid", "late"))
    summary = summarise_run(manifest(["80tps"]), events)
    assert [r["status"]["80tps"] for r in summary["levels"]] == ["pass", "fail", "inconclusive", "invalid"]
    figure = scaling_figure(curve_points(summary))
    speed = figure.axes[0]
    shapes = [ln.get_marker() for n in range(1, 5) for ln in speed.lines if ln.get_gid() == f"mark-{n}"]
    assert len(set(shapes)) == 4
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        "meets the SLO",
        "misses the SLO",
        "inconclusive",
        "invalid measurement",
    ]
    assert 8.0 not in _line(speed, "p25"), "a curve goes through no invalid level"


@pytest.mark.parametrize(("ttft", "far"), [(0.05, True), (2.0, False)])
def test_a_ttft_limit_far_above_is_named_and_does_not_flatten_the_curve(ttft: float, far: bool) -> None:
    events = probe_events(1, 4, probe_records(1, 4, 150, n=200, ttft=ttft), ["80tps"])
    figure = scaling_figure(curve_points(summarise_run(manifest(["80tps"]), events)))
    low, high = figure.axes[1].get_ylim()
    assert bool(high < 5.0) is far
    assert low < _line(figure.axes[1], "ttft_p95")[4.0] < high
    assert ("SLO: p95 ≤ 5 s, far above" in _texts(figure)) is far
    assert "SLO: p95 ≤ 5 s" in _texts(figure)


def test_throughput_against_speed_is_the_summary() -> None:
    summary = _summary()
    figure = throughput_figure(curve_points(summary))
    rows = sorted(summary["levels"], key=lambda r: r["level"])
    for axes, column in zip(figure.axes, ("output_tps", "total_tps"), strict=True):
        (line,) = [ln for ln in axes.lines if ln.get_gid() == f"line-{column}"]
        assert list(line.get_xdata()) == [r["speed_p25"] for r in rows]
        assert list(line.get_ydata()) == [r[column] for r in rows]
        labels = {t.get_text() for t in axes.texts if str(t.get_gid()).startswith("label-")}
        assert {"16", "20"} <= labels, "the ends of the bracket are always named"
        for text in axes.texts:
            if str(text.get_gid()).startswith("label-"):
                row = next(r for r in rows if str(r["level"]) == text.get_text())
                assert text.xy == (row["speed_p25"], row[column])


def test_a_repeated_level_is_drawn_once_for_each_probe() -> None:
    summary = _summary((4, 8, 8, 8))
    speed = scaling_figure(curve_points(summary)).axes[0]
    values = sorted(r["speed_p25"] for r in summary["levels"] if r["level"] == 8)
    assert _line(speed, "p25")[8.0] == values[1]
    marks = [ln for ln in speed.lines if str(ln.get_gid()).startswith("mark-")]
    assert sorted(float(m.get_ydata()[0]) for m in marks if m.get_xdata()[0] == 8) == values


def test_titles_and_the_simulated_label() -> None:
    for simulated in (True, False):
        curve = curve_points(_summary(simulated=simulated))
        for figure in (scaling_figure(curve), throughput_figure(curve)):
            assert ("SIMULATED" in _texts(figure)) is simulated
            assert ("(simulated)" in _texts(figure)) is simulated
            assert "glm-5.3 · trace set coding-v1 · n = 1,176 requests" in _texts(figure)
    assert "16 agents at 80tps" in _texts(scaling_figure(curve))
    assert "passes at 16, fails at 20" in _texts(scaling_figure(curve))


def test_a_ttft_among_failures_is_marked_and_not_drawn() -> None:
    good = probe_records(1, 4, 100, n=50)
    bad = [
        record(i, probe=2, phase="window", outcome="failed", error_class="timeout", speed_tps=None, ttft_s=None)
        for i in range(9)
    ]
    events = [
        *probe_events(1, 4, good, ["80tps"]),
        *probe_events(2, 8, [*probe_records(2, 8, 90, n=50), *bad], ["80tps"]),
    ]
    figure = scaling_figure(curve_points(summarise_run(manifest(["80tps"]), events)))
    ttft = figure.axes[1]
    assert list(_line(ttft, "ttft_p95")) == [4.0]
    assert [ln.get_gid() for ln in ttft.lines if str(ln.get_gid()).startswith("beyond-")] == ["beyond-2"]
    assert "among failed requests" in _texts(figure)


@pytest.mark.parametrize("levels", [(1,), (7,), (1, 1024), tuple(range(1, 40))])
def test_any_list_of_levels_can_be_drawn(levels: tuple[int, ...], tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for probe, level in enumerate(levels, 1):
        events += probe_events(probe, level, probe_records(probe, level, 150 / level, n=25), [])
    summary = summarise_run(manifest([]), events)
    for figure in (scaling_figure(curve_points(summary)), throughput_figure(curve_points(summary))):
        assert all(p.stat().st_size > 0 for p in save(figure, tmp_path / "any"))


def test_nothing_measured_can_be_drawn(tmp_path: Path) -> None:
    rows = [
        record(
            i,
            phase="window",
            outcome="failed",
            error_class="x",
            speed_tps=None,
            ttft_s=None,
            output_tokens=None,
            first_visible_ns=None,
        )
        for i in range(30)
    ]
    summary = summarise_run(manifest(["80tps"]), probe_events(1, 4, rows, ["80tps"]))
    for figure in (scaling_figure(curve_points(summary)), throughput_figure(curve_points(summary))):
        save(figure, tmp_path / "none")


def test_svg_is_the_same_each_time_and_keeps_its_text(tmp_path: Path) -> None:
    summary = _summary(simulated=True)
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        files.append(save(scaling_figure(curve_points(summary)), tmp_path / name / "scaling"))
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()
    png, svg = files[0]
    assert imread(png).shape[:2] == (1088, 1536)
    text = svg.read_text()
    assert not re.search(r"20\d\d-\d\d-\d\dT", text), "no date"
    root = ET.fromstring(text)
    shown = {"".join(e.itertext()).strip() for e in root.iter(f"{SVG}text")}
    assert {"16 agents at 80tps", "SIMULATED", "concurrent agents"} <= shown


def test_the_svg_holds_the_points_of_the_summary(tmp_path: Path) -> None:
    summary = _summary()
    figure = scaling_figure(curve_points(summary))
    root = ET.fromstring(save(figure, tmp_path / "scaling")[1].read_text())
    speed = figure.axes[0]
    height = figure.get_figheight() * 72
    (group,) = [g for g in root.iter(f"{SVG}g") if g.get("id") == "p25"]
    path = next(group.iter(f"{SVG}path")).get("d", "")
    drawn = [(float(x), height - float(y)) for x, y in re.findall(r"[ML] ([\d.-]+) ([\d.-]+)", path)]
    scale = 72 / figure.dpi
    inverse = speed.transData.inverted()
    rows = sorted(summary["levels"], key=lambda r: r["level"])
    assert len(drawn) == len(rows)
    for (x, y), row in zip(drawn, rows, strict=True):
        level, value = inverse.transform((x / scale, y / scale))
        assert (level, value) == (pytest.approx(row["level"], rel=1e-4), pytest.approx(row["speed_p25"], rel=1e-4))


def test_drawing_changes_nothing_global(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    save(scaling_figure(curve_points(_summary())), tmp_path / "x")
    assert dict(mpl.rcParams) == before


def test_tick_labels_keep_their_distance() -> None:
    assert tick_levels([1, 2, 4, 8, 16, 32], ()) == [1, 2, 4, 8, 16, 32]
    shown = tick_levels(list(range(1, 129)), (100, 101))
    assert {1, 2, 4, 8, 16, 32, 64, 100} <= set(shown)
    assert 101 not in shown
    assert tick_levels([], ()) == []


@given(st.lists(st.floats(-100, 100), max_size=6), st.floats(0.1, 20))
def test_labels_are_pushed_apart_and_keep_their_order(wanted: list[float], gap: float) -> None:
    placed = spread(wanted, gap)
    assert len(placed) == len(wanted)
    ordered = sorted(placed)
    assert all(b - a >= gap - 1e-6 for a, b in pairwise(ordered))
    pairs = sorted(zip(wanted, placed, strict=True))
    assert [p for _, p in pairs] == sorted(p for _, p in pairs)
    assert sum(placed) == pytest.approx(sum(wanted), abs=1e-6)
