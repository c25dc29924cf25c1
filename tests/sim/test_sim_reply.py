"""Replies: however their tokens are cut into events, the same message comes out, and every token is visible."""

import json
import statistics
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_profiles import plain
from sim_trees import TOOLS

from agentperf.sim.prompt import ChatBody, parse_body, read_prompt
from agentperf.sim.reply import MIN_CALL_TOKENS, ReplyPlan, ReplyWriter, plan_reply

PROFILE = plain(context_tokens=60_000, kv_pool_tokens=100_000)


def events(data: bytes) -> list[Any]:
    """Decoded data of SSE events, the end mark left out."""
    found = []
    for block in data.decode().split("\n\n"):
        if block and block != "data: [DONE]":
            assert block.startswith("data: ")
            found.append(json.loads(block[6:]))
    return found


def merge(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """Content, reasoning and tool call of a stream put together."""
    out: dict[str, Any] = {"content": "", "reasoning": "", "name": None, "arguments": ""}
    for delta in deltas:
        out["content"] += delta.get("content") or ""
        out["reasoning"] += delta.get("reasoning") or ""
        for call in delta.get("tool_calls", []):
            assert call["index"] == 0
            out["name"] = out["name"] or call["function"].get("name")
            out["arguments"] += call["function"]["arguments"]
    return out


def write(plan: ReplyPlan, cuts: list[int]) -> list[Any]:
    """All events of a reply whose tokens leave in groups of these sizes, over and over."""
    writer = ReplyWriter(plan, 7, 'mo"del', 1_700_000_000)
    data, at, turn = writer.first(), 0, 0
    while at < plan.output_tokens:
        count = min(cuts[turn % len(cuts)], plan.output_tokens - at)
        data += writer.event(at, count)
        at, turn = at + count, turn + 1
    return events(data + writer.last(writer.usage(11, 5)))


_plans = st.builds(
    lambda text, reasoning, call, start, argument: ReplyPlan(
        output_tokens=max(1, text + reasoning + call),
        finish_reason="tool_calls" if call else "stop",
        reasoning_tokens=reasoning if text + call else 0,
        call_tokens=call,
        tool="bash",
        argument=argument,
        start=start,
    ),
    text=st.integers(0, 30),
    reasoning=st.integers(0, 20),
    call=st.just(0) | st.integers(MIN_CALL_TOKENS, 30),
    start=st.integers(0, 4095),
    argument=st.text(min_size=1, max_size=6),
)


@settings(max_examples=200, deadline=None)
@given(plan=_plans, cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_any_cut_gives_the_same_message(plan: ReplyPlan, cuts: list[int]) -> None:
    made = write(plan, cuts)
    *chunks, usage = made
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    whole = json.loads(ReplyWriter(plan, 7, 'mo"del', 1).whole(ReplyWriter(plan, 7, "", 1).usage(11, 5)))
    message = whole["choices"][0]["message"]
    merged = merge(deltas)
    assert merged["content"] == (message["content"] or "")
    assert merged["reasoning"] == message.get("reasoning", "")
    if plan.call_tokens:
        function = message["tool_calls"][0]["function"]
        assert merged["name"] == function["name"] == "bash"
        assert json.loads(merged["arguments"]) == json.loads(function["arguments"])
        assert list(json.loads(merged["arguments"])) == [plan.argument]
    text_tokens = plan.output_tokens - plan.call_tokens - plan.reasoning_tokens
    assert len(merged["content"]) == 4 * text_tokens
    assert len(merged["reasoning"]) == 4 * plan.reasoning_tokens
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons == [None] * (len(reasons) - 1) + [plan.finish_reason]
    assert {c["model"] for c in made} == {'mo"del'}
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == plan.output_tokens
    assert usage["usage"]["total_tokens"] == 11 + plan.output_tokens
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}


@given(plan=_plans)
def test_each_token_is_one_visible_event(plan: ReplyPlan) -> None:
    chunks = write(plan, [1])[1:-1]
    assert len(chunks) == plan.output_tokens
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        calls = delta.get("tool_calls", [{"function": {}}])
        assert any([delta.get("content"), delta.get("reasoning"), *(c["function"].values() for c in calls)])


def body(**fields: Any) -> ChatBody:
    base = {"messages": [{"role": "user", "content": f"case {fields.pop('case', 0)}"}]}
    return parse_body(json.dumps({**base, **fields}).encode())


def plan(chat: ChatBody, limit: int = 10_000, seed: int = 0, **changes: Any) -> ReplyPlan:
    profile = msgspec.structs.replace(PROFILE, **changes)
    return plan_reply(chat, read_prompt(chat, profile), limit, profile, seed)


def test_ignore_eos_writes_the_limit_exactly() -> None:
    for limit in (1, 3, 500):
        made = plan(body(ignore_eos=True), limit)
        assert (made.output_tokens, made.finish_reason) == (limit, "length")


def test_natural_length_is_log_normal_and_capped() -> None:
    made = [plan(body(case=i)) for i in range(800)]
    lengths = [p.output_tokens for p in made]
    assert statistics.median(lengths) == pytest.approx(150, rel=0.15)
    assert statistics.quantiles(lengths, n=20)[18] == pytest.approx(150 * 2.718281828**1.645, rel=0.25)
    assert {p.finish_reason for p in made} == {"stop"}
    capped = [plan(body(case=i), 100) for i in range(200)]
    assert {(p.output_tokens == 100, p.finish_reason) for p in capped} == {(True, "length"), (False, "stop")}


def test_same_prompt_same_reply_and_the_seed_counts() -> None:
    assert plan(body(case=1)) == plan(body(case=1))
    assert plan(body(case=1)) != plan(body(case=2))
    assert plan(body(case=1)) != plan(body(case=1), seed=1)


def test_share_of_tool_calls() -> None:
    tools = list(TOOLS)
    made = [plan(body(case=i, tools=tools), tool_call_share=0.7) for i in range(500)]
    calls = [p for p in made if p.call_tokens]
    assert len(calls) / len(made) == pytest.approx(0.7, abs=0.07)
    assert {(p.finish_reason, p.tool, p.argument) for p in calls} == {("tool_calls", "bash", "command")}
    assert all(p.call_tokens <= p.output_tokens for p in calls)
    assert not any(plan(body(case=i, tools=tools, tool_choice="none")).call_tokens for i in range(50))
    assert not any(plan(body(case=i)).call_tokens for i in range(50))
    assert not any(plan(body(case=i, tools=tools, ignore_eos=True), 3).call_tokens for i in range(50))
    assert not any(plan(body(case=i, tools=[1, {"function": {"name": 3}}, {}])).call_tokens for i in range(20))
    assert not any(plan(body(case=i, tools={"a": 1})).call_tokens for i in range(20))


def test_reasoning_share_leaves_an_answer() -> None:
    for limit in (1, 2, 50):
        made = plan(body(ignore_eos=True), limit, reasoning_share=1.0)
        assert made.reasoning_tokens == limit - 1
