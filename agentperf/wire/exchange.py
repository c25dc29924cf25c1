"""What a transport saw of one request: stamps and bytes, nothing decoded.

Stamps are ns of one monotonic clock. `t0_ns` is taken when the body is ready and the agent is free to send, before a
connection is acquired, so connection set-up and upload lie inside TTFT.
"""

from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Exchange:
    """One HTTP exchange; `chunks[i]` is body data (transfer coding removed) that was read at `stamps[i]`."""

    t0_ns: int
    end_ns: int = 0
    connected_ns: int | None = None
    """When the request had a connection (equals the acquire time on a reused one)."""
    sent_ns: int | None = None
    """When the last byte of the request was handed to the socket."""
    status: int | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    """Response headers, names in lower case."""
    stamps: "array[int]" = field(default_factory=lambda: array("q"))
    chunks: list[bytes] = field(default_factory=list)
    new_connection: bool = True
    stale_retries: int = 0
    error_class: str | None = None
    """Why the exchange broke (see `wire/failures.py`), None when the response ended as HTTP says it should."""
    error: str | None = None
    mask: Callable[[str], str] = str
    """Takes the endpoint's secrets out of what the server says: some repeat the key that they refuse."""
    condensed: bool = False
    """Made by a simulator that leaves out the events between those that the measures need: gaps cannot be told."""


Body = bytes | tuple[bytes | memoryview, ...]
"""A request body, whole or as parts that go out one behind the other: parts of a shared buffer need no copy."""

Caller = Callable[[Body, str], Awaitable[Exchange]]
"""Sends one body; the second argument is the request id, sent as X-Request-Id. Never raises for what a server does."""


def whole(body: Body) -> bytes:
    """The body in one piece; parts are copied into it."""
    return body if isinstance(body, bytes) else b"".join(body)


def size(body: Body) -> int:
    """Length in bytes."""
    return len(body) if isinstance(body, bytes) else sum(map(len, body))
