"""A paced server on loopback that stamps the first and the last token of each reply right before it writes them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agentperf.clock import monotonic_ns


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(delta: dict[str, str], **more: object) -> bytes:
    return chunk(b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}], **more}).encode() + b"\n\n")


TOKEN = event({"content": "word "})


@dataclass
class PacedServer:
    """`truth` has by X-Request-Id the moments at which the first and the last token were handed to the socket."""

    ttft_s: float
    tps: float
    tokens: int
    url: str = ""
    truth: dict[str, tuple[int, int]] = field(default_factory=dict)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                await reader.readexactly(int(fields["content-length"]))
                await self._reply(writer, fields["x-request-id"])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _reply(self, writer: asyncio.StreamWriter, request_id: str) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self.ttft_s
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        first = last = 0
        for number in range(self.tokens):
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += 1 / self.tps
            last = monotonic_ns()
            first = first or last
            writer.write(TOKEN)
            if number % 16 == 0:
                await writer.drain()
        self.truth[request_id] = (first, last)
        usage = {"prompt_tokens": 10, "completion_tokens": self.tokens}
        writer.write(event({}, usage=usage) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def paced_server(ttft_s: float, tps: float, tokens: int) -> AsyncIterator[PacedServer]:
    state = PacedServer(ttft_s, tps, tokens)
    server = await asyncio.start_server(state.handle, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield state
    finally:
        server.close()
