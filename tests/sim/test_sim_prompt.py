"""Prompt sizes and block names from request bodies."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_profiles import plain
from sim_trees import TOOLS

from agentperf.sim.prompt import Prompt, block_bytes, hash_blocks, parse_body, read_prompt

PROFILE = plain(message_overhead_tokens=4, block_tokens=16, bytes_per_token=4.0)


def prompt_of(messages: list[dict[str, Any]], **fields: Any) -> Prompt:
    return read_prompt(parse_body(json.dumps({"messages": messages, **fields}).encode()), PROFILE)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_size_golden() -> None:
    # 400 characters are 100 tokens; 4 for the message's header, 4 for the reply's.
    assert prompt_of([user("x" * 400)]).tokens == 108
    assert prompt_of([user("x" * 401)]).tokens == 109
    assert prompt_of([{"role": "system", "content": "s" * 40}, user("x" * 400)]).tokens == 10 + 4 + 100 + 4 + 4
    assert prompt_of([user("ü" * 200)]).tokens == 108  # bytes count, not characters
    assert prompt_of([user("\n" * 400)]).tokens == 108  # JSON escapes do not


def test_all_text_counts() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
    with_call = [user("x" * 400), {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert prompt_of(with_call).tokens == 108 + 4 + (len('bash{"command":"ls"}') // 4)
    parts = [{"role": "user", "content": [{"type": "text", "text": "x" * 200}, {"type": "text", "text": "x" * 200}]}]
    assert prompt_of(parts).tokens == 108
    tools_json = json.dumps(list(TOOLS)).encode()
    body = b'{"messages":[{"role":"user","content":""}],"tools":' + tools_json + b"}"
    assert read_prompt(parse_body(body), PROFILE).tokens == -(-len(tools_json) // 4) + 8
    assert read_prompt(parse_body(body[:-1] + b',"tool_choice":"none"}'), PROFILE).tokens == 8
    assert prompt_of([user("x" * 400)], tools=[]).tokens == prompt_of([user("x" * 400)], tools=None).tokens == 108


_texts = st.lists(st.text(max_size=300), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(texts=_texts, cut=st.integers(1, 8))
def test_a_longer_history_keeps_the_blocks_of_its_prefix(texts: list[str], cut: int) -> None:
    messages = [user(text) for text in texts]
    part, whole = prompt_of(messages[:cut], tools=list(TOOLS)), prompt_of(messages, tools=list(TOOLS))
    assert whole.block_hashes[: len(part.block_hashes)] == part.block_hashes
    assert part.tokens <= whole.tokens
    assert len(set(whole.block_hashes)) == len(whole.block_hashes)
    assert len(whole.block_hashes) == (whole.tokens - 4) // 16 or len(whole.block_hashes) == (whole.tokens - 5) // 16


def test_a_change_renames_its_block_and_all_behind_it() -> None:
    text = "".join(random.Random(1).choice("abcdef") for _ in range(64 * 20))
    changed = text[: 64 * 7 + 5] + "Z" + text[64 * 7 + 6 :]
    one, two = prompt_of([user(text)]), prompt_of([user(changed)])
    same = [a == b for a, b in zip(one.block_hashes, two.block_hashes, strict=True)]
    at = (16 + 64 * 7 + 5) // 64
    assert same == [True] * at + [False] * (len(same) - at)
    assert one.digest != two.digest


def test_a_role_is_part_of_the_prefix() -> None:
    one = prompt_of([{"role": "user", "content": "x" * 400}])
    two = prompt_of([{"role": "assistant", "content": "x" * 400}])
    assert one.block_hashes[0] != two.block_hashes[0]


def test_hash_blocks_do_not_depend_on_the_rest() -> None:
    data = bytes(range(256)) * 3
    hashes, digest = hash_blocks(data, 100)
    assert len(hashes) == 7
    assert hashes == hash_blocks(data[:700], 100)[0]
    assert digest != hash_blocks(data[:767], 100)[1]
    assert hash_blocks(b"", 100)[0] == []


def test_block_bytes_of_uneven_tokens() -> None:
    assert block_bytes(plain(block_tokens=16, bytes_per_token=3.7)) == 59
    assert block_bytes(plain(block_tokens=1, bytes_per_token=0.5)) == 1


def test_output_limit_prefers_the_newer_field() -> None:
    def limit(**fields: Any) -> int | None:
        return parse_body(json.dumps({"messages": [], **fields}).encode()).output_limit

    assert limit(max_tokens=5) == 5
    assert limit(max_tokens=5, max_completion_tokens=7) == 7
    assert limit() is None


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
_keys = st.sampled_from(["messages", "tools", "model", "max_tokens", "stream", "stream_options", "ignore_eos", "x"])
_message = st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name"]), _json, max_size=4)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(_keys, _json | st.lists(_message, max_size=3), max_size=5) | _json)
def test_any_json_is_read_or_refused(value: Any) -> None:
    try:
        body = parse_body(json.dumps(value).encode())
    except ValueError:
        return
    assert read_prompt(body, PROFILE).tokens >= 1


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse_body(data)
    except ValueError:
        return


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_body(b'{"messages":[],"tool_choice":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
