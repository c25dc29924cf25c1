"""The curve of a share over levels: fitted monotone, with a band, and where it crosses a limit.

More agents never make a term easier to keep, so that the share of requests beyond its limit rises with the level. The
fit is the nearest rising curve, weighted by the independent requests behind each level (pool adjacent violators: Ayer
et al., Ann. Math. Stat. 26, 1955; scipy.optimize.isotonic_regression). Between levels it is interpolated on the logit
scale over the logarithm of the level.

The band is a parametric cluster bootstrap: the clusters have already been reduced to independent requests by the design
effect, so each level's share is drawn anew from Beta(k + 1/2, n - k + 1/2) (Jeffreys) of its effective counts and the
fit is repeated (Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapter 6).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

Floats = NDArray[np.float64]

DRAWS: Final = 400


@dataclass(frozen=True, slots=True)
class Curve:
    """Shares over ascending levels: observed (shrunk by half a request to either side), fitted, and bootstrap fits."""

    levels: Floats
    weights: Floats
    fitted: Floats
    drawn: Floats
    """One row a draw."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """The level at which a curve crosses a share. `at` is None where it does not do so inside the levels; `low` and
    `high` are likewise None where the band reaches beyond the lowest or the highest level."""

    at: float | None
    low: float | None
    high: float | None


def fit(
    levels: Sequence[float], shares: Sequence[float], weights: Sequence[float], seed: int = 0, draws: int = DRAWS
) -> Curve:
    """Fit ascending `levels` (each once). `weights` are independent requests, positive. ValueError otherwise.

    Without `draws` the curve has no band.
    """
    at, n = np.asarray(levels, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    share = np.asarray(shares, dtype=np.float64)
    if at.size == 0 or not at.size == share.size == n.size or (np.diff(at) <= 0).any() or (at <= 0).any():
        raise ValueError("a curve needs ascending levels, each with a share and a weight")
    if (n <= 0).any() or ((share < 0) | (share > 1)).any():
        raise ValueError("a share lies between 0 and 1, a weight above 0")
    k = share * n
    rng = np.random.default_rng(seed)
    drawn = rng.beta(k + 0.5, n - k + 0.5, (draws, at.size))
    shrunk = (k + 0.5) / (n + 1)
    return Curve(at, n, _rising(shrunk, n), np.array([_rising(row, n) for row in drawn]).reshape(draws, at.size))


def _rising(shares: Floats, weights: Floats) -> Floats:
    found: Floats = isotonic_regression(shares, weights=weights, increasing=True).x
    return np.clip(found, 1e-6, 1 - 1e-6)


def share_at(curve: Curve, level: float, confidence: float = 0.95) -> tuple[float, float, float]:
    """Share at a level with its band: (share, low, high). Beyond the levels it is that of the nearest."""
    x, points = np.log(level), np.log(curve.levels)
    rows = [_expit(float(np.interp(x, points, _logit(row)))) for row in (curve.fitted, *curve.drawn)]
    low, high = np.quantile(rows[1:], [(1 - confidence) / 2, (1 + confidence) / 2])
    return rows[0], float(low), float(high)


def crossing(curve: Curve, share: float, confidence: float = 0.95) -> Crossing:
    """Where the curve crosses `share`, with the band in which `confidence` of the bootstrap curves cross."""
    points, wanted = np.log(curve.levels), float(_logit(np.array(share)))
    found = _cross(points, curve.fitted, wanted)
    draws = np.array([_cross(points, row, wanted) for row in curve.drawn])
    if draws.size == 0:
        return Crossing(float(np.exp(found)) if np.isfinite(found) else None, None, None)
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2], method="nearest")
    return Crossing(*(float(np.exp(v)) if np.isfinite(v) else None for v in (found, low, high)))


def _cross(points: Floats, shares: Floats, wanted: float) -> float:
    """Log of the level of the crossing; -inf below the first level, inf above the last."""
    heights = _logit(shares)
    if heights[0] > wanted:
        return float("-inf")
    if heights[-1] <= wanted:
        return float("inf")
    i = int(np.argmax(heights > wanted))
    part = (wanted - heights[i - 1]) / (heights[i] - heights[i - 1])
    return float(points[i - 1] + part * (points[i] - points[i - 1]))


def _logit(share: Floats) -> Floats:
    return np.asarray(np.log(share) - np.log1p(-share))


def _expit(value: float) -> float:
    return float(1 / (1 + np.exp(-value)))


def least(crossings: Sequence[Crossing]) -> Crossing:
    """The crossing of several curves of which the first to cross counts."""

    def lowest(values: Sequence[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return min(known) if known else None

    return Crossing(
        lowest([c.at for c in crossings]), lowest([c.low for c in crossings]), lowest([c.high for c in crossings])
    )


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung of an SLO ladder: agents at which a quarter of the requests is slower than `tps`, with the band.

    None where the curve does not cross inside the levels: it lies beyond `highest`, or before `lowest`, as `beyond`
    ("above" or "below") says.
    """

    tps: float
    agents: float | None
    low: float | None
    high: float | None
    beyond: Literal["above", "below"] | None
    lowest: int
    highest: int


def ladder(
    points: Mapping[float, Mapping[int, tuple[float, float]]], allowed: float = 0.25, confidence: float = 0.95
) -> list[Rung]:
    """Agents at each speed from the one curve. `points[tps][level]` is (share slower, independent requests).

    Rungs with fewer than two levels are left out.
    """
    found = []
    for tps, levels in sorted(points.items()):
        at = sorted(level for level, (_, weight) in levels.items() if weight > 0)
        if len(at) < 2:
            continue
        curve = fit([float(n) for n in at], [levels[n][0] for n in at], [levels[n][1] for n in at])
        where = crossing(curve, allowed, confidence)
        beyond: Literal["above", "below"] | None = None
        if where.at is None:
            beyond = "below" if curve.fitted[0] > allowed else "above"
        found.append(Rung(tps, where.at, where.low, where.high, beyond, at[0], at[-1]))
    return found
