"""The verdict of a window: when a term is decided, how, and what is said."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.slo.expression import parse
from agentperf.slo.verdict import Observations, Rules, Verdict, invalidate, judge
from agentperf.stats.sequence import Counts
from agentperf.stats.shares import share_sequence

RULES = Rules(min_requests=100, min_plays=5, agents=1)
"""One request at a time: no correlation of a round is assumed, so that small windows decide."""


def window(speed, ttft=1.0, *, failed=None, plays=20, turn=None):
    """Requests dealt to plays in turn; failed ones get the worst of everything, as the records do."""
    speed = np.asarray(speed, dtype=np.float64)
    n = len(speed)
    ttft = np.broadcast_to(np.asarray(ttft, dtype=np.float64), (n,)).copy()
    failed = np.zeros(n, dtype=bool) if failed is None else np.asarray(failed)
    speed = np.where(failed, 0.0, speed)
    ttft = np.where(failed, np.inf, ttft)
    with np.errstate(divide="ignore"):
        itl = 1 / speed
    return Observations(
        speed=speed,
        ttft=ttft,
        ttfo=ttft + 1,
        itl=itl,
        e2e_speed=speed / 2,
        turn=np.asarray(turn if turn is not None else np.arange(n) % 10 + 1),
        play=np.arange(n, dtype=np.int64) % plays,
        failed=failed,
        start_s=np.arange(n, dtype=np.float64),
    )


def spread(n, centre, width=0.2, seed=0):
    return centre * np.exp(np.random.default_rng(seed).normal(0, width, n))


def test_clear_of_every_limit_passes_and_is_not_close():
    verdict = judge(parse("80tps"), window(spread(200, 130)), RULES)
    assert (verdict.status, verdict.close, verdict.more_requests) == ("pass", False, None)
    assert [t.status for t in verdict.terms] == ["pass"] * 3
    assert "slower than 80 tok/s, 25 % allowed" in verdict.reason
    speed = verdict.terms[0]
    assert speed.value == pytest.approx(np.quantile(spread(200, 130), 0.25))
    assert speed.margin == pytest.approx(speed.value / 80 - 1)
    assert (speed.n, speed.n_excluded, speed.plays, speed.allowed_share) == (200, 0, 20, 0.25)


def test_far_below_fails_and_is_not_close():
    verdict = judge(parse("80tps"), window(spread(200, 60)), RULES)
    assert (verdict.status, verdict.close) == ("fail", False)
    assert verdict.terms[0].share_low > 0.25
    assert verdict.terms[0].margin < 0
    assert verdict.terms[1].status == "pass"


def test_near_the_limit_the_interval_decides_and_the_verdict_is_close():
    passing = judge(parse("80tps"), window(spread(3000, 95), plays=200), RULES)
    assert (passing.status, passing.close) == ("pass", True)
    term = passing.terms[0]
    assert term.value < 80 * 1.15, "not clear"
    assert term.share_high <= 0.25
    failing = judge(parse("80tps"), window(spread(3000, 88), plays=200), RULES)
    assert (failing.status, failing.close) == ("fail", True)
    assert failing.terms[0].share_low > 0.25
    assert "25 % allowed" in failing.reason


def test_the_bounds_are_those_of_the_share_beyond_the_limit():
    obs = window(spread(300, 92))
    term = judge(parse("p25 speed >= 80, p95 ttft <= 5 s, errors <= 1 %"), obs, RULES).terms[0]
    expected = share_sequence(
        obs.speed < 80, obs.play, obs.start_s, allowed=0.25, alpha_below=0.05, alpha_above=0.05 / 3, agents=1
    )
    assert (term.share, term.share_low, term.share_high, term.n_eff) == (
        expected.share,
        expected.low,
        expected.high,
        expected.own.n,
    )
    assert (term.design_time, term.design_play) == pytest.approx((expected.design.time, expected.design.play))
    assert term.counts == Counts(term.share * term.n_eff, term.n_eff)


def test_all_terms_may_use_the_whole_error_to_pass_and_share_it_to_fail():
    obs = window(spread(300, 92))
    one = judge(parse("p25 speed >= 80, errors <= 99 %"), obs, RULES).terms[0]
    many = judge(parse("p25 speed >= 80, p95 ttft <= 5 s, p95 itl <= 9 s, errors <= 99 %"), obs, RULES).terms[0]
    assert many.share_high == pytest.approx(one.share_high, rel=0.02), "n_eff differs a little by the smaller alpha"
    assert many.share_low < one.share_low


def test_earlier_probes_of_the_level_count_too():
    slo, obs = parse("p25 speed >= 80, errors <= 1 %"), window(spread(200, 96))
    alone = judge(slo, obs, RULES)
    assert alone.status == "inconclusive"
    term = alone.terms[0]
    again = judge(slo, obs, RULES, {term.term: Counts(6 * term.counts.k, 6 * term.counts.n)})
    assert again.status == "pass"
    assert again.terms[0].n_eff == term.n_eff, "its own data only: nothing is counted twice later"
    assert again.terms[0].pooled_n_eff == pytest.approx(7 * term.n_eff)
    assert again.terms[0].pooled_share == pytest.approx(term.share)


def test_a_value_on_the_limit_keeps_the_promise():
    obs = window(np.full(200, 80.0), 5.0)
    assert [t.share for t in judge(parse("80tps"), obs, RULES).terms] == [0.0, 0.0, 0.0]


def test_undecided_says_how_much_more_would_decide_and_what_it_costs():
    obs = window(spread(200, 92))
    verdict = judge(parse("p25 speed >= 80"), obs, RULES, rate_per_s=2.0)
    assert verdict.status == "inconclusive"
    assert verdict.close
    assert verdict.more_requests > 0
    assert verdict.more_minutes == pytest.approx(verdict.more_requests / 2 / 60)
    assert (
        f"about {verdict.more_requests:,} more requests would decide ({verdict.more_minutes:.1f} min)" in verdict.reason
    )
    assert judge(parse("p25 speed >= 80"), obs, RULES).more_minutes is None
    # That many more of the same share and design effect decide, and hardly fewer do.
    term = verdict.terms[0]
    for part, status in ((1.02, "pass"), (0.9, "inconclusive")):
        more = part * verdict.more_requests * term.n_eff / term.n
        found = judge(parse("p25 speed >= 80"), obs, RULES, {term.term: Counts(term.share * more, more)})
        assert found.status == status


def test_what_is_undecided_may_lean():
    rules = Rules(min_requests=24, min_plays=5, agents=12)
    plain = judge(parse("80tps"), window(spread(24, 130), plays=12), rules)
    assert (plain.status, plain.lean) == ("inconclusive", "pass")
    slow = judge(parse("80tps"), window(spread(24, 130), 60.0, plays=12), Rules(min_requests=30, min_plays=5))
    assert (slow.status, slow.lean) == ("inconclusive", "fail")
    assert judge(parse("80tps"), window(spread(24, 92), plays=12), rules).lean is None
    ttft = np.where(np.arange(24) < 2, 6.0, 1.0)
    late = judge(parse("80tps"), window(spread(24, 130), ttft, plays=12), rules)
    assert late.lean is None, "the p95 is beyond the limit, though not far"
    assert judge(parse("80tps"), window(spread(400, 130), plays=40), RULES).lean is None, "decided"


def test_no_number_of_requests_decides_a_share_that_is_the_limit():
    speed = np.where(np.arange(400) % 4 == 0, 79.0, 81.0)
    verdict = judge(parse("p25 speed >= 80"), window(speed, plays=23), RULES)
    assert verdict.terms[0].share == 0.25
    assert (verdict.status, verdict.more_requests, verdict.more_minutes) == ("inconclusive", None, None)


@pytest.mark.parametrize(("n", "plays", "words", "more"), [(99, 20, "99 of at least 100", 1), (120, 4, "4 of", 30)])
def test_too_little_data_decides_nothing(n, plays, words, more):
    for centre in (500, 5):
        verdict = judge(parse("p25 speed >= 80, errors <= 5 %"), window(spread(n, centre), plays=plays), RULES)
        assert verdict.status == "inconclusive"
        assert words in verdict.reason
        assert verdict.more_requests >= more
        assert not any(t.clear for t in verdict.terms)


def test_nothing_at_all():
    empty = window(np.zeros(0))
    verdict = judge(parse("80tps"), empty, RULES)
    assert verdict.status == "inconclusive"
    assert verdict.more_requests == 100
    assert verdict.terms[0].value is None
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_failed_requests_count_as_the_worst_and_plain_figures_stand_beside():
    failed = np.arange(400) % 10 == 0
    obs = window(spread(400, 130), failed=failed, plays=37)
    verdict = judge(parse("p5 speed >= 80, p95 ttft <= 5s, errors <= 20 %"), obs, RULES)
    speed, ttft, errors = verdict.terms
    assert (speed.value, speed.beyond_all) == (0.0, False)
    assert speed.value_ok > 80
    assert (ttft.value, ttft.beyond_all, ttft.value_ok, ttft.margin) == (None, True, 1.0, None)
    assert (speed.status, ttft.status, errors.status) == ("fail", "fail", "pass")
    assert (errors.value, errors.n) == (0.1, 400)
    assert "never (failed requests)" in verdict.reason
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_two_failures_in_few_requests_put_p95_at_infinity_and_decide_nothing():
    """A clear margin alone would fail this window; its share of late requests says that it is not known."""
    failed = np.zeros(30, dtype=bool)
    failed[[3, 17]] = True
    rules = Rules(min_requests=30, min_plays=5)
    verdict = judge(parse("p95 ttft <= 5s, errors <= 20 %"), window(spread(30, 100), failed=failed, plays=15), rules)
    assert verdict.terms[0].beyond_all
    assert verdict.terms[0].status == "inconclusive"


def test_one_late_request_in_few_leaves_a_good_percentile_undecided():
    """The p95 is a fifth of the limit, but one late request in 30 is within a standard error of one in 20."""
    ttft = np.where(np.arange(30) == 7, 60.0, 1.0)
    rules = Rules(min_requests=30, min_plays=5)
    term = judge(parse("p95 ttft <= 5s"), window(spread(30, 100), ttft, plays=15), rules).terms[0]
    assert term.value < 2.5
    assert term.status == "inconclusive"


@pytest.mark.parametrize(
    ("failures", "status", "close"),
    [(0, "pass", False), (1, "pass", True), (2, "pass", True), (5, "inconclusive", True), (20, "fail", False)],
)
def test_errors_pass_as_counted_and_fail_for_certain(failures, status, close):
    failed = np.zeros(200, dtype=bool)
    failed[:: max(1, 200 // failures) if failures else 200] = failures > 0
    failed[np.flatnonzero(failed)[failures:]] = False
    assert failed.sum() == failures
    verdict = judge(parse("p5 speed >= 1, errors <= 1 %"), window(spread(200, 100), failed=failed, plays=37), RULES)
    term = verdict.terms[1]
    assert (term.status, term.status == "inconclusive" or not term.clear) == (status, close)
    assert f"({failures} of 200)" in term.reason
    assert term.share_low <= failures / 200 <= term.share_high


def test_errors_alone_pass_for_certain_only():
    few = judge(parse("errors <= 1 %"), window(spread(200, 100), plays=37), RULES)
    assert few.status == "inconclusive"
    assert few.more_requests > 50
    assert judge(parse("errors <= 1 %"), window(spread(900, 100), plays=150), RULES).status == "pass"


def test_no_error_allowed():
    ok = window(spread(200, 100))
    verdict = judge(parse("errors <= 0 %"), ok, RULES)
    assert (verdict.status, verdict.more_requests) == ("pass", None)
    failed = np.arange(200) == 5
    assert judge(parse("errors <= 0 %"), window(spread(200, 100), failed=failed), RULES).status == "fail"


def test_what_cannot_be_measured_is_counted_and_not_guessed():
    speed = spread(400, 130)
    speed[::4] = np.nan
    verdict = judge(parse("80tps"), window(speed, plays=23), RULES)
    term = verdict.terms[0]
    assert (term.n, term.n_excluded, term.status) == (300, 100, "pass")
    assert term.value == pytest.approx(np.nanquantile(speed, 0.25))
    speed[:350] = np.nan
    verdict = judge(parse("80tps"), window(speed, plays=23), RULES)
    assert verdict.status == "inconclusive"
    assert "not measurable" in verdict.reason


def test_a_term_of_some_turns_looks_at_those_only():
    turn = np.arange(600) % 6 + 1
    ttft = np.where(turn == 1, 20.0, 1.0)
    obs = window(spread(600, 100), ttft, turn=turn, plays=35)
    assert judge(parse("p95 ttft <= 5s"), obs, RULES).status == "fail"
    later = judge(parse("p95 ttft@turn>=2 <= 5s"), obs, RULES)
    assert (later.status, later.terms[0].n) == ("pass", 500)
    first = judge(parse("p95 ttft@turn<=1 <= 5s"), obs, RULES)
    assert (first.status, first.terms[0].n, first.terms[0].value) == ("fail", 100, 20.0)
    assert judge(parse("p95 ttft@turn>=2@turn<=3 <= 5s"), obs, RULES).terms[0].n == 200


def test_every_metric_is_taken_from_its_own_column():
    obs = window(np.full(300, 100.0), 2.0)
    text = "p50 speed >= 1, p50 e2e_speed >= 1, p50 ttft <= 9s, p50 ttfo <= 9s, p50 itl <= 9s"
    assert [t.value for t in judge(parse(text), obs, RULES).terms[:5]] == [100.0, 50.0, 2.0, 3.0, 0.01]


def test_one_missed_term_fails_the_slo_and_close_means_every_missed_one_was():
    slow_start = window(spread(400, 130), 60.0)
    verdict = judge(parse("80tps"), slow_start, RULES)
    assert (verdict.status, verdict.close) == ("fail", False)
    assert verdict.reason.startswith("p95 ttft = 60.00 s")
    failed = np.arange(400) < 6
    both = window(spread(400, 130), 60.0, failed=failed, plays=37)
    assert judge(parse("80tps"), both, RULES).close is False
    only_close = window(spread(400, 130), 1.0, failed=failed, plays=37)
    assert judge(parse("80tps"), only_close, RULES).close is True


def test_a_smaller_error_asks_for_more_certainty():
    obs = window(spread(300, 92))
    one, many = (judge(parse("80tps"), obs, Rules(alpha=a, agents=1)).terms[0] for a in (None, 0.0025))
    assert many.share_high > one.share_high
    assert many.share_low < one.share_low
    assert Rules().error == pytest.approx(0.05)
    assert Rules(confidence=0.99).error == pytest.approx(0.01)
    assert judge(parse("80tps"), obs, Rules(alpha=0.0025)).alpha == 0.0025


def test_an_invalid_verdict_keeps_its_figures():
    verdict = judge(parse("80tps"), window(spread(200, 92)), RULES)
    spoilt = invalidate(verdict, "client_limited: event loop 40 ms late")
    assert (spoilt.status, spoilt.reason, spoilt.more_requests) == (
        "invalid",
        "client_limited: event loop 40 ms late",
        None,
    )
    assert spoilt.terms == verdict.terms


def test_arrays_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="one length"):
        Observations(**{name: np.zeros(3 if name == "speed" else 2) for name in Observations.__slots__})


def correlated_window(rng, n, plays, centre, width=0.25, alike=0.12):
    play = rng.integers(0, plays, n)
    speed = centre * np.exp(rng.normal(0, width, n) + rng.normal(0, alike, plays)[play])
    zero = np.zeros(n)
    return Observations(
        speed, zero, zero, zero, speed, np.ones(n, dtype=int), play, np.zeros(n, dtype=bool), np.arange(n) * 1.0
    )


@pytest.mark.parametrize(("beyond", "wrong"), [(0.28, "pass"), (0.22, "fail")])
def test_wrong_verdicts_are_as_rare_as_stated(beyond, wrong):
    """Speeds alike within plays; the true share of slow requests is just on the other side of the allowed 25 %."""
    from scipy.stats import norm

    total = math.hypot(0.25, 0.12)
    centre = 80 / math.exp(norm.ppf(beyond) * total)
    rng = np.random.default_rng(7)
    slo = parse("p25 speed >= 80, errors <= 99 %")
    runs = 300
    found = [judge(slo, correlated_window(rng, 400, 25, centre), Rules(agents=10)).status for _ in range(runs)]
    assert found.count(wrong) / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert found.count("inconclusive") > 0.5 * runs


def test_what_is_far_off_is_decided_at_once():
    rng = np.random.default_rng(8)
    slo = parse("p25 speed >= 80")
    for centre, status in ((140, "pass"), (60, "fail")):
        found = [judge(slo, correlated_window(rng, 120, 40, centre), Rules(agents=10)).status for _ in range(100)]
        assert found.count(status) >= 65
        assert set(found) <= {status, "inconclusive"}


VALUES = st.one_of(st.floats(0, 300), st.just(float("nan")), st.just(float("inf")), st.just(0.0))


@given(
    st.lists(
        st.tuples(VALUES, VALUES, st.integers(1, 5), st.integers(0, 9), st.booleans(), st.floats(0, 99)), max_size=60
    ),
    st.sampled_from(["80tps", "p95 ttft@turn>=2 <= 2s", "p50 itl <= 40ms, errors <= 0", "p99 ttfo <= 1s"]),
    st.integers(1, 40),
)
def test_any_window_gives_a_verdict_that_json_carries(rows, text, least):
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 6
    speed, late, turn, play, failed, start = (np.asarray(c) for c in columns)
    obs = Observations(
        speed.astype(float),
        late.astype(float),
        late.astype(float),
        late.astype(float),
        speed.astype(float),
        turn.astype(int),
        play.astype(int),
        failed.astype(bool),
        start.astype(float),
    )
    verdict = judge(parse(text), obs, Rules(min_requests=least, min_plays=2))
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict
    if len(rows) < least:
        assert verdict.status == "inconclusive"
    for term in verdict.terms:
        if term.status == "pass":
            assert term.pooled_share <= term.allowed_share
        if term.status == "fail":
            assert term.pooled_share > term.allowed_share
