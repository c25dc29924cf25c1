"""The server's figures of a level beside the client's of the same span: one struct, its warnings, its words. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from msgspec import Struct, field

from agentperf.measure.record import Record
from agentperf.server import columns
from agentperf.server.columns import Gauges, Scraped, Shown
from agentperf.server.histogram import Histogram, Interval, quantile_interval
from agentperf.server.page import PageError

COUNT_TOLERANCE: Final = 0.10
"""Share by which the numbers of first tokens may differ before the two sides are taken for different populations."""
COUNT_SLACK: Final = 2
"""Requests that may be missing on either side whatever the share: retries, aborted ones."""
GAP_S: Final = 0.020
GAP_SHARE: Final = 0.10
"""A difference of mean TTFT above both is worth a warning."""
CACHE_GAP: Final = 0.10
"""Difference of the two cache shares that is worth a warning, with at least CACHE_REQUESTS."""
CACHE_REQUESTS: Final = 50
EDGE_NS: Final = 50_000_000
"""How far a client's stamp of a first token may lie from the moment at which the server counted it."""


class Scrape(NamedTuple):
    """All pages at one moment, in the order of the sources. Stamps are of the run's monotonic clock."""

    begin_ns: int
    end_ns: int
    pages: tuple[Scraped, ...]

    @property
    def at_ns(self) -> int:
        """The moment for which the pages are taken to hold."""
        return (self.begin_ns + self.end_ns) // 2


class ServerMetrics(Struct, kw_only=True):
    """A level by the server's own account. Null is not measured, and `reasons` says why. Times in s."""

    engines: list[str] = field(default_factory=list)
    open_ns: int | None = None
    """When the first of the two scrapes was taken whose counters are subtracted."""
    close_ns: int | None = None
    scrapes: int = 0
    scrape_max_s: float | None = None
    """Longest time that a scrape took."""
    ttft_n: int | None = None
    """First tokens between the two scrapes."""
    ttft_mean_s: float | None = None
    ttft_p50: Interval | None = None
    ttft_p95: Interval | None = None
    e2e_n: int | None = None
    e2e_mean_s: float | None = None
    client_ttft_n: int = 0
    """Requests whose first visible event fell between the two scrapes."""
    client_ttft_mean_s: float | None = None
    client_ttft_range: Interval | None = None
    """Least and greatest mean, as the requests at the edges are counted in or out."""
    client_n_range: tuple[int, int] = (0, 0)
    """Least and most requests, in the same way."""
    client_send_mean_s: float | None = None
    """Mean time of these from t0 to the last byte sent: the part of the difference that connection and upload make."""
    ttft_difference_s: float | None = None
    """Client's mean minus server's: network, gateway, client, and tokens that are not visible."""
    running_mean: float | None = None
    waiting_mean: float | None = None
    kv_usage_mean: float | None = None
    preemptions: int | None = None
    cache_hits: int | None = None
    cache_queries: int | None = None
    cache_unit: str | None = None
    cache_share: float | None = None
    """Hits by queries, of the counters."""
    client_cache_share: float | None = None
    """Cached by prompt tokens, of the usage of the same requests as `client_ttft_n`."""
    cache_difference: float | None = None
    """Counters' share minus usage's."""
    reasons: dict[str, str] = field(default_factory=dict)


class Client(NamedTuple):
    """The client's side of a span."""

    n: int
    mean_s: float | None
    n_range: tuple[int, int]
    mean_range: Interval | None
    send_mean_s: float | None
    cache_share: float | None


def client_side(records: Sequence[Record], before: Scrape, after: Scrape) -> Client:
    """TTFT of the requests whose first visible event fell between two scrapes.

    A scrape takes time, a token is on its way for some, and servers count it a moment before or after they send it:
    what was first visible from EDGE_NS before a scrape's begin until EDGE_NS after its end may be on either side of
    it. The ranges are those of the four ways to count both edges. Requests that failed later are among them.
    """
    seen = [(r.first_visible_ns, r) for r in records if r.first_visible_ns is not None]
    inside = [r for at, r in seen if before.at_ns <= at < after.at_ns]
    counts: list[int] = []
    means: list[float] = []
    for start in (before.begin_ns - EDGE_NS, before.end_ns + EDGE_NS):
        for end in (after.begin_ns - EDGE_NS, after.end_ns + EDGE_NS):
            part = [_ttft_s(r) for at, r in seen if start <= at < end]
            counts.append(len(part))
            if part:
                means.append(sum(part) / len(part))
    sent = [(r.sent_ns - r.t0_ns) / 1e9 for r in inside if r.sent_ns is not None]
    tokens = [(r.cached_tokens, r.prompt_tokens) for r in inside if r.outcome == "ok"]
    known = [(c, p) for c, p in tokens if c is not None and p is not None]
    prompt = sum(p for _, p in known)
    return Client(
        len(inside),
        _mean([_ttft_s(r) for r in inside]),
        (min(counts), max(counts)),
        Interval(min(means), max(means)) if means else None,
        _mean(sent),
        sum(c for c, _ in known) / prompt if prompt and len(known) == len(tokens) else None,
    )


def _ttft_s(record: Record) -> float:
    assert record.first_visible_ns is not None
    return (record.first_visible_ns - record.t0_ns) / 1e9


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def time_mean(points: Sequence[tuple[int, float | None]]) -> float | None:
    """Mean over time of a value that was sampled at moments, by trapezoids; None with fewer than two samples."""
    known = [(at, value) for at, value in points if value is not None]
    length = known[-1][0] - known[0][0] if known else 0
    if length <= 0:
        return None
    return sum((a + b) / 2 * (t1 - t0) for (t0, a), (t1, b) in pairwise(known)) / length


def measure(
    records: Sequence[Record],
    scrapes: Sequence[Scrape],
    pages: Sequence[Shown],
    model: str | None,
) -> ServerMetrics:
    """The server's metrics of a level. `scrapes` are in order: at the window's opening, some in it, at its close.

    Counters are subtracted between the first and the last scrape that got all pages, and the client's side is of the
    same span: so a page that was late once costs a part of the window, not the comparison.
    """
    whole = [s for s in scrapes if not any(isinstance(page, str) for page in s.pages)]
    before, after = (whole[0], whole[-1]) if len(whole) > 1 else (scrapes[0], scrapes[-1])
    reasons: dict[str, str] = {}
    counted = columns.span(before.pages, after.pages, pages, model, reasons)
    states = [(s.at_ns, columns.gauges(s.pages, pages, model, reasons)) for s in scrapes]
    client = client_side(records, before, after)
    found = ServerMetrics(
        engines=list(dict.fromkeys(name for page in pages for name in page.engines)),
        open_ns=before.at_ns,
        close_ns=after.at_ns,
        scrapes=len(scrapes),
        scrape_max_s=max((s.end_ns - s.begin_ns) / 1e9 for s in scrapes),
        client_ttft_n=client.n,
        client_ttft_mean_s=client.mean_s,
        client_ttft_range=client.mean_range,
        client_n_range=client.n_range,
        client_send_mean_s=client.send_mean_s,
        client_cache_share=client.cache_share,
        preemptions=None if counted.preemptions is None else round(counted.preemptions),
        reasons=reasons,
    )
    _set_latencies(found, counted.ttft, counted.e2e)
    _set_gauges(found, states)
    _set_cache(found, counted.cache)
    _set_difference(found)
    return found


def _set_latencies(found: ServerMetrics, ttft: Histogram | None, e2e: Histogram | None) -> None:
    if ttft is not None:
        found.ttft_n, found.ttft_mean_s = round(ttft.count), ttft.mean
        if ttft.mean is None:
            found.reasons["ttft"] = "no request got its first token between the two scrapes"
        try:
            found.ttft_p50 = quantile_interval(ttft.buckets, 0.50)
            found.ttft_p95 = quantile_interval(ttft.buckets, 0.95)
        except PageError as error:
            found.reasons["ttft_quantiles"] = str(error)
    if e2e is not None:
        found.e2e_n, found.e2e_mean_s = round(e2e.count), e2e.mean
        if e2e.mean is None:
            found.reasons["e2e"] = "no request ended between the two scrapes"


def _set_gauges(found: ServerMetrics, states: Sequence[tuple[int, Gauges]]) -> None:
    for name in Gauges._fields:
        points: list[tuple[int, float | None]] = [(at, getattr(state, name)) for at, state in states]
        mean = time_mean(points)
        setattr(found, f"{name}_mean", mean)
        if mean is not None:  # some samples may have failed, the mean is of the others
            found.reasons.pop(name, None)
        else:
            found.reasons.setdefault(name, "it was read only once")


def _set_cache(found: ServerMetrics, cache: columns.CacheCount | None) -> None:
    if cache is None:
        return
    found.cache_hits, found.cache_queries, found.cache_unit = round(cache.hits), round(cache.queries), cache.unit
    if cache.queries <= 0:
        found.reasons["cache"] = "nothing was looked up between the two scrapes"
    elif cache.hits > cache.queries:
        found.reasons["cache"] = "the counters tell of more hits than queries"
    else:
        found.cache_share = cache.hits / cache.queries
        if found.client_cache_share is not None:
            found.cache_difference = found.cache_share - found.client_cache_share


def populations_differ(found: ServerMetrics) -> bool:
    """Whether the server counted more or fewer first tokens than the client saw, beyond what the edges explain."""
    if found.ttft_n is None:
        return False
    least, most = found.client_n_range
    nearest = min(max(found.ttft_n, least), most)
    off = abs(found.ttft_n - nearest)
    return off > COUNT_SLACK and off > COUNT_TOLERANCE * max(found.ttft_n, nearest)


def _set_difference(found: ServerMetrics) -> None:
    if found.ttft_mean_s is None:
        found.reasons["ttft_difference"] = found.reasons.get("ttft", "the server's TTFT is not known")
    elif found.client_ttft_mean_s is None:
        found.reasons["ttft_difference"] = "the client saw no first token between the two scrapes"
    elif populations_differ(found):
        found.reasons["ttft_difference"] = "the two sides did not count the same requests"
    else:
        found.ttft_difference_s = found.client_ttft_mean_s - found.ttft_mean_s


def is_wide(found: ServerMetrics) -> bool:
    """Whether both sides' TTFT differ by more than max(GAP_S, GAP_SHARE of the client's), edges allowed for."""
    if found.ttft_difference_s is None or found.ttft_mean_s is None or found.client_ttft_range is None:
        return False
    low, high = found.client_ttft_range.low, found.client_ttft_range.high
    assert high is not None
    nearest = min(max(found.ttft_mean_s, low), high)
    return abs(nearest - found.ttft_mean_s) > max(GAP_S, GAP_SHARE * nearest)


def warnings_of(found: ServerMetrics) -> list[str]:
    """What the comparison tells a reader of the level, each with cause and remedy."""
    if populations_differ(found):
        return [_counts_warning(found)]  # what follows would compare different requests
    said = [_gap_warning(found)] if is_wide(found) else []
    if (
        found.cache_difference is not None
        and found.cache_unit == "tokens"
        and found.client_ttft_n >= CACHE_REQUESTS
        and abs(found.cache_difference) > CACHE_GAP
    ):
        said.append(
            f"the server's counters tell of a cache hit of {found.cache_share:.0%}, the usage of its replies of "
            f"{found.client_cache_share:.0%} (it counts at other moments, or usage leaves a cache tier out: compare "
            "over a longer --duration)"
        )
    return said


def _counts_warning(found: ServerMetrics) -> str:
    counts = f"the server counted {found.ttft_n} first tokens where the client saw {found.client_ttft_n}"
    if (found.ttft_n or 0) > found.client_ttft_n:
        return (
            f"{counts}: something else uses this server (have it to yourself while measuring, or give --model its "
            "served name)"
        )
    return f"{counts}: several replicas stand behind one metrics page (give each one's page with --metrics-url)"


def _gap_warning(found: ServerMetrics) -> str:
    """Which part most likely makes the difference of mean TTFT."""
    difference, send = found.ttft_difference_s or 0.0, found.client_send_mean_s or 0.0
    if difference < 0:
        cause = "the page is of another server or counts otherwise (give the right one with --metrics-url)"
    elif send > difference / 2:
        cause = (
            f"connection and upload alone took {send * 1e3:.0f} ms (measure nearer to the server, or see whether it "
            "accepts connections late)"
        )
    else:
        cause = (
            "network, a gateway or proxy, the server's HTTP front, or tokens that are not visible (measure at the "
            "server itself to tell them apart)"
        )
    return (
        f"mean TTFT is {abs(difference) * 1e3:.0f} ms {'above' if difference > 0 else 'below'} the server's own "
        f"{found.ttft_mean_s or 0.0:.3f} s: {cause}"
    )
