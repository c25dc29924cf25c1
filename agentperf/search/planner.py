"""The planner: which level to probe next, as a pure function of what has been measured.

    ramp      double from the start level until every SLO has failed once
    repeat    a level whose load process was lost is probed again at once, three times at most
    settle    a level inside a bracket that said nothing is probed once more; its probes count together
    bisect    divide the bracket [largest pass, smallest fail] to the resolution, where the curve of all levels is
              expected to cross the limit; a level that stays undecided remains inside the bracket, and both sides of
              it are divided
    decide    on the way a level that points to one side so plainly that it need not be proven is left at once; the
              ends of the bracket are then probed again until they are proven

A pass above a fail contradicts it: the fail, then the pass, are probed again at once. If both stand, the SLO is not
monotone on this endpoint, and its answer is the largest pass below the smallest fail: no larger number would be safe.
A level that cannot be measured (invalid) ends the way up. SLOs share every probe; where their brackets differ, the
level is chosen that narrows most of them.

There is no state but the history, so a search can be resumed from its journal. It always ends: `probe_limit` is
O(log N), and a search that hits it, or is told to stop, says `budget`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from agentperf.search.curve import estimate, likeliest
from agentperf.search.levels import View, Want, gaps, view, want, was_lost
from agentperf.search.model import (
    MAX_LOST,
    RESOLUTION,
    UNMEASURABLE,
    Answer,
    Done,
    Probe,
    ProbeResult,
    Reason,
    SearchSettings,
    Status,
    default_max_probes,
)
from agentperf.search.spending import alpha_of, sweep_alpha

__all__ = [
    "RESOLUTION",
    "Answer",
    "Done",
    "Probe",
    "ProbeResult",
    "Reason",
    "SearchSettings",
    "Status",
    "default_max_probes",
    "next_step",
    "sweep_step",
]

NARROW: Final = 0.5
"""Width, as a part of the largest pass, up to which a bracket with undecided levels inside is an answer: what is left
lies too near the limit to be told in the time allowed."""

_LEAST_SURE_FIRST: Final[tuple[Reason, ...]] = (
    "budget",
    "not_monotone",
    "rate_limited",
    "client_limited",
    "unmeasurable",
    "inconclusive",
    "narrowed",
    "none_pass",
    "all_pass",
    "swept",
    "found",
)


def next_step(settings: SearchSettings, history: Sequence[ProbeResult], stop: str | None = None) -> Probe | Done:
    """The next probe, or the answers. `stop` (a cause in words: time is up, interrupted) ends the search now."""
    past = tuple(history)
    may_reprobe = _reprobes(past) < settings.reprobes * len(settings.slos)
    views = {slo: view(slo, past) for slo in settings.slos}
    guesses = {slo: _guess(slo, past) for slo in settings.slos}
    wants = {slo: want(seen, settings, may_reprobe, guesses[slo]) for slo, seen in views.items()}
    open_slos = {slo: w for slo, w in wants.items() if w is not None}
    if stop is None and len(past) >= settings.probe_limit:
        stop = f"{settings.probe_limit} probes are spent"
    if not open_slos or stop is not None:
        answers = tuple(
            _answer(slo, views[slo], settings, stop if slo in open_slos else None, past) for slo in settings.slos
        )
        return Done(answers=answers, reason=_overall(answers))
    chosen = _choose(open_slos, views, settings)
    waiting = tuple(slo for slo in open_slos if _helps(chosen.level, open_slos[slo], views[slo]))
    return Probe(
        level=chosen.level,
        why=chosen.why,
        slos=waiting,
        alpha=alpha_of(settings, chosen.level, [r.level for r in past if not was_lost(r)]),
        may_lean=chosen.why != "decide",
    )


def _guess(slo: str, history: tuple[ProbeResult, ...]) -> float | None:
    return likeliest(slo, history)


def sweep_step(
    levels: Sequence[int],
    history: Sequence[ProbeResult],
    slos: Sequence[str] = (),
    stop: str | None = None,
    confidence: float = 0.95,
) -> Probe | Done:
    """The same for a list of levels, probed once each in the order given (a level named twice: twice).

    A probe that was lost with a load process does not count until it was lost three times.
    One level is the fixed-level run. `slos` default to those that the history judged.
    """
    names = tuple(slos) or tuple(dict.fromkeys(slo for result in history for slo in result.statuses))
    done = Counter(result.level for result in history if not was_lost(result))
    for level, lost in Counter(result.level for result in history if was_lost(result)).items():
        done[level] += lost // MAX_LOST
    for level in levels:
        if done[level] > 0:
            done[level] -= 1
        elif stop is None:
            return Probe(level=level, why="sweep", slos=names, alpha=sweep_alpha(len(set(levels)), confidence))
        else:
            break
    else:
        stop = None
    answers = tuple(_swept(slo, view(slo, tuple(history)), stop, tuple(history), confidence) for slo in names)
    return Done(answers=answers, reason=_overall(answers))


def _reprobes(history: tuple[ProbeResult, ...]) -> int:
    """Second and third looks so far, without those that an inconclusive or a lost first look asked for."""
    spent = 0
    first: dict[int, ProbeResult] = {}
    looks: Counter[int] = Counter()
    for result in history:
        if was_lost(result):
            continue
        looks[result.level] += 1
        before = first.setdefault(result.level, result)
        if looks[result.level] > 2 or (looks[result.level] == 2 and "inconclusive" not in before.statuses.values()):
            spent += 1
    return spent


def _choose(wants: dict[str, Want], views: dict[str, View], settings: SearchSettings) -> Want:
    """Of the most urgent wishes the one whose level narrows the brackets of all SLOs most."""
    urgent = min(w.urgency for w in wants.values())
    candidates = [w for w in wants.values() if w.urgency == urgent]
    return max(candidates, key=lambda w: sum(_gain(w.level, wants[slo], views[slo], settings) for slo in wants))


def _gain(level: int, wish: Want, seen: View, settings: SearchSettings) -> float:
    """1 for the very level an SLO asks for, else how evenly it divides a stretch that it still searches (1: halves)."""
    if wish.level == level:
        return 1.0
    return max((2 * min(level - a, b - level) / (b - a) for a, b in gaps(seen, settings) if a < level < b), default=0.0)


def _helps(level: int, wish: Want, seen: View) -> bool:
    """Whether an SLO learns from this level: it asked for it, or it lies inside its bracket."""
    return wish.level == level or (level > seen.low and (seen.path_high is None or level < seen.path_high))


def _answer(
    slo: str, seen: View, settings: SearchSettings, stop: str | None, history: tuple[ProbeResult, ...]
) -> Answer:
    notes = _notes(seen)
    if stop is not None:
        notes = (*notes, f"ended early: {stop}")
    return Answer(
        slo=slo,
        capacity=_capacity(seen),
        largest_pass=seen.low or None,
        smallest_fail=seen.high,
        reason="budget" if stop is not None else _reason(seen, settings),
        monotone=not seen.strays,
        notes=notes,
        confidence=settings.confidence,
        estimate=estimate(slo, history),
        undecided=tuple(level.agents for level in seen.between),
    )


def _capacity(seen: View) -> int | None:
    """Zero is a finding (one agent fails); where nothing passed and that was not seen, nothing is known."""
    return seen.low or (0 if seen.high == 1 else None)


def _reason(seen: View, settings: SearchSettings) -> Reason:
    if seen.strays:
        return "not_monotone"
    closed = seen.high is not None and seen.high - seen.low <= settings.step(seen.low)
    if closed:
        return "found" if seen.low else "none_pass"
    if seen.cap is not None:
        return _limited(seen)
    if seen.high is None or not seen.low:
        return "all_pass" if seen.low >= settings.max_agents else "inconclusive"
    return "narrowed" if seen.high - seen.low <= NARROW * seen.low else "inconclusive"


def _limited(seen: View) -> Reason:
    causes = seen.levels[seen.cap].notes if seen.cap is not None else ()
    if any(cause.startswith("rate_limited") for cause in causes):
        return "rate_limited"
    return "unmeasurable" if any(cause.startswith(UNMEASURABLE) for cause in causes) else "client_limited"


def _swept(slo: str, seen: View, stop: str | None, history: tuple[ProbeResult, ...], confidence: float) -> Answer:
    """The answer of a list of levels: the bracket is as fine as the list."""
    reason: Reason = "swept"
    if stop is not None:
        reason = "budget"
    elif seen.strays:
        reason = "not_monotone"
    elif seen.cap is not None:
        reason = _limited(seen)
    elif seen.between:
        reason = "inconclusive"
    elif seen.high is None and seen.low:
        reason = "all_pass"
    elif seen.high is not None and not seen.low:
        reason = "none_pass"
    notes = _notes(seen)
    return Answer(
        slo=slo,
        capacity=_capacity(seen),
        largest_pass=seen.low or None,
        smallest_fail=seen.high,
        reason=reason,
        monotone=not seen.strays,
        notes=notes if stop is None else (*notes, f"ended early: {stop}"),
        confidence=confidence,
        estimate=estimate(slo, history),
        undecided=tuple(level.agents for level in seen.between),
    )


def _notes(seen: View) -> tuple[str, ...]:
    notes: list[str] = []
    if seen.strays and seen.high is not None:
        passed = ", ".join(str(level.agents) for level in seen.strays)
        notes.append(
            f"not monotone: {seen.high} failed although {passed} passed; capacity is the largest pass below {seen.high}"
        )
    for standing, words in (
        ("inconclusive", "stayed inconclusive"),
        ("leans_pass", "leans to a pass and is not proven"),
        ("leans_fail", "leans to a fail and is not proven"),
        ("invalid", "could not be measured"),
    ):
        for level in seen.between:
            if level.standing == standing:
                cause = f": {level.notes[0]}" if level.notes else ""
                notes.append(f"{level.agents} {words}{cause}")
    notes.extend(
        f"{level.agents} gave conflicting verdicts: all its requests together say {level.standing}"
        for level in seen.levels.values()
        if "pass" in level.votes and "fail" in level.votes
    )
    return tuple(notes)


def _overall(answers: tuple[Answer, ...]) -> Reason:
    return min((a.reason for a in answers), key=_LEAST_SURE_FIRST.index, default="swept")
