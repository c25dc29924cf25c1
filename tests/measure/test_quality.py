"""What a reader of a level is told about its quality."""

from typing import Any

import pytest
from msgspec.structs import replace

from agentperf.measure.health import Health, assess
from agentperf.measure.metrics import summarise
from agentperf.measure.quality import quality_warnings
from agentperf.measure.record import Record
from agentperf.wire.outcome import HIDDEN_REASONING
from tests.measure.records import S, failure, record
from tests.measure.streams import seen, timer

WELL = assess([], [], [], 1.0, 1.0, None)


def warnings(*changes: dict[str, Any], health: Health = WELL, **options: Any) -> list[str]:
    records = [record(number, request_id=f"r{number}", **change) for number, change in enumerate(changes)]
    metrics = summarise(records, level=1, open_ns=0, close_ns=max(1, len(records)) * S)
    return quality_warnings(metrics, health, **options)


def test_a_good_level_has_none() -> None:
    assert warnings({}, {}, {}) == []


def test_a_window_without_requests_is_said() -> None:
    (said,) = warnings()
    assert "no request was issued in the window" in said
    assert "--duration" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_tokens": 1050}, "+5.0%"),
        ({"prompt_tokens": 940}, "-6.0%"),
        ({"cached_tokens": 900}, "cache hit 90% is above the 80%"),
        ({"token_source": "estimate"}, "3 of 3 token counts are estimates"),
        ({"outcome": "truncated", "error_class": "cut_off"}, "were still open"),
    ],
)
def test_each_doubt_is_said_with_its_figure(changes: dict[str, Any], words: str) -> None:
    assert [said for said in warnings(*[changes] * 3) if words in said]


def test_small_differences_are_not_worth_a_word() -> None:
    assert warnings(*[{"prompt_tokens": 1015, "cached_tokens": 840}] * 3) == []


def test_shared_salts_explain_a_warm_cache() -> None:
    assert warnings(*[{"cached_tokens": 900}] * 3, isolated=False) == []


def test_reasons_of_a_late_client_are_repeated() -> None:
    late = replace(WELL, status="invalid", reasons=["event loop lag p99 9.0 ms > 5 ms"])
    assert warnings({}, {}, health=late) == ["client: event loop lag p99 9.0 ms > 5 ms"]


# -- streams and counts: each sentence once, with its figure and its remedy, and not where nothing is wrong


def steady(events: int = 40, step_s: float = 0.02) -> list[float]:
    return [0.5 + step_s * i for i in range(events)]


def of(*records: Record, **options: Any) -> list[str]:
    made = [replace(r, request_id=f"r{i}") for i, r in enumerate(records)]
    return quality_warnings(summarise(made, level=1, open_ns=0, close_ns=99 * S), WELL, **options)


def only(said: list[str], *words: str) -> str:
    """The one sentence; it has these words."""
    (sentence,) = said
    for word in words:
        assert word in sentence
    return sentence


def test_streams_of_one_event_a_token_need_no_word() -> None:
    assert of(*[seen(steady())] * 5) == []
    assert of(*[seen(steady())] * 5, chars_per_token=3.6) == []


def test_a_suspect_level_is_told_with_its_pause_and_the_remedy() -> None:
    held = seen(timer([0.5 + 0.02 * i for i in range(200)], 0.25, 0.1))
    only(
        of(held, *[seen(steady())] * 9), "1 of 10", "250 ms", "suspect", "proxy_buffering off", "X-Accel-Buffering: no"
    )
    below = only(of(held, *[seen(steady())] * 29), "1 of 30", "unsure")
    assert "suspect" not in below


def test_a_late_client_may_have_made_the_bursts_itself() -> None:
    held = seen(timer([0.5 + 0.02 * i for i in range(200)], 0.25, 0.1))
    metrics = summarise([held], level=1, open_ns=0, close_ns=9 * S)
    late = replace(WELL, status="invalid", reasons=["event loop lag p99 250.0 ms > 5 ms"])
    assert "or of this client, which was late itself" in quality_warnings(metrics, late)[0]
    assert "this client" not in quality_warnings(metrics, WELL)[0]


def test_replies_at_one_moment_are_counted() -> None:
    only(of(seen([1.0] * 4), *[seen(steady())] * 3), "1 of 4 replies", "no speed")


def test_several_tokens_an_event() -> None:
    only(of(*[seen(steady(), tokens=156)] * 4), "an event carries 3.9 tokens", "gaps are between events")
    assert of(*[seen(steady(), tokens=56)] * 4) == []


def test_mixed_counts_are_said_to_be_mixed() -> None:
    estimate = seen(steady(), token_source="estimate")
    only(of(*[estimate] * 3), "3 of 3 token counts are estimates", "include_usage")
    only(of(estimate, seen(steady())), "1 of 2 token counts", "the other 1 are the server's")


@pytest.mark.parametrize(
    ("tokens", "chars", "calibrated", "word"),
    [
        (1000, 160, None, "too many tokens"),
        (40, 1000, None, "too few tokens"),
        (40, 40, None, None),  # Chinese
        (40, 40, 3.6, "too many tokens"),
        (40, 400, 3.0, "too few tokens"),
        (40, 400, None, None),
        (40, 220, 3.6, None),
    ],
)
def test_counts_that_no_text_has(tokens: int, chars: int, calibrated: float | None, word: str | None) -> None:
    said = of(*[seen(steady(40), tokens=tokens, visible_chars=chars)] * 3, chars_per_token=calibrated)
    found = [s for s in said if "characters" in s]
    assert (len(found) == 1) is (word is not None)
    if word is not None:
        assert word in found[0]
        assert f"{chars / tokens:.2f} characters" in found[0]


def test_fewer_tokens_than_events() -> None:
    only(of(*[seen(steady(100), tokens=50, visible_chars=200)] * 3), "0.50 output tokens an event")


def test_reasoning_that_was_not_streamed() -> None:
    hidden = seen(steady(), tokens=140, reasoning_tokens=100, visible_chars=160, notes=HIDDEN_REASONING)
    only(of(*[hidden] * 3), "3 replies count reasoning tokens that were not streamed")


def test_prompts_that_are_not_counted() -> None:
    said = of(*[seen(steady(), prompt_tokens=0, cached_tokens=0, expected_prompt_tokens=0)] * 3)
    only(said, "3 replies say that their prompt had 0 tokens")
    flat = [seen(steady(), prompt_tokens=1500, expected_prompt_tokens=1000 * (i + 1), turn=i) for i in range(2)]
    assert [s for s in of(*flat) if "in 1 of 1 sessions the server counted every prompt the same" in s]


def test_errors_inside_streams_have_their_own_line() -> None:
    said = of(seen(steady()), failure(0.1, "server_error_in_stream"), failure(0.2))
    only(said, "1 streams began with status 200 and then carried an error")


def test_stalls_name_the_longest() -> None:
    stalled = [*steady(), 4.0]
    only(of(seen(steady()), seen(stalled)), "1 streams stood still", "2.7 s", "request r1")


def test_a_server_that_closes_after_each_reply_and_what_it_costs() -> None:
    new = seen(steady(), new_connection=True, connected_ns=4_000_000)
    only(of(*[new] * 4), "100% of the requests opened a connection", "closes after each reply", "4.0 ms of TTFT")
    only(of(new, new, seen(steady())), "67%", "kept ones were often closed")
    assert of(new, *[seen(steady())] * 3) == []


def test_requests_that_were_sent_again() -> None:
    only(of(seen(steady(), stale_retries=1), seen(steady())), "1 requests were sent again", "keep-alive")
