"""The reference server: streams at an exact pace, and stamps the first and the last token of each right before send().

One thread, non-blocking sockets, no event loop library and no task a stream: a client's load generator is held against
it, so it must be cheaper a token than that client is. All streams of a server have one pace, so the tokens that are due
form a queue that is in order by itself: a stream whose token was sent goes to its end with a deadline one interval
later. Deadlines are absolute and do not drift; a late token delays no other. The events of a reply are made ahead.
"""

import selectors
import socket
import time
from collections import deque

from agentperf.clock import NowNs, monotonic_ns
from agentperf.yardstick.http_in import Ask, Reader, Refused, Request, read_ask
from agentperf.yardstick.reply import HEAD, MASK, MODEL, ROLE, TOKENS, Pace, ending, plain_answer
from agentperf.yardstick.rows import Row, Work
from agentperf.yardstick.wait import fine_wait

BURST = 256
"""Tokens sent between two looks at the sockets, so that a request never waits long for a server that is behind."""
ACCEPTS = 256
FIREHOSE_BYTES = 64 * 1024
IDLE_S = 0.25
READ_BYTES = 256 * 1024
LAST_WAIT_S = 50e-6
"""Shortest sleep: what becomes due meanwhile goes out together, and the server is this late at most."""

_CHAT = "/chat/completions"


class Connection:
    """A connection and the stream on it, if one is open."""

    __slots__ = (
        "blocked", "close", "deadline", "end", "final", "first_due_ns", "first_ns", "gone", "id", "index",
        "last_due_ns", "last_ns", "pending", "reader", "received_ns", "send", "sock", "streaming",
    )  # fmt: skip

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.send = sock.send
        self.reader = Reader()
        self.pending = bytearray()
        self.deadline = self.received_ns = self.first_ns = self.last_ns = self.first_due_ns = self.last_due_ns = 0
        self.index = self.end = self.blocked = 0
        self.final = b""
        self.id = ""
        self.streaming = self.close = self.gone = False

    def row(self, outcome: str, done_ns: int) -> Row:
        """The log's row of the stream."""
        return Row(
            self.id, outcome, self.received_ns, self.first_ns, self.last_ns, done_ns, self.first_due_ns,
            self.last_due_ns, self.index, self.blocked,
        )  # fmt: skip


class ReferenceServer:
    """Serves a listening socket at one pace. `turn` does what is due and waits for what comes next."""

    def __init__(self, listener: socket.socket, pace: Pace, now_ns: NowNs = monotonic_ns) -> None:
        self.pace = pace
        self.selector = selectors.DefaultSelector()
        self._wait = fine_wait(self.selector)
        self._now_ns = now_ns
        self._listener = listener
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, None)
        self._starting: deque[Connection] = deque()
        self._due: deque[Connection] = deque()
        self._connections: set[Connection] = set()
        self._rows: list[Row] = []
        self._tokens = 0

    # -- what it tells

    def work(self) -> Work:
        """CPU time of the process, and tokens sent."""
        return Work(time.process_time(), self._tokens)

    def take_rows(self) -> list[Row]:
        """Rows of the requests that have ended since the last call, and of those that are open."""
        rows, self._rows = self._rows, []
        return rows + [c.row("open", 0) for c in self._connections if c.streaming]

    # -- the loop

    def turn(self) -> list[selectors.SelectorKey]:
        """One round: wait, serve the sockets, send what is due. Returns the ready keys that others registered."""
        foreign = []
        for key, mask in self._wait(self._idle_s()):
            if key.data is None and key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, Connection):
                if mask & selectors.EVENT_WRITE:
                    self._writable(key.data)
                if mask & selectors.EVENT_READ and not key.data.gone:
                    self._readable(key.data)
            else:
                foreign.append(key)
        self._emit()
        return foreign

    def close(self) -> None:
        """Close all sockets."""
        for connection in list(self._connections):
            self._drop(connection)
        self.selector.close()
        self._listener.close()

    def _idle_s(self) -> float:
        """Until the next deadline; 0 when it has passed."""
        heads = [queue[0].deadline for queue in (self._starting, self._due) if queue]
        if not heads:
            return IDLE_S
        left_s = (min(heads) - self._now_ns()) / 1e9
        return 0.0 if left_s <= 0 else min(IDLE_S, max(LAST_WAIT_S, left_s))

    def _emit(self) -> None:
        """Send the tokens whose deadlines have passed, in their order, `BURST` at most."""
        due, starting, clock = self._due, self._starting, self._now_ns
        interval = self.pace.interval_ns
        now = clock()
        sent = 0
        while sent < BURST and (due or starting):
            if starting and (not due or starting[0].deadline < due[0].deadline):
                if starting[0].deadline > now and starting[0].deadline > (now := clock()):
                    break
                self._first_token(starting.popleft())
                sent += 1
                continue
            stream = due[0]
            if stream.deadline > now and stream.deadline > (now := clock()):
                break
            due.popleft()
            sent += 1
            if stream.index == stream.end:
                self._last_token(stream)
                continue
            data = TOKENS[stream.index & MASK]
            stream.index += 1
            try:
                if stream.pending:
                    stream.pending += data
                elif (taken := stream.send(data)) < len(data):
                    self._hold_back(stream, data[taken:])
            except BlockingIOError:
                self._hold_back(stream, data)
            except OSError:
                self._lost(stream)
                continue
            stream.deadline += interval
            due.append(stream)
        self._tokens += sent

    # -- the life of a stream

    def _begin(self, connection: Connection, request: Request, ask: Ask) -> None:
        """Answer the head at once, and put the first token on the calendar."""
        now = self._now_ns()
        tokens = ask.limit or self.pace.tokens
        c = connection
        c.id, c.close, c.streaming, c.received_ns, c.blocked = request.id, request.close, True, now, 0
        c.index, c.end, c.first_ns, c.last_ns, c.last_due_ns = 0, tokens - 1, 0, 0, 0
        c.deadline = c.first_due_ns = now + self.pace.ttft_ns
        c.final = TOKENS[c.end & MASK] + ending(len(request.body) // 4, tokens, usage=ask.usage)
        if self._write(c, HEAD + (b"connection: close\r\n\r\n" if c.close else b"\r\n")):
            self._starting.append(c)

    def _first_token(self, stream: Connection) -> None:
        if stream.gone:
            return
        stream.first_ns = self._now_ns()
        if stream.end == 0:
            stream.last_due_ns, stream.last_ns = stream.first_due_ns, stream.first_ns
            self._write(stream, ROLE + stream.final)
            stream.index = 1
            self._maybe_done(stream)
            return
        alive = self._write(stream, ROLE + TOKENS[0])
        stream.index = 1
        if not alive:
            return
        if self.pace.interval_ns:
            stream.deadline += self.pace.interval_ns
            self._due.append(stream)
        else:
            self._watch(stream, write=True)

    def _last_token(self, stream: Connection) -> None:
        if stream.gone:
            return
        stream.last_due_ns = stream.deadline
        stream.last_ns = self._now_ns()
        stream.index += 1
        self._write(stream, stream.final)
        self._maybe_done(stream)

    def _maybe_done(self, stream: Connection) -> None:
        """The last token has been handed over, and nothing is held back: the answer is whole."""
        if stream.gone or not stream.streaming or stream.pending or stream.index <= stream.end:
            return
        self._rows.append(stream.row("ok", self._now_ns()))
        stream.streaming = False
        if stream.close:
            self._drop(stream)
        else:
            self._requests(stream)

    def _fill(self, stream: Connection) -> None:
        """The firehose: add events to what is held back, up to a block."""
        while len(stream.pending) < FIREHOSE_BYTES and stream.index < stream.end:
            stream.pending += TOKENS[stream.index & MASK]
            stream.index += 1
            self._tokens += 1
        if stream.index == stream.end and len(stream.pending) < FIREHOSE_BYTES:
            stream.pending += stream.final
            stream.index += 1
            self._tokens += 1

    # -- bytes out

    def _write(self, c: Connection, data: bytes) -> bool:
        """Hand over `data`, behind what is held back. False when the client has left."""
        if c.pending:
            c.pending += data
            return True
        try:
            taken = c.send(data)
        except BlockingIOError:
            taken = 0
        except OSError:
            self._lost(c)
            return False
        if taken < len(data):
            self._hold_back(c, data[taken:])
        return True

    def _hold_back(self, c: Connection, data: bytes) -> None:
        c.pending += data
        c.blocked += 1
        self._watch(c, write=True)

    def _writable(self, c: Connection) -> None:
        firehose = c.streaming and not self.pace.interval_ns and c.index > 0
        if firehose:
            self._fill(c)
        stamp = self._now_ns()
        try:
            taken = c.send(c.pending) if c.pending else 0
        except BlockingIOError:
            return
        except OSError:
            self._lost(c)
            return
        del c.pending[:taken]
        if c.pending:
            return
        if c.streaming and c.index > c.end:
            c.last_ns = stamp
            self._watch(c, write=False)
            self._maybe_done(c)
        elif not firehose:
            self._watch(c, write=False)
            if not c.streaming and c.close:
                self._drop(c)

    def _watch(self, c: Connection, *, write: bool) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        self.selector.modify(c.sock, events, c)

    # -- bytes in

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, _address = self._listener.accept()
            except OSError:  # nobody waits, or no descriptor is left: the client sees it by itself
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock)
            self._connections.add(connection)
            self.selector.register(sock, selectors.EVENT_READ, connection)

    def _readable(self, c: Connection) -> None:
        try:
            data = c.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost(c)
            return
        try:
            c.reader.feed(data)
        except Refused as refused:
            self._refuse(c, refused)
            return
        self._requests(c)

    def _requests(self, c: Connection) -> None:
        """Serve what has been read whole; a request behind an open stream waits for its end."""
        while not (c.streaming or c.gone or c.close):
            try:
                request = c.reader.next()
                if c.reader.continued:
                    c.reader.continued = False
                    self._write(c, b"HTTP/1.1 100 Continue\r\n\r\n")
                if request is None:
                    return
                if request.method == "POST" and request.path.endswith(_CHAT):
                    self._begin(c, request, read_ask(request.body))
                else:
                    self._plain(c, request)
            except Refused as refused:
                self._refuse(c, refused)

    def _plain(self, c: Connection, request: Request) -> None:
        c.close = request.close
        if request.method == "GET" and request.path.endswith("/models"):
            document: object = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
            self._answer(c, plain_answer("200 OK", document, close=c.close))
        else:
            self._answer(c, plain_answer("404 Not Found", {"error": {"message": "no such path"}}, close=c.close))

    def _refuse(self, c: Connection, refused: Refused) -> None:
        c.close = True
        if not c.streaming:
            self._answer(c, plain_answer(refused.status, {"error": {"message": refused.status}}, close=True))

    def _answer(self, c: Connection, data: bytes) -> None:
        self._write(c, data)
        if c.close and not c.pending and not c.gone:
            self._drop(c)

    def _lost(self, c: Connection) -> None:
        """The client has left."""
        if c.streaming:
            self._rows.append(c.row("abort", self._now_ns()))
        self._drop(c)

    def _drop(self, c: Connection) -> None:
        if c.gone:
            return
        c.gone, c.streaming = True, False
        self._connections.discard(c)
        self.selector.unregister(c.sock)
        c.sock.close()
