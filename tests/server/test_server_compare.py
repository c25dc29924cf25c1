"""Client and server side by side: the same span, the right formula, and a warning only where there is reason."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_journals import record

from agentperf.measure.record import Record
from agentperf.server.columns import Scraped, Shown, engines_of, offers_of
from agentperf.server.compare import EDGE_NS, Scrape, ServerMetrics, client_side, measure, time_mean, warnings_of
from agentperf.server.engines import wanted
from agentperf.server.histogram import Interval
from agentperf.server.page import read_page
from tests.server import pages

S = 1_000_000_000


def request(first_s: float, ttft_s: float, **changes: Any) -> Record:
    """A request whose first visible event came at `first_s`."""
    first = round(first_s * S)
    t0 = first - round(ttft_s * S)
    return record(0, t0_ns=t0, sent_ns=t0 + S // 1000, first_visible_ns=first, ttft_s=ttft_s, **changes)


def scrape(at_s: float, text: str | None, took_s: float = 0.0) -> Scrape:
    page: Scraped = "the page answers HTTP 500" if text is None else read_page(text.encode(), wanted())
    return Scrape(round(at_s * S), round((at_s + took_s) * S), (page,))


def shown(text: str) -> list[Shown]:
    page = read_page(text.encode(), wanted())
    return [Shown("p", offers_of(page), engines_of(page))]


def compared(client: list[float], server: list[float], send_s: float = 0.001) -> ServerMetrics:
    """Requests evenly between two scrapes at 10 s and 20 s."""
    step = 9.0 / len(client)
    records = [request(10.5 + i * step, ttft) for i, ttft in enumerate(client)]
    for r in records:
        r.sent_ns = r.t0_ns + round(send_s * S)
    old = [3.0] * 7
    return measure(
        records, [scrape(10, pages.vllm(old)), scrape(20, pages.vllm(old + server))], shown(pages.vllm()), None
    )


def test_golden() -> None:
    records = [
        request(9.0, 0.5),  # before the span
        request(12.0, 0.4, cached_tokens=600, prompt_tokens=1000),
        request(15.0, 0.6, cached_tokens=300, prompt_tokens=1000),
        request(18.0, 1.1, cached_tokens=None, prompt_tokens=None, outcome="failed"),  # the server counted it as well
        request(21.0, 0.5),  # after it
        record(1, first_visible_ns=None, ttft_s=None, outcome="failed"),
    ]
    scrapes = [
        scrape(10, pages.vllm([9.0], running=2, waiting=0, hits=100, queries=200, kv=0.2)),
        scrape(15, pages.vllm([9.0], running=4, waiting=1, hits=0, queries=200, kv=0.4)),  # counters are of the ends
        scrape(
            20, pages.vllm([9.0, 0.3, 0.55, 1.1], running=2, waiting=4, hits=190, queries=400, preemptions=2, kv=0.6)
        ),
    ]
    found = measure(records, scrapes, shown(pages.vllm()), "glm")
    assert (found.open_ns, found.close_ns, found.scrapes, found.scrape_max_s) == (10 * S, 20 * S, 3, 0.0)
    assert (found.ttft_n, found.client_ttft_n) == (3, 3)
    assert found.ttft_mean_s == pytest.approx(0.65)
    assert found.client_ttft_mean_s == pytest.approx(0.7)
    assert found.ttft_difference_s == pytest.approx(0.05)
    assert found.client_send_mean_s == pytest.approx(0.001)
    assert (found.ttft_p50, found.ttft_p95) == (Interval(0.5, 1.0), Interval(0.5, 2.5))
    assert (found.e2e_n, found.e2e_mean_s) == (3, pytest.approx(4.65))
    assert (found.running_mean, found.waiting_mean) == (pytest.approx(3.0), pytest.approx(1.5))
    assert found.kv_usage_mean == pytest.approx(0.4)
    assert found.preemptions == 2
    assert (found.cache_hits, found.cache_queries, found.cache_unit) == (90, 200, "tokens")
    assert found.cache_share == pytest.approx(0.45)
    assert found.client_cache_share == pytest.approx(0.45)
    assert found.cache_difference == pytest.approx(0.0)
    assert found.reasons == {}
    assert found.engines == ["vllm"]
    assert warnings_of(found) == []
    assert msgspec.json.decode(msgspec.json.encode(found), type=ServerMetrics) == found


@pytest.mark.parametrize(
    ("client", "server", "needle"),
    [
        ([0.5] * 40, [0.49] * 40, None),
        ([0.5] * 40, [0.46] * 40, None),  # 40 ms, within 10 %
        ([0.5] * 40, [0.44] * 40, "60 ms above the server's own 0.440 s: network, a gateway"),
        ([0.05] * 40, [0.035] * 40, None),  # within 20 ms
        ([0.05] * 40, [0.025] * 40, "25 ms above"),
        ([0.5] * 40, [0.7] * 40, "200 ms below the server's own 0.700 s: the page is of another server"),
        ([0.5] * 40, [0.5] * 43, None),
        ([0.5] * 40, [0.5] * 50, "counted 50 first tokens where the client saw 40: something else uses"),
        ([0.5] * 40, [0.5] * 20, "counted 20 first tokens where the client saw 40: several replicas"),
        ([0.5] * 4, [0.5] * 6, None),  # two more: retries may be that
    ],
)
def test_warnings(client: list[float], server: list[float], needle: str | None) -> None:
    found = compared(client, server)
    said = warnings_of(found)
    assert (needle is None) == (said == [])
    if needle is not None:
        assert needle in said[0]
        assert len(said) == 1


def test_the_clients_own_part_is_named_where_it_is_most_of_the_difference() -> None:
    said = warnings_of(compared([0.5] * 40, [0.3] * 40, send_s=0.18))
    assert "connection and upload alone took 180 ms" in said[0]


@pytest.mark.parametrize(("n", "hits", "said"), [(60, 75, False), (60, 95, True), (60, 60, True), (10, 20, False)])
def test_cache_hits_that_do_not_fit_the_usage_are_said(n: int, hits: int, said: bool) -> None:
    records = [request(10.5 + i / 10, 0.5, cached_tokens=800, prompt_tokens=1000) for i in range(n)]
    pages_of = [pages.vllm(), pages.vllm([0.5] * n, hits=hits, queries=100)]
    found = measure(records, [scrape(10, pages_of[0]), scrape(20, pages_of[1])], shown(pages.vllm()), None)
    assert found.cache_difference == pytest.approx(hits / 100 - 0.8)
    assert any("cache hit of" in w for w in warnings_of(found)) == said
    assert len(warnings_of(found)) == said


def test_different_populations_have_no_difference() -> None:
    found = compared([0.5] * 40, [0.1] * 80)
    assert found.ttft_difference_s is None
    assert found.reasons["ttft_difference"] == "the two sides did not count the same requests"
    assert found.ttft_mean_s == pytest.approx(0.1)
    assert found.client_ttft_mean_s == pytest.approx(0.5)


def test_requests_at_the_edges_may_be_on_either_side() -> None:
    """A long TTFT ended while the closing scrape was on its way: the server counted it, the client's middle not."""
    records = [request(11 + i / 10, 0.1) for i in range(20)] + [request(20.9, 2.0)]
    scrapes = [scrape(10, pages.vllm()), scrape(20, pages.vllm([0.1] * 20 + [2.0]), took_s=1.0)]
    found = measure(records, scrapes, shown(pages.vllm()), None)
    assert (found.client_ttft_n, found.ttft_n) == (20, 21)
    assert found.client_n_range == (20, 21)
    assert found.ttft_difference_s == pytest.approx(0.1 - 4.0 / 21)
    assert warnings_of(found) == []


def test_a_scrape_without_a_page_shortens_the_span_on_both_sides() -> None:
    records = [request(12, 0.5), request(16, 0.7), request(18, 0.7)]
    good = [scrape(15, pages.vllm([0.4], running=1)), scrape(20, pages.vllm([0.4, 0.6, 0.6], running=3))]
    found = measure(records, [scrape(10, None), *good, scrape(25, None)], shown(pages.vllm()), None)
    assert (found.open_ns, found.close_ns) == (15 * S, 20 * S)
    assert (found.client_ttft_n, found.ttft_n) == (2, 2)
    assert found.ttft_difference_s == pytest.approx(0.1)
    assert found.running_mean == pytest.approx(2.0)
    assert "running" not in found.reasons


def test_no_page_is_null_with_the_reason_everywhere() -> None:
    found = measure([request(12, 0.5)], [scrape(10, None), scrape(20, None)], shown(pages.vllm()), None)
    assert (found.ttft_n, found.ttft_mean_s, found.running_mean, found.cache_share) == (None, None, None, None)
    assert found.client_ttft_mean_s == pytest.approx(0.5)
    keys = ("ttft", "e2e", "running", "waiting", "kv_usage", "cache", "preemptions", "ttft_difference")
    assert {found.reasons[k] for k in keys} == {"the page answers HTTP 500"}
    assert warnings_of(found) == []


def test_nothing_happened_is_no_zero() -> None:
    found = compared([0.5], [])
    assert (found.ttft_n, found.ttft_mean_s, found.ttft_p50) == (0, None, None)
    assert found.reasons["ttft"] == "no request got its first token between the two scrapes"
    assert found.reasons["cache"] == "nothing was looked up between the two scrapes"
    assert found.cache_share is None


def test_more_hits_than_queries_is_no_share() -> None:
    found = measure([], [scrape(1, pages.vllm()), scrape(2, pages.vllm(hits=9, queries=3))], shown(pages.vllm()), None)
    assert found.cache_share is None
    assert "more hits than queries" in found.reasons["cache"]


def test_mean_over_time() -> None:
    assert time_mean([(0, 1.0), (1, 3.0), (3, 3.0)]) == pytest.approx((2 + 6) / 3)
    assert time_mean([(0, 1.0), (5, None), (10, 2.0)]) == pytest.approx(1.5)
    assert time_mean([(0, 1.0)]) is None
    assert time_mean([(0, None), (1, None)]) is None


@given(
    st.lists(st.tuples(st.floats(9, 21), st.floats(0.001, 5)), max_size=30),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
)
def test_ranges_hold_the_middle(points: list[tuple[float, float]], took1: float, took2: float) -> None:
    records = [request(at, ttft) for at, ttft in points]
    before, after = scrape(10, "", took1), scrape(20, "", took2)
    client = client_side(records, before, after)
    assert client.n_range[0] <= client.n <= client.n_range[1]
    sure = [r for r in records if before.end_ns + EDGE_NS <= (r.first_visible_ns or 0) < after.begin_ns - EDGE_NS]
    assert client.n_range[0] == len(sure)


FIXTURES = [
    pages.vllm([0.2, 0.7], running=2, hits=3, queries=9, kv=0.2),
    pages.sglang([0.3], prompt=50, cached=(10, 5), retracted=1),
    pages.trtllm([0.4], reused=4, missed=4),
    pages.llamacpp(processed=10, cached=30),
    pages.dynamo_frontend([0.2], inputs=9, cached=3),
    pages.dynamo_worker(pages.vllm([0.9], engine=1)),
    pages.vllm_v0([0.1]),
]
LINES = sorted({line for text in FIXTURES for line in text.splitlines() if not line.startswith("#")})


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Lines of all engines in any mixture, some with other values: pages that no engine would write."""
    lines = draw(st.lists(st.sampled_from(LINES), max_size=40, unique=True))
    values = draw(st.lists(st.sampled_from(["", "0", "7", "1e9", "NaN", "-3", "0.5"]), min_size=40, max_size=40))
    return "".join(
        f"{line.rpartition(' ')[0]} {value}\n" if value else f"{line}\n"
        for line, value in zip(lines, values, strict=False)
    )


@given(st.lists(texts(), min_size=4, max_size=4))
def test_any_pages_give_figures_that_can_be_or_null_with_a_reason(found: list[str]) -> None:
    read = [read_page(text.encode(), wanted()) for text in found]
    shown_pages = [Shown(f"p{i}", offers_of(read[i + 2]), engines_of(read[i + 2])) for i in range(2)]
    scrapes = [Scrape(0, 0, (read[0], read[1])), Scrape(S, S, (read[2], read[3]))]
    result = measure([request(0.5, 0.2)], scrapes, shown_pages, "glm")
    nulls = {
        "ttft": result.ttft_mean_s,
        "e2e": result.e2e_mean_s,
        "running": result.running_mean,
        "waiting": result.waiting_mean,
        "kv_usage": result.kv_usage_mean,
        "preemptions": result.preemptions,
        "cache": result.cache_share,
        "ttft_difference": result.ttft_difference_s,
    }
    assert {name for name, value in nulls.items() if value is None} == set(result.reasons) - {"ttft_quantiles"}
    assert all(value >= 0 for name, value in nulls.items() if value is not None and name != "ttft_difference")
    assert result.cache_share is None or result.cache_share <= 1
    assert result.kv_usage_mean is None or result.kv_usage_mean <= 1
    warnings_of(result)
