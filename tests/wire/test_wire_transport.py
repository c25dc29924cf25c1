"""The transports beyond one reply: pools, stale connections, limits, TLS, many at once, cancellation, httpx's face."""

import asyncio
import errno
import gzip
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
import trustme
from scripted import Reply, Seen, Server, Step, json_reply, reset_connection, serve
from wire_scenario import chunk, sse

from agentperf.wire import chat, failures, timed, timed_connect
from agentperf.wire.client import OpenCaller, choose_transport, open_caller, proxy_of
from agentperf.wire.endpoint import Limits, parse_endpoint
from agentperf.wire.exchange import Caller, Exchange
from agentperf.wire.timed import EXTENSION, TimedTransport

OK = Reply([Step(chunk({"content": "a"})), Step(chunk(None, "stop") + b"data: [DONE]\n\n")])
BODY = b'{"model":"m","messages":[]}'


@pytest.fixture(params=["timed", "timed-uvloop", "httpx"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def anyio_backend(kind: str) -> Any:
    return ("asyncio", {"use_uvloop": kind.endswith("uvloop")})


@asynccontextmanager
async def calling(
    server_or_url: Server | str, kind: str, limits: Limits | None = None, **more: Any
) -> AsyncIterator[OpenCaller]:
    url = server_or_url if isinstance(server_or_url, str) else server_or_url.base()
    transport: Any = kind.removesuffix("-uvloop")
    async with open_caller(
        parse_endpoint(url, **more), path=chat.PATH, limits=limits or Limits(5, 10, 10), transport=transport
    ) as caller:
        with anyio.fail_after(30):
            yield caller


def ok(exchange: Exchange) -> bool:
    outcome = chat.fold(exchange)
    assert outcome.outcome == "ok", (outcome.error_class, outcome.error)
    return True


@pytest.mark.anyio
async def test_connections_are_reused(kind: str) -> None:
    async with serve(OK) as server, calling(server, kind) as caller:
        exchanges = [await caller(BODY, f"r{i}") for i in range(4)]
        assert all(map(ok, exchanges))
        assert [x.new_connection for x in exchanges] == [True, False, False, False]
        assert server.connections == 1
        assert [seen.headers["x-request-id"] for seen in server.seen] == ["r0", "r1", "r2", "r3"]


@pytest.mark.anyio
async def test_connection_close_is_obeyed(kind: str) -> None:
    closing = Reply(OK.steps, keep_alive=False)
    async with serve(closing) as server, calling(server, kind) as caller:
        exchanges = [await caller(BODY, "r") for _ in range(3)]
        assert all(map(ok, exchanges))
        assert all(x.new_connection and x.stale_retries == 0 for x in exchanges)
        assert server.connections == 3


def stale_script(seen: Seen) -> Reply | None:
    """Every connection serves one request and breaks under the second."""
    served.append(seen.connection)
    return None if served.count(seen.connection) > 1 else OK


served: list[int] = []


@pytest.mark.anyio
async def test_s16_stale_connection_is_replaced_once(kind: str) -> None:
    served.clear()
    async with serve(stale_script) as server, calling(server, kind) as caller:
        first, second = await caller(BODY, "r1"), await caller(BODY, "r2")
        assert ok(first) and ok(second)
        assert (first.stale_retries, second.stale_retries) == (0, 1)
        assert second.new_connection
        assert server.connections == 2
        # t0 is that of the first try: the lost round trip is part of what the user waits for.
        assert second.t0_ns < server.seen[1].received_ns
        assert second.connected_ns is not None and second.connected_ns > server.seen[1].received_ns


@pytest.mark.anyio
async def test_s16_idle_connection_that_the_server_closed_is_not_used(kind: str) -> None:
    """The ordinary keep-alive time-out: the close is seen while idle, so there is nothing to retry."""
    async with serve(OK, idle_s=0.05) as server, calling(server, kind) as caller:
        assert ok(await caller(BODY, "r1"))
        await asyncio.sleep(0.2)
        second = await caller(BODY, "r2")
        assert ok(second) and second.new_connection and second.stale_retries == 0
        assert server.connections == 2


@pytest.mark.anyio
async def test_s16_server_that_dies_over_a_request_is_not_stale(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reused connection that breaks late had carried the request to a server: to ask again would hide its failure."""
    monkeypatch.setattr(timed, "STALE_WITHIN_S", 0.1)
    dying = Reply([Step(b"", 0.25, "close")], raw=True)
    async with (
        serve(lambda seen: dying if seen.headers["x-request-id"] == "r2" else OK) as server,
        calling(server, kind) as caller,
    ):
        assert ok(await caller(BODY, "r1"))
        exchange = await caller(BODY, "r2")
        assert exchange.error_class == failures.CONNECTION_RESET
        assert exchange.stale_retries == 0 and len(server.seen) == 2


@pytest.mark.anyio
async def test_a_new_connection_is_never_retried(kind: str) -> None:
    async with serve(lambda _: None) as server, calling(server, kind) as caller:
        exchange = await caller(BODY, "r")
        assert exchange.error_class == failures.CONNECTION_RESET
        assert exchange.stale_retries == 0 and exchange.new_connection
        assert len(server.seen) == 1


def break_second(seen: Seen) -> Reply:
    served.append(seen.connection)
    half = Reply([Step(b"HTTP/1.1 200 OK\r\nConte", fault="close")], raw=True)
    return half if served.count(seen.connection) > 1 else OK


@pytest.mark.anyio
async def test_no_retry_after_the_first_byte(kind: str) -> None:
    served.clear()
    async with serve(break_second) as server, calling(server, kind) as caller:
        assert ok(await caller(BODY, "r1"))
        exchange = await caller(BODY, "r2")
        if kind != "httpx":  # h11 does not tell how much of a head came
            assert exchange.error_class == failures.CONNECTION_RESET and exchange.stale_retries == 0
            assert len(server.seen) == 2


@pytest.mark.anyio
async def test_s13_many_streams_at_once(kind: str) -> None:
    """As many at the server as were asked for: no pool of ours has a cap (httpx's would be 100)."""
    wanted = 130 if kind == "httpx" else 400
    all_here = asyncio.Event()

    def count(seen: Seen) -> Reply:
        if len(server.seen) + 1 == wanted:
            all_here.set()
        return Reply([Step(chunk({"content": "a"})), Step(until=all_here), *OK.steps])

    async with serve(count) as server, calling(server, kind) as caller:
        results: list[Exchange] = []

        async def one(number: int) -> None:
            results.append(await caller(BODY, f"r{number}"))

        async with anyio.create_task_group() as group:
            for number in range(wanted):
                group.start_soon(one, number)
        assert all(map(ok, results)) and len(results) == wanted
        assert server.peak == server.connections == wanted
        assert len({seen.headers["x-request-id"] for seen in server.seen}) == wanted


@pytest.mark.anyio
async def test_large_body(kind: str) -> None:
    body = os.urandom(3_000_000)
    async with serve(OK) as server, calling(server, kind) as caller:
        exchange = await caller(body, "r")
        assert ok(exchange)
        assert server.seen[0].body == body
        # Handed over before the server had the last byte, and after the connection stood.
        assert exchange.connected_ns is not None and exchange.sent_ns is not None
        assert exchange.connected_ns <= exchange.sent_ns
        assert exchange.sent_ns <= exchange.stamps[0]


LARGE = b"x" * 20_000_000
"""More than the buffers of both sides take."""


def early(status: int, *headers: tuple[str, str], fault: Any = "", keep_alive: bool = False) -> Reply:
    """An answer that comes before the body has been read."""
    body = b'{"error":{"message":"not now"}}'
    kind = ("Content-Type", "application/json")
    return Reply([Step(body, 0.0, fault)], status, [kind, *headers], "length", keep_alive=keep_alive, read_body=False)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("reply", "error_class", "notes"),
    [
        (early(413), failures.HTTP_4XX, []),
        (early(429, ("Retry-After", "3")), failures.RATE_LIMITED, ["Retry-After: 3"]),
        (early(503, fault="close"), failures.OVERLOADED, []),
        (early(401, keep_alive=True), failures.AUTH, []),
    ],
    ids=["413", "429", "503", "401"],
)
async def test_early_answer_while_we_still_send(kind: str, reply: Reply, error_class: str, notes: list[str]) -> None:
    """The server refuses before it has read the body, and closes: its answer is what counts, not the broken pipe."""
    if kind == "httpx":
        pytest.skip("httpx loses the answer behind the broken pipe")
    async with serve(reply) as server, calling(server, kind) as caller:
        exchange = await caller(LARGE, "r")
        outcome = chat.fold(exchange)
        assert (outcome.status, outcome.error_class) == (reply.status, error_class)
        assert outcome.error == f"HTTP {reply.status}: not now" and outcome.notes == notes
        assert exchange.end_ns >= exchange.stamps[-1]
        # A connection on which half a body is still under way is not used again.
        again = await caller(BODY, "r2")
        assert again.new_connection and server.connections == 2


@pytest.mark.anyio
async def test_whole_stream_while_we_still_send(kind: str) -> None:
    """A server that answers without having read the whole prompt: the reply counts, the connection does not."""
    if kind == "httpx":
        pytest.skip("httpx sends first, and reads then")
    reply = Reply(OK.steps, read_body=False)
    async with serve(reply) as server, calling(server, kind) as caller:
        exchange = await caller(LARGE, "r")
        assert ok(exchange) and exchange.sent_ns is None
        assert (await caller(BODY, "r2")).new_connection


@pytest.mark.anyio
@pytest.mark.parametrize("fault", ["rst", "close"])
async def test_server_gives_up_while_we_still_send(kind: str, fault: Any) -> None:
    """Without a word of an answer: the connection broke, and a new one is never tried again."""
    reply = Reply([Step(b"", 0.05, fault)], raw=True, read_body=False)
    async with serve(reply) as server, calling(server, kind) as caller:
        exchange = await caller(LARGE, "r")
        outcome = chat.fold(exchange)
        assert (outcome.outcome, outcome.error_class) == ("failed", failures.CONNECTION_RESET)
        assert exchange.stale_retries == 0 and server.connections == 1 and exchange.status is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.0 413 Too Large\r\n\r\nno", b"HTTP/1.1 413 X\r\nContent-Length: 9\r\n\r\nno"]
)
async def test_server_says_its_last_and_never_reads(kind: str, head: bytes) -> None:
    """Its half of the connection is closed while most of our body has still to go out: that is the end."""
    if kind == "httpx":
        pytest.skip("httpx sends first, and reads then")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        async with calling(f"http://127.0.0.1:{listening.getsockname()[1]}", kind) as caller:
            results: list[Exchange] = []

            async def one() -> None:
                results.append(await caller(LARGE, "r"))

            async with anyio.create_task_group() as group:
                group.start_soon(one)
                peer, _ = await loop.sock_accept(listening)
                assert (await loop.sock_recv(peer, 4096)).startswith(b"POST ")
                await loop.sock_sendall(peer, head)
                peer.shutdown(socket.SHUT_WR)
            peer.close()
    outcome = chat.fold(results[0])
    expected = (413, failures.HTTP_4XX) if head else (None, failures.CONNECTION_RESET)
    assert (outcome.status, outcome.error_class) == expected


@pytest.mark.anyio
async def test_server_that_never_reads_is_a_first_byte_timeout(kind: str) -> None:
    """The body fills every buffer and no more of it goes out: the wait ends at its limit all the same."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        async with calling(f"http://127.0.0.1:{deaf.getsockname()[1]}", kind, Limits(5, 0.3, 5)) as caller:
            exchange = await caller(LARGE, "r")
    assert exchange.error_class == failures.FIRST_BYTE_TIMEOUT and exchange.sent_ns is None


@pytest.mark.anyio
async def test_cancellation_closes_the_connection(kind: str) -> None:
    here = asyncio.Event()

    def script(seen: Seen) -> Reply:
        if seen.headers["x-request-id"] != "hang":
            return OK
        here.set()
        return Reply([Step(chunk({"content": "a"})), Step(fault="silence")])

    async with serve(script) as server, calling(server, kind) as caller:
        async with anyio.create_task_group() as group:
            group.start_soon(caller, BODY, "hang")
            await here.wait()
            group.cancel_scope.cancel()
        exchange = await caller(BODY, "next")
        assert ok(exchange) and exchange.new_connection
        assert server.connections == 2 and len(server.seen) == 2


@pytest.mark.anyio
async def test_awaiting_first_byte(kind: str) -> None:
    """The gauge counts requests that are out without any body yet, and forgets them when they end."""
    if kind == "httpx":
        pytest.skip("httpx does not tell")
    here, go_on = asyncio.Event(), asyncio.Event()

    def script(_: Seen) -> Reply:
        if len(server.seen) == 2:
            here.set()
        return Reply([Step(until=go_on), *OK.steps])

    async with serve(script) as server, calling(server, kind) as caller:
        assert caller.awaiting_first_byte() == 0
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(caller, BODY, f"r{number}")
            await here.wait()
            assert caller.awaiting_first_byte() == 3
            go_on.set()
        assert caller.awaiting_first_byte() == 0 and caller.open_connections == 3


@pytest.mark.anyio
async def test_a_key_that_the_server_repeats_is_not_recorded(kind: str) -> None:
    def repeat(seen: Seen) -> Reply:
        said = seen.headers["authorization"] + " " + seen.headers["x-key"]
        body = b'{"error":{"message":"refused: %b"}}' % said.encode()
        return Reply([Step(body[:40]), Step(body[40:], 0.02)], 401, [("Content-Type", "application/json")])

    more: dict[str, Any] = {"api_key": "canary-one", "headers": [("X-Key", "canary-two")]}
    async with serve(repeat) as server, calling(server, kind, **more) as caller:
        exchange = await caller(BODY, "r")
    assert b"canary" not in b"".join(exchange.chunks)
    outcome = chat.fold(exchange)
    assert outcome.error == "HTTP 401: refused: *** ***" and outcome.error_class == failures.AUTH
    assert len(exchange.stamps) == len(exchange.chunks)


@pytest.mark.anyio
async def test_refused_and_unresolvable(kind: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        async with calling(f"http://127.0.0.1:{port}", kind) as caller:
            exchange = await caller(BODY, "r")
    assert exchange.error_class == failures.CONNECT_REFUSED
    assert f"127.0.0.1:{port}" in (exchange.error or "")
    assert exchange.connected_ns is None and exchange.end_ns >= exchange.t0_ns and exchange.status is None
    async with calling("http://no-such-host.invalid", kind) as caller:
        exchange = await caller(BODY, "r")
    assert exchange.error_class == failures.DNS
    assert "no-such-host.invalid" in (exchange.error or "")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("number", "error_class", "says"),
    [
        (errno.EHOSTUNREACH, failures.CONNECT_FAILED, "No route to host"),
        (errno.ENETUNREACH, failures.CONNECT_FAILED, "Network is unreachable"),
        (errno.ECONNRESET, failures.CONNECT_FAILED, "reset by peer"),
        (errno.ECONNREFUSED, failures.CONNECT_REFUSED, "nothing listens"),
        (errno.ETIMEDOUT, failures.CONNECT_TIMEOUT, "no connection to"),
        (errno.EADDRNOTAVAIL, failures.CLIENT_ERROR, "this machine cannot"),
        (errno.ENOBUFS, failures.CLIENT_ERROR, "this machine cannot"),
    ],
)
async def test_failures_to_connect_by_class(
    kind: str, number: int, error_class: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the system says, in the words of the record; it cannot be made to say all of it here."""
    if kind == "httpx":
        pytest.skip("the same function names it")

    async def failing(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(timed_connect, "_open_one", failing)
    async with calling("http://127.0.0.1:9", kind) as caller:
        outcome = chat.fold(await caller(BODY, "r"))
    assert (outcome.outcome, outcome.error_class, outcome.status) == ("failed", error_class, None)
    assert says in (outcome.error or "")
    assert ("127.0.0.1:9" in (outcome.error or "")) == (error_class != failures.CLIENT_ERROR)


@pytest.mark.anyio
async def test_accepted_and_closed_at_once(kind: str) -> None:
    """A load balancer without a server behind it: the connection opens, and is closed before or under the request."""

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listening = await asyncio.start_server(close, "127.0.0.1", 0)
    async with listening, calling(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", kind) as caller:
        for _ in range(3):
            exchange = await caller(BODY, "r")
            assert exchange.error_class == failures.CONNECTION_RESET and exchange.stale_retries == 0


@pytest.mark.anyio
async def test_key_in_an_error_inside_the_stream_is_not_recorded(kind: str) -> None:
    """Also where the message is cut to its length in the middle of the key."""
    key = "canary-" + "0123456789" * 4

    def repeat(seen: Seen) -> Reply:
        said = "x" * int(seen.headers["x-request-id"]) + seen.headers["authorization"]
        return Reply([Step(chunk({"content": "a"})), Step(sse({"error": {"message": said}}))])

    async with serve(repeat) as server, calling(server, kind, api_key=key) as caller:
        for length in (0, 250, 270, 290, 300, 310):
            outcome = chat.fold(await caller(BODY, str(length)))
            assert outcome.error_class == failures.SERVER_ERROR_IN_STREAM
            assert "canary" not in (outcome.error or "") and "0123" not in (outcome.error or "")


@pytest.mark.anyio
async def test_key_in_a_redirect_or_a_broken_event_is_not_recorded(kind: str) -> None:
    key = "canary-0123456789"
    away = Reply([], 302, [("Location", f"https://h/login?key={key}")], "length")
    broken = Reply([Step(f"data: Bearer {key} is no JSON\n\n".encode())])
    packed = gzip.compress(f'{{"error":"no such key: {key}"}}'.encode())
    refusing = Reply([Step(packed)], 401, [("Content-Encoding", "gzip")], "length")
    replies = {"away": away, "broken": broken, "refusing": refusing}
    async with (
        serve(lambda seen: replies[seen.headers["x-request-id"]]) as server,
        calling(server, kind, api_key=key) as caller,
    ):
        for name in replies:
            outcome = chat.fold(await caller(BODY, name))
            assert outcome.outcome == "failed" and outcome.error and "***" in outcome.error
            assert "canary" not in str(outcome)


@pytest.mark.anyio
async def test_more_than_was_announced_ends_the_connection(kind: str) -> None:
    """What lies behind a response would be taken for the beginning of the next one."""
    extra = Reply([Step(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n")], raw=True)
    async with (
        serve(lambda seen: extra if seen.headers["x-request-id"] == "a" else OK) as server,
        calling(server, kind) as caller,
    ):
        first = await caller(BODY, "a")
        assert first.chunks == [b"hello"] and first.error_class is None
        second = await caller(BODY, "b")
        assert ok(second) and second.new_connection and second.stale_retries == 0


@pytest.mark.anyio
async def test_connect_limit(kind: str) -> None:
    """A listener whose backlog is full answers no SYN."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        try:
            for filler in fillers:
                filler.setblocking(False)
                with pytest.raises(BlockingIOError):
                    filler.connect(full.getsockname())
            async with calling(f"http://127.0.0.1:{full.getsockname()[1]}", kind, Limits(0.2, 5, 5)) as caller:
                exchange = await caller(BODY, "r")
        finally:
            for filler in fillers:
                filler.close()
    assert exchange.error_class == failures.CONNECT_TIMEOUT and "0.2 s" in (exchange.error or "")


@pytest.mark.anyio
async def test_ipv6(kind: str) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 loopback here")
    async with serve(OK, host="::1") as server, calling(server, kind) as caller:
        assert ok(await caller(BODY, "r"))
        assert server.seen[0].headers["host"] == f"[::1]:{server.port}"


@pytest.mark.anyio
async def test_name_with_several_addresses(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address refuses, the second answers; the name is asked for once."""
    if kind == "httpx":
        pytest.skip("httpx resolves by itself")
    asked: list[str] = []

    async def ask(host: str) -> list[timed_connect.Address]:
        asked.append(host)
        await asyncio.sleep(0.02)
        return [(socket.AF_INET, "127.0.0.2"), (socket.AF_INET, "127.0.0.1")]

    monkeypatch.setattr(timed_connect, "_ask", ask)
    async with serve(OK) as server, calling(f"http://two.test:{server.port}", kind) as caller:
        results: list[Exchange] = []

        async def one() -> None:
            results.append(await caller(BODY, "r"))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(one)
        assert all(map(ok, results))
        assert asked == ["two.test"] and server.connections == 5


@pytest.mark.anyio
async def test_slow_first_address_loses_to_the_second(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "httpx":
        pytest.skip("httpx resolves by itself")

    async def ask(_: str) -> list[timed_connect.Address]:
        return [(socket.AF_INET, "127.0.0.3"), (socket.AF_INET, "127.0.0.1")]

    with socket.socket() as full:
        async with serve(OK) as server:
            try:
                full.bind(("127.0.0.3", server.port))
            except OSError:
                pytest.skip("only one loopback address here")
            full.listen(0)
            fillers = [socket.socket() for _ in range(3)]
            for filler in fillers:
                filler.setblocking(False)
                with pytest.raises(BlockingIOError):
                    filler.connect(full.getsockname())
            monkeypatch.setattr(timed_connect, "_ask", ask)
            async with calling(f"http://two.test:{server.port}", kind) as caller:
                assert ok(await caller(BODY, "r"))
            for filler in fillers:
                filler.close()


@pytest.mark.anyio
async def test_no_descriptors_left_is_our_own_failure(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "httpx":
        pytest.skip("the same function names it")

    async def none_left(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(timed_connect, "_open_one", none_left)
    async with calling("http://127.0.0.1:9", kind) as caller:
        exchange = await caller(BODY, "r")
    assert exchange.error_class == failures.CLIENT_ERROR and "open files" in (exchange.error or "")


# -- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*names).configure_cert(context)
    return context


@pytest.mark.anyio
async def test_s12_tls(kind: str, authority: trustme.CA, tmp_path: Any) -> None:
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    large = b"x" * 2_000_000
    async with serve(OK, tls=server_context(authority, "127.0.0.1")) as server:
        url = server.base("https")
        async with calling(url, kind, ca_file=ca_file) as caller:
            exchanges = [await caller(body, "r") for body in (BODY, large, BODY)]
            assert all(map(ok, exchanges))
            assert [x.new_connection for x in exchanges] == [True, False, False]
            assert all(x.sent_ns is not None and x.sent_ns <= x.stamps[0] for x in exchanges)
            assert server.seen[1].body == large
        async with calling(url, kind, insecure=True) as caller:
            assert ok(await caller(BODY, "r"))
        async with calling(url, kind) as caller:
            exchange = await caller(BODY, "r")
    assert exchange.error_class == failures.TLS
    assert "certificate" in (exchange.error or "") and "issuer" in (exchange.error or "")


@pytest.mark.anyio
async def test_s12_tls_wrong_name_and_plain_server(kind: str, authority: trustme.CA, tmp_path: Any) -> None:
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    async with (
        serve(OK, tls=server_context(authority, "other.example")) as server,
        calling(server.base("https"), kind, ca_file=ca_file) as caller,
    ):
        exchange = await caller(BODY, "r")
    assert exchange.error_class == failures.TLS and "mismatch" in (exchange.error or "").lower()
    async with (
        serve(Reply([Step(b"HTTP/1.0 400 Bad\r\n\r\n")], raw=True)) as server,
        calling(server.base("https"), kind, Limits(1.0, 1, 1), ca_file=ca_file) as caller,
    ):
        exchange = await caller(BODY, "r")
    # A plain server waits for a head that TLS never sends, or answers with something that is no TLS.
    assert exchange.error_class in (failures.TLS, failures.CONNECT_TIMEOUT)


@pytest.mark.anyio
@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
async def test_tls_handshake_that_breaks(kind: str, reset: bool) -> None:
    """A port that takes the first message of the handshake and hangs up: no connection, in one line, and at once."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        if reset:
            reset_connection(writer)
        writer.close()

    listening = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, calling(url, kind, insecure=True) as caller:
        outcome = chat.fold(await caller(BODY, "r"))
    assert outcome.error_class in (failures.TLS, failures.CONNECT_FAILED), outcome
    assert outcome.error and "\n" not in outcome.error and url.removeprefix("https://") in outcome.error


@pytest.mark.anyio
async def test_tls_early_answer_while_we_still_send(kind: str, authority: trustme.CA) -> None:
    if kind == "httpx":
        pytest.skip("httpx loses the answer behind the broken pipe")
    async with (
        serve(early(413), tls=server_context(authority, "127.0.0.1")) as server,
        calling(server.base("https"), kind, insecure=True) as caller,
    ):
        for _ in range(5):
            outcome = chat.fold(await caller(LARGE, "r"))
            assert (outcome.status, outcome.error) == (413, "HTTP 413: not now")


@pytest.mark.anyio
async def test_tls_cut_in_the_middle(kind: str, authority: trustme.CA) -> None:
    cut = Reply([Step(chunk({"content": "a"})), Step(delay_s=0.05, fault="close")])
    async with (
        serve(cut, tls=server_context(authority, "127.0.0.1")) as server,
        calling(server.base("https"), kind, insecure=True) as caller,
    ):
        outcome = chat.fold(await caller(BODY, "r"))
    assert outcome.error_class == failures.TRUNCATED_STREAM


# -- choice of transport, headers


def test_proxies_count_only_when_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://user:secret@proxy:3128")
    ambient = parse_endpoint("http://h:1")
    trusting = parse_endpoint("http://h:1", trust_env=True)
    assert choose_transport(ambient, "timed") == ("timed", None)
    assert proxy_of(ambient) is None
    name, note = choose_transport(trusting, "timed")
    assert name == "httpx" and note is not None and "proxy" in note
    assert "secret" not in (proxy_of(trusting) or "secret")
    monkeypatch.setenv("no_proxy", "h")
    assert choose_transport(trusting, "timed") == ("timed", None)


@pytest.mark.anyio
async def test_through_a_proxy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request goes to the proxy with an absolute URL, on httpx's transport whatever was wanted."""
    async with serve(OK) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        async with calling("http://model.test:8000", kind, trust_env=True) as caller:
            assert caller.transport == "httpx"
            assert (caller.note is not None) == (kind != "httpx")
            assert ok(await caller(BODY, "r"))
        assert proxy.seen[0].path == "http://model.test:8000/v1/chat/completions"


@pytest.mark.anyio
async def test_headers_and_path(kind: str) -> None:
    async with serve(OK) as server:
        url = f"http://127.0.0.1:{server.port}/deep/v1?api-version=2"
        async with calling(url, kind, api_key="k", headers=[("X-Route", "canary"), ("User-Agent", "me")]) as caller:
            assert ok(await caller(BODY, "id with\r\nspace é"))
        seen = server.seen[0]
        assert (seen.method, seen.path) == ("POST", "/deep/v1/chat/completions?api-version=2")
        assert seen.headers["authorization"] == "Bearer k"
        assert seen.headers["x-route"] == "canary" and seen.headers["user-agent"] == "me"
        assert seen.headers["content-type"] == "application/json"
        assert seen.headers["host"] == f"127.0.0.1:{server.port}"
        assert seen.headers["x-request-id"].isascii() and " " not in seen.headers["x-request-id"]


@pytest.mark.anyio
async def test_caller_is_a_caller(kind: str) -> None:
    async with serve(OK) as server, calling(server, kind) as opened:
        caller: Caller = opened
        assert ok(await caller(BODY, "r"))
        if kind != "httpx":
            assert opened.open_connections == 1
    assert opened.open_connections == 0


# -- httpx's face of the timed transport


@pytest.mark.anyio
async def test_as_httpx_transport(kind: str) -> None:
    if kind == "httpx":
        pytest.skip("it is httpx's own")
    reply = json_reply(b'{"data":[{"id":"m"}]}', headers=[("X-Two", "a"), ("X-Two", "b")])
    async with (
        serve(reply) as server,
        httpx.AsyncClient(transport=TimedTransport(), base_url=server.base()) as client,
    ):
        got = await client.get("models")
        assert got.status_code == 200 and got.json() == {"data": [{"id": "m"}]}
        assert got.headers.get_list("x-two") == ["a", "b"]
        exchange = got.extensions[EXTENSION]
        assert b"".join(exchange.chunks) == got.content
        assert exchange.t0_ns <= exchange.stamps[0] <= exchange.end_ns
        posted = await client.post("x", json={"a": 1})
        assert posted.status_code == 200
        assert [seen.method for seen in server.seen] == ["GET", "POST"]
        assert server.seen[1].body == b'{"a":1}' and server.connections == 1
        assert "content-length" not in server.seen[0].headers


@pytest.mark.anyio
async def test_httpx_errors(kind: str) -> None:
    if kind == "httpx":
        pytest.skip("it is httpx's own")
    async with serve(lambda _: None) as server, httpx.AsyncClient(transport=TimedTransport()) as client:
        with pytest.raises(httpx.ReadError) as caught:
            await client.get(server.base())
        assert caught.value.request.extensions[EXTENSION].error_class == failures.CONNECTION_RESET
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/")
    silent = Reply([Step(fault="silence")], raw=True)
    async with (
        serve(silent) as server,
        httpx.AsyncClient(transport=TimedTransport(limits=Limits(1, 0.1, 1))) as client,
    ):
        with pytest.raises(httpx.ReadTimeout):
            await client.get(server.base())


@pytest.mark.anyio
async def test_injected_clock(kind: str) -> None:
    ticks = iter(range(10**6))
    async with serve(OK) as server:
        endpoint = parse_endpoint(server.base())
        transport: Any = kind.removesuffix("-uvloop")
        async with open_caller(endpoint, path=chat.PATH, transport=transport, now_ns=lambda: next(ticks)) as caller:
            exchange = await caller(BODY, "r")
    assert exchange.t0_ns == 0 and 0 < exchange.stamps[0] < exchange.end_ns + 1 < 1000
    assert ok(exchange)


@pytest.mark.anyio
async def test_server_that_talks_out_of_turn(kind: str) -> None:
    """Bytes on an idle connection make it useless; the next request goes to a new one."""
    if kind == "httpx":
        pytest.skip("httpx looks only when it reuses a connection")
    whole, extra_bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"HTTP/1.1 408 X\r\n\r\n"
    extra = Reply([Step(whole), Step(extra_bytes, 0.03)], raw=True)
    async with (
        serve(lambda seen: extra if seen.headers["x-request-id"] == "a" else OK) as server,
        calling(server, kind) as caller,
    ):
        first = await caller(BODY, "a")
        assert first.status == 200 and first.chunks == [b"hello"]
        await asyncio.sleep(0.1)
        second = await caller(BODY, "b")
        assert ok(second) and second.new_connection and second.stale_retries == 0


def test_clock_is_the_monotonic_one() -> None:
    assert Limits() == Limits(connect_s=10.0, first_byte_s=600.0, stall_s=300.0)
    before = time.monotonic_ns()
    assert TimedTransport()._now_ns() >= before
