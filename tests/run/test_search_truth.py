"""The search against a known truth: the bracket of a run holds the capacity that the profile itself has.

The truth comes from the model alone (`sim.truth`), without agents, window, judge or planner.
"""

import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from agentperf.measure.window import WindowSettings
from agentperf.run.workload import encode, load_workload, render
from agentperf.sim.profile import load_profile
from agentperf.sim.truth import TrueMetrics, true_capacity
from agentperf.trace.sizing import DEFAULT_SIZES
from tests.run.virtually import run, search_plan

SEEDS = 20
NEEDED = 18
WINDOW = WindowSettings(warmup_max_s=10, window_min_s=4, window_max_s=10)
CONTEXT = 32_768


def meets(metrics: TrueMetrics) -> bool:
    """80tps: p25 speed >= 80 tok/s and p95 TTFT <= 5 s; the model makes no errors."""
    return metrics.speed_p25 >= 80 and metrics.ttft_p95 <= 5


def truth() -> int:
    rendered = render(load_workload("smoke", CONTEXT), DEFAULT_SIZES)
    return true_capacity(load_profile("demo"), rendered, meets, 40, seconds=300)


def brackets(seeds: list[int]) -> list[tuple[int, int]]:
    rendered = render(load_workload("smoke", CONTEXT), DEFAULT_SIZES)
    trees = encode(rendered, live=False)
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            plan = search_plan("80tps", window=WINDOW, resolution=0.1)
            done, _ = run(plan, trees, load_profile("demo"), Path(folder) / "run", seed)
        answer = done.answers[0]
        found.append((answer.largest_pass or 0, answer.smallest_fail or 10**9))
    return found


def test_the_bracket_holds_the_true_capacity() -> None:
    halves = [list(range(0, SEEDS, 2)), list(range(1, SEEDS, 2))]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        capacity = pool.submit(truth)
        found = [bracket for half in pool.map(brackets, halves) for bracket in half]
        true = capacity.result()
    right = [low <= true < high for low, high in found]
    assert sum(right) >= NEEDED, (true, found)
    # A bracket as wide as the ramp would hold anything: most must be narrow too.
    narrow = [high - low <= 0.35 * true for low, high in found]
    assert sum(narrow) >= NEEDED, (true, found)


@pytest.mark.parametrize("seed", [1, 2])
def test_equal_seeds_give_equal_runs(seed: int) -> None:
    assert brackets([seed]) == brackets([seed])
