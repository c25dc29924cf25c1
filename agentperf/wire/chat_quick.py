"""Many chat events in one call of the JSON decoder, where a stretch of the stream is as plain as nearly all are.

A plain stretch is whole reads of `data: {...}` lines with one blank line between them and no other field. Joined by
commas they are one JSON array, which the C decoder takes at a third of the cost of as many calls. Anything else (a
comment, CRLF, an event in two reads, an odd shape, an error) is left to the decoder of single events, which gives the
same outcome: tests/wire/test_wire_chat_quick.py pins that.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from agentperf.wire.chat_chunks import Chunk

STRETCH_READS = 256
"""Reads that are folded in one go: a third of a millisecond, in which no other stream of the process is read."""

MAX_STRETCH_BYTES = 1024 * 1024

EDGE_EVENTS = 3
"""Events at both ends of a stretch that are decoded in full: a role at the start, finish_reason, usage at the end."""
_MIN_TEXTS = 8


class _TextDelta(Struct, gc=False):
    content: str
    reasoning: None = None
    reasoning_content: None = None
    tool_calls: None = None
    function_call: None = None
    refusal: None = None


class _TextChoice(Struct, gc=False):
    delta: _TextDelta
    finish_reason: None = None
    message: None = None
    error: None = None
    index: Literal[0] = 0


class _TextChunk(Struct, gc=False):
    """An event that brings text and nothing else that `Chunk` knows of."""

    choices: tuple[_TextChoice]
    usage: None = None
    error: None = None


_decode_all = msgspec.json.Decoder(list[Chunk]).decode
_decode_texts = msgspec.json.Decoder(list[_TextChunk]).decode
_NOT_PLAIN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_BETWEEN = b"\n\ndata: "
_DONE = b"\n\ndata: [DONE]\n\n"


class Stretch(NamedTuple):
    """The events of a plain stretch, in order: `head`, one for each of `texts`, `tail`."""

    head: list[Chunk]
    texts: list[str]
    """Of events that bring content of the first choice and nothing else."""
    tail: list[Chunk]
    counts: list[int] | None
    """How many events each read brought, `[DONE]` not among them; None: one each."""
    done: bool
    """Whether `[DONE]` ended it."""


def plain_stretch(reads: Sequence[bytes]) -> Stretch | None:
    """The events of a plain stretch; None if it is not plain. The stream must be between two events where it begins."""
    text = b"".join(reads)
    if len(text) > MAX_STRETCH_BYTES or not text.startswith(b"data: "):
        return None
    for read in reads:
        if not read.endswith(b"\n\n"):
            return None
    done = text.endswith(_DONE)
    inner = text[6 : -len(_DONE) if done else -2]
    events = inner.split(_BETWEEN)
    if inner.count(b"\n") != 2 * (len(events) - 1) or b"\r" in inner:
        return None
    first, last = EDGE_EVENTS, len(events) - EDGE_EVENTS
    texts = _texts(events[first:last]) if last - first >= _MIN_TEXTS else None
    if texts is None:
        first = last = len(events)
    head, tail = _chunks(events[:first]), _chunks(events[last:])
    if head is None or tail is None:
        return None
    counts = None
    if done or len(events) != len(reads):
        # Every read ends an event, so if the last one brought all that go beyond one each, the others brought one each.
        of_last = reads[-1].count(b"\n\n") - done
        if len(events) == len(reads) - 1 + of_last:
            counts = [1] * (len(reads) - 1) + [of_last]
        else:
            counts = [read.count(b"\n\n") for read in reads]
            counts[-1] -= done
    return Stretch(head, texts or [], tail, counts, done)


def _texts(events: list[bytes]) -> list[str] | None:
    try:
        chunks = _decode_texts(b"[%b]" % b",".join(events))
    except _NOT_PLAIN:
        return None
    return [chunk.choices[0].delta.content for chunk in chunks] if len(chunks) == len(events) else None


def _chunks(events: list[bytes]) -> list[Chunk] | None:
    try:
        chunks = _decode_all(b"[%b]" % b",".join(events))
    except _NOT_PLAIN:
        return None
    if len(chunks) != len(events):
        return None
    for chunk in chunks:
        if chunk.choices is None or chunk.error:
            return None
    return chunks
