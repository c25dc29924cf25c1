"""A server that takes bodies and answers each with the same few bytes: for benchmarks of what sending costs.

`python -m benchmarks.sink SECONDS` prints its port, and ends by itself after that time. It looks for `Content-Length`
in the head and for nothing in the body.
"""

import asyncio
import contextlib
import re
import selectors
import subprocess
import sys
from collections.abc import Iterator
from typing import cast

from agentperf.yardstick.cores import children_on
from benchmarks.clients import ROOT
from benchmarks.cores import Cores

REPLY = b'data: {"choices":[{"index":0,"delta":{"content":"yes"}}]}\n\n'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(REPLY), REPLY)
LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
START_S = 20.0


class Sink(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._left = 0
        """Bytes of body still to come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Count the body down; answer when it is whole."""
        if not self._left:
            self._head += data
            head, blank, body = self._head.partition(b"\r\n\r\n")
            if not blank:
                return
            found = LENGTH.search(head)
            self._left = int(found.group(1)) if found else 0
            self._head, data = b"", body
        self._left -= len(data)
        if self._left <= 0 and self._transport is not None:
            self._left = 0
            self._transport.write(ANSWER)


async def serve(seconds: float) -> None:
    """Until the time is over."""
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.sleep(seconds)


@contextlib.contextmanager
def sink(cores: Cores, lifetime_s: float) -> Iterator[str]:
    """A running one, by its base URL."""
    command = [sys.executable, "-m", "benchmarks.sink", str(lifetime_s)]
    with children_on(cores):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    with process, selectors.DefaultSelector() as selector:
        try:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(START_S) else b""
            yield f"http://127.0.0.1:{int(line)}/v1"
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def main() -> None:
    """Serve, on uvloop."""
    import uvloop

    uvloop.run(serve(float(sys.argv[1])))


if __name__ == "__main__":
    main()
