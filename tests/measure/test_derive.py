"""From an outcome to a record: each formula against a value worked out by hand."""

import itertools
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.measure.derive import gaps_ns, inter_token_latency, make_record, output_speed, pack_offsets, seconds
from agentperf.replay.turns import TurnResult
from agentperf.wire.exchange import Exchange
from agentperf.wire.outcome import Outcome
from tests.measure.records import MS, S


def turn(outcome: Outcome, **changes: Any) -> TurnResult:
    exchange = Exchange(t0_ns=1 * S, end_ns=4 * S, sent_ns=1 * S + MS, status=200)
    exchange.stamps = array("q", [S])
    fields: dict[str, Any] = {
        "request_id": "r",
        "agent": 3,
        "play": "a3p0",
        "session_id": "s",
        "root_session_id": "s",
        "turn": 2,
        "due_ns": 1 * S - MS,
        "exchange": exchange,
        "outcome": outcome,
        "body_bytes": 10,
        "expected_prompt_tokens": 100,
        "expected_cached_tokens": 50,
        "target_output_tokens": 41,
    }
    return TurnResult(**{**fields, **changes})


def streamed(**changes: Any) -> Outcome:
    """41 tokens in 5 events: 8.2 tokens each, first visible 1 s after t0, then one event every 0.5 s."""
    visible = [2 * S + i * S // 2 for i in range(5)]
    fields: dict[str, Any] = {
        "status": 200,
        "first_byte_ns": 2 * S - MS,
        "first_visible_ns": visible[0],
        "first_answer_ns": visible[2],
        "last_visible_ns": visible[-1],
        "visible_ns": visible,
        "visible_chars": 200,
        "n1_share": 0.2,
        "output_tokens": 41,
        "prompt_tokens": 100,
    }
    return Outcome("ok", **{**fields, **changes})


def made(outcome: Outcome) -> Any:
    return make_record(turn(outcome), probe=1, level=2, worker=0)


def test_formulas() -> None:
    r = made(streamed())
    assert r.ttft_s == pytest.approx(1.0)
    assert r.ttfo_s == pytest.approx(2.0)
    assert r.first_event_tokens == pytest.approx(8.2)
    assert r.speed_tps == pytest.approx((41 - 8.2) / 2.0)
    assert r.e2e_s == pytest.approx(3.0)
    assert r.e2e_tps == pytest.approx(41 / 3.0)
    assert r.itl_s == pytest.approx(2.0 / 40)
    assert r.max_gap_ns == S // 2
    assert r.token_source == "usage"


def test_one_event_has_a_ttft_and_no_speed() -> None:
    at = [2 * S]
    r = made(streamed(visible_ns=at, last_visible_ns=2 * S, n1_share=1.0))
    assert r.ttft_s == pytest.approx(1.0)
    assert r.speed_tps is None
    assert r.itl_s is None
    assert r.max_gap_ns is None


def test_without_usage_the_count_is_an_estimate() -> None:
    r = made(streamed(output_tokens=None))
    assert r.output_tokens == 50  # 200 characters at 4 a token
    assert r.token_source == "estimate"


def test_a_failed_request_keeps_stamps_and_has_no_latencies() -> None:
    r = made(Outcome("failed", error_class="http_500", status=500))
    assert r.ttft_s is None
    assert r.speed_tps is None
    assert r.e2e_s is None
    assert r.error_class == "http_500"


def test_reasoning_is_not_added_to_the_count() -> None:
    assert made(streamed(reasoning_tokens=20)).output_tokens == 41


def test_missing_stamps_are_none_never_zero() -> None:
    assert seconds(5, None) is None
    assert seconds(5, 4) is None
    assert output_speed(None, 1.0, 0, 10) is None
    assert output_speed(10, 1.0, 5, 5) is None
    assert inter_token_latency(1, 0, 10) is None


@given(st.lists(st.integers(0, 10**10), min_size=0, max_size=50).map(sorted))
def test_gaps_and_offsets(stamps: list[int]) -> None:
    largest, p99 = gaps_ns(stamps)
    packed = pack_offsets(stamps)
    if len(stamps) < 2:
        assert largest is None
    else:
        assert largest == max(b - a for a, b in itertools.pairwise(stamps))
        assert p99 is not None
        assert p99 <= largest
    if stamps:
        assert packed is not None
        offsets = array("i", packed)
        assert offsets[0] == 0
        assert len(offsets) == len(stamps)
    else:
        assert packed is None
