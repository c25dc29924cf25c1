"""The reference server's loop, driven turn by turn with a clock that the test moves."""

import json
import selectors
import socket
from collections.abc import Iterator

import pytest

from agentperf.yardstick.reply import MASK, TOKENS, Pace
from agentperf.yardstick.rows import Row
from agentperf.yardstick.server import BURST, ReferenceServer

MS = 1_000_000
PACE = Pace(tps=50, ttft_ms=200, tokens=5)


class Bench:
    """A server, its clock, and clients."""

    def __init__(self, pace: Pace) -> None:
        self.now = 1_000 * MS
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.server = ReferenceServer(self.listener, pace, lambda: self.now)
        self.server._wait = self._look
        self.clients: list[socket.socket] = []

    def _look(self, limit_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        """The bytes are on their way through the loopback; the clock stands still meanwhile."""
        del limit_s
        return self.server.selector.select(0.005)

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        client = socket.socket()
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.connect(self.listener.getsockname())
        client.setblocking(False)
        self.clients.append(client)
        self.turns()
        return client

    def turns(self, count: int = 3) -> None:
        for _ in range(count):
            self.server.turn()

    def at(self, ms: float) -> None:
        """Move the clock to `ms` after the start, and let the server work."""
        self.now = 1_000 * MS + round(ms * MS)
        self.turns()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(PACE)
    yield made
    made.close()


def post(request_id: str = "a", extra: bytes = b"", **fields: object) -> bytes:
    body = json.dumps({"stream": True, "messages": [], **fields}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nx-request-id: %b\r\ncontent-length: %d\r\n%b\r\n"
    return head % (request_id.encode(), len(body), extra) + body


def read(client: socket.socket) -> bytes:
    data = b""
    try:
        while part := client.recv(1 << 20):
            data += part
    except BlockingIOError:
        pass
    return data


def tokens_in(data: bytes) -> int:
    return sum(data.count(b'"content":' + json.dumps(word).encode()) for word in {_word(event) for event in TOKENS})


def _word(event: bytes) -> str:
    chunk = json.loads(event.split(b"data: ")[1].split(b"\n\n")[0])
    return str(chunk["choices"][0]["delta"]["content"])


def test_each_token_goes_out_when_it_is_due_and_not_before(bench: Bench) -> None:
    client = bench.connect()
    client.send(post())
    bench.turns()
    head = read(client)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.endswith(b"\r\n\r\n")
    bench.at(199)
    assert read(client) == b""
    for index in range(5):
        bench.at(200 + 20 * index - 0.001)
        assert tokens_in(read(client)) == 0, f"token {index} was early"
        bench.at(200 + 20 * index)
        data = read(client)
        assert tokens_in(data) == 1, f"token {index}"
        assert (b'"role":"assistant"' in data) == (index == 0)
        assert (b"[DONE]" in data) == (index == 4)
    (row,) = bench.server.take_rows()
    start = 1_000 * MS
    assert row == Row(
        id="a",
        outcome="ok",
        received_ns=start,
        first_ns=start + 200 * MS,
        last_ns=start + 280 * MS,
        done_ns=start + 280 * MS,
        first_due_ns=start + 200 * MS,
        last_due_ns=start + 280 * MS,
        tokens=5,
        blocked=0,
    )
    assert row.speed_tps == 50
    assert row.late_ns == 0
    assert bench.server.take_rows() == []


def test_a_late_server_catches_up_and_its_deadlines_do_not_drift(bench: Bench) -> None:
    client = bench.connect()
    client.send(post(max_tokens=9))
    bench.turns()
    bench.at(200)
    bench.at(307)  # five tokens are due, the latest since 7 ms
    assert tokens_in(read(client)) == 1 + 5
    bench.at(319.9)
    assert tokens_in(read(client)) == 0
    bench.at(320)
    assert tokens_in(read(client)) == 1
    bench.at(370)
    (row,) = bench.server.take_rows()
    assert row.last_due_ns - row.first_due_ns == 8 * 20 * MS
    assert row.late_ns == 10 * MS, "the last token was due at 360 ms"
    assert row.tokens == 9


def test_streams_are_served_in_the_order_of_their_deadlines(bench: Bench) -> None:
    first, second = bench.connect(), bench.connect()
    first.send(post("first", max_tokens=3))
    bench.turns()
    bench.at(10)
    second.send(post("second", max_tokens=3))
    bench.turns()
    for ms in (200, 210, 220, 230, 240):
        bench.at(ms)
    assert [(row.id, row.outcome) for row in bench.server.take_rows()] == [("first", "ok"), ("second", "open")]
    bench.at(250)
    (row,) = bench.server.take_rows()
    assert row.id == "second"
    assert row.first_due_ns == 1_000 * MS + 210 * MS
    assert row.late_ns == 0


def test_a_new_stream_is_merged_among_those_that_run(bench: Bench) -> None:
    """A first token that is due before the others' next ones goes out before them, also when all are overdue."""
    a, b = bench.connect(), bench.connect()
    a.send(post("a", max_tokens=20))
    bench.turns()
    bench.at(195)
    b.send(post("b", max_tokens=2))
    bench.turns()
    bench.at(500)
    rows = bench.server.take_rows()
    assert {row.id: row.outcome for row in rows} == {"b": "ok", "a": "open"}
    assert tokens_in(read(a)) == 16
    assert tokens_in(read(b)) == 2


def test_no_more_than_a_burst_between_two_looks_at_the_sockets() -> None:
    bench = Bench(Pace(tps=1000, ttft_ms=0, tokens=3 * BURST))
    try:
        client = bench.connect()
        client.send(post())
        bench.turns()
        before = bench.server.work().tokens
        bench.now += 10_000 * MS
        bench.server.turn()
        assert bench.server.work().tokens - before == BURST
        bench.turns()
        assert [row.tokens for row in bench.server.take_rows()] == [3 * BURST]
        assert bench.server.work().tokens == 3 * BURST
    finally:
        bench.close()


def test_a_client_that_does_not_read_is_told_from_a_slow_server() -> None:
    count = 20_000
    bench = Bench(Pace(tps=1000, ttft_ms=0, tokens=count))
    try:
        client = bench.connect(receive_buffer=4096)
        (connection,) = bench.server._connections
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.send(post())
        bench.turns()
        bench.now += 60_000 * MS
        bench.turns(count // BURST + 5)
        (row,) = bench.server.take_rows()
        assert row.outcome == "open"
        assert row.blocked > 0
        data = read(client)
        for _ in range(20_000):
            bench.server.turn()
            data += read(client)
            if data.endswith(b"0\r\n\r\n"):
                break
        (row,) = bench.server.take_rows()
        assert (row.outcome, row.tokens) == ("ok", count)
        assert row.blocked > 0
        assert tokens_in(data) == count, "nothing is lost, doubled or out of place"
    finally:
        bench.close()


def test_the_firehose_sends_the_whole_reply_at_once() -> None:
    bench = Bench(Pace(tps=0, ttft_ms=5, tokens=3000))
    try:
        client = bench.connect()
        client.send(post())
        bench.turns()
        assert tokens_in(read(client)) == 0
        bench.at(5)
        data = b""
        for _ in range(2000):
            bench.server.turn()
            data += read(client)
            if data.endswith(b"0\r\n\r\n"):
                break
        assert tokens_in(data) == 3000
        (row,) = bench.server.take_rows()
        assert (row.outcome, row.tokens, row.last_due_ns) == ("ok", 3000, 0)
        assert row.late_ns == 0
        # The connection serves the next request as well.
        client.send(post("b", max_tokens=1))
        bench.turns()
        bench.at(20)
        assert tokens_in(read(client)) == 1
    finally:
        bench.close()


@pytest.mark.parametrize("count", [1, 2, 40])
def test_replies_of_any_length(bench: Bench, count: int) -> None:
    client = bench.connect()
    client.send(post(max_tokens=count, stream_options={"include_usage": True}))
    bench.turns()
    bench.at(200)
    bench.at(200 + 20 * (count - 1))
    data = read(client)
    assert tokens_in(data) == count
    assert f'"completion_tokens":{count}}}'.encode() in data
    (row,) = bench.server.take_rows()
    assert (row.tokens, row.late_ns) == (count, 0)
    assert (row.speed_tps is None) == (count == 1)


def test_the_words_of_a_reply_are_in_order(bench: Bench) -> None:
    client = bench.connect()
    client.send(post(max_tokens=40))
    bench.turns()
    bench.at(200)
    bench.at(2000)
    events = read(client).split(b"data: ")
    words = [json.loads(e.split(b"\n\n")[0])["choices"][0]["delta"].get("content") for e in events[1:-1]]
    assert [w for w in words if w] == [_word(TOKENS[i & MASK]) for i in range(40)]


def test_requests_on_one_connection_wait_for_each_other(bench: Bench) -> None:
    client = bench.connect()
    client.send(post("one", max_tokens=1) + post("two", max_tokens=1))
    bench.turns()
    bench.at(200)
    assert [(row.id, row.outcome) for row in bench.server.take_rows()] == [("one", "ok"), ("two", "open")]
    bench.at(400)
    (row,) = bench.server.take_rows()
    assert (row.id, row.outcome, row.received_ns) == ("two", "ok", 1_200 * MS)


def test_a_client_that_leaves(bench: Bench) -> None:
    client = bench.connect()
    client.send(post())
    bench.turns()
    bench.at(220)
    client.close()
    bench.turns()
    (row,) = bench.server.take_rows()
    assert (row.outcome, row.tokens, row.speed_tps) == ("abort", 2, None)
    bench.at(600)
    assert bench.server.take_rows() == []
    other = bench.connect()
    other.send(post("after", max_tokens=1))
    bench.turns()
    bench.at(900)
    assert [row.id for row in bench.server.take_rows()] == ["after"]


def test_connection_close(bench: Bench) -> None:
    client = bench.connect()
    client.send(post(extra=b"connection: close\r\n", max_tokens=1))
    bench.turns()
    bench.at(200)
    assert b"connection: close" in read(client)
    client.setblocking(True)
    client.settimeout(2)
    assert client.recv(10) == b"", "the server has closed it"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /v1/models HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", b"400 Bad Request"),
        (b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"411 Length Required"),
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
    ],
)
def test_plain_answers(bench: Bench, data: bytes, status: bytes) -> None:
    client = bench.connect()
    client.send(data)
    bench.turns()
    answer = read(client)
    assert answer.startswith(b"HTTP/1.1 " + status)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: %d" % len(body) in head
    assert json.loads(body)
    assert (b"connection: close" in head) == (status[:1] == b"4" and status[:3] != b"404")


def test_expect_continue(bench: Bench) -> None:
    client = bench.connect()
    data = post(extra=b"expect: 100-continue\r\n", max_tokens=1)
    head, body = data.split(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    bench.turns()
    assert read(client) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(body)
    bench.turns()
    assert read(client).startswith(b"HTTP/1.1 200 OK")
