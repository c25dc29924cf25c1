"""`agentperf report` on complete, partial and growing run directories."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from run_journals import answer, finished, manifest, search_journal
from typer.testing import CliRunner

from agentperf.cli.report import report
from agentperf.report.write import write_report
from agentperf.store.rundir import RunWriter, read_run


@pytest.fixture
def command() -> typer.Typer:
    app = typer.Typer()
    app.command("report")(report)
    return app


def _start(
    directory: Path, slos: list[str], *, levels: tuple[int, ...] = (4, 8, 16, 32), simulated: bool = False
) -> Any:
    writer = RunWriter.create(directory)
    writer.write_manifest(manifest(slos, simulated=simulated))
    events, records = search_journal(slos, levels)
    writer.add(records)
    return writer, events


def test_a_complete_run(tmp_path: Path) -> None:
    writer, events = _start(tmp_path / "run", ["80tps"], simulated=True)
    for event in [*events, finished([answer("80tps", 16, 32)])]:
        writer.journal(event)
    writer.finish()
    written = write_report(tmp_path / "run")
    assert [p.name for p in written] == ["report.md", "scaling.png", "scaling.svg", "throughput.png", "throughput.svg"]
    text = written[0].read_text()
    assert text.startswith("# demo\n\n**✓ 16 agents at 80tps (simulated)** (passes at 16, fails at 32)")
    assert "](scaling.svg)" in text
    assert "](throughput.svg)" in text
    assert "| workload fingerprint | 0123456789abcdef |" in text
    before = {p.name: p.read_bytes() for p in written}
    assert {p.name: p.read_bytes() for p in write_report(tmp_path / "run")} == before, "the same run, the same report"


def test_a_growing_run_is_reported_at_every_line(tmp_path: Path) -> None:
    writer, events = _start(tmp_path / "run", ["80tps"], levels=(4, 32))
    for event in events:
        writer.journal(event)
        (text,) = [p.read_text() for p in write_report(tmp_path / "run", tmp_path / "out", figures=False)]
        assert "the run is not complete" in text
    assert "16" not in text.partition("\n\n")[2].partition("\n")[0]
    assert "4 agents at 80tps: not settled" in text
    assert not (tmp_path / "run" / "report.md").exists()


def test_several_slos_get_a_curve_each(tmp_path: Path) -> None:
    writer, events = _start(tmp_path / "run", ["80tps", "p25 speed >= 20"])
    for event in events:
        writer.journal(event)
    names = [p.name for p in write_report(tmp_path / "run")]
    assert "scaling-1-80tps.svg" in names
    assert "scaling-2-p25-speed-20.svg" in names


def test_the_command(tmp_path: Path, command: typer.Typer) -> None:
    writer, events = _start(tmp_path / "run", ["80tps"])
    for event in events:
        writer.journal(event)
    runner = CliRunner()
    shown = runner.invoke(command, [str(tmp_path / "run"), "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == json.loads(json.dumps(read_run(tmp_path / "run").summarised()))
    assert not (tmp_path / "run" / "report.md").exists()
    shown = runner.invoke(command, [str(tmp_path / "run"), "--no-figures"])
    assert shown.exit_code == 0
    assert "16 agents at 80tps" in shown.stdout
    assert (tmp_path / "run" / "report.md").exists()
    assert not (tmp_path / "run" / "scaling.svg").exists()
    runner.invoke(command, [str(tmp_path / "run"), "--out", str(tmp_path / "o")], catch_exceptions=False)
    assert (tmp_path / "o" / "scaling.svg").exists()


def test_nothing_yet(tmp_path: Path, command: typer.Typer) -> None:
    RunWriter.create(tmp_path / "run")
    shown = CliRunner().invoke(command, [str(tmp_path / "run")], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "the run is not complete" in shown.stdout


def test_damage_in_the_journal_is_said(tmp_path: Path) -> None:
    writer, events = _start(tmp_path / "run", ["80tps"])
    for event in events:
        writer.journal(event)
    path = tmp_path / "run" / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], b"\x00\x00\n", *lines[1:]]))
    text = write_report(tmp_path / "run", figures=False)[0].read_text()
    assert "unreadable lines of the journal, left out: 1" in text
