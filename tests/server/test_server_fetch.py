"""Getting pages over real sockets: where they are found, what goes with the request, and what cannot harm us."""

import gzip
import json
from dataclasses import replace

import anyio
import pytest

from agentperf.errors import UsageError
from agentperf.server import fetch
from agentperf.server.fetch import Discovery, discover, look, open_sources, parse_page_url, with_headers_of
from agentperf.server.page import PageError
from agentperf.wire.endpoint import parse_endpoint
from tests.server import pages
from tests.wire.scripted import Reply, Seen, Step, serve

pytestmark = pytest.mark.anyio

KEY = "sk-canary-0123456789abcdef"


def text(page: str, *headers: tuple[str, str]) -> Reply:
    return Reply([Step(page.encode())], 200, [("Content-Type", "text/plain; version=0.0.4"), *headers], "length")


def status(code: int) -> Reply:
    return Reply([Step(b"no")], code, [("Location", "/elsewhere")], "length")


async def test_the_page_beside_the_api_root() -> None:
    def script(seen: Seen) -> Reply:
        return text(pages.vllm()) if seen.path == "/metrics?api-version=1" else status(404)

    async with serve(script) as server:
        api = parse_endpoint(server.base() + "?api-version=1", api_key=KEY)
        found = await discover(api)
        assert found.line == f"http://127.0.0.1:{server.port}/metrics?api-version=*** (vllm)"
        assert [s.path for s in server.seen] == ["/metrics?api-version=1"]
        assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
        assert server.seen[0].headers["accept-encoding"] == "identity"
        assert server.seen[0].headers["accept"].startswith("text/plain;version=0.0.4")
    shown = json.dumps(found.facts)
    assert KEY not in shown
    (page,) = found.facts["pages"]
    assert page["columns"]["cache"] == ["vllm:prefix_cache_hits / vllm:prefix_cache_queries"]
    assert found.secrets == [f"Bearer {KEY}"]


@pytest.mark.parametrize("first", [status(404), text('[{"iter": 1}]'), text("up 1\n")])
async def test_trtllms_page_is_elsewhere(first: Reply) -> None:
    async with serve(lambda s: text(pages.trtllm()) if s.path == "/prometheus/metrics" else first) as server:
        found = await discover(parse_endpoint(server.base()))
    assert found.line.endswith("/prometheus/metrics (tensorrt-llm)")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (status(404), "the page answers HTTP 404"),
        (status(401), "the page answers HTTP 401"),
        (status(302), "the page answers HTTP 302"),
        (text("<html>a gateway's front page</html>"), "the page is HTML, not Prometheus text"),
        (text("process_cpu_seconds_total 4\n"), "the page has no metrics of a known engine"),
        (text("vllm:num_requests_running many\n"), "the page cannot be parsed"),
        (Reply([Step(gzip.compress(b"x"))], 200, [("Content-Encoding", "gzip")]), "compressed although"),
    ],
)
async def test_no_page_is_a_reason_and_no_error(reply: Reply, why: str) -> None:
    async with serve(reply) as server:
        found = await discover(parse_endpoint(server.base()))
    assert found.places == ()
    assert found.reason is not None
    assert why in found.reason
    assert found.facts == {"pages": [], "reason": found.reason}
    assert found.line.startswith("none: ")


async def test_nobody_there() -> None:
    found = await discover(parse_endpoint("http://127.0.0.1:9/v1"))
    assert "cannot be had" in (found.reason or "")


async def test_a_page_that_never_ends_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = b"# " + b"x" * 1_000_000 + b"\n"
    async with serve(Reply([Step(chunk)] * 40)) as server:
        with pytest.raises(PageError, match="larger than 8 MiB"):
            await look(parse_page_url(f"http://127.0.0.1:{server.port}"))
    monkeypatch.setattr(fetch, "TIMEOUT_S", 0.3)
    async with serve(Reply([Step(b"# x\n", 0.05)] * 1000)) as server:  # a drop now and then
        with anyio.fail_after(30):
            found = await discover(parse_endpoint(server.base()))
        assert fetch.TOO_SLOW in (found.reason or "")
        assert len(server.seen) == 1, "a server that hangs is not asked for its other page"


async def test_given_pages_stay_even_when_they_do_not_answer_yet() -> None:
    async with serve(lambda s: text(pages.vllm()) if s.path == "/w1" else status(503)) as server:
        base = f"http://127.0.0.1:{server.port}"
        urls = [parse_page_url(f"{base}/{name}") for name in ("w1", "w2", "w1")]
        found = await discover(parse_endpoint(server.base()), urls)
    assert [p.engines for p in found.places] == [("vllm",), ()]
    assert found.line == f"{base}/w1 (vllm); {base}/w2 (the page answers HTTP 503)"


async def test_a_source_reads_its_page_again_and_again() -> None:
    async with serve(text(pages.vllm())) as server:
        found = await discover(parse_endpoint(server.base()))
        async with open_sources(found.places) as (source,):
            assert await source.fetch() == await source.fetch() == pages.vllm().encode()
        assert source.name == f"http://127.0.0.1:{server.port}/metrics"
        assert server.connections <= 3


def test_headers_go_to_the_same_host_only() -> None:
    api = parse_endpoint("https://a.example:8000/v1", api_key=KEY, headers=[("X-Route", "canary")])
    names = lambda url: [n for n, _ in with_headers_of(parse_page_url(url), api).headers]  # noqa: E731
    assert names("https://A.example:9090/metrics") == ["X-Route", "Authorization"]
    assert names("https://b.example:8000/metrics") == []
    assert names("http://a.example:9090/metrics") == []  # would go out unencrypted
    assert names("https://u:p@a.example/metrics") == ["Authorization", "X-Route"]
    own = with_headers_of(parse_page_url("https://u:p@a.example/metrics"), api)
    assert dict(own.headers)["Authorization"].startswith("Basic ")


async def test_another_host_sees_no_key() -> None:
    async with serve(text(pages.vllm())) as server:
        api = parse_endpoint(server.base(), api_key=KEY)
        await discover(api, [parse_page_url(f"http://localhost:{server.port}/metrics")])
        await discover(api, [parse_page_url(f"http://127.0.0.1:{server.port}/metrics")])
        assert ["authorization" in s.headers for s in server.seen] == [False, True]


def test_page_urls() -> None:
    assert parse_page_url("http://h:9090").base_url == "http://h:9090/metrics"
    assert parse_page_url("http://h:9090/").base_url == "http://h:9090/metrics"
    assert parse_page_url("http://h/a/prometheus/metrics?x=1").target("").startswith("/a/prometheus/metrics")
    with pytest.raises(UsageError):
        parse_page_url("h:9090/metrics")
    place = fetch.Place(parse_page_url("https://user:hunter22@h/metrics?token=secret99"), {}, (), "why")
    found = Discovery((place,))
    for said in (place.name, json.dumps(found.facts), found.line, repr(place)):
        assert "hunter22" not in said
        assert "secret99" not in said
    assert replace(place, note=None).name == "https://h/metrics?token=***"
