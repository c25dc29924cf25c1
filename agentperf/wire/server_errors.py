"""What servers say when they refuse: the message out of any of their JSON shapes, and the class it belongs to."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from agentperf.wire import failures

MAX_MESSAGE = 300
"""Characters of a server's message that are kept in a record."""

_MESSAGE_KEYS = ("message", "detail", "error_message", "error_msg", "msg")

_OVERFLOW = re.compile(
    r"exceed_context_size|context_length_exceeded|maximum context length|context (?:length|window|size)[^.]{0,60}exceed"
    r"|exceed[^.]{0,80}(?:context|max_model_len|max_(?:seq|input)_len|model'?s maximum"
    r"|maximum (?:model|allowed|input|sequence|number of tokens))"
    r"|`?inputs`? tokens \+ `?max_new_tokens`? must be <="
    r"|longer than the (?:model'?s|maximum) |input (?:is|length)[^.]{0,40}too long|prompt is too long"
    r"|(?:input|prompt)[^.]{0,60}(?:larger|longer) than[^.]{0,40}(?:context|max)"
    r"|max_tokens must be at least 1, got -|reduce the length of the (?:messages|input|prompt)",
    re.IGNORECASE,
)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, marks that reverse the direction of text, and halves of surrogate pairs."""

_BY_STATUS = {
    401: failures.AUTH,
    403: failures.AUTH,
    404: failures.NOT_FOUND,
    429: failures.RATE_LIMITED,
    502: failures.GATEWAY,
    503: failures.OVERLOADED,
    504: failures.GATEWAY,
    529: failures.OVERLOADED,
}


class ServerError(NamedTuple):
    """An error as its server words it; any part may be missing."""

    message: str
    kind: str
    code: str


def one_line(text: str, limit: int = MAX_MESSAGE) -> str:
    """White space folded, cut to `limit` characters with an ellipsis; what no terminal or file should get replaced."""
    # A body may be megabytes of HTML; only its beginning is looked at.
    folded = _UNPRINTABLE.sub("\ufffd", " ".join(text[: limit * 8].split()))
    return folded if len(folded) <= limit else folded[: limit - 1] + "…"


def from_value(value: Any, mask: Callable[[str], str] = str) -> ServerError:
    """From a decoded error object: {"error": {...}}, {"error": "text"}, {"detail": ...}, {"message": ...}, or text.

    `mask` takes secrets out of the message, before it is cut.
    """
    if isinstance(value, str):
        return ServerError(one_line(mask(value)), "", "")
    if not isinstance(value, dict):
        return ServerError(one_line(mask(_dump(value))), "", "")
    inner = value.get("error")
    if isinstance(inner, dict) and inner:
        return from_value(inner, mask)
    kind, code = _text(value.get("type")), _text(value.get("code"))
    for candidate in (inner, *(value.get(key) for key in _MESSAGE_KEYS)):
        if isinstance(candidate, str) and candidate.strip():
            return ServerError(one_line(mask(candidate)), kind, code)
        if candidate and not isinstance(candidate, bool):
            return ServerError(one_line(mask(_dump(candidate))), kind, code)
    return ServerError(one_line(mask(_dump(value))), kind, code)


def from_body(body: bytes) -> ServerError:
    """From the body of an HTTP error: JSON in any known shape, an SSE-looking line, or plain text."""
    text = body.strip()
    if text.startswith(b"data:"):
        text = text[5:].partition(b"\n")[0].strip()
    try:
        return from_value(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ServerError(one_line(text[: MAX_MESSAGE * 16].decode("utf-8", "replace")), "", "")


def is_overflow(error: ServerError) -> bool:
    """True when the server says that the prompt, or prompt and output, do not fit its context."""
    return bool(_OVERFLOW.search(f"{error.kind} {error.code} {error.message}"))


def classify(status: int, error: ServerError) -> str:
    """Failure class of an HTTP error status."""
    if status in (400, 413, 422, 500) and is_overflow(error):
        return failures.CONTEXT_OVERFLOW
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 520 <= status <= 527:
        return failures.GATEWAY
    if 300 <= status < 400:
        return failures.HTTP_3XX
    if 400 <= status < 500:
        return failures.HTTP_4XX
    return failures.HTTP_5XX if status >= 500 else failures.PROTOCOL_ERROR


def _text(value: Any) -> str:
    return one_line(str(value), 80) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _dump(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)
