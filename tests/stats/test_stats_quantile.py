"""Percentiles: numpy's linear rule, with infinity for failed requests and nan for what was not measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.stats.quantile import quantile, quantiles

INF, NAN = float("inf"), float("nan")


def array(*values):
    return np.array(values, dtype=np.float64)


def test_golden_values():
    assert quantile(array(10, 20, 30, 40), 0.25) == 17.5
    assert quantile(array(40, 10, 30, 20), 0.95) == pytest.approx(38.5)
    assert quantile(array(7), 0.95) == 7
    assert quantiles(array(1, 2, 3), (0, 0.5, 1)).values == (1, 2, 3)


def test_failed_requests_are_infinitely_late():
    assert quantile(array(1, 2, 3, INF), 0.5) == 2.5
    assert quantile(array(1, 2, 3, INF), 0.95) == INF
    assert quantile(array(1, 2, INF, INF), 0.95) == INF
    assert quantile(array(1, 2, 3, 4, INF), 0.75) == 4
    assert np.isnan(quantile(array(-INF, INF), 0.5))


def test_what_was_not_measured_is_left_out_and_counted():
    found = quantiles(array(NAN, 10, NAN, 20), (0.5,))
    assert (found.values, found.n, found.n_excluded) == ((15.0,), 2, 2)
    empty = quantiles(array(NAN), (0.5, 0.9))
    assert empty.n == 0
    assert empty.n_excluded == 1
    assert all(np.isnan(v) for v in empty.values)
    assert np.isnan(quantile(array(), 0.5))


@pytest.mark.parametrize("q", [-0.01, 1.01, NAN])
def test_a_quantile_outside_is_refused(q):
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile(array(1), q)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(0, 1))
def test_equals_numpy_on_finite_data_and_agrees_with_its_own_path_for_infinities(values, q):
    data = array(*values)
    assert quantile(data, q) == np.quantile(data, q, method="linear")
    # One infinite value far above the quantile must not change it: the rank moves by less than one place.
    with_inf = quantile(np.append(data, INF), q)
    assert with_inf >= quantile(data, q) or with_inf == pytest.approx(quantile(data, q))


@given(st.lists(st.one_of(st.floats(0, 100), st.just(INF), st.just(NAN)), max_size=40), st.floats(0, 1))
def test_never_nan_from_failures(values, q):
    data = array(*values)
    found = quantiles(data, (q,))
    assert found.n + found.n_excluded == data.size
    if found.n:
        known = data[~np.isnan(data)]
        assert known.min() <= found.values[0] <= known.max()
