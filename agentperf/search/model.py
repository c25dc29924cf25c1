"""What goes into the planner and what comes out of it. All of it can be written to the journal and read back."""

import math
from typing import Final, Literal

from msgspec import Struct

Status = Literal["pass", "fail", "inconclusive", "invalid"]
Reason = Literal[
    "found",
    "all_pass",
    "none_pass",
    "not_monotone",
    "client_limited",
    "rate_limited",
    "unmeasurable",
    "narrowed",
    "inconclusive",
    "budget",
    "swept",
]
Lean = Literal["pass", "fail"]

PROCESS_LOST: Final = "process_lost"
MAX_LOST: Final = 3
"""Probes of one level that may be lost to a load process that died; then the level stays inconclusive."""

UNMEASURABLE: Final = ("buffered", "no_speed")
"""What the streams of a level were when its SLO cannot be judged, however good the client."""

RESOLUTION: Final = 0.01
"""1 % of the level: a bracket below 100 agents closes to one agent, and [1024, 2048] closes on 1,840 at a width of 16,
as the published AA-AgentPerf figure did. 2 % would stop there at 32; finer than 1 % is finer than runs repeat."""


class SearchSettings(Struct, frozen=True, kw_only=True):
    """What to search.

    `slos` are names, all judged by every probe as far as it goes. `resolution` is the width at which a bracket counts
    as closed: agents (an int) or a fraction of the level. `max_probes` bounds the whole search; None stands for
    `default_max_probes`. `reprobes` is how many second and third looks at a level (ends of the bracket that only lean,
    contradictions; not those after an inconclusive one) each SLO may ask for. `confidence` is that with which the
    bracket of each SLO holds its capacity; `search.spending` splits its error over the levels.
    """

    slos: tuple[str, ...]
    max_agents: int
    start: int = 1
    resolution: int | float = RESOLUTION
    max_probes: int | None = None
    reprobes: int = 8
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not self.slos or len(set(self.slos)) != len(self.slos):
            raise ValueError("a search needs at least one SLO, and each only once")
        if not 1 <= self.start <= self.max_agents:
            raise ValueError("the start level lies between 1 and max_agents")
        if not 0.0 < self.confidence < 1.0:
            raise ValueError("a confidence lies between 0 and 1")
        if isinstance(self.resolution, int) and self.resolution < 1:
            raise ValueError("a resolution in agents is at least 1")
        if not self.resolution > 0 or (isinstance(self.resolution, float) and self.resolution >= 1):
            raise ValueError("a resolution as a fraction lies between 0 and 1")

    def step(self, level: int) -> int:
        """Width at which a bracket that begins at `level` is closed. Below the first pass it is always 1."""
        if level == 0:
            return 1
        if isinstance(self.resolution, int):
            return self.resolution
        # 0.01 * 100 must not become 1.0000000000000002 and then 2.
        return max(1, math.ceil(round(self.resolution * level, 9)))

    @property
    def probe_limit(self) -> int:
        """Probes after which the search ends with `budget`."""
        return default_max_probes(self) if self.max_probes is None else self.max_probes


def default_max_probes(settings: SearchSettings) -> int:
    """An upper bound in O(log N) a search: per SLO 8 (ceil(log2 N) + 1) levels and the re-probes.

    A monotone endpoint that answers clearly needs at most 2 ceil(log2 N) + 4 for one SLO: the ramp, the bisection, two
    confirmations. The rest is for inconclusive levels (probed twice, searched on both sides) and for ends that a
    confirmation overturned (searched again).
    """
    depth = math.ceil(math.log2(settings.max_agents)) + 1
    return len(settings.slos) * (8 * depth + settings.reprobes)


class Point(Struct, frozen=True, kw_only=True):
    """What a probe saw of one term: a share of requests beyond its limit, from `n_eff` independent ones."""

    term: str
    share: float
    n_eff: float
    allowed: float


class ProbeResult(Struct, frozen=True, kw_only=True):
    """One probe: a verdict for each SLO it judged, and whether that verdict was close (see `slo.verdict`).

    The verdict of a level that was probed before rests on all its probes. `lean` is where an inconclusive one points,
    `points` what it saw of the SLO's terms, `hopeless` whether another window would not decide it either. `note` says
    why a level is invalid; one that begins with `rate_limited` is told apart from a limited client, and one that begins
    with `process_lost` counts for nothing.
    """

    level: int
    statuses: dict[str, Status]
    close: dict[str, bool] = {}
    note: str = ""
    lean: dict[str, Lean | None] = {}
    points: dict[str, tuple[Point, ...]] = {}
    hopeless: dict[str, bool] = {}


class Probe(Struct, frozen=True, kw_only=True):
    """Hold this level next. `slos` are those that wait for it: the probe may end when these are decided.

    `alpha` is the chance at which its verdict may be wrong. When it `may_lean` it may also end as soon as it is plain
    where the level points: that steers the search and is no verdict.
    """

    level: int
    why: str
    slos: tuple[str, ...]
    alpha: float = 0.05
    may_lean: bool = False


class Estimate(Struct, frozen=True, kw_only=True):
    """Where the curve of all levels crosses the limit: the likeliest capacity with its band. It proves nothing.

    `confidence` is that of the band; its ends are None where the curve does not cross inside the levels probed.
    """

    agents: float
    low: float | None
    high: float | None
    confidence: float


class Answer(Struct, frozen=True, kw_only=True):
    """The result for one SLO: capacity is the largest pass below the smallest fail.

    It is 0 when one agent fails, and None when nothing passed and one agent was not seen to fail.
    """

    slo: str
    capacity: int | None
    largest_pass: int | None
    smallest_fail: int | None
    reason: Reason
    monotone: bool
    notes: tuple[str, ...] = ()
    confidence: float | None = None
    """Of both ends of the bracket together."""
    estimate: Estimate | None = None
    undecided: tuple[int, ...] = ()
    """Levels inside the bracket that were probed and not decided."""


class Done(Struct, frozen=True, kw_only=True):
    """The search is over. `reason` is that of the answer which is least sure."""

    answers: tuple[Answer, ...]
    reason: Reason
