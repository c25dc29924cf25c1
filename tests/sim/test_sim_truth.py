"""Ground truth against closed forms, and against the virtual endpoint with a plain closed-loop client."""

import dataclasses

import anyio
import msgspec
import numpy as np
import pytest
from sim_profiles import plain
from sim_trees import session, smoke_like

from agentperf.clock import VirtualLoop, loop_now_ns
from agentperf.sim.profile import load_profile
from agentperf.sim.truth import TrueMetrics, Workload, true_capacity, true_metrics
from agentperf.sim.virtual import VirtualEndpoint
from agentperf.trace.model import Dependency
from agentperf.trace.render import RenderedSession, RenderedTree, RenderedTurn
from agentperf.wire.chat import fold


def tree(name: str, turns: list[tuple[str, list[str], float, int]]) -> RenderedSession:
    """A session of (id, dependencies, delay in s, output tokens) with tiny prompts."""
    made = tuple(
        RenderedTurn(
            request_id=request_id,
            index=index,
            keep_messages=index,
            new_messages=({"role": "user", "content": f"{name} {index}"},),
            depends_on=tuple(Dependency(d) for d in needs),
            delay_ms=1000 * delay_s,
            input_tokens=10,
            cached_tokens=0,
            output_tokens=output,
            trigger="tool",
        )
        for index, (request_id, needs, delay_s, output) in enumerate(turns)
    )
    return RenderedSession(name, "root", (), made, 0)


def always_decoding() -> list[RenderedTree]:
    """No waits, tiny prompts, 1,000 tokens of output."""
    return [RenderedTree((tree(f"s{i}", [(f"s{i}-0", [], 0.0, 1000)]),)) for i in range(5)]


@pytest.mark.parametrize("agents", [1, 3, 10])
def test_always_decoding_agents_get_the_step_rate(agents: int) -> None:
    made = true_metrics(plain(), always_decoding(), agents, seconds=200)
    assert made.speed_p25 == pytest.approx(1 / (0.01 + 0.001 * agents), rel=0.02)
    assert made.output_tokens_per_s == pytest.approx(agents / (0.01 + 0.001 * agents), rel=0.02)
    assert made.running == pytest.approx(agents, rel=0.02)
    assert made.agents == agents


def test_capacity_of_always_decoding_agents_is_known() -> None:
    # 1 / (10 ms + n ms) >= 40 tok/s  <=>  n <= 15; prefills cost a little, so ask for slightly less.
    def meets(made: TrueMetrics) -> bool:
        return made.speed_p25 >= 39.4

    assert true_capacity(plain(), always_decoding(), meets, 64, seconds=120) == 15
    assert true_capacity(plain(), always_decoding(), meets, 18, seconds=60, exhaustive=True) == 15
    assert true_capacity(plain(), always_decoding(), meets, 9, seconds=60) == 9
    assert true_capacity(plain(), always_decoding(), lambda m: m.speed_p25 > 1000, 64, seconds=60) == 0


def test_waits_and_turns_golden() -> None:
    """One agent, one session: each turn is 1 s of wait, one short prefill and three decode steps."""
    trees = [RenderedTree((tree("s", [("a", [], 1.0, 4), ("b", [], 1.0, 4)]),))]
    made = true_metrics(plain(), trees, 1, seconds=400)
    turn = 0.01 + 0.0012 + 3 * 0.011
    assert made.requests == pytest.approx(400 / (1.0 + turn), rel=0.01)
    assert made.speed_p50 == pytest.approx(3 / 0.033, rel=1e-6)


def test_subagents_run_beside_and_are_joined() -> None:
    """b waits for a and for the subagent's y; the subagent's x starts when a is complete."""
    root = tree("root", [("a", [], 0.0, 4), ("b", ["a", "y"], 0.5, 4)])
    child = tree("child", [("x", ["a"], 2.0, 4), ("y", ["x"], 3.0, 4)])
    made = true_metrics(plain(), [RenderedTree((root, child))], 1, seconds=700)
    # a, x after 2 s, y after 3 s, b after 0.5 s: four requests in 5.5 s and four short replies.
    assert made.requests == pytest.approx(4 * 700 / (5.5 + 4 * 0.045), rel=0.03)


def test_shared_prefix_hits_and_salts_keep_plays_apart() -> None:
    one = [session("s", 1, turns=4)]
    profile = plain(context_tokens=8000)
    salted = Workload(profile, one).metrics(1, seconds=200)
    unsalted = Workload(profile, one, salted=False).metrics(1, seconds=200)
    assert unsalted.cached_share > 0.98
    assert 0.4 < salted.cached_share < 0.9


def test_what_does_not_fit_is_left_out() -> None:
    with pytest.raises(ValueError, match="fits"):
        Workload(plain(context_tokens=300), [session("s", 1)])
    # With 2,000 tokens of context only the first turns of the session are played.
    made = Workload(plain(context_tokens=2400), smoke_like()).metrics(1, seconds=60)
    assert made.requests > 10


def test_same_seed_same_truth() -> None:
    profile = load_profile("demo")
    one, two, other = (true_metrics(profile, smoke_like(), 4, 20, seed) for seed in (1, 1, 2))
    assert dataclasses.astuple(one) == dataclasses.astuple(two) != dataclasses.astuple(other)


def test_demo_profile_keeps_its_promise() -> None:
    """About 150 tok/s for one agent, 80 tok/s at a little over 20 of them, TTFT of tens of ms."""
    workload = Workload(load_profile("demo"), smoke_like())
    one, twenty = workload.metrics(1, 60), workload.metrics(20, 60)
    assert one.speed_p25 == pytest.approx(150, rel=0.1)
    assert twenty.speed_p25 == pytest.approx(84, rel=0.07)
    assert twenty.ttft_p95 < 0.1


def test_glm_profile_carries_a_known_order_of_agents() -> None:
    """Longer waits carry more agents: capacity falls from idle-heavy to busy agents, as it must."""

    def meets(made: TrueMetrics) -> bool:
        return made.speed_p25 >= 60 and made.ttft_p95 <= 10

    profile = load_profile("glm-5.3-8xh200")
    busy = true_capacity(profile, smoke_like(), meets, 64, seconds=60)
    slow = [_slower(t, 10.0) for t in smoke_like()]
    assert 0 < busy < true_capacity(profile, slow, meets, 64, seconds=60)


def _slower(made: RenderedTree, factor: float) -> RenderedTree:
    root = made.sessions[0]
    turns = tuple(dataclasses.replace(t, delay_ms=t.delay_ms * factor) for t in root.turns)
    return RenderedTree((dataclasses.replace(root, turns=turns),))


def test_agrees_with_agents_on_the_virtual_endpoint() -> None:
    """A small closed-loop client of its own, through bodies, streams and decoding, sees the same speed and TTFT."""
    profile, trees, agents, seconds = load_profile("demo"), smoke_like(), 12, 40.0
    speeds: list[float] = []
    ttfts: list[float] = []

    async def agent(endpoint: VirtualEndpoint, number: int) -> None:
        generator = np.random.default_rng(number)
        await anyio.sleep(generator.uniform(0, 3))
        for play in range(1000):
            root = trees[generator.integers(len(trees))].sessions[0]
            messages: list[object] = []
            for turn in root.turns:
                messages = [*messages[: turn.keep_messages], *turn.new_messages]
                salt = f"[{number:012d}{play:012d}] "
                first = {**messages[1], "content": salt + messages[1]["content"]}  # type: ignore[dict-item,index]
                await anyio.sleep(turn.delay_ms / 1e3)
                document = {
                    "messages": [messages[0], first, *messages[2:]],
                    "tools": list(root.tools),
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    "max_tokens": turn.output_tokens,
                    "ignore_eos": True,
                }
                began = loop_now_ns()
                outcome = fold(await endpoint.caller(msgspec.json.encode(document), "r"))
                assert outcome.outcome == "ok"
                if 10e9 < began < (10 + seconds) * 1e9:
                    n, first_ns, last_ns = outcome.output_tokens, outcome.first_visible_ns, outcome.last_visible_ns
                    speeds.append((n - 1) * 1e9 / (last_ns - first_ns))  # type: ignore[operator]
                    ttfts.append((first_ns - began) / 1e9)  # type: ignore[operator]
                if began > (10 + seconds) * 1e9:
                    return

    async def main() -> None:
        async with VirtualEndpoint(profile, 9) as endpoint, anyio.create_task_group() as group:
            for number in range(agents):
                group.start_soon(agent, endpoint, number)

    anyio.run(main, backend_options={"loop_factory": VirtualLoop})
    truth = true_metrics(profile, trees, agents, seconds=120)
    assert np.percentile(speeds, 25) == pytest.approx(truth.speed_p25, rel=0.03)
    assert np.percentile(ttfts, 95) == pytest.approx(truth.ttft_p95, rel=0.12)
    assert len(speeds) / seconds == pytest.approx(truth.requests / 120, rel=0.06)
