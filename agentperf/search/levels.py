"""One SLO's view of the history: what is known of each level, the bracket, and what would still help it."""

from dataclasses import dataclass
from typing import Final, Literal

from agentperf.search.model import MAX_LOST, PROCESS_LOST, Lean, ProbeResult, SearchSettings, Status

Standing = Literal["pass", "fail", "leans_pass", "leans_fail", "inconclusive", "invalid"]
COARSE: Final = 0.05
"""Part of the level to which a stretch beside an undecided level is searched."""
MAX_LOOKS: Final = 3
"""Probes of one level that may try to decide it."""


@dataclass(frozen=True, slots=True)
class Level:
    """All verdicts on one level, oldest first; probes that were lost with a load process gave none."""

    agents: int
    votes: tuple[Status, ...]
    closes: tuple[bool, ...]
    notes: tuple[str, ...]
    lost: int = 0
    """Probes that were lost with a load process."""
    lean: Lean | None = None
    """Where the last verdict points, if it was inconclusive."""
    hopeless: bool = False
    """Whether another window would not decide it either."""

    @property
    def looks(self) -> int:
        """Number of verdicts that rest on a sound measurement."""
        return sum(vote != "invalid" for vote in self.votes)

    @property
    def standing(self) -> Standing:
        """The last verdict of a sound measurement, for it rests on all of them; invalid when there is none.

        A level that was only ever lost is inconclusive: it could be measured, and was not.
        """
        last = next((vote for vote in reversed(self.votes) if vote != "invalid"), None)
        if last is None:
            return "invalid" if self.votes else "inconclusive"
        if last == "inconclusive" and self.lean is not None:
            return "leans_pass" if self.lean == "pass" else "leans_fail"
        return last

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
        """Whether a second look is due, because the first said nothing at all."""
        return self.standing == "inconclusive" and self.looks < 2 and not self.hopeless and not self.given_up

    @property
    def to_decide(self) -> bool:
        """Whether it only leans, and may be looked at again to be decided."""
        leans = self.standing in ("leans_pass", "leans_fail")
        return leans and self.looks < MAX_LOOKS and self.votes[-1] != "invalid" and not self.given_up


@dataclass(frozen=True, slots=True)
class View:
    """What the history says about one SLO. `low` is 0 without a pass, `high` None without a fail.

    The bracket is [largest pass below the smallest fail, smallest fail]. `between` are the levels strictly inside it
    that were probed and are neither, `strays` the passes above the smallest fail: they contradict it. `path_low` and
    `path_high` are the same bracket when levels that lean are taken for what they lean to: there the search goes on.
    """

    levels: dict[int, Level]
    low: int
    high: int | None
    between: tuple[Level, ...]
    strays: tuple[Level, ...]
    path_low: int
    path_high: int | None

    @property
    def on_path(self) -> tuple[Level, ...]:
        """Levels strictly inside the path's bracket that say nothing."""
        return tuple(
            level
            for level in self.between
            if level.agents > self.path_low and (self.path_high is None or level.agents < self.path_high)
        )

    @property
    def cap(self) -> int | None:
        """Lowest invalid level inside the bracket: nothing at or above it can be measured."""
        return next((level.agents for level in self.on_path if level.standing == "invalid"), None)

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


def _level(agents: int, slo: str, results: list[ProbeResult]) -> Level:
    sound = [r for r in results if not was_lost(r)]
    last = next((r for r in reversed(sound) if r.statuses[slo] != "invalid"), None)
    return Level(
        agents,
        tuple(r.statuses[slo] for r in sound),
        tuple(r.close.get(slo, False) for r in sound),
        tuple(r.note for r in results if r.note and r.statuses[slo] == "invalid"),
        len(results) - len(sound),
        last.lean.get(slo) if last is not None else None,
        last is not None and last.hopeless.get(slo, False),
    )


def view(slo: str, history: tuple[ProbeResult, ...]) -> View:
    """Collect one SLO's verdicts. Probes that did not judge it do not count."""
    found: dict[int, list[ProbeResult]] = {}
    for result in history:
        if slo in result.statuses:
            found.setdefault(result.level, []).append(result)
    levels = {agents: _level(agents, slo, results) for agents, results in sorted(found.items())}
    high = min((a for a, level in levels.items() if level.standing == "fail"), default=None)
    passes = [a for a, level in levels.items() if level.standing == "pass"]
    low = max((a for a in passes if high is None or a < high), default=0)
    between = tuple(
        level
        for a, level in levels.items()
        if a > low and (high is None or a < high) and level.standing not in ("pass", "fail")
    )
    strays = tuple(levels[a] for a in passes if high is not None and a > high)
    path_high = min((level.agents for level in between if level.standing == "leans_fail"), default=high)
    leaning = [level.agents for level in between if level.standing == "leans_pass"]
    path_low = max((a for a in leaning if path_high is None or a < path_high), default=low)
    return View(levels, low, high, between, strays, path_low, path_high)


def want(seen: View, settings: SearchSettings, may_reprobe: bool, guess: float | None = None) -> Want | None:
    """The next level for this SLO, None when it has its answer. `guess` is where its capacity is expected."""
    return (
        _repeat(seen)
        or (_contradiction(seen) if may_reprobe else None)
        or _ramp(seen, settings)
        or _unsettled(seen)
        or _bisect(seen, settings, guess)
        or (_decide(seen) if may_reprobe else None)
    )


def gaps(seen: View, settings: SearchSettings) -> list[tuple[int, int]]:
    """Stretches worth dividing: from the largest pass up to what is not decided, and from there up to the fail."""
    if seen.path_high is None and seen.cap is None and not seen.on_path:
        return []
    if seen.path_high is None and seen.cap is not None and seen.path_low > 0:
        return []  # the client ended the way up: the answer is "at least the largest pass"
    open_ends = [level.agents for level in seen.on_path]
    edges = [e for e in (*open_ends, seen.path_high) if e is not None]
    found = [(seen.path_low, edges[0])]
    if open_ends and seen.path_high is not None and seen.cap is None:
        found.append((open_ends[-1], seen.path_high))
    return [(a, b) for a, b in found if b - a > (settings.step(a) if not open_ends else _coarse(a, settings))]


def _coarse(level: int, settings: SearchSettings) -> int:
    """Width at which a stretch that ends at an undecided level is closed: nearer to it all is undecided too."""
    return max(settings.step(level), int(COARSE * level))


def inside(low: int, high: int, guess: float | None) -> int:
    """The level by which to divide a stretch: where the capacity is expected, but a quarter of it from either end.

    Each division leaves at most three quarters, so that a guess that is always wrong costs log 2 / log (4 / 3) = 2.4
    times the divisions of plain halving.
    """
    if guess is None or not low < guess < high:
        return (low + high) // 2
    quarter = (high - low) // 4
    return min(max(round(guess), low + quarter, low + 1), high - quarter, high - 1)


def _repeat(seen: View) -> Want | None:
    """A level whose probe was lost, at once."""
    level = next((level for level in seen.levels.values() if level.to_repeat), None)
    return None if level is None else Want(level.agents, "a load process was lost", 0)


def _contradiction(seen: View) -> Want | None:
    """A fail below a pass: look again at the fail, then at the nearest pass above it, until one of them gives way."""
    if not seen.strays or seen.high is None:
        return None
    for level in (seen.levels[seen.high], seen.strays[0]):
        if level.looks < 2 and len(level.votes) < MAX_LOOKS and not level.given_up:
            other = seen.strays[0].agents if level.agents == seen.high else seen.high
            return Want(level.agents, f"contradicts {other}", 0)
    return None


def _ramp(seen: View, settings: SearchSettings) -> Want | None:
    """Double until a fail, the largest allowed level, or one that cannot be measured."""
    if seen.path_high is not None or seen.cap is not None or seen.top >= settings.max_agents:
        return None
    if seen.top < settings.start:
        return Want(settings.start, "start", 1)
    return Want(min(2 * seen.top, settings.max_agents), "ramp", 1)


def _unsettled(seen: View) -> Want | None:
    """A level inside the bracket that said nothing, once more; only after the ramp, for a pass above may make it
    irrelevant."""
    for level in seen.on_path:
        if level.unsettled:
            return Want(level.agents, "was inconclusive", 2)
    return None


def _bisect(seen: View, settings: SearchSettings, guess: float | None) -> Want | None:
    for low, high in gaps(seen, settings):
        return Want(inside(low, high, guess), "bisect", 3)
    return None


def _decide(seen: View) -> Want | None:
    """The ends of the bracket, where they only lean: the largest level that leans to a pass, then the next below it,
    until one is proven; likewise the fails."""
    for level in reversed(seen.between):
        if level.standing == "leans_pass" and level.agents <= seen.path_low and level.to_decide:
            return Want(level.agents, "decide", 4)
    for level in seen.between:
        if level.standing == "leans_fail" and level.to_decide:
            return Want(level.agents, "decide", 4)
    return None
