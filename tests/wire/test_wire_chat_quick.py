"""A plain stretch of a stream, decoded in one go, comes to the same outcome as event by event."""

import itertools
import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.wire import chat, chat_fold, chat_quick
from agentperf.wire.exchange import Exchange
from agentperf.wire.outcome import Outcome


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(**fields: Any) -> bytes:
    return event({"id": "x", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


def token(text: str) -> bytes:
    return delta(content=text)


END = event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
DONE = b"data: [DONE]\n\n"


def exchange_of(reads: list[bytes]) -> Exchange:
    stamps = array("q", [1_000 + 10 * index for index in range(len(reads))])
    return Exchange(
        0,
        stamps[-1] if reads else 1,
        status=200,
        headers=[("content-type", "text/event-stream")],
        stamps=stamps,
        chunks=reads,
    )


def slowly(reads: list[bytes]) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_fold, "plain_stretch", lambda _: None)
        return chat.fold(exchange_of(reads))


def test_a_plain_stream_takes_the_quick_way_and_others_do_not() -> None:
    plain = [token("a"), token("b") + token("c"), END + USAGE + DONE]
    found = chat_quick.plain_stretch(plain)
    assert found is not None
    assert (len(found.head), found.texts, found.tail, found.counts, found.done) == (5, [], [], [1, 2, 2], True)
    assert chat_quick.plain_stretch([token("a"), token("b")]) is not None
    for odd in (
        b": ping\n\n",
        b"event: message\n" + token("x"),
        token("x").replace(b"\n", b"\r\n"),
        token("x")[:-1],
        b"data:{}\n\n",
        b"data: {}\n\n",
        b"data: 1\n\n",
        b"data: {\n\n",
        b"\n\n",
        event({"error": {"message": "no"}}),
        event({"choices": [], "error": "no"}),
        DONE + token("x"),
    ):
        assert chat_quick.plain_stretch([token("a"), odd]) is None, odd
        assert chat_quick.plain_stretch([odd, token("a")]) is None, odd
    assert chat_quick.plain_stretch([]) is None
    assert chat_quick.plain_stretch([token("x" * chat_quick.MAX_STRETCH_BYTES)]) is None


def test_texts_are_taken_in_one_call_and_what_is_more_than_text_is_not() -> None:
    texts = [token(f"w{i}") for i in range(20)]
    found = chat_quick.plain_stretch(texts)
    assert found is not None and found.texts == [f"w{i}" for i in range(3, 17)]
    for odd in (
        delta(content="x", reasoning="hm"),
        delta(content=None),
        delta(content="x", tool_calls=[{"index": 0}]),
        event({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}),
        event({"choices": [{"delta": {"content": "x"}, "index": 1}]}),
        event({"choices": [{"delta": {"content": "x"}}] * 2}),
        event({"choices": [{"delta": {"content": "x"}}], "usage": {"completion_tokens": 1}}),
        event({"choices": []}),
    ):
        reads = [*texts[:10], odd, *texts[10:], END, USAGE, DONE]
        mixed = chat_quick.plain_stretch(reads)
        assert mixed is not None and mixed.texts == [], odd
        assert chat.fold(exchange_of(reads)) == slowly(reads)


@pytest.mark.parametrize("index", [0, 1, None])
def test_texts_that_are_not_the_answers_are_aside(index: int | None) -> None:
    first = event({"choices": [{"delta": {"content": "a"}, "index": index}]})
    reads = [first, *(token(w) for w in ("b", "", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l")), END, DONE]
    outcome = chat.fold(exchange_of(reads))
    assert outcome == slowly(reads)
    assert outcome.message is not None
    assert outcome.message["content"] == ("a" if index == 1 else "abcdefghijkl")


def test_texts_at_the_first_stamp_count_for_it() -> None:
    reads = [b"".join(token(f"{i:02}") for i in range(12)), *(token("x") for _ in range(5)), END, DONE]
    outcome = chat.fold(exchange_of(reads))
    assert outcome == slowly(reads) and outcome.n1_share == 24 / 29


def test_two_halves_that_would_join_into_valid_json_are_no_plain_stretch() -> None:
    reads = [b'data: {"choices":[{}\n\n', b'data: {}],"x":[{}]}\n\n']
    assert chat_quick.plain_stretch(reads) is None
    assert chat.fold(exchange_of(reads)).outcome == "failed"


def test_values_of_a_long_plain_stream() -> None:
    reads = [delta(role="assistant", content="")] + [token(f" {i}") for i in range(1000)] + [END + USAGE + DONE]
    outcome = chat.fold(exchange_of(reads))
    assert outcome.outcome == "ok" and outcome.notes == []
    assert outcome.visible_ns == [1_000 + 10 * i for i in range(1, 1001)]
    assert outcome.visible_chars == sum(len(f" {i}") for i in range(1000))
    assert outcome.n1_share == 2 / outcome.visible_chars
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.finish_reason) == (7, 3, "stop")
    assert outcome == slowly(reads)
    steps = sum(1 for _ in chat.fold_steps(exchange_of(reads)))
    assert steps == len(reads) // chat_quick.STRETCH_READS, "other streams are read between the steps"


def test_the_end_of_the_stream_may_lie_on_the_edge_of_a_stretch() -> None:
    for extra in range(-3, 3):
        reads = [token("x") for _ in range(chat_quick.STRETCH_READS + extra)] + [END, USAGE, DONE]
        assert chat.fold(exchange_of(reads)) == slowly(reads)
        assert chat.fold(exchange_of(reads)).outcome == "ok"


PIECES = st.sampled_from(
    [
        token("a"),
        token("好🙂"),
        token("x\n\ndata: y"),
        token("},{"),
        delta(reasoning="hm"),
        delta(reasoning_content="hm", content="b"),
        delta(role="assistant", content=""),
        delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a":1}'}}]),
        delta(content=[{"type": "text", "text": "parts"}]),
        event({"choices": [{"delta": {"content": "e"}, "error": {"message": "m"}}]}),
        event({"choices": [{"delta": None}]}),
        event({"choices": [None]}),
        event({"choices": "no"}),
        event({"error": None, "choices": [{"delta": {"content": "z"}}]}),
        event({"error": {"message": "broken", "code": 500}}),
        event([1]),
        END,
        USAGE,
        DONE,
        b": ping\n\n",
        b"event: error\ndata: oh\n\n",
        b"data: {\ndata: }\n\n",
        b"data: {}\n\n",
        b'data: {"choices":[{}\n\n',
        b"data: {}]}\n\n",
        b"\n",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"data: \xff\n\n",
    ]
)


@given(st.lists(PIECES, max_size=12), st.data())
def test_any_stream_cut_into_any_reads_folds_as_event_by_event(pieces: list[bytes], data: st.DataObject) -> None:
    text = b"".join(pieces)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6)) if text else []
    edges = [0, *sorted(cuts), len(text)]
    reads = [text[a:b] for a, b in itertools.pairwise(edges) if a < b]
    assert chat.fold(exchange_of(reads)) == slowly(reads)
    assert chat.fold(exchange_of(pieces)) == slowly(pieces)
