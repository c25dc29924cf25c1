"""Facts about the streams of a window, each against a value worked out by hand."""

from typing import Any

import pytest

from agentperf.measure.metrics import summarise
from agentperf.measure.record import Record
from agentperf.measure.streams import flat_prompts, handshakes_s, is_stalled, stream_facts
from agentperf.wire.outcome import HIDDEN_REASONING
from tests.measure.records import MS, S, failure, record
from tests.measure.streams import seen, timer, whole


def steady(events: int = 40, step_s: float = 0.02) -> list[float]:
    return [0.5 + step_s * i for i in range(events)]


def held(events: int = 200) -> list[float]:
    return timer([0.5 + 0.02 * i for i in range(events)], 0.25, 0.1)


def test_bursts_are_counted_among_those_that_can_tell() -> None:
    records = [
        *(seen(steady(), request_id=f"s{i}") for i in range(7)),
        seen(held(), request_id="held"),
        seen(steady(8), request_id="short"),
        failure(1.0),
    ]
    facts = stream_facts(records)
    assert (facts.tellable, facts.buffered, facts.suspect) == (8, 1, True)
    assert facts.hold_s == pytest.approx(0.25)
    assert stream_facts(records[:7]).suspect is False
    assert stream_facts(records[:7]).hold_s is None


def test_tokens_per_event_are_of_the_servers_count() -> None:
    replies = [seen(steady(20), tokens=20 * k, request_id=f"r{k}") for k in (1, 2, 4)]
    estimate = seen(steady(20), tokens=2000, token_source="estimate", request_id="e")
    facts = stream_facts([*replies, estimate])
    assert facts.tokens_per_event.n == 3
    assert facts.tokens_per_event.p50 == pytest.approx(2.0)
    assert facts.usage_per_event == pytest.approx((20 + 40 + 80) / 60)
    assert facts.token_sources == {"usage": 3, "estimate": 1}


def test_characters_per_token() -> None:
    facts = stream_facts(
        [
            seen(steady(20), tokens=20, visible_chars=60),
            seen(steady(20), tokens=60, visible_chars=260, request_id="b"),
            seen(steady(20), tokens=60, visible_chars=None, request_id="c"),
        ]
    )
    assert facts.chars_per_token == pytest.approx(320 / 80)
    assert stream_facts([]).chars_per_token is None


def test_reasoning_that_was_not_streamed_is_no_token_of_an_event() -> None:
    hidden = seen(steady(20), tokens=100, reasoning_tokens=80, visible_chars=80, notes=HIDDEN_REASONING)
    facts = stream_facts([hidden])
    assert facts.hidden_reasoning == 1
    assert facts.tokens_per_event.p50 == pytest.approx(1.0)
    assert facts.chars_per_token == pytest.approx(4.0)


def grown(counts: list[int], **changes: Any) -> list[Record]:
    """A session whose prompt should grow by 500 tokens a turn."""
    return [
        record(i, request_id=f"{counts}{i}", turn=i, prompt_tokens=n, expected_prompt_tokens=1000 + 500 * i, **changes)
        for i, n in enumerate(counts)
    ]


def test_prompts_that_never_grow() -> None:
    assert flat_prompts(grown([700, 700, 700])) == (1, 1)
    assert flat_prompts(grown([700, 1200, 1900])) == (1, 0)
    assert flat_prompts(grown([700])) == (0, 0)
    assert flat_prompts([*grown([7, 7], play="a"), *grown([7, 8], play="b"), *grown([5, 5], play="c")]) == (3, 2)
    same = [record(i, prompt_tokens=9, expected_prompt_tokens=1000 + i) for i in range(5)]
    assert flat_prompts(same) == (0, 0), "these were not to grow"
    assert stream_facts(grown([0, 0, 0])).prompt_zero == 3


def test_largest_gap_and_its_request_also_of_a_failed_one() -> None:
    gap = 3 * S
    records = [seen(steady(), request_id="a"), failure(1.0, "stall_timeout", request_id="b", max_gap_ns=gap)]
    facts = stream_facts(records)
    assert facts.largest_gap_s == pytest.approx(3.0)
    assert facts.largest_gap_request == "b"
    assert stream_facts([]).largest_gap_request is None


@pytest.mark.parametrize(
    ("step_s", "stall_s", "stalled"),
    [
        (0.02, 1.2, True),
        (0.02, 0.9, False),  # not above a second
        (0.1, 1.9, False),  # not above 20 usual gaps
        (0.1, 2.2, True),
        (1.5, 0.0, False),  # a slow server: every gap is that long
    ],
)
def test_a_stall_is_long_and_unusual(step_s: float, stall_s: float, stalled: bool) -> None:
    times = [t + (stall_s - step_s if i >= 20 and stall_s else 0) for i, t in enumerate(steady(40, step_s))]
    assert is_stalled(seen(times)) is stalled
    assert stream_facts([seen(times)]).stalled == int(stalled)


def test_two_events_are_no_stall() -> None:
    assert not is_stalled(seen([0.5, 9.0]))


def test_handshakes_are_of_new_connections_alone() -> None:
    records = [
        record(0.0, new_connection=True, connected_ns=2 * MS),
        record(1.0, new_connection=True, connected_ns=S + 10 * MS),
        record(2.0, connected_ns=2 * S + 500 * MS),
        record(3.0, new_connection=True, stale_retries=1, connected_ns=3 * S + 900 * MS),
        failure(4.0, "connect_refused", new_connection=True, connected_ns=None),
    ]
    assert handshakes_s(records) == pytest.approx([0.002, 0.010])
    facts = stream_facts(records)
    assert facts.new_connections == 4
    assert facts.handshake.p50 == pytest.approx(0.006)
    assert facts.handshake_max_s == pytest.approx(0.010)
    assert summarise(records, level=1, open_ns=0, close_ns=9 * S).new_connection_share == pytest.approx(0.8)


def test_errors_inside_streams_are_counted_apart() -> None:
    records = [failure(0.0, "server_error_in_stream"), failure(1.0), record(2.0)]
    assert stream_facts(records).in_band_errors == 1
    assert summarise(records, level=1, open_ns=0, close_ns=9 * S).errors_by_class["server_error_in_stream"] == 1


def test_replies_at_one_moment() -> None:
    microseconds = [1.5 + i // 60 * 30e-6 for i in range(120)]  # two reads of one buffer
    records = [seen(whole(steady())), seen(microseconds, request_id="b"), seen(steady(), request_id="c")]
    assert records[1].speed_tps is None, "60 tokens in 30 us is no speed"
    assert stream_facts(records).without_speed == 2


def test_of_nothing() -> None:
    facts = stream_facts([])
    assert (facts.tellable, facts.buffered, facts.suspect, facts.stalled) == (0, 0, False, 0)
    assert facts.handshake.p50 is None
    assert facts.largest_gap_s is None
