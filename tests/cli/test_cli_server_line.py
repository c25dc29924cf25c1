"""The server's line of the live view and of a level."""

from agentperf.cli.live import _server
from agentperf.measure.window import WindowSettings
from agentperf.run.conductor import Progress
from agentperf.run.plan import Plan
from agentperf.server.columns import Gauges
from agentperf.server.fetch import Source
from agentperf.server.watch import ServerWatch
from agentperf.slo.verdict import Rules

PLAN = Plan(protocol="sweep", slos=(), window=WindowSettings(), rules=Rules(), levels=(1,))


async def _never() -> bytes:
    raise AssertionError


def test_no_line_without_a_page() -> None:
    assert _server(Progress(PLAN)) == []


def test_what_the_page_says_now() -> None:
    progress = Progress(PLAN, server=ServerWatch([Source("http://h/metrics", _never, {}, ())]))
    assert _server(progress)[0].plain == "server   is asked once the window opens"
    progress.server.latest = Gauges(12, 3, 0.625)
    assert _server(progress)[0].plain == "server   running 12   waiting 3   KV in use 62.5%"
    progress.server.latest = Gauges(2, None, None)
    assert _server(progress)[0].plain == "server   running 2   waiting –   KV in use –"
