"""A Caller for an endpoint: one function that sends a body and returns the exchange, on either transport."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal

import httpx

from agentperf import __version__
from agentperf.clock import NowNs, monotonic_ns
from agentperf.wire import content_coding
from agentperf.wire.endpoint import Endpoint, Limits
from agentperf.wire.exchange import Body, Exchange, size
from agentperf.wire.stock import StockSender
from agentperf.wire.timed import TimedTransport

TransportName = Literal["timed", "httpx"]

_UNSAFE_ID = re.compile(r"[^\x21-\x7e]")


class OpenCaller:
    """A Caller (call it with body and request id) that says which transport it is on, and why if not the wanted one."""

    __slots__ = ("_awaiting", "_count", "_mask", "_send", "note", "transport")

    def __init__(
        self,
        send: Callable[[Body, str], Awaitable[Exchange]],
        transport: TransportName,
        note: str | None,
        count: Callable[[], int],
        awaiting: Callable[[], int] = lambda: 0,
        mask: Callable[[str], str] = str,
    ) -> None:
        self._mask = mask
        self._send = send
        self._count = count
        self._awaiting = awaiting
        self.transport: TransportName = transport
        self.note = note

    async def __call__(self, body: Body, request_id: str) -> Exchange:
        """Send one body. Never raises for what a server does; cancellation closes the connection."""
        exchange = await self._send(body, header_id(request_id))
        exchange.mask = self._mask
        content_coding.undo(exchange)
        if exchange.status is not None and exchange.status >= 300:
            self._hide_secrets(exchange)
        return exchange

    def _hide_secrets(self, exchange: Exchange) -> None:
        """What a server says is recorded, and it may repeat the key that it refuses. Successes are never rewritten."""
        exchange.headers = [(name, self._mask(value)) for name, value in exchange.headers]
        said = b"".join(exchange.chunks).decode("latin-1")
        masked = self._mask(said)
        if masked != said:
            exchange.chunks = [masked.encode("latin-1")]
            exchange.stamps = exchange.stamps[:1]

    @property
    def open_connections(self) -> int:
        """Connections that exist now, idle ones included."""
        return self._count()

    def awaiting_first_byte(self) -> int:
        """Requests that have had no byte of body yet; always 0 on httpx's transport, which does not tell."""
        return self._awaiting()


def choose_transport(endpoint: Endpoint, wanted: TransportName) -> tuple[TransportName, str | None]:
    """The transport that will be used, and a note when it is not the wanted one.

    Ambient proxy variables count only with the endpoint's `trust_env`; a proxy needs httpx's own transport.
    """
    if wanted == "timed" and endpoint.trust_env and proxy_of(endpoint) is not None:
        return "httpx", "a proxy is set in the environment: httpx's transport is used, whose stamps are less exact"
    return wanted, None


def proxy_of(endpoint: Endpoint) -> str | None:
    """The ambient proxy for this endpoint by httpx's own rules, without its credentials; None without `trust_env`."""
    if not endpoint.trust_env:
        return None
    from urllib.request import getproxies, proxy_bypass

    if proxy_bypass(endpoint.authority):
        return None
    proxies = getproxies()
    found = proxies.get(endpoint.scheme) or proxies.get("all")
    return httpx.URL(found).copy_with(userinfo=b"").__str__() if found else None


@asynccontextmanager
async def open_caller(
    endpoint: Endpoint,
    *,
    path: str,
    limits: Limits | None = None,
    transport: TransportName = "timed",
    now_ns: NowNs = monotonic_ns,
) -> AsyncIterator[OpenCaller]:
    """A Caller that posts JSON to `path` below the endpoint's base; its connections are closed at the end.

    Raises UsageError when the CA file cannot be used.
    """
    limits = limits or Limits()
    name, note = choose_transport(endpoint, transport)
    if name == "httpx":
        async with StockSender(endpoint, path, limits, now_ns, request_headers(endpoint)) as sender:
            yield OpenCaller(sender.send, name, note, lambda: sender.open_connections, mask=endpoint.mask)
        return
    context = endpoint.ssl_context() if endpoint.scheme == "https" else None
    timed = TimedTransport(limits=limits, ssl_context=context, now_ns=now_ns)
    target = timed.target(endpoint.scheme, endpoint.host, endpoint.port)
    fixed = _fixed_head(endpoint, path)

    async def send(body: Body, request_id: str) -> Exchange:
        head = b"%bX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n" % (fixed, request_id.encode("ascii"), size(body))
        return await timed.exchange(target, head, body)

    try:
        yield OpenCaller(
            send, name, note, lambda: timed.open_connections, lambda: timed.awaiting_first_byte, endpoint.mask
        )
    finally:
        await timed.aclose()


def request_headers(endpoint: Endpoint) -> list[tuple[str, str]]:
    """Headers of every call but Host, X-Request-Id and Content-Length; the endpoint's own replace the defaults."""
    own = {name.lower() for name, _ in endpoint.headers}
    defaults = [
        ("Accept", "*/*"),
        ("Accept-Encoding", "identity"),
        ("Content-Type", "application/json"),
        ("User-Agent", f"agentperf/{__version__}"),
    ]
    return [pair for pair in defaults if pair[0].lower() not in own] + list(endpoint.headers)


def header_id(request_id: str) -> str:
    """A request id as it can stand in a header: printable ASCII without spaces."""
    return _UNSAFE_ID.sub("_", request_id)


def _fixed_head(endpoint: Endpoint, path: str) -> bytes:
    lines = [f"POST {endpoint.target(path)} HTTP/1.1", f"Host: {endpoint.authority}"]
    lines += [f"{name}: {value}" for name, value in request_headers(endpoint)]
    return ("\r\n".join(lines) + "\r\n").encode("ascii")
