"""`--endpoint virtual:PROFILE`: the whole run inside this process, in virtual time; no sockets, no load processes."""

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from agentperf.cli.live import View
from agentperf.errors import plain_errors
from agentperf.fleet.fleet import local_fleet
from agentperf.fleet.messages import Job
from agentperf.run.conductor import Progress, conduct
from agentperf.run.plan import Plan
from agentperf.run.resume import Past
from agentperf.search.model import Done
from agentperf.server.watch import ServerWatch
from agentperf.sim.page import source_of
from agentperf.sim.profile import Profile
from agentperf.sim.virtual import VirtualEndpoint
from agentperf.store.rundir import RunWriter
from agentperf.wire.check import Capabilities
from agentperf.wire.exchange import Caller

VIRTUAL_PREFIX = "virtual:"
NOTE = "virtual time: the server is a model inside this process, and nothing was sent to any endpoint"


def capabilities(profile: Profile) -> Capabilities:
    """What the check of a real endpoint would have found; it is known, so nothing is asked."""
    return Capabilities(
        model=profile.model,
        models=[profile.model],
        context_tokens=profile.context_tokens,
        usage=True,
        cached_tokens=True,
        ignore_eos="honoured",
        max_tokens_field="max_tokens",
        stream_options=True,
        server=None,
        engine="agentperf-sim",
        transport="timed",
        notes=[NOTE],
    )


@asynccontextmanager
async def open_virtual(profile: Profile, seed: int) -> AsyncIterator[Caller]:
    """The way to a server that has just started; under a VirtualLoop."""
    async with VirtualEndpoint(profile, seed) as endpoint:
        yield endpoint.caller


@contextmanager
def rare_collections() -> Iterator[None]:
    """A tenth of the time would go into looking for garbage cycles among records, which have none."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, before[1], before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)


async def conduct_virtually(
    plan: Plan,
    make_job: Callable[[int, int], Job],
    profile: Profile,
    seed: int,
    writer: RunWriter,
    past: Past | None,
    view: View,
    metrics: bool,
) -> tuple[Done, Progress]:
    """The conductor, the agents and all else as they are; under a VirtualLoop. `metrics`: the model's page is read."""
    with plain_errors(), rare_collections(), view:
        async with VirtualEndpoint(profile, seed) as endpoint, local_fleet(make_job, endpoint.caller) as fleet:
            sources = [source_of(endpoint)] if metrics else []
            server = ServerWatch(sources, fleet.now_ns, profile.model)
            return await conduct(plan, fleet, writer, view.update, past=past, server=server)
