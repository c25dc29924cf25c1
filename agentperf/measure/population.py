"""The requests of a window as columns that only grow: what verdicts, and the view of a running level, are made of.

Each record is looked at once, when it comes. Live figures and final ones come from the same columns.
"""

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from agentperf.measure.bursts import Bounds, bounds_of, can_tell, is_buffered, is_suspect
from agentperf.measure.metrics import counts_for_slo, speed_for_verdict
from agentperf.measure.record import Record
from agentperf.measure.streams import came_at_once
from agentperf.slo.verdict import Observations
from agentperf.wire import failures

View = Literal["seen", "best", "worst"]
"""As it was seen; or, for replies that came out of a buffer, the best or the worst that the server can have done."""
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

_MEASURES = ("speed", "ttft", "ttfo", "itl", "e2e_speed")


def _value(value: float | None) -> float:
    return math.nan if value is None else value


class Population:
    """Columns of the requests that count for an SLO, in the order of their end, and counts of all."""

    __slots__ = (
        "_bounds",
        "_failed",
        "_measures",
        "_play",
        "_plays",
        "_start_ns",
        "_turn",
        "at_once",
        "buffered",
        "rate_limited",
        "records",
        "tellable",
    )

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._measures: dict[str, array[float]] = {name: array("d") for name in _MEASURES}
        self._turn = array("q")
        self._play = array("q")
        self._plays: dict[str, int] = {}
        self._failed = array("b")
        self._start_ns = array("q")
        self._bounds: dict[int, Bounds] = {}
        self.records = 0
        """Requests taken, also those that count for nothing."""
        self.rate_limited = 0
        self.tellable = 0
        self.buffered = 0
        self.at_once = 0
        """Successful replies that came at one moment, those of buffers left out: they have no speed and no bounds."""
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        """Requests that count for an SLO."""
        return len(self._failed)

    @property
    def suspect(self) -> bool:
        """Whether so many replies came out of a buffer that the stamps are in doubt."""
        return is_suspect(self.buffered, self.tellable)

    def add(self, record: Record) -> None:
        """Take one request that has ended."""
        self.records += 1
        self.rate_limited += record.error_class == failures.RATE_LIMITED
        if not counts_for_slo(record):
            return
        ok = record.outcome == "ok"
        late = math.nan if ok else math.inf
        columns = self._measures
        columns["speed"].append(_value(speed_for_verdict(record)))
        columns["ttft"].append(_value(record.ttft_s) if ok else late)
        columns["ttfo"].append(_value(record.ttfo_s) if ok else late)
        columns["itl"].append(_value(record.itl_s) if ok else late)
        columns["e2e_speed"].append(_value(record.e2e_tps) if ok else 0.0)
        self._turn.append(record.turn + 1)
        self._play.append(self._plays.setdefault(record.play, len(self._plays)))
        self._failed.append(not ok)
        self._start_ns.append(record.t0_ns)
        if ok:
            self._stream(record)

    def _stream(self, record: Record) -> None:
        self.tellable += can_tell(record)
        if is_buffered(record):
            self.buffered += 1
            bounds = bounds_of(record)
            if bounds is not None:
                self._bounds[len(self) - 1] = bounds
                return
        self.at_once += came_at_once(record)

    @property
    def succeeded(self) -> int:
        """Of those that count: successes."""
        return len(self) - sum(self._failed)

    def observations(self, view: View = "seen") -> Observations:
        """As arrays: failures at speed 0 and infinitely late, what was not measurable as nan."""
        columns = {name: np.array(column, dtype=np.float64) for name, column in self._measures.items()}
        if view != "seen":
            self._bound(columns, best=view == "best")
        starts = np.array(self._start_ns, dtype=np.int64)
        return Observations(
            **columns,
            turn=np.array(self._turn, dtype=np.int64),
            play=np.array(self._play, dtype=np.int64),
            failed=np.array(self._failed, dtype=np.bool_),
            start_s=(starts - (starts.min() if len(starts) else 0)) / 1e9,
        )

    def _bound(self, columns: dict[str, Floats], *, best: bool) -> None:
        for row, bounds in self._bounds.items():
            columns["speed"][row] = bounds.speed_high if best else bounds.speed_low
            columns["itl"][row] = bounds.itl_low if best else bounds.itl_high
            if best:
                columns["ttft"][row] = bounds.ttft_low
                columns["ttfo"][row] = bounds.ttfo_low


def population_of(records: "Sequence[Record] | Population") -> Population:
    """The population of these records; one that is there already is taken as it is."""
    return records if isinstance(records, Population) else Population(records)
