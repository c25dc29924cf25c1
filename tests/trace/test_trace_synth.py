"""Every figure that traces/README.md states of the bundled sets, compared with the sets."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agentperf.errors import UsageError
from agentperf.paths import data_dir
from agentperf.trace import io
from agentperf.trace.model import Shape, TraceSet
from agentperf.trace.stats import TraceStats, describe
from agentperf.trace.synth import PROFILES, make
from agentperf.trace.synth_tools import LANGUAGE_WEIGHTS
from agentperf.trace.validate import validate


@pytest.fixture(scope="module")
def coding() -> TraceSet:
    return io.load("coding-v1")


@pytest.fixture(scope="module")
def stats(coding: TraceSet) -> TraceStats:
    return describe(coding)


def lines(path: Path) -> bytes:
    return b"\n".join(line for _, line, _ in io.iter_lines(path))


@pytest.mark.parametrize("name", PROFILES)
def test_the_bundled_files_are_what_the_recipe_makes(name: str, tmp_path: Path) -> None:
    """Compared as text: compressed bytes may differ between versions of the compression library."""
    made = io.write(make(name), tmp_path / f"{name}.jsonl")
    assert lines(tmp_path / f"{name}.jsonl") == lines(data_dir("traces") / f"{name}.jsonl.zst")
    assert made.digest == io.load(name).digest


def test_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    code = "from agentperf.trace.synth import make\nprint(make('smoke', 5).digest, make('coding-v1', 5).digest)"
    told = [
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": s}
        )
        for s in ("1", "2")
    ]
    assert told[0].stdout == told[1].stdout
    assert make("smoke", 5).digest == told[0].stdout.split()[0]
    assert make("smoke", 6).digest != make("smoke", 5).digest


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("seed", [None, 1, 99])
def test_valid(name: str, seed: int | None, tmp_path: Path) -> None:
    path = data_dir("traces") / f"{name}.jsonl.zst"
    if seed is not None:
        path = tmp_path / "made.jsonl"
        io.write(make(name, seed), path)
    assert validate(path) == []


def test_files_are_small() -> None:
    assert (data_dir("traces") / "coding-v1.jsonl.zst").stat().st_size < 3e6
    assert (data_dir("traces") / "smoke.jsonl.zst").stat().st_size < 30e3


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match="coding-v1, smoke"):
        make("coding-v9")


# -- coding-v1 against the published workload ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_published_figures(seed: int) -> None:
    """By construction, so for any seed."""
    made = describe(make("coding-v1", seed))
    assert made.trees >= 100
    assert made.input_tokens.mean == pytest.approx(27_000, rel=0.03)
    assert 5000 <= made.input_tokens.min < 5500
    assert 120_000 < made.input_tokens.max <= 131_072
    assert made.output_tokens.p50 == pytest.approx(150, rel=0.1)
    assert made.output_tokens.p95 == pytest.approx(2000, rel=0.1)
    assert made.turns_main.mean == pytest.approx(38, rel=0.06)
    assert made.turns.mean == pytest.approx(38, rel=0.1)
    assert made.turns.max == 200
    assert made.tool_wait_ms.min >= 100
    assert made.tool_wait_ms.max <= 5000
    assert made.tool_wait_ms.p50 == pytest.approx(1000, rel=0.1)
    assert 100 <= made.human_wait_ms.min <= made.human_wait_ms.max <= 5000
    assert len(made.languages) >= 12
    assert list(made.languages)[:3] == ["python", "typescript", "go"]
    assert 0.12 <= made.parallel_share <= 0.17
    assert (
        0.03
        <= len({s.session.root_session_id for s in make("coding-v1", seed).sessions if s.session.spawn}) / made.trees
        <= 0.1
    )
    assert 0.94 <= made.ideal_prefix_hit <= 0.98


def test_shape_licence_and_seed(coding: TraceSet) -> None:
    header = coding.header
    assert (header.content, header.license, header.redistributable, header.seed) == ("shape", "CC0-1.0", True, 0)
    assert all(isinstance(r.input, Shape) for s in coding.sessions for r in s.requests)
    assert all(s.session.seed is not None for s in coding.sessions)
    assert len({s.session.seed for s in coding.sessions}) == len(coding.sessions)


def test_waits_depend_on_the_tool(coding: TraceSet) -> None:
    by_class: dict[str, list[float]] = {}
    for item in coding.sessions:
        for request in item.requests:
            if len(request.tools_before) == 1 and request.tools_before[0].duration_ms is not None:
                tool = request.tools_before[0]
                by_class.setdefault(str(tool.tool_class), []).append(tool.duration_ms)
                assert request.delay_ms == tool.duration_ms
    medians = {k: float(np.median(v)) for k, v in by_class.items()}
    assert medians["todo"] < medians["read"] < medians["edit"] < medians["bash"] < medians["test"]
    assert medians["read"] < 700
    assert medians["test"] > 2500


def test_parallel_calls_overlap_and_the_longest_is_the_wait(coding: TraceSet) -> None:
    several = [
        r for s in coding.sessions for r in s.requests if len(r.tools_before) > 1 and r.tools_before[0].duration_ms
    ]
    assert len(several) > 300
    for request in several:
        durations = [t.duration_ms for t in request.tools_before]
        assert max(d for d in durations if d) == request.delay_ms
        assert sum(d for d in durations if d) > request.delay_ms


def test_failed_edits_are_retried_and_changes_tested(coding: TraceSet) -> None:
    failed = retried = edits = tested = 0
    for item in coding.sessions:
        classes = [[t.tool_class for t in r.tools_before] for r in item.requests]
        for at, request in enumerate(item.requests):
            if any(t.is_error for t in request.tools_before):
                failed += 1
                assert [t.tool_class for t in request.tools_before if t.is_error] == ["edit"]
                retried += any("edit" in c for c in classes[at + 1 : at + 3])
            elif "edit" in classes[at] or "write" in classes[at]:
                edits += 1
                tested += at + 1 < len(classes) and "test" in classes[at + 1]
    assert 0.05 < failed / edits < 0.15
    assert retried >= 0.95 * failed  # the session may end at the failure
    assert tested / edits > 0.4


def test_one_system_prompt_and_schema_a_product(coding: TraceSet) -> None:
    starts: dict[str, set[tuple[str, int, int]]] = {}
    for item in coding.sessions:
        s = item.session
        starts.setdefault(str(s.product), set()).add((str(s.tools_ref), s.system_tokens or 0, s.tools_tokens or 0))
    assert len(starts) == 6  # three products, each with its helper
    assert all(len(v) == 1 for v in starts.values())
    assert len({next(iter(v))[0] for v in starts.values()}) == 6
    for ref, tools in coding.blobs.items():
        assert ref.startswith("sha256:")
        for tool in tools:
            function = tool["function"]
            assert tool["type"] == "function"
            assert set(function["parameters"]["required"]) <= function["parameters"]["properties"].keys()
            assert len(function["description"]) > 40
    assert {len(t) for t in coding.blobs.values()} == {6, 10}


def test_prompts_add_up(coding: TraceSet) -> None:
    for item in [*coding.sessions, *io.load("smoke").sessions]:
        sizes: list[int] = []
        answer = 0
        for request in item.requests:
            given = request.input
            assert isinstance(given, Shape)
            assert (given.keep_segments or 0) == len(sizes)
            sizes += [s.tokens for s in given.segments]
            assert sum(sizes) == request.input_tokens
            if request.index:
                assert request.prefix_tokens_ideal == item.requests[request.index - 1].input_tokens
                assert given.segments[0].tokens == answer
                assert [t.call_id for t in request.tools_before] == (given.segments[0].calls or [])
                results = [s.tokens for s in given.segments[1:] if s.kind == "tool_result"]
                assert results == [t.result_tokens for t in request.tools_before]
                assert all(n >= 40 for n in results)
            answer = request.output_tokens - (request.reasoning_tokens or 0)
            assert answer >= 12


def test_users_speak_inside_sessions(coding: TraceSet) -> None:
    spoken = [r for s in coding.sessions for r in s.requests if r.index and r.trigger == "user"]
    assert 0.01 < len(spoken) / sum(len(s.requests) for s in coding.sessions) < 0.06
    for request in spoken:
        assert isinstance(request.input, Shape)
        assert [s.role for s in request.input.segments] == ["assistant", "user"]
        assert request.delay_parts is not None
        assert request.delay_parts.human_ms == request.delay_ms


@pytest.mark.parametrize("name", PROFILES)
def test_subagents_are_spawned_and_joined(name: str) -> None:
    made = io.load(name)
    requests = {r.request_id: r for s in made.sessions for r in s.requests}
    children = [s for s in made.sessions if s.session.parent_session_id]
    assert len(children) == sum(PROFILES[name].helpers)
    for child in children:
        spawn = child.session.spawn
        assert spawn is not None
        first, last = child.requests[0], child.requests[-1]
        assert first.trigger == "subagent"
        assert [(d.request_id, d.type) for d in first.depends_on or ()] == [(spawn.by_request_id, "spawn")]
        by = requests[spawn.by_request_id]
        after = requests[f"{by.session_id}-{by.index + 1}"]
        assert (last.request_id, "join") in [(d.request_id, d.type) for d in after.depends_on or ()]
        tool = next(t for t in after.tools_before if t.child_session_id == child.session.session_id)
        assert tool.call_id == spawn.tool_call_id
        assert tool.duration_ms is None  # its time is that of the subagent's turns


# -- smoke -----------------------------------------------------------------------------------------------------------


def test_smoke() -> None:
    made = describe(io.load("smoke"))
    assert (made.sessions, made.subagents) == (12, 1)
    assert 4 <= made.turns.min <= made.turns.max <= 8
    assert 1000 <= made.input_tokens.min <= made.input_tokens.max <= 8000
    assert made.output_tokens.p50 == pytest.approx(40, rel=0.1)
    assert 20 <= made.output_tokens.min <= made.output_tokens.max <= 80
    assert 50 <= made.tool_wait_ms.min <= made.tool_wait_ms.max <= 400
    assert len(made.languages) >= 4
    assert len({s.session.product for s in io.load("smoke").sessions if not s.session.parent_session_id}) == 1


def test_languages_are_those_that_filler_is_made_for(coding: TraceSet) -> None:
    assert {s.session.language for s in coding.sessions} == set(LANGUAGE_WEIGHTS)
