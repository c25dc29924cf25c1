"""The loop of users that peers share, and what the bare protocol and aiperf's export are read to say."""

import asyncio
import doctest
import itertools
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import aiperf, bare_protocol, cores, venvs
from benchmarks.bare_protocol import END, BareConnection, content_stamps
from benchmarks.load import Load, Result, Row, hold, take_chunk
from benchmarks.venvs import MissingError, Peer
from benchmarks.work import Work

WORK = Work(streams=32, tps=50, ttft_ms=500, tokens=101, seconds=10)


def load(**changes: object) -> Load:
    fields = {
        "base_url": "http://127.0.0.1:1/v1", "streams": 3, "tokens": 5, "prompt": "p", "spread_s": 0.03,
        "warmup_s": 0.03, "seconds": 0.1, "grace_s": 0.2,
    }  # fmt: skip
    return Load(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("module", [bare_protocol, cores])
def test_examples_in_docstrings(module: object) -> None:
    found = doctest.testmod(module)  # type: ignore[arg-type]
    assert found.attempted > 0
    assert found.failed == 0


def test_closed_loop_sends_again_as_soon_as_a_stream_has_ended() -> None:
    async def one(row: Row) -> None:
        await asyncio.sleep(0.02)

    result = asyncio.run(hold(load(), one, (OSError,)))
    assert result.close_s - result.open_s >= 0.1
    assert all(row.ok and row.end >= row.t0 for row in result.rows)
    users = {row.id.split("-")[1] for row in result.rows}
    assert users == {"0", "1", "2"}
    assert len({row.id for row in result.rows}) == len(result.rows) > 3


def test_a_request_that_fails_is_kept_with_its_error_and_one_that_does_not_end_is_cut_off() -> None:
    async def one(row: Row) -> None:
        if row.id.startswith("peer-0-"):
            raise OSError("no way")
        await asyncio.sleep(60)

    result = asyncio.run(hold(load(seconds=0.05, grace_s=0.05), one, (OSError,)))
    assert not any(row.ok for row in result.rows)
    assert {row.error for row in result.rows if row.id.startswith("peer-0-")} == {"OSError: no way"}
    assert sum(row.id.startswith("peer-1-") for row in result.rows) == 1


def test_a_burst_sends_each_once_and_begins_at_once() -> None:
    async def one(row: Row) -> None:
        await asyncio.sleep(0.01)

    result = asyncio.run(hold(load(streams=50, mode="burst", grace_s=5), one, (OSError,)))
    assert [row.id for row in result.rows] == [f"peer-{n}-0" for n in range(50)]
    assert all(row.ok and row.t0 >= result.open_s for row in result.rows)
    assert result.close_s - result.open_s < 4


def test_a_chunk_that_has_text_counts_and_usage_is_taken() -> None:
    row = Row("r", time.perf_counter())
    take_chunk(row, json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
    assert (row.events, row.first) == (0, None)
    take_chunk(row, json.dumps({"choices": [{"delta": {"content": "a"}}]}))
    first = row.first
    take_chunk(row, json.dumps({"choices": [{"delta": {"content": "b"}}]}))
    take_chunk(row, json.dumps({"choices": [], "usage": {"completion_tokens": 7}}))
    assert row.events == 2
    assert row.first == first is not None
    assert row.last is not None and row.last >= row.first
    assert row.tokens == 7


STREAM = (
    b'HTTP/1.1 200 OK\r\n\r\n1\r\ndata: {"delta":{"role":"assistant","content":""}}\n\n\r\n'
    b'1\r\ndata: {"delta":{"content":"a"}}\n\n\r\n1\r\ndata: {"delta":{"content":"b"}}\n\n\r\n1\r\ndata: [DONE]\n\n\r\n'
    + END
)


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12, unique=True))
def test_the_end_of_a_stream_is_seen_however_it_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    loop = asyncio.new_event_loop()
    try:
        connection = BareConnection()
        waiter = connection.waiter = loop.create_future()
        for a, b in itertools.pairwise(edges):
            assert not waiter.done()
            connection.data_received(STREAM[a:b])
        assert waiter.done()
        assert b"".join(data for _, data in connection.reads) == STREAM
        # The first and the last text are found in the reads that complete their lines.
        ends = [STREAM.index(text) + len(text) for text in (b'"a"}}\n', b'"b"}}\n')]
        numbered = list(enumerate(data for _, data in connection.reads))
        assert content_stamps(numbered) == tuple(next(i for i, edge in enumerate(edges[1:]) if edge >= e) for e in ends)
    finally:
        loop.close()


def test_first_and_last_text_of_what_was_kept() -> None:
    assert content_stamps([(1, b'"content":""\n')]) is None
    result = Result(rows=[Row("known", 0.0, ok=True), Row("lost", 0.0, ok=True)])
    bare_protocol.kept["known"] = [(5 * 10**9, b'"content":"a"\n'), (7 * 10**9, b'"content":"b"\n')]
    try:
        bare_protocol.finish(load(), result)
    finally:
        bare_protocol.kept.clear()
    assert (result.rows[0].first, result.rows[0].last, result.rows[0].tokens) == (5.0, 7.0, 5)
    assert [row.ok for row in result.rows] == [True, False]


# -- aiperf


def exported(**changes: object) -> str:
    about = {
        "x_request_id": "id-1", "request_start_ns": 2_000_000_000_000, "request_end_ns": 2_002_500_000_000,
        "benchmark_phase": "profiling", "was_cancelled": False,
    }  # fmt: skip
    metrics = {
        "time_to_first_token": {"value": 500.0, "unit": "ms"},
        "request_latency": {"value": 2500.0, "unit": "ms"},
        "output_token_throughput_per_user": {"value": 50.0, "unit": "tokens/sec/user"},
        "inter_chunk_latency": {"value": [20.0] * 100, "unit": "ms"},
    }
    return json.dumps({"metadata": {**about, **changes}, "metrics": metrics})


def test_a_line_of_its_export() -> None:
    said = aiperf.said_by_line(exported(), offset_ns=1_000_000_000_000)
    assert said is not None
    assert (said.id, said.t0_ns, said.first_ns) == ("id-1", 1_000_000_000_000, 1_000_500_000_000)
    assert (said.last_ns, said.events, said.speed_tps, said.ok) == (1_002_500_000_000, 101, 50.0, True)
    assert aiperf.said_by_line(exported(benchmark_phase="warmup"), 0) is None
    cancelled = aiperf.said_by_line(exported(was_cancelled=True), 0)
    assert cancelled is not None and not cancelled.ok
    failed = json.loads(exported())
    failed["metrics"], failed["error"] = {}, {"code": 500}
    said = aiperf.said_by_line(json.dumps(failed), 0)
    assert said is not None and not said.ok and said.first_ns is None and said.events is None


def test_its_command_says_the_same_work() -> None:
    command = aiperf.command_of(WORK, "http://127.0.0.1:8/v1", Path("/v/bin/python"), Path("/t"), Path("/o"))
    assert command[:2] == ["/v/bin/aiperf", "profile"]
    pairs = dict(itertools.pairwise(command))
    assert (pairs["--concurrency"], pairs["--osl"], pairs["--url"]) == ("32", "101", "http://127.0.0.1:8")
    assert "--use-server-token-count" in command
    # Its window, two streams behind its start, must lie within the time that it sends for.
    assert int(pairs["--benchmark-duration"]) >= 2 * WORK.stream_s + WORK.seconds


def test_the_wall_clock_is_put_on_the_monotonic_one() -> None:
    offset = aiperf.wall_less_monotonic_ns()
    assert abs(time.time_ns() - offset - time.monotonic_ns()) < 1_000_000_000


# -- environments


def test_an_environment_that_lacks_the_peer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer("nothing", ("no-such-package",), "no_such_module_at_all", "THE_VENV")
    monkeypatch.setenv(venvs.FOLDER, str(tmp_path))
    assert venvs.find(peer) is None
    monkeypatch.setenv("THE_VENV", str(tmp_path))
    with pytest.raises(MissingError, match="THE_VENV"):
        venvs.find(peer)


def test_an_installation_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(venvs.FOLDER, str(tmp_path / "venvs"))

    def refuse(command: list[str]) -> None:
        (tmp_path / "venvs" / "nothing").mkdir(exist_ok=True)
        raise MissingError("pip failed: no network")

    monkeypatch.setattr(venvs, "_run", refuse)
    with pytest.raises(MissingError, match="nothing: pip failed"):
        venvs.python_for(Peer("nothing", ("no-such-package",), "no_such_module_at_all"))
    assert list((tmp_path / "venvs").iterdir()) == []


def test_a_package_that_is_here_needs_no_environment() -> None:
    assert venvs.python_for(Peer("httpx", ("httpx",), "httpx")).name.startswith("python")
