"""Facts of real recordings, where those are at hand: AGENTPERF_SAMPLES, or ../shared/samples beside the repository."""

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentperf.trace.importers import claude_code, detect_format, weka
from agentperf.trace.importers.result import ImportResult
from agentperf.trace.io import load, write
from agentperf.trace.model import Append, Full, SessionTrace, Shape
from agentperf.trace.stats import describe
from agentperf.trace.validate import validate

SAMPLES = Path(os.environ.get("AGENTPERF_SAMPLES") or Path(__file__).parents[4] / "shared" / "samples")
MAIN = "8463c716-a2ea-4c14-9efa-87158ebd9f20"
CHILD = f"{MAIN}/a7be2f0"

pytestmark = pytest.mark.skipif(not (SAMPLES / "claude-code").is_dir(), reason="no real recordings here")


@pytest.fixture(scope="module")
def claude() -> ImportResult:
    return claude_code.read([SAMPLES / "claude-code"])


@pytest.fixture(scope="module")
def sessions(claude: ImportResult) -> dict[str, SessionTrace]:
    return {s.session.session_id: s for s in claude.trace_set.sessions}


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLES / "claude-code" / name).read_text().splitlines()]


def test_every_round_of_the_files_is_imported(claude: ImportResult, sessions: dict[str, SessionTrace]) -> None:
    files = [p.relative_to(SAMPLES / "claude-code").as_posix() for p in (SAMPLES / "claude-code").rglob("*.jsonl")]
    ids = {r["message"]["id"] for f in files for r in rows(f) if r["type"] == "assistant"}
    assert claude.report.requests == claude.report.requests_seen == len(ids) == 174
    assert claude.report.left_out == {}
    assert {n: len(s.requests) for n, s in sessions.items() if n.startswith(MAIN)} == {MAIN: 144, CHILD: 13}


def test_the_files_are_as_untidy_as_the_importer_must_bear() -> None:
    lines = rows(f"{MAIN}.jsonl")
    stamps = [r["timestamp"] for r in lines if "timestamp" in r]
    assert sum(a > b for a, b in pairwise(stamps)) == 171
    assert all(r["message"]["stop_reason"] is None for r in lines if r["type"] == "assistant")


def test_prompts_are_those_of_the_provider(sessions: dict[str, SessionTrace]) -> None:
    prompts: dict[str, int] = {}
    for r in rows(f"{MAIN}.jsonl"):
        if r["type"] == "assistant":
            u = r["message"]["usage"]
            parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
            prompts[r["message"]["id"]] = sum(u[p] for p in parts)
    found = {r.source_ref["message_id"]: r.input_tokens for r in sessions[MAIN].requests if r.source_ref}
    assert {k: v for k, v in found.items() if k in prompts} == prompts
    assert len(found) == len(prompts) + 1  # the summarising call is in a file of its own


def test_placeholders_of_a_subagent_are_replaced(sessions: dict[str, SessionTrace]) -> None:
    child = sessions[CHILD].requests
    assert sum(r.extra["x_reported_output_tokens"] for r in child[:-1]) == 32  # what its own file says
    assert {r.output_tokens_source for r in child[:-1]} == {"estimated"}
    assert sum(r.output_tokens for r in child[:-1]) == pytest.approx(1_690, rel=0.02)
    # the last count comes from the parent's tool result; its file says 1 for an answer of 4.5k characters
    assert (child[-1].output_tokens, child[-1].output_tokens_source) == (1_545, "provider")


def test_how_many_outputs_of_a_main_session_are_placeholders(sessions: dict[str, SessionTrace]) -> None:
    requests = sessions[MAIN].requests
    estimated = [r for r in requests if r.output_tokens_source == "estimated"]
    assert len(estimated) == 35  # 21 by text alone, more once thinking and the frame of a tool call are counted
    assert all(r.output_tokens > 2 * r.extra["x_reported_output_tokens"] for r in estimated)
    reported = sum(r.output_tokens for r in requests if r.output_tokens_source == "provider")
    assert reported == 39_790  # of 40,320 with placeholders


def test_the_cache_law_holds_but_for_the_compaction(sessions: dict[str, SessionTrace]) -> None:
    line = [r for r in sessions[MAIN].requests if r.trigger != "compaction"]
    recorded = [r.recorded for r in line if r.recorded]
    pairs = list(pairwise(recorded))
    holds = [b.cached_tokens == (a.cached_tokens or 0) + (a.cache_write_tokens or 0) for a, b in pairs]
    assert (sum(holds), len(holds)) == (141, 142)
    [broken] = [r for r in line if r.prefix_event]
    assert broken.index == 72
    event = broken.prefix_event
    assert event is not None
    assert (event.type, event.kept_tokens) == ("compaction", 21_445)


def test_compaction(sessions: dict[str, SessionTrace]) -> None:
    summary, after = sessions[MAIN].requests[71:73]
    assert (summary.trigger, summary.input_tokens) == ("compaction", 169_910)
    assert summary.output_tokens == pytest.approx(3_521, rel=0.02)  # 11,619 characters
    assert isinstance(summary.input, Append)
    assert isinstance(after.input, Full)
    assert after.input_tokens == 42_603
    assert summary.recorded is not None
    assert summary.recorded.duration_ms == 69_709


def test_tools_start_before_the_answer_ends_and_waits_are_not_sums(sessions: dict[str, SessionTrace]) -> None:
    several = [r for r in sessions[MAIN].requests if len(r.tools_before) > 1]
    early = [r for r in several if min(t.end_ms or 0 for t in r.tools_before) < 0]
    assert (len(several), len(early)) == (26, 15)
    for r in sessions[MAIN].requests:
        if r.tools_before and r.delay_parts:
            assert r.delay_parts.tool_ms <= max(0, *(t.end_ms or 0 for t in r.tools_before)) + 1e-6


def test_questions_to_the_user_are_human_time(sessions: dict[str, SessionTrace]) -> None:
    asked = [r for s in sessions.values() for r in s.requests if any(t.waits_on_human for t in r.tools_before)]
    waits = {t.name: r.delay_parts.human_ms for r in asked for t in r.tools_before if r.delay_parts}
    assert waits["AskUserQuestion"] == 135_304
    assert waits["ExitPlanMode"] >= 100_000


def test_a_subagent_starts_at_its_call_and_is_joined(sessions: dict[str, SessionTrace]) -> None:
    child = sessions[CHILD]
    assert child.session.spawn is not None
    spawner = child.session.spawn.by_request_id
    assert 0 <= child.requests[0].delay_ms < 100
    [after] = [r for r in sessions[MAIN].requests if r.depends_on]
    assert [(d.request_id, d.type) for d in after.depends_on or ()] == [(spawner, "turn"), (f"{CHILD}:12", "join")]
    assert after.delay_ms == 134
    assert child.session.model["name"].startswith("claude-haiku")
    assert child.requests[0].prefix_tokens_ideal == 0


def test_what_is_not_in_the_files_is_said(claude: ImportResult, sessions: dict[str, SessionTrace]) -> None:
    assert claude.report.noted["subagents whose file is missing"] == 1
    assert claude.report.warnings == [
        "subagent.jsonl:36: no file of subagent afb92ff; its time stays the time of the tool call"
    ]
    for session in sessions.values():
        if session.session.product == "claude-code":
            assert 20_000 < (session.session.system_tokens or 0) < 26_000


def test_the_set_is_valid_and_can_be_described(claude: ImportResult, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl.zst"
    write(claude.trace_set, path)
    assert validate(path) == []
    stats = describe(load(path))
    assert stats.ideal_prefix_hit == pytest.approx(0.97, abs=0.02)
    assert stats.turns_main.max == 144


def test_formats_are_told_apart() -> None:
    assert detect_format([SAMPLES / "claude-code"]) == "claude-code"
    assert detect_format([SAMPLES / "weka"]) == "weka"
    for other in ("codex", "mooncake", "aa-local", "tracelab", "swe-agent", "openhands", "atif", "opencode"):
        for file in sorted((SAMPLES / other).rglob("*.json*")):
            assert not claude_code.detect(file), file
            assert not weka.detect(file), file


# -- weka ------------------------------------------------------------------------------------------------------------


def test_weka_sizes_are_those_of_the_files(tmp_path: Path) -> None:
    result = weka.read([SAMPLES / "weka"])
    assert result.report.requests == result.report.requests_seen == 19
    for session in result.trace_set.sessions:
        document = json.loads((SAMPLES / "weka" / f"{session.session.session_id}.json").read_text())
        totals = document["totals"]["combined_tokens"]
        assert sum(r.input_tokens for r in session.requests) == totals["input"]
        assert sum(r.output_tokens for r in session.requests) == totals["output"]
        assert [r.delay_ms for r in session.requests] == [1000 * r["think_time"] for r in document["requests"]]
        hashes: list[Any] = []
        for request, row in zip(session.requests, document["requests"], strict=True):
            given = request.input
            assert isinstance(given, Shape)
            hashes = hashes[: given.keep_blocks or 0] + given.block_hashes
            assert hashes == row["hash_ids"]
            assert given.tail_tokens == row["in"] % 64
            assert request.prefix_event is None
    path = tmp_path / "set.jsonl"
    write(result.trace_set, path)
    assert validate(path) == []


def test_weka_segments_add_up_to_each_prompt() -> None:
    for session in weka.read([SAMPLES / "weka"]).trace_set.sessions:
        prompt: list[int] = []
        for request in session.requests:
            given = request.input
            assert isinstance(given, Shape)
            prompt = prompt[: given.keep_segments or 0] + [s.tokens for s in given.segments]
            assert sum(prompt) == request.input_tokens
