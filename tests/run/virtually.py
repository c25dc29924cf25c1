"""A whole run in virtual time: conductor, fleet, agents, judge and planner as they are, the server a model."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio

from agentperf.clock import VirtualLoop
from agentperf.fleet.fleet import Fleet, local_fleet
from agentperf.fleet.messages import Job
from agentperf.measure.window import WindowSettings
from agentperf.replay.bodies import EncodedTree
from agentperf.replay.settings import ReplaySettings
from agentperf.run.conductor import Progress, conduct
from agentperf.run.plan import Plan
from agentperf.search.model import Done, SearchSettings
from agentperf.sim.profile import Profile
from agentperf.sim.virtual import VirtualEndpoint
from agentperf.slo.tiers import resolve
from agentperf.slo.verdict import Rules
from agentperf.store.rundir import RunWriter
from agentperf.wire.chat import BodySettings
from agentperf.wire.exchange import Caller


def search_plan(*slos: str, max_agents: int = 64, resolution: float = 0.01, **changes: Any) -> Plan:
    resolved = tuple(resolve(s) for s in slos)
    window = changes.pop("window", WindowSettings(warmup_max_s=60, window_max_s=300))
    return Plan(
        protocol="quick",
        slos=resolved,
        window=window,
        rules=Rules(min_requests=window.first_look),
        search=SearchSettings(slos=tuple(s.name for s in resolved), max_agents=max_agents, resolution=resolution),
        **changes,
    )


def fleet_of(trees: list[EncodedTree], caller: Caller, seed: int, model: str) -> AbstractAsyncContextManager[Fleet]:
    replay = ReplaySettings(body=BodySettings(model=model, output="exact"), seed=seed, run_id=f"seed{seed}")

    def job(worker: int, workers: int) -> Job:
        return Job(worker=worker, workers=workers, target=None, settings=replay, trees=trees, chars_per_token=4.0)

    return local_fleet(job, caller)


def run_with(
    plan: Plan, trees: list[EncodedTree], caller: Caller, writer: RunWriter, seed: int = 0, model: str = "m"
) -> Any:
    """The coroutine of a run against any caller."""

    async def main() -> tuple[Done, Progress]:
        async with fleet_of(trees, caller, seed, model) as fleet:
            return await conduct(plan, fleet, writer, lambda _: None, handle_signals=False)

    return main()


def run(
    plan: Plan, trees: list[EncodedTree], profile: Profile, directory: Path, seed: int = 0
) -> tuple[Done, Progress]:
    writer = RunWriter.create(directory)
    writer.write_manifest({"schema_version": 1, "name": "virtual", "simulated": True, "slos": []})

    async def main() -> tuple[Done, Progress]:
        async with VirtualEndpoint(profile, seed) as endpoint:
            result: tuple[Done, Progress] = await run_with(
                plan, trees, endpoint.caller, writer, seed, endpoint.facts.model
            )
            return result

    result = anyio.run(main, backend_options={"loop_factory": VirtualLoop})
    writer.finish()
    return result
