"""A parent that takes records slowly: bounded memory, nothing lost, counted, and no load process taken for dead."""

import os
import signal
from pathlib import Path

import anyio
import pytest

from agentperf.errors import ClientError
from agentperf.fleet import child as child_module
from agentperf.fleet import fleet as fleet_module
from agentperf.fleet.fleet import Fleet, ProcessLostError, open_fleet
from agentperf.fleet.messages import Batch
from tests.fleet.test_fleet import children, hold, jobs, needs_proc, records_of
from tests.fleet.test_late_client import burden
from tests.fleet.tiny_server import TinyServer, tiny_server

pytestmark = pytest.mark.anyio

SMALL = """
from agentperf.fleet import worker
worker.MAX_PENDING_RECORDS = 60
worker.BATCH_RECORDS = 10
worker.BATCH_S = 0.05
"""


async def late(fleet: Fleet, server: TinyServer) -> list[Batch]:
    """Take the first report, then none until no turn is issued any more; then all."""
    batches: list[Batch] = []
    async for batch in fleet.reports():
        if not batches:
            seen = -1
            while seen < len(server.ids):
                seen = len(server.ids)
                await anyio.sleep(1.5)  # longer than the silence that would be taken for death
            await fleet.stop_level(5.0)
        batches.append(batch)
    return batches


async def test_records_wait_within_bounds_and_none_is_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    burden(monkeypatch, tmp_path, SMALL)
    monkeypatch.setattr(fleet_module, "INBOX", 2)
    monkeypatch.setattr(child_module, "SILENCE_S", 1.0)
    async with tiny_server(0.01) as server, open_fleet(jobs(server.url), 1) as fleet:
        await fleet.start_level(1, 12, 0.0)
        with anyio.fail_after(90):
            batches = await late(fleet, server)
        records = records_of(batches)
        assert len(records) == len(server.ids) == len({r.request_id for r in records}), "nothing is lost"
        assert any(b.sample.overfull for b in batches)
        # At the bound no turn is issued any more; what is open may still end.
        assert max(b.sample.pending_records for b in batches) <= 60 + 12
        assert sum(b.sample.blocked_s for b in batches) > 0.5
        assert all(len(b.records) <= 10 for b in batches)


async def test_a_request_counts_as_open_until_its_record_is_handed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Or a window would be closed while records of it still wait in a load process."""
    burden(monkeypatch, tmp_path, SMALL.replace("BATCH_RECORDS = 10", "BATCH_RECORDS = 1"))
    async with tiny_server(0.01) as server, open_fleet(jobs(server.url), 1) as fleet:
        batches = await hold(fleet, 8, 60)
    for index, batch in enumerate(batches):
        later = [r.t0_ns for b in batches[index + 1 :] for r in b.records if r.end_ns <= batch.at_ns]
        assert not later or (batch.oldest_open_ns or 0) <= min(later)


async def test_load_processes_begin_at_one_moment() -> None:
    async with tiny_server() as server, open_fleet(jobs(server.url), 2) as fleet:
        batches = await hold(fleet, 4, 12)
        late = {b.worker: b.late_ns for b in batches}
        assert set(late) == {0, 1}
        first = {w: min(r.t0_ns for b in batches if b.worker == w for r in b.records) for w in late}
        # What they say of themselves is what their requests show (spread over 0.05 s).
        assert abs((first[0] - first[1]) - (late[0] - late[1])) < 300e6


@needs_proc
async def test_the_others_end_at_once_and_the_lost_one_is_replaced() -> None:
    async with tiny_server() as server, open_fleet(jobs(server.url), 2) as fleet:
        await fleet.start_level(1, 4, 0.0)
        batches: list[Batch] = []
        killed = 0
        with pytest.raises(ProcessLostError, match=r"load process \d was killed \(SIGKILL\)") as raised:
            async for batch in fleet.reports():
                batches.append(batch)
                if not killed and records_of(batches):
                    killed = children()[0]
                    os.kill(killed, signal.SIGKILL)
        ((worker, cause),) = raised.value.lost
        assert records_of(batches), "what had come before is kept"
        assert await fleet.repair() == [(worker, cause)]
        assert await fleet.repair() == []
        assert killed not in children()
        again = records_of(await hold(fleet, 4, 12, probe=2))
        assert {r.worker for r in again} == {0, 1}
        assert {r.probe for r in again} == {2}


@needs_proc
async def test_one_that_is_stopped_between_levels_is_replaced_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "ANSWER_LIMIT_S", 0.5)
    async with tiny_server() as server, open_fleet(jobs(server.url), 1) as fleet:
        assert records_of(await hold(fleet, 2, 4))
        os.kill(children()[0], signal.SIGSTOP)
        ((worker, cause),) = await fleet.repair()
        assert worker == 0
        assert "did not answer" in cause
        monkeypatch.setattr(child_module, "ANSWER_LIMIT_S", 3.0)
        assert records_of(await hold(fleet, 2, 4, probe=2))
    assert not children()


async def test_another_clock_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "import time\nreal = time.monotonic_ns\ntime.monotonic_ns = lambda: real() + 5_000_000_000\n"
    burden(monkeypatch, tmp_path, code)
    async with tiny_server() as server:
        with pytest.raises(ClientError, match=r"clock of load process 0 differs from this process' by 5\.\d+ s"):
            async with open_fleet(jobs(server.url), 1):
                pytest.fail("a fleet whose times mean nothing")
    assert not children()
