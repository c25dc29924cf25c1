"""The interval of a share: golden figures, sanity at the ends, and coverage by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.stats.shares import (
    PRIOR_ICC,
    effective_size,
    needed_size,
    normal_quantile,
    share_interval,
    time_blocks,
    wilson,
)

Z95 = 1.959963984540054


def test_wilson_golden():
    assert normal_quantile(0.95) == pytest.approx(Z95)
    # The set of p with (share - p)^2 = z^2 p (1 - p) / n, solved by hand for 10 of 100 and 0 of 20.
    low, high = wilson(0.1, 100, Z95)
    assert (low, high) == pytest.approx((0.0552291, 0.1743657), abs=1e-6)
    for bound in (low, high):
        assert (0.1 - bound) ** 2 == pytest.approx(Z95**2 * bound * (1 - bound) / 100)
    assert wilson(0.0, 20, Z95) == (0.0, pytest.approx(Z95**2 / (20 + Z95**2)))
    assert wilson(1.0, 20, Z95) == (pytest.approx(20 / (20 + Z95**2)), 1.0)
    assert wilson(0.5, 0, Z95) == (0.0, 1.0)


def test_independent_requests_count_in_full():
    x = np.zeros(100, dtype=bool)
    x[:10] = True
    found = share_interval(x)
    assert (found.share, found.n, found.n_eff, found.design_effect) == (0.1, 100, 100.0, 1.0)
    assert (found.low, found.high) == pytest.approx((0.0552291, 0.1743657), abs=1e-6)


def test_cluster_variance_golden():
    # 6 plays of 4 requests; 2 plays wholly beyond the limit. p = 1/3; play sums of x - p: 2 x 8/3, 4 x -4/3.
    x = np.repeat([1, 1, 0, 0, 0, 0], 4).astype(float)
    plays = np.repeat(np.arange(6), 4)
    squares = 2 * (8 / 3) ** 2 + 4 * (4 / 3) ** 2
    variance = 6 / 5 * squares / 24**2
    kurtosis = 6 * (2 * (8 / 3) ** 4 + 4 * (4 / 3) ** 4) / squares**2
    freedom = min(5, 12 / (kurtosis - 1))
    assert freedom == 5
    t5 = 2.5705818356363146  # tabulated, two-sided 95 %
    expected = (1 / 3) * (2 / 3) / variance * (Z95 / t5) ** 2
    assert effective_size(x, plays, None, 0.95) == pytest.approx(expected)
    assert expected < 24 / 4, "wholly alike requests are worth less than one a play"


def test_few_groups_that_carry_the_variance_lower_the_degrees_of_freedom():
    x = np.zeros(200)
    x[:20] = 1  # all in one of ten plays
    plays = np.repeat(np.arange(10), 20)
    concentrated = effective_size(x, plays, None, 0.95)
    spread = np.zeros(200)
    spread[::10] = 1
    assert concentrated < 5 < effective_size(spread, plays, None, 0.95)


def test_without_any_beyond_the_assumed_correlation_counts():
    plays = np.repeat(np.arange(10), 20)
    found = share_interval(np.zeros(200, dtype=bool), plays, np.arange(200.0))
    assert found.n_eff == pytest.approx(200 / (1 + 19 * PRIOR_ICC))
    assert found.low == 0
    assert found.high == pytest.approx(Z95**2 / (found.n_eff + Z95**2))
    mirror = share_interval(np.ones(200, dtype=bool), plays, np.arange(200.0))
    assert (mirror.low, mirror.high) == (pytest.approx(1 - found.high), 1.0)


def test_a_bad_stretch_of_time_is_seen_though_it_hits_every_play():
    n = 400
    x = np.zeros(n, dtype=bool)
    x[100:200] = True
    plays = np.arange(n) % 20
    assert share_interval(x, plays, None).n_eff > 100
    assert share_interval(x, plays, np.arange(float(n))).n_eff < 10


def test_degenerate_data():
    nothing = share_interval(np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64), np.zeros(0))
    assert math.isnan(nothing.share)
    assert (nothing.low, nothing.high, nothing.n, nothing.design_effect) == (0.0, 1.0, 0, 1.0)
    one_play = share_interval(np.arange(50) < 10, np.zeros(50, dtype=np.int64))
    assert one_play.n_eff == 1.0, "one play says nothing of others"
    with pytest.raises(ValueError, match="between 0 and 1"):
        share_interval(np.ones(3, dtype=bool), confidence=1.0)


def test_time_blocks_are_consecutive_and_even():
    start = np.array([5.0, 1.0, 3.0, 2.0, 4.0, 0.0])
    assert time_blocks(start, 3).tolist() == [2, 0, 1, 1, 2, 0]
    assert np.bincount(time_blocks(np.arange(103.0), 10)).tolist() == [11, 10, 10, 11, 10, 10, 11, 10, 10, 10]


def test_needed_size_is_where_wilson_leaves_the_allowed_share_out():
    assert needed_size(0.05, 0.05, 0.95) == math.inf
    for share, allowed in ((0.18, 0.25), (0.3, 0.25), (0.02, 0.05), (0.0, 0.05)):
        needed = needed_size(share, allowed, 0.95)
        for n, outside in ((needed * 1.001, True), (needed * 0.999, False)):
            low, high = wilson(share, n, Z95)
            assert (not low <= allowed <= high) is outside


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.floats(0, 60)), min_size=1, max_size=80),
    st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
def test_always_a_proper_interval(rows, confidence):
    x = np.array([r[0] for r in rows])
    plays = np.array([r[1] for r in rows], dtype=np.int64)
    start = np.array([r[2] for r in rows])
    found = share_interval(x, plays, start, confidence)
    assert 0 <= found.low <= found.share <= found.high <= 1
    assert found.low < found.high
    assert 1 <= found.n_eff <= len(rows)
    assert found.design_effect >= 1


def by_play(rng, p, plays, size, icc):
    """Beta-binomial: requests of a play share a probability; the correlation of two of them is icc."""
    scale = 1 / icc - 1
    rates = rng.beta(p * scale, (1 - p) * scale, plays)
    n = plays * size
    return rng.random(n) < np.repeat(rates, size), np.repeat(np.arange(plays), size), rng.permutation(n).astype(float)


def independent(rng, p, plays, size):
    n = plays * size
    return rng.random(n) < p, np.repeat(np.arange(plays), size), rng.permutation(n).astype(float)


def over_time(rng, p, n, stay):
    """A chain that keeps its state with probability `stay`, else draws anew: correlation stay^k at distance k."""
    fresh = rng.random(n) < p
    keep = rng.random(n) < stay
    keep[0] = False
    source = np.maximum.accumulate(np.where(keep, 0, np.arange(n)))
    return fresh[source], rng.integers(0, max(10, n // 20), n), np.arange(n).astype(float)


CASES = {
    "independent p25": (independent, 0.25, (20, 15)),
    "independent p5": (independent, 0.05, (20, 15)),
    "independent p1": (independent, 0.01, (40, 10)),
    "by play, icc 0.05, p25": (by_play, 0.25, (20, 15, 0.05)),
    "by play, icc 0.05, p5": (by_play, 0.05, (20, 15, 0.05)),
    "by play, icc 0.2, p25": (by_play, 0.25, (30, 20, 0.2)),
    "by play, icc 0.2, p5": (by_play, 0.05, (30, 10, 0.2)),
    "by play, icc 0.2, few plays, p5": (by_play, 0.05, (10, 30, 0.2)),
    "by play, icc 0.5, short plays, p5": (by_play, 0.05, (100, 3, 0.5)),
    "over time, stay 0.5, p25": (over_time, 0.25, (400, 0.5)),
    "over time, stay 0.5, p5": (over_time, 0.05, (1000, 0.5)),
    "over time, stay 0.8, p25": (over_time, 0.25, (1000, 0.8)),
    "over time, stay 0.8, p5": (over_time, 0.05, (2000, 0.8)),
}
RUNS = 700


@pytest.mark.parametrize("confidence", [0.9, 0.95])
@pytest.mark.parametrize("case", CASES)
def test_coverage_is_what_is_stated(case, confidence):
    draw, p, shape = CASES[case]
    rng = np.random.default_rng(20260722)
    hits = 0
    for _ in range(RUNS):
        x, plays, start = draw(rng, p, *shape)
        found = share_interval(x, plays, start, confidence)
        hits += found.low <= p <= found.high
    noise = 3 * math.sqrt(confidence * (1 - confidence) / RUNS)
    assert hits / RUNS >= confidence - noise


@pytest.mark.parametrize("case", ["by play, icc 0.2, p25", "over time, stay 0.8, p25"])
def test_taking_the_requests_for_independent_would_not_cover(case):
    """The simulated data are hard enough to need the method: the plain Wilson interval fails on them."""
    draw, p, shape = CASES[case]
    rng = np.random.default_rng(20260722)
    hits = 0
    for _ in range(RUNS):
        x, _plays, _start = draw(rng, p, *shape)
        found = share_interval(x)
        hits += found.low <= p <= found.high
    assert hits / RUNS < 0.85


def test_the_price_of_caution_is_bounded():
    """On independent data the interval may be wider, but not useless."""
    rng = np.random.default_rng(1)
    sizes = [share_interval(*independent(rng, 0.25, 30, 20)).n_eff / 600 for _ in range(200)]
    assert 0.55 < np.median(sizes) <= 1.0
