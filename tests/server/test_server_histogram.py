"""Differences between scrapes and what a histogram says of its percentiles."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.server.engines import wanted
from agentperf.server.histogram import Histogram, Interval, added, counter, gauge, histogram, quantile_interval
from agentperf.server.page import Page, PageError, read_page
from tests.server import pages

TTFT = "vllm:time_to_first_token_seconds"


def read(text: str) -> Page:
    return read_page(text.encode(), wanted())


def test_mean_and_buckets_are_of_what_came_between() -> None:
    before, after = [9.0, 9.0], [9.0, 9.0, 0.2, 0.3, 0.4, 2.0]
    found = histogram(TTFT, read(pages.vllm(before)), read(pages.vllm(after)), "glm")
    assert found.count == 4
    assert found.mean == pytest.approx(0.725)
    assert found.buckets == ((0.1, 0), (0.25, 1), (0.5, 3), (1.0, 3), (2.5, 4), (math.inf, 4))


def test_engines_of_a_page_are_summed_and_a_new_one_began_at_zero() -> None:
    before = read(pages.vllm([0.2], engine=0, hits=10))
    after = read(pages.vllm([0.2, 0.4], engine=0, hits=14) + pages.vllm([2.0], engine=1, hits=5))
    found = histogram(TTFT, before, after, None)
    assert (found.count, found.total) == (2, pytest.approx(2.4))
    assert counter("vllm:prefix_cache_hits_total", before, after, None) == 4 + 5


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (pages.vllm([0.2], hits=3), "went back between the two scrapes"),
        (pages.vllm([0.2], engine=1, hits=99), "lost a series"),
        ("", "lost a series"),
    ],
)
def test_no_difference_across_a_restart(after: str, why: str) -> None:
    before = read(pages.vllm([0.2], hits=4))
    with pytest.raises(PageError, match=why):
        counter("vllm:prefix_cache_hits_total", before, read(after), None)


def test_a_histogram_that_went_back_is_not_read() -> None:
    with pytest.raises(PageError, match="_count went back"):
        histogram(TTFT, read(pages.vllm([0.2, 0.3])), read(pages.vllm([0.2])), None)


def test_processes_of_one_engine_count_once_and_parts_of_a_total_not_at_all() -> None:
    page = read(pages.sglang(retracted=2))
    assert gauge(page, "sglang:num_running_reqs", None) == [5.0]
    assert gauge(page, "sglang:token_usage", None) == [0.28]
    assert counter("sglang:num_retracted_requests_total", page, read(pages.sglang(retracted=7)), None) == 5


def test_only_our_model_counts_where_the_page_tells_models_apart() -> None:
    other = pages.vllm([9.0] * 5, model="draft", running=8)
    before, after = read(other), read(pages.vllm([9.0] * 50, model="draft", running=8) + pages.vllm([0.3], running=1))
    assert histogram(TTFT, before, after, "GLM").count == 1
    assert histogram(TTFT, before, after, "an alias").count == 46
    assert gauge(after, "vllm:num_requests_running", "glm") == [1.0]
    assert gauge(after, "vllm:num_requests_running", None) == [8.0, 1.0]


@pytest.mark.parametrize(
    ("values", "q", "low", "high"),
    [
        ([0.3], 0.5, 0.25, 0.5),
        ([0.05, 0.06], 0.95, 0.0, 0.1),
        ([0.2, 0.3], 0.5, 0.1, 0.5),  # the median lies between the two, and so between their buckets' outer bounds
        ([0.2, 0.3, 0.9], 0.5, 0.25, 0.5),
        ([7.0, 8.0], 0.5, 2.5, None),
        ([0.1], 0.5, 0.0, 0.1),  # a bound is inclusive
    ],
)
def test_interval_of_a_percentile(values: list[float], q: float, low: float, high: float | None) -> None:
    found = histogram(TTFT, read(pages.vllm([])), read(pages.vllm(values)), None)
    assert quantile_interval(found.buckets, q) == Interval(low, high)


def _histogram(values: Sequence[float], bounds: Sequence[float]) -> Histogram:
    cumulative = [(b, float(sum(v <= b for v in values))) for b in (*sorted(set(bounds)), math.inf)]
    return Histogram(float(len(values)), float(sum(values)), tuple(cumulative))


values_st = st.lists(st.floats(0, 100, allow_subnormal=False), min_size=1, max_size=40)
bounds_st = st.lists(st.floats(0.001, 120), min_size=0, max_size=12)


@given(values_st, bounds_st, st.sampled_from([0.0, 0.25, 0.5, 0.95, 0.99, 1.0]))
def test_the_true_percentile_is_always_inside(values: list[float], bounds: list[float], q: float) -> None:
    interval = quantile_interval(_histogram(values, bounds).buckets, q)
    assert interval is not None
    true = float(np.percentile(values, q * 100))
    assert interval.low <= true * (1 + 1e-12)
    assert interval.high is None or true <= interval.high * (1 + 1e-12)


@given(values_st, values_st, bounds_st, bounds_st)
def test_sum_of_histograms_keeps_what_is_exact(
    one: list[float], two: list[float], bounds1: list[float], bounds2: list[float]
) -> None:
    total = added([_histogram(one, bounds1), _histogram(two, bounds2)])
    assert total == _histogram([*one, *two], set(bounds1) & set(bounds2)) or total.total == pytest.approx(
        sum(one + two)
    )
    assert total.buckets == _histogram([*one, *two], sorted(set(bounds1) & set(bounds2))).buckets


def test_nothing_counted_and_nonsense() -> None:
    assert quantile_interval((), 0.5) is None
    assert quantile_interval(((1.0, 0.0), (math.inf, 0.0)), 0.5) is None
    assert Histogram(0, 0, ()).mean is None
    with pytest.raises(PageError, match="fall with its bounds"):
        quantile_interval(((1.0, 5.0), (math.inf, 4.0)), 0.5)
    with pytest.raises(PageError, match="bucket without a bound"):
        page = read(f'{TTFT}_bucket{{le="x"}} 1\n{TTFT}_count 1\n{TTFT}_sum 1\n')
        histogram(TTFT, page, page, None)
