"""What a reader of a level is told about its quality."""

from typing import Any

import pytest
from msgspec.structs import replace

from agentperf.measure.health import Health, assess
from agentperf.measure.metrics import summarise
from agentperf.measure.quality import quality_warnings
from tests.measure.records import S, record

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
