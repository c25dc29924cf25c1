"""Requests as the reference server reads them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.yardstick.http_in import MAX_BODY, MAX_HEAD, Reader, Refused, Request, read_ask

BODY = b'{"model":"m","messages":[],"stream":true,"max_tokens":7}'
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Request-ID: r-1\r\ncontent-LENGTH:  %d \r\n\r\n" % len(BODY)
) + BODY
GET = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: Close\r\n\r\n"


def _all(reader: Reader) -> list[Request]:
    found = []
    while (request := reader.next()) is not None:
        found.append(request)
    return found


def test_a_request_is_read_whole_or_not_at_all() -> None:
    reader = Reader()
    reader.feed(POST[:-1])
    assert reader.next() is None
    reader.feed(POST[-1:] + GET)
    assert _all(reader) == [
        Request("POST", "/v1/chat/completions", "r-1", BODY, False),
        Request("GET", "/v1/models", "", b"", True),
    ]


@given(cuts=st.lists(st.integers(0, len(POST * 2 + GET)), max_size=12))
def test_any_split_gives_the_same_requests(cuts: list[int]) -> None:
    data = POST * 2 + GET
    edges = [0, *sorted(cuts), len(data)]
    reader, found = Reader(), []
    for start, end in itertools.pairwise(edges):
        reader.feed(data[start:end])
        found += _all(reader)
    assert [r.method for r in found] == ["POST", "POST", "GET"]
    assert [r.body for r in found] == [BODY, BODY, b""]


@given(
    parts=st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"\r\n", b"\r\n\r\n", b"GET / HTTP/1.1", POST])))
)
def test_no_bytes_do_more_than_refuse(parts: list[bytes]) -> None:
    reader = Reader()
    try:
        for part in parts:
            reader.feed(part)
            for request in _all(reader):
                read_ask(request.body)
    except Refused as refused:
        assert 400 <= int(refused.status.split()[0]) < 500


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 1_0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (b"POST / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", 411),
        (b"G" * (MAX_HEAD + 1), 431),
    ],
)
def test_what_is_refused_and_how(data: bytes, status: int) -> None:
    reader = Reader()
    reader.feed(data)
    with pytest.raises(Refused) as refused:
        reader.next()
    assert int(refused.value.status.split()[0]) == status


def test_more_than_any_request_may_have_is_refused() -> None:
    reader = Reader()
    with pytest.raises(Refused, match="413"):
        reader.feed(bytes(MAX_HEAD + MAX_BODY + 1))


@pytest.mark.parametrize(
    ("head", "close"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", False),
    ],
)
def test_keep_alive(head: bytes, close: bool) -> None:
    reader = Reader()
    reader.feed(head)
    request = reader.next()
    assert request is not None
    assert request.close is close


def test_expect_continue_is_told_once() -> None:
    reader = Reader()
    reader.feed(b"POST / HTTP/1.1\r\nexpect: 100-Continue\r\ncontent-length: 2\r\n\r\n")
    assert reader.next() is None
    assert reader.continued


def test_what_a_body_asks_for() -> None:
    ask = read_ask(b'{"stream":true,"max_tokens":5,"max_completion_tokens":9,"stream_options":{"include_usage":true}}')
    assert (ask.limit, ask.usage) == (9, True)
    assert (read_ask(BODY).limit, read_ask(BODY).usage) == (7, False)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"stream":false}', b'{"stream":true,"max_tokens":0}', b'{"stream":true,"max_tokens":"5"}'],
)
def test_bodies_that_are_refused(body: bytes) -> None:
    with pytest.raises(Refused, match="400"):
        read_ask(body)
