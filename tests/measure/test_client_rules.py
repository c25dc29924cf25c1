"""The rules that void a level for its client, one by one, and what they tell to do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.measure.health import (
    COLLECTOR_LIMITED,
    PROCESS_LOST,
    Health,
    MachineSample,
    WorkerSample,
    assess,
    decode_times,
    remedy_for,
    voided,
)
from tests.measure.records import record

S = 1_000_000_000


def samples(worker: int = 0, lag: float = 0.0, cpu: float = 0.2, n: int = 20, **more: Any) -> list[WorkerSample]:
    return [
        WorkerSample(worker, i * S // 5, [lag] * 10, cpu, 10**8 + worker, 20, 10 + worker, **more) for i in range(n)
    ]


def client(found: list[WorkerSample], ttft_limit: float | None = None, **more: Any) -> Health:
    return assess(found, [0.0001] * 50, [0.0002] * 50, 10.0, 10.0, ttft_limit, **more)


def test_one_late_load_process_of_eight_is_enough() -> None:
    found = [s for worker in range(8) for s in samples(worker, lag=0.02 if worker == 5 else 0.0001)]
    health = client(found)
    assert health.status == "invalid"
    assert health.loop_lag_p99_s == pytest.approx(0.02)
    assert health.workers == 8


def test_speeds_need_a_stricter_client_than_a_generous_ttft() -> None:
    """20 ms are nothing to a TTFT of 5 s; replies that decode for 2 s they make unsure by 1 %."""
    late = samples(lag=0.02)
    assert client(late, ttft_limit=5.0).status == "ok"
    health = client(late, ttft_limit=5.0, decode_s=[1.0, 2.0, 3.0])
    assert health.status == "invalid"
    assert health.speed_error == pytest.approx(0.01)
    assert "makes speeds unsure by 1.0% > 0.5%" in health.reasons[0]
    assert client(late, ttft_limit=5.0, decode_s=[5.0]).status == "ok"


def test_the_lag_of_speeds_is_taken_further_out() -> None:
    """0.8 % of the stamps 50 ms late: the TTFT's p99 does not see it, that of speeds, with two stamps each, does."""
    found = samples(n=50)
    for index in (10, 20, 30, 40):
        found[index].lags_s = [0.05] + [0.0] * 9
    health = client(found, decode_s=[2.0])
    assert health.loop_lag_p99_s is not None
    assert health.loop_lag_p99_s < 0.005
    assert health.speed_error == pytest.approx(0.025)
    assert health.status == "invalid"
    assert "p99.5 50.0 ms" in health.reasons[0]
    assert client(found, decode_s=[20.0]).status == "ok"


def test_below_5_ms_nothing_is_late() -> None:
    """The grain of timers on replies of 100 ms is no fault of the client."""
    health = client(samples(lag=0.004), decode_s=[0.1])
    assert health.status == "ok"
    assert health.speed_error == pytest.approx(0.04)


@given(st.floats(0, 1), st.floats(0.01, 10))
def test_no_level_passes_whose_stamps_are_late_by_more_than_is_allowed(lag: float, decode: float) -> None:
    health = client(samples(lag=lag), decode_s=[decode])
    assert (health.status == "invalid") == (lag > 0.005)


def test_too_many_records_void() -> None:
    found = samples()
    found[7].overfull = True
    health = client(found)
    assert (health.status, health.cause) == ("invalid", COLLECTOR_LIMITED)
    assert health.remedy is not None


def test_a_lost_process_keeps_the_figures() -> None:
    health = voided(client(samples(cpu=0.5)), PROCESS_LOST, "load process 1 was killed (SIGKILL): level 8 is void")
    assert (health.status, health.cause) == ("invalid", "process_lost")
    assert health.reasons[0] == "load process 1 was killed (SIGKILL): level 8 is void"
    assert health.cpu_share_max == pytest.approx(0.5)
    assert "replaced" in str(health.remedy)


def test_cpu_is_weighed_by_time() -> None:
    """Batches that follow at once are short samples, and say little."""
    found = [
        WorkerSample(0, 0, [], 9.0, 1, 1, 1),
        WorkerSample(0, 2 * S, [], 0.5, 1, 1, 1),
        WorkerSample(0, 2 * S + S // 1000, [], 1.0, 1, 1, 1),
    ]
    assert client(found).cpu_share_max == pytest.approx((2 * 0.5 + 0.001 * 1.0) / 2.001)
    assert client(found[:1]).cpu_share_max == pytest.approx(9.0)


def test_warnings() -> None:
    machine = [MachineSample(i * S, 0.95, 3.5) for i in range(5)]
    health = client(samples(cpu=0.95, blocked_s=0.02), machine=machine, late_starts_s=[0.01, 0.2])
    assert health.status == "warn"
    assert [r.split(" ")[0:3] for r in health.reasons] == [
        ["a", "load", "process"],
        ["the", "collecting", "process"],
        ["a", "load", "process"],
        ["load", "processes", "began"],
    ]
    assert health.start_skew_s == pytest.approx(0.19)
    assert health.start_late_s == pytest.approx(0.2)
    assert health.parent_cpu_share == pytest.approx(0.95)
    # 19 of 20 samples of 0.2 s, 0.02 s blocked in each
    assert health.blocked_share == pytest.approx(0.1)
    assert health.remedy == "use --workers 4: 3.5 cores were free"


def test_nothing_measured_is_null() -> None:
    health = assess([], [], [], 0.0, 0.0, None)
    assert health.status == "ok"
    for name in ("loop_lag_p99_s", "send_delay_p99_s", "cpu_share_max", "in_flight_ratio", "start_skew_s"):
        assert getattr(health, name) is None
    assert health.blocked_share is None
    assert health.speed_error is None


@pytest.mark.parametrize(
    ("workers", "free", "cores", "words"),
    [
        (2, 5.2, 8, "use --workers 7: 5.2 cores were free"),
        (2, 0.4, 8, "no core was free"),
        (2, None, 8, "use --workers 7: 5.0 cores were free"),
        (7, None, 8, "no core was free"),
        (2, None, None, "use more --workers"),
        (0, None, None, "use more --workers"),
    ],
)
def test_remedies(workers: int, free: float | None, cores: int | None, words: str) -> None:
    assert remedy_for(workers, free, cores).startswith(words)


def test_decode_times_are_those_of_replies_with_a_speed() -> None:
    whole = record(0, agent=0, ttft_s=0.5)
    assert decode_times([whole]) == [pytest.approx((whole.last_visible_ns - whole.first_visible_ns) / 1e9)]
    whole.speed_tps = None
    assert decode_times([whole]) == []
