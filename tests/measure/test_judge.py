"""The verdict of a level whose streams are in doubt."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from agentperf.measure.health import assess
from agentperf.measure.judge import BUFFERED, NO_SPEED, observe, verdicts
from agentperf.measure.population import Population
from agentperf.measure.record import Record
from agentperf.search.model import UNMEASURABLE
from agentperf.slo.expression import parse
from agentperf.slo.verdict import Rules, Verdict
from tests.measure.records import failure
from tests.measure.streams import Times, made, seen, timer, whole

WELL = assess([], [], [], 1.0, 1.0, None)
LATE = assess([], [1.0] * 5, [1.0] * 5, 1.0, 1.0, None)
RULES = Rules(min_requests=20, min_plays=4)


def level(
    through: Callable[[Times], Times] = lambda t: t,
    *,
    rate: float = 50.0,
    events: int = 200,
    count: int = 300,
    first_s: float = 0.5,
    others: int = 0,
) -> list[Record]:
    """`count` replies of a steady server behind a buffer, and `others` that are not."""
    rng = random.Random(6)
    found = []
    for i in range(count + others):
        times = made(rng, events, rate, first_s=first_s)
        read = through(times) if i < count else times
        found.append(seen(read, request_id=f"r{i}", play=f"p{i % 60}", t0_ns=i, due_ns=i))
    return found


def every(seconds: float) -> Callable[[Times], Times]:
    return lambda times: timer(times, seconds, 0.03)


def judged(slo: str, records: list[Record], *, final: bool = True) -> Verdict:
    made_slo = parse(slo)
    return verdicts([made_slo], records, RULES, WELL if final else None)[made_slo.name]


def test_a_clean_level_is_judged_as_it_was_seen() -> None:
    assert judged("p25 speed >= 40", level()).status == "pass"
    assert judged("p25 speed >= 70", level()).status == "fail"
    assert "bursts" not in judged("p25 speed >= 40", level()).reason


def test_a_buffered_level_passes_where_the_slowest_that_bursts_allow_passes() -> None:
    """50 tok/s, 4.5 s in all for 200 tokens: at the very least 44 tok/s."""
    verdict = judged("p25 speed >= 40, p75 ttft <= 2 s", level(every(0.25)))
    assert verdict.status == "pass"
    assert "also at the slowest that the bursts allow" in verdict.reason


def test_a_buffered_level_fails_where_the_fastest_that_bursts_allow_fails() -> None:
    verdict = judged("p25 speed >= 80", level(every(0.25)))
    assert verdict.status == "fail"
    assert "also at the fastest that the bursts allow" in verdict.reason


def test_between_the_two_a_buffered_level_is_invalid_and_says_what_to_do() -> None:
    verdict = judged("p25 speed >= 48", level(every(0.25), first_s=2.0))
    assert verdict.status == "invalid"
    assert verdict.reason.startswith(f"{BUFFERED}: 300 of 300 replies came in bursts")
    assert "proxy_buffering off" in verdict.reason
    assert "X-Accel-Buffering" in verdict.reason


def test_speeds_that_were_never_seen_can_pass_by_what_they_were_at_least() -> None:
    """All at once after 4.5 s: 200 tokens in that time are 44 tok/s or more."""
    verdict = judged("p25 speed >= 40", level(whole))
    assert verdict.status == "pass"
    assert verdict.terms[0].n == 300
    assert verdict.terms[0].value == pytest.approx(199 / 4.5, rel=0.05)


@pytest.mark.parametrize("slo", ["p25 speed >= 30", "p50 itl <= 30 ms", "p95 ttft <= 2 s", "p95 ttfo <= 2 s"])
def test_a_whole_reply_buffer_gives_no_clean_pass_or_fail(slo: str) -> None:
    """The server made 50 tok/s from 3 s on and the buffer let all go at 7 s: seen is a TTFT of 7 s and no speed.

    200 tokens in 7 s are 28 tok/s or more, and 35 ms a token or less: on neither side of these limits.
    """
    verdict = judged(slo, level(whole, first_s=3.0))
    assert verdict.status == "invalid"
    assert verdict.reason.startswith(BUFFERED)


def test_ttft_through_a_whole_reply_buffer_is_no_failure_of_the_server() -> None:
    assert judged("p75 ttft <= 2 s", level(whole)).status == "invalid"
    assert judged("p75 ttft <= 10 s", level(whole)).status == "pass"


def test_a_few_buffered_replies_are_enough_to_doubt() -> None:
    """5 % of the replies carry a p95."""
    few = level(every(1.0), count=15, others=285)
    assert judged("p95 ttft <= 520 ms", few).status in ("invalid", "inconclusive")
    fewer = level(every(1.0), count=14, others=286)
    assert not judged("p95 ttft <= 520 ms", fewer).reason.startswith(BUFFERED)


def test_terms_that_bursts_do_not_touch_are_judged() -> None:
    records = level(whole)
    assert judged("p25 e2e_speed >= 30", records).status == "pass"
    assert judged("p25 e2e_speed >= 70", records).status == "fail"
    failing = [*records, *(failure(0.0, t0_ns=2 * i, play=f"p{i % 60}", request_id=f"f{i}") for i in range(150))]
    assert judged("p25 speed >= 48, errors <= 1 %", failing).status == "fail", "150 of 450 failed, whatever the speed"


def test_while_the_window_is_open_more_data_may_settle_it() -> None:
    records = level(every(0.25), count=10)
    assert judged("p25 speed >= 40", records, final=False).status == "inconclusive"


def test_no_verdict_from_a_minority_with_a_speed() -> None:
    """Replies of a few tokens that come at one moment: 700 of 1,000 have no speed, the other 300 are fast."""
    at_once = [seen([1.0] * 8, request_id=f"o{i}", play=f"p{i % 60}", t0_ns=i, due_ns=i) for i in range(700)]
    records = [*level(rate=100), *at_once]
    verdict = judged("p25 speed >= 80", records)
    assert verdict.status == "invalid"
    assert verdict.reason.startswith(f"{NO_SPEED}: 700 of 1000 replies")
    assert judged("p25 speed >= 80", records, final=False).status == "invalid"
    assert judged("p95 ttft <= 2 s", records).status == "pass", "their TTFT is known"
    assert judged("p25 speed >= 80, p95 ttft <= 400 ms", records).status == "fail", "and may fail"
    assert judged("p25 speed >= 80", [*level(rate=100), *at_once[:200]]).status == "pass"


def test_a_late_client_comes_first() -> None:
    slo = parse("p25 speed >= 48")
    verdict = verdicts([slo], level(whole), RULES, LATE)[slo.name]
    assert verdict.reason.startswith("client_limited")


def test_the_search_knows_these_reasons() -> None:
    assert set(UNMEASURABLE) == {BUFFERED, NO_SPEED}


def test_views_differ_only_in_buffered_replies() -> None:
    population = Population([*level(every(0.25), count=2, others=2), failure(9.0)])
    best, worst, now = (population.observations(view) for view in ("best", "worst", "seen"))
    assert (best.speed[:2] >= now.speed[:2]).all()
    assert (worst.speed[:2] <= now.speed[:2]).all()
    assert (best.ttft[:2] < now.ttft[:2]).all()
    assert (worst.ttft == now.ttft).all()
    for view in (best, worst):
        assert (view.speed[2:] == now.speed[2:]).all()
        assert (view.ttft[2:] == now.ttft[2:]).all()
        assert (view.e2e_speed == now.e2e_speed).all()
    assert now.speed[4] == 0.0
    assert np.isinf(now.ttft[4])


def test_a_population_that_grows_is_that_of_all_its_records() -> None:
    records = [*level(every(0.25), count=20, others=20), failure(1.0), failure(2.0, "context_overflow")]
    grown = Population()
    for r in records:
        grown.add(r)
    whole_one = observe(records)
    for name in ("speed", "ttft", "ttfo", "itl", "e2e_speed", "turn", "play", "failed", "start_s"):
        assert np.array_equal(getattr(grown.observations(), name), getattr(whole_one, name), equal_nan=True)
    assert (grown.records, len(grown), grown.succeeded) == (42, 41, 40)
