"""Bodies read by their parts: tokens, hits and refusals are those of the general way over the whole body."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_profiles import plain
from sim_trees import TOOLS, session

from agentperf.replay.bodies import encode_session, recorded_body
from agentperf.sim.bodies import BodyReader, KnownBody
from agentperf.sim.prompt import parse_body, read_prompt
from agentperf.sim.runs import block_count
from agentperf.trace.render import RenderedSession, RenderedTurn
from agentperf.wire import chat
from agentperf.wire.exchange import Body, whole

PROFILE = plain(context_tokens=50_000, kv_pool_tokens=100_000)
SALTS = (b"[0123456789] ", b"[abcdefabcd] ")


def bodies(rendered: RenderedSession, salt: bytes, **settings: Any) -> list[Body]:
    encoded = encode_session(rendered)
    body = chat.BodySettings(model="test-model", **settings)
    return [
        recorded_body(
            encoded, turn, salt, chat.body_head(body), chat.body_tail(body, encoded.tools, turn.output_tokens)
        )
        for turn in encoded.turns
    ]


def names(known: KnownBody) -> list[Any]:
    """Its runs block by block."""
    return [(chain, i) for chain, start, end in known.runs for i in range(start, end)]


def agree(sent: list[Body], reader: BodyReader | None = None) -> list[KnownBody]:
    """Read all in both ways; block names must be equal in one way where they are in the other."""
    reader = reader or BodyReader(PROFILE)
    known: list[KnownBody] = []
    one_way: dict[Any, bytes] = {}
    other_way: dict[bytes, Any] = {}
    for body in sent:
        found = reader.read(body)
        assert found is not None
        parsed = parse_body(whole(body))
        prompt = read_prompt(parsed, PROFILE)
        assert found.tokens == prompt.tokens
        assert block_count(found.runs) == len(prompt.block_hashes)
        assert (found.options.output_limit, found.options.ignore_eos) == (parsed.output_limit, parsed.ignore_eos)
        assert (found.options.model, found.options.stream) == (parsed.model, parsed.stream)
        assert found.options.tools_json == parsed.tools_json
        assert all(before[2] == after[1] for before, after in pairwise(found.runs))
        for name, block in zip(names(found), prompt.block_hashes, strict=True):
            assert one_way.setdefault(name, block) == block
            assert other_way.setdefault(block, name) == name
        known.append(found)
    return known


def test_all_turns_of_two_plays_of_several_sessions() -> None:
    sessions = [session(f"s{i}", i).sessions[0] for i in range(4)]
    sent = [body for salt in SALTS for s in sessions for body in bodies(s, salt, output="exact")]
    known = agree(sent)
    assert len({k.seed for k in known}) == len(known)
    # Later turns first: agents enter sessions in their middle.
    agree(sent[::-1])


def test_one_session_is_read_once() -> None:
    sent = bodies(session("s", 1).sessions[0], SALTS[0])
    reader = BodyReader(PROFILE)
    agree(sent, reader)
    assert len(reader._all) == 1


def _turn(index: int, keep: int, *new: dict[str, Any]) -> RenderedTurn:
    return RenderedTurn(f"t{index}", index, keep, new, (), 0.0, 10, 0, 7, "user")


def _messages(*sizes: int, mark: str = "x") -> list[dict[str, Any]]:
    return [{"role": "user" if i else "system", "content": f"{mark}{i} " * n} for i, n in enumerate(sizes)]


def test_a_broken_prefix_shares_what_was_kept() -> None:
    first = _messages(80, 300, 200)
    other = {"role": "user", "content": "something else " * 50}
    rendered = RenderedSession(
        "s", "s", TOOLS, (_turn(0, 0, *first), _turn(1, 2, other), _turn(2, 3, *_messages(9, 60)[1:])), 1
    )
    known = agree([b for salt in SALTS for b in bodies(rendered, salt)])
    shared = set(names(known[0])) & set(names(known[1]))
    assert len(shared) * 64 > 4 * (80 * 3 + 300 * 3) / 4


@pytest.mark.parametrize("tools", [(), TOOLS])
@pytest.mark.parametrize("salt", [b"", SALTS[0]])
def test_without_tools_and_without_salt(tools: tuple[Any, ...], salt: bytes) -> None:
    rendered = RenderedSession("s", "s", tools, (_turn(0, 0, *_messages(10, 100)), _turn(1, 2, *_messages(3))), 1)
    agree(bodies(rendered, salt))


def test_content_in_parts_and_text_that_is_not_ascii() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": "größer 数 " * 90}]
    messages = [{"role": "system", "content": "é" * 333}, {"role": "user", "content": parts}]
    rendered = RenderedSession("s", "s", TOOLS, (_turn(0, 0, *messages),), 1)
    agree([b for salt in SALTS for b in bodies(rendered, salt, extra={"temperature": 0})])


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.text(max_size=300), min_size=2, max_size=6),
    twins=st.integers(0, 6),
    salted=st.booleans(),
    output=st.sampled_from(["natural", "exact", "max"]),
)
def test_any_text(texts: list[str], twins: int, salted: bool, output: Any) -> None:
    """Two sessions that are the same up to some message."""
    sessions = []
    for tail in ("", " and more"):
        messages = [{"role": "user", "content": text + (tail if i >= twins else "")} for i, text in enumerate(texts)]
        turns = tuple(_turn(i, i, message) for i, message in enumerate(messages))
        sessions.append(RenderedSession("s", "s", TOOLS, turns, 0))
    sent = [b for salt in SALTS for s in sessions for b in bodies(s, salt if salted else b"", output=output)]
    agree(sent)


def test_what_has_another_shape_is_left_to_the_general_way() -> None:
    sent = bodies(session("s", 1).sessions[0], SALTS[0])
    reader = BodyReader(PROFILE)
    head, before, salt, after, tail = sent[0]  # type: ignore[misc]
    odd: list[Any] = [
        whole(sent[0]),
        (head, bytes(before), salt, bytes(after), tail),
        (head, before, tail),  # no boundary of messages
        (head, before, salt, after[:-1], tail),
        (head, before, salt, memoryview(b"other"), tail),
        (b'{"messages":[{},', before, salt, after, tail),
        (head, before, salt, after, b'],"tools":[1,"stream":true}'),
        (head, before, salt, after, b'],"x":1,"stream":true}'),
        (head, before, salt, after, b"]}"),
        (head, salt),
    ]
    assert [reader.read(body) for body in odd] == [None] * len(odd)
    spaced = json.dumps([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]).encode()[1:-1]
    assert reader.read((head, memoryview(spaced), tail)) is None
    assert reader.read(sent[0]) is not None
