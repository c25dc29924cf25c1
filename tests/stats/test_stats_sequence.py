"""The confidence sequence: golden figures by integration, one-sidedness, bounds, exact time-uniformity."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special, stats

from agentperf.stats.sequence import NARROW, WIDE, Counts, bounds, log_evidence, needed, threshold


def by_integration(k, n, p, side):
    """The mean of the likelihood ratio over the prior, integrated numerically in place of beta functions."""
    total = 0.0
    for m in (WIDE, NARROW):
        prior = stats.beta(m * p, m * (1 - p))
        a, b = (0.0, p) if side == "below" else (p, 1.0)

        # q = a + (b - a) u^8 (or mirrored) tames the density at the ends.
        def weigh(u, a=a, b=b, prior=prior):
            q = (b - a) * u**12 if side == "below" else 1 - (b - a) * u**12
            jacobian = 12 * (b - a) * u**11
            if jacobian == 0 or not 0 < q < 1:
                return 0.0
            ratio = math.exp(special.xlogy(k, q / p) + special.xlogy(n - k, (1 - q) / (1 - p)))
            return float(prior.pdf(q) * ratio * jacobian)

        mass = prior.cdf(b) - prior.cdf(a)
        total += integrate.quad(weigh, 0, 1, limit=400)[0] / mass / 2
    return math.log(total)


@pytest.mark.parametrize(
    ("k", "n", "p"), [(0, 20, 0.25), (3, 40, 0.25), (12, 40, 0.25), (1, 60, 0.05), (9, 60, 0.05), (2.5, 17.3, 0.5)]
)
@pytest.mark.parametrize("side", ["below", "above"])
def test_golden_by_integration(k, n, p, side):
    assert log_evidence(Counts(k, n), p, side) == pytest.approx(by_integration(k, n, p, side), abs=2e-4)


def test_golden_sizes_without_a_request_beyond_the_limit():
    """What it takes to say, at one in a hundred, that at most 5 % or 25 % are beyond: a whole number of requests."""

    def first(p, alpha):
        return next(n for n in range(1, 2000) if log_evidence(Counts(0, n), p, "below") >= threshold(alpha))

    assert first(0.05, 0.01) == 103
    assert first(0.25, 0.01) == 21
    assert first(0.05, 0.05) == 70
    assert math.log(1 / 0.01) / -math.log(0.95) < 103, "no test can do with fewer than 90"


def test_without_requests_nothing_is_known():
    assert log_evidence(Counts(0, 0), 0.25, "below") == 0.0
    assert bounds(Counts(0, 0), 0.25, 3.0, 3.0) == (0.0, 1.0)
    assert needed(Counts(0, 0), 0.25, "below", 3.0) == math.inf
    with pytest.raises(ValueError, match="between 0 and"):
        Counts(3, 2)


def test_impossible_shares():
    assert log_evidence(Counts(1, 10), 0.0, "above") == math.inf
    assert log_evidence(Counts(0, 10), 0.0, "above") == 0.0
    assert log_evidence(Counts(0, 10), 0.0, "below") == -math.inf


@given(st.integers(0, 80), st.integers(0, 80), st.sampled_from([0.01, 0.05, 0.25, 0.5, 0.9]))
def test_sides_mirror_each_other(k, rest, p):
    here = log_evidence(Counts(k, k + rest), p, "above")
    there = log_evidence(Counts(rest, k + rest), 1 - p, "below")
    assert here == pytest.approx(there, rel=1e-9, abs=1e-9) or (math.isinf(here) and math.isinf(there))


@pytest.mark.parametrize("p", [0.05, 0.25, 0.6])
@pytest.mark.parametrize("true", [0.0, 0.05, 0.1, 0.3])
def test_evidence_is_a_supermartingale_on_the_whole_null(p, true):
    """Its expectation over n fair requests, exactly by the binomial: at most 1 from the border on; 1 on the border."""
    share = min(0.99, p + true)
    for n in (1, 7, 40):
        k = np.arange(n + 1)
        evidence = np.exp([log_evidence(Counts(float(i), n), p, "below") for i in k])
        mean = float(stats.binom.pmf(k, n, share) @ evidence)
        assert mean <= 1 + 1e-9
        if true == 0.0:
            assert mean == pytest.approx(1.0)


def ever_refuted(p, alpha, n):
    """Chance that the evidence reaches 1 / alpha at any of n looks when the share is p: exact, by recursion over k."""
    bar, alive, out = threshold(alpha), np.array([1.0]), 0.0
    for i in range(1, n + 1):
        following = np.zeros(i + 1)
        following[:-1] += alive * (1 - p)
        following[1:] += alive * p
        refuted = np.array([log_evidence(Counts(float(k), i), p, "below") >= bar for k in range(i + 1)])
        out += float(following[refuted].sum())
        following[refuted] = 0.0
        alive = following
    return out


@pytest.mark.parametrize(("p", "alpha"), [(0.25, 0.05), (0.05, 0.05), (0.25, 0.01)])
def test_looking_after_every_request_errs_no_more_than_stated(p, alpha):
    """Exact, no simulation: 150 looks. And the bound is not idle: a fifth of it is used."""
    assert alpha / 5 < ever_refuted(p, alpha, 150) <= alpha


def test_threshold():
    assert threshold(0.05) == pytest.approx(-math.log(0.05))
    # With f degrees of freedom, exp(-t X / f) has the mean (1 + 2 t / f)^(-f / 2) for chi-squared X: that is alpha.
    for alpha, f in ((0.05, 15.0), (0.004, 7.0), (0.01, 1.0)):
        t = threshold(alpha, f)
        assert (1 + 2 * t / f) ** (-f / 2) == pytest.approx(alpha)
        assert t > threshold(alpha)
    assert threshold(0.01, 1e7) == pytest.approx(threshold(0.01), rel=1e-4)
    with pytest.raises(ValueError, match="between 0 and 1"):
        threshold(0.0)


@given(
    st.floats(0, 300), st.floats(0, 300), st.sampled_from([0.01, 0.05, 0.25, 0.5]), st.sampled_from([0.001, 0.01, 0.1])
)
def test_bounds_hold_the_share_and_agree_with_the_tests(k, rest, p, alpha):
    counts, bar = Counts(k, k + rest), threshold(alpha)
    low, high = bounds(counts, p, bar, bar)
    assert 0 <= low <= high <= 1
    if counts.n > 0:
        assert low <= counts.share <= high
    if abs(high - p) > 1e-6:
        assert (high < p) == (log_evidence(counts, p, "below") >= bar)
    if abs(low - p) > 1e-6:
        assert (low > p) == (log_evidence(counts, p, "above") >= bar)


def test_more_of_the_same_narrows_the_bounds():
    widths = []
    for n in (20, 100, 500, 5000):
        low, high = bounds(Counts(0.1 * n, n), 0.25, 4.0, 4.0)
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.04


def test_pooling_adds_counts():
    assert Counts(1, 10) + Counts(2.5, 30) == Counts(3.5, 40)


@pytest.mark.parametrize(("share", "p"), [(0.0, 0.05), (0.02, 0.05), (0.15, 0.25), (0.4, 0.25)])
def test_needed_is_where_it_decides(share, p):
    side = "below" if share < p else "above"
    n = needed(Counts(share * 10, 10), p, side, 5.0)
    assert log_evidence(Counts(share * n * 1.01, n * 1.01), p, side) >= 5.0
    assert log_evidence(Counts(share * n * 0.98, n * 0.98), p, side) < 5.0
    assert needed(Counts(share * 10, 10), p, "above" if side == "below" else "below", 5.0) == math.inf
    assert needed(Counts(share * 4 * n, 4 * n), p, side, 5.0) == 4 * n, "already decided"
