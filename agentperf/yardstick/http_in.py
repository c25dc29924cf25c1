"""Reading requests for the reference server: as much of HTTP/1.1 as a client that means well needs."""

import msgspec

MAX_HEAD = 64 * 1024
MAX_BODY = 8 * 1024 * 1024


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request that has been read whole."""

    method: str
    path: str
    id: str
    body: bytes
    close: bool
    """The connection ends with the answer."""


class Refused(Exception):  # noqa: N818 - a status to answer with, not a fault
    """The bytes are no request that can be served; `status` is what to answer before closing."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class StreamOptions(msgspec.Struct, frozen=True):
    """Of a body."""

    include_usage: bool = False


class Ask(msgspec.Struct, frozen=True):
    """The fields of a chat completion body that the server minds; all others are ignored."""

    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream_options: StreamOptions | None = None

    @property
    def usage(self) -> bool:
        """Whether the answer is to end with counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def limit(self) -> int | None:
        """Tokens that are asked for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


_ASK = msgspec.json.Decoder(Ask)


def read_ask(body: bytes) -> Ask:
    """The body of a chat completion. Refused (400) when it is none."""
    try:
        ask = _ASK.decode(body)
    except msgspec.DecodeError as error:
        raise Refused("400 Bad Request") from error
    if not ask.stream or (ask.limit is not None and ask.limit < 1):
        raise Refused("400 Bad Request")
    return ask


class Reader:
    """Bytes of one connection in, requests out."""

    __slots__ = ("_data", "_head", "_need", "continued")

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: tuple[str, str, str, bool] | None = None
        self._need = 0
        self.continued = False
        """A head that asked for `100 Continue` was read since this was last cleared."""

    def feed(self, data: bytes) -> None:
        """Add what was read. Refused when it is more than any request may have."""
        self._data += data
        if len(self._data) > MAX_HEAD + MAX_BODY:
            raise Refused("413 Content Too Large")

    def next(self) -> Request | None:
        """The next whole request, None when more bytes are needed. Refused when there can be none."""
        if self._head is None:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                if len(self._data) > MAX_HEAD:
                    raise Refused("431 Request Header Fields Too Large")
                return None
            self._read_head(self._data[:end].decode("latin-1"))
            del self._data[: end + 4]
        if len(self._data) < self._need:
            return None
        assert self._head is not None
        body = bytes(self._data[: self._need])
        del self._data[: self._need]
        method, path, request_id, close = self._head
        self._head = None
        return Request(method, path, request_id, body, close)

    def _read_head(self, text: str) -> None:
        first, *lines = text.split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise Refused("400 Bad Request")
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise Refused("400 Bad Request")
            headers[name.strip().lower()] = value.strip()
        if "transfer-encoding" in headers:
            raise Refused("411 Length Required")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise Refused("400 Bad Request")
        if len(length) > 12 or int(length) > MAX_BODY:
            raise Refused("413 Content Too Large")
        connection = headers.get("connection", "").lower()
        close = "close" in connection or (words[2] == "HTTP/1.0" and "keep-alive" not in connection)
        self._need = int(length)
        self._head = (words[0], words[1], headers.get("x-request-id", ""), close)
        self.continued = headers.get("expect", "").lower() == "100-continue"
