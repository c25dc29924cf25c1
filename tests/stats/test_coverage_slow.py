"""Coverage at full size: a thousand searches and a thousand watched windows a setting. Minutes each."""

import pytest

from benchmarks.coverage import SETTINGS, binomial, searches, windows

RUNS = 1000
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_false_verdicts_at_the_edge(setting):
    passes, fails = windows(setting, RUNS)
    low, _ = binomial(passes + fails, RUNS)
    assert low <= 0.05


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_brackets(setting):
    found = searches(setting, RUNS)
    _, high = binomial(sum(f.right for f in found), RUNS)
    assert high >= 0.95
