import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from trace_builders import any_trace_set, request, session, trace_set

from agentperf.trace import io
from agentperf.trace.model import (
    Append,
    DelayParts,
    Full,
    Input,
    Message,
    Request,
    Segment,
    SessionTrace,
    Shape,
    Spawn,
    Splice,
    Tool,
    TraceSet,
)
from agentperf.trace.stats import TraceStats, describe, ideal_prefixes, quantiles


def turn(index: int, tokens: int, given: Input, **more: object) -> Request:
    return request("s", index, input_tokens=tokens, input=given, **more)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def test_by_hand() -> None:
    calls = [
        Tool(call_id="1", name="read", duration_ms=10.0),
        Tool(call_id="2", name="read", start_ms=-5.0, end_ms=25.0, is_error=True),
        Tool(call_id="3", name="bash"),
    ]
    main = session(
        "s",
        [
            turn(0, 1000, Append(messages=[]), trigger="user", prefix_tokens_ideal=0, output_tokens=50, delay_ms=9.0),
            turn(
                1,
                1200,
                Append(messages=[]),
                tools_before=calls,
                delay_ms=40.0,
                delay_source="measured",
                prefix_tokens_ideal=1050,
                output_tokens=150,
                reasoning_tokens=20,
                delay_parts=DelayParts(tool_ms=30.0, client_ms=10.0),
            ),
            turn(
                2,
                2000,
                Append(messages=[]),
                tools_before=calls[:1],
                delay_ms=10.0,
                delay_source="derived",
                output_tokens=100,
            ),
            turn(
                3,
                2200,
                Append(messages=[]),
                trigger="user",
                delay_ms=5000.0,
                delay_source="measured",
                output_tokens=100,
                delay_parts=DelayParts(human_ms=4900.0, client_ms=100.0),
            ),
            turn(4, 2300, Append(messages=[]), tools_before=calls[:1], output_tokens=100),  # wait not known
        ],
        language="go",
    )
    kid = session(
        "kid",
        [request("kid", 0, input_tokens=300, output_tokens=7, trigger="subagent")],
        root_session_id="s",
        parent_session_id="s",
        language="rust",
    )
    made = io.sealed(
        trace_set(main, kid, session("empty"), license="MIT", attribution="A", redistributable=True, content="mixed")
    )
    stats = describe(made)
    assert (stats.sessions, stats.trees, stats.subagents, stats.requests) == (3, 2, 1, 6)
    assert (stats.input_tokens_total, stats.output_tokens_total) == (9000, 507)
    assert (stats.license, stats.attribution, stats.redistributable, stats.content) == ("MIT", "A", True, "mixed")
    assert stats.digest == made.digest != ""
    assert stats.languages == {"go": 1, "unspecified": 1}
    assert (stats.turns.n, stats.turns.mean, stats.turns.p50) == (3, 2.0, 1.0)
    assert (stats.turns_main.n, stats.turns_main.max) == (2, 5.0)
    # prefixes: 0 and 1050 are given; then by arithmetic the parent's whole prompt: 1200, 2000, 2200; the child's: 0
    assert ideal_prefixes(made) == {"s-0": 0, "s-1": 1050, "s-2": 1200, "s-3": 2000, "s-4": 2200, "kid-0": 0}
    assert stats.ideal_prefix_hit == pytest.approx((1050 + 1200 + 2000 + 2200) / 9000)
    assert stats.prefix_given_share == pytest.approx(2 / 6)
    # appended: 150, 800, 200, 100; linear quantiles at positions 0.3, 1.5, 2.7
    assert stats.append_tokens.n == 4
    assert stats.append_tokens.mean == 312.5
    assert stats.append_tokens.p10 == pytest.approx(100 + 0.3 * 50)
    assert stats.append_tokens.p50 == 175
    assert stats.append_tokens.p90 == pytest.approx(200 + 0.7 * 600)
    assert (stats.reasoning_tokens.n, stats.reasoning_tokens.p50) == (1, 20)
    # tool waits: 30 of the parts, 10 of the whole delay; the last is missing, and no wait is not a wait of zero
    assert (stats.tool_wait_ms.n, stats.tool_wait_ms.mean) == (2, 20.0)
    assert (stats.human_wait_ms.n, stats.human_wait_ms.mean) == (1, 4900.0)
    assert stats.tool_calls == 5
    assert [(t.name, t.calls, t.failed, t.p50_ms) for t in stats.tools] == [("read", 4, 1, 10.0), ("bash", 1, 0, None)]
    assert stats.parallel_share == pytest.approx(1 / 3)
    assert stats.failed_tool_share == pytest.approx(1 / 5)
    assert stats.delay_sources == {"missing": 3, "measured": 2, "derived": 1}
    assert stats.triggers == {"tool": 3, "user": 2, "subagent": 1}
    assert stats.input_sources == {"synthetic": 6}


def test_median_duration_uses_start_and_end_where_there_is_no_duration() -> None:
    calls = [Tool(call_id=str(i), name="x", start_ms=-5.0, end_ms=25.0) for i in range(3)]
    (row,) = describe(trace_set(session("s", [request("s", 0, tools_before=calls)]))).tools
    assert row.p50_ms == 30.0


def test_quantiles_are_numpys_linear_ones() -> None:
    q = quantiles(range(1, 101))
    assert (q.n, q.mean, q.min, q.max) == (100, 50.5, 1, 100)
    assert (q.p10, q.p50, q.p90, q.p95, q.p99) == pytest.approx((10.9, 50.5, 90.1, 95.05, 99.01))
    assert quantiles([]).p50 is None
    assert quantiles([]).n == 0


def prefixes(*requests: Request, block_size: int | None = None) -> list[int]:
    made = trace_set(SessionTrace(session=session("s").session, requests=list(requests)), block_size=block_size)
    return list(ideal_prefixes(made).values())


def segs(*tokens: int) -> list[Segment]:
    return [Segment(role="user", tokens=n, kind="user") for n in tokens]


def test_prefix_of_shapes() -> None:
    first = turn(0, 100, Shape(segments=segs(40, 30, 20)))
    assert prefixes(first, turn(1, 200, Shape(segments=segs(90), keep_segments=2))) == [0, 70]
    assert prefixes(first, turn(1, 200, Shape(segments=segs(40, 30, 99, 20)))) == [0, 70]
    kept = turn(1, 200, Shape(segments=segs(90), keep_segments=2))
    assert prefixes(first, kept, turn(2, 200, Shape(segments=segs(1), keep_segments=3))) == [0, 70, 160]
    assert prefixes(first, turn(1, 60, Shape(segments=[], keep_segments=3))) == [0, 60]


def test_prefix_of_blocks_wins_over_segments() -> None:
    first = turn(0, 100, Shape(segments=segs(95), block_hashes=[1, 2, 3, 4]))
    assert prefixes(first, turn(1, 100, Shape(segments=segs(95), block_hashes=[1, 2, 9])), block_size=16) == [0, 32]
    assert prefixes(first, turn(1, 100, Shape(keep_blocks=3, block_hashes=[9])), block_size=16) == [0, 48]
    delta = turn(1, 100, Shape(keep_blocks=2, block_hashes=[7]))
    assert prefixes(first, delta, turn(2, 100, Shape(block_hashes=[1, 2, 7, 8])), block_size=16) == [0, 32, 48]


def test_prefix_of_messages() -> None:
    # two messages of the same size, so that one of them is half of the parent's prompt
    first = turn(0, 100, Full(messages=[user("aaaa"), user("bbbb")]))
    assert prefixes(first, turn(1, 300, Full(messages=[user("aaaa"), user("cccc")]))) == [0, 50]
    assert prefixes(first, turn(1, 300, Full(messages=[user("aaaa"), user("bbbb"), user("c")]))) == [0, 100]
    assert prefixes(first, turn(1, 300, Full(messages=[user("zzzz"), user("bbbb")]))) == [0, 0]
    assert prefixes(first, turn(1, 300, Splice(keep_messages=1, messages=[user("cccc")]))) == [0, 50]
    assert prefixes(first, turn(1, 300, Append(messages=[user("cccc")]))) == [0, 100]
    assert prefixes(first, turn(1, 80, Append(messages=[]))) == [0, 80]
    assert prefixes(turn(0, 100, Full(messages=[])), turn(1, 300, Full(messages=[]))) == [0, 0]


def test_prefix_of_a_first_request() -> None:
    fork = Spawn(by_request_id="s-1", kind="fork")
    kid = {"root_session_id": "s", "parent_session_id": "s"}
    main = session("s", [request("s", 0), request("s", 1)], product="p", system_tokens=30, tools_tokens=40)
    made = trace_set(
        main,
        session("twin", [request("twin", 0)], product="p", system_tokens=30, tools_tokens=40),
        session("other", [request("other", 0)], product="q", system_tokens=30, tools_tokens=40),
        session("lone", [request("lone", 0)], system_tokens=30),
        session("lone2", [request("lone2", 0)], system_tokens=30),
        session("forked", [request("forked", 0, input_tokens=900)], spawn=fork, **kid),
        session("spawned", [request("spawned", 0)], spawn=Spawn(by_request_id="s-1"), **kid),
    )
    found = ideal_prefixes(made)
    del found["s-0"], found["s-1"]
    assert found == {"twin-0": 70, "other-0": 0, "lone-0": 0, "lone2-0": 0, "forked-0": 200, "spawned-0": 0}


def test_an_empty_set() -> None:
    stats = describe(trace_set())
    assert (stats.requests, stats.ideal_prefix_hit, stats.parallel_share, stats.failed_tool_share) == (
        0,
        None,
        None,
        None,
    )
    assert stats.turns.n == 0


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(any_trace_set())
def test_any_set_can_be_described_and_told_as_json(made: TraceSet) -> None:
    stats = describe(made)
    assert msgspec.json.decode(msgspec.json.encode(stats), type=TraceStats) == stats
    derived = [r for s in made.sessions for r in s.requests if r.prefix_tokens_ideal is None]
    found = ideal_prefixes(made)
    assert all(0 <= found[r.request_id] <= r.input_tokens for r in derived)
