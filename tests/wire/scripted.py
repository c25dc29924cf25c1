"""A loopback server that sends exactly the bytes it is told to, when it is told to, and logs when it did."""

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

Framing = Literal["chunked", "length", "close"]


@dataclass(frozen=True)
class Step:
    """Wait, then write `data` (one write of the body), then perhaps a fault."""

    data: bytes = b""
    delay_s: float = 0.0
    fault: Literal["", "rst", "close", "silence"] = ""
    until: asyncio.Event | None = None
    """Also wait for this."""


@dataclass(frozen=True)
class Reply:
    steps: Sequence[Step] = ()
    status: int = 200
    headers: Sequence[tuple[str, str]] = (("Content-Type", "text/event-stream"),)
    framing: Framing = "chunked"
    raw: bool = False
    """Steps are the whole response, head included."""
    keep_alive: bool = True
    read_body: bool = True
    trailers: bytes = b""
    late: "Callable[[Seen], Reply] | None" = None
    """Makes the real reply once the body is here."""


def json_reply(body: bytes, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Reply:
    return Reply([Step(body)], status, [("Content-Type", "application/json"), *headers], "length")


@dataclass
class Seen:
    """One request as it arrived, and when each step of its reply was handed to the socket."""

    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    received_ns: int
    written_ns: list[int] = field(default_factory=list)


@dataclass
class Server:
    port: int
    host: str
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    open_now: int = 0
    peak: int = 0
    lost: int = 0

    def base(self, scheme: str = "http") -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/v1"


Script = Callable[[Seen], Reply | None]
"""The reply to a request; None closes the connection without one."""


@asynccontextmanager
async def serve(
    script: Script | Reply, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", idle_s: float = 3600.0
) -> AsyncIterator[Server]:
    script_of = (lambda _: script) if isinstance(script, Reply) else script
    server = Server(0, host)
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.add(task)
        server.connections += 1
        number = server.connections
        try:
            while await _one(server, script_of, number, reader, writer, idle_s):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            server.lost += 1
        except (asyncio.CancelledError, TimeoutError):
            # The end of the test, or an idle connection that is given up.
            pass
        finally:
            tasks.discard(task)
            writer.close()

    listening = await asyncio.start_server(connected, host, 0, ssl=tls, backlog=1024, limit=2**24)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one(
    server: Server,
    script: Script,
    number: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    idle_s: float,
) -> bool:
    """Serve one request; False when the connection is over."""
    async with asyncio.timeout(idle_s):
        head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ")
    headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:] if line)}
    seen = Seen(number, method, path, headers, b"", time.monotonic_ns())
    reply = script(seen)
    server.seen.append(seen)
    if reply is None or reply.read_body:
        seen.body = await reader.readexactly(int(headers.get("content-length", "0")))
        seen.received_ns = time.monotonic_ns()
    if reply is None:
        return False
    if reply.late is not None:
        reply = reply.late(seen)
    server.open_now += 1
    server.peak = max(server.peak, server.open_now)
    try:
        return await _reply(seen, reply, writer)
    finally:
        server.open_now -= 1


async def _reply(seen: Seen, reply: Reply, writer: asyncio.StreamWriter) -> bool:
    if not reply.raw:
        writer.write(head_of(reply))
    for step in reply.steps:
        if step.delay_s:
            await writer.drain()
            await asyncio.sleep(step.delay_s)
        if step.until is not None:
            await writer.drain()
            await step.until.wait()
        seen.written_ns.append(time.monotonic_ns())
        if step.data:
            chunked = reply.framing == "chunked" and not reply.raw
            writer.write(b"%x\r\n%b\r\n" % (len(step.data), step.data) if chunked else step.data)
            await writer.drain()
        if step.fault == "rst":
            reset_connection(writer)
            return False
        if step.fault == "close":
            return False
        if step.fault == "silence":
            await asyncio.sleep(3600)
    if reply.framing == "chunked" and not reply.raw:
        writer.write(b"0\r\n" + reply.trailers + b"\r\n")
    await writer.drain()
    return reply.keep_alive and reply.framing != "close" and not reply.raw


def head_of(reply: Reply) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} X", *(f"{name}: {value}" for name, value in reply.headers)]
    if reply.framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif reply.framing == "length":
        lines.append(f"Content-Length: {sum(len(step.data) for step in reply.steps)}")
    if not reply.keep_alive:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def reset_connection(writer: asyncio.StreamWriter) -> None:
    """RST instead of FIN: close with linger 0."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
