"""The engine in stretches gives what it gives step by step: times, cache hits, preemptions, all of it exactly."""

import random
import statistics
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from sim_loads import Arrival, Played, arrivals, dyadic, play
from sim_profiles import plain

from agentperf.sim.engine import Engine, SimRequest
from agentperf.sim.profile import Profile
from agentperf.sim.runs import RunPool


def both(profile: Profile, load: list[Arrival], seed: int = 0) -> tuple[Engine, Played, Engine, Played]:
    single = Engine(profile, seed)
    bulk = Engine(profile, seed, each_token=False, pool=RunPool(profile.kv_pool_tokens // profile.block_tokens))
    return single, play(single, load), bulk, play(bulk, load, runs=True)


def marks(stamps: list[tuple[float, int]], wanted: int) -> list[tuple[float, int]]:
    """The first emission, the one that holds the marked token, and the last."""
    if not stamps:
        return []
    marked = next((s for s in stamps if s[1] >= wanted), None) if wanted > 1 else None
    return sorted({stamps[0], stamps[-1], marked or stamps[0]})


@settings(max_examples=300, deadline=None)
@given(
    load=arrivals(),
    block=st.sampled_from([1, 2, 4, 16]),
    pool=st.integers(260, 900),
    running=st.integers(2, 12),
    cache=st.booleans(),
)
def test_equal_to_single_steps(load: list[Arrival], block: int, pool: int, running: int, cache: bool) -> None:
    profile = dyadic(
        context_tokens=240,
        kv_pool_tokens=max(pool, 240 + block),
        block_tokens=block,
        max_running=running,
        max_step_tokens=running + 40,
        prefix_cache=cache,
    )
    load = [a._replace(prompt=min(a.prompt, 240 - a.output)) for a in load]
    single, one, bulk, other = both(profile, load)
    for index, (a, b) in enumerate(zip(one.jobs, other.jobs, strict=True)):
        assert (a.state, a.written, a.first_s, a.cached_tokens) == (b.state, b.written, b.first_s, b.cached_tokens)
        assert a.admitted_s == b.admitted_s
        if a.state == "done":
            assert a.last_s == b.last_s
            mark = min(load[index].mark, load[index].output)
            assert marks(one.stamps[index], mark) == other.stamps[index]
    for name in ("preemptions", "prefix_hits", "prefix_queries", "prompt_tokens", "generation_tokens", "finished"):
        assert getattr(single.counters, name) == getattr(bulk.counters, name)
    assert single.counters.itl.count - _reentries(single) == bulk.counters.itl.count
    assert single.pool.resident == bulk.pool.resident
    assert bulk.pool.in_use == bulk.pool.private == 0
    assert other.advances <= one.advances


def _reentries(engine: Engine) -> int:
    """Single steps also count the gap over a preemption; a stretch does not know it."""
    return engine._entries - engine.counters.prompt.count


def test_the_pool_gets_full_and_jobs_are_thrown_out_at_the_same_moments() -> None:
    generator = random.Random(3)
    profile = dyadic(context_tokens=512, kv_pool_tokens=1500, max_running=16, max_step_tokens=64)
    load = [
        Arrival(i / 64, generator.randrange(50, 250), generator.randrange(20, 200), i % 3, 0.5, None, 0)
        for i in range(60)
    ]
    single, one, bulk, other = both(profile, load)
    assert single.counters.preemptions == bulk.counters.preemptions > 5
    assert [j.last_s for j in one.jobs] == [j.last_s for j in other.jobs]
    assert [j.cached_tokens for j in one.jobs] == [j.cached_tokens for j in other.jobs]
    assert any(j.cached_tokens for j in one.jobs)


def test_a_reply_takes_a_few_advances_however_long() -> None:
    for output in (50, 3000):
        engine = Engine(plain(step_per_kv_token_s=1e-6), each_token=False)
        engine.submit(SimRequest("a", 300, output), 0.0)
        advances = 0
        while engine.next_s() is not None:
            engine.advance()
            advances += 1
        assert advances == 3  # it begins, its prompt is done, its last token is written


def ends(profile: Profile, seed: int, *, each_token: bool, at: float | None = None) -> tuple[float, float]:
    """(end of a reply of 400 tokens, first token of a second request that comes `at`)."""
    engine = Engine(profile, seed, each_token=each_token)
    first = engine.submit(SimRequest("a", 10, 400), 0.0)
    second = None
    while (now_s := engine.next_s()) is not None:
        if at is not None and second is None and now_s >= at:
            second = engine.submit(SimRequest("b", 1, 1), at)
            continue
        engine.advance()
    return first.last_s or 0.0, (second.first_s or 0.0) if second else 0.0


def test_jitter_of_a_stretch_has_the_mean_and_variance_of_its_steps() -> None:
    profile = plain(jitter=0.5, step_per_kv_token_s=2e-5)
    single = [ends(profile, seed, each_token=True)[0] for seed in range(400)]
    bulk = [ends(profile, seed, each_token=False)[0] for seed in range(400)]
    sd = statistics.stdev(single)
    assert abs(statistics.mean(bulk) - statistics.mean(single)) < 4 * sd / 14  # two means of 400 each
    assert 0.85 < statistics.stdev(bulk) / sd < 1.18


def test_an_arrival_that_cuts_a_stretch_leaves_mean_and_variance_alone() -> None:
    profile = plain(jitter=0.2)
    single = [ends(profile, seed, each_token=True, at=2.0) for seed in range(400)]
    bulk = [ends(profile, seed, each_token=False, at=2.0) for seed in range(400)]
    for column in (0, 1):
        a, b = [x[column] for x in single], [x[column] for x in bulk]
        sd = statistics.stdev(a)
        assert abs(statistics.mean(b) - statistics.mean(a)) < 4 * sd / 14
        assert 0.8 < statistics.stdev(b) / sd < 1.25
    assert all(2.0 < first < 2.0 + 40 * 0.011 for _, first in bulk)


@settings(max_examples=60, deadline=None)
@given(load=arrivals(), seed=st.integers(0, 9), draft=st.integers(0, 2))
def test_any_load_ends_with_jitter_and_drafts(load: list[Arrival], seed: int, draft: int) -> None:
    profile = plain(jitter=0.3, draft_tokens=draft, draft_acceptance=0.6, kv_pool_tokens=4200, ttft_overhead_s=0.01)
    engines = [Engine(profile, seed, each_token=False) for _ in range(2)]
    played = [play(engine, load) for engine in engines]
    assert played[0].stamps == played[1].stamps
    for job, arrival, stamps in zip(played[0].jobs, load, played[0].stamps, strict=True):
        assert job.state in ("done", "aborted")
        if job.state == "done":
            assert stamps[-1][1] == arrival.output == job.written
            assert all(a < b for a, b in pairwise(stamps))
            assert stamps[0][0] > arrival.at_s
    assert engines[0].pool.in_use == 0
