"""Getting metrics pages over HTTP: where they are, what they offer, and one page within bounds of size and time."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx

from agentperf.server.columns import Offers, engines_of, offers_of
from agentperf.server.engines import SIM_ENGINE, paths, wanted
from agentperf.server.page import MAX_BYTES, Page, PageError, read_page
from agentperf.wire.endpoint import Endpoint, parse_endpoint
from agentperf.wire.models import open_client
from agentperf.wire.server_errors import one_line

TIMEOUT_S: Final = 5.0
"""For one page in all. A busy server may take a second or two; nothing waits for it but the next scrape."""
TOO_SLOW: Final = f"no whole page within {TIMEOUT_S:g} s"
ACCEPT: Final = {"Accept": "text/plain;version=0.0.4, text/plain;q=0.9, */*;q=0.1"}

Fetch = Callable[[], Awaitable[bytes]]
"""Gets a page's bytes; raises PageError when there are none."""


@dataclass(frozen=True, slots=True)
class Source:
    """One metrics page: how to get it and what it offered when it was last seen."""

    name: str
    """Its address for people and files, without anything secret."""
    fetch: Fetch
    offers: Offers
    engines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Place:
    """A metrics page that is to be read in a run; `note` says why it could not be read beforehand."""

    page: Endpoint
    """Its whole path is `base_path`."""
    offers: Offers
    engines: tuple[str, ...]
    note: str | None = None

    @property
    def name(self) -> str:
        """Its address without anything secret."""
        url: str = self.page.public()["url"]
        return url


@dataclass(frozen=True, slots=True)
class Discovery:
    """The pages of a run, or why there are none."""

    places: tuple[Place, ...]
    reason: str | None = None
    inside: str | None = None
    """Name of a page that is a model's inside this process and is read without HTTP."""

    @property
    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        if self.inside is not None:
            page: dict[str, Any] = {"url": self.inside, "engines": [SIM_ENGINE], "columns": {}, "reason": None}
            return {"pages": [page], "reason": None}
        return {
            "pages": [
                {
                    "url": place.name,
                    "engines": list(place.engines),
                    "columns": {c: [_spelled(o.spelling) for o in offers] for c, offers in place.offers.items()},
                    "reason": place.note,
                }
                for place in self.places
            ],
            "reason": self.reason,
        }

    @property
    def line(self) -> str:
        """The pages in one line, for the plan of a run."""
        if self.inside is not None:
            return f"{self.inside} ({SIM_ENGINE})"
        if not self.places:
            return f"none: {self.reason}"
        said = [f"{p.name} ({p.note or ', '.join(p.engines)})" for p in self.places]
        return "; ".join(said)

    @property
    def secrets(self) -> list[str]:
        """Header values of the pages, which must not reach a file."""
        return [value for place in self.places for _, value in place.page.headers]


def _spelled(spelling: Any) -> str:
    return spelling if isinstance(spelling, str) else f"{spelling.hits} / {spelling.other}"


def parse_page_url(
    text: str, ca_file: str | Path | None = None, *, insecure: bool = False, trust_env: bool = False
) -> Endpoint:
    """A metrics page by its URL; without a path it is /metrics. UsageError on anything that is no http(s) URL."""
    endpoint = parse_endpoint(text, ca_file=ca_file, insecure=insecure, trust_env=trust_env)
    if urlsplit(text.strip()).path in ("", "/"):
        return replace(endpoint, base_path="/metrics")
    return endpoint


def with_headers_of(page: Endpoint, api: Endpoint) -> Endpoint:
    """The page with the API's headers when it is on the same host, and never where they would go out unencrypted."""
    downgrade = api.scheme == "https" and page.scheme != "https"
    if page.host.lower() != api.host.lower() or downgrade:
        return page
    own = {name.lower() for name, _ in page.headers}
    extra = tuple(pair for pair in api.headers if pair[0].lower() not in own)
    return replace(page, headers=(*page.headers, *extra))


def beside(api: Endpoint) -> list[Endpoint]:
    """The pages that an API root may have beside it, with the API's headers."""
    root = api.base_path.removesuffix("/v1")
    return [replace(api, base_path=f"{root}/{path}") for path in paths()]


async def get_page(client: httpx.AsyncClient, page: Endpoint) -> bytes:
    """One page, at most MAX_BYTES within TIMEOUT_S. PageError for whatever keeps it from coming."""
    url = f"{page.base_url}?{page.query}" if page.query else page.base_url
    parts: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(TIMEOUT_S):
            async with client.stream("GET", url, headers=ACCEPT) as response:
                if response.status_code != 200:
                    raise PageError(f"the page answers HTTP {response.status_code}")
                if response.headers.get("content-encoding", "identity") not in ("", "identity"):
                    raise PageError("the page is compressed although that was not asked for")
                async for chunk in response.aiter_raw():
                    size += len(chunk)
                    if size > MAX_BYTES:
                        raise PageError(f"the page is larger than {MAX_BYTES >> 20} MiB")
                    parts.append(chunk)
    except (TimeoutError, httpx.TimeoutException) as error:
        raise PageError(TOO_SLOW) from error
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
        said = one_line(page.mask(str(error)) or type(error).__name__, 100)
        raise PageError(f"the page cannot be had: {said}") from error
    return b"".join(parts)


async def look(page: Endpoint) -> Page:
    """Fetch and read one page once. PageError when that fails."""
    async with open_client(page, TIMEOUT_S) as client:
        return read_page(await get_page(client, page), wanted())


async def discover(api: Endpoint, urls: Sequence[Endpoint] = ()) -> Discovery:
    """The pages of a run: those given, else the one beside the API root. Never raises for what a server does.

    A page that was given stays even when it cannot be read now; one that was looked for must have something to say.
    """
    if urls:
        unique = {page.base_url + page.query: with_headers_of(page, api) for page in urls}
        return Discovery(tuple([await _given(page) for page in unique.values()]))
    reasons: list[str] = []
    for page in beside(api):
        place = await _given(page)
        if place.note is None:
            return Discovery((place,))
        reasons.append(f"{place.name}: {place.note}")
        if place.note == TOO_SLOW:
            break
    return Discovery((), reasons[0])


async def _given(page: Endpoint) -> Place:
    try:
        found = await look(page)
    except PageError as error:
        return Place(page, {}, (), str(error))
    known = engines_of(found)
    note = None if known else "the page has no metrics of a known engine"
    return Place(page, offers_of(found), tuple(known), note)


@asynccontextmanager
async def open_sources(places: Sequence[Place]) -> AsyncIterator[list[Source]]:
    """Sources for the running loop: one client a page, closed at the end."""
    async with AsyncExitStack() as stack:
        sources = []
        for place in places:
            client = await stack.enter_async_context(open_client(place.page, TIMEOUT_S))
            sources.append(Source(place.name, _fetcher(client, place.page), place.offers, place.engines))
        yield sources


def _fetcher(client: httpx.AsyncClient, page: Endpoint) -> Fetch:
    async def fetch() -> bytes:
        return await get_page(client, page)

    return fetch
