"""A calibration around its probes: which are made, repeated, and what comes of them. The load itself is made up."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agentperf.errors import ClientError
from agentperf.yardstick import measure
from agentperf.yardstick.figures import DISTURBED_CORES, Figures
from agentperf.yardstick.measure import Progress, Settings, calibrate, document, most_streams, probe_s
from agentperf.yardstick.reply import Pace
from agentperf.yardstick.search import Verdict


def probe(level: int, tps: float = 50.0, verdict: Verdict = "pass", **changes: Any) -> Figures:
    fields: dict[str, Any] = {
        "level": level,
        "workers": 1,
        "tps": tps,
        "verdict": verdict,
        "reasons": [] if verdict == "pass" else ["because"],
        "requests": 100,
        "lost": 0,
        "blocked": 0,
        "ttft_error_p50_ms": 0.1,
        "ttft_error_p99_ms": 1.0,
        "ttft_error_max_ms": 2.0,
        "speed_error_p50": 1e-4,
        "speed_error_p99": 1e-3,
        "upload_p99_ms": 1.0,
        "in_flight": float(level),
        "events_per_s": level * tps,
        "us_per_event": 15.0,
        "cpu_share": 0.5,
        "loop_lag_p99_ms": 1.0,
        "server_late_p99_ms": 0.5,
        "server_us_per_event": 9.0,
        "other_cores": 0.0,
    }
    return Figures(**(fields | changes))


class _Server:
    def __init__(self, pace: Pace) -> None:
        self.pace = pace


class _Rig:
    def __init__(self, pace: Pace, workers: int) -> None:
        self.servers = [_Server(pace)]
        self.workers = workers

    async def hold(self, level: int, window_s: float) -> tuple[int, float, int]:
        await anyio.lowlevel.checkpoint()
        return level, window_s, self.workers


Machine = Callable[[int, float, int, int], Figures]
"""(level, tps, workers, how many times this was asked before) -> what a probe finds."""


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Machine], list[tuple[float, int, int]]]:
    """Put a made-up machine in place of fleet and servers; the list fills with (tps, workers, level) of its probes."""

    def put(machine: Machine) -> list[tuple[float, int, int]]:
        asked: list[tuple[float, int, int]] = []

        @contextlib.asynccontextmanager
        async def open_rig(pace: Pace, workers: int, life_s: float) -> AsyncIterator[_Rig]:
            assert life_s > 60
            yield _Rig(pace, workers)

        def figures(held: tuple[int, float, int], tps: float) -> Figures:
            level, _, workers = held
            key = (tps, workers, level)
            before = asked.count(key)
            if tps:
                asked.append(key)
            return machine(level, tps, workers, before)

        monkeypatch.setattr(measure, "open_rig", open_rig)
        monkeypatch.setattr(measure, "figures", figures)
        return asked

    return put


def run(settings: Settings, on_step: Callable[[Figures], None] = lambda _: None) -> Progress:
    progress = Progress()
    anyio.run(calibrate, settings, progress, on_step)
    return progress


def _up_to(events_per_s: float, miss: Verdict = "fail", **changes: Any) -> Machine:
    return lambda level, tps, workers, _: probe(
        level,
        tps,
        "pass" if level * tps <= events_per_s * workers else miss,
        workers=workers,
        **changes,
    )


def test_every_rate_and_number_of_load_processes(on: Callable[[Machine], list[tuple[float, int, int]]]) -> None:
    asked = on(_up_to(40_000))
    seen: list[Figures] = []
    found = run(Settings(rates=(20.0, 50.0), workers=(1, 2)), seen.append)
    results = {(r.workers, r.tps): r for r in found.results}
    assert set(results) == {(1, 20.0), (1, 50.0), (2, 20.0), (2, 50.0)}
    for (workers, tps), r in results.items():
        truth = 40_000 * workers / tps
        assert r.streams <= truth < (r.smallest_miss or 0)
        assert truth * 0.88 <= r.streams
        assert (r.limit, r.at_least, r.disturbed, r.error) == ("client", False, False, None)
        assert r.best is not None
        assert r.best.level == r.streams
    assert len(seen) == len(asked) == sum(len(r.probes) for r in found.results)
    assert [f.workers for f in found.firehose] == [1, 2]
    # The second search begins at half of what the first one found.
    first = next(level for tps, workers, level in asked if (tps, workers) == (50.0, 1))
    assert first == int(results[1, 20.0].streams * 20 / 2 / 50)


def test_a_miss_is_tried_twice_and_three_times_when_disturbed(
    on: Callable[[Machine], list[tuple[float, int, int]]],
) -> None:
    settings = Settings(rates=(50.0,), max_streams=256)
    asked = on(_up_to(0))
    run(settings)
    assert {asked.count(key) for key in asked} == {2}
    asked = on(_up_to(0, other_cores=DISTURBED_CORES + 0.01))
    found = run(settings)
    assert {asked.count(key) for key in asked} == {3}
    assert found.results[0].disturbed


def test_a_level_that_passes_once_has_passed(on: Callable[[Machine], list[tuple[float, int, int]]]) -> None:
    def machine(level: int, tps: float, workers: int, before: int) -> Figures:
        del workers
        return probe(level, tps, "pass" if level <= 200 and before else "fail", other_cores=0.0 if before else 1.0)

    on(machine)
    (result,) = run(Settings(rates=(50.0,), max_streams=200)).results
    assert (result.streams, result.limit) == (200, "max-streams")


def test_of_missed_attempts_the_quietest_counts(on: Callable[[Machine], list[tuple[float, int, int]]]) -> None:
    def machine(level: int, tps: float, workers: int, before: int) -> Figures:
        del workers
        if level <= 100:
            return probe(level, tps)
        return probe(level, tps, "server" if before == 0 else "fail", other_cores=0.5 - before / 10)

    on(machine)
    (result,) = run(Settings(rates=(50.0,), max_streams=128)).results
    assert result.limit == "client"
    assert result.disturbed, "also the quietest attempt had other work beside it"


def test_the_reference_server_as_limit(on: Callable[[Machine], list[tuple[float, int, int]]]) -> None:
    on(_up_to(20_000, "server"))
    (result,) = run(Settings(rates=(50.0,))).results
    assert result.at_least
    assert result.limit == "server"


def test_the_budget_ends_a_search_after_its_first_probe(on: Callable[[Machine], list[tuple[float, int, int]]]) -> None:
    asked = on(_up_to(10**9))
    found = run(Settings(rates=(50.0, 80.0), budget_s=0.001))
    assert [level for _, _, level in asked] == [256, 80]
    assert [(r.streams, r.limit, r.at_least) for r in found.results] == [(256, "budget", True), (80, "budget", True)]


def test_failing_load_processes_end_a_search_and_not_the_calibration(
    on: Callable[[Machine], list[tuple[float, int, int]]],
) -> None:
    def machine(level: int, tps: float, workers: int, before: int) -> Figures:
        del workers, before
        if level * tps > 30_000:
            raise ClientError("load process 0 has said nothing for 8 s")
        return probe(level, tps)

    on(machine)
    found = run(Settings(rates=(20.0, 50.0)))
    assert [(r.streams, r.smallest_miss, r.limit) for r in found.results] == [
        (1280, 2560, "error"),
        (512, 1024, "error"),
    ]
    assert all(r.error == "load process 0 has said nothing for 8 s" for r in found.results)


def test_load_processes_that_fail_at_once_end_it(on: Callable[[Machine], list[tuple[float, int, int]]]) -> None:
    def machine(level: int, tps: float, workers: int, before: int) -> Figures:
        raise ClientError("load process 0 did not start")

    on(machine)
    with pytest.raises(ClientError, match="did not start"):
        run(Settings(rates=(20.0,)))


def test_what_was_found_before_an_interrupt_is_kept(on: Callable[[Machine], list[tuple[float, int, int]]]) -> None:
    def machine(level: int, tps: float, workers: int, before: int) -> Figures:
        del workers, before
        if level > 1000:
            raise KeyboardInterrupt
        return probe(level, tps)

    on(machine)
    progress = Progress()
    with pytest.raises(KeyboardInterrupt):
        anyio.run(calibrate, Settings(rates=(20.0,)), progress)
    (result,) = progress.results
    assert (result.streams, result.limit, result.at_least) == (640, "interrupted", True)


def test_document_of_progress(on: Callable[[Machine], list[tuple[float, int, int]]]) -> None:
    on(_up_to(10_000))
    settings = Settings(rates=(50.0, 20.0), window_s=2.0)
    made = document(settings, run(settings))
    assert [r.tps for r in made.results] == [20.0, 50.0], "by rate"
    assert (made.window_s, made.ttft_ms, made.decode_s) == (2.0, 200.0, 2.0)
    assert made.machine.cores >= 1


def test_the_pace_of_a_rate() -> None:
    settings = Settings()
    assert settings.pace(50.0) == Pace(50.0, 200.0, 101)
    assert settings.pace(50.0).stream_s == pytest.approx(2.2)
    assert settings.pace(0.2).tokens == 2
    assert probe_s(settings.pace(50.0), 3.0) == pytest.approx(2 * 2.2 + 3.0 + 1.4)


def test_the_most_streams_that_the_system_allows() -> None:
    assert most_streams(10, 1) == 10
    assert 1 <= most_streams(10**9, 1) <= 20_000
    assert most_streams(10**9, 2) <= 40_000


def test_time_is_shared_between_the_searches_that_are_left(
    on: Callable[[Machine], list[tuple[float, int, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock on which each probe takes 10 s: two searches of 60 s share 120 s."""
    clock = [0.0]

    def machine(level: int, tps: float, workers: int, before: int) -> Figures:
        del workers, before
        if tps:
            clock[0] += 10
        return probe(level, tps)

    asked = on(machine)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    settings = Settings(rates=(20.0, 50.0), max_streams=10**9, budget_s=120, window_s=4.2)
    assert probe_s(settings.pace(50.0), settings.window_s) == pytest.approx(10)
    anyio.run(calibrate, settings, Progress(began=0.0))
    assert sum(tps == 20.0 for tps, _, _ in asked) == 6
    assert sum(tps == 50.0 for tps, _, _ in asked) == 6
