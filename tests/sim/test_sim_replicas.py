"""Replicas behind one address: sessions stay where they are, new ones go where there is room, counts are summed."""

import json
import urllib.request

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_profiles import plain

from agentperf.clock import VirtualLoop
from agentperf.sim.metrics import Counters, Gauges, Histogram, summed
from agentperf.sim.page import page_text
from agentperf.sim.process import SimProcess
from agentperf.sim.router import Router
from agentperf.sim.virtual import VirtualEndpoint


def test_a_session_stays_and_a_new_one_goes_where_the_least_is_to_do() -> None:
    loads = [3, 1, 2]
    router = Router(3)
    assert router.choose(["a1", "a0"], loads.__getitem__) == 1
    loads[1] = 9
    assert router.choose(["a3", "a2", "a1", "a0"], loads.__getitem__) == 1  # its turn before ended with a1
    assert router.choose(["b0"], loads.__getitem__) == 2
    assert router.choose([], loads.__getitem__) == 2  # a prompt of less than a block
    assert Router(1).choose(["x"], loads.__getitem__) == 0


@given(prompts=st.lists(st.integers(1, 6), max_size=40), replicas=st.integers(1, 5))
def test_all_turns_of_a_session_meet_one_replica(prompts: list[int], replicas: int) -> None:
    router = Router(replicas)
    for session, turns in enumerate(prompts):
        keys: list[tuple[int, int]] = []
        chosen = set()
        for turn in range(turns):
            keys += [(session, 10 * turn + i) for i in range(3)]
            chosen.add(router.choose(reversed(keys), lambda r: (session * 7 + turn * 3 + r) % 4))  # noqa: B023
        assert len(chosen) == 1


def test_counts_are_added_up() -> None:
    one, two = Counters(prompt_tokens=5, preemptions=1), Counters(prompt_tokens=7)
    one.finished["stop"], two.finished["stop"] = 2, 3
    one.ttft.observe(0.003)
    two.ttft.observe(0.5, 4)
    total, gauges = summed([(one, Gauges(3, 1, 0.2)), (two, Gauges(4, 0, 0.6))])
    assert (total.prompt_tokens, total.preemptions, total.finished["stop"]) == (12, 1, 5)
    both = Histogram(one.ttft.bounds)
    both.observe(0.003)
    both.observe(0.5, 4)
    assert (total.ttft.counts, total.ttft.count, total.ttft.total) == (both.counts, 5, pytest.approx(2.003))
    assert gauges == Gauges(7, 1, pytest.approx(0.4))
    assert one.ttft.count == 1


BODY = {"model": "test-model", "max_tokens": 100, "ignore_eos": True, "stream": True}


def body(text: str) -> bytes:
    return json.dumps({**BODY, "messages": [{"role": "user", "content": text * 200}]}).encode()


def value(page: str, name: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(f"vllm:{name}{{"))


def test_the_page_in_virtual_time_counts_what_is_over_by_now() -> None:
    async def main() -> tuple[str, str]:
        profile = plain(replicas=2)
        async with VirtualEndpoint(profile) as endpoint, anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(endpoint.caller, body(name), name)
            await anyio.sleep(0.5)
            during = page_text(endpoint.replicas, profile)
            await anyio.sleep(60)
            return during, page_text(endpoint.replicas, profile)

    during, after = anyio.run(main, backend_options={"loop_factory": VirtualLoop})
    assert value(during, "num_requests_running") == 3
    assert 60 < value(during, "generation_tokens_total") < 150
    assert value(after, "generation_tokens_total") == 300
    assert value(after, "num_requests_running") == 0


def test_the_server_behind_http_has_them_too() -> None:
    with SimProcess(plain(replicas=3, max_running=1)) as process:
        for name in "ab":
            request = urllib.request.Request(
                f"{process.url}/chat/completions", body(name), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.read().endswith(b"[DONE]\n\n")
        with urllib.request.urlopen(process.url.replace("/v1", "/metrics"), timeout=30) as answer:
            page = answer.read().decode()
    assert value(page, "generation_tokens_total") == 200
    assert f'num_gpu_blocks="{3 * (100_000 // 16)}"' in page
