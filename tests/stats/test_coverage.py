"""Coverage of whole searches and of watched windows by simulation, small; test_coverage_slow.py has it large."""

import math

import numpy as np
import pytest

from benchmarks.coverage import SETTINGS, SLO, World, binomial, edge_of, searches, windows

BY_NAME = {s.name: s for s in SETTINGS}


def at_most(stated, runs):
    """Three standard errors above what is stated."""
    return stated + 3 * math.sqrt(stated * (1 - stated) / runs)


@pytest.mark.parametrize("name", ["sessions, icc 0.5", "bursts of 10 s"])
def test_watched_windows_at_the_edge_give_no_more_verdicts_than_stated(name):
    runs = 40
    passes, fails = windows(BY_NAME[name], runs)
    assert (passes + fails) / runs <= at_most(0.05, runs)


@pytest.mark.parametrize("name", ["sessions, icc 0.2", "cold and warm turns"])
def test_brackets_hold_the_capacity(name):
    found = searches(BY_NAME[name], 12, seed=5)
    assert sum(not f.right for f in found) / 12 <= at_most(0.05, 12)
    assert sum(f.high is not None and f.low > 0 for f in found) >= 9, "an answer that says nothing is no answer"
    assert np.median([f.high / f.low for f in found if f.high and f.low]) < 2.2


@pytest.mark.parametrize("name", ["cold and warm turns", "bursts of 10 s", "speed drifts over 30 s"])
def test_the_model_is_at_its_edge_where_it_says(name):
    """The share of slow requests over long windows is 25 %: otherwise all of this would prove nothing."""
    setting = BY_NAME[name]
    rng = np.random.default_rng(3)
    world = World(setting, 40, rng)
    slow = [float((world.requests(40, 300.0, at_edge=True).speed < SLO.terms[0].limit).mean()) for _ in range(60)]
    assert np.mean(slow) == pytest.approx(0.25, abs=4 * np.std(slow) / math.sqrt(60) + 0.003)
    assert edge_of(setting) == edge_of(setting)


def test_binomial_golden():
    assert binomial(0, 20) == (0.0, pytest.approx(0.1684, abs=1e-4))
    assert binomial(5, 100) == (pytest.approx(0.0164, abs=1e-4), pytest.approx(0.1128, abs=1e-4))
