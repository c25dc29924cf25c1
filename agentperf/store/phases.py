"""Which phase of its probe a record belongs to: a pure function of when it was issued and of the probe's window.

Records are written while it is not known yet when their window will close. So the journal's windows are the authority,
and phases are set from them whenever records are read or turned into the final file.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentperf.measure.metrics import CUT_OFF

Phase = Literal["warmup", "window", "cooldown", "void"]
PHASES: tuple[Phase, ...] = ("warmup", "window", "cooldown", "void")
INTERRUPTED = "interrupted"


class Window(NamedTuple):
    """The measured part of a finished probe.

    `interrupted`: what was open then was cut off by the user, or with the level. `void`: a load process was lost or its
    records not taken, so no record of the probe is of a window.
    """

    open_ns: int
    close_ns: int
    interrupted: bool = False
    void: bool = False


def phase_of(t0_ns: int, open_ns: int, close_ns: int) -> Phase:
    """warmup < open <= window < close <= cooldown."""
    return "warmup" if t0_ns < open_ns else "window" if t0_ns < close_ns else "cooldown"


def windows_of(events: Iterable[Mapping[str, Any]]) -> dict[int, Window]:
    """Windows by probe, from the `probe_finished` lines of a journal."""
    found: dict[int, Window] = {}
    for event in events:
        window = event.get("window")
        if event.get("event") == "probe_finished" and window:
            void = bool(event.get("void"))
            interrupted = bool(event.get("interrupted", False)) or void
            found[event["probe"]] = Window(window["open_ns"], window["close_ns"], interrupted, void)
    return found


def phase_codes(
    t0_ns: np.ndarray[Any, Any], probe: np.ndarray[Any, Any], windows: Mapping[int, Window]
) -> np.ndarray[Any, np.dtype[np.int8]]:
    """Index into `PHASES` of every row: `phase_of` column-wise. Without a finished window all is warm-up.

    All of a void probe is `void`.
    """
    codes = np.zeros(len(t0_ns), dtype=np.int8)
    for number in np.unique(probe).tolist():
        window = windows.get(number)
        if window is not None:
            rows = probe == number
            edges = np.array([window.open_ns, window.close_ns], dtype=np.int64)
            codes[rows] = PHASES.index("void") if window.void else np.searchsorted(edges, t0_ns[rows], side="right")
    return codes


def with_phases(table: pa.Table, windows: Mapping[int, Window]) -> pa.Table:
    """The table with its phases set, and with what an interruption cut off named so."""
    if table.num_rows == 0 or not {"t0_ns", "probe"} <= set(table.column_names):
        return table
    probe = table.column("probe").to_numpy()
    codes = phase_codes(table.column("t0_ns").to_numpy(), probe, windows)
    phases = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(PHASES)).cast(pa.string())
    table = _replace(table, "phase", phases)
    stopped = [number for number, window in windows.items() if window.interrupted]
    if not stopped or "error_class" not in table.column_names:
        return table
    classes = table.column("error_class")
    cut = pc.and_(pc.fill_null(pc.equal(classes, CUT_OFF), fill_value=False), pa.array(np.isin(probe, stopped)))
    return _replace(table, "error_class", pc.if_else(cut, INTERRUPTED, classes))


def _replace(table: pa.Table, name: str, values: Any) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table if at < 0 else table.set_column(at, table.schema.field(name), values)
