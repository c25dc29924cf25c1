"""Percentiles of a table: numpy's "linear", failures at infinity."""

import math
from collections.abc import Iterable

import numpy as np
from msgspec import Struct


class Quantiles(Struct, frozen=True):
    """Percentiles by numpy's "linear" rule. None where the value is infinite (failures reach it) or n is 0."""

    n: int
    mean: float | None
    p5: float | None
    p10: float | None
    p25: float | None
    p50: float | None
    p75: float | None
    p90: float | None
    p95: float | None
    p99: float | None


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def quantiles(values: Iterable[float]) -> Quantiles:
    """Percentiles of values that may hold inf; linear interpolation next to inf is inf, and so None."""
    data = np.sort(np.fromiter(values, dtype=np.float64))
    n = len(data)
    if n == 0:
        return Quantiles(0, None, None, None, None, None, None, None, None, None)

    def at(q: float) -> float | None:
        rank = (n - 1) * q / 100
        low = math.floor(rank)
        high = min(low + 1, n - 1)
        share = rank - low
        if share == 0:
            return _number(data[low])
        if not math.isfinite(data[high]):
            return None
        return (
            float(np.percentile(data, q, method="linear"))
            if math.isfinite(data[-1])
            else float(data[low] + (data[high] - data[low]) * share)
        )

    mean = _number(float(np.mean(data)))
    return Quantiles(n, mean, at(5), at(10), at(25), at(50), at(75), at(90), at(95), at(99))
