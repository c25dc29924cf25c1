"""The floor: what a stream costs at least in Python. An `asyncio.Protocol` on uvloop that stamps and appends each read.

The end of a stream is seen by the terminating chunk alone; no HTTP is parsed, nothing is decoded while the load is
held, and no cycles are collected. Of each stream the first and last reads are kept, so that afterwards its first and
last tokens can be found; it counts no events, the server's log does that. Not a client that one could use: it believes
that every answer is a 200 in chunks.
"""

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import AsyncIterator
from typing import cast
from urllib.parse import urlsplit

from benchmarks.load import Load, OneRequest, Result, Row, body_of, run_as_process

END = b"0\r\n\r\n"
KEPT = 4
"""Reads kept at either end of a stream: head, role event, first tokens; last tokens, usage, end."""
CONTENT = b'"content":"'
EMPTY = b'"content":""'

Read = tuple[int, bytes]


class BareConnection(asyncio.Protocol):
    """One connection, one stream at a time."""

    __slots__ = ("lost", "reads", "transport", "waiter")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.reads: list[Read] = []
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """One read: one stamp. The end may be cut in two by the reads."""
        self.reads.append((time.perf_counter_ns(), data))
        if data.endswith(END) or (len(data) < len(END) and b"".join(d for _, d in self.reads[-5:]).endswith(END)):
            waiter, self.waiter = self.waiter, None
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """A stream that is open then has failed."""
        self.lost = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(ConnectionResetError("the server closed the connection"))


def content_stamps(reads: list[Read]) -> tuple[int, int] | None:
    """Stamps of the first and the last read that complete a line with text, in ns; None where there is none.

    >>> content_stamps([(1, b"HTTP/1.1 200"), (2, b'{"content":"a"}\\n{"con'), (3, b'tent":"b"}\\n'), (4, b"[DONE]")])
    (2, 3)
    """
    stamps: list[int] = []
    pending = b""
    for at, data in reads:
        lines, newline, pending = (pending + data).rpartition(b"\n")
        if newline and lines.count(CONTENT) > lines.count(EMPTY):
            stamps.append(at)
    return (stamps[0], stamps[-1]) if stamps else None


@contextlib.asynccontextmanager
async def opened(load: Load) -> AsyncIterator[OneRequest]:
    """The function that sends one prompt and waits for the end of its stream."""
    where = urlsplit(load.base_url)
    host, port = str(where.hostname), where.port or 80
    body = json.dumps(body_of(load)).encode()
    head = (
        f"POST {where.path}/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nX-Request-Id: "
    ).encode()
    loop = asyncio.get_running_loop()
    idle: list[BareConnection] = []
    gc.collect()
    gc.freeze()
    gc.disable()

    async def one_request(row: Row) -> None:
        connection = idle.pop() if idle else None
        while connection is not None and connection.lost:
            connection = idle.pop() if idle else None
        if connection is None:
            _, connection = await loop.create_connection(BareConnection, host, port)
        assert connection.transport is not None
        connection.reads = []
        waiter = connection.waiter = loop.create_future()
        connection.transport.write(head + row.id.encode() + b"\r\n\r\n" + body)
        await waiter
        reads = connection.reads
        kept[row.id] = reads if len(reads) <= 2 * KEPT else reads[:KEPT] + reads[-KEPT:]
        idle.append(connection)

    yield one_request
    for connection in idle:
        if connection.transport is not None:
            connection.transport.close()


kept: dict[str, list[Read]] = {}
"""Reads of each stream that has ended, by request id; filled while the load is held."""


def finish(load: Load, result: Result) -> None:
    """After the load: find first and last tokens in what was kept."""
    for row in result.rows:
        row.events = None
        stamps = content_stamps(kept.get(row.id, []))
        if stamps is None:
            row.ok = False
            continue
        row.first, row.last = stamps[0] / 1e9, stamps[1] / 1e9
        row.tokens = load.tokens


if __name__ == "__main__":
    run_as_process(opened, (OSError,), uvloop=True, finish=finish)
