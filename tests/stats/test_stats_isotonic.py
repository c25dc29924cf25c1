"""The fitted curve, where it crosses a limit, and how often its band holds the truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.stats.isotonic import Crossing, crossing, fit, ladder, least, share_at


def test_golden():
    # 8 and 16 contradict each other and are pooled: (10.5 / 101 and 5.5 / 101, even weights) -> 8 / 101.
    curve = fit([4, 8, 16, 32], [0.0, 0.1, 0.05, 0.5], [100, 100, 100, 100])
    assert curve.fitted == pytest.approx([0.5 / 101, 8 / 101, 8 / 101, 50.5 / 101])
    found = crossing(curve, 0.25)
    logit = [np.log(p / (1 - p)) for p in (8 / 101, 0.25, 50.5 / 101)]
    assert found.at == pytest.approx(16 * 2 ** ((logit[1] - logit[0]) / (logit[2] - logit[0])))
    assert 16 <= found.low <= found.at <= found.high <= 32
    share, low, high = share_at(curve, 32)
    assert share == pytest.approx(50.5 / 101)
    assert low < share < high


def test_no_crossing_inside_the_levels():
    low = crossing(fit([4, 8], [0.0, 0.01], [500, 500]), 0.25)
    assert (low.at, low.low, low.high) == (None, None, None)
    high = crossing(fit([4, 8], [0.9, 0.95], [500, 500]), 0.25)
    assert high.at is None
    unsure = crossing(fit([4, 8], [0.1, 0.26], [20, 20]), 0.25)
    assert unsure.high is None


def test_least():
    assert least([Crossing(8.0, 7.0, 9.0), Crossing(None, 7.5, None), Crossing(10.0, 6.0, 11.0)]) == Crossing(
        8.0, 6.0, 9.0
    )


@pytest.mark.parametrize(
    ("levels", "shares", "weights"),
    [([], [], []), ([2, 1], [0, 0], [1, 1]), ([1, 2], [0, 2], [1, 1]), ([1, 2], [0, 0], [1, 0]), ([1], [0, 1], [1])],
)
def test_what_is_no_curve_is_refused(levels, shares, weights):
    with pytest.raises(ValueError, match=r"a curve|a share"):
        fit(levels, shares, weights)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.5, 1e4)), min_size=1, max_size=12), st.sampled_from([0.05, 0.25])
)
def test_any_curve_rises_and_crosses_inside_its_levels(rows, wanted):
    levels = [2.0**i for i in range(len(rows))]
    curve = fit(levels, [r[0] for r in rows], [r[1] for r in rows])
    assert (np.diff(curve.fitted) >= -1e-12).all()
    assert (np.diff(curve.drawn, axis=1) >= -1e-12).all()
    found = crossing(curve, wanted)
    for value in (found.at, found.low, found.high):
        assert value is None or levels[0] <= value <= levels[-1] + 1e-9


def test_the_band_holds_the_truth_as_often_as_stated():
    """Levels of a smooth curve that crosses 25 % at 20 agents; binomial counts."""
    rng = np.random.default_rng(6)
    levels = np.array([4.0, 8, 16, 18, 20, 22, 24, 32, 64])
    true = 1 / (1 + np.exp(-5 * np.log(levels / 20) - np.log(0.25 / 0.75)))
    hits = 0
    for i in range(150):
        found = crossing(fit(levels, rng.binomial(150, true) / 150, np.full(9, 150.0), seed=i), 0.25)
        hits += (found.low or 0) <= 20 <= (found.high or np.inf)
    assert hits / 150 >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 150)


def test_the_ladder_reads_all_rungs_from_one_curve():
    levels = (4, 8, 16, 32, 64)
    points = {tps: {n: (1 / (1 + (80 * 16 / (n * tps)) ** 4), 300.0) for n in levels} for tps in (20, 40, 80, 400)}
    points[100.0] = {4: (0.1, 300.0)}
    found = {r.tps: r for r in ladder(points)}
    assert set(found) == {20, 40, 80, 400}, "one level is no curve"
    crossing_at = {tps: 80 * 16 / tps / 3 ** (1 / 4) for tps in found}
    assert found[40].agents == pytest.approx(crossing_at[40], rel=0.03)
    assert found[80].agents == pytest.approx(crossing_at[80], rel=0.03)
    assert found[80].low <= found[80].agents <= found[80].high
    assert (found[400].agents, found[400].beyond) == (None, "below")
    assert found[20].agents == pytest.approx(crossing_at[20], rel=0.05)
    assert (found[80].lowest, found[80].highest) == (4, 64)
    above = ladder({5.0: {4: (0.0, 300.0), 8: (0.01, 300.0)}})[0]
    assert (above.agents, above.beyond) == (None, "above")
