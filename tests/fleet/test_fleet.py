"""Load processes over real pipes and sockets: they hold the load, and their death is told, never waited for."""

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from agentperf.errors import ClientError
from agentperf.fleet import child as child_module
from agentperf.fleet.fleet import Fleet, open_fleet
from agentperf.fleet.messages import Batch, Job, Target
from agentperf.measure.record import Record
from agentperf.replay.settings import ReplaySettings
from agentperf.wire.chat import BodySettings
from agentperf.wire.endpoint import Limits, parse_endpoint
from tests.fleet.tiny_server import tiny_server
from tests.replay.fakes import tree

pytestmark = pytest.mark.anyio


def jobs(url: str) -> Callable[[int, int], Job]:
    target = Target(endpoint=pickle.dumps((parse_endpoint(url), Limits())))
    settings = ReplaySettings(body=BodySettings(model="m", output="max"), time_scale=0.02, run_id="t")
    trees = [tree(f"s{i}", 3) for i in range(5)]

    def job(worker: int, workers: int) -> Job:
        return Job(worker=worker, workers=workers, target=target, settings=settings, trees=trees, chars_per_token=4.0)

    return job


async def hold(fleet: Fleet, level: int, requests: int, probe: int = 1) -> list[Batch]:
    """Hold a level until so many requests have ended, then let it drain."""
    await fleet.start_level(probe, level, 0.05)
    batches: list[Batch] = []
    stopping = False
    async for batch in fleet.reports():
        batches.append(batch)
        if not stopping and sum(len(b.records) for b in batches) >= requests:
            stopping = True
            await fleet.stop_level(5.0)
    return batches


def records_of(batches: list[Batch]) -> list[Record]:
    return [r for b in batches for r in b.records]


@pytest.mark.parametrize("workers", [1, 2])
async def test_agents_are_spread_over_the_workers_and_every_request_has_its_record(workers: int) -> None:
    async with tiny_server() as server, open_fleet(jobs(server.url), workers) as fleet:
        batches = await hold(fleet, 6, 40)
        records = records_of(batches)
        assert {r.agent for r in records} == set(range(6))
        assert {r.worker for r in records} == set(range(workers))
        assert all(r.agent % workers == r.worker for r in records)
        assert all(r.outcome == "ok" for r in records), {r.error for r in records}
        assert sorted(r.request_id for r in records) == sorted(server.ids)
        assert 0 < server.peak <= 6
        assert {b.sample.worker for b in batches} == set(range(workers))
        for r in records:
            assert r.due_ns <= r.t0_ns <= (r.sent_ns or 0) <= (r.first_byte_ns or 0) <= r.end_ns


async def test_levels_follow_one_another_with_fresh_salts() -> None:
    async with tiny_server() as server, open_fleet(jobs(server.url), 1) as fleet:
        first = records_of(await hold(fleet, 2, 10, probe=1))
        second = records_of(await hold(fleet, 3, 10, probe=2))
        assert {r.probe for r in first} == {1}
        assert {r.probe for r in second} == {2}
        assert {r.level for r in second} == {3}
        assert not {r.request_id for r in first} & {r.request_id for r in second}


def children() -> list[int]:
    """Load processes that this process started (from /proc)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = path.read_text()
            line = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat.rsplit(")", 1)[1].split()[1]) == os.getpid() and b"agentperf.fleet.process" in line:
            found.append(int(path.parent.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")


@needs_proc
async def test_a_killed_worker_is_told_at_once() -> None:
    async with tiny_server() as server, open_fleet(jobs(server.url), 2) as fleet:
        await fleet.start_level(1, 4, 0.0)
        with pytest.raises(ClientError, match="load process"):
            async for _ in fleet.reports():
                for pid in children()[:1]:
                    os.kill(pid, signal.SIGKILL)


@needs_proc
async def test_a_stopped_worker_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "SILENCE_S", 1.5)
    stopped: list[int] = []
    async with tiny_server() as server, open_fleet(jobs(server.url), 1) as fleet:
        await fleet.start_level(1, 2, 0.0)
        with pytest.raises(ClientError, match="said nothing"), anyio.fail_after(30):
            async for _ in fleet.reports():
                if not stopped:
                    stopped = children()
                    for pid in stopped:
                        os.kill(pid, signal.SIGSTOP)
    assert stopped
    assert not children()


@needs_proc
async def test_no_process_outlives_the_fleet() -> None:
    async with tiny_server() as server, open_fleet(jobs(server.url), 2) as fleet:
        await fleet.start_level(1, 4, 0.0)
        async for _ in fleet.reports():
            assert len(children()) == 2
            break
    assert not children()


async def test_a_worker_that_cannot_start_is_one_line() -> None:
    def job(worker: int, workers: int) -> Job:
        made = jobs("http://127.0.0.1:1/v1")(worker, workers)
        return Job(
            worker=worker,
            workers=workers,
            target=Target(endpoint=b"no pickle"),
            settings=made.settings,
            trees=made.trees,
            chars_per_token=4.0,
        )

    with pytest.raises(ClientError, match="load process 0 could not start: it failed: UnpicklingError"):
        async with open_fleet(job, 1):
            pytest.fail("a fleet without its load process")
