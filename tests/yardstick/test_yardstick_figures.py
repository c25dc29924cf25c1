"""Golden figures: a held level whose errors are known by construction."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "measure"))

from records import MS, S, record

from agentperf.measure.record import Record
from agentperf.yardstick.figures import (
    SERVER_BEHIND_MS,
    SERVER_LATE_MS,
    SPEED_BOUND,
    TTFT_BOUND_MS,
    figures,
    judge,
    matched,
    mean_in_flight,
    percentile,
    speed_errors,
    ttft_errors_ms,
)
from agentperf.yardstick.held import Held
from agentperf.yardstick.rows import Row


def row(r: Record, *, early_ms: float = 0.0, decode_s: float = 2.0, late_ms: float = 0.0, **changes: object) -> Row:
    """The truth behind a record: its first token was sent `early_ms` before the client stamped it."""
    assert r.first_visible_ns is not None
    first = r.first_visible_ns - round(early_ms * MS)
    last = first + round(decode_s * S)
    made = Row(r.request_id, "ok", r.t0_ns + MS, first, last, last, first, last - round(late_ms * MS), 101, 0)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def held(records: list[Record], rows: list[Row], level: int = 1, **changes: object) -> Held:
    made = Held(
        level=level,
        workers=1,
        open_ns=0,
        close_ns=10 * S,
        records=records,
        rows=rows,
        cpu_s=0.5,
        cpu_share_max=0.25,
        lag_p99_s=0.002,
        server_cpu_s=0.4,
        server_tokens=20_000,
        other_cores=0.02,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_errors_of_one_request() -> None:
    r = record(1.0, ttft_s=0.5, speed_tps=50.25)
    truth = row(r, early_ms=1.5)
    assert ttft_errors_ms([(r, truth)]) == [pytest.approx(1.5)]
    assert speed_errors([(r, truth)]) == [pytest.approx(0.005)]
    slower = row(r, decode_s=2.5)
    assert slower.speed_tps == pytest.approx(40)
    assert speed_errors([(r, slower)]) == [pytest.approx(50.25 / 40 - 1)]


def test_the_ttft_of_the_record_is_what_is_compared_not_a_stamp_beside_it() -> None:
    r = record(1.0, ttft_s=0.6)
    assert ttft_errors_ms([(r, row(r))]) == [pytest.approx(100.0)]


def test_percentiles_are_of_absolute_values() -> None:
    assert percentile([-10.0, 1.0, 2.0], 100) == 10.0
    assert percentile([-3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([], 99) is None


def test_in_flight_is_what_the_server_had_open_in_the_window() -> None:
    whole = Row("a", "ok", 0, 1, 2, 20 * S, 1, 2, 2, 0)
    half = Row("b", "ok", 5 * S, 1, 2, 9 * S, 1, 2, 2, 0)
    still = Row("c", "open", 18 * S, 1, 0, 0, 1, 0, 2, 0)
    before = Row("d", "ok", 0, 1, 2, 3 * S, 1, 2, 2, 0)
    assert mean_in_flight([whole, half, still, before], 4 * S, 20 * S) == pytest.approx((16 + 4 + 2) / 16)


def test_golden_figures() -> None:
    records = [record(float(i), speed_tps=50.0 * (1 + i / 10_000)) for i in range(5)]
    rows = [row(r, early_ms=0.5 + i / 10, late_ms=1.0) for i, r in enumerate(records)]
    found = figures(held(records, rows, level=1), 50.0)
    assert found.verdict == "pass"
    assert found.reasons == []
    assert (found.requests, found.lost, found.blocked) == (5, 0, 0)
    assert found.ttft_error_p50_ms == pytest.approx(0.7)
    assert found.ttft_error_p99_ms == pytest.approx(0.9 - 0.1 * 0.04)
    assert found.ttft_error_max_ms == pytest.approx(0.9)
    assert found.speed_error_p50 == pytest.approx(2e-4)
    assert found.speed_error_p99 == pytest.approx(3.96e-4)
    assert found.upload_p99_ms == pytest.approx(1.0)
    assert found.events_per_s == pytest.approx(2000)
    assert found.us_per_event == pytest.approx(25)
    assert found.server_us_per_event == pytest.approx(20)
    assert found.server_late_p99_ms == pytest.approx(1.0)
    assert found.loop_lag_p99_ms == pytest.approx(2.0)
    # Each was open at the server from 1 ms after t0 until its last token, 2.5 s after t0 less what it was early.
    expected = sum(2.5 - 0.001 - (0.5 + i / 10) / 1e3 for i in range(5)) / 10
    assert found.in_flight == pytest.approx(expected)
    assert not found.disturbed


def test_the_window_is_of_requests_issued_in_it() -> None:
    inside, outside = record(2.0), record(12.0)
    pairs, lost = matched(held([inside, outside], [row(inside), row(outside)]))
    assert [r.request_id for r, _ in pairs] == [inside.request_id]
    assert lost == 0


@pytest.mark.parametrize(
    ("changes", "row_changes"),
    [
        ({"outcome": "failed"}, {}),
        ({"outcome": "truncated"}, {}),
        ({"speed_tps": None}, {}),
        ({"ttft_s": None}, {}),
        ({}, {"outcome": "abort"}),
        ({}, {"id": "another"}),
        ({}, {"tokens": 1}),
    ],
)
def test_what_cannot_be_compared_is_lost_and_fails(changes: dict[str, object], row_changes: dict[str, object]) -> None:
    good, bad = record(1.0), record(2.0, **changes)
    found = figures(held([good, bad], [row(good), row(bad, **row_changes)]), 50.0)
    assert (found.requests, found.lost) == (1, 1)
    assert found.verdict == "fail"
    assert "1 requests lost" in found.reasons


def test_no_request_at_all_fails() -> None:
    found = figures(held([], []), 50.0)
    assert found.verdict == "fail"
    assert found.reasons[0] == "no request could be compared"
    assert found.ttft_error_p99_ms is None


def test_a_blocked_socket_is_the_clients_fault_and_its_lateness_not_the_servers() -> None:
    r = record(1.0)
    found = figures(held([r], [row(r, late_ms=500.0, blocked=3)]), 50.0)
    assert found.verdict == "fail"
    assert "sockets were full 3 times" in found.reasons
    assert found.server_late_p99_ms is None


def test_figures_without_cpu_times() -> None:
    r = record(1.0)
    found = figures(held([r], [row(r)], cpu_s=None, lag_p99_s=None, other_cores=None, server_tokens=0), 50.0)
    assert (found.us_per_event, found.loop_lag_p99_ms, found.server_us_per_event) == (None, None, None)
    assert not found.disturbed


GOOD = {
    "requests": 100,
    "lost": 0,
    "blocked": 0,
    "ttft_error_ms": TTFT_BOUND_MS,
    "speed_error": SPEED_BOUND,
    "in_flight": 0.99,
    "server_late_ms": SERVER_LATE_MS,
}


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, "pass", None),
        ({"ttft_error_ms": math.nextafter(TTFT_BOUND_MS, 9)}, "fail", "TTFT error"),
        ({"speed_error": 0.00501}, "fail", "speed error"),
        ({"in_flight": 0.989}, "fail", "only 98.9%"),
        ({"lost": 1}, "fail", "lost"),
        # A late server: nothing is blamed on the client, and what the client did well counts until the pace is gone.
        ({"server_late_ms": 6.0}, "pass", None),
        ({"server_late_ms": 6.0, "ttft_error_ms": 50.0}, "server", "reference server"),
        ({"server_late_ms": 6.0, "in_flight": 0.5}, "server", "reference server"),
        ({"server_late_ms": SERVER_BEHIND_MS}, "pass", None),
        ({"server_late_ms": SERVER_BEHIND_MS + 0.1}, "server", "reference server"),
        ({"server_late_ms": 500.0, "blocked": 2}, "fail", "sockets were full"),
        ({"server_late_ms": None}, "pass", None),
    ],
)
def test_the_verdict_at_its_bounds(changes: dict[str, object], verdict: str, reason: str | None) -> None:
    found, reasons = judge(**{**GOOD, **changes})  # type: ignore[arg-type]
    assert found == verdict
    assert reasons == [] if reason is None else any(reason in r for r in reasons)
