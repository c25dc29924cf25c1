"""Subagents of Claude Code: where their lines are, what they depend on, what waits for them."""

from pathlib import Path
from typing import Any

import pytest
from claude_files import Talk, text, use

from agentperf.trace.importers import ImportResult
from agentperf.trace.importers.claude_code import read
from agentperf.trace.io import write
from agentperf.trace.model import DelayParts, Dependency
from agentperf.trace.validate import validate


def imported(path: Path) -> ImportResult:
    result = read([path])
    report = result.report
    assert report.requests + sum(report.left_out.values()) == report.requests_seen
    out = path.parent / "out" / "set.jsonl"
    write(result.trace_set, out)
    assert validate(out) == []
    return result


def agent_talk(agent: str = "abc1234", session: str = "s1") -> Talk:
    child = Talk(session, agent)
    child.user(5.2, "Look around.")
    child.answer(7, "c1", use("ca", "Read", file_path="x.py"), prompt=(3, 10_000, 0), model="small", out=60)
    child.result(7.5, "ca", "x = 1")
    child.answer(20, "c2", text("It is x. " * 40), prompt=(3, 40, 10_000), model="small", out=2)
    return child


def main_talk(result: dict[str, Any], **call: Any) -> Talk:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(4, "m1", use("b", command="make"), out=80)
    talk.answer(5, "m1", use("t", "Task", prompt="Look around.", subagent_type="Explore", **call), out=80)
    talk.result(9, "b", "made")
    talk.result(20.25, "t", [text("It is x.")], toolUseResult=result)
    talk.answer(25, "m2", text("Done."), prompt=(1, 200, 20_100))
    return talk


DONE = {"agentId": "abc1234", "status": "completed", "totalDurationMs": 15_000, "totalToolUseCount": 1}


def test_a_subagent_starts_with_its_call_and_its_end_is_waited_for(tmp_path: Path) -> None:
    path = main_talk(DONE).write(tmp_path / "s1.jsonl")
    agent_talk().write(tmp_path / "s1" / "subagents" / "agent-abc1234.jsonl")
    result = imported(path)
    main, child = result.trace_set.sessions
    assert child.session.session_id == "s1/abc1234"
    assert (child.session.parent_session_id, child.session.root_session_id) == ("s1", "s1")
    assert (child.session.product, child.session.agent["role"]) == ("claude-code/Explore", "Explore")
    spawn = child.session.spawn
    assert spawn is not None
    assert (spawn.by_request_id, spawn.tool_call_id, spawn.background) == ("s1:0", "t", False)
    first = child.requests[0]
    assert first.depends_on == [Dependency(request_id="s1:0", type="spawn")]
    assert (first.delay_ms, first.delay_source, first.trigger) == (200, "measured", "subagent")
    assert (first.prefix_tokens_ideal, child.session.model["name"]) == (0, "small")
    second = main.requests[1]
    assert second.depends_on == [
        Dependency(request_id="s1:0"),
        Dependency(request_id="s1/abc1234:1", type="join"),
    ]
    # counted from the end of the subagent, not from the call: its own time is replayed by its own requests
    assert (second.delay_ms, second.delay_parts) == (250, DelayParts(tool_ms=250))
    task = second.tools_before[1]
    assert (task.child_session_id, task.duration_ms, task.internal_ms) == ("s1/abc1234", 15_250, 15_000)
    assert result.report.noted == {}


def test_the_parent_knows_the_last_count_of_a_subagent(tmp_path: Path) -> None:
    usage = {"input_tokens": 3, "cache_creation_input_tokens": 40, "cache_read_input_tokens": 10_000}
    path = main_talk(DONE | {"usage": usage | {"output_tokens": 1_234}}).write(tmp_path / "s1.jsonl")
    agent_talk().write(tmp_path / "s1" / "subagents" / "agent-abc1234.jsonl")
    last = imported(path).trace_set.sessions[1].requests[-1]
    assert (last.output_tokens, last.output_tokens_source) == (1_234, "provider")


def test_a_count_of_another_call_is_not_taken(tmp_path: Path) -> None:
    usage = {"input_tokens": 3, "cache_creation_input_tokens": 41, "cache_read_input_tokens": 10_000}
    path = main_talk(DONE | {"usage": usage | {"output_tokens": 1_234}}).write(tmp_path / "s1.jsonl")
    agent_talk().write(tmp_path / "s1" / "subagents" / "agent-abc1234.jsonl")
    last = imported(path).trace_set.sessions[1].requests[-1]
    assert (last.output_tokens, last.output_tokens_source) == (round(360 / 3.3), "estimated")


@pytest.mark.parametrize("place", ["agent-abc1234.jsonl", "s1/subagents/deep/agent-abc1234.jsonl"])
def test_where_versions_put_the_file(place: str, tmp_path: Path) -> None:
    path = main_talk(DONE).write(tmp_path / "s1.jsonl")
    agent_talk().write(tmp_path / place)
    assert [s.session.session_id for s in imported(path).trace_set.sessions] == ["s1", "s1/abc1234"]


def test_a_file_beside_that_the_session_does_not_name_is_left_alone(tmp_path: Path) -> None:
    path = main_talk(DONE).write(tmp_path / "s1.jsonl")
    agent_talk("fff9999", "s9").write(tmp_path / "agent-fff9999.jsonl")
    result = imported(path)
    assert [s.session.session_id for s in result.trace_set.sessions] == ["s1"]


def test_progress_lines_name_the_agent_when_the_result_does_not(tmp_path: Path) -> None:
    talk = main_talk({})
    progress = {"type": "agent_progress", "agentId": "abc1234", "message": {}}
    talk.add("progress", 6, data=progress, parentToolUseID="t", parent="s1-m-2")
    path = talk.write(tmp_path / "s1.jsonl")
    agent_talk().write(tmp_path / "s1" / "subagents" / "agent-abc1234.jsonl")
    spawn = imported(path).trace_set.sessions[1].session.spawn
    assert spawn is not None
    assert spawn.tool_call_id == "t"


def test_a_missing_file_is_said_and_its_time_stays_tool_time(tmp_path: Path) -> None:
    result = imported(main_talk(DONE).write(tmp_path / "s1.jsonl"))
    [main] = result.trace_set.sessions
    assert main.requests[1].delay_ms == 15_250
    assert main.requests[1].depends_on is None
    assert main.requests[1].tools_before[1].child_session_id is None
    assert result.report.noted == {"subagents whose file is missing": 1}
    assert result.report.warnings == [
        "s1.jsonl:3: no file of subagent abc1234; its time stays the time of the tool call"
    ]


@pytest.mark.parametrize("with_id", [True, False])
def test_inline_subagents_of_old_versions(with_id: bool, tmp_path: Path) -> None:
    talk = main_talk(DONE if with_id else {})
    inner = agent_talk()
    if not with_id:
        for line in inner.lines:
            del line["agentId"]
    talk.lines[3:3] = inner.lines
    main, child = imported(talk.write(tmp_path / "s1.jsonl")).trace_set.sessions
    assert [len(main.requests), len(child.requests)] == [2, 2]
    assert child.session.spawn is not None
    assert child.session.spawn.tool_call_id == "t"
    assert main.requests[1].delay_ms == 250


def test_parallel_subagents_and_one_inside_another(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(5, "m1", use("t1", "Task", prompt="one"), use("t2", "Agent", prompt="two"), out=200)
    talk.result(30, "t1", "1", toolUseResult={"agentId": "a1"})
    talk.result(40, "t2", "2", toolUseResult={"agentId": "a2"})
    talk.answer(45, "m2", text("Done."), prompt=(1, 200, 20_100))
    path = talk.write(tmp_path / "s1.jsonl")
    for agent, start, inner in (("a1", 6, None), ("a2", 7, "a3"), ("a3", 11, None)):
        child = Talk("s1", agent)
        child.user(start, "work")
        if inner:
            child.answer(10, f"{agent}-0", use("t3", "Task", prompt="three"), prompt=(3, 9_000, 0))
            child.result(28, "t3", "3", toolUseResult={"agentId": inner})
        child.answer(start + 20 if not inner else 39, f"{agent}-1", text("ok"), prompt=(3, 10, 9_000))
        child.write(tmp_path / "s1" / "subagents" / f"agent-{agent}.jsonl")
    sessions = {s.session.session_id: s for s in imported(path).trace_set.sessions}
    assert next(iter(sessions)) == "s1"
    assert {n: s.session.parent_session_id for n, s in sessions.items()} == {
        "s1": None,
        "s1/a1": "s1",
        "s1/a2": "s1",
        "s1/a3": "s1/a2",
    }
    joins = sessions["s1"].requests[1].depends_on
    assert joins is not None
    assert [d.request_id for d in joins] == ["s1:0", "s1/a1:0", "s1/a2:1"]
    assert sessions["s1"].requests[1].delay_ms == 1000  # the later one ended at 39
    # a3 ended after its parent's tool result was written: the wait is nothing, not negative
    assert sessions["s1/a2"].requests[1].delay_ms == 0


def background(tmp_path: Path, *end: tuple[str, Any]) -> ImportResult:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(5, "m1", use("t", "Task", prompt="Look around.", run_in_background=True), out=80)
    talk.result(5.1, "t", "started", toolUseResult={"agentId": "abc1234", "status": "async_launched"})
    talk.answer(10, "m2", use("o", "TaskOutput", task_id="abc1234"), prompt=(1, 200, 20_100), out=60)
    for kind, content in end:
        if kind == "result":
            talk.result(20.5, "o", content)
        else:
            talk.user(20.5, content)
    talk.answer(25, "m3", text("Done."), prompt=(1, 200, 20_300))
    agent_talk().write(tmp_path / "s1" / "subagents" / "agent-abc1234.jsonl")
    return imported(talk.write(tmp_path / "s1.jsonl"))


def test_a_background_subagent_is_waited_for_by_the_tool_that_asks_for_it(tmp_path: Path) -> None:
    main, child = background(tmp_path, ("result", "It is x.")).trace_set.sessions
    assert child.session.spawn is not None
    assert child.session.spawn.background
    assert main.requests[1].depends_on is None
    assert main.requests[1].delay_ms == 100
    assert main.requests[2].depends_on == [
        Dependency(request_id="s1:1"),
        Dependency(request_id="s1/abc1234:1", type="join"),
    ]
    assert main.requests[2].delay_ms == 500


def test_a_notice_of_its_end_is_a_wait_too(tmp_path: Path) -> None:
    note = "<task-notification>\n<task-id>abc1234</task-id>\n</task-notification>"
    main, _ = background(tmp_path, ("text", note)).trace_set.sessions
    assert main.requests[2].depends_on == [
        Dependency(request_id="s1:1"),
        Dependency(request_id="s1/abc1234:1", type="join"),
    ]


def test_a_subagent_that_no_call_names_starts_by_time_and_is_said(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    talk.answer(3, "m1", text("Hm."))
    talk.user(50, "more")
    talk.answer(52, "m2", text("Done."), prompt=(1, 200, 20_100))
    agent_talk().write(tmp_path / "p" / "agent-abc1234.jsonl")
    talk.write(tmp_path / "p" / "s1.jsonl")
    result = imported(tmp_path / "p")
    _, child = result.trace_set.sessions
    assert child.session.spawn is not None
    assert (child.session.spawn.by_request_id, child.session.spawn.background) == ("s1:0", True)
    assert child.requests[0].delay_ms == 2200
    assert result.report.noted == {"subagents that no tool call names, started by time": 1}


def test_a_subagent_alone_is_a_session_of_its_own(tmp_path: Path) -> None:
    path = agent_talk().write(tmp_path / "agent-abc1234.jsonl")
    result = imported(path)
    [only] = result.trace_set.sessions
    assert only.session.parent_session_id is None
    assert only.session.root_session_id == only.session.session_id == "s1/abc1234"
    assert result.report.noted == {"subagents without their main session, imported as sessions of their own": 1}


def test_a_helper_call_of_a_missing_session_is_left_out_and_counted(tmp_path: Path) -> None:
    main_talk(DONE).write(tmp_path / "p" / "s1.jsonl")
    helper = Talk("s7", "acompact-99")
    helper.user(4, "Summarise.", parent="unknown")
    helper.answer(9, "c9", text("Sum."))
    helper.write(tmp_path / "p" / "agent-acompact-99.jsonl")
    result = imported(tmp_path / "p")
    assert result.report.left_out == {"helper calls of a session that is not in the files": 1}


def test_a_suggestion_made_beside_the_conversation_leaves_it_as_it_was(tmp_path: Path) -> None:
    talk = Talk()
    talk.user(0, "go")
    asked = talk.answer(3, "m1", text("Hm."), prompt=(3, 100, 20_000))
    talk.user(50, "more")
    talk.answer(52, "m2", text("Done."), prompt=(3, 50, 20_100))
    side = Talk("s1", "aprompt_suggestion-12ef")
    side.user(3.5, "Suggest what comes next.", parent=asked)
    side.answer(4.5, "x1", text("Ask for more."), prompt=(3, 30, 20_100))
    side.write(tmp_path / "s1" / "subagents" / "agent-aprompt_suggestion-12ef.jsonl")
    [session] = imported(talk.write(tmp_path / "s1.jsonl")).trace_set.sessions
    _, beside, after = session.requests
    assert (beside.trigger, beside.delay_ms) == ("side", 500)
    assert after.depends_on == [Dependency(request_id="s1:0")]
    assert after.delay_ms == 47_000
    assert after.input.messages == [{"role": "user", "content": "more"}]  # type: ignore[union-attr]
    assert after.input.keep_messages == 2  # type: ignore[union-attr]
    assert after.prefix_tokens_ideal == 20_103


def test_an_agent_that_claims_to_have_started_itself_ends_nowhere(tmp_path: Path) -> None:
    child = agent_talk()
    child.lines[2]["toolUseResult"] = {"agentId": "abc1234"}
    main = main_talk({})
    main.write(tmp_path / "p" / "s1.jsonl")
    child.write(tmp_path / "p" / "agent-abc1234.jsonl")
    assert [s.session.parent_session_id for s in imported(tmp_path / "p").trace_set.sessions] == [None, "s1"]


def test_an_id_that_two_calls_share_names_the_first_and_nothing_waits_for_itself(tmp_path: Path) -> None:
    talk = main_talk(DONE)
    again = talk.lines[2]["message"] | {"id": "m2"}
    talk.lines.insert(5, talk.lines[2] | {"uuid": "again", "message": again, "timestamp": talk.lines[5]["timestamp"]})
    path = talk.write(tmp_path / "s1.jsonl")
    agent_talk().write(tmp_path / "s1" / "subagents" / "agent-abc1234.jsonl")
    main, child = imported(path).trace_set.sessions
    assert child.session.spawn is not None
    assert child.session.spawn.by_request_id == "s1:0"
    assert len(main.requests[1].depends_on or ()) == 2
