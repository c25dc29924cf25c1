"""Compressed responses. We ask for `identity`, but some proxies compress whatever they pass on.

The bytes are decoded after the stream has closed, read by read: what a read completes belongs to its stamp, so an event
is still timed by the read that brought its last byte.
"""

import zlib

from agentperf.wire import failures
from agentperf.wire.exchange import Exchange

MAX_DECODED_BYTES = 256 * 1024 * 1024
"""A response beyond this, decoded, is a failure and not a reason to use up the memory."""

_GZIP, _ZLIB, _RAW = 31, 15, -15
"""Values of `wbits`: with gzip's header, with zlib's, with none."""
_PLAIN = frozenset({"", "identity", "chunked", "none", "utf-8", "utf8"})
"""No coding at all; the last two are a charset in the wrong header."""
_KNOWN = frozenset({"gzip", "x-gzip", "deflate"})


class CodingError(ValueError):
    """Bytes that cannot be decoded; the text is one line."""


def codings(headers: list[tuple[str, str]]) -> list[str]:
    """What was applied to the body, in the order in which it was applied, in lower case; framing is left out.

    A compressed `Transfer-Encoding` was applied behind the content's own coding.
    """
    found: list[str] = []
    for wanted in ("content-encoding", "transfer-encoding"):
        for name, value in headers:
            if name == wanted:
                found += [part.strip().lower() for part in value.split(",")]
    return [coding for coding in found if coding not in _PLAIN]


def undo(exchange: Exchange) -> None:
    """Replace the chunks of a compressed response by what each of them decodes to (perhaps nothing yet).

    A coding that is not known here, or bytes that are not in it, break the exchange with class `content_encoding`; what
    was decoded until then is kept. A response that was cut off is decoded as far as it goes, without a failure.
    """
    applied = codings(exchange.headers)
    if not applied or not exchange.chunks:
        return
    unknown = [coding for coding in applied if coding not in _KNOWN]
    if unknown:
        exchange.chunks = [b"" for _ in exchange.chunks]
        _broken(exchange, f"the response is compressed with {unknown[0][:40]!r}, which is not understood")
        return
    inflaters = [_Inflater(coding) for coding in reversed(applied)]
    decoded: list[bytes] = []
    try:
        for chunk in exchange.chunks:
            data = chunk
            for inflater in inflaters:
                data = inflater.feed(data)
            decoded.append(data)
    except CodingError as error:
        _broken(exchange, str(error))
    exchange.chunks = decoded + [b""] * (len(exchange.chunks) - len(decoded))


def _broken(exchange: Exchange, text: str) -> None:
    exchange.error_class = failures.CONTENT_ENCODING
    exchange.error = f"{text}; turn compression off in the server or proxy"


class _Inflater:
    """A push decoder of one coding; it hands out all that its input determines."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._left = MAX_DECODED_BYTES
        self._now: zlib._Decompress | None = None

    def _begin(self, data: bytes) -> "zlib._Decompress":
        if self._coding != "deflate":
            return zlib.decompressobj(_GZIP)
        # Servers disagree about deflate: with zlib's header, as the standard has it, or without. The header's first
        # byte names method 8 and a window that exists, which no sensible raw stream begins with.
        zlib_header = data[0] & 0x0F == 8 and data[0] >> 4 <= 7
        return zlib.decompressobj(_ZLIB if zlib_header else _RAW)

    def feed(self, data: bytes) -> bytes:
        """What `data` completes. CodingError when it is not of this coding, or far too much."""
        out: list[bytes] = []
        while data:
            if self._now is None:
                self._now = self._begin(data)
            elif self._now.eof:
                # Behind the end may follow another member, as gzip allows, or padding, which is dropped.
                if self._coding == "deflate" or data[:1] != b"\x1f":
                    break
                self._now = self._begin(data)
            try:
                part = self._now.decompress(data, self._left + 1)
            except zlib.error as error:
                raise CodingError(f"the response is said to be {self._coding}, and is not: {error}") from error
            out.append(part)
            self._left -= len(part)
            if self._left < 0:
                raise _too_large()
            data = self._now.unused_data
        return b"".join(out)


def _too_large() -> CodingError:
    return CodingError(f"the response is larger than {MAX_DECODED_BYTES >> 20} MiB when decompressed")
