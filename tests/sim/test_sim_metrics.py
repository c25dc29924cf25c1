"""The /metrics page: names, labels, and sums against an own reading of the text."""

import re

import pytest
from sim_profiles import plain

from agentperf.sim.engine import Engine, SimRequest
from agentperf.sim.metrics import Counters, Gauges, Histogram, render

_LINE = re.compile(r'^([a-zA-Z_:][\w:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*)\} (\S+)$')


def read(text: str) -> dict[tuple[str, str], float]:
    """(name, labels) -> value; fails on a line that is no Prometheus text."""
    found: dict[tuple[str, str], float] = {}
    typed: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in typed
            typed.add(name)
        elif not line.startswith("# HELP "):
            match = _LINE.match(line)
            assert match, line
            assert match[1] in typed or re.sub(r"_(bucket|count|sum)$", "", match[1]) in typed
            assert (match[1], match[2]) not in found
            found[match[1], match[2]] = float(match[3])
    return found


def test_histogram_golden() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    histogram.observe(1.2, times=3)
    assert histogram.counts == [2, 5, 1]
    assert (histogram.count, histogram.total) == (8, pytest.approx(17.6))


def test_page_of_an_engine() -> None:
    profile = plain()
    engine = Engine(profile)
    for index in range(3):
        engine.submit(SimRequest(str(index), 100 + index, 5, tuple(range(6)), "stop"), index * 1.0)
    while engine.next_s() is not None:
        engine.advance()
    page = read(render(profile.model, engine.counters, engine.gauges(), engine.pool.capacity, profile.block_tokens))
    label = 'engine="0",model_name="test-model"'
    expected = {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:prefix_cache_queries_total": 303,
        "vllm:prefix_cache_hits_total": 2 * 96,
        "vllm:prompt_tokens_total": 303,
        "vllm:generation_tokens_total": 15,
        "vllm:num_preemptions_total": 0,
        "vllm:time_to_first_token_seconds_count": 3,
        "vllm:inter_token_latency_seconds_count": 12,
        "vllm:inter_token_latency_seconds_sum": 12 * 0.011,
        "vllm:e2e_request_latency_seconds_count": 3,
        "vllm:request_queue_time_seconds_sum": 0,
        "vllm:request_prompt_tokens_sum": 303,
    }
    for name, value in expected.items():
        assert page[name, label] == pytest.approx(value), name
    assert page["vllm:request_success_total", f'finished_reason="stop",{label}'] == 3
    assert page["vllm:time_to_first_token_seconds_bucket", f'{label},le="+Inf"'] == 3
    assert page["vllm:inter_token_latency_seconds_bucket", f'{label},le="0.01"'] == 0
    assert page["vllm:inter_token_latency_seconds_bucket", f'{label},le="0.025"'] == 12
    assert page["agentperf_sim_info", label] == 1


def test_gauges_and_escaping() -> None:
    page = read(render('a"b\\c', Counters(), Gauges(3, 4, 0.25), 10, 16))
    label = 'engine="0",model_name="a\\"b\\\\c"'
    assert page["vllm:num_requests_running", label] == 3
    assert page["vllm:num_requests_waiting", label] == 4
    assert page["vllm:kv_cache_usage_perc", label] == 0.25
