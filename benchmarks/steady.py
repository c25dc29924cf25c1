"""Steady state by simulation: when warm-up is told to be over, and how often a drift is said (docs/statistics.md).

python -m benchmarks.steady [--runs 400]
"""

import argparse
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from agentperf.measure.steady import drifts
from agentperf.measure.window import WarmUp, WindowSettings
from agentperf.stats.trend import trend
from benchmarks.coverage import SETTINGS, World, binomial

AGENTS = 40
TRANSIENTS = (0.0, 0.25, 0.5, 1.0)
"""Excess of speed at the start over that of the steady state."""
ROUNDS = (1.0, 3.0, 8.0)
"""Rounds (a request of every agent) in which it decays to 1/e."""
DRIFTS = (0.0, 0.1, 0.2, 0.4)


def _records(rng: np.random.Generator, excess: float, decay: float, spread: float = 0.25) -> Iterator[Any]:
    """Requests in the order of their end: one of every agent a round, in changing order."""
    for turn in range(60):
        for place, agent in enumerate(rng.permutation(AGENTS)):
            at = turn + place / AGENTS
            speed = 80 * (1 + excess * np.exp(-at / decay)) * np.exp(rng.normal(0, spread))
            yield SimpleNamespace(
                agent=int(agent),
                speed_tps=float(speed),
                ttft_s=float(np.exp(rng.normal(0, 0.5))),
                expected_prompt_tokens=float(20_000 * np.exp(rng.normal(0, 0.6))),
            )


def warm_at(rng: np.random.Generator, excess: float, decay: float) -> tuple[float, float]:
    """Rounds after which the level is called warm, and the excess of speed that is left then."""
    test, settings = WarmUp(AGENTS), WindowSettings(warmup_min_s=0.0)
    for i, record in enumerate(_records(rng, excess, decay), 1):
        test.take([record])
        if i % 5 == 0 and test.is_warm(1.0, settings):
            return i / AGENTS, float(excess * np.exp(-i / AGENTS / decay))
    return 60.0, 0.0


def said(rng: np.random.Generator, world: World, change: float) -> bool:
    """Whether a drift of the speed by that part, from end to end of a window of 120 s, is said."""
    obs = world.requests(AGENTS, 120.0, at_edge=True)
    values = obs.speed * (1 + change * (obs.start_s / 120.0 - 0.5))
    keep = values > 0
    seen = trend(values[keep], obs.start_s[keep])
    return seen is not None and drifts(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    runs = parser.parse_args().runs
    rng = np.random.default_rng(8)
    print(
        "| excess at the start | decays in rounds | warm after rounds | excess left | opened with more than 10 % left |"
    )
    print("|--:|--:|--:|--:|--:|")
    for excess in TRANSIENTS:
        for decay in ROUNDS if excess else ROUNDS[:1]:
            found = [warm_at(rng, excess, decay) for _ in range(runs)]
            late = np.mean([left > 0.10 for _, left in found])
            rounds, left = np.median(np.array(found), axis=0)
            print(f"| {excess:.0%} | {decay:g} | {rounds:.1f} | {left:.0%} | {late:.0%} |", flush=True)
    print()
    print("| setting | " + " | ".join(f"drift {d:.0%}" for d in DRIFTS) + " |")
    print("|---|" + "--:|" * len(DRIFTS))
    for setting in SETTINGS:
        world = World(setting, AGENTS, rng)
        cells = []
        for change in DRIFTS:
            k = sum(said(rng, world, change) for _ in range(runs))
            low, high = binomial(k, runs)
            cells.append(f"{k / runs:.1%} [{low:.1%}, {high:.1%}]" if change == 0 else f"{k / runs:.0%}")
        print(f"| {setting.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
