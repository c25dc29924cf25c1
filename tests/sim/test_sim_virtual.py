"""The virtual endpoint: the unchanged decode path reads it, and its times are those of the model."""

import json
import time
from itertools import pairwise
from typing import Any

import anyio
import pytest
from sim_profiles import plain

from agentperf.clock import VirtualLoop, loop_now_ns
from agentperf.sim.profile import Profile
from agentperf.sim.virtual import VirtualEndpoint
from agentperf.wire.chat import fold
from agentperf.wire.exchange import Exchange


def body(text: str = "x" * 1144, output: int = 5, **fields: Any) -> bytes:
    """1144 characters: 286 tokens, and 8 of headers."""
    request = {
        "model": "test-model",
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": output,
        "ignore_eos": True,
    }
    return json.dumps({**request, **fields}).encode()


def run(main: Any) -> Any:
    return anyio.run(main, backend_options={"loop_factory": VirtualLoop})


def call_all(
    profile: Profile, bodies: list[tuple[float, bytes]], seed: int = 0, *, each_token: bool = True
) -> list[Exchange]:
    """Send each body at its virtual time; exchanges in the order given."""

    async def main() -> list[Exchange]:
        found: dict[int, Exchange] = {}
        async with VirtualEndpoint(profile, seed, each_token=each_token) as endpoint:

            async def one(index: int, at_s: float, data: bytes) -> None:
                await anyio.sleep(at_s)
                found[index] = await endpoint.caller(data, f"r{index}")

            async with anyio.create_task_group() as group:
                for index, (at_s, data) in enumerate(bodies):
                    group.start_soon(one, index, at_s, data)
        return [found[i] for i in range(len(bodies))]

    made: list[Exchange] = run(main)
    return made


def test_one_request_golden() -> None:
    (exchange,) = call_all(plain(ttft_overhead_s=0.1), [(3.0, body())])
    outcome = fold(exchange)
    first = 3.1 + 0.01 + 294 / 10_000
    expected = [round((first + k * 0.011) * 1e9) for k in range(5)]
    assert outcome.outcome == "ok"
    assert outcome.visible_ns == pytest.approx(expected, abs=2)
    assert exchange.t0_ns == 3_000_000_000
    assert exchange.end_ns == outcome.last_visible_ns
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens) == (294, 0, 5)
    assert outcome.finish_reason == "length"
    assert outcome.first_visible_ns == outcome.first_byte_ns
    assert ("x-agentperf-simulated", "1") in exchange.headers
    assert exchange.status == 200


def test_a_second_turn_hits_the_cache_and_another_salt_misses() -> None:
    history = [{"role": "system", "content": "s" * 640}, {"role": "user", "content": "[salt-a] " + "x" * 2000}]
    longer = [*history, {"role": "assistant", "content": "y" * 200}, {"role": "user", "content": "z" * 400}]
    salted = [longer[0], {"role": "user", "content": "[salt-b] " + "x" * 2000}, *longer[2:]]
    made = call_all(
        plain(message_overhead_tokens=4),
        [(float(i), body(messages=m)) for i, m in enumerate((history, longer, salted))],
    )
    first, second, third = (fold(e) for e in made)
    assert first.cached_tokens == 0
    # Every whole block of the first prompt: 160 + 502 (and a bit) + 2 headers of 4.
    assert second.cached_tokens == (first.prompt_tokens - 4) // 16 * 16
    # Of the other play only the system prompt, up to the last whole block before the salt.
    assert third.cached_tokens == (160 + 4 + 4) // 16 * 16


def test_speed_with_n_streams_is_that_of_the_step() -> None:
    made = call_all(plain(), [(0.0, body(f"{i} " + "x" * 400, 200)) for i in range(20)])
    for exchange in made:
        outcome = fold(exchange)
        stamps = outcome.visible_ns
        gaps = [(b - a) / 1e9 for a, b in pairwise(stamps[20:151])]
        assert gaps == pytest.approx([0.01 + 20 * 0.001] * len(gaps), rel=1e-6)


def test_refusals_are_exchanges() -> None:
    made = call_all(plain(), [(0.0, body(model="other")), (0.0, body(output=5000)), (0.0, b"{"), (0.0, body())])
    outcomes = [fold(e) for e in made]
    assert [e.status for e in made] == [404, 400, 400, 200]
    assert outcomes[1].error_class == "context_overflow"
    assert [o.outcome for o in outcomes] == ["failed", "failed", "failed", "ok"]


def test_not_streamed() -> None:
    (exchange,) = call_all(plain(), [(0.0, body(stream=False))])
    document = json.loads(b"".join(exchange.chunks))
    assert document["usage"]["completion_tokens"] == 5
    assert len(exchange.stamps) == len(exchange.chunks) == 1


def test_cancelling_a_call_frees_its_sequence() -> None:
    async def main() -> tuple[int, int, float]:
        async with VirtualEndpoint(plain()) as endpoint:
            with anyio.move_on_after(1.0):
                await endpoint.caller(body(output=3000), "r")
            gauges = endpoint.engine.gauges()
            return gauges.running, endpoint.engine.counters.finished["abort"], gauges.kv_usage

    assert run(main) == (0, 1, 0.0)


def test_same_seed_same_stamps() -> None:
    load = [(0.1 * i, body(f"{i}" * 50, 30)) for i in range(10)]
    one, two, other = (call_all(plain(jitter=0.2), load, seed) for seed in (1, 1, 2))
    assert [list(e.stamps) for e in one] == [list(e.stamps) for e in two] != [list(e.stamps) for e in other]
    assert [e.chunks for e in one] == [e.chunks for e in two]


def test_an_hour_passes_quickly_and_idle_time_costs_nothing() -> None:
    load = [(360.0 * i, body(output=100)) for i in range(10)]
    began = time.process_time()
    made = call_all(plain(), load, each_token=False)
    assert made[-1].end_ns > 3240e9
    assert time.process_time() - began < 20  # it takes a hundredth of that


def test_facts_and_use_outside() -> None:
    async def main() -> Any:
        endpoint = VirtualEndpoint(plain(), seed=4)
        with pytest.raises(RuntimeError):
            await endpoint.caller(body(), "r")
        assert loop_now_ns() == 0
        return endpoint.facts

    facts = run(main)
    assert (facts.model, facts.context_tokens, facts.simulated, facts.seed) == ("test-model", 4096, True, 4)
