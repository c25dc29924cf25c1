"""Differences of counters and histograms between two scrapes, and what they say. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from agentperf.server.page import Labels, Page, PageError, Series

REPLICAS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
"""Labels that tell apart the processes of one engine, each of which exports the same figures.

Data-parallel engines have a label of their own (`engine`, `dp_rank`) and are summed; one that told them apart by its
tensor ranks alone would be counted too low, which the comparison of counts shows.
"""
MODEL_LABELS = ("model_name", "model")


class Histogram(Struct, frozen=True):
    """What a histogram counted between two scrapes."""

    count: float
    total: float
    """Sum of the observed values."""
    buckets: tuple[tuple[float, float], ...]
    """(upper bound, observations at or below it), ascending; the last bound is infinite. Empty: no buckets."""

    @property
    def mean(self) -> float | None:
        """Of the observed values; None without any."""
        return self.total / self.count if self.count > 0 else None


class Interval(Struct, frozen=True):
    """Bounds between which a percentile lies: a histogram does not tell more. `high` None: above the last bound."""

    low: float
    high: float | None


def _of_model(series: Series, model: str | None) -> dict[Labels, float]:
    """The series whose label names our model; none is an empty mapping."""
    wanted = model.casefold() if model else None
    return {
        labels: value
        for labels, value in series.items()
        if wanted and any(name in MODEL_LABELS and text.casefold() == wanted for name, text in labels)
    }


def _totals(series: Series) -> dict[Labels, float]:
    """Without parts of a total: SGLang exports it with an empty priority and, beside it, each priority on its own."""
    whole = {labels: value for labels, value in series.items() if not dict(labels).get("priority")}
    return whole or dict(series)


def _group(labels: Labels, *without: str) -> Labels:
    return tuple(pair for pair in labels if pair[0] not in REPLICAS and pair[0] not in without)


def without_replicas(series: Series) -> dict[Labels, float]:
    """One value for each engine: the largest of its processes' views."""
    found: dict[Labels, float] = {}
    for labels, value in series.items():
        group = _group(labels)
        found[group] = max(value, found.get(group, 0.0))
    return found


def gauge(page: Page, name: str, model: str | None) -> list[float]:
    """The values of a gauge, one an engine; empty when the page lacks it."""
    series = page.series(name)
    return list(without_replicas(_totals(_of_model(series, model) or series)).values())


def differences(name: str, before: Page, after: Page, model: str | None) -> dict[Labels, float]:
    """How far each series of a counter went on. A series that is new began at 0; another model's does not count.

    Raises PageError where no difference means anything: a counter went back, or a series is gone.
    """
    old, new = before.series(name), after.series(name)
    if named := _of_model(new, model):
        old, new = _of_model(old, model), named
    old, new = _totals(old), _totals(new)
    gone = old.keys() - new.keys()
    if gone:
        raise PageError(f"{name} lost a series between the two scrapes (an engine restarted or went away)")
    found = {labels: value - old.get(labels, 0.0) for labels, value in new.items()}
    if any(value < 0 for value in found.values()):
        raise PageError(f"{name} went back between the two scrapes (the server restarted)")
    return found


def counter(name: str, before: Page, after: Page, model: str | None) -> float:
    """The difference of a counter over all engines of a page."""
    return sum(without_replicas(differences(name, before, after, model)).values())


def histogram(name: str, before: Page, after: Page, model: str | None) -> Histogram:
    """The difference of a histogram over all engines of a page. PageError as `differences`."""
    counts = differences(f"{name}_count", before, after, model)
    sums = differences(f"{name}_sum", before, after, model)
    bounds = differences(f"{name}_bucket", before, after, model)
    if counts.keys() != sums.keys():
        raise PageError(f"{name} has not the same series in its sum as in its count")
    leaders: dict[Labels, Labels] = {}
    for labels, count in counts.items():  # of an engine's processes the one that counted most
        group = _group(labels)
        if group not in leaders or count > counts[leaders[group]]:
            leaders[group] = labels
    chosen = set(leaders.values())
    by_series: dict[Labels, dict[float, float]] = {}
    for labels, value in bounds.items():
        owner = tuple(pair for pair in labels if pair[0] != "le")
        if owner in chosen:
            by_series.setdefault(owner, {})[_bound(name, labels)] = value
    return added(
        Histogram(counts[labels], sums[labels], _buckets(by_series.get(labels, {}), counts[labels]))
        for labels in sorted(chosen)
    )


def _bound(name: str, labels: Labels) -> float:
    try:
        bound = float(dict(labels)["le"])
    except (KeyError, ValueError):
        bound = math.nan
    if math.isnan(bound):
        raise PageError(f"{name} has a bucket without a bound")
    return bound


def _buckets(bounds: Mapping[float, float], count: float) -> tuple[tuple[float, float], ...]:
    if not bounds:
        return ()
    return tuple(sorted({math.inf: count, **bounds}.items()))


def added(parts: Iterable[Histogram]) -> Histogram:
    """Several histograms as one. Where their bounds differ, only the common ones are left: those counts are exact."""
    found = list(parts)
    common: set[float] = set.intersection(*({b for b, _ in h.buckets} for h in found)) if found else set()
    totals = dict.fromkeys(sorted(common), 0.0)
    for part in found:
        for bound, count in part.buckets:
            if bound in totals:
                totals[bound] += count
    return Histogram(sum(h.count for h in found), sum(h.total for h in found), tuple(totals.items()))


def quantile_interval(buckets: Sequence[tuple[float, float]], q: float) -> Interval | None:
    """Bounds of the percentile that numpy's "linear" would give for the observed values; None when nothing was counted.

    That percentile lies between the order statistics floor((n-1) q) and ceil((n-1) q), so between the lower bound of
    the first one's bucket and the upper bound of the second one's. Raises PageError when counts fall with the bound.
    """
    if any(high < low for (_, low), (_, high) in pairwise(buckets)):
        raise PageError("the histogram's counts fall with its bounds")
    n = buckets[-1][1] if buckets else 0.0
    if n < 1:
        return None
    position = (n - 1) * q
    low_rank, high_rank = math.floor(position), math.ceil(position)
    low, high, below = None, math.inf, 0.0
    for bound, count in buckets:
        if low is None and count > low_rank:
            low = below
        if count > high_rank:
            high = bound
            break
        below = bound
    return Interval(max(0.0, low or 0.0), None if math.isinf(high) else high)
