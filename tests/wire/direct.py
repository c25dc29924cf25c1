"""A Connection without a socket: bytes go straight into `data_received`, the clock ticks once a read."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from scripted import Reply, head_of

from agentperf.wire.endpoint import Limits
from agentperf.wire.exchange import Exchange
from agentperf.wire.timed_connection import Connection

TICK_NS = 1_000_000
REQUEST_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n"


class Ticks:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Wire(asyncio.Transport):
    """The transport of a socket that takes every write at once; `eof` or an error is what the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.gone = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.written.extend(map(bytes, list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.gone

    def close(self) -> None:
        self.gone = True

    def abort(self) -> None:
        self.gone = True


def exchange_over(
    reads: Sequence[bytes], end: BaseException | None = None, *, loop: asyncio.AbstractEventLoop
) -> tuple[Exchange, Connection]:
    """Play reads at 1, 2, 3 ms to one request, then the end of the connection: FIN, or the error.

    As with a socket, nothing is read of a connection that was closed.
    """
    clock = Ticks()
    wire = Wire()
    connection = Connection(loop, clock, Limits(None, None, None), lambda _: None)
    connection.connection_made(wire)
    exchange = Exchange(0)
    exchange.connected_ns = 0
    done = connection.start(exchange, REQUEST_HEAD, b"{}")
    for data in filter(None, reads):
        clock.ns += TICK_NS
        if wire.gone:
            break
        connection.data_received(data)
    usable = connection.usable
    clock.ns += TICK_NS
    if not connection.closed:
        if end is None:
            connection.eof_received()
        connection.connection_lost(end if isinstance(end, Exception) else None)
    assert done.done(), "the exchange did not end with its connection"
    exchange.new_connection = not usable  # only to hand it out: whether the connection could be used again
    return exchange, connection


def response_bytes(reply: Reply) -> bytes:
    """All bytes that the scripted server writes for a reply."""
    if reply.raw:
        return b"".join(step.data for step in reply.steps)
    out = head_of(reply)
    chunked = reply.framing == "chunked"
    for step in reply.steps:
        if step.data:
            out += b"%x\r\n%b\r\n" % (len(step.data), step.data) if chunked else step.data
        if step.fault:
            return out
    return out + (b"0\r\n" + reply.trailers + b"\r\n" if chunked else b"")


def split_at(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """`data` in pieces, cut at these places (any integers: they are folded into its length)."""
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at) if a < b]
