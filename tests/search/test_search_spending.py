"""How the error is spent: the sum over all levels a search can probe is at most what the answer states."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.search.model import SearchSettings
from agentperf.search.spending import alpha_of, halvings, ramp_levels, sweep_alpha


def one(max_agents=4096, **more):
    return SearchSettings(slos=("a",), max_agents=max_agents, **more)


def test_golden():
    setup = one()
    assert ramp_levels(setup) == tuple(2**k for k in range(13))
    assert halvings(setup) == 7
    assert alpha_of(setup, 64, []) == pytest.approx(0.05 / 3 / 13)
    first = alpha_of(setup, 48, [1, 2, 4, 8, 16, 32, 64])
    assert first == pytest.approx(0.05 * 2 / 3 / 10)
    ninth = [33, 34, 35, 36, 37, 38, 39, 40, 41]
    assert alpha_of(setup, 42, ninth[:8]) == pytest.approx(first)
    assert alpha_of(setup, 42, ninth) == pytest.approx(first / 2)
    assert alpha_of(setup, 43, [*ninth, 42]) == pytest.approx(first / 4)


def test_a_level_keeps_its_alpha_when_it_is_probed_again():
    setup = one()
    order = [1, 2, 3, 5, 7, 9, 3, 5]
    assert {alpha_of(setup, 5, order[:k]) for k in range(2, 9)} == {alpha_of(setup, 5, [])}
    assert alpha_of(setup, 9, order) == alpha_of(setup, 9, order[:5])


@given(
    st.integers(1, 100_000),
    st.integers(1, 300),
    st.sampled_from([0.01, 0.05, 1, 16]),
    st.integers(1, 4),
    st.sampled_from([0.9, 0.95, 0.99]),
    st.lists(st.integers(1, 100_000), max_size=120),
)
def test_whatever_is_probed_the_sum_is_within_the_error(top, start, resolution, slos, confidence, order):
    setup = SearchSettings(
        slos=tuple("abcd"[:slos]), max_agents=max(top, start), start=start, resolution=resolution, confidence=confidence
    )
    levels = list(dict.fromkeys([*ramp_levels(setup), *(n for n in order if n <= setup.max_agents)]))
    spent = sum(alpha_of(setup, n, levels[:i]) for i, n in enumerate(levels))
    assert spent <= (1 - confidence) * (1 + 1e-9)
    assert all(alpha_of(setup, n, levels[:i]) > 0 for i, n in enumerate(levels[:60]))


def test_a_list_of_levels_shares_it_evenly():
    assert sweep_alpha(1) == 0.05
    assert sweep_alpha(8, 0.9) == pytest.approx(0.1 / 8)
