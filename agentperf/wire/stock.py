"""httpx's own transport in the place of the timed one: for proxies and for comparison. Its stamps are less exact.

Same Exchange, same failure classes, same limits. A stamp is taken when the chunk reaches this task, so after httpx and
the event loop had their turn; that error grows with load, which is why measured runs use the timed transport.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import httpx

from agentperf.clock import NowNs
from agentperf.wire import failures
from agentperf.wire.endpoint import Endpoint, Limits
from agentperf.wire.exchange import Body, Exchange, whole
from agentperf.wire.timed import is_stale
from agentperf.wire.timed_connect import failure_of


class StockSender:
    """Posts bodies to one URL through httpx."""

    def __init__(
        self, endpoint: Endpoint, path: str, limits: Limits, now_ns: NowNs, headers: list[tuple[str, str]]
    ) -> None:
        self._url = endpoint.url(path)
        self._where = endpoint.authority
        self._limits = limits
        self._now_ns = now_ns
        self._headers = headers
        context: ssl.SSLContext | bool = endpoint.ssl_context() if endpoint.scheme == "https" else False
        self._pooled = _client(endpoint, context, limits, keep_alive=None)
        # Where a stale connection is replaced the next one must be new, not another idle one.
        self._fresh = _client(endpoint, context, limits, keep_alive=0)
        self._open = 0

    @property
    def open_connections(self) -> int:
        """Requests in flight: httpx does not tell how many idle connections it holds."""
        return self._open

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pooled.aclose()
        await self._fresh.aclose()

    async def send(self, body: Body, request_id: str) -> Exchange:
        """As `TimedTransport.exchange`."""
        exchange = Exchange(self._now_ns())
        self._open += 1
        try:
            await self._attempt(self._pooled, exchange, body, request_id)
            if _was_stale(exchange):
                exchange = Exchange(exchange.t0_ns, stale_retries=1)
                await self._attempt(self._fresh, exchange, body, request_id)
        finally:
            self._open -= 1
        return exchange

    async def _attempt(self, client: httpx.AsyncClient, exchange: Exchange, body: Body, request_id: str) -> None:
        exchange.new_connection = False
        limits, loop = self._limits, asyncio.get_running_loop()
        deadline = asyncio.timeout(None)

        async def trace(event: str, _: dict[str, Any]) -> None:
            now = self._now_ns()
            if event == "connection.connect_tcp.started":
                exchange.new_connection = True
            elif event.endswith(".send_request_headers.started"):
                exchange.connected_ns = now
                if limits.first_byte_s is not None:
                    deadline.reschedule(loop.time() + limits.first_byte_s)
            elif event.endswith(".send_request_body.complete"):
                exchange.sent_ns = now

        request = client.build_request(
            "POST", self._url, content=whole(body), headers=self._headers, extensions={"trace": trace}
        )
        request.headers["X-Request-Id"] = request_id
        try:
            async with deadline:
                await self._receive(client, request, exchange, deadline)
        except TimeoutError:
            self._timed_out(exchange)
        except (httpx.HTTPError, OSError) as error:
            exchange.error_class, exchange.error = _classify(error, exchange, self._where, limits)
        if exchange.connected_ns is None:
            exchange.new_connection = True
        exchange.end_ns = self._now_ns()

    async def _receive(
        self, client: httpx.AsyncClient, request: httpx.Request, exchange: Exchange, deadline: asyncio.Timeout
    ) -> None:
        stall_s, loop = self._limits.stall_s, asyncio.get_running_loop()
        response = await client.send(request, stream=True)
        try:
            exchange.status = response.status_code
            exchange.headers = [(k.decode("latin-1").lower(), v.decode("latin-1")) for k, v in response.headers.raw]
            async for chunk in response.aiter_raw():
                exchange.stamps.append(self._now_ns())
                exchange.chunks.append(chunk)
                deadline.reschedule(None if stall_s is None else loop.time() + stall_s)
        finally:
            await response.aclose()

    def _timed_out(self, exchange: Exchange) -> None:
        if exchange.stamps:
            text = f"nothing came for {self._limits.stall_s:g} s in the middle of the response"
            exchange.error_class, exchange.error = failures.STALL_TIMEOUT, text
        else:
            text = f"no byte of the response body within {self._limits.first_byte_s:g} s"
            exchange.error_class, exchange.error = failures.FIRST_BYTE_TIMEOUT, text


def _client(
    endpoint: Endpoint, context: ssl.SSLContext | bool, limits: Limits, *, keep_alive: int | None
) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        verify=context,
        trust_env=endpoint.trust_env,
        follow_redirects=False,
        timeout=httpx.Timeout(None, connect=limits.connect_s),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=keep_alive, keepalive_expiry=None),
    )


def _was_stale(exchange: Exchange) -> bool:
    return not exchange.new_connection and exchange.status is None and is_stale(exchange)


def _classify(error: Exception, exchange: Exchange, where: str, limits: Limits) -> tuple[str, str]:
    """(class, one line) of what httpx raised."""
    if isinstance(error, httpx.ConnectTimeout):
        return failures.CONNECT_TIMEOUT, f"no connection to {where} within {limits.connect_s:g} s"
    if isinstance(error, httpx.ProxyError):
        return failures.CONNECT_FAILED, f"the proxy refused: {error}"
    if isinstance(error, httpx.ConnectError) or exchange.connected_ns is None:
        failure = failure_of(root_cause(error), where)
        return failure.error_class, failure.text
    if isinstance(error, httpx.LocalProtocolError):
        return failures.CLIENT_ERROR, f"the request cannot be sent: {error}"
    part = "in the middle of the response" if exchange.status is not None else "without an answer"
    if isinstance(error, httpx.RemoteProtocolError):
        if "disconnected" in str(error) or "closed" in str(error):
            return failures.CONNECTION_RESET, f"the server closed the connection {part}"
        return failures.PROTOCOL_ERROR, f"not a valid HTTP response: {error}"
    return failures.CONNECTION_RESET, f"the connection broke {part}: {error or type(error).__name__}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    yield error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _chain(inner)
    following = error.__cause__ or error.__context__
    if following is not None:
        yield from _chain(following)


def root_cause(error: BaseException) -> BaseException:
    """The operating system's own exception beneath httpx's wrappers; several attempts: the most telling one."""
    chain = list(_chain(error))
    for kind in (ssl.SSLError, socket.gaierror, ConnectionRefusedError):
        for found in chain:
            if isinstance(found, kind):
                return found
    return next((found for found in chain if isinstance(found, OSError) and found.errno), error)
