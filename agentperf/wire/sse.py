"""Server-sent events over bytes: a push decoder that takes its input split anywhere.

It follows the WHATWG rules (LF, CR and CRLF line ends, one leading BOM, comments, data over several lines) with three
additions, because servers of language models report failures that way: an event that has a name but no data is
delivered, the comments of its block are kept beside it, and the non-standard field `error:` makes an event named
error. An event cut off by the end of the input is delivered by `flush` with `complete` false.
"""

from msgspec import Struct

MAX_LINE_BYTES = 16 * 1024 * 1024
"""A line, or the data of one event, beyond this is a failure and not a reason to use up the memory."""

MAX_COMMENT_BYTES = 1024
"""About this much of the comments before an event is kept."""

_BOM = b"\xef\xbb\xbf"
_CR = 13


class SseError(ValueError):
    """The input cannot be a stream of events (a line or event beyond MAX_LINE_BYTES)."""


class SseEvent(Struct, gc=False):
    """One event. `data` is undecoded UTF-8 without the final line end."""

    data: bytes
    event: str | None = None
    id: str | None = None
    """The last id seen, as the standard has it."""
    retry: int | None = None
    comment: bytes | None = None
    """Text of the comment lines inside this event's block, newline between them; long ones are cut."""
    complete: bool = True
    """False when the input ended before the blank line that ends the event."""


class SseDecoder:
    """Feed bytes as they come, get the events that they complete. Time is linear in the input however it is split."""

    __slots__ = (
        "_comment",
        "_counted",
        "_data",
        "_data_bytes",
        "_event",
        "_fresh",
        "_id",
        "_idle",
        "_parts",
        "_parts_bytes",
        "_retry",
        "_skip_lf",
    )

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._counted = 0
        self._event: str | None = None
        self._id: str | None = None
        self._retry: int | None = None
        self._comment: bytes | None = None
        self._skip_lf = False
        self._fresh = True
        # Between two events, with nothing pending: the state in which the usual chunk needs no line splitting.
        self._idle = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Events that `chunk` completes, in order. Raises SseError on an oversized line."""
        if (
            self._idle
            and chunk.startswith(b"data: ")
            and chunk.find(b"\n") == len(chunk) - 2
            and chunk.endswith(b"\n")
            and b"\r" not in chunk
        ):
            return [SseEvent(chunk[6:-2], None, self._id)]
        out = self._feed(chunk)
        self._idle = not (self._parts or self._data or self._skip_lf) and (
            self._event is None and self._comment is None and self._retry is None and not self._fresh
        )
        return out

    @property
    def between_events(self) -> bool:
        """Whether nothing is pending, so that whole events may be taken past this decoder and told to `skip`."""
        if self._idle:
            return True
        pending = self._parts or self._data or self._skip_lf or self._event is not None
        return not (pending or self._comment is not None or self._retry is not None)

    def skip(self) -> None:
        """Whole events were taken from the input in another way."""
        self._fresh = False
        self._idle = True

    def _feed(self, chunk: bytes) -> list[SseEvent]:
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if end == 0:
            self._keep(chunk)
            return []
        block = chunk[:end] if end < len(chunk) else chunk
        if self._parts:
            self._parts.append(block)
            block = b"".join(self._parts)
            self._parts.clear()
            self._parts_bytes = 0
        if end < len(chunk):
            self._keep(chunk[end:])
        return self._lines(block)

    def flush(self) -> list[SseEvent]:
        """What the end of the input leaves: at most one event, `complete` false. The decoder is then spent."""
        out: list[SseEvent] = []
        rest = b"".join(self._parts)
        self._parts.clear()
        if rest:
            # The end of the input ends the line as well; only the missing blank line marks the event as cut off.
            out = self._lines(rest + b"\n")
        if self._data or self._event is not None:
            out += self._dispatch(complete=False)
        return out

    def _keep(self, rest: bytes) -> None:
        self._parts.append(rest)
        self._parts_bytes += len(rest)
        if self._parts_bytes > MAX_LINE_BYTES:
            raise SseError(f"a line of the stream is longer than {MAX_LINE_BYTES >> 20} MiB")

    def _lines(self, block: bytes) -> list[SseEvent]:
        """Take whole lines; `block` ends with a line end."""
        if self._fresh:
            # Parts are joined up to a line end, so a BOM that was split between reads is whole here.
            self._fresh = False
            if block.startswith(_BOM):
                block = block[3:]
        if self._skip_lf:
            self._skip_lf = False
            if block.startswith(b"\n"):
                block = block[1:]
                if not block:
                    return []
        if b"\r" in block:
            # A CR at the very end is a line end by itself; an LF that follows in the next read belongs to it.
            self._skip_lf = block[-1] == _CR
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        out: list[SseEvent] = []
        data = self._data
        for line in block[:-1].split(b"\n"):
            if line.startswith(b"data: "):
                data.append(line[6:])
            elif line:
                self._field(line)
            elif len(data) == 1 and self._event is None and self._comment is None and self._retry is None:
                out.append(SseEvent(data.pop(), None, self._id))
            else:
                out += self._dispatch(complete=True)
        if data:
            self._bound_event(dispatched=bool(out))
        return out

    def _bound_event(self, *, dispatched: bool) -> None:
        """Bound an event of endless data lines; only the lines that are new since the last block are counted."""
        if dispatched:
            self._counted = self._data_bytes = 0
        self._data_bytes += sum(map(len, self._data[self._counted :]))
        self._counted = len(self._data)
        if self._data_bytes > MAX_LINE_BYTES:
            raise SseError(f"an event of the stream is longer than {MAX_LINE_BYTES >> 20} MiB")

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if not name:
            if line[0] == 58:  # a colon: the line is a comment
                if self._comment is None:
                    self._comment = value
                elif len(self._comment) < MAX_COMMENT_BYTES:
                    self._comment += b"\n" + value
        elif name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
        elif name == b"retry":
            if value.isdigit():
                self._retry = int(value)
        elif name == b"error":
            self._event = "error"
            self._data.append(value)

    def _dispatch(self, *, complete: bool) -> list[SseEvent]:
        data, event = self._data, self._event
        made: list[SseEvent] = []
        if data or event is not None:
            made.append(SseEvent(b"\n".join(data), event, self._id, self._retry, self._comment, complete))
        data.clear()
        self._counted = self._data_bytes = 0
        self._comment = None
        self._event = None
        self._retry = None
        return made
