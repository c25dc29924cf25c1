"""Bodies in parts: the bytes are right, and the messages of a session are never copied."""

import itertools
import json

import pytest
from fakes import session, tree, turn

from agentperf.replay.bodies import encode_session, recorded_body
from agentperf.trace.render import RenderedSession
from agentperf.wire.exchange import size, whole

HEAD, TAIL, SALT = b'{"model":"m","messages":[', b'],"stream":true}', b"[abc] "


@pytest.mark.parametrize("salt", [b"", SALT])
def test_the_parts_are_the_body_of_the_turn(salt: bytes) -> None:
    encoded = tree("a", 4).sessions[0]
    said: list[list[dict[str, object]]] = []
    for each in encoded.turns:
        body = recorded_body(encoded, each, salt, HEAD, TAIL)
        assert size(body) == len(whole(body))
        said.append(json.loads(whole(body))["messages"])
    assert [len(messages) for messages in said] == [2, 4, 6, 8]
    for before, after in itertools.pairwise(said):
        assert after[: len(before)] == before
    assert said[0][1]["content"] == salt.decode() + "Task of a"


def test_no_part_is_a_copy() -> None:
    encoded = tree("a", 4).sessions[0]
    for each in encoded.turns:
        parts = recorded_body(encoded, each, SALT, HEAD, TAIL)
        shared = [p for p in parts if isinstance(p, memoryview)]
        assert all(p.obj is encoded.buffers[0] for p in shared)
        assert sum(len(p) for p in shared) == each.length, "all that is not head, salt and tail is shared"


def test_a_broken_prefix_begins_a_new_buffer() -> None:
    whole_session = session("a", 2)
    compacted = turn(2, "a", [{"role": "user", "content": "In short: go on."}], keep_messages=1)
    changed = RenderedSession("a", "a", (), (*whole_session.turns, compacted), 1)
    encoded = encode_session(changed)
    assert len(encoded.buffers) == 2
    last = json.loads(whole(recorded_body(encoded, encoded.turns[2], SALT, HEAD, TAIL)))["messages"]
    assert [m["content"] for m in last] == ["You are an agent.", SALT.decode() + "In short: go on."]
