"""The trend of a window: golden figures, its false alarms, and what it sees."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from agentperf.stats.trend import BLOCKS, trend


def test_golden_against_ordinary_regression():
    """Blocks of three equal values: the line is that of scipy; residuals that alternate have no correlation to add."""
    noise = np.array([0.5, -0.5] * 8)
    means = 10 + 0.2 * np.arange(BLOCKS) + noise
    found = trend(np.repeat(means, 3), np.arange(48.0))
    line = stats.linregress(np.arange(BLOCKS), means)
    assert found.mean == pytest.approx(means.mean())
    assert found.change == pytest.approx(line.slope * BLOCKS / means.mean())
    assert found.p == pytest.approx(line.pvalue)


def test_alike_neighbours_raise_the_error():
    slow = np.repeat(10 + np.sin(np.arange(BLOCKS) / 2) + 0.05 * np.arange(BLOCKS), 3)
    found = trend(slow, np.arange(48.0))
    line = stats.linregress(np.arange(BLOCKS), slow[::3])
    assert found.p > line.pvalue


def test_order_is_that_of_time_and_few_say_nothing():
    values, start = np.arange(60.0), np.arange(60.0)
    order = np.random.default_rng(1).permutation(60)
    assert trend(values[order], start[order]) == trend(values, start)
    assert trend(values[:47], start[:47]) is None
    assert trend(np.full(60, 3.0), start).p == 1.0


def test_false_alarms_are_as_rare_as_stated():
    rng = np.random.default_rng(2)
    runs = 600
    low = sum(trend(rng.lognormal(0, 0.3, 200), np.arange(200.0)).p < 0.05 for _ in range(runs))
    assert low / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    seen = sum(
        trend(rng.lognormal(0, 0.3, 400) * np.linspace(0.8, 1.2, 400), np.arange(400.0)).p < 0.01 for _ in range(100)
    )
    assert seen >= 80


@given(st.lists(st.floats(0, 1e6), min_size=0, max_size=120))
def test_any_values(values):
    found = trend(np.array(values, dtype=float), np.arange(float(len(values))))
    assert (found is None) == (len(values) < 48)
    assert found is None or 0 <= found.p <= 1
