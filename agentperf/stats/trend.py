"""Whether a measure rises or falls through a window, by the means of consecutive blocks of requests."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

BLOCKS: Final = 16
PER_BLOCK: Final = 3
MOST_ALIKE: Final = 0.6
"""Largest correlation of neighbouring blocks that is made good: a trend itself leaves none in the residuals."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The straight line through a window: its change from end to end as a part of the mean, and its two-sided p."""

    change: float
    mean: float
    p: float


def trend(values: Floats, start_s: Floats) -> Trend | None:
    """Least squares through the means of `BLOCKS` blocks of equal counts, in the order of time; None for few requests.

    The error of the slope is that of ordinary regression, raised by sqrt((1 + r) / (1 - r)) for the correlation r of
    neighbouring residuals (an AR(1) process; bias 1 / B made good), with B - 2 degrees of freedom of which (1 - r) /
    (1 + r) are left. `values` are finite.
    """
    n = values.size
    if n < BLOCKS * PER_BLOCK:
        return None
    order = np.argsort(start_s, kind="stable")
    codes = np.arange(n) * BLOCKS // n
    counts = np.bincount(codes, minlength=BLOCKS)
    means = np.bincount(codes, weights=values[order], minlength=BLOCKS) / counts
    x = np.arange(BLOCKS) - (BLOCKS - 1) / 2
    mean, slope = float(means.mean()), float(x @ means) / float(x @ x)
    residuals = means - mean - slope * x
    squares = float(residuals @ residuals)
    if mean == 0 or squares <= 1e-24 * mean**2:
        return Trend(0.0 if slope == 0 or mean == 0 else slope * BLOCKS / mean, mean, 1.0 if slope == 0 else 0.0)
    alike = min(MOST_ALIKE, max(0.0, float(residuals[1:] @ residuals[:-1]) / squares + 2 / BLOCKS))
    fewer = (1 - alike) / (1 + alike)
    error = np.sqrt(squares / (BLOCKS - 2) / float(x @ x) / fewer)
    freedom = max(1.0, (BLOCKS - 2) * fewer)
    p = float(2 * special.stdtr(freedom, -abs(slope) / error))
    return Trend(slope * BLOCKS / mean, mean, p)
