"""How much faster than real time a level of 1,000 agents runs in virtual time, everything included, on one core.

    python -m benchmarks.virtual_time                      the table of docs/virtual-time.md
    python -m benchmarks.virtual_time --replicas 32 --seconds 60 --profile-code

The run is that of `agentperf run --endpoint virtual:...`: agents, bodies, decoding, records, window, verdict, run
directory. Time is CPU time of this process, which is single-threaded, so other work on the machine counts little; the
wall time is printed beside it.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from msgspec.structs import replace
from rich.console import Console

from agentperf.cli.live import PlainView
from agentperf.cli.virtual import conduct_virtually
from agentperf.clock import VirtualLoop, loop_now_ns
from agentperf.fleet.messages import Job
from agentperf.measure.window import WindowSettings
from agentperf.replay.bodies import EncodedTree
from agentperf.replay.settings import ReplaySettings
from agentperf.run.conductor import Progress
from agentperf.run.plan import Plan
from agentperf.run.workload import encode, load_workload, render
from agentperf.sim.profile import Profile, load_profile
from agentperf.slo.tiers import resolve
from agentperf.slo.verdict import Rules
from agentperf.store.rundir import RunWriter, read_run
from agentperf.trace.sizing import DEFAULT_SIZES
from agentperf.wire.chat import BodySettings

SETTINGS = ((20, 1), (200, 6), (1000, 1), (1000, 8), (1000, 32))
"""(agents, replicas) of the table."""


@dataclass(frozen=True)
class Timing:
    """One level."""

    agents: int
    replicas: int
    virtual_s: float
    cpu_s: float
    wall_s: float
    requests: int
    p25_speed: float | None

    @property
    def ratio(self) -> float:
        """Virtual over CPU time."""
        return self.virtual_s / self.cpu_s


def hold(profile: Profile, trees: list[EncodedTree], agents: int, seconds: float, seed: int = 0) -> Timing:
    """Hold one level for a window of `seconds`; warm-up, drain and the run directory are part of the time."""
    window = WindowSettings(warmup_max_s=60, window_max_s=seconds)
    plan = Plan(
        protocol="fixed",
        slos=(resolve("80tps"),),
        window=window,
        rules=Rules(min_requests=window.first_look),
        levels=(agents,),
        duration_s=seconds,
    )
    replay = ReplaySettings(body=BodySettings(model=profile.model, output="exact"), seed=seed, run_id="bench")

    def make_job(worker: int, workers: int) -> Job:
        return Job(worker=worker, workers=workers, target=None, settings=replay, trees=trees, chars_per_token=4.0)

    async def main(writer: RunWriter) -> tuple[Progress, float]:
        view = PlainView(Console(quiet=True))
        _, progress = await conduct_virtually(plan, make_job, profile, seed, writer, None, view, metrics=False)
        return progress, loop_now_ns() / 1e9

    with tempfile.TemporaryDirectory() as folder:
        cpu, wall = time.process_time(), time.perf_counter()
        writer = RunWriter.create(Path(folder) / "run")
        writer.write_manifest({"schema_version": 1, "name": "bench", "simulated": True, "virtual": True, "slos": []})
        progress, virtual_s = anyio.run(main, writer, backend_options={"loop_factory": VirtualLoop})
        writer.finish()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        requests = read_run(Path(folder) / "run").records(["agent"]).num_rows
    metrics = progress.history[0].metrics
    return Timing(agents, profile.replicas, virtual_s, cpu, wall, requests, metrics.speed.p25)


def table(timings: Sequence[Timing]) -> str:
    """Markdown."""
    lines = [
        "| agents | replicas | p25 speed | virtual s | CPU s | wall s | times real time | requests | us a request |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for t in timings:
        times = f"{t.virtual_s:.0f} | {t.cpu_s:.2f} | {t.wall_s:.2f} | **{t.ratio:.0f}** | {t.requests:,}"
        speed = f"{t.p25_speed or 0:.1f} tok/s"
        lines.append(f"| {t.agents:,} | {t.replicas} | {speed} | {times} | {1e6 * t.cpu_s / t.requests:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or one row with what the time went into."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="glm-5.3-8xh200")
    parser.add_argument("--traces", default="coding-v1")
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--replicas", type=int, help="one row only")
    parser.add_argument("--seconds", type=float, default=300.0, help="virtual length of the window")
    parser.add_argument("--profile-code", action="store_true", help="what the time goes into")
    given = parser.parse_args()
    profile = load_profile(given.profile)
    began = time.process_time()
    trees = encode(render(load_workload(given.traces, profile.context_tokens), DEFAULT_SIZES), live=False)
    print(f"making the workload took {time.process_time() - began:.1f} s of CPU time, once", flush=True)
    settings = SETTINGS if given.replicas is None else ((given.agents, given.replicas),)
    timings: list[Timing] = []
    profiler = cProfile.Profile()
    for agents, replicas in settings:
        if given.profile_code:
            profiler.enable()
        timings.append(hold(replace(profile, replicas=replicas), trees, agents, given.seconds))
        profiler.disable()
    print(table(timings))
    if given.profile_code:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
