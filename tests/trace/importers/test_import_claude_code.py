"""Each trap of Claude Code's transcripts, with the value that is right."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from claude_files import Talk, stamp, text, think, use

from agentperf.errors import TraceError
from agentperf.trace.importers import ImportOptions, ImportResult, detect_format
from agentperf.trace.importers.claude_code import detect, read
from agentperf.trace.importers.claude_code_messages import image_size
from agentperf.trace.importers.claude_code_waits import covered
from agentperf.trace.io import load, write
from agentperf.trace.model import Append, DelayParts, Full, Request, Splice
from agentperf.trace.validate import validate


def imported(path: Path, **options: Any) -> ImportResult:
    result = read([path], ImportOptions(**options))
    report = result.report
    assert report.requests + sum(report.left_out.values()) == report.requests_seen
    out = path.parent / "out" / "set.jsonl"
    write(result.trace_set, out)
    assert validate(out) == []
    assert load(out).header.counts == result.trace_set.header.counts
    return result


def requests_of(talk: Talk, tmp_path: Path) -> list[Request]:
    return imported(talk.write(tmp_path / "s1.jsonl")).trace_set.sessions[0].requests


def test_one_answer_over_several_lines_with_a_tool_result_in_between(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "fix it")
    talk.answer(2, "m1", text("Looking."), out=8)
    talk.answer(3, "m1", use("a", command="ls"), out=8)
    talk.result(3.5, "a", "file.py")
    talk.answer(4, "m1", use("b", "Read", file_path="file.py"), out=120)
    talk.result(4.25, "b", "x = 1")
    talk.answer(6, "m2", text("Done."), prompt=(1, 60, 20_100), out=30)
    first, second = requests_of(talk, tmp_path)
    assert (first.input_tokens, first.output_tokens, first.output_tokens_source) == (20_103, 120, "provider")
    assert isinstance(second.input, Append)
    assistant, *results = second.input.messages
    assert assistant["content"] == "Looking."
    assert [c["id"] for c in assistant["tool_calls"]] == ["a", "b"]
    assert json.loads(assistant["tool_calls"][1]["function"]["arguments"]) == {"file_path": "file.py"}
    assert results == [
        {"role": "tool", "tool_call_id": "a", "content": "file.py"},
        {"role": "tool", "tool_call_id": "b", "content": "x = 1"},
    ]


def test_tools_that_start_while_the_answer_streams_begin_before_its_end(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(2, "m1", use("a", command="sleep 4"))
    talk.answer(3, "m1", use("b", command="sleep 1"))
    talk.result(4.5, "b")
    talk.result(6, "a", error=True)
    talk.answer(9, "m2", text("Done."), prompt=(1, 60, 20_100))
    second = requests_of(talk, tmp_path)[1]
    a, b = second.tools_before
    assert (a.start_ms, a.end_ms, a.duration_ms, a.is_error, a.tool_class) == (-1000, 3000, 4000, True, "shell")
    assert (b.start_ms, b.end_ms, b.duration_ms) == (0, 1500, 1500)
    assert second.delay_ms == 3000  # last result 6.0 - last line of the answer 3.0; spans are not added up
    assert second.delay_parts == DelayParts(tool_ms=3000)
    assert (second.delay_source, second.trigger) == ("measured", "tool")
    assert second.recorded is not None
    assert (second.recorded.duration_ms, second.recorded.start_ms) == (3000, 6000)


def test_results_that_are_all_there_before_the_answer_ends_leave_no_wait(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(2, "m1", use("a", "Read", file_path="a.py"))
    talk.result(2.1, "a")
    talk.answer(5, "m1", text("That was quick."))
    talk.answer(7, "m2", text("Done."), prompt=(1, 60, 20_100))
    second = requests_of(talk, tmp_path)[1]
    assert second.delay_ms == 0
    assert second.tools_before[0].end_ms == -2900


def test_lines_are_ordered_by_time_not_by_place(tmp_path: Path) -> None:
    talk = Talk()
    asked = talk.user(0, "go")
    one = talk.answer(2, "m1", use("a", command="ls"), parent=asked)
    done = talk.result(3, "a", "files", parent=one)
    talk.answer(5, "m2", text("Done."), prompt=(1, 60, 20_100), parent=done)
    talk.lines[1], talk.lines[2], talk.lines[3] = talk.lines[3], talk.lines[1], talk.lines[2]
    first, second = requests_of(talk, tmp_path)
    assert first.source_ref is not None
    assert first.source_ref["message_id"] == "m1"
    assert (second.delay_ms, second.prefix_event) == (1000, None)


def test_equal_stamps_keep_the_order_of_the_file(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", use("a", command="ls"))
    talk.result(1, "a", "files")
    talk.answer(1, "m2", text("Done."), prompt=(1, 60, 20_100))
    _, second = requests_of(talk, tmp_path)
    assert isinstance(second.input, Append)
    assert [m["role"] for m in second.input.messages] == ["assistant", "tool"]
    assert second.delay_ms == 0


@pytest.mark.parametrize("outputs", [(299, 10), (1, 299), (10, 299, 10)])
def test_output_is_the_largest_count_of_all_lines(outputs: tuple[int, ...], tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    for n, out in enumerate(outputs):
        talk.answer(1 + n, "m1", text("word"), out=out)
    assert requests_of(talk, tmp_path)[0].output_tokens == 299


def test_placeholder_counts_are_replaced_by_an_estimate_from_text_thinking_and_calls(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", think("t" * 330), out=8)
    talk.answer(2, "m1", text("w" * 660), out=8)
    talk.answer(3, "m1", use("a", command="c" * 316), out=8)  # 330 characters of JSON
    talk.result(4, "a")
    talk.answer(5, "m2", text("ok"), out=4, prompt=(1, 400, 20_100))
    result = imported(talk.write(tmp_path / "s1.jsonl"))
    first, second = result.trace_set.sessions[0].requests
    assert (first.output_tokens, first.output_tokens_source) == (100 + 200 + 100 + 40, "estimated")
    assert (first.reasoning_tokens, first.reasoning_policy) == (100, "stripped")
    assert first.extra == {"x_reported_output_tokens": 8}
    assert first.recorded is not None
    assert first.recorded.output_tokens is None
    assert (second.output_tokens, second.output_tokens_source, second.reasoning_policy) == (4, "provider", "none")
    assert sum(n for reason, n in result.report.estimated.items() if "placeholder" in reason) == 1


def test_a_final_count_is_believed_when_the_answer_has_a_stop_reason(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", text("w" * 660), out=90, stop="end_turn")  # 200 by the estimate: dense text, but possible
    first = requests_of(talk, tmp_path)[0]
    assert (first.output_tokens, first.output_tokens_source) == (90, "provider")
    assert first.recorded is not None
    assert first.recorded.finish_reason == "end_turn"
    assert first.output == {"text": "w" * 660}


def test_prompt_is_the_sum_of_three_disjoint_counts_and_all_are_kept(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "x" * 330)
    talk.answer(1, "m1", text("hi"), prompt=(7, 1_000, 9_000))
    result = imported(talk.write(tmp_path / "s1.jsonl"))
    session = result.trace_set.sessions[0]
    request = session.requests[0]
    assert request.input_tokens == 10_007
    assert request.recorded is not None
    r = request.recorded
    assert (r.uncached_tokens, r.cache_write_tokens, r.cached_tokens, r.model) == (7, 1_000, 9_000, "claude-x")
    # what is not in the file: the prompt less 100 tokens of text and 4 for the frame of the message
    assert (session.session.system_tokens, session.session.product) == (10_007 - 104, "claude-code")


def test_prefix_of_a_second_session_is_the_system_prompt_that_both_share(tmp_path: Path) -> None:
    for name, read_, start in (("s1", 9_000, 0), ("s2", 8_000, 100)):
        talk = Talk(name)
        talk.user(start, "x" * 330)
        talk.answer(start + 1, f"m-{name}", text("hi"), prompt=(7, 1_000, read_))
        talk.write(tmp_path / "p" / f"{name}.jsonl")
    one, two = imported(tmp_path / "p").trace_set.sessions
    assert one.requests[0].prefix_tokens_ideal == 0
    assert two.requests[0].prefix_tokens_ideal == two.session.system_tokens == 9_007 - 104


def test_prefix_of_an_append_is_the_prompt_before_it(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", text("What?"), prompt=(3, 100, 20_000))
    talk.user(30, "That.")
    talk.answer(33, "m2", text("Done."), prompt=(3, 60, 20_100))
    second = requests_of(talk, tmp_path)[1]
    assert (second.prefix_tokens_ideal, second.prefix_event) == (20_103, None)
    assert second.trigger == "user"
    assert (second.delay_ms, second.delay_parts) == (29_000, DelayParts(human_ms=29_000))


def test_human_time_is_apart_from_tool_time_in_one_wait(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", use("a", command="make"))
    talk.result(3, "a")
    talk.user(4, "[Request interrupted by user]")
    talk.user(63, "do it otherwise")
    talk.answer(65, "m2", text("Fine."), prompt=(1, 60, 20_100))
    second = requests_of(talk, tmp_path)[1]
    assert second.delay_ms == 62_000
    assert second.delay_parts == DelayParts(tool_ms=2_000, human_ms=60_000)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("AskUserQuestion", "User has answered"),
        ("ExitPlanMode", "User has approved"),
        ("Bash", "The user doesn't want to proceed with this tool use. The tool use was rejected"),
        ("Bash", [{"type": "text", "text": "The user doesn't want to take this action right now."}]),
    ],
)
def test_questions_and_refusals_are_human_time(name: str, content: Any, tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", use("a", name))
    talk.result(101, "a", content)
    talk.answer(103, "m2", text("Fine."), prompt=(1, 60, 20_100))
    second = requests_of(talk, tmp_path)[1]
    assert second.tools_before[0].waits_on_human
    assert second.delay_parts == DelayParts(human_ms=100_000)
    assert second.trigger == "tool"


def test_text_of_the_client_is_not_the_user_typing(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", text("Waiting for the build."))
    talk.user(41, "<task-notification>\n<task-id>b1</task-id>\n</task-notification>")
    talk.answer(42, "m2", text("Built."), prompt=(1, 60, 20_100))
    second = requests_of(talk, tmp_path)[1]
    assert (second.trigger, second.delay_parts) == ("tool", DelayParts(client_ms=40_000))


def test_synthetic_answers_are_left_out_and_counted(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "e1", text("API Error: 500"), model="<synthetic>", prompt=(0, 0, 0), out=0)
    talk.user(5, "again")
    talk.answer(8, "m1", text("Hello."))
    result = imported(talk.write(tmp_path / "s1.jsonl"))
    [request] = result.trace_set.sessions[0].requests
    assert isinstance(request.input, Append)
    assert [m["content"] for m in request.input.messages] == ["go", "again"]
    assert sum(result.report.left_out.values()) == 1
    assert result.report.requests_seen == 2


def test_other_lines_are_ignored_and_counted(tmp_path: Path) -> None:
    talk = Talk()
    talk.lines.append({"type": "file-history-snapshot", "messageId": "x", "snapshot": {}})
    talk.add("progress", 0, data={"type": "hook_progress"})
    talk.user(1, "go")
    talk.user(1, "only for the screen", isVisibleInTranscriptOnly=True)
    talk.add("attachment", 1, attachment={})
    talk.answer(2, "m1", text("Hello."))
    result = imported(talk.write(tmp_path / "s1.jsonl"))
    [request] = result.trace_set.sessions[0].requests
    assert request.input == Append(messages=[{"role": "user", "content": "go"}])
    ignored = result.report.ignored
    assert ignored == {f"lines of type {t}": 1 for t in ("file-history-snapshot", "progress", "user", "attachment")}


def resumed(tmp_path: Path) -> Path:
    """s1 with two rounds; s2, resumed from it, repeats them under its own name and adds one."""
    old = Talk("s1")
    old.user(0, "go")
    old.answer(1, "m1", text("One."), prompt=(3, 100, 20_000))
    old.user(10, "more")
    old.answer(11, "m2", text("Two."), prompt=(3, 100, 20_100))
    old.write(tmp_path / "p" / "s1.jsonl")
    new = Talk("s2")
    new.lines = [line | {"sessionId": "s2"} for line in old.lines]
    new.last = old.last
    new.user(500, "and more")
    new.answer(502, "m3", text("Three."), prompt=(3, 100, 20_200))
    new.write(tmp_path / "p" / "a-s2.jsonl")
    return tmp_path / "p"


def test_rounds_that_a_resumed_session_repeats_are_imported_once(tmp_path: Path) -> None:
    result = imported(resumed(tmp_path))
    old, new = result.trace_set.sessions
    assert [len(old.requests), len(new.requests)] == [2, 1]
    assert (old.session.session_id, new.session.session_id) == ("s1", "s2")
    [request] = new.requests
    assert isinstance(request.input, Append)  # the first of its session: the whole conversation
    assert [m["content"] for m in request.input.messages] == ["go", "One.", "more", "Two.", "and more"]
    assert request.prefix_tokens_ideal == 20_203  # the prompt of the round that both have
    assert result.report.left_out == {"copies in a resumed or forked session": 2}
    assert result.report.requests_seen == 5


def test_the_same_file_twice_gives_the_same_set_once(tmp_path: Path) -> None:
    path = resumed(tmp_path)
    (path / "z.jsonl").write_bytes((path / "s1.jsonl").read_bytes())
    result = imported(path)
    assert [len(s.requests) for s in result.trace_set.sessions] == [2, 1]
    assert result.report.left_out == {"copies in a resumed or forked session": 4}


def test_a_session_id_in_two_files_with_different_rounds_stays_unique(tmp_path: Path) -> None:
    for n in (1, 2):
        talk = Talk("same")
        talk.user(n, "go")
        talk.answer(n + 1, f"m{n}", text("Hi."))
        talk.write(tmp_path / "p" / f"x{n}.jsonl")
    assert [s.session.session_id for s in imported(tmp_path / "p").trace_set.sessions] == ["same", "same~2"]


def test_last_line_cut_off_and_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "gr\u00fcn")
    talk.answer(1, "m1", text("Hi."))
    talk.answer(9, "m2", text("lost"))
    path = talk.write(tmp_path / "s1.jsonl")
    raw = path.read_bytes().replace("gr\u00fcn".encode(), b"gr\xfcn")
    path.write_bytes(raw[: raw.rindex(b'"usage"')])
    result = imported(path)
    [request] = result.trace_set.sessions[0].requests
    assert request.input == Append(messages=[{"role": "user", "content": "gr\ufffdn"}])
    assert result.report.ignored == {"bytes that are not UTF-8 (lines with)": 1, "last line cut off": 1}
    assert [w.split(" ")[0] for w in result.report.warnings] == ["s1.jsonl:1:", "s1.jsonl:3:"]


def test_a_broken_line_in_the_middle_and_lone_surrogates(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", use("a", command="x"))
    talk.result(2, "a", "cut \ud83d")
    talk.answer(3, "m2", text("Hi."), prompt=(1, 60, 20_100))
    lines = [json.dumps(line) for line in talk.lines]
    path = tmp_path / "s1.jsonl"
    path.write_text("\n".join([lines[0], "{broken", "[1]", *lines[1:]]) + "\n")
    result = imported(path)
    _, second = result.trace_set.sessions[0].requests
    assert isinstance(second.input, Append)
    assert second.input.messages[1]["content"] == "cut \ufffd"
    assert result.report.ignored == {"lines that are not a JSON object": 2}


def test_lines_without_time_stamps_keep_their_place_and_have_no_wait(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(None, "go")
    talk.answer(None, "m1", use("a", command="x"))
    talk.result(None, "a")
    talk.answer(None, "m2", text("Hi."), prompt=(1, 60, 20_100))
    result = imported(talk.write(tmp_path / "s1.jsonl"))
    _, second = result.trace_set.sessions[0].requests
    assert (second.delay_ms, second.delay_source) == (0, "missing")
    assert second.tools_before[0].duration_ms is None
    assert second.recorded is not None
    assert second.recorded.duration_ms is None
    assert result.report.estimated["waits without time stamps: none is replayed"] == 1


def test_stamps_without_a_zone_are_utc(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", use("a", command="x"))
    talk.result(3, "a")
    talk.answer(4, "m2", text("Hi."), prompt=(1, 60, 20_100))
    talk.lines[2]["timestamp"] = stamp(3).removesuffix("Z")
    assert requests_of(talk, tmp_path)[1].delay_ms == 2000


def test_usage_of_zeros_is_unknown_and_estimated(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "x" * 330)
    talk.answer(1, "m1", text("w" * 66), prompt=(0, 0, 0), out=0)
    result = imported(talk.write(tmp_path / "s1.jsonl"))
    [request] = result.trace_set.sessions[0].requests
    assert (request.input_tokens, request.input_tokens_source) == (104, "estimated")
    assert (request.output_tokens, request.output_tokens_source) == (20, "estimated")
    assert request.recorded is not None
    assert request.recorded.cached_tokens is None
    assert result.trace_set.sessions[0].session.system_tokens == 0


def compacted(tmp_path: Path, *, with_file: bool = True) -> Path:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", use("a", command="x"), prompt=(3, 100, 150_000))
    ready = talk.result(3, "a", "out")
    if with_file:
        helper = Talk(agent="acompact-ab12cd")
        helper.last = ready
        helper.user(2, "<system-reminder>old</system-reminder>", isMeta=True, parent="elsewhere")
        helper.user(4, "Your task is to summarise.", parent=ready)
        helper.answer(74, "c1", text("S" * 3300), prompt=(3, 500, 150_100), out=6)
        helper.write(tmp_path / "s1" / "subagents" / "agent-acompact-ab12cd.jsonl")
    talk.add("system", 75, subtype="compact_boundary", parent=None, logicalParentUuid=ready, compactMetadata={})
    talk.user(75, "Summary: " + "S" * 3300, isCompactSummary=True, isVisibleInTranscriptOnly=True)
    talk.answer(79, "m2", use("b", command="y"), prompt=(3, 11_000, 21_000))
    talk.result(80, "b")
    talk.answer(81, "m3", text("Done."), prompt=(3, 100, 32_000))
    return talk.write(tmp_path / "s1.jsonl")


def test_compaction_is_a_call_on_the_whole_context_and_a_new_prompt_after_it(tmp_path: Path) -> None:
    result = imported(compacted(tmp_path))
    [session] = result.trace_set.sessions
    _, summary, after, last = session.requests
    assert (summary.trigger, summary.input_tokens, summary.output_tokens) == ("compaction", 150_603, 1000)
    assert isinstance(summary.input, Append)
    assert [m["role"] for m in summary.input.messages] == ["assistant", "tool", "user"]
    assert (summary.delay_ms, summary.delay_parts) == (3000, DelayParts(tool_ms=2000, client_ms=1000))
    assert summary.output == {"text": "S" * 3300}
    assert isinstance(after.input, Full)
    assert [m["role"] for m in after.input.messages] == ["user"]
    assert after.prefix_event is not None
    assert (after.prefix_event.type, after.prefix_event.kept_tokens) == ("compaction", 21_000)
    assert after.prefix_event.dropped_tokens == 150_103 - 21_000
    assert after.prefix_tokens_ideal == session.session.system_tokens == 32_003  # no later prompt holds more
    assert (after.delay_ms, after.tools_before) == (1000, [])
    assert isinstance(last.input, Append)
    assert last.prefix_event is None
    assert result.report.ignored["lines copied into files of helper calls"] == 1
    assert result.report.noted == {}


def test_a_compaction_without_its_file_is_said(tmp_path: Path) -> None:
    result = imported(compacted(tmp_path, with_file=False))
    [session] = result.trace_set.sessions
    assert [r.trigger for r in session.requests] == ["user", "tool", "tool"]
    event = session.requests[1].prefix_event
    assert event is not None
    assert event.type == "compaction"
    assert result.report.noted == {"compactions whose summarising call is not in the files": 1}


@pytest.mark.parametrize(
    ("idle", "read", "write_", "model", "expected"),
    [
        (1_140, 0, 20_200, "claude-x", ("ttl_expiry", 0, 20_100)),
        (290, 12_000, 8_200, "claude-x", None),
        (5, 0, 20_200, "claude-y", ("model_switch", 0, 20_100)),
        (5, 12_000, 3_000, "claude-x", ("prune", 12_000, 8_100)),
        (1_140, 20_100, 60, "claude-x", None),
        (5, 20_300, 60, "claude-x", None),
    ],
)
def test_what_the_cache_read_says_about_the_prefix(
    idle: int, read: int, write_: int, model: str, expected: tuple[str, int, int] | None, tmp_path: Path
) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", text("What?"), prompt=(3, 100, 20_000))
    talk.user(1 + idle, "That.")
    talk.answer(idle + 5, "m2", text("Done."), prompt=(3, write_, read), model=model)
    result = imported(talk.write(tmp_path / "s1.jsonl"))
    event = result.trace_set.sessions[0].requests[1].prefix_event
    assert (None if event is None else (event.type, event.kept_tokens, event.dropped_tokens)) == expected
    unexplained = expected is None and read != 20_100
    assert sum(result.report.noted.values()) == unexplained


def test_an_hour_of_cache_does_not_expire_after_minutes(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", text("What?"), prompt=(3, 100, 20_000))
    talk.lines[-1]["message"]["usage"]["cache_creation"] = {"ephemeral_1h_input_tokens": 100}
    talk.user(1_200, "That.")
    talk.answer(1_203, "m2", text("Done."), prompt=(3, 20_200, 0))
    first, second = requests_of(talk, tmp_path)
    assert first.recorded is not None
    assert first.recorded.cache_write_ttl == "1h"
    assert second.prefix_event is None


def test_going_back_to_an_earlier_message_drops_what_came_after(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    fork = talk.answer(1, "m1", text("One."), prompt=(3, 100, 20_000))
    talk.user(10, "wrong way")
    talk.answer(11, "m2", text("Two."), prompt=(3, 100, 20_100))
    talk.user(60, "right way", parent=fork)
    talk.answer(62, "m3", text("Three."), prompt=(3, 90, 20_100))
    third = requests_of(talk, tmp_path)[2]
    assert third.input == Splice(keep_messages=2, messages=[{"role": "user", "content": "right way"}])
    assert third.prefix_event is not None
    assert third.prefix_event.type == "rewind"
    assert third.prefix_tokens_ideal == 20_103


def test_a_prompt_taken_back_before_its_answer_is_not_sent(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    fork = talk.answer(1, "m1", text("One."), prompt=(3, 100, 20_000))
    talk.user(10, "typo", parent=fork)
    talk.user(20, "fixed", parent=fork)
    talk.answer(22, "m2", text("Two."), prompt=(3, 90, 20_100))
    result = imported(talk.write(tmp_path / "s1.jsonl"))
    second = result.trace_set.sessions[0].requests[1]
    assert isinstance(second.input, Append)
    assert [m["content"] for m in second.input.messages] == ["One.", "fixed"]
    assert result.report.ignored == {"prompts that the user took back before an answer": 1}


def test_clear_starts_a_new_conversation_in_the_same_file(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", text("One."), prompt=(3, 100, 20_000))
    talk.user(30, "something else", parent=None)
    talk.answer(31, "m2", text("Two."), prompt=(3, 90, 19_000))
    second = requests_of(talk, tmp_path)[1]
    assert second.input == Full(messages=[{"role": "user", "content": "something else"}])
    assert second.prefix_event is not None
    assert second.prefix_event.type == "clear"


def test_a_parent_that_is_not_in_the_file_is_no_new_conversation(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(1, "m1", text("One."), prompt=(3, 100, 20_000))
    talk.user(30, "more", parent="line-that-was-lost")
    talk.answer(31, "m2", text("Two."), prompt=(3, 90, 20_100))
    second = requests_of(talk, tmp_path)[1]
    assert isinstance(second.input, Append)
    assert second.prefix_event is None


def test_content_of_every_kind(tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", 300, 200)
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png).decode()},
    }
    talk = Talk()
    talk.user(0, [text("look"), image])
    talk.answer(1, "m1", text("\n\n"), think("hm"), text("I see."), use("a", command="x"))
    talk.result(2, "a", [text("one"), text("two")])
    talk.answer(3, "m2", think(""), use("b", command="y"), use("c", command="z"), prompt=(1, 60, 20_100))
    talk.result(4, "c", [])
    talk.result(4, "zzz", "nobody asked")
    talk.answer(5, "m3", text("Done."), prompt=(1, 60, 20_160))
    result = imported(talk.write(tmp_path / "s1.jsonl"))
    first, second, third = (r.input for r in result.trace_set.sessions[0].requests)
    assert isinstance(first, Append)
    assert isinstance(second, Append)
    assert isinstance(third, Append)
    part = first.messages[0]["content"][1]
    assert {k: part[k] for k in ("type", "w", "h", "tokens")} == {"type": "image", "w": 300, "h": 200, "tokens": 80}
    assert second.messages[0]["content"] == "I see."
    assert second.messages[1]["content"] == "one\ntwo"
    assert third.messages[0]["content"] is None
    assert third.messages[1:] == [
        {"role": "tool", "tool_call_id": "b", "content": "[no result recorded]"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": "nobody asked"},
    ]
    assert result.report.estimated["tool results that are not in the file: a stand-in is sent"] == 1
    assert result.report.noted["tool results without their call, sent as text"] == 1


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"GIF89a" + struct.pack("<HH", 10, 20), (10, 20)),
        (b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08" + struct.pack(">HH", 48, 64) + b"\x03", (64, 48)),
        (b"\xff\xd8\xff\xe0\x00\x00", None),
        (b"\x89PNG\r\n\x1a\n", None),
        (b"", None),
    ],
)
def test_size_of_images(data: bytes, size: tuple[int, int] | None) -> None:
    assert image_size(data) == size


def test_overlapping_spans_count_once_and_only_within_the_wait() -> None:
    assert covered([(0, 4), (2, 6), (8, 9)], 1, 8.5) == 5.5
    assert covered([(5, 7), (5, 6)], 0, 10) == 2
    assert covered([(5, 7)], 8, 10) == 0
    assert covered([], 0, 10) == 0


def test_language_of_a_session_is_that_of_most_files_touched(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    paths = ("C:\\a\\one.RS", "/b/two.rs", "/b/x.py")
    talk.answer(1, "m1", *(use(f"t{i}", "Read", file_path=p) for i, p in enumerate(paths)))
    assert imported(talk.write(tmp_path / "s1.jsonl")).trace_set.sessions[0].session.language == "rust"


# -- what a user sees ------------------------------------------------------------------------------------------------


def test_header_says_where_the_set_comes_from_without_folders(tmp_path: Path) -> None:
    result = imported(compacted(tmp_path), license="MIT", attribution="somebody")
    header = result.trace_set.header
    assert (header.content, header.license, header.redistributable, header.trace_set_id) == ("full", "MIT", False, "s1")
    source = header.source
    assert (source["format"], source["tool"], source["tool_version"]) == ("claude-code", "Claude Code", "2.1.99")
    assert [f["uri"] for f in source["files"]] == ["s1.jsonl", "s1/subagents/agent-acompact-ab12cd.jsonl"]
    assert all(len(f["sha256"]) == 64 for f in source["files"])
    assert source["import_options"]["license"] == "MIT"
    assert str(tmp_path) not in repr(header)
    assert imported(compacted(tmp_path)).trace_set.header.license is None


def test_same_input_gives_the_same_set(tmp_path: Path) -> None:
    path = compacted(tmp_path)
    one, two = read([path]).trace_set, read([path]).trace_set
    assert write(one, tmp_path / "1.jsonl").digest == write(two, tmp_path / "2.jsonl").digest


@pytest.mark.parametrize("content", [b"", b"\n\n", b"plain words\n", b'{"type":"other"}\n', b"\x00\xff"])
def test_files_that_are_no_transcript_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    assert not detect(path)
    with pytest.raises(TraceError, match=r"x\.jsonl: no Claude Code transcript"):
        read([path])


def test_a_transcript_without_an_answer_is_refused(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    with pytest.raises(TraceError, match="no answer of a model"):
        read([talk.write(tmp_path / "s1.jsonl")])


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        read([tmp_path / "nothing.jsonl"])


def test_other_files_of_a_folder_are_skipped_and_said(tmp_path: Path) -> None:
    path = resumed(tmp_path)
    (path / "journal.jsonl").write_text('{"event":"x"}\n')
    (path / "empty.jsonl").write_text("")
    result = imported(path)
    assert result.report.ignored == {"files that are no transcript": 1, "empty files": 1}
    assert result.report.warnings_count == result.trace_set.header.source["warnings_count"] == 2
    assert detect_format([path]) == "claude-code"
