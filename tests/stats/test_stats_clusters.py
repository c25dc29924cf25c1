"""The design effect: golden figures, what each part sees, and the confidence sequence made with it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.stats.clusters import BLOCKS, PLAY_ICC, TIME_RHO, design_effect, play_part, time_part
from agentperf.stats.sequence import Counts, threshold
from agentperf.stats.shares import share_sequence

ALPHA = 0.05


def unsure(freedom):
    return threshold(ALPHA, freedom) / threshold(ALPHA)


def test_play_part_golden():
    # 6 plays of 4 requests; 2 plays wholly beyond the limit. p = 1/3; play sums of x - p: 2 x 8/3, 4 x -4/3.
    x = np.repeat([1.0, 1, 0, 0, 0, 0], 4)
    squares = 2 * (8 / 3) ** 2 + 4 * (4 / 3) ** 2
    variance = 6 / 5 * squares / 24**2
    independent = (1 / 3) * (2 / 3) / 24
    found = play_part(x, np.repeat(np.arange(6), 4), ALPHA)
    assert found == pytest.approx(variance / independent * unsure(5))
    assert variance / independent == pytest.approx(4.8), "a play of four that are copies counts once, times 6 / 5"


def test_time_part_golden():
    # 16 blocks of 4, every other block wholly beyond: p = 1/2, sums of +-2; neighbours are opposite, so none is alike.
    x = np.repeat([1.0, 0.0] * 8, 4)
    start = np.arange(64.0)
    assert time_part(x, start, ALPHA) == pytest.approx(16 / 15 * 64 / (64 * 0.25) * unsure(15))
    # Two halves: every block is like the next but once; the correlation is 14/16 - 0 + 1/16, cut at 0.8: times 9.
    halves = np.repeat([1.0, 0.0], 32)
    assert time_part(halves, start, ALPHA) == pytest.approx(16 / 15 * 4 * 9 * unsure(15))
    order = np.random.default_rng(0).permutation(64)
    assert time_part(halves[order], start[order], ALPHA) == pytest.approx(16 / 15 * 4 * 9 * unsure(15)), (
        "sorted by time"
    )


def test_the_floor_by_agents_and_share():
    x = np.zeros(400, dtype=bool)
    start = np.arange(400.0)
    for allowed, scale in ((0.25, 1.0), (0.5, 1.0), (0.05, 0.25), (0.01, 0.05), (0.95, 0.25)):
        found = design_effect(x, None, start, allowed=allowed, agents=41, alpha=ALPHA)
        assert found.total == pytest.approx(1 + 40 * TIME_RHO * scale)
    assert design_effect(x[:5], None, start[:5], agents=41).time == pytest.approx(1 + 4 * TIME_RHO)
    assert design_effect(x, None, None).total == 1.0


def test_the_assumed_correlation_of_plays_gives_way():
    plays = np.repeat(np.arange(20), 20)
    none = np.zeros(400, dtype=bool)
    assert design_effect(none, plays, None).play == pytest.approx(1 + 19 * PLAY_ICC)
    some = none.copy()
    some[::100] = True  # four plays
    assert design_effect(some, plays, None).play == pytest.approx(1 + 19 * PLAY_ICC * 3 / 7)


def test_one_play_is_one_observation():
    found = design_effect(np.arange(50) < 10, np.zeros(50, dtype=np.int64), None)
    assert found.of(50) == pytest.approx(1.0)


def test_a_bad_stretch_of_time_is_seen_though_it_hits_every_play():
    x = np.zeros(400, dtype=bool)
    x[100:200] = True
    plays = np.arange(400) % 20
    assert design_effect(x, plays, None).total < 4
    assert design_effect(x, plays, np.arange(400.0), agents=1).total > 50


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.floats(0, 60)), min_size=0, max_size=120),
    st.sampled_from([0.01, 0.05, 0.25, 0.5]),
    st.sampled_from([0.001, 0.01, 0.1]),
    st.integers(1, 50),
)
def test_always_at_least_one_and_at_most_all(rows, allowed, alpha, agents):
    x = np.array([r[0] for r in rows], dtype=bool)
    plays = np.array([r[1] for r in rows], dtype=np.int64)
    start = np.array([r[2] for r in rows], dtype=float)
    found = design_effect(x, plays, start, allowed=allowed, agents=agents, alpha=alpha)
    assert 1 <= found.total <= max(1, len(rows))
    seen = share_sequence(
        x, plays, start, allowed=allowed, alpha_below=alpha, alpha_above=alpha, agents=agents, before=Counts(1, 5)
    )
    assert seen.counts.n == pytest.approx(seen.own.n + 5)
    assert 0 <= seen.low <= seen.counts.share <= seen.high <= 1
    assert not (seen.is_below and seen.is_above)


def test_requests_alike_cost_evidence():
    rng = np.random.default_rng(4)
    x = rng.random(600) < 0.1
    plays, start = np.arange(600) % 40, np.arange(600.0)
    plain = share_sequence(x, allowed=0.25)
    held = share_sequence(x, plays, start, allowed=0.25, agents=40)
    assert plain.own == Counts(int(x.sum()), 600)
    assert held.below < plain.below
    assert held.own.n == pytest.approx(600 / held.design.total)
    assert held.high > plain.high
    assert BLOCKS * 3 <= 600
