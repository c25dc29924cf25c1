"""Whatever is in the files: a valid set that accounts for every call, or a TraceError."""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from claude_files import Talk, text, think, use
from hypothesis import given, settings
from hypothesis import strategies as st

from agentperf.errors import TraceError
from agentperf.trace.importers import claude_code, weka
from agentperf.trace.importers.result import ImportResult
from agentperf.trace.io import write
from agentperf.trace.validate import validate

MAIN = "s1.jsonl"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def seen_and_valid(result: ImportResult, folder: Path) -> None:
    report = result.report
    assert report.requests + sum(report.left_out.values()) == report.requests_seen
    assert report.requests == sum(len(s.requests) for s in result.trace_set.sessions)
    out = folder / "out" / "set.jsonl"
    write(result.trace_set, out)
    assert validate(out) == []


# -- Claude Code -----------------------------------------------------------------------------------------------------


def session_lines() -> list[dict[str, Any]]:
    """A session with everything in it: tools, a subagent inline, compaction, a rewind, the client's own errors."""
    talk = Talk()
    talk.user(0, "go")
    fork = talk.answer(
        1, "m1", think("hm"), text("One."), use("a", command="x"), use("t", "Task", prompt="sub"), out=300
    )
    talk.result(2, "a", [text("x")])
    talk.result(9, "t", "done", toolUseResult={"agentId": "abc", "status": "completed"})
    talk.answer(10, "m1b", use("b", "AskUserQuestion"), prompt=(1, 50, 20_100))
    talk.result(40, "b", "The user doesn't want to proceed with this tool use.", error=True)
    talk.user(41, "[Request interrupted by user]")
    talk.user(50, "again", parent=fork)
    talk.answer(51, "e1", text("API Error"), model="<synthetic>", prompt=(0, 0, 0))
    talk.answer(55, "m2", text("Two."), prompt=(1, 60, 20_150))
    talk.add("system", 60, subtype="compact_boundary", parent=None)
    talk.user(60, "Summary", isCompactSummary=True)
    talk.answer(70, "m3", text("Three."), prompt=(3, 9_000, 15_000))
    talk.add("progress", 71, data={"type": "agent_progress", "agentId": "abc"}, parentToolUseID="t")
    child = Talk("s1", "abc")
    child.user(1.5, "sub")
    child.answer(4, "c1", use("ca", "Read", file_path="x.py"), prompt=(1, 10, 5_000))
    child.result(5, "ca", "1")
    child.answer(8, "c2", text("ok"), prompt=(1, 10, 5_010))
    return talk.lines + child.lines


LINES = session_lines()


def calls_in(data: bytes) -> int:
    """Answers of a file by `message.id`, found without the importer."""
    found = set()
    for number, line in enumerate(data.split(b"\n")):
        try:
            fields = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            continue
        if not isinstance(fields, dict) or fields.get("type") != "assistant":
            continue
        if isinstance(message := fields.get("message"), dict):
            id_, request = (
                v if isinstance(v, str) and v else None for v in (message.get("id"), fields.get("requestId"))
            )
            side = fields.get("isSidechain") is True
            found.add((side, id_, None if id_ else request, None if id_ or request else number))
    return len(found)


def import_bytes(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / MAIN
        path.write_bytes(data)
        try:
            result = claude_code.read([path])
        except TraceError:
            return
        assert result.report.requests_seen >= calls_in(data)
        seen_and_valid(result, Path(name))


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 400), st.booleans())
def test_lines_in_any_order_cut_off_and_repeated(rng: random.Random, cut: int, repeat: bool) -> None:
    lines = [json.dumps(line) for line in LINES]
    rng.shuffle(lines)
    if repeat:
        lines += rng.sample(lines, 5)
    data = "\n".join(lines).encode() + b"\n"
    import_bytes(data[: len(data) - cut])


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.binary(max_size=40), max_size=5))
def test_garbage_between_lines_and_bytes_that_flip(rng: random.Random, garbage: list[bytes]) -> None:
    lines = [json.dumps(line).encode() for line in LINES]
    for piece in garbage:
        lines.insert(rng.randrange(len(lines)), piece)
    data = bytearray(b"\n".join(lines))
    for _ in range(rng.randrange(6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    import_bytes(bytes(data))


def mutated(value: Any, rng: random.Random, junk: list[Any]) -> Any:
    """The same document with some of its parts dropped or replaced by anything."""
    if rng.random() < 0.02:
        return rng.choice(junk)
    if isinstance(value, dict):
        return {k: mutated(v, rng, junk) for k, v in value.items() if rng.random() > 0.02}
    if isinstance(value, list):
        return [mutated(v, rng, junk) for v in value]
    return value


@settings(max_examples=120, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(json_values, min_size=1, max_size=4))
def test_fields_of_any_other_type(rng: random.Random, junk: list[Any]) -> None:
    lines = [json.dumps(mutated(line, rng, junk)) for line in LINES]
    import_bytes("\n".join(lines).encode())


# -- weka ------------------------------------------------------------------------------------------------------------


def weka_document() -> dict[str, Any]:
    def call(t: float, size: int, blocks: list[int], **more: Any) -> dict[str, Any]:
        row = {"t": t, "type": "s", "model": "m", "in": size, "out": 20, "hash_ids": blocks, "input_types": ["text"]}
        return row | {"output_types": ["text"], "stop": "tool_use", "api_time": 1.0, "think_time": 2.0} | more

    def sub(t: float, rows: list[dict[str, Any]]) -> dict[str, Any]:
        more = {
            "agent_id": "a",
            "subagent_type": "Explore",
            "duration_ms": 8_000,
            "tool_tokens": 64,
            "system_tokens": 64,
        }
        return {"type": "subagent", "t": t, "requests": rows} | more

    first = list(range(10))
    rows = [
        call(0, 650, first),
        sub(12, [call(0, 200, [90, 91, 92]), sub(5, [call(1, 70, [95])])]),
        call(14, 780, [*first, 10, 11], input_types=["tool_result"]),
        call(18, 130, [80, 81], model="small"),
        call(22, 860, [*first, 10, 11, 12], input_types=["tool_result"], out=0, output_types=[], stop=""),
        call(40, 400, [*first[:4], 50, 51]),
    ]
    return {"id": "t1", "block_size": 64, "tool_tokens": 128, "system_tokens": 64, "requests": rows}


def count_weka(value: Any) -> int:
    rows = value.get("requests") if isinstance(value, dict) else None
    n = 0
    for row in rows if isinstance(rows, list) else []:
        n += count_weka(row) if isinstance(row, dict) and row.get("type") == "subagent" else 1
    return n


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(json_values, min_size=1, max_size=4), st.booleans())
def test_weka_documents_with_anything_in_them(rng: random.Random, junk: list[Any], shuffled: bool) -> None:
    document = weka_document()
    if shuffled:
        rng.shuffle(document["requests"])
    document = mutated(document, rng, junk)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "t.json"
        path.write_text(json.dumps(document))
        try:
            result = weka.read([path])
        except TraceError:
            return
        assert result.report.requests_seen == count_weka(json.loads(path.read_text()))
        seen_and_valid(result, Path(name))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2_000), st.binary(max_size=10))
def test_weka_files_cut_off_anywhere(cut: int, garbage: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "t.json"
        path.write_bytes(json.dumps(weka_document()).encode()[:cut] + garbage)
        weka.detect(path)
        try:
            result = weka.read([path])
        except TraceError:
            return
        seen_and_valid(result, Path(name))
