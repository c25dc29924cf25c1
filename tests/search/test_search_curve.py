"""The curve of all levels: where it expects the capacity, and how the planner uses that."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.search.curve import curves, estimate
from agentperf.search.levels import inside
from agentperf.search.model import Done, Point, ProbeResult, SearchSettings
from agentperf.search.planner import next_step


def seen(level, share, n=200.0, status="inconclusive", term="p25 speed", allowed=0.25, **more):
    point = Point(term=term, share=share, n_eff=n, allowed=allowed)
    return ProbeResult(level=level, statuses={"a": status}, points={"a": (point,)}, **more)


def test_probes_of_a_level_count_together():
    history = [seen(8, 0.1, 100), seen(8, 0.3, 300), seen(16, 0.5), seen(32, 0.9, note="process_lost: x")]
    curve, allowed = curves("a", history)["p25 speed"]
    assert allowed == 0.25
    assert curve.levels.tolist() == [8, 16]
    assert curve.weights.tolist() == [400, 200]
    assert curve.fitted[0] == pytest.approx((0.25 * 400 + 0.5) / 401)


def test_the_estimate_is_where_the_first_term_crosses():
    history = [seen(8, 0.05), seen(16, 0.15), seen(32, 0.6)]
    found = estimate("a", history)
    assert 16 < found.agents < 32
    assert found.low <= found.agents <= found.high
    late = [
        ProbeResult(
            level=r.level,
            statuses=r.statuses,
            points={"a": (*r.points["a"], Point(term="p95 ttft", share=s, n_eff=200, allowed=0.05))},
        )
        for r, s in zip(history, (0.01, 0.5, 0.9), strict=True)
    ]
    assert 8 < estimate("a", late).agents < 16
    assert estimate("a", history[:1]) is None
    assert estimate("a", [seen(8, 0.0), seen(16, 0.01)]) is None, "it does not cross"


@given(st.integers(0, 5000), st.integers(2, 5000), st.floats(-10, 1e4))
def test_a_guess_never_leaves_the_bracket_and_always_shrinks_it(low, width, guess):
    high = low + width
    level = inside(low, high, guess)
    assert low < level < high
    assert max(level - low, high - level) <= math.ceil(0.75 * width + 1)
    assert inside(low, high, None) == (low + high) // 2


@pytest.mark.parametrize("lie", [0.0, 1.0])
def test_a_guess_that_is_always_wrong_costs_a_bounded_factor(lie):
    """Shares that point to one end of the bracket whatever the truth is."""
    setup = SearchSettings(slos=("a",), max_agents=4096)
    history = []
    while not isinstance(step := next_step(setup, history), Done):
        passes = step.level <= 1840
        share = 0.2499 if passes and lie else 0.0 if passes else 1.0 if lie else 0.2501
        history.append(seen(step.level, share, 1e4, "pass" if passes else "fail"))
    assert step.answers[0].largest_pass <= 1840 < step.answers[0].smallest_fail
    assert len(history) <= 12 + math.ceil(6 * math.log(2) / math.log(4 / 3)) + 2


def test_a_true_curve_saves_probes():
    """Shares of a smooth curve: the level after the ramp is near the capacity at once."""
    setup = SearchSettings(slos=("a",), max_agents=4096)

    def share(n):
        return 1 / (1 + math.exp(-6 * math.log(n / 1700) - math.log(0.25 / 0.75)))

    history = []
    while not isinstance(step := next_step(setup, history), Done):
        history.append(seen(step.level, share(step.level), 1e4, "pass" if step.level <= 1700 else "fail"))
    answer = step.answers[0]
    assert answer.largest_pass <= 1700 < answer.smallest_fail
    assert abs(answer.estimate.agents / 1700 - 1) < 0.02
    after_ramp = [r.level for r in history[12:]]
    assert abs(after_ramp[0] / 1700 - 1) < 0.1
    assert np.all(np.diff(sorted(set(after_ramp))) > 0)
