"""Levels that come to nothing: a load process is lost, or records are not taken. What is kept, what is told."""

from pathlib import Path
from typing import Any

import anyio

from agentperf.errors import ClientError
from agentperf.fleet.fleet import ProcessLostError
from agentperf.fleet.messages import Batch
from agentperf.measure.health import WorkerSample
from agentperf.measure.record import Record
from agentperf.run.conductor import MAX_LOST_IN_A_ROW, as_result, conduct
from agentperf.run.probe import ProbeOutcome, ProbeState, as_event, run_probe
from agentperf.store.rundir import RunWriter, read_run
from tests.measure.records import record
from tests.run.virtually import search_plan

S = 1_000_000_000
PLAN = search_plan("20tps", max_agents=4)
TIMED = search_plan("20tps", max_agents=4, duration_s=19.0)


def records(count: int, at_s: float = 0.0) -> list[Record]:
    return [record(int(at_s) + i, agent=i % 4) for i in range(count)]


def batch(at_s: float, found: list[Record], worker: int = 0, *, probe: int = 1, **sample: Any) -> Batch:
    return Batch(
        worker=worker,
        probe=probe,
        at_ns=round(at_s * S),
        records=found,
        sample=WorkerSample(worker, round(at_s * S), [0.0] * 10, 0.1, 10**8, 20, 10, **sample),
        agents=4,
        open=0,
        first_token=0,
        waiting=0,
        oldest_open_ns=None,
    )


class Fleet:
    """Says what it is told to say, and ends as it is told to end."""

    meter = None

    def __init__(self, said: list[Batch], lost: list[tuple[int, str]] | None = None) -> None:
        self.said, self.lost = said, lost
        self.stopped: list[float] = []
        self.repaired: list[Any] = []
        self.broken: ClientError | None = None

    def now_ns(self) -> int:
        return 0

    async def start_level(self, probe: int, level: int, spread_s: float) -> None:
        self.probe = probe

    async def stop_level(self, grace_s: float) -> None:
        self.stopped.append(grace_s)

    async def reports(self) -> Any:
        for each in self.said:
            yield each
        if self.lost:
            raise ProcessLostError(self.lost)

    async def repair(self) -> list[tuple[int, str]]:
        if self.broken is not None:
            raise self.broken
        self.repaired.append(self.lost)
        return self.lost or []


def probe(fleet: Fleet, state: ProbeState | None = None) -> tuple[ProbeOutcome, list[Record]]:
    taken: list[Record] = []
    state = state or ProbeState(PLAN, 1, 4, "ramp", 0)

    async def main() -> ProbeOutcome:
        return await run_probe(
            fleet,  # type: ignore[arg-type]
            state,
            take_records=taken.extend,
            on_batch=lambda _: None,
            interrupts=lambda: 0,
        )

    return anyio.run(main), taken


KILLED = [(1, "was killed (SIGKILL)")]


def test_a_lost_load_process_voids_the_level_and_keeps_its_records() -> None:
    outcome, taken = probe(Fleet([batch(1, records(5)), batch(2, records(3, 1))], KILLED))
    assert outcome.void == "load process 1 was killed (SIGKILL): level 4 is void"
    assert outcome.health.status == "invalid"
    assert outcome.warnings == ["client: load process 1 was killed (SIGKILL): level 4 is void"]
    assert len(taken) == 8
    verdict = outcome.verdicts["20tps"]
    assert verdict.status == "invalid"
    assert verdict.reason.startswith("process_lost: load process 1 was killed (SIGKILL): level 4 is void")
    told = as_result(outcome)
    assert told.note.startswith("process_lost: ")
    assert as_event(outcome)["void"] == outcome.void


def test_one_that_is_lost_after_the_window_was_complete_voids_nothing() -> None:
    state = ProbeState(TIMED, 1, 4, "ramp", 0)
    state.open_ns, state.close_ns, state.phase = 1 * S, 20 * S, "settling"
    outcome, _ = probe(Fleet([batch(21, records(30))], KILLED), state)
    assert outcome.void is None
    assert outcome.health.status == "ok"
    assert any("load process 1 was killed (SIGKILL) while the level drained" in w for w in outcome.warnings)


def test_one_that_is_lost_while_requests_of_the_window_are_open_voids() -> None:
    state = ProbeState(TIMED, 1, 4, "ramp", 0)
    state.open_ns, state.close_ns, state.phase = 1 * S, 20 * S, "settling"
    open_still = batch(21, records(30))
    open_still.oldest_open_ns = 19 * S
    outcome, _ = probe(Fleet([open_still], KILLED), state)
    assert outcome.void is not None


def test_a_window_is_not_complete_until_every_load_process_has_spoken_since() -> None:
    state = ProbeState(TIMED, 1, 4, "ramp", 0)
    state.open_ns, state.close_ns, state.phase = 1 * S, 20 * S, "settling"
    silent = batch(19.5, records(3), worker=1)  # idle then, and what it sent afterwards nobody knows
    state.take(silent)
    state.take(batch(21, records(30)))
    assert state.step() is None and state.phase == "settling"
    outcome, _ = probe(Fleet([batch(22, [])], KILLED), state)
    assert outcome.void is not None
    spoken = ProbeState(TIMED, 1, 4, "ramp", 0)
    spoken.open_ns, spoken.close_ns, spoken.phase = 1 * S, 20 * S, "settling"
    spoken.take(batch(20.5, records(3), worker=1))
    spoken.take(batch(21, records(30)))
    assert spoken.step() is not None and spoken.phase == "draining"


def test_a_load_process_that_holds_too_much_voids_the_level_at_once() -> None:
    fleet = Fleet([batch(1, records(5)), batch(2, records(3, 1), overfull=True), batch(3, records(2, 2))])
    outcome, taken = probe(fleet)
    assert fleet.stopped == [0.0]
    assert len(taken) == 10
    assert outcome.health.cause == "collector_limited"
    assert outcome.verdicts["20tps"].reason.startswith("collector_limited: ")


def run(fleet: Fleet, directory: Path) -> Any:
    writer = RunWriter.create(directory)
    writer.write_manifest({"schema_version": 1, "name": "t", "simulated": True, "slos": []})

    async def main() -> Any:
        return await conduct(PLAN, fleet, writer, lambda _: None, handle_signals=False)  # type: ignore[arg-type]

    result = anyio.run(main)
    writer.finish()
    return result


def test_three_lost_probes_in_a_row_end_the_run_with_what_there_is(tmp_path: Path) -> None:
    fleet = Fleet([batch(1, records(5))], KILLED)
    done, progress = run(fleet, tmp_path / "r")
    assert len(progress.history) == MAX_LOST_IN_A_ROW == 3
    assert isinstance(progress.failure, ClientError)
    assert "lost at 3 probes in a row, at last: load process 1 was killed (SIGKILL)" in str(progress.failure)
    assert done.reason == "budget"
    assert any("ended early: load processes were lost" in n for n in done.answers[0].notes)
    read = read_run(tmp_path / "r")
    assert [e["event"] for e in read.events].count("load_process_replaced") == 3
    assert read.summary is not None
    assert (read.summary["reason"], read.summary["complete"]) == ("failed", False)
    assert set(read.records().column("phase").to_pylist()) == {"void"}


def test_a_replacement_that_does_not_start_ends_the_run(tmp_path: Path) -> None:
    fleet = Fleet([], KILLED)
    fleet.broken = ClientError("load process 1 could not start: it ended with code 1")
    done, progress = run(fleet, tmp_path / "r")
    assert progress.history == []
    assert progress.failure is fleet.broken
    assert done.answers[0].capacity is None
