"""Percentiles over requests, with failed ones at infinity and unmeasured ones left out and counted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """`values[i]` is the quantile asked for i-th (nan without data); `n` values were used, `n_excluded` were nan."""

    values: tuple[float, ...]
    n: int
    n_excluded: int


def quantiles(values: Floats, qs: Sequence[float]) -> Quantiles:
    """Quantiles (fractions, 0 <= q <= 1) of a 1-d array by linear interpolation at rank (n - 1) q: numpy's "linear".

    nan means not measured and is excluded. Infinite values take part: between a finite value and infinity the quantile
    is infinite, where plain interpolation would give nan for two infinite neighbours. Raises ValueError for q outside
    [0, 1].
    """
    if any(not 0.0 <= q <= 1.0 for q in qs):
        raise ValueError("a quantile lies between 0 and 1")
    data = np.asarray(values, dtype=np.float64)
    known = data[~np.isnan(data)]
    excluded = int(data.size - known.size)
    if known.size == 0:
        return Quantiles(tuple(float("nan") for _ in qs), 0, excluded)
    if np.isfinite(known).all():
        found = np.quantile(known, list(qs), method="linear") if qs else np.empty(0)
        return Quantiles(tuple(float(v) for v in found), int(known.size), excluded)
    ordered = np.sort(known)
    return Quantiles(tuple(_interpolate(ordered, q) for q in qs), int(known.size), excluded)


def quantile(values: Floats, q: float) -> float:
    """One quantile, nan when nothing was measured."""
    return quantiles(values, (q,)).values[0]


def _interpolate(ordered: Floats, q: float) -> float:
    rank = (ordered.size - 1) * q
    low = int(np.floor(rank))
    below = float(ordered[low])
    above = float(ordered[min(low + 1, ordered.size - 1)])
    part = rank - low
    if part == 0.0 or below == above:
        return below
    if np.isinf(below) and np.isinf(above):  # from -inf to inf: no value in between is more right than another
        return float("nan")
    return below + (above - below) * part
