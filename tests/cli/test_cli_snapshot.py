"""What the views say of a running level and of a finished one, streams above all."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from agentperf.cli.live import level_pane
from agentperf.cli.snapshot import RECENT_SAMPLES, Snapshot, oddities, stream_words, take
from agentperf.fleet.messages import Batch
from agentperf.measure.health import WorkerSample
from agentperf.measure.metrics import summarise
from agentperf.measure.record import Record
from agentperf.measure.running import RunningLevel
from agentperf.run.conductor import Progress
from agentperf.run.probe import ProbeState
from tests.measure.records import S, failure
from tests.measure.streams import seen, timer, whole
from tests.run.virtually import search_plan

PLAN = search_plan("80tps")


def steady(events: int = 40) -> list[float]:
    return [0.5 + 0.0125 * i for i in range(events)]


def replies(count: int, times: list[float] | None = None, **changes: Any) -> list[Record]:
    return [seen(times or steady(), request_id=f"r{i}", t0_ns=i, due_ns=i, **changes) for i in range(count)]


def batch(records: list[Record], at_ns: int = 9 * S) -> Batch:
    sample = WorkerSample(0, at_ns, [0.001] * 10, 0.2, 10**8, 20, 10)
    return Batch(
        worker=0,
        probe=1,
        at_ns=at_ns,
        records=records,
        sample=sample,
        agents=4,
        open=3,
        first_token=1,
        waiting=1,
        oldest_open_ns=None,
    )


def state_with(records: list[Record]) -> ProbeState:
    state = ProbeState(PLAN, 1, 4, "ramp", 0)
    state.take(batch(records))
    return state


def pane(records: list[Record]) -> str:
    state = state_with(records)
    progress = Progress(PLAN, current=state)
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(level_pane(progress, take(state, PLAN.slos)))
    return out.getvalue()


def test_the_figures_are_those_of_the_table() -> None:
    records = [*replies(30), failure(0.5, request_id="f")]
    snap = take(state_with(records), PLAN.slos)
    final = summarise(records, level=4, open_ns=0, close_ns=9 * S)
    assert snap.p25_speed == pytest.approx(final.speed.p25)
    assert snap.p95_ttft == pytest.approx(final.ttft.p95)
    assert (snap.ended, snap.failed) == (31, 1)
    assert snap.cached_share == pytest.approx(final.cached_share)


def test_a_ttft_among_failures_is_infinite_live_too() -> None:
    records = [*replies(5), *(failure(0.1 * i, request_id=f"f{i}") for i in range(5))]
    assert summarise(records, level=4, open_ns=0, close_ns=9 * S).ttft.p95 is None
    assert take(state_with(records), PLAN.slos).p95_ttft == float("inf")
    assert "∞" in pane(records)


def test_nothing_odd() -> None:
    text = pane(replies(20))
    assert re.search(r"streams  largest gap 1[23] ms +│", text)
    assert "≈" not in text
    assert "~" not in text


def test_bursts_make_the_level_suspect_while_it_runs() -> None:
    text = pane(replies(20, timer(steady(200), 0.25, 0.1)))
    assert "bursts 20/20" in text
    assert "suspect: speeds and TTFTs are those of a buffer" in text
    assert "≈" in text


def test_estimates_are_marked() -> None:
    text = pane(replies(20, token_source="estimate"))
    assert "~" in text
    assert "estimated counts 20" in text


def test_oddities_in_a_few_words() -> None:
    records = [
        *replies(3, whole(steady(20))),
        failure(0.5, "server_error_in_stream", request_id="e", new_connection=True),
        seen(steady(), request_id="s", stale_retries=2, new_connection=True),
        *replies(1, new_connection=True),
        *replies(1, new_connection=True),
    ]
    said = oddities(RunningLevel(0, records))
    assert "at one moment 3" in said
    assert "errors inside streams 1" in said
    assert "stale connections 2" in said
    assert "new connections 4/7" in said
    assert oddities(RunningLevel(0, replies(5))) == ()


def test_only_recent_samples_of_processes_are_looked_at() -> None:
    state = state_with(replies(3))
    late = WorkerSample(0, 1, [9.0] * 10, 0.2, 10**8, 20, 10)
    good = WorkerSample(0, 2, [0.001] * 10, 0.2, 10**8, 20, 10)
    state.samples = [late] * 5 + [good] * RECENT_SAMPLES
    assert (take(state, PLAN.slos).lag_p99_s or 9) < 0.01
    state.samples = [good] * (RECENT_SAMPLES - 5) + [late] * 5
    assert (take(state, PLAN.slos).lag_p99_s or 0) > 0.01


def test_no_record_is_looked_at_to_draw() -> None:
    """The view reads figures that are there: a state whose records cannot be read draws all the same."""

    class Unreadable(list[Record]):
        def __iter__(self) -> Any:
            raise AssertionError("records are gone through")

        def __getitem__(self, at: Any) -> Any:
            raise AssertionError("records are looked at")

    state = state_with(replies(30))
    state.records = Unreadable(state.records)
    state.running.records = Unreadable(state.running.records)
    assert isinstance(take(state, PLAN.slos), Snapshot)


@pytest.mark.parametrize(
    ("records", "word"),
    [
        (replies(20), "ok"),
        (replies(20, timer(steady(200), 0.25, 0.1)), "bursts"),
        (replies(20, token_source="estimate"), "estimated"),
        (replies(20, [1.0] * 4), "at_once"),
        ([*replies(20), failure(0.1, "server_error_in_stream")], "in_band_errors"),
        (replies(20, [*steady(40), 3.0]), "stalls"),
    ],
)
def test_one_word_for_grep(records: list[Record], word: str) -> None:
    assert stream_words(summarise(records, level=4, open_ns=0, close_ns=9 * S)) == word
