"""From an outcome to a record: each formula against a value worked out by hand."""

import itertools
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.measure.derive import (
    first_event_tokens,
    gaps_ns,
    inter_token_latency,
    make_record,
    output_speed,
    pack_offsets,
    seconds,
)
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


def one_token_events(count: int, at_first: int = 1, **changes: Any) -> Outcome:
    """Events every 20 ms from 2 s on, the first `at_first` of them in one read."""
    visible = [2 * S] * at_first + [2 * S + i * 20 * MS for i in range(1, count - at_first + 1)]
    return streamed(visible_ns=visible, last_visible_ns=visible[-1], output_tokens=count, **changes)


def test_a_long_first_word_is_one_token_where_each_event_is_one() -> None:
    r = made(one_token_events(100, n1_share=0.0155))  # a word of 7 characters, in a text of 4.5 a token
    assert r.first_event_tokens == 1.0
    assert r.speed_tps == pytest.approx(99 / (99 * 0.02))


def test_events_in_one_read_count_each() -> None:
    r = made(one_token_events(10, at_first=3, n1_share=0.5))
    assert r.first_event_tokens == 3.0
    assert r.speed_tps == pytest.approx(7 / (7 * 0.02))


@pytest.mark.parametrize(
    ("tokens", "share", "visible", "expected"),
    [
        (41, 0.2, [1, 2, 3, 4, 5], 8.2),  # several tokens an event: the share stands
        (11, 0.9, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 2.0),  # one token to spare, so at most 2 were first
        (41, 0.01, [1, 1, 1, 2, 3], 3.0),  # three events hold three tokens at least
        (10, 1.0, [1, 1], 10.0),  # everything at one stamp
        (5, 0.5, [1, 2, 3, 4, 5, 6], 2.5),  # more events than tokens: only the share is left
        (5, 0.01, [1, 2, 3, 4, 5, 6], 1.0),
        (5, None, [], 1.0),
        (100, 0.0453, list(range(1, 26)), 4.0),  # 25 events of 4, the first with words a little longer
        (99, 0.0453, list(range(1, 26)), 4.0),  # the last with 3
        (100, 0.0605, list(range(1, 26)), 6.05),  # too much text for 4 tokens: the share stands
        (100, 0.0195, list(range(1, 26)), 1.95),  # and too little
        (100, 0.09, [1, 1, *range(2, 25)], 8.0),  # two such events in one read
        (95, 0.05, list(range(1, 26)), 4.75),  # 24 events of 4 hold 95, so 25 are not even
        (28, 0.15, list(range(1, 8)), 4.2),  # seven events are too few to tell
    ],
)
def test_tokens_of_the_first_stamp(tokens: int, share: float | None, visible: list[int], expected: float) -> None:
    assert first_event_tokens(tokens, share, visible) == pytest.approx(expected)


@given(st.integers(1, 60), st.floats(0, 1), st.lists(st.integers(0, 20), min_size=1, max_size=60).map(sorted))
def test_tokens_of_the_first_stamp_leave_one_for_each_later_event(n: int, share: float, visible: list[int]) -> None:
    n1 = first_event_tokens(n, share, visible)
    assert n1 >= 1
    if len(visible) <= n:
        later = sum(v > visible[0] for v in visible)
        assert len(visible) - later <= n1 <= n - later


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
        assert p99 == pytest.approx(np.percentile(np.diff(stamps), 99), abs=1)
    if stamps:
        assert packed is not None
        offsets = array("i", packed)
        assert offsets[0] == 0
        assert len(offsets) == len(stamps)
    else:
        assert packed is None


def test_a_usage_of_zero_beside_text_is_no_count() -> None:
    r = made(streamed(output_tokens=0))
    assert r.token_source == "estimate"
    assert r.output_tokens == 50
    assert r.speed_tps is not None
