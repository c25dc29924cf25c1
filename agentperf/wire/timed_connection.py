"""One HTTP/1.1 connection of the timed transport: writes a request, stamps each read, wakes its task once at the end.

While a response is open a read costs one clock call, the C parser, and two appends. Nothing is decoded, no task runs.
"""

import asyncio
import os
import socket
from array import array
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from agentperf.clock import NowNs
from agentperf.wire import failures
from agentperf.wire.endpoint import Limits
from agentperf.wire.exchange import Body, Exchange

MAX_HEAD_BYTES = 256 * 1024
"""Response head beyond this is a protocol error."""

_SALVAGE_BYTES = 256 * 1024


class Connection(asyncio.Protocol):
    """A connection and at most one exchange on it.

    `start` begins an exchange and sets `done`'s result when it is over, well or badly: the verdict is in the exchange.
    `on_end` is called once when the connection can carry no further request.
    """

    __slots__ = (
        "_body",
        "_complete",
        "_ends",
        "_exchange",
        "_has_length",
        "_head_bytes",
        "_heads_done",
        "_keep_alive",
        "_last_ns",
        "_length",
        "_limits",
        "_loop",
        "_now_ns",
        "_on_end",
        "_parser",
        "_received",
        "_sending",
        "_start_ns",
        "_timer",
        "_transport",
        "_waiter",
        "closed",
        "on_body",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now_ns: NowNs, limits: Limits, on_end: Callable[["Connection"], None]
    ) -> None:
        self._loop = loop
        self._now_ns = now_ns
        self._limits = limits
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parser: HttpResponseParser | None = None
        # In one piece while it grows, and cut into reads at the end: a thousand streams of small pieces each would lie
        # scattered over all of the memory, and reading them again costs more than decoding them.
        self._body = bytearray()
        self._ends = array("q")
        self._length = 0
        # The parser calls this for each piece of body: a bound method of a list is C and costs no Python frame.
        self.on_body = self._body.extend
        self._timer: asyncio.TimerHandle | None = None
        self._start_ns = 0
        self._last_ns = 0
        self._sending = False
        self._received = False
        self._heads_done = False
        self._complete = False
        self._keep_alive = False
        self._has_length = False
        self._head_bytes = 0
        self.closed = False

    # -- life of a request

    def start(self, exchange: Exchange, head: bytes, body: Body) -> "asyncio.Future[None]":
        """Write a request; the future is done when the exchange is over. It is only ever cancelled from outside."""
        transport = self._transport
        assert transport is not None and self._exchange is None
        self._exchange = exchange
        self._parser = _new_parser(self)
        self._received = self._heads_done = self._complete = False
        self._sending = True
        self._head_bytes = 0
        self._start_ns = self._last_ns = self._now_ns()
        waiter = self._waiter = self._loop.create_future()
        # In parts and not joined: a large body is not copied.
        transport.writelines((head, body) if isinstance(body, bytes) else (head, *body))
        if self._exchange is not None and transport.get_write_buffer_size() == 0:
            self._sent()
        self._arm()
        return waiter

    @property
    def usable(self) -> bool:
        """True while idle and, as far as is known, open."""
        return (
            not self.closed and self._exchange is None and not (self._transport is None or self._transport.is_closing())
        )

    @property
    def silent(self) -> bool:
        """True when not one byte came back for the last request."""
        return not self._received

    def abort(self) -> None:
        """Close at once, without a word to the task that waits."""
        self._exchange = None
        self._forget()
        self._end_timer()
        self._ended()
        if self._transport is not None:
            self._transport.abort()

    def _sent(self) -> None:
        self._sending = False
        assert self._exchange is not None
        self._exchange.sent_ns = self._now_ns()

    def _finish(self, end_ns: int) -> None:
        """The response is whole."""
        exchange, transport = self._exchange, self._transport
        assert exchange is not None
        exchange.end_ns = end_ns
        self._hand_over(exchange)
        self._exchange = None
        self._end_timer()
        if not self._keep_alive or self._sending or transport is None or transport.is_closing():
            self._ended()
            if transport is not None:
                transport.abort() if self._sending else transport.close()
        self._wake()

    def _fail(self, error_class: str, error: str) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.error_class, exchange.error = error_class, error
        exchange.end_ns = self._now_ns()
        self._hand_over(exchange)
        self.abort()
        self._wake()

    def _hand_over(self, exchange: Exchange) -> None:
        """Give the body to the exchange, one piece for each read."""
        body, start = bytes(self._body), 0
        chunks = exchange.chunks
        for end in self._ends:
            chunks.append(body[start:end])
            start = end
        self._forget()

    def _forget(self) -> None:
        self._body.clear()
        self._ends = array("q")
        self._length = 0

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        self._parser = None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _ended(self) -> None:
        if not self.closed:
            self.closed = True
            self._on_end(self)

    # -- limits: one timer a request, which looks at the last read when it fires and sleeps for the rest

    def _arm(self) -> None:
        limits = [limit for limit in (self._limits.first_byte_s, self._limits.stall_s) if limit is not None]
        if limits and self._exchange is not None:
            self._timer = self._loop.call_later(min(limits), self._look)

    def _look(self) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        began = len(exchange.stamps) > 0
        limit_s = self._limits.stall_s if began else self._limits.first_byte_s
        if limit_s is None:
            self._arm()
            return
        since = self._last_ns if began else self._start_ns
        left_s = limit_s - (self._now_ns() - since) / 1e9
        if left_s > 0:
            if not began and self._limits.stall_s is not None:
                left_s = min(left_s, self._limits.stall_s)
            self._timer = self._loop.call_later(left_s, self._look)
        elif began:
            self._fail(failures.STALL_TIMEOUT, f"nothing came for {limit_s:g} s in the middle of the response")
        else:
            self._fail(failures.FIRST_BYTE_TIMEOUT, f"no byte of the response body within {limit_s:g} s")

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- asyncio.Protocol

    @property
    def awaiting(self) -> bool:
        """An exchange is open and no body has come yet."""
        return self._exchange is not None and not self._exchange.stamps

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Any byte left in the write buffer pauses us, and the resume tells when the last one was handed over."""
        self._transport = made = cast("asyncio.Transport", transport)
        # TLS transports pause at `size >= high`, plain ones at `size > high`.
        made.set_write_buffer_limits(high=1 if made.get_extra_info("ssl_object") is not None else 0, low=0)

    def pause_writing(self) -> None:
        """The write buffer holds something: `_sending` says so already."""

    def resume_writing(self) -> None:
        """The write buffer is empty again."""
        if self._sending and self._exchange is not None:
            self._sent()

    def data_received(self, data: bytes) -> None:
        """One read of the socket: one stamp."""
        exchange = self._exchange
        if exchange is None:
            # Nothing was asked: the server talks out of turn, so this connection cannot be trusted with a request.
            self.abort()
            return
        stamp = self._last_ns = self._now_ns()
        self._received = True
        error = None
        try:
            assert self._parser is not None
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            error = "the server switched protocols"
        except HttpParserError as broken:
            error = f"not a valid HTTP response: {broken}"
        length = len(self._body)
        if length > self._length:
            self._length = length
            exchange.stamps.append(stamp)
            self._ends.append(length)
        if self._complete:
            if error is not None:
                # More came than was announced: where the next response would begin is anyone's guess.
                self._keep_alive = False
            self._finish(stamp)
        elif error is not None:
            self._fail(failures.PROTOCOL_ERROR, error)
        elif not self._heads_done:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail(failures.PROTOCOL_ERROR, f"the response head is longer than {MAX_HEAD_BYTES >> 10} KiB")

    def eof_received(self) -> bool:
        """The server will send no more. Closing follows, and with it `connection_lost`, but not before all is sent."""
        if self._exchange is None:
            self._ended()
        elif self._sending:
            # It may never read the rest of our request; what it had to say is here.
            self._end_of_input(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends a response that lasts until the connection closes; breaks any other."""
        if self._exchange is not None and exc is not None:
            self._salvage()
        if self._exchange is not None:
            self._end_of_input(exc)
        self._ended()
        self._transport = None
        self._parser = None

    def _end_of_input(self, exc: Exception | None) -> None:
        """The response that is open gets no further byte."""
        if exc is None and self._heads_done and not self._has_length:
            self._keep_alive = False
            self._finish(self._now_ns())
        elif exc is None:
            where = "in the middle of the response" if self._received else "without an answer"
            self._fail(failures.CONNECTION_RESET, f"the server closed the connection {where}")
        else:
            where = "in the middle of the response" if self._received else "before any answer"
            self._fail(failures.CONNECTION_RESET, f"the connection broke {where}: {_reason(exc)}")

    def _salvage(self) -> None:
        """Read what the kernel still holds after a failed write: servers answer early (413, 429) and then close."""
        transport = self._transport
        sock = transport.get_extra_info("socket") if transport is not None else None
        if sock is None or transport is None or transport.get_extra_info("ssl_object") is not None:
            return
        try:
            with socket.socket(fileno=os.dup(sock.fileno())) as again:
                again.setblocking(False)
                taken = 0
                while self._exchange is not None and taken < _SALVAGE_BYTES:
                    data = again.recv(65_536)
                    if not data:
                        return
                    taken += len(data)
                    self.data_received(data)
        except OSError:
            return

    # -- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or after the body a trailer, which is left out."""
        if self._heads_done or self._exchange is None:
            return
        lower = name.lower()
        if lower == b"content-length" or (lower == b"transfer-encoding" and value.lower().endswith(b"chunked")):
            self._has_length = True
        self._exchange.headers.append((lower.decode("latin-1"), value.decode("latin-1")))

    def on_message_begin(self) -> None:
        """A status line; an interim response (1xx) is followed by another one, and nothing follows the real one."""
        if self._complete:
            raise ValueError("a second response to one request")
        self._has_length = False
        if self._exchange is not None and not self._heads_done:
            self._exchange.headers.clear()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        assert self._parser is not None and self._exchange is not None
        status = self._parser.get_status_code()
        if status >= 200:
            self._heads_done = True
            self._exchange.status = status
            self._keep_alive = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        """The end of the message, by its own framing."""
        if self._heads_done:
            self._complete = True


def _new_parser(connection: Connection) -> HttpResponseParser:
    """A parser that forgives what other clients forgive.

    That is both framings at once, line ends without CR in a head, folded headers, and spaces behind a chunk's size.
    """
    parser = HttpResponseParser(connection)
    parser.set_dangerous_leniencies(
        lenient_chunked_length=True,
        lenient_optional_cr_before_lf=True,
        lenient_headers=True,
        lenient_spaces_after_chunk_size=True,
    )
    return parser


def _reason(error: BaseException) -> str:
    return (
        os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error) or type(error).__name__
    )
