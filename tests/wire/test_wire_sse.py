"""The SSE decoder: the standard's cases, our additions, any split, linear time."""

import re
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_scenario import load_all

from agentperf.wire.sse import MAX_COMMENT_BYTES, MAX_LINE_BYTES, SseDecoder, SseError, SseEvent


def decode(chunks: Sequence[bytes]) -> list[tuple[int, SseEvent]]:
    """All events of a stream, each with the index of the chunk that completes it (so that its stamp can be found)."""
    decoder = SseDecoder()
    out: list[tuple[int, SseEvent]] = []
    feed = decoder.feed
    for index, chunk in enumerate(chunks):
        for event in feed(chunk):
            out.append((index, event))  # noqa: PERF401
    last = max(len(chunks) - 1, 0)
    out.extend((last, event) for event in decoder.flush())
    return out


def events(data: bytes) -> list[SseEvent]:
    return [event for _, event in decode([data])]


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (b"data: x\n\n", [SseEvent(b"x")]),
        (b"data:x\n\n", [SseEvent(b"x")]),
        (b"data:  x \n\n", [SseEvent(b" x ")]),
        (b"data\n\n", [SseEvent(b"")]),
        (b"data:\n\n", [SseEvent(b"")]),
        (b"data: a\r\n\r\n", [SseEvent(b"a")]),
        (b"data: a\r\rdata: b\r\r", [SseEvent(b"a"), SseEvent(b"b")]),
        (b"data: a\ndata: b\n\n", [SseEvent(b"a\nb")]),
        (b"data: a\ndata\ndata: b\n\n", [SseEvent(b"a\n\nb")]),
        (b"data: a\r\ndata: b\ndata: c\r\n\n", [SseEvent(b"a\nb\nc")]),
        (b"\xef\xbb\xbfdata: a\n\n", [SseEvent(b"a")]),
        (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [SseEvent(b"a"), SseEvent(b"b")]),
        (b": ping\n\n: ping\n\ndata: a\n\n", [SseEvent(b"a")]),
        (b":\ndata: a\n\n", [SseEvent(b"a", comment=b"")]),
        (b": one\n:two\ndata: a\n\n", [SseEvent(b"a", comment=b"one\ntwo")]),
        (b"event: add\ndata: 1\n\ndata: 2\n\n", [SseEvent(b"1", "add"), SseEvent(b"2")]),
        (b"id: 7\ndata: a\n\ndata: b\n\n", [SseEvent(b"a", id="7"), SseEvent(b"b", id="7")]),
        (b"id: a\0b\ndata: a\n\n", [SseEvent(b"a")]),
        (b"retry: 10\ndata: a\n\n", [SseEvent(b"a", retry=10)]),
        (b"retry: 1x\ndata: a\n\n", [SseEvent(b"a")]),
        (b"foo: bar\nfoo\ndata: a\n\n", [SseEvent(b"a")]),
        (b"Data: a\n\n", []),
        (b" data: a\n\n", []),
        (b"event: error\n\n", [SseEvent(b"", "error")]),
        (b"event: error\n: broke\n\n", [SseEvent(b"", "error", comment=b"broke")]),
        (b"error: {}\n\n", [SseEvent(b"{}", "error")]),
        (b"data: a\n", [SseEvent(b"a", complete=False)]),
        (b"data: a", [SseEvent(b"a", complete=False)]),
        (b"data: a\n\ndat", [SseEvent(b"a")]),
        (b"data: a\n\ndata: b\r", [SseEvent(b"a"), SseEvent(b"b", complete=False)]),
        (b"", []),
        (b"data: \xe5\xa5\xbd\xf0\x9f\x99\x82\n\n", [SseEvent("好🙂".encode())]),
    ],
)
def test_table(wire: bytes, expected: list[SseEvent]) -> None:
    assert events(wire) == expected
    assert [event for _, event in decode([wire[i : i + 1] for i in range(len(wire))])] == expected


@pytest.mark.parametrize("at", range(len("data: 好🙂\r\n\r\n".encode()) + 1))
def test_multi_byte_text_split_anywhere(at: int) -> None:
    wire = "data: 好🙂\r\n\r\n".encode()
    assert [e.data.decode() for _, e in decode([wire[:at], wire[at:]])] == ["好🙂"]


def test_index_of_the_chunk_that_completes() -> None:
    chunks = [b"data: a", b"\n", b"\ndata: b\n\ndata: c\n", b"", b"\n", b"data: d"]
    assert [(i, e.data) for i, e in decode(chunks)] == [(2, b"a"), (2, b"b"), (4, b"c"), (5, b"d")]
    # A CR ends the line and so the event; the LF that belongs to it may come later.
    assert [(i, e.data) for i, e in decode([b"data: a\r\n\r", b"\ndata: b\n\n"])] == [(0, b"a"), (1, b"b")]


FIELDS = [b"data: ", b"data:", b"data", b"event: ", b"id:", b"retry: 5", b": c", b"error: "]
ENDS = [b"\n", b"\r", b"\r\n", b"\n\n"]
OTHER = [b"\xef\xbb\xbf", "好🙂".encode(), b"{}", b"[DONE]", b" ", b":", b"\x00", b"\xff"]
pieces = st.sampled_from([*FIELDS, *ENDS, *OTHER])
streams = st.lists(pieces, max_size=40).map(b"".join)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at)]


def reference(data: bytes) -> list[tuple[bytes, str | None]]:
    """The standard's algorithm over the whole text, with our additions; written apart from the decoder."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = re.split(rb"\r\n|\n|\r", data)
    out: list[tuple[bytes, str | None]] = []
    values: list[bytes] = []
    name: str | None = None
    ends = [*lines[:-1], *([lines[-1]] if lines[-1] else [])]
    for line in [*ends, b""]:
        if not line:
            if values or name is not None:
                out.append((b"\n".join(values), name))
            values, name = [], None
            continue
        key, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if key == b"data":
            values.append(value)
        elif key == b"event":
            name = value.decode("utf-8", "replace")
        elif key == b"error":
            values.append(value)
            name = "error"
    return out


@given(streams, st.lists(st.integers(0, 400), max_size=12))
def test_any_split_gives_the_same_events(data: bytes, cuts: list[int]) -> None:
    whole = [event for _, event in decode([data])]
    assert [event for _, event in decode(split(data, cuts))] == whole
    assert [(event.data, event.event) for event in whole] == reference(data)


@settings(max_examples=25)
@given(st.sampled_from(load_all()), st.lists(st.integers(0, 5000), max_size=30))
def test_scenarios_split_anywhere(scenario: object, cuts: list[int]) -> None:
    body = scenario.body  # type: ignore[attr-defined]
    assert [event for _, event in decode(split(body, cuts))] == events(body)


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_never_fails_on_any_bytes(chunks: list[bytes]) -> None:
    for index, event in decode(chunks):
        assert 0 <= index < max(len(chunks), 1)
        assert b"\n" not in event.data or event.data.count(b"\n") < 40


def test_line_limit() -> None:
    text = b"x" * (MAX_LINE_BYTES - 1024)
    assert [e.data for e in events(b"data: " + text + b"\n\n")] == [text]
    decoder = SseDecoder()
    with pytest.raises(SseError, match="16 MiB"):
        for _ in range(40):
            decoder.feed(b"x" * 500_000)


def test_event_limit_over_many_lines() -> None:
    decoder = SseDecoder()
    with pytest.raises(SseError, match="event of the stream is longer"):
        for _ in range(400):
            decoder.feed(b"data: " + b"x" * 50_000 + b"\n")


def test_many_events_pass_the_event_limit_together() -> None:
    decoder = SseDecoder()
    count = 0
    for _ in range(400):
        count += len(decoder.feed(b"data: " + b"x" * 100_000 + b"\ndata: y\n\n"))
    assert count == 400


def test_comments_are_bounded() -> None:
    [event] = events(b": 0123456789\n" * 10_000 + b"data: a\n\n")
    assert event.comment is not None and len(event.comment) < 2 * MAX_COMMENT_BYTES


def cost(size: int, step: int) -> float:
    wire = b"data: " + b"x" * size + b"\n\n"
    chunks = [wire[i : i + step] for i in range(0, len(wire), step)]
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        decode(chunks)
        best = min(best, time.process_time() - start)
    return best


def test_linear_with_tiny_splits() -> None:
    # Four times the input in one-byte reads: quadratic work would take sixteen times as long.
    assert cost(400_000, 1) < 9 * cost(100_000, 1)
