"""How the error of an answer is spent over the levels of its search.

The bracket [largest pass, smallest fail] is wrong when one of the verdicts behind it is. A level either meets the SLO
or not, so that each can be judged wrongly in one way only, and the chance that any verdict of a search is wrong is at
most the sum of their alphas (Bonferroni). A verdict may be asked for after every request and a level may be probed
again, its data pooled, without further error (`stats.sequence`), so that only the number of different levels counts:

- the levels of the ramp, whose number is known, share `RAMP` of the error: all but one or two are far from the edge;
- the others, in the order in which they come, share the rest: as many as halving needs, a part each; should there be
  more (guesses that were wrong, several SLOs), each a half of what is left.

A level's alpha depends on nothing but the order in which levels were first probed, never on its own data.
"""

import math
from collections.abc import Iterable
from typing import Final

from agentperf.search.model import SearchSettings

RAMP: Final = 1 / 3
"""Part of the error for the levels of the ramp."""
SPARE: Final = 2
"""Levels beyond those that plain halving needs which still get a full part."""


def ramp_levels(settings: SearchSettings) -> tuple[int, ...]:
    """The levels of the way up: doubled from the start, the largest allowed one last."""
    found = [settings.start]
    while found[-1] < settings.max_agents:
        found.append(min(2 * found[-1], settings.max_agents))
    return tuple(found)


def halvings(settings: SearchSettings) -> int:
    """Divisions that close a bracket of one doubling to the resolution."""
    top = settings.max_agents
    return max(1, math.ceil(math.log2(max(2.0, top / 2 / settings.step(max(1, top // 2))))))


def alpha_of(settings: SearchSettings, level: int, probed: Iterable[int]) -> float:
    """The error that the verdict on `level` may have; `probed` are the levels so far, in their order."""
    error = round(1 - settings.confidence, 12)
    ramp = ramp_levels(settings)
    if level in ramp:
        return error * RAMP / len(ramp)
    others = [n for n in dict.fromkeys(probed) if n not in ramp]
    place = others.index(level) if level in others else len(others)
    parts = (halvings(settings) + SPARE) * len(settings.slos)
    part = error * (1 - RAMP) / (parts + 1)
    return part if place < parts else part * 2.0 ** -(place - parts + 1)


def sweep_alpha(levels: int, confidence: float = 0.95) -> float:
    """The error of each level of a list: an equal part."""
    return round(1 - confidence, 12) / max(1, levels)
