"""Golden values of every metric, worked out by hand beside the assertion."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.measure.metrics import CUT_OFF, OVERFLOW, quantiles, summarise, union_ns
from tests.measure.records import MS, S, failure, record
from tests.measure.streams import seen, whole


def test_quantiles_follow_numpy_linear() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    q = quantiles(values)
    assert q.n == 8
    assert q.p25 == pytest.approx(np.percentile(values, 25))
    assert q.p95 == pytest.approx(np.percentile(values, 95))
    assert q.mean == pytest.approx(31 / 8)


def test_quantiles_next_to_infinity_are_none() -> None:
    q = quantiles([1.0, 2.0, 3.0, math.inf])
    assert q.p50 == pytest.approx(2.5)
    assert q.p75 is None  # rank 2.25 lies between 3 and infinity
    assert q.p95 is None
    assert q.mean is None


def test_quantiles_of_nothing() -> None:
    assert quantiles([]).p50 is None
    assert quantiles([]).n == 0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_quantiles_equal_numpy(values: list[float]) -> None:
    q = quantiles(values)
    for name, at in (("p5", 5), ("p10", 10), ("p25", 25), ("p50", 50), ("p75", 75), ("p90", 90), ("p99", 99)):
        assert getattr(q, name) == pytest.approx(np.percentile(values, at, method="linear"))


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=20))
def test_union_counts_each_moment_once(spans: list[tuple[int, int]]) -> None:
    spans = [(min(a, b), max(a, b)) for a, b in spans]
    assert union_ns(spans) == len({t for a, b in spans for t in range(a, b)})


def test_counts_add_up_and_failures_are_slowest() -> None:
    records = [record(0.1 * i, request_id=f"ok{i}", speed_tps=50.0 + i) for i in range(3)]
    records += [failure(1.0), failure(1.1, OVERFLOW), failure(1.2, CUT_OFF, outcome="truncated")]
    records += [failure(1.3, "interrupted", outcome="truncated")]
    m = summarise(records, level=4, open_ns=0, close_ns=10 * S)
    assert (m.started, m.ok, m.failed, m.truncated) == (7, 3, 2, 2)
    assert m.started == m.ok + m.failed + m.truncated
    assert m.overflowed == 1
    assert m.errors_by_class == {"http_500": 1, OVERFLOW: 1}
    # Judged: three good ones, the failure and the one cut off. Overflow and interruption say nothing of speed.
    assert m.speed.n == 5
    assert m.speed.p25 == pytest.approx(0.0)
    assert m.speed_ok.p50 == pytest.approx(51.0)
    assert m.ttft.n == 5
    assert m.ttft.p95 is None
    assert m.ttft_ok.p95 == pytest.approx(0.5)


def test_rates_are_of_the_window_not_of_its_requests() -> None:
    # Request A generates from 0.5 to 2.5 s: the window [1, 2) holds half of its 100 tokens and none of its prompt.
    # Request B's first token comes at 1.5 s, inside: its prompt counts, and a quarter of its output.
    a = record(0.0, phase="warmup", output_tokens=100, play="p1")
    b = record(1.0, output_tokens=100, play="p2")
    m = summarise([a, b], level=2, open_ns=1 * S, close_ns=2 * S)
    assert m.output_tps == pytest.approx(50 + 25)
    assert m.uncached_input_tps == pytest.approx(200)
    assert m.cached_input_tps == pytest.approx(800)
    assert m.total_tps == pytest.approx(75 + 1000)
    assert m.prefill_tps == pytest.approx(200 / 0.5)  # B waits from 1.0 to 1.5 s; A's wait is over before
    assert m.in_flight == pytest.approx(2.0)
    assert m.started == 1


def test_in_flight_against_wanted() -> None:
    late = record(1.0, due_ns=S // 2, end_ns=2 * S, last_visible_ns=2 * S)
    m = summarise([late], level=1, open_ns=0, close_ns=2 * S)
    assert m.in_flight == pytest.approx(0.5)
    assert m.wanted_in_flight == pytest.approx(0.75)


def test_one_event_replies_have_no_speed_but_a_ttft() -> None:
    m = summarise(
        [record(0.0, speed_tps=None, events=1, last_visible_ns=S // 2), record(0.1, request_id="x")],
        level=1,
        open_ns=0,
        close_ns=S,
    )
    assert m.one_event_replies == 1
    assert m.speed.n == 1
    assert m.ttft.n == 2


def test_cold_turns_are_the_first_of_each_session_of_a_play() -> None:
    records = [
        record(0.0, request_id="warm-up", phase="warmup"),
        record(1.0, request_id="second", turn=1, ttft_s=0.1),
        record(1.1, request_id="other", play="a1p0", ttft_s=2.0),
    ]
    m = summarise(records, level=2, open_ns=S, close_ns=3 * S)
    assert m.ttft_cold.n == 1
    assert m.ttft_cold.p50 == pytest.approx(2.0)
    assert m.ttft_warm.p50 == pytest.approx(0.1)


def test_cache_share_needs_every_reply_to_tell() -> None:
    known = record(0.0)
    silent = record(0.1, request_id="b", cached_tokens=None)
    assert summarise([known], level=1, open_ns=0, close_ns=S).cached_share == pytest.approx(0.8)
    m = summarise([known, silent], level=1, open_ns=0, close_ns=S)
    assert m.cached_share is None
    assert m.cached_input_tps is None


def test_bursts_are_noticed() -> None:
    steady = [0.5 + 0.02 * i for i in range(40)]
    records = [seen(whole(steady)), seen(steady, request_id="b"), seen(steady[:8], request_id="short")]
    m = summarise(records, level=1, open_ns=0, close_ns=S)
    assert m.buffered_share == pytest.approx(0.5)
    assert (m.streams.buffered, m.streams.tellable) == (1, 2)


def test_largest_gap_is_published() -> None:
    m = summarise([record(0.0, max_gap_ns=1900 * MS)], level=1, open_ns=0, close_ns=S)
    assert m.max_gap_s == pytest.approx(1.9)


def test_tokens_of_failed_replies_are_no_throughput() -> None:
    good = record(0.0, output_tokens=100)
    cut = record(0.0, request_id="b", output_tokens=60, outcome="failed", error_class="truncated_stream")
    alone = summarise([good], level=1, open_ns=0, close_ns=4 * S).output_tps
    assert summarise([good, cut], level=1, open_ns=0, close_ns=4 * S).output_tps == alone == pytest.approx(25)
