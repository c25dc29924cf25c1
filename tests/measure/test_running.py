"""The figures of a running level are those that its end will have, and cost what the new records cost."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentperf.measure.metrics import summarise
from agentperf.measure.record import Record
from agentperf.measure.running import RunningLevel
from agentperf.measure.window import WarmUp, WindowSettings, _settled, is_warm
from agentperf.stats.running import BLOCK
from agentperf.store.phases import phase_of
from tests.measure.records import MS, S, failure, record
from tests.measure.streams import made, seen, timer

OPEN, CLOSE = 10 * S, 40 * S


def some_record(rng: random.Random, number: int) -> Record:
    t0_s = rng.uniform(0, 50)
    kind = rng.random()
    common: dict[str, Any] = {
        "request_id": f"r{number}",
        "agent": number % 7,
        "play": f"p{number % 5}",
        "new_connection": rng.random() < 0.3,
        "stale_retries": int(rng.random() < 0.1),
        "due_ns": round(t0_s * S) - rng.randint(0, 3 * MS),
        "sent_ns": round(t0_s * S) + rng.randint(0, 3 * MS),
    }
    if kind < 0.1:
        return failure(t0_s, rng.choice(["http_5xx", "server_error_in_stream", "context_overflow"]), **common)
    if kind < 0.15:
        return failure(t0_s, rng.choice(["cut_off", "interrupted"]), **{**common, "outcome": "truncated"})
    end_s = t0_s + rng.uniform(0.5, 8)
    changes = {
        "end_ns": round(end_s * S),
        "ttft_s": rng.uniform(0.1, 3),
        "speed_tps": rng.choice([None, rng.uniform(20, 120)]),
        "cached_tokens": rng.choice([0, 500, 800]),
        "token_source": rng.choice(["usage", "usage", "estimate"]),
        "max_gap_ns": rng.randint(1, 3 * S),
    }
    return record(t0_s, **{**common, **changes})


def batches(rng: random.Random, records: Sequence[Record]) -> list[list[Record]]:
    """In the order of their end, some at a time."""
    ordered = sorted(records, key=lambda r: r.end_ns)
    found: list[list[Record]] = []
    while ordered:
        size = rng.randint(0, 9)
        found.append(ordered[:size])
        ordered = ordered[size:]
    return found


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 80), reopened=st.booleans())
def test_live_is_final(seed: int, count: int, reopened: bool) -> None:
    """Fed batch by batch, closed on the way (and once too early): the same as all records at the end."""
    rng = random.Random(seed)
    records = [some_record(rng, i) for i in range(count)]
    early = 25 * S if reopened else None
    level: RunningLevel | None = None
    so_far: list[Record] = []
    for batch in batches(rng, records):
        now = max((r.end_ns for r in batch), default=0)
        if level is None and now >= OPEN:
            level = RunningLevel(OPEN, so_far)
        if level is not None and early is not None and now >= early:
            if level.close_ns is None:
                level.close(early)
            elif now >= early + 5 * S:
                level.reopen()
                early = None
        if level is not None and early is None and level.close_ns is None and now >= CLOSE:
            level.close(CLOSE)
        so_far += batch
        if level is not None:
            level.take(batch)
    level = level or RunningLevel(OPEN, so_far)
    if level.close_ns is not None and level.close_ns != CLOSE:
        level.reopen()
    if level.close_ns is None:
        level.close(CLOSE)
    for r in records:
        r.phase = phase_of(r.t0_ns, OPEN, CLOSE)
    final = summarise(records, level=7, open_ns=OPEN, close_ns=CLOSE)
    assert sorted(r.request_id for r in level.records) == sorted(r.request_id for r in records if r.phase == "window")
    for percent, name in ((25, "p25"), (50, "p50"), (95, "p95")):
        shown, wanted = level.speed.percentile(percent), getattr(final.speed, name)
        assert shown == (None if wanted is None else pytest.approx(wanted))
        shown, wanted = level.ttft_s.percentile(percent), getattr(final.ttft, name)
        assert (None if shown == float("inf") else shown) == (None if wanted is None else pytest.approx(wanted))
    assert len(level.speed) == final.speed.n
    assert len(level.ttft_s) == final.ttft.n
    assert level.cached_share == (None if final.cached_share is None else pytest.approx(final.cached_share))
    span_s = (CLOSE - OPEN) / S
    assert level.in_flight / span_s == pytest.approx(final.in_flight)
    assert level.wanted / span_s == pytest.approx(final.wanted_in_flight)
    assert level.in_band_errors == final.streams.in_band_errors
    assert level.new_connections == final.streams.new_connections
    assert level.stale_retries == final.stale_retries
    assert level.estimates == final.streams.token_sources.get("estimate", 0)
    if final.streams.largest_gap_s is not None:
        assert level.largest_gap_ns / S == pytest.approx(final.streams.largest_gap_s)


def test_bursts_are_counted_live_as_in_the_end() -> None:
    rng = random.Random(1)
    records = [
        seen(timer(made(rng, 100, 50), 0.25, 0.1) if i % 3 else made(rng, 100, 50), request_id=f"r{i}", t0_ns=i)
        for i in range(30)
    ]
    level = RunningLevel(0, records)
    final = summarise(records, level=1, open_ns=0, close_ns=100 * S)
    assert (level.population.buffered, level.population.tellable) == (final.streams.buffered, final.streams.tellable)
    assert level.population.suspect
    assert level.population.at_once == final.streams.without_speed == 0


class Counted(list[Record]):
    """A batch that counts how often it is gone through."""

    rounds = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.rounds += 1
        return super().__iter__()


def test_each_batch_is_gone_through_once_and_old_records_never_again() -> None:
    rng = random.Random(2)
    level, warm_up = RunningLevel(0), WarmUp(4)
    fed = [Counted(some_record(rng, 20 * i + k) for k in range(20)) for i in range(200)]
    work = []
    for batch in fed:
        before = level.speed.moves + level.ttft_s.moves + level.send_delay_s.moves
        level.take(batch)
        warm_up.take(batch)
        warm_up.is_warm(100.0, WindowSettings())
        level.speed.percentile(25)
        work.append(level.speed.moves + level.ttft_s.moves + level.send_delay_s.moves - before)
    assert {batch.rounds for batch in fed} == {2}
    assert max(work) <= 3 * 20 * (2 * BLOCK + 2), "bounded by the batch, whatever was there before"
    assert len(warm_up._last) == 8


def old_is_warm(records: Sequence[Record], agents: int, elapsed_s: float, options: WindowSettings) -> bool:
    """The test over all records, as it reads."""
    if elapsed_s < options.warmup_min_s:
        return False
    seen_agents: set[int] = set()
    later: list[Record] = []
    for r in records:
        if r.agent in seen_agents:
            later.append(r)
        seen_agents.add(r.agent)
    if len(seen_agents) < agents:
        return False
    block = max(agents, 3)
    return len(later) >= 2 * block and _settled(later, block)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), agents=st.integers(1, 6), count=st.integers(0, 60))
def test_warm_up_by_batches_is_warm_up_over_all(seed: int, agents: int, count: int) -> None:
    rng = random.Random(seed)
    options = WindowSettings(warmup_min_s=1.0)
    slow = rng.uniform(1, 3)
    records = [
        record(
            i,
            agent=rng.randrange(agents),
            ttft_s=(slow if i < count / 2 else 1.0) * rng.uniform(0.8, 1.2),
            speed_tps=rng.choice([None, rng.uniform(40, 60)]),
        )
        for i in range(count)
    ]
    warm_up = WarmUp(agents)
    at = 0
    while at < count:
        size = rng.randint(0, 5)
        warm_up.take(records[at : at + size])
        at += size
        elapsed = rng.uniform(0, 3)
        expected = old_is_warm(records[:at], agents, elapsed, options)
        assert warm_up.is_warm(elapsed, options) is expected
        assert warm_up.is_warm(elapsed, options) is expected
        assert is_warm(records[:at], agents, elapsed, options) is expected


def test_a_load_process_whose_clock_is_ahead() -> None:
    """A record that ended after the moment of closing is cut at it, as the final figures do."""
    records = [record(0.0, end_ns=3 * S), record(1.5, request_id="b", end_ns=4 * S), record(-1.0, end_ns=5 * S)]
    level = RunningLevel(0, records)
    level.close(S)
    for r in records:
        r.phase = phase_of(r.t0_ns, 0, S)
    final = summarise(records, level=1, open_ns=0, close_ns=S)
    assert [r.request_id for r in level.records] == ["r0"]
    assert level.in_flight == pytest.approx(final.in_flight)
    assert level.wanted == pytest.approx(final.wanted_in_flight)
