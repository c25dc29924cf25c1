"""Running percentiles are numpy's, at every moment, and cost what the new numbers cost."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.stats.running import BLOCK, RunningValues

NUMBERS = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60)


@given(NUMBERS, st.floats(0, 100))
def test_percentiles_are_numpys_at_every_moment(numbers: list[float], percent: float) -> None:
    running = RunningValues()
    for count, number in enumerate(numbers, 1):
        running.add(number)
        expected = np.percentile(numbers[:count], percent, method="linear")
        assert running.percentile(percent) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert len(running) == len(numbers)
    assert running.max() == max(numbers)
    assert running.mean() == pytest.approx(np.mean(numbers), abs=1e-6)


def test_over_many_blocks_in_any_order() -> None:
    generator = random.Random(4)
    numbers = [generator.choice([generator.gauss(50, 20), 7.0, 7.0]) for _ in range(9 * BLOCK)]
    for order in (numbers, sorted(numbers), sorted(numbers, reverse=True)):
        running = RunningValues(order)
        for percent in (0, 1, 25, 50, 95, 99.9, 100):
            assert running.percentile(percent) == pytest.approx(np.percentile(numbers, percent))
        assert [running.at_rank(k) for k in range(0, len(numbers), 97)] == sorted(numbers)[::97]


def test_infinite_numbers_take_part() -> None:
    running = RunningValues([1.0, 2.0, math.inf, 3.0])
    assert running.percentile(50) == pytest.approx(2.5)
    assert running.percentile(75) == math.inf
    assert running.percentile(100) == math.inf


def test_of_nothing() -> None:
    running = RunningValues()
    assert (running.percentile(50), running.mean(), running.max(), len(running)) == (None, None, None, 0)
    with pytest.raises(IndexError):
        running.at_rank(0)


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        RunningValues([math.nan])


def test_an_addition_costs_a_block_not_the_whole() -> None:
    """Work for the second half of many numbers is that for the first: it does not grow with what is there."""
    generator = random.Random(5)
    running = RunningValues(generator.random() for _ in range(40_000))
    half = running.moves
    for _ in range(40_000):
        running.add(generator.random())
    assert running.moves - half < 40_000 * (2 * BLOCK + 2)
    assert running.moves - half < 1.5 * half
