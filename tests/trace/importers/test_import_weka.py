"""weka / kv-cache-tester traces: what its fields mean, and shapes that add up."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentperf.errors import TraceError
from agentperf.trace.importers import ImportOptions, ImportResult, detect_format
from agentperf.trace.importers.weka import detect, read
from agentperf.trace.io import write
from agentperf.trace.model import DelayParts, Dependency, Request, Segment, Shape
from agentperf.trace.validate import validate

Row = dict[str, Any]


def call(t: float, size: int, blocks: list[Any], **more: Any) -> Row:
    row = {"t": t, "type": "s", "model": "big", "in": size, "out": 20, "hash_ids": blocks, "input_types": ["text"]}
    return row | {"output_types": ["text"], "stop": "tool_use", "api_time": 1.0, "think_time": 2.0} | more


def tool(t: float, size: int, blocks: list[Any], **more: Any) -> Row:
    return call(t, size, blocks, input_types=["tool_result"], **more)


def sub(t: float, duration_ms: float, rows: list[Row], **more: Any) -> Row:
    row = {"type": "subagent", "t": t, "duration_ms": duration_ms, "agent_id": "a", "requests": rows}
    return row | {"subagent_type": "Explore", "tool_tokens": 0, "system_tokens": 0} | more


def imported(tmp_path: Path, rows: list[Row], **more: Any) -> ImportResult:
    document = {"id": "t1", "block_size": 64, "hash_id_scope": "local", "tool_tokens": 128, "system_tokens": 64}
    path = tmp_path / "trace_t1.json"
    path.write_text(json.dumps(document | {"requests": rows} | more))
    return checked([path], tmp_path)


def checked(paths: list[Path], tmp_path: Path, **options: Any) -> ImportResult:
    result = read(paths, ImportOptions(**options))
    report = result.report
    assert report.requests + sum(report.left_out.values()) == report.requests_seen
    write(result.trace_set, tmp_path / "set.jsonl")
    assert validate(tmp_path / "set.jsonl") == []
    return result


def shape(request: Request) -> Shape:
    assert isinstance(request.input, Shape)
    return request.input


def sizes(request: Request) -> list[tuple[str, int]]:
    return [(s.kind, s.tokens) for s in shape(request).segments]


def test_a_prompt_that_grows_is_stored_as_what_is_new(tmp_path: Path) -> None:
    rows = [call(0, 650, list(range(10))), tool(3, 780, list(range(12)))]
    [session] = imported(tmp_path, rows).trace_set.sessions
    first, second = session.requests
    assert (session.session.session_id, session.session.system_tokens, session.session.tools_tokens) == ("t1", 64, 128)
    assert sizes(first) == [("system", 64), ("tools", 128), ("user", 458)]
    assert (shape(first).block_hashes, shape(first).keep_blocks, shape(first).tail_tokens) == (
        list(range(10)),
        None,
        10,
    )
    # the answer of 20 tokens, and the rest of the growth
    assert shape(second).segments == [
        Segment(role="assistant", kind="assistant", tokens=20),
        Segment(role="tool", kind="tool_result", tokens=110),
    ]
    s = shape(second)
    assert (s.keep_segments, s.keep_blocks, s.block_hashes, s.tail_tokens) == (3, 10, [10, 11], 12)
    assert (first.prefix_tokens_ideal, second.prefix_tokens_ideal, second.prefix_event) == (0, 640, None)
    assert (first.input_tokens, first.input_tokens_source, first.output_tokens) == (650, "provider", 20)


def test_an_answer_longer_than_the_growth_held_thinking(tmp_path: Path) -> None:
    rows = [call(0, 650, list(range(10)), out=500), tool(3, 750, list(range(11)))]
    result = imported(tmp_path, rows)
    assert sizes(result.trace_set.sessions[0].requests[1]) == [("assistant", 50), ("tool_result", 50)]
    assert sum(result.report.estimated.values()) == 1


@pytest.mark.parametrize(
    ("size", "expected"), [(650, []), (651, [("user", 1)]), (652, [("assistant", 1), ("tool_result", 1)])]
)
def test_prompts_that_hardly_grow(size: int, expected: list[tuple[str, int]], tmp_path: Path) -> None:
    rows = [call(0, 650, list(range(10))), tool(3, size, list(range(10)))]
    assert sizes(imported(tmp_path, rows).trace_set.sessions[0].requests[1]) == expected


def test_waits_are_think_time_told_apart_by_what_came_in(tmp_path: Path) -> None:
    rows = [
        call(0, 650, list(range(10)), api_time=3.5),
        tool(9, 780, list(range(12)), think_time=5.0),
        call(60, 900, list(range(14)), think_time=50.0),
    ]
    first, second, third = imported(tmp_path, rows).trace_set.sessions[0].requests
    assert (first.delay_ms, first.depends_on) == (0, None)
    assert (second.delay_ms, second.delay_parts, second.delay_source) == (5000, DelayParts(tool_ms=5000), "derived")
    assert (third.delay_ms, third.delay_parts, third.trigger) == (50_000, DelayParts(human_ms=50_000), "user")


def test_a_wait_that_the_file_lacks_is_the_gap_between_calls(tmp_path: Path) -> None:
    rows = [call(0, 650, list(range(10)), api_time=3.5), tool(9, 780, list(range(12)), think_time=None)]
    assert imported(tmp_path, rows).trace_set.sessions[0].requests[1].delay_ms == 5500
    rows = [call(0, 650, list(range(10)), api_time=30), tool(9, 780, list(range(12)), think_time=None)]
    assert imported(tmp_path, rows).trace_set.sessions[0].requests[1].delay_ms == 0


def test_what_the_server_did_is_recorded_apart(tmp_path: Path) -> None:
    rows = [call(2, 650, list(range(10)), type="n", ttft=0.43, api_time=2.32, stop="end_turn")]
    request = imported(tmp_path, rows).trace_set.sessions[0].requests[0]
    r = request.recorded
    assert r is not None
    assert (r.ttft_ms, r.duration_ms, r.start_ms, r.finish_reason, r.model) == (430, 2320, 2000, "end_turn", "big")
    assert not request.stream
    assert r.cached_tokens is None


# -- subagents -------------------------------------------------------------------------------------------------------

MAIN = list(range(10))


@pytest.mark.parametrize("offset", [0, 2.5], ids=["nested times from 0", "absolute nested times"])
def test_a_subagents_time_is_when_it_ended(offset: float, tmp_path: Path) -> None:
    rows = [
        call(0, 650, MAIN, api_time=2),
        sub(12, 9_500, [call(offset, 200, [90, 91, 92], model="small"), tool(offset + 4, 300, [90, 91, 92, 93])]),
        tool(13, 780, [*MAIN, 10, 11], think_time=11),
    ]
    main, child = imported(tmp_path, rows).trace_set.sessions
    assert child.session.session_id == "t1/a"
    assert (child.session.parent_session_id, child.session.agent["role"]) == ("t1", "Explore")
    spawn = child.session.spawn
    assert spawn is not None
    assert (spawn.by_request_id, spawn.background) == ("t1:0", False)
    first = child.requests[0]
    assert first.depends_on == [Dependency(request_id="t1:0", type="spawn")]
    assert first.delay_ms == 500  # spawn = 12 s - 9.5 s; the parent's call ended at 2 s
    assert first.recorded is not None
    assert (first.recorded.start_ms, first.trigger) == (2500, "subagent")
    assert child.requests[1].recorded is not None
    assert child.requests[1].recorded.start_ms == 6500
    assert main.requests[1].depends_on == [
        Dependency(request_id="t1:0"),
        Dependency(request_id="t1/a:1", type="join"),
    ]
    assert main.requests[1].delay_ms == 1000  # from the end of the subagent at 12 s


def test_siblings_run_beside_each_other_and_both_are_waited_for(tmp_path: Path) -> None:
    rows = [
        call(0, 650, MAIN),
        sub(9, 7_500, [call(0, 200, [90, 91, 92])], agent_id="a"),
        sub(12, 10_500, [call(0, 200, [70, 71, 72])], agent_id="b"),
        tool(14, 780, [*MAIN, 10, 11]),
    ]
    main, a, b = imported(tmp_path, rows).trace_set.sessions
    assert [s.requests[0].depends_on for s in (a, b)] == [[Dependency(request_id="t1:0", type="spawn")]] * 2
    assert [s.requests[0].delay_ms for s in (a, b)] == [500, 500]
    edges = main.requests[1].depends_on
    assert edges is not None
    assert [e.request_id for e in edges] == ["t1:0", "t1/a:0", "t1/b:0"]
    assert main.requests[1].delay_ms == 2000


def test_a_parent_that_goes_on_joins_after_the_end(tmp_path: Path) -> None:
    rows = [
        call(0, 650, MAIN),
        tool(5, 780, [*MAIN, 10, 11]),
        sub(12, 10_000, [call(0, 200, [90, 91, 92])]),
        tool(15, 900, [*MAIN, 10, 11, 12, 13]),
    ]
    main, child = imported(tmp_path, rows).trace_set.sessions
    assert child.session.spawn is not None
    assert child.session.spawn.background
    assert main.requests[1].depends_on is None
    assert main.requests[2].depends_on == [Dependency(request_id="t1:1"), Dependency(request_id="t1/a:0", type="join")]


def test_subagents_inside_subagents_and_of_the_same_name(tmp_path: Path) -> None:
    inner = sub(5, 2_000, [call(0, 100, [50])], agent_id="x")
    rows = [
        call(0, 650, MAIN),
        sub(12, 10_500, [call(0, 200, [90, 91, 92]), inner], agent_id="a"),
        sub(12, 10_500, [call(0, 200, [70, 71, 72])], agent_id="a"),
    ]
    result = imported(tmp_path, rows)
    ids = {s.session.session_id: s.session.parent_session_id for s in result.trace_set.sessions}
    assert ids == {"t1": None, "t1/a": "t1", "t1/a/x": "t1/a", "t1/a~2": "t1"}
    nested = result.trace_set.sessions[2].requests[0].recorded
    assert nested is not None
    assert nested.start_ms == 1500 + 3000  # relative to the subagent that it is part of


def test_subagents_without_calls_are_counted(tmp_path: Path) -> None:
    result = imported(tmp_path, [call(0, 650, MAIN), sub(12, 10_500, [])])
    assert len(result.trace_set.sessions) == 1
    assert result.report.ignored == {"subagents without calls": 1}


# -- breaks of the prefix --------------------------------------------------------------------------------------------


def test_a_call_beside_the_conversation_gets_a_session_and_leaves_the_prefix_whole(tmp_path: Path) -> None:
    rows = [
        call(0, 650, MAIN),
        call(2, 130, [80, 81], model="small"),
        tool(5, 780, [*MAIN, 10, 11], think_time=2),
    ]
    result = imported(tmp_path, rows)
    main, side = result.trace_set.sessions
    assert (side.session.session_id, side.session.agent["role"]) == ("t1/side-1", "side")
    assert (side.session.system_tokens, side.requests[0].trigger) == (None, "side")
    assert sizes(side.requests[0]) == [("user", 130)]
    assert side.requests[0].depends_on == [Dependency(request_id="t1:0", type="spawn")]
    assert side.requests[0].delay_ms == 1000
    after = main.requests[1]
    assert (shape(after).keep_segments, shape(after).keep_blocks, after.prefix_event) == (3, 10, None)
    assert after.prefix_tokens_ideal == 640
    assert after.depends_on == [Dependency(request_id="t1:0"), Dependency(request_id="t1/side-1:0", type="join")]
    assert after.delay_ms == 2000
    assert result.report.noted == {"calls beside the conversation, in sessions of their own": 1}


def test_a_call_beside_that_is_still_running_is_not_waited_for(tmp_path: Path) -> None:
    rows = [call(0, 650, MAIN), call(2, 130, [80, 81], api_time=30), tool(5, 780, [*MAIN, 10, 11], think_time=2)]
    main, _ = imported(tmp_path, rows).trace_set.sessions
    assert main.requests[1].depends_on is None


@pytest.mark.parametrize(
    ("blocks", "size", "model", "expected"),
    [
        ([*MAIN[:3], 50, 51], 330, "big", ("compaction", 192)),
        ([*MAIN[:7], 50, 51, 52], 650, "big", ("prune", 448)),
        ([*MAIN[:1], *range(50, 59)], 650, "big", ("tools_changed", 64)),
        ([*MAIN[:6]], 400, "big", ("rewind", 384)),
        ([*MAIN[:6], 60], 450, "small", ("model_switch", 384)),
    ],
)
def test_breaks_without_a_way_back(
    blocks: list[int], size: int, model: str, expected: tuple[str, int], tmp_path: Path
) -> None:
    rows = [call(0, 650, MAIN), call(5, size, blocks, model=model)]
    [session] = imported(tmp_path, rows).trace_set.sessions
    second = session.requests[1]
    event = second.prefix_event
    assert event is not None
    assert (event.type, event.kept_tokens, event.dropped_tokens) == (*expected, 650 - expected[1])
    assert second.prefix_tokens_ideal == expected[1]
    kept = session.requests[0].input.segments[: shape(second).keep_segments]  # type: ignore[union-attr]
    assert sum(s.tokens for s in [*kept, *shape(second).segments]) == size
    # what both share is whole segments: the first prompt is split where the second breaks off
    assert sum(s.tokens for s in kept) == (expected[1] if expected[1] >= 192 else 64)


def test_hashes_seen_anywhere_in_the_trace_count_as_prefix(tmp_path: Path) -> None:
    rows = [
        call(0, 650, MAIN),
        call(5, 330, [*MAIN[:3], 50, 51]),
        call(9, 650, [*MAIN[:3], 50, 51, 52, 53, 54, 55, 56]),
        call(12, 580, [*MAIN[:3], 50, 51, 52, 70, 71, 72]),
    ]
    [session] = imported(tmp_path, rows).trace_set.sessions
    assert [r.prefix_tokens_ideal for r in session.requests] == [0, 192, 320, 384]


# -- hashes ----------------------------------------------------------------------------------------------------------


def test_a_hash_of_the_partial_last_block_is_dropped(tmp_path: Path) -> None:
    result = imported(tmp_path, [call(0, 650, list(range(11)))])
    s = shape(result.trace_set.sessions[0].requests[0])
    assert (len(s.block_hashes), s.tail_tokens) == (10, 10)
    assert result.report.estimated == {"prompts with a hash of their last, partial block: the hash is dropped": 1}


def test_too_few_hashes_leave_the_tail_unknown(tmp_path: Path) -> None:
    result = imported(tmp_path, [call(0, 650, list(range(7)))])
    s = shape(result.trace_set.sessions[0].requests[0])
    assert (len(s.block_hashes), s.tail_tokens) == (7, None)
    assert result.report.noted == {"prompts with fewer hashes than whole blocks": 1}


def test_hashes_beyond_2_to_53_become_text_and_stay_equal(tmp_path: Path) -> None:
    big = [2**64 - 1, 2**63, "abc", *range(7)]
    rows = [call(0, 650, big), tool(5, 780, [*big, 20, 21])]
    first, second = imported(tmp_path, rows).trace_set.sessions[0].requests
    assert shape(first).block_hashes[:4] == ["ffffffffffffffff", "8000000000000000", "abc", 0]
    assert second.prefix_tokens_ideal == 640


def test_hashes_that_contradict_an_earlier_prompt_are_dropped_from_there(tmp_path: Path) -> None:
    rows = [call(0, 650, MAIN), call(5, 650, [0, 1, 5, 6, *range(50, 56)])]
    result = imported(tmp_path, rows)
    assert shape(result.trace_set.sessions[0].requests[1]).tail_tokens is None
    assert sum(result.report.estimated.values()) == 1


# -- oddities --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_replayed_as_it_is_is_kept_and_counted(tmp_path: Path) -> None:
    rows = [
        call(0, 65_000_000, []),
        call(5, 65_000_100, [], out=0, output_types=[], stop=""),
        call(9, "many", []),  # type: ignore[arg-type]
    ]
    result = imported(tmp_path, rows)
    first, second = result.trace_set.sessions[0].requests
    assert first.input_tokens == 65_000_000
    assert second.recorded is not None
    assert (second.output_tokens, second.recorded.cancelled) == (0, True)
    assert result.report.noted["calls that were cancelled, or whose answer the recorder did not understand"] == 1
    assert result.report.noted["calls without output tokens"] == 1
    assert result.report.left_out == {"calls without the size of their prompt": 1}
    assert result.report.warnings == ["trace_t1.json:2: no number in `in`; the call is left out"]


def test_prompts_smaller_than_the_announced_system_prompt(tmp_path: Path) -> None:
    result = imported(tmp_path, [call(0, 100, [0]), tool(3, 230, [0, 1, 2])])
    [session] = result.trace_set.sessions
    assert session.session.system_tokens is None
    assert sizes(session.requests[0]) == [("user", 100)]
    assert sum(result.report.noted.values()) == 1


def test_a_folder_is_one_set_and_other_files_are_said(tmp_path: Path) -> None:
    for name in ("trace_b", "trace_a"):
        document = {"id": "same", "block_size": 64, "requests": [call(0, 650, MAIN)]}
        (tmp_path / "p").mkdir(exist_ok=True)
        (tmp_path / "p" / f"{name}.json").write_text(json.dumps(document))
    (tmp_path / "p" / "manifest.json").write_text("{}")
    (tmp_path / "p" / "broken.json").write_text('{"requests": [')
    result = checked([tmp_path / "p"], tmp_path, license="Apache-2.0")
    header = result.trace_set.header
    assert [s.session.session_id for s in result.trace_set.sessions] == ["same", "same~2"]
    assert (header.content, header.block_size, header.hash_scope) == ("shape", 64, "session")
    assert (header.license, header.redistributable) == ("Apache-2.0", False)
    assert [f["uri"] for f in header.source["files"]] == ["trace_a.json", "trace_b.json"]
    assert header.counts.requests == 2
    assert str(tmp_path) not in repr(header)
    assert result.report.ignored == {"files that are not JSON": 1, "files that are no trace": 1}
    assert detect_format([tmp_path / "p"]) == "weka"
    # equal hashes of two traces mean nothing: neither shares with the other
    assert [s.requests[0].prefix_tokens_ideal for s in result.trace_set.sessions] == [0, 0]


def test_files_with_other_block_sizes_do_not_go_together(tmp_path: Path) -> None:
    for size in (16, 64):
        document = {"id": f"t{size}", "block_size": size, "requests": [call(0, 650, [])]}
        (tmp_path / f"trace_{size}.json").write_text(json.dumps(document))
    with pytest.raises(TraceError, match=r"block sizes \[16, 64\] differ"):
        read([tmp_path])


@pytest.mark.parametrize("content", ["", "[]", "{}", "{", '{"requests": 3}', '{"requests": []}'])
def test_files_that_are_no_trace_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    assert not detect(path)
    with pytest.raises(TraceError, match=r"x\.json: no "):
        read([path])
