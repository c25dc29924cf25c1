"""Agents in virtual time: order, waits, joins, prompts, stopping."""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from agentperf.clock import VirtualLoop, loop_now_ns
from agentperf.replay.agent import Level, run_agent
from agentperf.replay.bodies import EncodedTree
from agentperf.replay.deck import deal, entry_turn, salt_text
from agentperf.replay.settings import ReplaySettings
from agentperf.replay.turns import TurnResult
from agentperf.wire.chat import BodySettings
from tests.replay.fakes import FakeServer, tree, tree_with_subagent

S = 1_000_000_000


def virtually(main: Callable[[], Awaitable[Any]]) -> Any:
    return anyio.run(main, backend_options={"loop_factory": VirtualLoop})


def settings(**changes: Any) -> ReplaySettings:
    return ReplaySettings(body=BodySettings(model="m", output="max"), run_id="t", **changes)


def play(
    trees: list[EncodedTree], server: FakeServer, seconds: float, agents: int = 1, grace: float = 1e6, **changes: Any
) -> list[TurnResult]:
    """Hold a level for so many virtual seconds; what the agents handed on."""
    results: list[TurnResult] = []

    async def main() -> None:
        configured = settings(**changes)
        level = Level(
            probe=1,
            caller=server,
            settings=configured,
            trees=trees,
            deck=deal(len(trees), configured.seed, 1),
            now_ns=loop_now_ns,
            on_turn=results.append,
        )
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                for agent in range(agents):
                    group.start_soon(run_agent, level, agent)
                await anyio.sleep(seconds)
                level.stop.set()
                scope.deadline = anyio.current_time() + grace

    virtually(main)
    return results


def whole(server: FakeServer, root: str) -> list[tuple[int, str, dict[str, Any]]]:
    """Requests of the second play on, which starts at its first turn."""
    return [s for s in server.sent if "-a0p1-" in s[1]]


def test_closed_loop_waits_the_recorded_time_after_the_reply_has_ended() -> None:
    server = FakeServer()
    results = play([tree("s", 3)], server, 60)
    second_play = [r for r in results if r.play == "a0p1"]
    assert [r.turn for r in second_play] == [0, 1, 2]
    for before, after in itertools.pairwise(second_play):
        assert after.due_ns - before.exchange.end_ns == pytest.approx(1 * S, rel=1e-6)
        assert after.exchange.t0_ns == after.due_ns
    assert server.peak == 1


def test_time_scale_shortens_waits_alone() -> None:
    results = [r for r in play([tree("s", 3)], FakeServer(), 60, time_scale=0.5) if r.play == "a0p1"]
    assert results[1].due_ns - results[0].exchange.end_ns == pytest.approx(S // 2, rel=1e-6)


def test_every_prompt_is_a_prefix_of_the_next_and_the_salt_is_in_the_first_user_message() -> None:
    server = FakeServer()
    play([tree("s", 4)], server, 60)
    bodies = [body for _, _, body in whole(server, "s")][:4]
    for before, after in itertools.pairwise(bodies):
        assert after["messages"][: len(before["messages"])] == before["messages"]
    first = bodies[0]["messages"]
    assert first[0]["content"] == "You are an agent."
    assert first[1]["content"].endswith("Task of s")
    assert first[1]["content"] != "Task of s"
    other_play = next(b for _, i, b in server.sent if "-a0p2-" in i)
    assert other_play["messages"][1]["content"] != first[1]["content"]
    assert len(other_play["messages"][1]["content"]) == len(first[1]["content"])


def test_no_salt_when_none_is_wanted() -> None:
    server = FakeServer()
    play([tree("s", 2)], server, 20, salt="none")
    assert server.sent[0][2]["messages"][1]["content"] == "Task of s"


def test_salt_scopes() -> None:
    def salt(scope: str, probe: int, name: str) -> bytes:
        return salt_text(settings(salt=scope), probe, name)

    assert salt("play", 1, "a") != salt("play", 1, "b")
    assert salt("level", 1, "a") == salt("level", 1, "b") != salt("level", 2, "a")
    assert salt("run", 1, "a") == salt("run", 2, "b")
    assert salt("none", 1, "a") == b""


def test_subagents_start_after_their_spawn_and_are_joined() -> None:
    results = play([tree_with_subagent()], FakeServer(), 200)
    by_id = {r.request_id.split("-", 3)[3]: r for r in results if r.play == "a0p1"}
    assert by_id["child-0"].due_ns == by_id["root-1"].exchange.end_ns + S // 2
    assert by_id["root-2"].exchange.t0_ns >= by_id["child-1"].exchange.end_ns
    assert {r.session_id for r in results} == {"root", "child"}


def test_agents_enter_at_different_turns_but_each_play_after_is_whole() -> None:
    trees = [tree(f"s{i}", 10) for i in range(5)]
    entries = {entry_turn(trees[0], 0, 1, agent) for agent in range(50)}
    assert len(entries) > 5
    results = play(trees, FakeServer(), 300, agents=8)
    starts = {(r.agent, r.play): r.turn for r in reversed(results)}
    assert all(turn == 0 for (agent, name), turn in starts.items() if not name.endswith("p0"))
    assert any(turn > 0 for (agent, name), turn in starts.items() if name.endswith("p0"))


def test_a_deck_deals_every_session_before_one_comes_again_and_workers_share_it() -> None:
    cards = deal(7, 1, 1)
    assert sorted(next(cards) for _ in range(7)) == list(range(7))
    whole_deck = deal(7, 1, 1)
    alone = [next(whole_deck) for _ in range(20)]
    workers = [deal(7, 1, 1, w, 2) for w in range(2)]
    assert [next(workers[i % 2]) for i in range(20)] == alone


def test_a_failure_is_handed_on_and_the_play_goes_on_after_a_pause() -> None:
    server = FakeServer(fail_ids=("s-1",))
    results = [r for r in play([tree("s", 3)], server, 60) if r.play == "a0p1"]
    assert [r.outcome.outcome for r in results] == ["ok", "failed", "ok"]
    assert results[2].exchange.t0_ns - results[1].exchange.end_ns >= 2 * S  # the pause, then the recorded wait


def test_stopping_drains_what_is_open_and_issues_nothing_new() -> None:
    server = FakeServer(ttft_s=5, decode_s=5)
    results = play([tree("s", 50)], server, 23, agents=4)
    assert all(r.outcome.outcome == "ok" for r in results)
    assert all(t0 <= 23 * S for t0, _, _ in server.sent)
    assert len(results) == len(server.sent)


def test_what_is_cut_off_is_handed_on_as_truncated() -> None:
    server = FakeServer(hang_ids=("s-0", "s-1", "s-2"))
    results = play([tree("s", 3)], server, 20, agents=3, grace=5)
    assert len(results) == len(server.sent) == 3
    assert {r.outcome.outcome for r in results} == {"truncated"}
    assert {r.outcome.error_class for r in results} == {"cut_off"}


def test_live_history_carries_the_servers_own_answers() -> None:
    server = FakeServer()
    play([tree("s", 3, live=True)], server, 60, history="live")
    bodies = [body for _, _, body in whole(server, "s")]
    third = bodies[2]["messages"]
    assert [m["role"] for m in third] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert third[2]["content"] == "fine"
    assert "result 1 of s" in third[3]["content"]


class Sleepy(FakeServer):
    """Its replies have ended a while before the agent hears of them, as when a loop has much to decode."""

    async def __call__(self, body: Any, request_id: str) -> Any:
        exchange = await super().__call__(body, request_id)
        await anyio.sleep(0.3)
        return exchange


@pytest.mark.parametrize("time_scale", [0.0, 0.1, 1.0])
def test_a_turn_is_due_from_the_end_of_the_stream_before(time_scale: float) -> None:
    """What lies between the end of a stream and the next request counts as the client's own delay."""
    results = play([tree("s", 4)], Sleepy(), 60, time_scale=time_scale)
    wait_s = 1.0 * time_scale
    pairs = [(a, b) for a, b in itertools.pairwise(results) if a.play == b.play]
    assert len(pairs) > 5
    for before, after in pairs:
        assert after.due_ns - before.exchange.end_ns == pytest.approx(wait_s * S, abs=1e3)
        # The recorded wait hides the client's delay as far as it goes.
        assert (after.exchange.t0_ns - after.due_ns) / S == pytest.approx(max(0.0, 0.3 - wait_s), abs=1e-3)
