"""When a level is warm, and when the client voids it."""

import random

import pytest

from agentperf.measure.health import WorkerSample, assess, lateness_limit
from agentperf.measure.window import WindowSettings, blocks_agree, is_warm, look_at
from tests.measure.records import record

SETTINGS = WindowSettings(warmup_min_s=0.0)


def stream(agents: int, turns: int, ttft: float = 0.5, drop_from: int | None = None) -> list:
    generator = random.Random(1)
    found = []
    for t in range(turns):
        for a in range(agents):
            late = 5.0 if drop_from is not None and t < drop_from else ttft
            found.append(record(t, agent=a, ttft_s=late * generator.uniform(0.95, 1.05)))
    return found


def test_every_agent_must_have_completed_a_turn() -> None:
    records = [r for r in stream(4, 20) if r.agent != 3]
    assert not is_warm(records, 4, 100.0, SETTINGS)
    assert is_warm(stream(4, 20), 4, 100.0, SETTINGS)


def test_a_level_that_still_changes_is_not_warm() -> None:
    changing = stream(8, 4, drop_from=3)  # the block before the last still has the slow turns
    assert not is_warm(changing, 8, 100.0, SETTINGS)
    settled = stream(8, 8, drop_from=3)
    assert is_warm(settled, 8, 100.0, SETTINGS)


def test_the_minimum_holds() -> None:
    assert not is_warm(stream(2, 50), 2, 1.0, WindowSettings(warmup_min_s=2.0))


def test_false_alarms_are_rare() -> None:
    """Two blocks of the same distribution agree nearly always."""
    generator = random.Random(2)
    agree = sum(
        blocks_agree([generator.gauss(80, 20) for _ in range(10)], [generator.gauss(80, 20) for _ in range(10)])
        for _ in range(500)
    )
    assert agree >= 460


def test_a_shift_is_seen() -> None:
    generator = random.Random(3)
    agree = sum(
        blocks_agree([generator.gauss(80, 10) for _ in range(20)], [generator.gauss(50, 10) for _ in range(20)])
        for _ in range(200)
    )
    assert agree <= 10


def test_looks_come_at_growing_counts() -> None:
    settings = WindowSettings(first_look=40, requests_per_agent=2, look_growth=1.5)
    assert [look_at(i, 4, settings) for i in range(3)] == [40, 60, 90]
    small = WindowSettings(first_look=2, requests_per_agent=0)
    assert [look_at(i, 1, small) for i in range(4)] == [2, 3, 4, 5], "each look has a request more than the last"
    assert look_at(0, 100, settings) == 200


def sample(lag: float = 0.0, cpu: float = 0.1) -> WorkerSample:
    return WorkerSample(0, 0, [lag] * 50, cpu, 10**8, 20, 10)


def test_a_good_client() -> None:
    health = assess([sample()], [0.0001] * 100, [0.0002] * 100, 9.99, 10.0, 10.0)
    assert health.status == "ok"
    assert health.in_flight_ratio == pytest.approx(0.999)


@pytest.mark.parametrize(
    ("samples", "delays", "in_flight"),
    [([sample(lag=0.3)], [0.0], 10.0), ([sample()], [0.3] * 10, 10.0), ([sample()], [0.02], 9.8)],
)
def test_a_late_client_voids_the_level(samples: list, delays: list, in_flight: float) -> None:
    health = assess(samples, delays, delays, in_flight, 10.0, 10.0)
    assert health.status == "invalid"
    assert health.remedy is not None


def test_a_busy_core_warns() -> None:
    assert assess([sample(cpu=0.95)], [0.0], [0.0], 10.0, 10.0, None).status == "warn"


def test_lateness_limit() -> None:
    assert lateness_limit(None) == pytest.approx(0.005)
    assert lateness_limit(0.1) == pytest.approx(0.005)
    assert lateness_limit(5.0) == pytest.approx(0.1)


def test_the_grain_of_timers_on_short_requests_voids_nothing() -> None:
    """One millisecond late on requests of 60 ms: 98 % in flight, and no fault of the client."""
    assert assess([sample()], [0.001] * 50, [0.001] * 50, 9.8, 10.0, None).status == "ok"
