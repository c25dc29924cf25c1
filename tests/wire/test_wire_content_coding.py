"""Compressed replies: decoded read by read, whatever the coding and the cuts, and refused where that cannot be."""

import gzip
import zlib
from array import array

import pytest
from direct import split_at
from hypothesis import given
from hypothesis import strategies as st

from agentperf.wire import content_coding, failures
from agentperf.wire.content_coding import codings, undo
from agentperf.wire.exchange import Exchange

TEXT = b"data: one\n\ndata: two\n\n" * 20


def exchange_of(chunks: list[bytes], *headers: tuple[str, str]) -> Exchange:
    stamps = array("q", range(1, len(chunks) + 1))
    return Exchange(0, 99, status=200, headers=list(headers), stamps=stamps, chunks=chunks)


def undone(chunks: list[bytes], *coding: str, name: str = "content-encoding") -> Exchange:
    exchange = exchange_of(chunks, *((name, value) for value in coding))
    undo(exchange)
    assert len(exchange.chunks) == len(exchange.stamps) == len(chunks)
    return exchange


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKED = {
    "gzip": gzip.compress(TEXT),
    "x-gzip": gzip.compress(TEXT),
    "GZip": gzip.compress(TEXT),
    "deflate": zlib.compress(TEXT),
    "Deflate": raw_deflate(TEXT),
    "gzip, gzip": gzip.compress(gzip.compress(TEXT)),
    "deflate, gzip": gzip.compress(zlib.compress(TEXT)),
    "gzip, deflate": zlib.compress(gzip.compress(TEXT)),
    "identity, gzip": gzip.compress(TEXT),
    "identity": TEXT,
    "": TEXT,
}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], []),
        ([("content-encoding", "identity")], []),
        ([("content-encoding", " GZIP ,, br")], ["gzip", "br"]),
        ([("content-encoding", "gzip"), ("x", "br"), ("content-encoding", "deflate")], ["gzip", "deflate"]),
        ([("transfer-encoding", "chunked")], []),
        ([("transfer-encoding", "gzip, chunked"), ("content-encoding", "br")], ["br", "gzip"]),
        ([("content-encoding", "utf-8")], []),
    ],
)
def test_codings(headers: list[tuple[str, str]], expected: list[str]) -> None:
    assert codings(headers) == expected


@pytest.mark.parametrize("coding", PACKED)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_any_cut_decodes_to_the_same(coding: str, cuts: list[int]) -> None:
    exchange = undone(split_at(PACKED[coding], cuts), coding)
    assert b"".join(exchange.chunks) == TEXT and exchange.error_class is None


def test_what_was_flushed_belongs_to_its_read() -> None:
    packer = zlib.compressobj(wbits=31)
    reads = [packer.compress(b"data: %d\n\n" % n) + packer.flush(zlib.Z_SYNC_FLUSH) for n in range(5)]
    assert undone(reads, "gzip").chunks == [b"data: %d\n\n" % n for n in range(5)]
    halves = [part for read in reads for part in (read[:-1], read[-1:])]
    whole = undone(halves, "gzip").chunks
    assert b"".join(whole[:2]) == b"data: 0\n\n" and b"".join(whole[:4]) == b"data: 0\n\ndata: 1\n\n"


def test_transfer_coding_is_taken_off_first() -> None:
    exchange = exchange_of([gzip.compress(zlib.compress(TEXT))], ("content-encoding", "deflate"))
    exchange.headers.append(("transfer-encoding", "gzip, chunked"))
    undo(exchange)
    assert exchange.chunks == [TEXT]


def test_members_and_padding() -> None:
    one, two = gzip.compress(b"one"), gzip.compress(b"two")
    assert undone([one + two], "gzip").chunks == [b"onetwo"]
    assert undone([one, two, b"\0\0\0", b"\0"], "gzip").chunks == [b"one", b"two", b"", b""]
    assert undone([one + b"\0\0"], "gzip").chunks == [b"one"]
    assert undone([zlib.compress(b"one") + b"\x1fjunk"], "deflate").chunks == [b"one"]


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "x-snappy-framed", "exi", "gzip, br", "br, gzip"])
def test_an_unknown_coding_is_named(coding: str) -> None:
    exchange = undone([b"abc", b"def"], coding)
    unknown = next(part for part in coding.split(", ") if part != "gzip")
    assert exchange.error_class == failures.CONTENT_ENCODING
    assert exchange.error is not None and repr(unknown) in exchange.error and "turn compression off" in exchange.error
    assert exchange.chunks == [b"", b""], "bytes that mean nothing are not taken for a reply"


def test_damage_keeps_what_came_before_it() -> None:
    packer = zlib.compressobj(wbits=31)
    first = packer.compress(b"good") + packer.flush(zlib.Z_SYNC_FLUSH)
    exchange = undone([first, b"\xff" * 40, b"more"], "gzip")
    assert exchange.chunks == [b"good", b"", b""]
    assert exchange.error_class == failures.CONTENT_ENCODING


def test_cut_off_is_no_failure_of_the_coding() -> None:
    packed = gzip.compress(TEXT)
    for length in range(len(packed)):
        exchange = undone([packed[:length]] if length else [], "gzip")
        assert exchange.error_class is None
        assert TEXT.startswith(b"".join(exchange.chunks))


@pytest.mark.parametrize("coding", ["gzip", "deflate", "gzip, gzip"])
def test_a_bomb_is_defused(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_coding, "MAX_DECODED_BYTES", 1_000_000)
    bomb = b"\0" * 900_000
    pack = zlib.compress if coding == "deflate" else gzip.compress
    fits, bursts = pack(bomb), pack(bomb + bomb)
    if "," in coding:
        fits, bursts = pack(fits), pack(bursts)
    assert undone([fits], coding).error_class is None
    exchange = undone([bursts], coding)
    assert exchange.error_class == failures.CONTENT_ENCODING and "larger than" in (exchange.error or "")
    assert sum(map(len, exchange.chunks)) <= 1_000_000


@given(st.lists(st.binary(max_size=40), max_size=5), st.sampled_from(["gzip", "deflate", "gzip, deflate"]))
def test_any_bytes(chunks: list[bytes], coding: str) -> None:
    exchange = undone(chunks, coding)
    assert exchange.error_class in (None, failures.CONTENT_ENCODING)
    assert exchange.error is None or "\n" not in exchange.error
