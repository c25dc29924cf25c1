"""Scraping beside a level: at its window's opening, now and then inside, and at the close. In the parent process only.

Nothing here can delay or fail a level: scrapes run in a task of their own, and whatever goes wrong ends as the reason
for which a column is null.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio

from agentperf.clock import NowNs, monotonic_ns
from agentperf.errors import plain_errors
from agentperf.measure.record import Record
from agentperf.server.columns import Gauges, Offers, Scraped, Shown, engines_of, gauges, offers_of
from agentperf.server.compare import Scrape, ServerMetrics, measure, warnings_of
from agentperf.server.engines import wanted
from agentperf.server.fetch import Source
from agentperf.server.page import PageError, read_page

INTERVAL_S: Final = 5.0
"""Between scrapes inside a window, the first ones closer (1, 2, 4 s); a page costs a busy server some milliseconds."""
GRACE_S: Final = 0.5
"""How long the end of a level, when all load has gone, waits for a closing scrape that is under way."""
PATIENCE: Final = 5
"""Scrapes of a page that may fail in a row before it is left alone, but for one more try at the next level."""


class _Watched:
    """A source, and what it has shown in this run."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.fetch = source.fetch
        self.offers: Offers = source.offers
        self.engines: Sequence[str] = source.engines
        self.failures = 0
        self.last_failure = ""

    async def scrape(self) -> Scraped:
        """The page, or why there is none."""
        if self.failures >= PATIENCE:
            return f"given up after {PATIENCE} failures in a row, the last: {self.last_failure}"
        try:
            page = read_page(await self.fetch(), wanted())
        except PageError as error:
            return self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - no fault of a page, or of ours in reading it, may end a level
            return self._failed(f"the page cannot be read ({type(error).__name__})")
        self.failures = 0
        if found := offers_of(page):
            self.offers, self.engines = {**self.offers, **found}, engines_of(page)
        return page

    def _failed(self, why: str) -> str:
        self.failures += 1
        self.last_failure = why
        return why


class ServerWatch:
    """The server's pages over a run. Without sources it does nothing."""

    def __init__(self, sources: Sequence[Source] = (), now_ns: NowNs = monotonic_ns, model: str | None = None) -> None:
        self._sources = [_Watched(source) for source in sources]
        self._now_ns = now_ns
        self._model = model
        self._told: set[str] = set()
        self.latest: Gauges | None = None
        """State of the server at the last scrape, for a view."""

    @property
    def on(self) -> bool:
        """Whether there is a page to read."""
        return bool(self._sources)

    @property
    def shown(self) -> list[Shown]:
        """The pages with what they offer."""
        return [Shown(s.name, s.offers, s.engines) for s in self._sources]

    async def scrape(self) -> Scrape:
        """All pages at once. Never raises for what a server does."""
        pages: list[Scraped] = [""] * len(self._sources)

        async def one(number: int) -> None:
            pages[number] = await self._sources[number].scrape()

        begin_ns = self._now_ns()
        async with anyio.create_task_group() as group:
            for number in range(len(self._sources)):
                group.start_soon(one, number)
        end_ns = self._now_ns()
        self.latest = gauges(pages, self.shown, self._model, {})
        return Scrape(begin_ns, end_ns, tuple(pages))

    @asynccontextmanager
    async def level(self) -> "AsyncIterator[LevelWatch]":
        """Watch one level; scraping ends with the context."""
        self.latest = None
        for source in self._sources:
            source.failures = min(source.failures, PATIENCE - 1)
        watch = LevelWatch(self)
        if not self.on:
            yield watch
            return
        with plain_errors():
            async with anyio.create_task_group() as group:
                group.start_soon(watch.run)
                yield watch
                group.cancel_scope.cancel()

    def now_ns(self) -> int:
        """The run's clock."""
        return self._now_ns()

    def result(self, records: Sequence[Record], scrapes: Sequence[Scrape]) -> ServerMetrics:
        """The server's metrics of a level from its scrapes, in their order."""
        return measure(records, scrapes, self.shown, self._model)

    def new_failures(self, scrapes: Sequence[Scrape]) -> list[str]:
        """What went wrong with a page, each cause once in a run."""
        found: list[str] = []
        for number, source in enumerate(self._sources):
            why = next((p for s in scrapes if isinstance(p := s.pages[number], str)), None)
            if why is not None and source.name not in self._told:
                self._told.add(source.name)
                found.append(f"server metrics: {source.name}: {why} (figures that need it are left out)")
        return found


class LevelWatch:
    """The scrapes of one level. `see` is told of the window, `run` scrapes, `finish` gives the figures."""

    def __init__(self, watch: ServerWatch) -> None:
        self._watch = watch
        self._changed = anyio.Event()
        self._open_ns: int | None = None
        self._close_ns: int | None = None
        self._closed_ns: int | None = None
        """The close for which the last scrape was taken."""
        self._scrapes: list[Scrape] = []
        self._scraped = anyio.Event()
        """Set after each scrape, and then replaced."""

    def see(self, open_ns: int | None, close_ns: int | None) -> None:
        """Tell how far the window is; a close that is taken back is None again."""
        if (open_ns, close_ns) != (self._open_ns, self._close_ns):
            self._open_ns, self._close_ns = open_ns, close_ns
            self._changed.set()

    def _due(self) -> bool:
        """Whether the window's opening or its close has not been scraped yet."""
        if self._open_ns is None:
            return False
        return not self._scrapes or (self._close_ns is not None and self._closed_ns != self._close_ns)

    async def run(self) -> None:
        """Scrape whenever one is due, until cancelled."""
        while True:
            inside = bool(self._scrapes) and self._close_ns is None
            pause_s = min(INTERVAL_S, 2.0 ** (len(self._scrapes) - 1)) if inside else float("inf")
            with anyio.move_on_after(pause_s):
                while not self._due():
                    await self._changed.wait()
                    self._changed = anyio.Event()
            closing = self._close_ns if self._scrapes else None
            self._scrapes.append(await self._watch.scrape())
            if closing is not None:
                self._closed_ns = closing
            self._scraped.set()
            self._scraped = anyio.Event()

    async def finish(self, records: Sequence[Record]) -> tuple[ServerMetrics | None, list[str]]:
        """The server's figures of the level and the warnings of it; None without pages. Never raises."""
        if not self._watch.on:
            return None, []
        with anyio.move_on_after(GRACE_S):
            while self._due():
                await self._scraped.wait()
        if len(self._scrapes) < 2:
            opened = self._open_ns is not None
            why = "no two scrapes came in the time of the level" if opened else "the window never opened"
            return ServerMetrics(scrapes=len(self._scrapes), reasons={"all": why}), self._failures()
        try:
            found = self._watch.result(records, self._scrapes)
        except Exception as error:  # noqa: BLE001 - a fault of ours in comparing must not lose the level
            return ServerMetrics(reasons={"all": f"not compared: {type(error).__name__}"}), self._failures()
        return found, [*self._failures(), *warnings_of(found)]

    def _failures(self) -> list[str]:
        return self._watch.new_failures(self._scrapes)
