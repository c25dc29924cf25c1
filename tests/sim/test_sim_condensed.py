"""A condensed stream gives the same measures as the stream of every token."""

from typing import Any

import anyio
import pytest
from sim_condensed_fields import EQUAL
from sim_profiles import plain
from sim_trees import smoke_like

from agentperf.clock import VirtualLoop
from agentperf.measure.derive import CONDENSED, make_record
from agentperf.measure.record import Record
from agentperf.replay.bodies import EncodedTree, encode_tree, recorded_body
from agentperf.replay.turns import TurnResult
from agentperf.sim.profile import Profile
from agentperf.sim.virtual import VirtualEndpoint
from agentperf.wire import chat
from agentperf.wire.exchange import Body, Exchange

BIG = {"context_tokens": 40_000, "kv_pool_tokens": 200_000, "max_step_tokens": 1024, "step_per_kv_token_s": 1e-7}


def load(trees: list[EncodedTree], **settings: Any) -> list[tuple[float, Body]]:
    """Two plays of each session, their turns 0.4 s apart whether or not the one before has ended."""
    body = chat.BodySettings(model="test-model", **{"output": "exact", **settings})
    head = chat.body_head(body)
    sent: list[tuple[float, Body]] = []
    for number, tree in enumerate(trees):
        for play in range(2):
            salt = b"[%010d] " % (2 * number + play)
            for turn in tree.sessions[0].turns:
                tail = chat.body_tail(body, tree.sessions[0].tools, turn.output_tokens)
                at_s = 0.13 * number + 0.07 * play + 0.4 * turn.index
                sent.append((at_s, recorded_body(tree.sessions[0], turn, salt, head, tail)))
    return sent


def records(profile: Profile, sent: list[tuple[float, Body]], *, each_token: bool) -> list[Record]:
    exchanges: dict[int, Exchange] = {}

    async def main() -> None:
        async with VirtualEndpoint(profile, 1, each_token=each_token) as endpoint:

            async def one(index: int, at_s: float, body: Body) -> None:
                await anyio.sleep(at_s)
                exchanges[index] = await endpoint.caller(body, f"r{index}")

            async with anyio.create_task_group() as group:
                for index, (at_s, body) in enumerate(sent):
                    group.start_soon(one, index, at_s, body)

    anyio.run(main, backend_options={"loop_factory": VirtualLoop})
    made = []
    for index in range(len(sent)):
        exchange = exchanges[index]
        result = TurnResult(
            request_id=f"r{index}",
            agent=0,
            play="p",
            session_id="s",
            root_session_id="s",
            turn=0,
            due_ns=exchange.t0_ns,
            exchange=exchange,
            outcome=chat.fold(exchange),
            body_bytes=1,
            expected_prompt_tokens=1,
            expected_cached_tokens=0,
            target_output_tokens=1,
        )
        made.append(make_record(result, probe=1, level=1, worker=0))
    return made


@pytest.mark.parametrize("output", ["exact", "natural"])
@pytest.mark.parametrize("changes", [{}, {"reasoning_share": 0.4}, {"tokens_per_event": 4}, {"replicas": 3}])
def test_every_measure_is_the_same(changes: dict[str, Any], output: str) -> None:
    profile = plain(**BIG, **changes, natural_output_tokens=40.0)
    sent = load([encode_tree(t) for t in smoke_like(5)], output=output)
    condensed = records(profile, sent, each_token=False)
    every = records(profile, sent, each_token=True)
    assert any(r.cached_tokens for r in every)
    for a, b in zip(condensed, every, strict=True):
        for name in EQUAL:
            x, y = getattr(a, name), getattr(b, name)
            same = x == pytest.approx(y, rel=1e-9) if isinstance(y, float) else x == y
            if name.endswith("_ns") and y is not None:
                same = abs(x - y) <= 2
            assert same, (name, x, y)
        assert a.events <= min(4, b.events)
        assert (a.max_gap_ns, a.p99_gap_ns, a.event_offsets_us) == (None, None, None)
        assert a.notes == CONDENSED
        assert b.event_offsets_us and b.notes is None


def test_one_token_replies_and_the_speed_of_two() -> None:
    body = chat.BodySettings(model="test-model", output="exact")
    tree = encode_tree(smoke_like(1)[0])
    session = tree.sessions[0]

    def sent(tokens: int) -> Body:
        head, tail = chat.body_head(body), chat.body_tail(body, session.tools, tokens)
        return recorded_body(session, session.turns[0], b"[0000000000] ", head, tail)

    one, two = records(plain(**BIG), [(0.0, sent(1)), (9.0, sent(2))], each_token=False)
    assert (one.output_tokens, one.events, one.speed_tps) == (1, 1, None)
    assert (two.output_tokens, two.events, two.first_event_tokens) == (2, 2, 1.0)
    assert two.speed_tps == pytest.approx(1 / (0.011 + 1e-7 * ((two.prompt_tokens or 0) + 1)), rel=1e-6)


def test_a_session_stays_on_its_replica() -> None:
    sent = load([encode_tree(t) for t in smoke_like(6)])
    alone = records(plain(**BIG), sent, each_token=False)
    spread = records(plain(**BIG, replicas=4), sent, each_token=False)
    first = [r for r in spread if not r.cached_tokens]
    assert len(first) < len(spread) / 2
    assert sum(r.cached_tokens or 0 for r in spread) > 0.8 * sum(r.cached_tokens or 0 for r in alone)
    assert sum(r.ttft_s or 0 for r in spread) < sum(r.ttft_s or 0 for r in alone)
