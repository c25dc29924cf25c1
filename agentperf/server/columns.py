"""From pages to columns: which page fills which column, and the columns of a moment or of a span. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from agentperf.server import histogram as h
from agentperf.server.engines import (
    COLUMNS,
    GAUGES,
    HISTOGRAMS,
    SIM_ENGINE,
    SIM_MARK,
    START_TIME,
    CachePair,
    Column,
    Engine,
    Layer,
    counter_names,
    engines,
)
from agentperf.server.page import Page, PageError

T = TypeVar("T")

Scraped = Page | str
"""A page, or why there is none."""


class Offer(NamedTuple):
    """What a page has for a column."""

    engine: str
    layer: Layer
    spelling: str | CachePair


Offers = Mapping[Column, tuple[Offer, ...]]
"""By column, at most one offer of each layer."""


class CacheCount(NamedTuple):
    """Differences of a prefix cache's counters."""

    hits: float
    queries: float
    unit: str


def engines_of(page: Page) -> list[str]:
    """Engines whose metrics a page has; the simulator, which speaks as vLLM does, by its own name."""
    if page.series(SIM_MARK):
        return [SIM_ENGINE]
    return [e.name for e in engines() if any(_spelling(e, column, page) for column in COLUMNS)]


def offers_of(page: Page) -> dict[Column, tuple[Offer, ...]]:
    """For every column what the page has, by layer the first engine and its first spelling."""
    found: dict[Column, tuple[Offer, ...]] = {}
    for column in COLUMNS:
        by_layer: dict[Layer, Offer] = {}
        for engine in engines():
            spelling = _spelling(engine, column, page)
            if spelling is not None and engine.layer not in by_layer:
                by_layer[engine.layer] = Offer(engine.name, engine.layer, spelling)
        if by_layer:
            found[column] = tuple(by_layer.values())
    return found


def _spelling(engine: Engine, column: Column, page: Page) -> str | CachePair | None:
    for spelling in engine.spellings(column):
        if isinstance(spelling, CachePair):
            if _counter_name(spelling.hits, page) and _counter_name(spelling.other, page):
                return spelling
        elif column in HISTOGRAMS:
            if page.series(f"{spelling}_count") and page.series(f"{spelling}_sum"):
                return spelling
        elif column in GAUGES:
            if page.series(spelling):
                return spelling
        elif _counter_name(spelling, page):
            return spelling
    return None


def _counter_name(name: str, page: Page) -> str | None:
    return next((n for n in counter_names(name) if page.series(n)), None)


def chosen(column: Column, offers: Sequence[Offers]) -> list[tuple[int, Offer]]:
    """(number of the page, its offer) of the pages that fill a column, all of one layer."""
    order: tuple[Layer, ...] = ("frontend", "engine") if column in HISTOGRAMS else ("engine", "frontend")
    for layer in order:
        found = [(i, o) for i, page in enumerate(offers) for o in page.get(column, ()) if o.layer == layer]
        if found:
            return found
    return []


def why_absent(column: Column, known: Sequence[str]) -> str:
    """Why no page fills a column; `known` are the engines of the pages."""
    for engine in engines():
        if column in engine.absent and (engine.name in known or (SIM_ENGINE in known and engine.name == "vllm")):
            return engine.absent[column]
    return "the page lacks it" if known else "the page has no metrics of a known engine"


class Shown(NamedTuple):
    """A page's name for messages, and what it offers."""

    name: str
    offers: Offers
    engines: Sequence[str]


def _known(pages: Sequence[Shown]) -> list[str]:
    return [name for page in pages for name in page.engines]


def _never_read(scraped: Sequence[Scraped], pages: Sequence[Shown]) -> str | None:
    """Why the first page that has not been seen yet could not be read; None when all have been."""
    failed = (f"{p.name}: {s}" for s, p in zip(scraped, pages, strict=True) if isinstance(s, str) and not p.engines)
    return next(failed, None)


def _fill(
    column: Column,
    scraped: Sequence[Scraped],
    pages: Sequence[Shown],
    reasons: dict[str, str],
    get: Callable[[int, Offer], T],
) -> list[T] | None:
    """`get` of each page that fills the column; None, with the reason, when there is none or one of them fails."""
    picked = chosen(column, [page.offers for page in pages])
    if not picked:
        reasons[column] = _never_read(scraped, pages) or why_absent(column, _known(pages))
        return None
    values: list[T] = []
    for number, offer in picked:
        try:
            values.append(get(number, offer))
        except PageError as error:
            prefix = f"{pages[number].name}: " if len(pages) > 1 else ""
            reasons[column] = f"{prefix}{error}"
            return None
    return values


def _page(scraped: Sequence[Scraped], number: int) -> Page:
    page = scraped[number]
    if isinstance(page, str):
        raise PageError(page)
    return page


class Gauges(NamedTuple):
    """State of the server at one moment, over all pages; None where it is not known."""

    running: float | None
    waiting: float | None
    kv_usage: float | None


def gauges(scraped: Sequence[Scraped], pages: Sequence[Shown], model: str | None, reasons: dict[str, str]) -> Gauges:
    """Requests are summed over engines and pages; of the KV usage the mean is taken."""
    values: dict[str, list[float] | None] = {}
    for column in GAUGES:

        def get(number: int, offer: Offer) -> list[float]:
            found = h.gauge(_page(scraped, number), str(offer.spelling), model)
            if not found:
                raise PageError(f"the page no longer has {offer.spelling}")
            return found

        parts = _fill(column, scraped, pages, reasons, get)
        values[column] = None if parts is None else [value for part in parts for value in part]
    kv = values["kv_usage"]
    if kv is not None and max(kv) > 1:
        reasons["kv_usage"] = "it is above 1, so it is no share of the pool"
        kv = None
    running, waiting = values["running"], values["waiting"]
    return Gauges(
        None if running is None else sum(running),
        None if waiting is None else sum(waiting),
        None if kv is None else sum(kv) / len(kv),
    )


class Span(NamedTuple):
    """What the server counted between two scrapes; None where it is not known."""

    ttft: h.Histogram | None
    e2e: h.Histogram | None
    preemptions: float | None
    cache: CacheCount | None


def span(
    before: Sequence[Scraped],
    after: Sequence[Scraped],
    pages: Sequence[Shown],
    model: str | None,
    reasons: dict[str, str],
) -> Span:
    """Differences of all counters, summed over engines and pages."""

    def both(number: int) -> tuple[Page, Page]:
        old, new = _page(before, number), _page(after, number)
        if old.series(START_TIME) and new.series(START_TIME) and old.series(START_TIME) != new.series(START_TIME):
            raise PageError("the server was restarted between the two scrapes")
        return old, new

    def count(number: int, name: str) -> float:
        old, new = both(number)
        spelling = _counter_name(name, new)
        if spelling is None:
            raise PageError(f"the page no longer has {name}")
        return h.counter(spelling, old, new, model)

    def histogram(number: int, offer: Offer) -> h.Histogram:
        old, new = both(number)
        if not new.series(f"{offer.spelling}_count"):
            raise PageError(f"the page no longer has {offer.spelling}")
        return h.histogram(str(offer.spelling), old, new, model)

    def cache(number: int, offer: Offer) -> CacheCount:
        pair: Any = offer.spelling
        hits, other = count(number, pair.hits), count(number, pair.other)
        return CacheCount(hits, other if pair.queries else hits + other, pair.unit)

    ttft = _fill("ttft", after, pages, reasons, histogram)
    e2e = _fill("e2e", after, pages, reasons, histogram)
    preemptions = _fill("preemptions", after, pages, reasons, lambda n, offer: count(n, str(offer.spelling)))
    caches = _fill("cache", after, pages, reasons, cache)
    if caches is not None and len({c.unit for c in caches}) > 1:
        reasons["cache"] = "pages count in different units (tokens, blocks)"
        caches = None
    return Span(
        None if ttft is None else h.added(ttft),
        None if e2e is None else h.added(e2e),
        None if preemptions is None else sum(preemptions),
        None
        if caches is None
        else CacheCount(sum(c.hits for c in caches), sum(c.queries for c in caches), caches[0].unit),
    )
