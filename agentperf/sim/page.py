"""The simulated server's metrics page: its text, and as a source for runs in virtual time, where there is no HTTP."""

from agentperf.server.fetch import Source
from agentperf.sim import metrics
from agentperf.sim.engine import Engine
from agentperf.sim.profile import Profile
from agentperf.sim.virtual import VirtualEndpoint


def page_text(engine: Engine, profile: Profile) -> str:
    """The page at this moment, Prometheus text."""
    return metrics.render(profile.model, engine.counters, engine.gauges(), engine.pool.capacity, profile.block_tokens)


def source_of(endpoint: VirtualEndpoint) -> Source:
    """The page of a virtual endpoint, to be scraped as one of a real server."""

    async def fetch() -> bytes:
        return page_text(endpoint.engine, endpoint.profile).encode()

    return Source(f"virtual:{endpoint.profile.name}", fetch, {}, ())
