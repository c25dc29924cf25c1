"""The simulated server's metrics page: its text, and as a source for runs in virtual time, where there is no HTTP."""

from agentperf.server.fetch import Source
from agentperf.sim import metrics
from agentperf.sim.profile import Profile
from agentperf.sim.replicas import Replicas
from agentperf.sim.virtual import VirtualEndpoint


def page_text(replicas: Replicas, profile: Profile) -> str:
    """The page of all replicas at this moment, Prometheus text."""
    counters, gauges = replicas.totals()
    blocks = sum(engine.pool.capacity for engine in replicas.engines)
    return metrics.render(profile.model, counters, gauges, blocks, profile.block_tokens)


def source_of(endpoint: VirtualEndpoint) -> Source:
    """The page of a virtual endpoint, to be scraped as one of a real server."""

    async def fetch() -> bytes:
        return page_text(endpoint.replicas, endpoint.profile).encode()

    return Source(f"virtual:{endpoint.profile.name}", fetch, {}, ())
