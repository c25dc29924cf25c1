"""The chat dialect: bodies byte by byte, and the fold of what no scenario covers."""

import json
from array import array
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_scenario import Scenario, chunk, load_all, sse

from agentperf.errors import UsageError
from agentperf.wire import chat, failures
from agentperf.wire.chat_usage import Usage, read_usage, whole
from agentperf.wire.exchange import Exchange
from agentperf.wire.outcome import Outcome
from agentperf.wire.server_errors import ServerError, from_body, from_value, is_overflow

SSE_HEADERS = [("content-type", "text/event-stream")]


def exchange_of(*chunks: bytes, status: int | None = 200, **more: Any) -> Exchange:
    stamps = array("q", [1000 + 10 * i for i in range(len(chunks))])
    more.setdefault("headers", SSE_HEADERS)
    return Exchange(t0_ns=500, end_ns=9000, status=status, stamps=stamps, chunks=list(chunks), **more)


def body(settings: chat.BodySettings, messages: list[Any], tools: list[Any], target: int) -> bytes:
    encoded = b",".join(map(chat.encode_message, messages))
    return chat.body_head(settings) + encoded + chat.body_tail(settings, chat.encode_tools(tools), target)


USER = {"role": "user", "content": "say ✓"}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


def test_body_bytes() -> None:
    plain = chat.BodySettings("m", output="exact")
    assert (
        body(plain, [USER], [TOOL], 150)
        == (
            '{"model":"m","messages":[{"role":"user","content":"say ✓"}],'
            '"tools":[{"type":"function","function":{"name":"bash","parameters":{"type":"object"}}}],'
            '"stream":true,"stream_options":{"include_usage":true},"max_tokens":150,"ignore_eos":true}'
        ).encode()
    )


@pytest.mark.parametrize(
    ("options", "target", "expected"),
    [
        ({}, 150, {"max_tokens": 16384}),
        ({"output": "natural", "cap": 99}, 150, {"max_tokens": 99}),
        ({"output": "max"}, 150, {"max_tokens": 150}),
        ({"output": "max"}, 20_000, {"max_tokens": 16384}),
        ({"output": "max"}, 0, {"max_tokens": 1}),
        ({"output": "exact"}, 150, {"max_tokens": 150, "ignore_eos": True}),
        ({"output": "exact"}, 20_000, {"max_tokens": 16384, "ignore_eos": True}),
        ({"output": "exact", "ignore_eos": False}, 150, {"max_tokens": 150}),
        ({"max_tokens_field": "max_completion_tokens"}, 1, {"max_completion_tokens": 16384}),
        ({"include_usage": False}, 1, {"max_tokens": 16384, "stream_options": None}),
        ({"extra": {"temperature": 0, "max_tokens": 5}}, 1, {"temperature": 0, "max_tokens": 5}),
    ],
)
def test_tail(options: dict[str, Any], target: int, expected: dict[str, Any]) -> None:
    sent = body(chat.BodySettings("m", **options), [USER], [], target)
    value = json.loads(sent)
    assert "tools" not in value and value["stream"] is True
    assert ("ignore_eos" in value) == ("ignore_eos" in expected)
    assert {name: value.get(name) for name in expected} == expected
    assert sum(sent.count(f'"{name}"'.encode()) for name in ("max_tokens", "max_completion_tokens")) == 1


def test_turns_share_a_byte_exact_prefix() -> None:
    set_up = chat.BodySettings("m", output="exact")
    turns = [USER, {"role": "assistant", "content": "a"}, {"role": "tool", "tool_call_id": "c", "content": "b"}]
    first, second = body(set_up, turns[:1], [TOOL], 10), body(set_up, turns, [TOOL], 999)
    shared = first.index(b"]," + b'"tools"')
    assert second.startswith(first[:shared] + b",")


def test_fields_that_are_ours() -> None:
    with pytest.raises(UsageError, match="messages"):
        chat.BodySettings("m", extra={"messages": []})
    with pytest.raises(UsageError, match="at least 1"):
        chat.BodySettings("m", cap=0)


texts = st.text(max_size=40)
contents = st.one_of(
    texts,
    st.lists(
        st.one_of(
            st.fixed_dictionaries({"type": st.just("text"), "text": texts}),
            st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.just({"url": "x"})}),
        ),
        max_size=4,
    ),
)


@given(st.fixed_dictionaries({"role": st.just("user"), "name": st.sampled_from(["@salt@", "n"]), "content": contents}))
def test_salt_goes_to_the_start_of_the_text(message: dict[str, Any]) -> None:
    before, after = chat.encode_salted(message)
    salted = json.loads(before + b"[run 7]" + after)
    content = message["content"]
    if isinstance(content, str):
        assert salted == {**message, "content": "[run 7]" + content}
        assert before + after == chat.encode_message(message)
    else:
        joined = "".join(part.get("text", "") for part in salted["content"])
        assert joined == "[run 7]" + "".join(part.get("text", "") for part in content)
        others = [part for part in salted["content"] if part["type"] != "text"]
        assert others == [part for part in content if part["type"] != "text"]


def test_salt_needs_text() -> None:
    with pytest.raises(ValueError, match="without text"):
        chat.encode_salted({"role": "assistant", "content": None})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({}, None),
        ("x", None),
        ({"total_tokens": 4}, None),
        ({"prompt_tokens": True, "completion_tokens": -1}, None),
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(9, None, 2, None)),
        ({"prompt_tokens": 9.0, "completion_tokens": 2.5}, Usage(9, None, None, None)),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}},
            Usage(9, 0, 2, None),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(9, None, 2, None)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {}, "cached_tokens": 3}, Usage(9, 3, None, None)),
        ({"prompt_tokens": 9, "cache_read_input_tokens": 3}, Usage(9, 3, None, None)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 3.0}, Usage(9, 3, None, None)),
        ({"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 5}}, Usage(9, 5, 2, None)),
        ({"completion_tokens": 2, "reasoning_tokens": 1}, Usage(None, None, 2, 1)),
        ({"completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 0}}, Usage(None, None, 2, 0)),
    ],
)
def test_usage(value: Any, expected: Usage | None) -> None:
    assert read_usage(value) == expected


def test_whole() -> None:
    assert [whole(v) for v in (3, 3.0, 0)] == [3, 3, 0]
    assert [whole(v) for v in (3.5, -1, True, "3", None, float("nan"), float("inf"))] == [None] * 7


def tool(
    index: float | None = None, call_id: str | None = None, name: str | None = None, args: Any = None
) -> dict[str, Any]:
    made: dict[str, Any] = {"function": {k: v for k, v in (("name", name), ("arguments", args)) if v is not None}}
    return made | {k: v for k, v in (("index", index), ("id", call_id)) if v is not None}


@pytest.mark.parametrize(
    ("fragments", "calls"),
    [
        ([[tool(0, "a", "f", "{")], [tool(0, None, None, "}")]], [("a", "f", "{}")]),
        ([[tool(0, "a", "f", "1"), tool(1, "b", "g", "2")], [tool(1, args="3"), tool(0, args="4")]],
         [("a", "f", "14"), ("b", "g", "23")]),
        ([[tool(0, "a", "f", "{")], [tool(0, "a", "f", "}")]], [("a", "f", "{}")]),
        ([[tool(None, "a", "f", "{}")], [tool(None, "b", "f", "{}")]], [("a", "f", "{}"), ("b", "f", "{}")]),
        ([[tool(None, "a", "f", "{")], [tool(None, None, None, "}")]], [("a", "f", "{}")]),
        ([[tool(None, "a", "f", "1")], [tool(None, "b", "g", "2")], [tool(None, "a", None, "3")]],
         [("a", "f", "13"), ("b", "g", "2")]),
        ([[tool(0, "a", "f", "{}")], [tool(0, "b", "g", "{}")]], [("a", "f", "{}"), ("b", "g", "{}")]),
        ([[tool(2, "c", "f", "x")]], [("c", "f", "x")]),
        ([[tool(0, None, "f", "x")]], [("call_0", "f", "x")]),
        ([[tool(0.0, "a", "f", {"x": 1})]], [("a", "f", '{"x": 1}')]),
        ([[tool(0, "a", "ba", None)], [tool(0, None, "sh", "{}")]], [("a", "bash", "{}")]),
    ],
)  # fmt: skip
def test_tool_calls_merge(fragments: list[list[Any]], calls: list[tuple[str, str, str]]) -> None:
    out = chat.fold(exchange_of(*[chunk({"tool_calls": f}) for f in fragments], chunk(None, "tool_calls")))
    assert out.message is not None and out.outcome == "ok"
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in out.message["tool_calls"]] == calls
    assert out.message["content"] is None and out.first_answer_ns == out.first_visible_ns == 1000


def test_legacy_function_call() -> None:
    parts = [{"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}}]
    out = chat.fold(exchange_of(*map(chunk, parts), chunk(None, "function_call")))
    assert out.message is not None
    assert out.message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_both_reasoning_spellings_count_once() -> None:
    out = chat.fold(exchange_of(chunk({"reasoning": "abc", "reasoning_content": "abc"}), chunk(None, "stop")))
    assert out.visible_chars == 3


def test_share_of_the_first_stamp() -> None:
    first = chunk({"content": "ab"}) + chunk({"content": "cd"})
    out = chat.fold(exchange_of(first, chunk({"content": "efghij"}), chunk(None, "stop")))
    assert out.n1_share == 0.4
    assert out.visible_ns == [1000, 1000, 1010]


def test_only_the_first_choice_is_the_answer() -> None:
    two = {"choices": [{"delta": {"content": "a"}}, {"index": 1, "delta": {"content": "zzz"}}]}
    out = chat.fold(exchange_of(sse(two), chunk(None, "stop")))
    assert out.message == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("broken", "chunks", "expected"),
    [
        (failures.CONNECT_REFUSED, [], ("failed", failures.CONNECT_REFUSED)),
        (failures.STALL_TIMEOUT, [chunk({"content": "a"})], ("failed", failures.STALL_TIMEOUT)),
        (failures.CONNECTION_RESET, [chunk({"content": "a"})], ("failed", failures.TRUNCATED_STREAM)),
        (failures.CONNECTION_RESET, [], ("failed", failures.CONNECTION_RESET)),
        (failures.STALL_TIMEOUT, [chunk({"content": "a"}, "stop")], ("ok", None)),
        (failures.CONNECTION_RESET, [chunk(None, "stop")], ("failed", failures.TRUNCATED_STREAM)),
        (failures.CUT, [chunk({"content": "a"})], ("truncated", failures.CUT)),
        (failures.CUT, [], ("truncated", failures.CUT)),
        (failures.STALL_TIMEOUT, [sse({"error": "x"})], ("failed", failures.SERVER_ERROR_IN_STREAM)),
    ],
)
def test_broken_exchanges(broken: str, chunks: list[bytes], expected: tuple[str, str | None]) -> None:
    status = None if broken == failures.CONNECT_REFUSED else 200
    out = chat.fold(exchange_of(*chunks, status=status, error_class=broken, error="why"))
    assert (out.outcome, out.error_class) == expected
    assert (out.error is None) == (out.outcome == "ok")


def test_oversized_event_is_bad() -> None:
    out = chat.fold(exchange_of(b"data: " + b"x" * (17 << 20)))
    assert out.error_class == failures.BAD_EVENT and "MiB" in (out.error or "")


def test_long_messages_are_cut_to_one_line() -> None:
    out = chat.fold(exchange_of(b"<html>\n" + b"word \n" * 100_000, status=500, headers=[]))
    assert out.error is not None and len(out.error) < 400 and "\n" not in out.error


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b'{"error":{"message":"m","type":"t","code":5}}', ServerError("m", "t", "5")),
        (b'{"error":"m"}', ServerError("m", "", "")),
        (b'{"message":"m","object":"error","code":"c"}', ServerError("m", "", "c")),
        (b'{"detail":"m"}', ServerError("m", "", "")),
        (b'{"error":{"error":{"message":"m"}}}', ServerError("m", "", "")),
        (b'data: {"error":{"message":"m"}}\n\n', ServerError("m", "", "")),
        (b"Bad\n  Gateway", ServerError("Bad Gateway", "", "")),
        (b"", ServerError("", "", "")),
        (b"[1]", ServerError("[1]", "", "")),
        (b"\xff\xfe", ServerError("\ufffd\ufffd", "", "")),
    ],
)
def test_server_messages(sent: bytes, expected: ServerError) -> None:
    assert from_body(sent) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("This model's maximum context length is 8192 tokens", True),
        ("the request exceeds the available context size, try increasing it", True),
        ("request (26735 tokens) exceeds the available context size (8192 tokens)", True),
        ("Input length (9000 tokens) exceeds the maximum allowed length (8192 tokens).", True),
        ("The input (9001 tokens) is longer than the model's context length (8192 tokens).", True),
        ("prompt is too long: 210000 tokens > 200000 maximum", True),
        ("Requested token count exceeds the model's maximum context length of 8192 tokens", True),
        ("max_tokens must be at least 1, got -186.", True),
        ("Please reduce the length of the messages or completion.", True),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000 `inputs` tokens", True),
        ("The input token count (9000) exceeds the maximum number of tokens allowed (8192).", True),
        ("prompt length (9000) should not exceed max_seq_len (8192)", True),
        ("max_tokens is too large: 99999999", False),
        ("rate limit exceeded: 60 requests per minute", False),
        ("You exceeded your current quota", False),
        ("temperature must be at most 2", False),
        ("The model `nope` does not exist.", False),
        ("max_tokens must be at least 1, got 0", False),
    ],
)
def test_overflow_texts(text: str, expected: bool) -> None:
    assert is_overflow(from_value(text)) is expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
deltas = st.dictionaries(
    st.sampled_from(["role", "content", "reasoning", "reasoning_content", "tool_calls", "function_call", "refusal"]),
    json_values | st.lists(st.dictionaries(st.sampled_from(["index", "id", "function"]), json_values), max_size=2),
)
choices = st.dictionaries(
    st.sampled_from(["index", "delta", "message", "finish_reason", "error"]), json_values | deltas, max_size=4
)
odd_chunks = st.dictionaries(
    st.sampled_from(["choices", "usage", "error", "type", "object", "message", "code", "detail", "timings"]),
    json_values | st.lists(choices | json_values, max_size=2),
    max_size=4,
)


def data_line(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def sane(out: Outcome) -> None:
    """What holds for every outcome."""
    assert out.outcome in ("ok", "failed", "truncated")
    assert (out.outcome == "ok") == (out.error_class is None)
    assert out.error_class is None or out.error_class in failures.MEANINGS
    assert out.error is None or "\n" not in out.error
    if out.outcome == "ok":
        assert out.visible_ns
    if out.visible_ns:
        assert out.first_visible_ns == out.visible_ns[0] and out.last_visible_ns == out.visible_ns[-1]
        assert out.n1_share is not None and 0 < out.n1_share <= 1
        assert out.first_byte_ns is not None and out.first_byte_ns <= out.visible_ns[0]
    for count in (out.prompt_tokens, out.cached_tokens, out.output_tokens, out.reasoning_tokens):
        assert count is None or count >= 0
    if out.message is not None:
        chat.encode_message(out.message)
    msgspec.json.encode(out)


@settings(max_examples=300)
@given(st.lists(odd_chunks.map(data_line) | st.binary(max_size=12), max_size=6))
def test_fold_never_raises(chunks: list[bytes]) -> None:
    sane(chat.fold(exchange_of(*chunks)))


@given(json_values, st.integers(100, 600))
def test_fold_of_any_status_never_raises(value: Any, status: int) -> None:
    sane(chat.fold(exchange_of(json.dumps(value).encode(), status=status, headers=[])))


CLEAN = [s for s in load_all() if s.clean and s.reply.status == 200 and s.reply.framing == "chunked"]


@settings(max_examples=60)
@given(st.sampled_from(CLEAN), st.lists(st.integers(0, 4000), max_size=12))
def test_any_split_gives_the_same_outcome(scenario: Scenario, cuts: list[int]) -> None:
    """But for stamps, and what hangs on them."""
    whole_body = scenario.body
    at = sorted({cut % (len(whole_body) + 1) for cut in cuts} | {0, len(whole_body)})
    parts = [whole_body[a:b] for a, b in pairwise(at)]

    def timeless(out: Outcome) -> dict[str, Any]:
        value = msgspec.to_builtins(out)
        return {name: field for name, field in value.items() if name != "n1_share" and not name.endswith("_ns")}

    split, one = chat.fold(exchange_of(*parts)), chat.fold(exchange_of(*([whole_body] if whole_body else [])))
    assert timeless(split) == timeless(one)
    assert len(split.visible_ns) == len(one.visible_ns)
    sane(split)


@pytest.mark.parametrize("count", [10**30, 2**63, 2**31, -1, 1.5, "7", True, None])
def test_a_count_that_no_request_can_have_is_not_measured(count):
    assert whole(count) is None


def test_counts_are_whole_numbers_also_as_floats():
    assert [whole(0), whole(7), whole(7.0), whole(2**31 - 1)] == [0, 7, 7, 2**31 - 1]
