import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builders import any_trace_set, request, session, trace_set

from agentperf.errors import TraceError
from agentperf.trace import io
from agentperf.trace.codec import blob_id
from agentperf.trace.model import Full, Segment, Shape, Splice, Tool, TraceSet
from agentperf.trace.prompts import Dependencies, Segments, prefix_tokens
from agentperf.trace.validate import Problem, validate

Record = dict[str, Any]
HEADER: Record = {"kind": "header", "format": "agentperf-trace", "version": 1, "trace_set_id": "t", "content": "mixed"}


def ses(name: str = "s", **more: Any) -> Record:
    return {"kind": "session", "session_id": name, "root_session_id": name, **more}


def req(index: int = 0, name: str = "s", **more: Any) -> Record:
    return {
        "kind": "request",
        "request_id": f"{name}-{index}",
        "session_id": name,
        "index": index,
        "input": {"mode": "append", "messages": [{"role": "user", "content": "hi"}]},
        "input_tokens": 100 * (index + 1),
        "input_tokens_source": "provider",
        "output_tokens": 10,
        "output_tokens_source": "provider",
        **more,
    }


def shape(*tokens: int, **more: Any) -> Record:
    return {"mode": "shape", "segments": [{"role": "user", "tokens": n, "kind": "user"} for n in tokens], **more}


def splice(keep: int) -> Record:
    return {"mode": "splice", "keep_messages": keep, "messages": [{"role": "user", "content": "x"}]}


def child(name: str = "c", **more: Any) -> Record:
    return ses(name, **{"root_session_id": "s", "parent_session_id": "s", **more})


def blob(type_: Any, value: Any) -> Record:
    return {"kind": "blob", "id": blob_id(type_, value), "type": type_, "value": value}


def check(path: Path, *records: Record | bytes) -> list[Problem]:
    path.write_bytes(b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records))
    return validate(path)


def short(problems: list[Problem]) -> list[tuple[int, str, str, str]]:
    return [(p.line, p.field, p.severity, p.message) for p in problems]


GOOD: list[Record] = [
    {
        **HEADER,
        "block_size": 10,
        "hash_scope": "session",
        "counts": {"sessions": 3, "requests": 6, "input_tokens": 937, "output_tokens": 60},
    },
    blob("system", "be brief"),
    blob("tools", [{"type": "function", "function": {"name": "read"}}]),
    ses(
        system_ref=blob_id("system", "be brief"),
        tools_ref=blob_id("tools", [{"type": "function", "function": {"name": "read"}}]),
    ),
    req(),
    req(1, prefix_tokens_ideal=110, tools_before=[{"call_id": "a", "name": "task", "child_session_id": "c"}]),
    req(2, input=splice(2), depends_on=[{"request_id": "s-1"}, {"request_id": "c-0", "type": "join"}]),
    child(spawn={"by_request_id": "s-0"}),
    req(0, "c", prefix_tokens_ideal=100),
    ses("h"),
    req(0, "h", input_tokens=37, input=shape(20, 10, block_hashes=[1, 2, 3], tail_tokens=7)),
    req(1, "h", input=shape(40, keep_segments=1, block_hashes=[9], keep_blocks=2)),
]


def test_a_good_file_has_no_problem(tmp_path: Path) -> None:
    assert short(check(tmp_path / "a.jsonl", *GOOD)) == []


H, S, R = HEADER, ses(), req()
CASES: dict[str, tuple[list[Record], list[tuple[int, str, str]]]] = {
    # name: (records, [(line, field, part of the message)])
    "negative counts": (
        [H, S, req(input_tokens=-1, output_tokens=-2)],
        [(3, "input_tokens", "-1 is negative"), (3, "output_tokens", "-2")],
    ),
    "reasoning above output": ([H, S, req(reasoning_tokens=11)], [(3, "reasoning_tokens", "11 of 10 output tokens")]),
    "negative delay": ([H, S, req(delay_ms=-0.5)], [(3, "delay_ms", "-0.5 is negative")]),
    "negative part of a delay": (
        [H, S, req(delay_ms=5, delay_parts={"tool_ms": 6, "human_ms": -1})],
        [(3, "delay_parts.human_ms", "-1.0 is negative")],
    ),
    "parts that do not add up": (
        [H, S, req(delay_ms=100, delay_parts={"tool_ms": 60})],
        [(3, "delay_parts", "add up to 60 ms, delay_ms is 100")],
    ),
    "prefix above prompt": (
        [H, S, R, req(1, prefix_tokens_ideal=201, input_tokens=200)],
        [(4, "prefix_tokens_ideal", "201, but the prompt has 200"), (4, "prefix_tokens_ideal", "longer than 110")],
    ),
    "prefix above parent": (
        [H, S, R, req(1, prefix_tokens_ideal=111)],
        [(4, "prefix_tokens_ideal", "111, but no earlier prompt of the session with its answer is longer than 110")],
    ),
    "prefix with nothing before": (
        [H, S, req(prefix_tokens_ideal=1)],
        [(3, "prefix_tokens_ideal", "1, but no other prompt of the file with its answer is longer than 0")],
    ),
    "segments above prompt": (
        [H, S, req(input=shape(60, 50))],
        [(3, "input_tokens", "100, but the segments of the prompt hold 110")],
    ),
    "kept segments count": (
        [H, S, req(input=shape(90, 5)), req(1, input=shape(111, keep_segments=1))],
        [(4, "input_tokens", "200, but the segments of the prompt hold 201")],
    ),
    "negative segment": ([H, S, req(input=shape(60, -5))], [(3, "input.segments[1].tokens", "-5 is negative")]),
    "blocks above prompt": (
        [{**H, "block_size": 64}, S, req(input=shape(block_hashes=[1, 2]))],
        [(3, "input_tokens", "100, but blocks and tail hold 128")],
    ),
    "tail that leaves a gap": (
        [{**H, "block_size": 64}, S, req(input=shape(block_hashes=[1], tail_tokens=30))],
        [(3, "input.tail_tokens", "30, but 36 of the prompt follow its blocks")],
    ),
    "tail of a block or more": (
        [{**H, "block_size": 64}, S, req(input=shape(tail_tokens=64))],
        [(3, "input.tail_tokens", "64 is not within a block of 64")],
    ),
    "hashes without a block size": (
        [H, S, req(input=shape(block_hashes=[1]))],
        [(3, "input.block_hashes", "no block_size")],
    ),
    "system and tools above prompt": (
        [H, ses(system_tokens=90, tools_tokens=20), R],
        [(3, "input_tokens", "100, but the session's system prompt and tools hold 110")],
    ),
    "recorded cache above prompt": (
        [H, S, req(recorded={"cached_tokens": 80, "uncached_tokens": 21})],
        [(3, "input_tokens", "add up to 101")],
    ),
    "recorded cache write above prompt": (
        [H, S, req(recorded={"cached_tokens": 80, "cache_write_tokens": 21})],
        [(3, "input_tokens", "recorded.cache_write_tokens add up to 101")],
    ),
    "recorded reasoning": (
        [H, S, req(recorded={"output_tokens": 4, "reasoning_tokens": 5})],
        [(3, "recorded.reasoning_tokens", "5 of 4")],
    ),
    "recorded negative": (
        [H, S, req(recorded={"cached_tokens": -4, "ttft_ms": -1})],
        [(3, "recorded.cached_tokens", "-4"), (3, "recorded.ttft_ms", "-1.0")],
    ),
    "recorded first token after the end": (
        [H, S, req(recorded={"ttft_ms": 9, "duration_ms": 8})],
        [(3, "recorded.ttft_ms", "9 is after duration_ms 8")],
    ),
    "tool that ends before it starts": (
        [H, S, req(tools_before=[{"call_id": "a", "name": "x", "start_ms": -3, "end_ms": -4}])],
        [(3, "tools_before[0].end_ms", "-4 is before start_ms -3")],
    ),
    "tool of negative duration": (
        [H, S, req(tools_before=[{"call_id": "a", "name": "x"}, {"call_id": "b", "name": "x", "duration_ms": -3}])],
        [(3, "tools_before[1].duration_ms", "-3.0 is negative")],
    ),
    "prefix event": (
        [H, S, req(prefix_event={"type": "prune", "dropped_tokens": -1})],
        [(3, "prefix_event.dropped_tokens", "-1")],
    ),
    "dangling dependency": (
        [H, S, req(depends_on=[{"request_id": "gone"}])],
        [(3, "depends_on[0].request_id", "no request 'gone' in this file")],
    ),
    "dangling child": (
        [H, S, req(tools_before=[{"call_id": "a", "name": "x", "child_session_id": "gone"}])],
        [(3, "tools_before[0].child_session_id", "no session 'gone'")],
    ),
    "dangling blobs": (
        [H, ses(system_ref="sha256:1", tools_ref="sha256:2")],
        [(2, "system_ref", "no blob 'sha256:1'"), (2, "tools_ref", "no blob 'sha256:2'")],
    ),
    "blob of another type": (
        [H, blob("text", "a"), ses(system_ref=blob_id("text", "a"))],
        [(3, "system_ref", "is of type text, not system")],
    ),
    "blob with another content": (
        [H, {**blob("text", "a"), "value": "b"}],
        [(2, "id", "the content has another address")],
    ),
    "blob twice": ([H, blob("text", "a"), blob("text", "a")], [(3, "id", "already in this file")]),
    "blob that is no list": (
        [H, blob("tools", {"a": 1}), blob("text", 3), blob("system", 3)],
        [(2, "value", "list of objects"), (3, "value", "string"), (4, "value", "string")],
    ),
    "dependency of itself": (
        [H, S, req(depends_on=[{"request_id": "s-0"}])],
        [(3, "depends_on", "waits for itself: s-0 -> s-0")],
    ),
    "cycle": (
        [H, S, req(depends_on=[{"request_id": "s-2"}]), req(1), req(2)],
        [(3, "depends_on", "waits for itself: s-0 -> s-2 -> s-1 -> s-0")],
    ),
    "cycle through a child": (
        [
            H,
            S,
            req(depends_on=[{"request_id": "c-0", "type": "join"}]),
            child(spawn={"by_request_id": "s-0"}),
            req(0, "c"),
        ],
        [(3, "depends_on", "s-0 -> c-0 -> s-0")],
    ),
    "dependency on another tree": (
        [H, S, R, ses("z"), req(0, "z", depends_on=[{"request_id": "s-0"}])],
        [(5, "depends_on[0].request_id", "belongs to another tree, 's'")],
    ),
    "unknown parent": ([H, S, child(parent_session_id="gone")], [(3, "parent_session_id", "no session 'gone'")]),
    "unknown root": (
        [H, S, child(root_session_id="gone")],
        [(3, "root_session_id", "no session 'gone'")],
    ),
    "root of another tree": (
        [H, S, ses("z"), child(root_session_id="z")],
        [(4, "root_session_id", "'z', but its parent's is 's'")],
    ),
    "root that is not its own": ([H, S, ses("b", root_session_id="s")], [(3, "root_session_id", "is its own root")]),
    "its own parent": ([H, ses(parent_session_id="s")], [(2, "parent_session_id", "not its own parent")]),
    "parents in a circle": (
        [
            H,
            child("a", parent_session_id="b", root_session_id="a"),
            child("b", parent_session_id="a", root_session_id="a"),
        ],
        [(2, "parent_session_id", "own ancestor"), (3, "parent_session_id", "own ancestor")],
    ),
    "spawn without a parent": (
        [H, S, R, ses("c", spawn={"by_request_id": "s-0"})],
        [(4, "spawn", "no parent_session_id"), (4, "spawn.by_request_id", "another tree")],
    ),
    "spawn by another session": (
        [H, S, R, child("c"), req(0, "c"), child("d", spawn={"by_request_id": "c-0"})],
        [(6, "spawn.by_request_id", "belongs to session 'c', not to the parent 's'")],
    ),
    "unknown session": ([H, req(0)], [(2, "session_id", "no session 's'")]),
    "gap in the index": ([H, S, R, req(2)], [(4, "index", "expected 1, got 2")]),
    "session twice": ([H, S, S], [(3, "session_id", "'s' is already taken at")]),
    "request twice": ([H, S, R, req(1, request_id="s-0")], [(4, "request_id", "'s-0' is already taken at")]),
    "splice beyond the parent": (
        [H, S, R, req(1, input=splice(2))],
        [(4, "input.keep_messages", "keeps 2 messages, the parent has 1")],
    ),
    "splice after full": (
        [
            H,
            S,
            R,
            req(1),
            req(2, input={"mode": "full", "messages": [{"role": "user", "content": "a"}]}),
            req(3, input=splice(2)),
        ],
        [(6, "input.keep_messages", "keeps 2 messages, the parent has 1")],
    ),
    "splice without a parent": (
        [H, S, req(input=splice(1))],
        [(3, "input.keep_messages", "keeps 1 messages, the parent has 0")],
    ),
    "negative splice": ([H, S, R, req(1, input=splice(-1))], [(4, "input.keep_messages", "keeps -1 messages")]),
    "splice on a shape": (
        [H, S, req(input=shape(1)), req(1, input=splice(1))],
        [(4, "input.keep_messages", "is a shape")],
    ),
    "segments beyond the parent": (
        [H, S, req(input=shape(1, 2)), req(1, input=shape(3, keep_segments=3))],
        [(4, "input.keep_segments", "keeps 3 segments, the parent has 2")],
    ),
    "segments without a parent": (
        [H, S, R, req(1, input=shape(3, keep_segments=1))],
        [(4, "input.keep_segments", "no parent with segments")],
    ),
    "blocks beyond the parent": (
        [
            {**H, "block_size": 10},
            S,
            req(input=shape(block_hashes=[1, 2])),
            req(1, input=shape(block_hashes=[3], keep_blocks=3)),
        ],
        [(4, "input.keep_blocks", "keeps 3 blocks, the parent has 2")],
    ),
    "fork beyond its source": (
        [H, S, R, child(spawn={"by_request_id": "s-0", "kind": "fork"}), req(0, "c", input=splice(2))],
        [(5, "input.keep_messages", "keeps 2 messages, the parent has 1")],
    ),
    "block after another one": (
        [
            {**H, "block_size": 10},
            S,
            req(input=shape(block_hashes=[1, 2, 3])),
            req(1, input=shape(block_hashes=[1, 3])),
        ],
        [(4, "input.block_hashes[1]", "block 3 follows 1 here, but 2 earlier")],
    ),
    "block twice in a prompt": (
        [{**H, "block_size": 10}, S, req(input=shape(block_hashes=[1, 1]))],
        [(3, "input.block_hashes[1]", "block 1 follows 1 here, but nothing earlier")],
    ),
    "block after kept ones": (
        [
            {**H, "block_size": 10},
            S,
            req(input=shape(block_hashes=[1, 2, 3])),
            req(1, input=shape(block_hashes=[3], keep_blocks=1)),
        ],
        [(4, "input.block_hashes[0]", "block 3 follows 1 here, but 2 earlier")],
    ),
    "block in two sessions of a file": (
        [
            {**H, "block_size": 10, "hash_scope": "file"},
            S,
            req(input=shape(block_hashes=[1, 2])),
            ses("z"),
            req(0, "z", input=shape(block_hashes=[2])),
        ],
        [(5, "input.block_hashes[0]", "block 2 follows nothing here, but 1 earlier")],
    ),
    "shape in a full set": ([{**H, "content": "full"}, S, req(input=shape(1))], [(3, "input.mode", "content is full")]),
    "messages in a shape set": ([{**H, "content": "shape"}, S, R], [(3, "input.mode", "content is shape")]),
    "role": (
        [H, S, req(input={"mode": "append", "messages": [{"role": "user"}, {"role": "boss"}, {}]})],
        [(3, "input.messages[1].role", "'boss' is none of"), (3, "input.messages[2].role", "None is none of")],
    ),
    "counts of the header": (
        [{**H, "counts": {"sessions": 1, "requests": 2, "input_tokens": 100, "output_tokens": 9}}, S, R],
        [
            (1, "counts.output_tokens", "announces 9, the file holds 10"),
            (1, "counts.requests", "announces 2, the file holds 1"),
        ],
    ),
    "licence of a public set": ([{**H, "redistributable": True}], [(1, "license", "missing")]),
    "block size": ([{**H, "block_size": 0}], [(1, "block_size", "0 is not positive")]),
    "duration without unit": (
        [{**H, "generator": {"run_time": 3.5}}, ses(x_wait=3), req(recorded={"x": {"latency": 1}})],
        [
            (1, "generator.run_time", "end in _ms"),
            (2, "x_wait", "end in _ms"),
            (3, "recorded.x", "unknown field"),
            (3, "recorded.x.latency", "end in _ms"),
        ],
    ),
    "duration in another unit": ([H, ses(x_wait_s=3)], [(2, "x_wait_s", "milliseconds")]),
    "unknown fields": (
        [
            H,
            ses(new=1, x_old=2, spawn=None),
            req(
                input={**shape(1), "more": 1, "segments": [{"role": "user", "tokens": 1, "kind": "user", "odd": 2}]},
                tools_before=[{"call_id": "a", "name": "b", "x_c": 1}],
            ),
        ],
        [
            (2, "new", "name it x_"),
            (3, "input.more", "lost when"),
            (3, "input.segments[0].odd", "lost when"),
            (3, "tools_before[0].x_c", "lost when"),
        ],
    ),
    "several wrong types": (
        [H, S, {**req(input_tokens="1", delay_ms="2"), "index": None, "input": {"mode": "append", "messages": 3}}],
        [
            (3, "delay_ms", "Expected `float`, got `str`"),
            (3, "index", "got `null`"),
            (3, "input.messages", "Expected `array`, got `int`"),
            (3, "input_tokens", "Expected `int`, got `str`"),
        ],
    ),
    "missing fields": (
        [H, {"kind": "session"}, {"kind": "blob"}],
        [
            (2, "root_session_id", "missing"),
            (2, "session_id", "missing"),
            (3, "id", "missing"),
            (3, "type", "missing"),
            (3, "value", "missing"),
        ],
    ),
    "kinds": (
        [H, {"kind": "sesion"}, {"a": 1}, {"kind": [1]}],
        [
            (2, "kind", "'sesion' is none of header, blob, session, request"),
            (3, "kind", "missing"),
            (4, "kind", "[1] is none of"),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_rule_names_line_and_field(tmp_path: Path, name: str) -> None:
    records, expected = CASES[name]
    problems = check(tmp_path / "a.jsonl", *records)
    found = sorted(((p.line, p.field, p.message) for p in problems), key=lambda f: f[:2])
    assert [(line, field) for line, field, _ in found] == [(line, field) for line, field, _ in expected], found
    for (_, _, message), (_, _, part) in zip(found, expected, strict=True):
        assert part in message
    warnings = {
        "parts that do not add up",
        "duration in another unit",
        "unknown fields",
        "recorded first token after the end",
    }
    assert {p.severity for p in problems} <= ({"warning"} if name in warnings else {"error", "warning"})
    assert any(p.severity == "error" for p in problems) == (name not in warnings)


def test_what_is_allowed(tmp_path: Path) -> None:
    fine = [
        {**HEADER, "block_size": 10, "hash_scope": "session"},
        ses(system_tokens=90, tools_tokens=20, x_a_ms=4, x_n=2),
        # a helper call goes without the agent's system prompt; a tool can start while the call still streams
        req(trigger="side", tools_before=[{"call_id": "a", "name": "x", "start_ms": -3, "end_ms": 2}]),
        # the longest earlier prompt of the session counts, not just the one before it
        req(1, input_tokens=500, input=shape(100, 300, block_hashes=[1, 2, 3])),
        req(2, input_tokens=150, input=shape(100, keep_blocks=0, block_hashes=[1, 2])),
        req(
            3,
            input_tokens=600,
            prefix_tokens_ideal=400,
            input=shape(5, keep_segments=1, block_hashes=[3], keep_blocks=2),
        ),
        # two counts of different tokenizers need not agree
        req(4, input_tokens_source="estimated", recorded={"cached_tokens": 900, "uncached_tokens": 900}),
        # equal hashes of another tree mean nothing in this scope
        ses("z"),
        req(0, "z", input=shape(block_hashes=[2, 1])),
        req(1, "z", depends_on=[]),
    ]
    assert short(check(tmp_path / "a.jsonl", *fine)) == []


def test_forked_child_builds_on_its_source(tmp_path: Path) -> None:
    fork = child(spawn={"by_request_id": "s-1", "kind": "fork"})
    first = req(0, "c", input=splice(2), prefix_tokens_ideal=210, input_tokens=300)
    assert (
        short(check(tmp_path / "a.jsonl", HEADER, S, R, req(1), fork, first, req(1, "c", prefix_tokens_ideal=100)))
        == []
    )
    # its source later in the file: nothing is known of it yet, so nothing is held against the child
    assert short(check(tmp_path / "a.jsonl", HEADER, S, R, fork, first, req(1))) == []


def test_it_goes_on_after_every_fault_and_does_not_repeat_it(tmp_path: Path) -> None:
    problems = check(
        tmp_path / "a.jsonl",
        {**HEADER, "counts": {"sessions": 2, "requests": 3, "input_tokens": 600, "output_tokens": 30}},
        {**ses(), "tags": 3},
        R,
        {**req(1), "output_tokens": None},
        b"{not json}\n",
        b'{"kind":"session","session_id":"\xff"}\n',
        req(2, input=splice(2), depends_on=[{"request_id": "s-1"}]),
        b'{"kind":"request","reques',
    )
    assert [(p.line, p.field) for p in problems] == [(2, "tags"), (4, "output_tokens"), (5, ""), (6, ""), (8, "")]
    assert "cut off" in problems[-1].message
    assert "not UTF-8" in problems[3].message


def test_first_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert short(check(path, S, R)) == [
        (1, "kind", "error", "no agentperf trace: the first line is not a header record of the agentperf trace format")
    ]
    assert [(p.line, p.field) for p in check(path, {**HEADER, "version": 9}, {"kind": "new"})] == [(1, "version")]
    assert [(p.line, p.field) for p in check(path, HEADER, HEADER, S)] == [(2, "kind")]
    assert [(p.line, p.field) for p in check(path, {**HEADER, "block_size": "x"}, S)] == [(1, "block_size")]
    assert short(check(path)) == [(1, "", "error", "the file is empty, expected a header")]
    assert len(check(path, *[{"type": "user"}] * 1000)) == 20
    assert check(path, b"\x1f\x8b\x08")[0].field == ""
    with pytest.raises(TraceError, match="no such trace set"):
        validate(tmp_path / "none")


def test_cut_off_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    io.write(trace_set(session("s", [request("s", 0)])), path)
    path.write_bytes(path.read_bytes()[:-3])
    problems = validate(path)
    assert "damaged or cut off" in problems[0].message


def test_folder(tmp_path: Path) -> None:
    io.write(trace_set(session("s", [request("s", 0)])), tmp_path / "1.jsonl.gz")
    io.write(trace_set(session("s", [request("s", 0, delay_ms=-1.0)])), tmp_path / "2.jsonl")
    found = sorted((Path(p.file).name, p.line, p.field) for p in validate(tmp_path))
    assert found == [("2.jsonl", 2, "session_id"), ("2.jsonl", 3, "delay_ms"), ("2.jsonl", 3, "request_id")]
    (clash,) = {p.message for p in validate(tmp_path) if p.field == "session_id"}
    assert clash.endswith("1.jsonl.gz:2")


KEY = "sk-ant-" + "a1B2c3D4e5" * 4


def test_secrets_matter_when_the_set_may_be_passed_on(tmp_path: Path) -> None:
    public = {**HEADER, "redistributable": True, "license": "MIT", "attribution": "Ann <ann@corp.io>"}
    talk = req(input={"mode": "append", "messages": [{"role": "user", "content": f"use {KEY}\nmail bob@corp.io"}]})
    records = [ses(x_note={"token": KEY}), talk, req(1, output={"text": "mail bob@example.com"})]
    problems = check(tmp_path / "a.jsonl", public, *records)
    assert [(p.line, p.field, p.severity) for p in problems] == [
        (2, "x_note.token", "error"),
        (3, "input.messages[0].content", "error"),
        (3, "input.messages[0].content", "warning"),
    ]
    assert "anthropic-key, characters 4 to 51" in problems[1].message
    assert not any(KEY in str(p) or "bob@" in str(p) for p in problems)
    assert check(tmp_path / "a.jsonl", HEADER, *records) == []


def test_problem_as_a_line() -> None:
    problem = Problem(file="a", line=3, field="b.c", message="wrong")
    assert str(problem) == "a:3: b.c: wrong"
    assert str(Problem(file="a", line=3, field="", message="odd", severity="warning")) == "a:3: warning: odd"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(any_trace_set())
def test_any_set_is_checked_without_an_exception(tmp_path_factory: pytest.TempPathFactory, made: TraceSet) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    io.write(made, path)
    lines = len(path.read_bytes().splitlines())
    assert all(1 <= p.line <= lines and p.message for p in validate(path))


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=200)
    | st.lists(st.sampled_from([json.dumps(r).encode() + b"\n" for r in GOOD]) | st.binary(max_size=6)).map(b"".join)
)
def test_any_bytes_are_checked_and_agree_with_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.jsonl"
    path.write_bytes(data)
    problems = validate(path)
    try:
        io.load(path)
    except TraceError:
        assert any(p.severity == "error" for p in problems)  # what cannot be read is always reported


def test_a_set_without_problems_is_built_from_structs(tmp_path: Path) -> None:
    made = trace_set(
        session(
            "s",
            [
                request("s", 0, input=Full(messages=[{"role": "user", "content": "a"}])),
                request("s", 1, input=Splice(keep_messages=1, messages=[]), tools_before=[Tool(call_id="1", name="x")]),
                request("s", 2, input=Shape(segments=[Segment(role="user", tokens=300, kind="user")])),
            ],
        ),
        content="mixed",
    )
    io.write(made, tmp_path / "a.jsonl.zst")
    assert validate(tmp_path / "a.jsonl.zst") == []


@given(
    st.lists(st.tuples(st.integers(0, 100), st.lists(st.integers(0, 50), max_size=5)), max_size=12), st.integers(0, 60)
)
def test_prefix_tokens_equals_the_written_out_prompt(steps: list[tuple[int, list[int]]], n: int) -> None:
    chain, written = None, []
    for wish, own in steps:
        keep = min(wish, len(written))
        chain, written = Segments(chain, keep, own), written[:keep] + own
    n = min(n, len(written))
    assert prefix_tokens(chain, n) == sum(written[:n])
    assert chain is None or (chain.count, chain.total) == (len(written), sum(written))


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdefz"), max_size=3)))
def test_cycles_are_cycles_and_none_is_overlooked(edges: dict[str, list[str]]) -> None:
    found = Dependencies(edges=edges).cycles()
    for cycle in found:
        assert len(set(cycle)) == len(cycle)
        assert all(b in edges[a] for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    reach = {a: {d for d in edges[a] if d in edges} for a in edges}
    for _ in edges:
        reach = {a: set().union(r, *(reach[d] for d in r)) for a, r in reach.items()}
    assert bool(found) == any(a in r for a, r in reach.items())
