import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agentperf.cli import traces
from agentperf.errors import TraceError, UsageError
from agentperf.trace import importers, io
from agentperf.trace.model import Append, Header, Request, Session, SessionTrace, Tool, TraceSet


def small_set(n: int = 2) -> TraceSet:
    requests = [
        Request(
            request_id=f"s-{i}",
            session_id="s",
            index=i,
            input=Append(messages=[{"role": "user", "content": "hi"}]),
            input_tokens=1000 + 500 * i,
            input_tokens_source="provider",
            output_tokens=20,
            output_tokens_source="provider",
            delay_ms=1500.0 * i,
            delay_source="measured",
            tools_before=[Tool(call_id="a", name="read_file", duration_ms=1500.0)] if i else [],
        )
        for i in range(n)
    ]
    session = Session(session_id="s", root_session_id="s", language="python")
    header = Header(trace_set_id="demo", license="CC0-1.0", description="two [turns]")
    return TraceSet(header=header, blobs={}, sessions=[SessionTrace(session=session, requests=requests)])


def run(*words: object, fails: type[Exception] | None = None) -> Result:
    result = CliRunner().invoke(traces.app, [str(w) for w in words])
    if fails:
        assert isinstance(result.exception, fails), result.output
    elif result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.jsonl.zst"
    io.write(small_set(), path)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.jsonl"
    io.write(small_set(), path)
    path.write_text(path.read_text().replace('"delay_ms":1500.0', '"delay_ms":-1.0,"more":2'))
    return path


def test_show_says_what_a_user_wants_to_know(good: Path) -> None:
    result = run("show", good)
    assert result.exit_code == 0
    for part in (
        "demo",
        "two [turns]",
        "CC0-1.0",
        "not marked as redistributable",
        "1 in 1 tree, 0 subagents",
        "python 1",
    ):
        assert part in result.output
    lines = {line[:13].strip(): line.split() for line in result.output.splitlines()}
    # input tokens 1000 and 1500: n, mean, p10, p50, p90, p95, p99, max
    assert lines["input tok"][2:] == ["2", "1,250", "1,050", "1,250", "1,450", "1,475", "1,495", "1,500"]
    assert lines["tool wait s"][3:5] == ["1", "1.5"]
    assert "40.0% of prompt tokens with an unbounded cache (derived)" in result.output  # 1,000 of 2,500
    assert any(line.split() == ["read_file", "1", "100.0%", "0.0%", "1.5"] for line in result.output.splitlines())


def test_show_as_json_is_the_statistics(good: Path) -> None:
    figures = json.loads(run("show", good, "--json").output)
    assert figures["requests"] == 2
    assert figures["input_tokens"]["p50"] == 1250.0
    assert figures["digest"] == io.load(good).digest
    assert figures["tools"][0]["name"] == "read_file"


def test_show_of_a_broken_file_is_one_error(bad: Path, tmp_path: Path) -> None:
    bad.write_text("what\n")
    run("show", bad, fails=TraceError)
    run("show", tmp_path / "none", fails=TraceError)


def test_validate_prints_one_line_a_problem_and_exits_2(bad: Path, good: Path) -> None:
    result = run("validate", bad)
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        f"{bad}:4: more: warning: unknown field; kept, but name it x_... to say that it is an addition",
        f"{bad}:4: delay_ms: -1.0 is negative",
    ]
    assert f"{bad}: 1 error, 1 warning" in result.stderr
    assert run("validate", good).exit_code == 0
    assert run("validate", good).stdout == ""


def test_warnings_alone_do_not_fail(bad: Path) -> None:
    bad.write_text(bad.read_text().replace("-1.0", "1.0"))
    assert run("validate", bad).exit_code == 0


def test_validate_as_json(bad: Path) -> None:
    result = run("validate", bad, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 2
    assert (found["errors"], found["warnings"]) == (1, 1)
    assert found["problems"][1] == {
        "file": str(bad),
        "line": 4,
        "field": "delay_ms",
        "message": "-1.0 is negative",
        "severity": "error",
    }


def fake(monkeypatch: pytest.MonkeyPatch, name: str, detects: bool, made: list[Any]) -> None:
    """A format that is not there, to test what the command does with any format."""
    told = {"sessions": 1, "estimated": {"output tokens from text": 1234}, "left_out": [{"reason": "no timestamp"}]}
    module: Any = ModuleType(f"fake_{name}")

    class Result:
        trace_set = small_set()
        report = told

    def read(paths: list[Path], options: Any) -> Result:
        made.append((name, paths))
        return Result()

    module.read, module.detect = read, lambda path: detects
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(
        importers, "FORMATS", {**getattr(importers, "FORMATS", {}), name: module.__name__}, raising=False
    )


def test_import_reports_and_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Any] = []
    monkeypatch.setattr(importers, "FORMATS", {}, raising=False)
    fake(monkeypatch, "one", False, made)
    fake(monkeypatch, "two", True, made)
    source, out = tmp_path / "log.json", tmp_path / "out.jsonl.gz"
    source.write_text("{}")
    result = run("import", source, "-o", out)
    assert made == [("two", [source])]
    assert "output tokens from text" in result.output
    assert "1,234" in result.output
    assert "no timestamp" in result.output
    assert f"wrote {out}: 1 session, 2 requests, 2,500 prompt tokens" in result.output
    assert len(io.load(out).sessions) == 1
    told = json.loads(run("import", source, "-o", out, "--format", "one", "--json").output)
    assert made[-1][0] == "one"
    assert told["report"]["estimated"] == {"output tokens from text": 1234}
    assert told["counts"]["requests"] == 2
    assert told["digest"] == io.load(out).digest


def test_import_says_why_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Any] = []
    monkeypatch.setattr(importers, "FORMATS", {}, raising=False)
    fake(monkeypatch, "one", True, made)
    source, out = tmp_path / "log.json", tmp_path / "out.jsonl"
    run("import", source, "-o", out, fails=UsageError)  # no such file
    source.write_text("{}")
    assert "no such format" in str(run("import", source, "-o", out, "--format", "x", fails=UsageError).exception)
    fake(monkeypatch, "two", True, made)
    assert "could be any of one, two" in str(run("import", source, "-o", out, fails=UsageError).exception)
    fake(monkeypatch, "one", False, made)
    fake(monkeypatch, "two", False, made)
    assert "no known format" in str(run("import", source, "-o", out, fails=UsageError).exception)
    assert made == []
    assert not out.exists()


def test_synth_needs_one_name(tmp_path: Path) -> None:
    pytest.importorskip("agentperf.trace.synth")
    run("synth", "-o", tmp_path / "a.jsonl", fails=UsageError)
    run("synth", "smoke", "--profile", "smoke", "-o", tmp_path / "a.jsonl", fails=UsageError)


def test_synth_makes_the_same_bytes_again(tmp_path: Path) -> None:
    pytest.importorskip("agentperf.trace.synth")
    for name in ("a", "b"):
        result = run("synth", "smoke", "--seed", 3, "-o", tmp_path / f"{name}.jsonl.zst", "--json")
        assert json.loads(result.output)["counts"]["sessions"] > 0
    assert (tmp_path / "a.jsonl.zst").read_bytes() == (tmp_path / "b.jsonl.zst").read_bytes()
    assert run("validate", tmp_path / "a.jsonl.zst").exit_code == 0


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom agentperf.cli.traces import app\n"
        "assert 'validate' in CliRunner().invoke(app, ['--help']).output\n"
        "print([m for m in ('pyarrow', 'numpy', 'pandas', 'msgspec', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
