"""The timed transport: an httpx transport that stamps every read where the socket is read.

It speaks plain HTTP/1.1 over TCP or TLS, keeps idle connections without a cap (last used, first taken), follows no
redirect, and reads a response to its end before it hands it over: the httpx.Response holds the joined bytes, and
`response.extensions["agentperf.exchange"]` the Exchange. `exchange` is the same without building httpx objects.

`sent_ns` of an exchange is the moment when the last byte of the request had left this process for the kernel. Over TLS
it had left the encryption layer, and up to 64 KiB of cipher text may still wait in the transport under it.
"""

import asyncio
import ssl
from typing import cast

import httpx

from agentperf.clock import NowNs, monotonic_ns
from agentperf.wire import failures
from agentperf.wire.endpoint import Limits
from agentperf.wire.exchange import Body, Exchange
from agentperf.wire.timed_connect import Connector, FailedConnectError, Target
from agentperf.wire.timed_connection import Connection

EXTENSION = "agentperf.exchange"


STALE_WITHIN_S = 2.0
"""A reused connection that breaks later than this had carried the request to a server, which then failed."""


def is_stale(exchange: Exchange) -> bool:
    """Whether a reused connection broke so soon that the server had closed it before, not because of the request."""
    began_ns = exchange.connected_ns if exchange.connected_ns is not None else exchange.t0_ns
    soon = exchange.end_ns - began_ns < STALE_WITHIN_S * 1e9
    return exchange.error_class == failures.CONNECTION_RESET and soon


class TimedTransport(httpx.AsyncBaseTransport):
    """See the module. Belongs to one event loop; `ssl_context` is needed for https only."""

    def __init__(
        self, *, limits: Limits | None = None, ssl_context: ssl.SSLContext | None = None, now_ns: NowNs = monotonic_ns
    ) -> None:
        self._limits = limits or Limits()
        self._ssl_context = ssl_context
        self._now_ns = now_ns
        self._connector = Connector(self._limits.connect_s)
        self._idle: dict[Target, list[Connection]] = {}
        self._open: set[Connection] = set()

    @property
    def open_connections(self) -> int:
        """Connections that exist now, idle ones included."""
        return len(self._open)

    @property
    def awaiting_first_byte(self) -> int:
        """Requests that are out and have not had a byte of body back."""
        return sum(connection.awaiting for connection in self._open)

    def target(self, scheme: str, host: str, port: int) -> Target:
        """Where `exchange` connects to."""
        if scheme == "https" and self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context(trust_env=False)
        return Target(host, port, self._ssl_context if scheme == "https" else None)

    async def exchange(self, target: Target, head: bytes, body: Body) -> Exchange:
        """Send a request (`head` ends with its blank line) and take the whole response.

        Never raises for what a server or network does: `error_class` of the exchange says it. Cancellation closes the
        connection. A reused connection that breaks at once and before one byte came back was stale; then, once, a new
        one is used.
        """
        exchange = Exchange(self._now_ns())
        connection = self._take(target)
        if connection is not None:
            exchange.new_connection = False
            exchange.connected_ns = self._now_ns()
            await self._run(connection, exchange, head, body)
            if not (connection.silent and is_stale(exchange)):
                self._give_back(target, connection)
                return exchange
            exchange = Exchange(exchange.t0_ns, stale_retries=1)
        try:
            connection = await self._connect(target)
        except FailedConnectError as failure:
            exchange.error_class, exchange.error = failure.error_class, failure.text
            exchange.end_ns = self._now_ns()
            return exchange
        exchange.connected_ns = self._now_ns()
        await self._run(connection, exchange, head, body)
        self._give_back(target, connection)
        return exchange

    async def _run(self, connection: Connection, exchange: Exchange, head: bytes, body: Body) -> None:
        try:
            await connection.start(exchange, head, body)
        except asyncio.CancelledError:
            connection.abort()
            raise

    async def _connect(self, target: Target) -> Connection:
        loop = asyncio.get_running_loop()

        def make() -> Connection:
            return Connection(loop, self._now_ns, self._limits, self._open.discard)

        connection = cast("Connection", await self._connector.open(target, make))
        if not connection.usable:
            raise FailedConnectError(
                failures.CONNECTION_RESET, "the server closed the connection as soon as it was open"
            )
        self._open.add(connection)
        return connection

    def _take(self, target: Target) -> Connection | None:
        idle = self._idle.get(target)
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    def _give_back(self, target: Target, connection: Connection) -> None:
        if connection.usable:
            self._idle.setdefault(target, []).append(connection)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """httpx's entry; failures become httpx's own exceptions, with the exchange in their `request.extensions`."""
        body = await request.aread()
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        target = self.target(url.scheme, url.raw_host.decode("ascii"), port)
        exchange = await self.exchange(target, _head_of(request, body), body)
        if exchange.error_class is not None:
            request.extensions = {**request.extensions, EXTENSION: exchange}
            raise _httpx_error(exchange, request)
        assert exchange.status is not None
        return httpx.Response(
            exchange.status,
            headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in exchange.headers],
            stream=httpx.ByteStream(b"".join(exchange.chunks)),
            extensions={EXTENSION: exchange, "http_version": b"HTTP/1.1"},
        )

    async def aclose(self) -> None:
        """Close every connection, also those in use."""
        for connection in list(self._open):
            connection.abort()
        self._open.clear()
        self._idle.clear()
        # The sockets are closed by callbacks of the loop; let them run before the loop may end.
        await asyncio.sleep(0)


def _head_of(request: httpx.Request, body: bytes) -> bytes:
    lines = [request.method.encode("ascii") + b" " + request.url.raw_path + b" HTTP/1.1"]
    framed = False
    for name, value in request.headers.raw:
        lower = name.lower()
        if lower == b"transfer-encoding":
            # The body is at hand as a whole, so its length frames it.
            continue
        framed = framed or lower == b"content-length"
        lines.append(name + b": " + value)
    if not framed and (body or request.method not in ("GET", "HEAD", "OPTIONS")):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n"


_HTTPX_ERRORS: dict[str, type[httpx.TransportError]] = {
    failures.CONNECT_REFUSED: httpx.ConnectError,
    failures.CONNECT_FAILED: httpx.ConnectError,
    failures.DNS: httpx.ConnectError,
    failures.TLS: httpx.ConnectError,
    failures.CLIENT_ERROR: httpx.ConnectError,
    failures.CONNECT_TIMEOUT: httpx.ConnectTimeout,
    failures.FIRST_BYTE_TIMEOUT: httpx.ReadTimeout,
    failures.STALL_TIMEOUT: httpx.ReadTimeout,
    failures.CONNECTION_RESET: httpx.ReadError,
}


def _httpx_error(exchange: Exchange, request: httpx.Request) -> httpx.TransportError:
    kind = _HTTPX_ERRORS.get(exchange.error_class or "", httpx.RemoteProtocolError)
    return kind(exchange.error or "", request=request)
