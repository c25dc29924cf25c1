"""What a probe says beside its verdicts: the shares behind an SLO ladder, and whether the window was steady."""

import math

import numpy as np
from msgspec import Struct

from agentperf.slo.verdict import Observations
from agentperf.stats.clusters import design_effect
from agentperf.stats.trend import Trend, trend

LADDER_TPS = (20.0, 40.0, 60.0, 80.0, 100.0)
"""Speeds of the ladder, tok/s."""
LADDER_SHARE = 0.25
"""Share of requests that may be slower at a rung: the ladder is one of p25 speed."""
DRIFT_P = 0.01
DRIFT_SIZE = 0.10
"""A drift is said when a trend is that unlikely in a steady window and changes the mean by that part over it."""


class LadderPoint(Struct, frozen=True, kw_only=True):
    """Share of a window's requests slower than `tps`, as `n_eff` independent ones tell it."""

    tps: float
    share: float
    n_eff: float


def ladder_points(obs: Observations, agents: int) -> tuple[LadderPoint, ...]:
    """The shares at all rungs; none without a speed."""
    keep = ~np.isnan(obs.speed)
    speed, play, start = obs.speed[keep], obs.play[keep], obs.start_s[keep]
    if speed.size == 0:
        return ()
    found = []
    for tps in LADDER_TPS:
        slower = speed < tps
        effect = design_effect(slower, play, start, allowed=LADDER_SHARE, agents=agents)
        found.append(LadderPoint(tps=tps, share=float(slower.mean()), n_eff=effect.of(speed.size)))
    return tuple(found)


def drift_warnings(obs: Observations) -> list[str]:
    """A sentence for each of speed and TTFT that rose or fell through the window."""
    found = []
    for name, values, unit in (("speed", obs.speed, "tok/s"), ("TTFT", obs.ttft, "s")):
        keep = ~np.isnan(values) & np.isfinite(values) & (values > 0)
        seen = trend(values[keep], obs.start_s[keep])
        if seen is not None and drifts(seen):
            found.append(
                f"{name} drifted by {seen.change:+.0%} through the window (mean {seen.mean:.3g} {unit}): "
                "the level is not in a steady state (a longer warm-up, or the server degrades under it)"
            )
    return found


def drifts(seen: Trend) -> bool:
    """Whether a trend is neither chance nor small."""
    return seen.p < DRIFT_P and abs(seen.change) >= DRIFT_SIZE and math.isfinite(seen.change)
