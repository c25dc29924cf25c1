"""Scraping beside a level: when, and that nothing a page does can delay or fail the level. In virtual time."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from agentperf.clock import VirtualLoop, loop_now_ns
from agentperf.errors import ClientError
from agentperf.server.columns import engines_of, offers_of
from agentperf.server.compare import ServerMetrics
from agentperf.server.engines import wanted
from agentperf.server.fetch import Source
from agentperf.server.page import PageError, read_page
from agentperf.server.watch import GRACE_S, PATIENCE, LevelWatch, ServerWatch
from tests.server import pages
from tests.server.test_server_compare import request

S = 1_000_000_000


def source(fetch: Callable[[], Awaitable[bytes]], name: str = "http://h/metrics") -> Source:
    page = read_page(pages.vllm().encode(), wanted())
    return Source(name, fetch, offers_of(page), engines_of(page))


def virtually(main: Callable[[], Awaitable[Any]]) -> Any:
    return anyio.run(main, backend_options={"loop_factory": VirtualLoop})


class Server:
    """Counts a first token of 0.5 s at half past each second, and keeps the moments at which it was asked."""

    def __init__(self, takes_s: float = 0.0, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.asked: list[float] = []
        self.takes_s = takes_s
        self.fails = fails

    async def __call__(self) -> bytes:
        now = loop_now_ns() / S
        self.asked.append(now)
        await anyio.sleep(self.takes_s / 2)
        if self.fails(len(self.asked)):
            raise PageError("the page answers HTTP 503")
        count = int(loop_now_ns() / S + 0.5)
        await anyio.sleep(self.takes_s / 2)
        return pages.vllm([0.5] * count, running=count % 3, hits=count, queries=2 * count).encode()


async def hold(watch: LevelWatch, *moments: tuple[float, int | None, int | None]) -> None:
    """Tell the watch of a window at the given times."""
    for at, open_s, close_s in moments:
        await anyio.sleep(at - loop_now_ns() / S)
        watch.see(None if open_s is None else open_s * S, None if close_s is None else close_s * S)


def level(
    server: Any, *moments: tuple[float, int | None, int | None], drain_s: float = 3.0
) -> tuple[ServerMetrics | None, list[str], float]:
    """One level; its figures, its warnings, and how long `finish` took."""

    async def main() -> tuple[ServerMetrics | None, list[str], float]:
        watch = ServerWatch([source(server)], loop_now_ns)
        async with watch.level() as one:
            await hold(one, *moments)
            await anyio.sleep(drain_s)
            records = [request(i + 0.5, 0.52) for i in range(60)]
            before = loop_now_ns()
            found, said = await one.finish(records)
            return found, said, (loop_now_ns() - before) / S

    result: tuple[ServerMetrics | None, list[str], float] = virtually(main)
    return result


def test_scrapes_at_the_opening_inside_and_at_the_close() -> None:
    server = Server()
    found, said, waited = level(server, (5, None, None), (10.2, 10, None), (25.7, 10, 25))
    assert server.asked == pytest.approx([10.2, 11.2, 13.2, 17.2, 22.2, 25.7])
    assert found is not None
    assert (found.ttft_n, found.client_ttft_n) == (16, 16)
    assert found.ttft_difference_s == pytest.approx(0.02)
    assert found.cache_share == pytest.approx(0.5)
    assert found.reasons == {}
    assert (said, waited) == ([], 0)


def test_a_window_that_goes_on_is_closed_again() -> None:
    server = Server()
    found, _, _ = level(server, (10, 10, None), (13, 10, 13), (14.1, 10, None), (17, 10, 17))
    assert server.asked == pytest.approx([10, 11, 13, 17])  # the first close came when a scrape was due as well
    assert found is not None
    assert (found.open_ns, found.close_ns) == (10 * S, 17 * S)
    assert found.ttft_n == 7


def test_nothing_is_asked_before_the_window_and_after_it() -> None:
    server = Server()
    found, said, _ = level(server, (40, None, None), drain_s=100)
    assert server.asked == []
    assert found is not None
    assert found.reasons == {"all": "the window never opened"}
    assert said == []


def test_a_page_that_hangs_costs_a_moment_at_the_end_and_nothing_before() -> None:
    async def hang() -> bytes:
        await anyio.sleep_forever()
        return b""

    found, said, waited = level(hang, (10, 10, None), (20, 10, 20))
    assert waited == pytest.approx(GRACE_S)
    assert found is not None
    assert found.reasons == {"all": "no two scrapes came in the time of the level"}
    assert said == []


def test_a_slow_page_is_waited_for_while_the_level_drains() -> None:
    found, _, waited = level(Server(takes_s=2.0), (10, 10, None), (20, 10, 20), drain_s=1.8)
    assert waited == pytest.approx(0.2)
    assert found is not None
    assert found.scrape_max_s == pytest.approx(2.0)
    assert (found.open_ns, found.close_ns) == (11 * S, 21 * S)
    assert (found.ttft_n, found.client_ttft_n) == (10, 10)


def test_a_close_that_comes_during_a_scrape_gets_one_of_its_own() -> None:
    server = Server(takes_s=2.0)
    found, _, _ = level(server, (10, 10, None), (18, 10, 18), drain_s=5)
    assert server.asked == pytest.approx([10, 13, 17, 19])
    assert found is not None
    assert found.close_ns == 20 * S


@pytest.mark.parametrize("error", [RuntimeError("a fault"), ValueError(""), RecursionError()])
def test_any_fault_ends_as_a_reason(error: Exception) -> None:
    async def broken() -> bytes:
        raise error

    found, said, _ = level(broken, (10, 10, None), (20, 10, 20))
    assert found is not None
    assert found.reasons["ttft"] == f"the page cannot be read ({type(error).__name__})"
    assert said == [f"server metrics: http://h/metrics: {found.reasons['ttft']} (figures that need it are left out)"]


def test_a_fault_in_comparing_loses_the_figures_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> ServerMetrics:
        raise ZeroDivisionError

    monkeypatch.setattr("agentperf.server.watch.measure", broken)
    found, _, _ = level(Server(), (10, 10, None), (20, 10, 20))
    assert found == ServerMetrics(reasons={"all": "not compared: ZeroDivisionError"})


def test_one_late_page_shortens_the_span() -> None:
    server = Server(fails=lambda n: n == 1)
    found, said, _ = level(server, (10, 10, None), (22, 10, 22))
    assert found is not None
    assert (found.open_ns, found.close_ns) == (11 * S, 22 * S)
    assert found.ttft_difference_s == pytest.approx(0.02)
    assert "HTTP 503" in said[0]


def test_a_page_that_keeps_failing_is_given_up_and_told_once() -> None:
    server = Server(fails=lambda _: True)

    async def main() -> list[list[str]]:
        watch = ServerWatch([source(server)], loop_now_ns)
        told = []
        for start in (0, 100, 200):
            async with watch.level() as one:
                await hold(one, (start + 10.0, start + 10, None), (start + 30.0, start + 10, start + 30))
                await anyio.sleep(1)
                found, said = await one.finish([])
                assert found is not None
                assert "HTTP 503" in found.reasons["ttft"]
                told.append(said)
        return told

    told = virtually(main)
    assert [len(said) for said in told] == [1, 0, 0]
    assert server.asked[:PATIENCE] == pytest.approx([10, 11, 13, 17, 22])
    assert server.asked[PATIENCE:] == pytest.approx([110, 210]), "one more try at each further level"


def test_without_pages_nothing_happens() -> None:
    async def main() -> None:
        watch = ServerWatch()
        assert not watch.on
        async with watch.level() as one:
            one.see(1, 2)
            assert await one.finish([]) == (None, [])

    virtually(main)


def test_an_error_of_the_level_itself_comes_out_as_it_is() -> None:
    async def main() -> None:
        async with ServerWatch([source(Server())], loop_now_ns).level() as one:
            one.see(1, None)
            await anyio.sleep(1)
            raise ClientError("why")

    with pytest.raises(ClientError, match="why"):
        virtually(main)
