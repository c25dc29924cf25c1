"""When a probe is warm, and when its window may be looked at: pure functions of the records so far.

Warm-up ends when every agent has completed a turn and the running means of speed, TTFT and prompt length have settled:
of the turns after each agent's first, the last two blocks of `max(agents, 3)` turns agree within 10 %, or within two
standard errors of their difference. Its length is bounded; a level that has not settled by then is measured all the
same, and that is said.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from agentperf.measure.record import Record

TOLERANCE = 0.10


class WindowSettings(Struct, frozen=True, kw_only=True):
    """Bounds of one probe, in seconds and counts. All are part of the workload's identity and in the manifest."""

    warmup_min_s: float = 3.0
    warmup_max_s: float = 180.0
    window_min_s: float = 10.0
    window_max_s: float = 300.0
    first_look: int = 24
    """Ended requests at the first look. A verdict may be asked for after every request; looks only cost time, so that
    each comes at `look_growth` times the count of the one before."""
    look_growth: float = 1.2
    requests_per_agent: float = 2.0
    """The first look waits for this many ended requests per agent too."""
    settle_s: float = 300.0
    """How long the load is held for the last requests of the window; what is open then is cut off as a failure."""
    drain_s: float = 30.0
    """How long the requests that came after the window may take before the next level; they count for nothing."""


def blocks_agree(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether two blocks of observations have the same mean, within the tolerance or the noise."""
    if len(before) == 0 or len(after) == 0:
        return len(before) == len(after)
    a, b = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    difference = abs(float(b.mean() - a.mean()))
    error = math.sqrt(float(a.var()) / len(a) + float(b.var()) / len(b))
    return difference <= TOLERANCE * abs(float(a.mean())) or difference <= 2 * error


def _settled(records: Sequence[Record], block: int) -> bool:
    before, after = records[-2 * block : -block], records[-block:]
    return all(
        blocks_agree(
            [v for r in before if (v := getattr(r, name)) is not None],
            [v for r in after if (v := getattr(r, name)) is not None],
        )
        for name in ("speed_tps", "ttft_s", "expected_prompt_tokens")
    )


class WarmUp:
    """The test of warm-up, fed with records as they come; it keeps the last two blocks and no more."""

    __slots__ = ("_agents", "_block", "_last", "_later", "_seen", "_tested")

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self._block = max(agents, 3)
        self._seen: set[int] = set()
        self._last: deque[Record] = deque(maxlen=2 * self._block)
        self._later = 0
        self._tested: tuple[int, bool] = (-1, False)

    def take(self, records: Iterable[Record]) -> None:
        """Add ended requests, in the order of their end."""
        for r in records:
            if r.agent in self._seen:
                self._last.append(r)
                self._later += 1
            else:
                self._seen.add(r.agent)

    def is_warm(self, elapsed_s: float, settings: WindowSettings) -> bool:
        """Whether the level is in its steady state, `elapsed_s` after it began."""
        if elapsed_s < settings.warmup_min_s or len(self._seen) < self._agents or self._later < 2 * self._block:
            return False
        if self._tested[0] != self._later:
            self._tested = (self._later, _settled(list(self._last), self._block))
        return self._tested[1]


def is_warm(records: Sequence[Record], agents: int, elapsed_s: float, settings: WindowSettings) -> bool:
    """The same for all records of a probe so far, in the order of their end."""
    warm_up = WarmUp(agents)
    warm_up.take(records)
    return warm_up.is_warm(elapsed_s, settings)


def look_at(look: int, agents: int, settings: WindowSettings) -> int:
    """Ended requests of the window at which look number `look` (from 0) is taken."""
    first = max(settings.first_look, math.ceil(settings.requests_per_agent * agents))
    return max(first + look, int(first * settings.look_growth**look))
