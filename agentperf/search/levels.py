"""One SLO's view of the history: what is known of each level, the bracket, and what would still help it."""

from dataclasses import dataclass
from typing import Literal

from agentperf.search.model import MAX_LOST, PROCESS_LOST, ProbeResult, SearchSettings, Status

Standing = Literal["pass", "fail", "tie", "inconclusive", "invalid"]


@dataclass(frozen=True, slots=True)
class Level:
    """All verdicts on one level, oldest first; probes that were lost with a load process gave none."""

    agents: int
    votes: tuple[Status, ...]
    closes: tuple[bool, ...]
    notes: tuple[str, ...]
    lost: int = 0
    """Probes that were lost with a load process."""

    @property
    def decided(self) -> int:
        """Number of verdicts that say pass or fail."""
        return self.votes.count("pass") + self.votes.count("fail")

    @property
    def standing(self) -> Standing:
        """The majority of pass and fail; without either, inconclusive, or invalid when there is nothing else.

        A level that was only ever lost is inconclusive: it could be measured, and was not.
        """
        passes, fails = self.votes.count("pass"), self.votes.count("fail")
        if passes != fails:
            return "pass" if passes > fails else "fail"
        if passes:
            return "tie"
        return "inconclusive" if "inconclusive" in self.votes or not self.votes else "invalid"

    @property
    def given_up(self) -> bool:
        """Whether load processes were lost at it so often that it is not probed again."""
        return self.lost >= MAX_LOST

    @property
    def to_repeat(self) -> bool:
        """Whether all that was tried was lost with a load process, and it may be tried again."""
        return not self.votes and not self.given_up

    @property
    def unsettled(self) -> bool:
        """Whether another look is due: a third where two contradict, a second where the first said nothing."""
        if self.given_up:
            return False
        if self.standing == "tie":
            return len(self.votes) < 3
        return self.standing == "inconclusive" and len(self.votes) < 2

    @property
    def to_confirm(self) -> bool:
        """Whether the only decisive verdict was close to the limit, and the level was not looked at since."""
        return self.decided == 1 and self.votes[-1] in ("pass", "fail") and self.closes[-1] and not self.given_up


@dataclass(frozen=True, slots=True)
class View:
    """What the history says about one SLO. `low` is 0 without a pass, `high` None without a fail.

    The bracket is [largest pass below the smallest fail, smallest fail]. `between` are the levels strictly inside it
    that were probed and are neither, `strays` the passes above the smallest fail: they contradict it.
    """

    levels: dict[int, Level]
    low: int
    high: int | None
    between: tuple[Level, ...]
    strays: tuple[Level, ...]

    @property
    def cap(self) -> int | None:
        """Lowest invalid level inside the bracket: nothing at or above it can be measured."""
        return next((level.agents for level in self.between if level.standing == "invalid"), None)

    @property
    def top(self) -> int:
        """Highest level probed, 0 before the first."""
        return max(self.levels, default=0)


@dataclass(frozen=True, slots=True)
class Want:
    """A level that would help one SLO; lower `urgency` goes first."""

    level: int
    why: str
    urgency: int


def was_lost(result: ProbeResult) -> bool:
    """Whether the probe ended because a load process was gone."""
    return result.note.startswith(PROCESS_LOST)


def view(slo: str, history: tuple[ProbeResult, ...]) -> View:
    """Collect one SLO's verdicts. Probes that did not judge it do not count."""
    found: dict[int, list[ProbeResult]] = {}
    for result in history:
        if slo in result.statuses:
            found.setdefault(result.level, []).append(result)
    levels = {
        agents: Level(
            agents,
            tuple(r.statuses[slo] for r in results if not was_lost(r)),
            tuple(r.close.get(slo, False) for r in results if not was_lost(r)),
            tuple(r.note for r in results if r.note and r.statuses[slo] == "invalid"),
            sum(was_lost(r) for r in results),
        )
        for agents, results in sorted(found.items())
    }
    high = min((a for a, level in levels.items() if level.standing == "fail"), default=None)
    passes = [a for a, level in levels.items() if level.standing == "pass"]
    low = max((a for a in passes if high is None or a < high), default=0)
    between = tuple(
        level
        for a, level in levels.items()
        if a > low and (high is None or a < high) and level.standing in ("tie", "inconclusive", "invalid")
    )
    strays = tuple(levels[a] for a in passes if high is not None and a > high)
    return View(levels, low, high, between, strays)


def want(seen: View, settings: SearchSettings, may_reprobe: bool) -> Want | None:
    """The next level for this SLO, None when it has its answer."""
    return (
        _repeat(seen)
        or (_contradiction(seen) if may_reprobe else None)
        or (_unsettled(seen, "tie") if may_reprobe else None)
        or _ramp(seen, settings)
        or _unsettled(seen, "inconclusive")
        or _bisect(seen, settings)
        or (_confirm(seen) if may_reprobe else None)
    )


def gaps(seen: View, settings: SearchSettings) -> list[tuple[int, int]]:
    """Stretches worth halving: from the largest pass up to what is not decided, and from there up to the fail."""
    if seen.high is None and seen.cap is None and not seen.between:
        return []
    if seen.high is None and seen.cap is not None and seen.low > 0:
        return []  # the client ended the way up: the answer is "at least the largest pass"
    open_ends = [level.agents for level in seen.between]
    edges = [e for e in (*open_ends, seen.high) if e is not None]
    found = [(seen.low, edges[0])]
    if open_ends and seen.high is not None and seen.cap is None:
        found.append((open_ends[-1], seen.high))
    return [(a, b) for a, b in found if b - a > settings.step(a)]


def _repeat(seen: View) -> Want | None:
    """A level whose probe was lost, at once."""
    level = next((level for level in seen.levels.values() if level.to_repeat), None)
    return None if level is None else Want(level.agents, "a load process was lost", 0)


def _contradiction(seen: View) -> Want | None:
    """A fail below a pass: look again at the fail, then at the nearest pass above it, until one of them gives way."""
    if not seen.strays or seen.high is None:
        return None
    for level in (seen.levels[seen.high], seen.strays[0]):
        if level.decided < 2 and len(level.votes) < 3 and not level.given_up:
            other = seen.strays[0].agents if level.agents == seen.high else seen.high
            return Want(level.agents, f"contradicts {other}", 0)
    return None


def _ramp(seen: View, settings: SearchSettings) -> Want | None:
    """Double until a fail, the largest allowed level, or one that cannot be measured."""
    if seen.high is not None or seen.cap is not None or seen.top >= settings.max_agents:
        return None
    if seen.top < settings.start:
        return Want(settings.start, "start", 1)
    return Want(min(2 * seen.top, settings.max_agents), "ramp", 1)


def _unsettled(seen: View, standing: Standing) -> Want | None:
    """A level inside the bracket that has not had all its looks. A conflict is settled before the ramp goes on; what
    was inconclusive only after it, for a pass above may make it irrelevant."""
    for level in seen.between:
        if level.unsettled and level.standing == standing:
            tie = standing == "tie"
            return Want(level.agents, "verdicts conflict" if tie else "was inconclusive", 0 if tie else 2)
    return None


def _bisect(seen: View, settings: SearchSettings) -> Want | None:
    for low, high in gaps(seen, settings):
        return Want((low + high) // 2, "bisect", 3)
    return None


def _confirm(seen: View) -> Want | None:
    """The ends of the bracket once more, where their only verdict was close."""
    for agents in (seen.low, seen.high):
        if agents and seen.levels[agents].to_confirm:
            return Want(agents, "confirm", 4)
    return None
