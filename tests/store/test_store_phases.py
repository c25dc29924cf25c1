"""Phases are a pure function of the issue time and the probe's window."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from run_journals import record

from agentperf.run.probe import INTERRUPTED
from agentperf.store.phases import INTERRUPTED as STORED
from agentperf.store.phases import PHASES, Window, phase_codes, phase_of, windows_of, with_phases
from agentperf.store.schema import to_batch, to_records

SMALL = st.integers(-50, 50)


def test_edges() -> None:
    assert [phase_of(t, 10, 20) for t in (9, 10, 19, 20, 21)] == ["warmup", "window", "window", "cooldown", "cooldown"]


@given(st.lists(st.tuples(SMALL, st.integers(1, 4))), st.dictionaries(st.integers(1, 3), st.tuples(SMALL, SMALL)))
def test_columns_agree_with_the_function(rows: list[tuple[int, int]], edges: dict[int, tuple[int, int]]) -> None:
    windows = {n: Window(min(e), max(e)) for n, e in edges.items()}
    codes = phase_codes(
        np.array([t for t, _ in rows], dtype=np.int64), np.array([p for _, p in rows], dtype=np.int64), windows
    )
    expected = [phase_of(t, *windows[p][:2]) if p in windows else "warmup" for t, p in rows]
    assert [PHASES[c] for c in codes] == expected


def _events(*, interrupted: bool) -> list[dict[str, object]]:
    return [
        {"event": "probe_started", "probe": 1, "level": 4},
        {
            "event": "probe_finished",
            "probe": 1,
            "window": {"open_ns": 100_000_000, "close_ns": 300_000_000},
            "interrupted": interrupted,
        },
        {"event": "probe_started", "probe": 2, "level": 8},
    ]


def test_only_finished_probes_have_windows() -> None:
    assert windows_of(_events(interrupted=False)) == {1: Window(100_000_000, 300_000_000)}


def test_records_get_the_phase_of_their_own_probe() -> None:
    rows = [record(i, phase="window") for i in range(4)] + [record(1, probe=2, phase="window")]
    table = with_phases(pa.Table.from_batches([to_batch(rows)]), windows_of(_events(interrupted=False)))
    assert [r.phase for r in to_records(table)] == ["warmup", "window", "window", "cooldown", "warmup"]
    assert table.schema == to_batch(rows).schema


def test_what_an_interruption_cut_off_is_named_so() -> None:
    rows = [
        record(1, outcome="truncated", error_class="cut_off"),
        record(1, outcome="failed", error_class="timeout"),
        record(1),
        record(1, probe=2, outcome="truncated", error_class="cut_off"),
    ]
    table = pa.Table.from_batches([to_batch(rows)])
    named = with_phases(table, windows_of(_events(interrupted=True)))
    assert STORED == INTERRUPTED
    assert named.column("error_class").to_pylist() == ["interrupted", "timeout", None, "cut_off"]
    same = with_phases(table, windows_of(_events(interrupted=False)))
    assert same.column("error_class").to_pylist() == ["cut_off", "timeout", None, "cut_off"]
