"""The connection without sockets: however the bytes of a response are cut, cut off or damaged, the outcome stands.

A clock that ticks once a read makes stamps exact: an event belongs to the read that brought its last byte.
"""

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from direct import TICK_NS, exchange_over, response_bytes, split_at
from hypothesis import example, given, settings
from hypothesis import strategies as st
from playing import check_outcome, record_of
from scripted import Reply, Step
from wire_scenario import Scenario, chunk, load_all

from agentperf.measure.derive import seconds
from agentperf.wire import chat, content_coding, failures
from agentperf.wire.exchange import Exchange
from agentperf.wire.outcome import Outcome

LIMITED = {failures.STALL_TIMEOUT, failures.FIRST_BYTE_TIMEOUT}


def silent(scenario: Scenario) -> bool:
    return any(step.fault == "silence" for step in scenario.reply.steps)


ALL = [s for s in load_all() if not silent(s)]
SMALL = [s for s in ALL if len(s.body) < 20_000]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def end_of(scenario: Scenario) -> Exception | None:
    reset = any(step.fault == "rst" for step in scenario.reply.steps)
    return ConnectionResetError(104, "Connection reset by peer") if reset else None


def folded(reads: list[bytes], end: Exception | None, loop: asyncio.AbstractEventLoop) -> tuple[Exchange, Outcome]:
    exchange, _ = exchange_over(reads, end, loop=loop)
    content_coding.undo(exchange)
    return exchange, chat.fold(exchange)


def timeless(out: Outcome) -> dict[str, Any]:
    """But for stamps, and what hangs on them."""
    value = msgspec.to_builtins(out)
    return {name: field for name, field in value.items() if name != "n1_share" and not name.endswith("_ns")}


def sane(exchange: Exchange, out: Outcome) -> None:
    """What holds for every outcome, and for the record that is made of it."""
    assert out.outcome in ("ok", "failed")
    assert (out.outcome == "ok") == (out.error_class is None) == (out.error is None)
    assert out.error_class is None or out.error_class in failures.MEANINGS
    assert out.error is None or (out.error and "\n" not in out.error and len(out.error) < 500)
    assert len(exchange.stamps) == len(exchange.chunks)
    if out.outcome == "ok":
        assert out.visible_ns and out.status is not None and 200 <= out.status < 300
    record = record_of(exchange, out)
    msgspec.json.encode(record)
    assert (record.ttft_s is not None) == (out.outcome == "ok")
    for value in (record.ttft_s, record.ttfo_s, record.speed_tps, record.e2e_s, record.e2e_tps, record.itl_s):
        assert value is None or 0 < value < float("inf")
    if out.message is not None:
        chat.encode_message(out.message)


@pytest.mark.parametrize("scenario", ALL, ids=str)
def test_in_one_read(scenario: Scenario, loop: asyncio.AbstractEventLoop) -> None:
    """The expectations of the sockets hold without them."""
    exchange, out = folded([response_bytes(scenario.reply)], end_of(scenario), loop)
    check_outcome(scenario.expect, out)
    sane(exchange, out)


@pytest.mark.parametrize("scenario", SMALL, ids=str)
def test_in_single_bytes(scenario: Scenario, loop: asyncio.AbstractEventLoop) -> None:
    data = response_bytes(scenario.reply)
    exchange, out = folded([data[i : i + 1] for i in range(len(data))], end_of(scenario), loop)
    check_outcome(scenario.expect, out)
    sane(exchange, out)


@settings(max_examples=500)
@given(st.sampled_from(SMALL), st.lists(st.integers(0, 20_000), max_size=12))
def test_any_split_gives_the_same_outcome(scenario: Scenario, cuts: list[int]) -> None:
    loop = asyncio.new_event_loop()
    data = response_bytes(scenario.reply)
    _, one = folded([data], end_of(scenario), loop)
    exchange, out = folded(split_at(data, cuts), end_of(scenario), loop)
    loop.close()
    assert timeless(out) == timeless(one)
    assert len(out.visible_ns) == len(one.visible_ns)
    sane(exchange, out)


PIECES = [chunk({"role": "assistant", "content": ""})]
PIECES += [chunk({"content": f"t{i}"}) for i in range(6)]
PIECES += [chunk(None, "stop"), b"data: [DONE]\n\n"]


@given(st.lists(st.integers(0, 5_000), max_size=20), st.sampled_from(["chunked", "length", "close"]))
def test_stamps_are_those_of_the_read_that_completes_an_event(cuts: list[int], framing: Any) -> None:
    """By arithmetic on offsets: the read in which the last byte of an event's blank line lies."""
    loop = asyncio.new_event_loop()
    reply = Reply([Step(piece) for piece in PIECES], framing=framing)
    data = response_bytes(reply)
    reads = split_at(data, cuts)
    exchange, out = folded(reads, None, loop)
    loop.close()
    ends, at = [], 0
    for read in reads:
        at += len(read)
        ends.append(at)

    def read_of(offset: int) -> int:
        return next(number for number, end in enumerate(ends, 1) if end > offset) * TICK_NS

    visible = [read_of(data.index(piece) + len(piece) - 1) for piece in PIECES[1:7]]
    assert out.visible_ns == visible
    assert (out.first_visible_ns, out.last_visible_ns) == (visible[0], visible[-1])
    assert out.first_byte_ns == read_of(data.index(PIECES[0]))
    at_first = sum(ns == visible[0] for ns in visible)
    assert out.n1_share == at_first / 6
    if framing != "close":
        assert exchange.end_ns == len(reads) * TICK_NS


def is_whole(out: Outcome, whole: Outcome) -> bool:
    """Nothing of the answer is missing; the end marks may be."""
    return (out.message, out.visible_chars) == (whole.message, whole.visible_chars)


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_cut_off_at_any_byte(coding: str | None, loop: asyncio.AbstractEventLoop) -> None:
    """Ok only from the byte on with which the reply is over; before that a failure, with a class."""
    scenario = next(s for s in ALL if s.name == ("coding.gzip" if coding == "gzip" else "tokens.plain"))
    if coding == "deflate":
        scenario = next(s for s in ALL if s.name == "coding.deflate_with_header")
    data = response_bytes(scenario.reply)
    _, whole = folded([data], None, loop)
    ends: list[Exception | None] = [None, ConnectionResetError(104, "reset")]
    was_ok = False
    for end in ends:
        was_ok = False
        for length in range(len(data)):
            exchange, out = folded([data[:length]] if length else [], end, loop)
            sane(exchange, out)
            if out.outcome == "ok":
                was_ok = True
                assert is_whole(out, whole) and out.finish_reason == "stop" and out.notes
            else:
                assert not was_ok, "a longer piece of a good reply is no worse"
                assert out.error_class in (failures.CONNECTION_RESET, failures.TRUNCATED_STREAM)
    assert was_ok


@pytest.mark.parametrize("end", [None, ConnectionResetError(104, "reset")], ids=["close", "reset"])
@pytest.mark.parametrize("scenario", [s for s in SMALL if s.expect["outcome"] == "ok"], ids=str)
def test_cut_off_is_never_ok_without_the_whole_answer(
    scenario: Scenario, end: Exception | None, loop: asyncio.AbstractEventLoop
) -> None:
    data = response_bytes(scenario.reply)
    _, whole = folded([data], None, loop)
    for length in range(0, len(data), 1 + len(data) // 150):
        exchange, out = folded([data[:length]], end, loop)
        sane(exchange, out)
        if out.outcome != "ok":
            continue
        assert out.finish_reason is not None or "no finish_reason" in whole.notes
        # A second choice, that nobody asked for, may still have been under way; and nobody can know of text that would
        # have come behind finish_reason.
        if "choice" not in scenario.name and "behind_finish" not in scenario.name:
            assert is_whole(out, whole)


mutations = st.lists(
    st.tuples(st.integers(0, 20_000), st.sampled_from(["set", "drop", "add", "swap"]), st.integers(0, 255)),
    min_size=1,
    max_size=6,
)


def damaged(data: bytes, changes: list[tuple[int, str, int]]) -> bytes:
    out = bytearray(data)
    for place, what, value in changes:
        at = place % len(out) if out else 0
        if what == "add" or not out:
            out.insert(at, value)
        elif what == "set":
            out[at] = value
        elif what == "drop":
            del out[at : at + 1 + value % 8]
        else:
            out[at], out[at - 1] = out[at - 1], out[at]
    return bytes(out)


@settings(max_examples=600)
@given(st.sampled_from(SMALL), mutations, st.lists(st.integers(0, 20_000), max_size=4), st.booleans())
def test_damage_never_crashes(scenario: Scenario, changes: Any, cuts: list[int], reset: bool) -> None:
    loop = asyncio.new_event_loop()
    data = damaged(response_bytes(scenario.reply), changes)
    exchange, out = folded(split_at(data, cuts), ConnectionResetError() if reset else None, loop)
    sane(exchange, out)
    _, again = folded([data], ConnectionResetError() if reset else None, loop)
    loop.close()
    # One read more or less makes no difference to what a broken response is.
    assert (out.outcome, out.error_class) == (again.outcome, again.error_class)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
@example(b"HTTP/1.1 200 OK\r\n\r\n", [])
@example(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", [])
def test_any_bytes(data: bytes, cuts: list[int]) -> None:
    loop = asyncio.new_event_loop()
    exchange, out = folded(split_at(data, cuts), None, loop)
    loop.close()
    sane(exchange, out)
    assert out.outcome == "failed"


# -- the connection afterwards


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (WHOLE, True),
        (WHOLE + b"\r\n", True),
        (WHOLE + b"x", False),
        (WHOLE + WHOLE, False),
        (WHOLE + b"HTTP/1.1 408 Too Late\r\nContent-Length: 0\r\n\r\n", False),
        (WHOLE.replace(b"200 OK", b"200 OK\r\nConnection: close"), False),
        (WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"), False),
        (WHOLE.replace(b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive"), True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n!", False),
    ],
)
def test_a_connection_is_used_again_only_where_its_next_byte_is_known(
    data: bytes, reusable: bool, loop: asyncio.AbstractEventLoop
) -> None:
    exchange, _ = exchange_over([data], None, loop=loop)
    assert exchange.error_class is None
    assert b"".join(exchange.chunks) == (b"" if b"204" in data else b"hello")
    assert exchange.new_connection is not reusable


# -- values that must hold for any stamps


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62) | st.none())
def test_t15_durations_are_never_negative(start: int, end: int | None) -> None:
    value = seconds(start, end)
    assert value is None or value >= 0
    if end is None or end < start:
        assert value is None


@given(st.lists(st.integers(0, 10**12), min_size=4, max_size=4))
def test_t15_no_figure_of_a_record_is_negative(stamps: list[int]) -> None:
    """Whatever order the stamps of an exchange come in."""
    t0, first, last, end = stamps
    body = [chunk({"content": "a"}), chunk({"content": "b"}, "stop") + b"data: [DONE]\n\n"]
    exchange = Exchange(t0, end, status=200, headers=[("content-type", "text/event-stream")], chunks=body)
    exchange.stamps.extend([first, last])
    record = record_of(exchange, chat.fold(exchange))
    for name in ("ttft_s", "ttfo_s", "e2e_s", "speed_tps", "e2e_tps", "itl_s"):
        value = getattr(record, name)
        assert value is None or value >= 0, name


def test_time_after_the_end_of_the_answer_is_not_in_e2e(loop: asyncio.AbstractEventLoop) -> None:
    """The reply is over, and the connection then hangs until a limit ends it: that wait is nobody's latency."""
    out = response_bytes(Reply([Step(chunk({"content": "a"})), Step(chunk(None, "stop") + b"data: [DONE]\n\n")]))
    exchange, _ = exchange_over([out[:-5]], ConnectionResetError(), loop=loop)
    exchange.error_class, exchange.error, exchange.end_ns = failures.STALL_TIMEOUT, "nothing came for 300 s", 10**12
    outcome = chat.fold(exchange)
    assert outcome.outcome == "ok" and "stall_timeout after the end of the answer" in outcome.notes
    record = record_of(exchange, outcome)
    assert record.e2e_s == TICK_NS / 1e9 and record.end_ns == 10**12
    cut = dataclasses.replace(outcome, outcome="failed", error_class=failures.STALL_TIMEOUT, error="x")
    assert record_of(exchange, cut).e2e_s is None
