"""A small OpenAI-like server on loopback for tests of load processes: every reply takes about `seconds`."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.replay.fakes import reply, sse


class TinyServer:
    """Counts what is open; ids are those of X-Request-Id."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.open = 0
        self.peak = 0
        self.ids: list[str] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                json.loads(await reader.readexactly(int(fields["content-length"])))
                self.ids.append(fields["x-request-id"])
                await self._reply(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _reply(self, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            await asyncio.sleep(self.seconds / 2)
            parts = sse(*reply())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for part in parts:
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await writer.drain()
                await asyncio.sleep(self.seconds / 8)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            self.open -= 1


@asynccontextmanager
async def tiny_server(seconds: float = 0.1) -> AsyncIterator[TinyServer]:
    state = TinyServer(seconds)
    server = await asyncio.start_server(state.handle, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield state
    finally:
        server.close()
