"""Many chat events in one call of the JSON decoder, where a stretch of the stream is as plain as nearly all are.

A plain stretch is whole reads of `data: {...}` lines with one blank line between them and no other field. Joined by
commas they are one JSON array, which the C decoder takes at a third of the cost of as many calls. Anything else (a
comment, CRLF, an event in two reads, an odd shape, an error) is left to the decoder of single events, which gives the
same outcome: tests/wire/test_wire_chat_quick.py pins that.
"""

from collections.abc import Sequence

import msgspec

from agentperf.wire.chat_chunks import Chunk

STRETCH_READS = 256
"""Reads that are folded in one go: a third of a millisecond, in which no other stream of the process is read."""

MAX_STRETCH_BYTES = 1024 * 1024

_decode_all = msgspec.json.Decoder(list[Chunk]).decode
_BETWEEN = b"\n\ndata: "
_DONE = b"\n\ndata: [DONE]\n\n"


def plain_stretch(reads: Sequence[bytes]) -> tuple[list[Chunk], list[int], bool] | None:
    """The chunks of a plain stretch, how many each read brought, and whether `[DONE]` ended it; else None.

    The stream must be between two events where the stretch begins. `[DONE]` is not among the counted events.
    """
    text = b"".join(reads)
    if len(text) > MAX_STRETCH_BYTES or not text.startswith(b"data: "):
        return None
    for read in reads:
        if not read.endswith(b"\n\n"):
            return None
    done = text.endswith(_DONE)
    events = text[6 : -len(_DONE) if done else -2].split(_BETWEEN)
    array = b",".join(events)
    if b"\n" in array or b"\r" in array:
        return None
    try:
        chunks = _decode_all(b"[%b]" % array)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(chunks) != len(events):
        return None
    for chunk in chunks:
        if chunk.choices is None or chunk.error:
            return None
    if len(events) == len(reads) and not done:
        return chunks, [1] * len(reads), done
    counts = [read.count(b"\n\n") for read in reads]
    counts[-1] -= done
    return chunks, counts, done
