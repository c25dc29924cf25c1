"""The engine: golden times of small cases, and properties over random loads."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_profiles import plain

from agentperf.sim.engine import Emission, Engine, Job, SimRequest, StepResult
from agentperf.sim.profile import Profile


def drain(engine: Engine, limit: int = 100_000) -> list[StepResult]:
    """All steps until the engine is idle."""
    steps = []
    for _ in range(limit):
        if engine.next_s() is None:
            return steps
        result = engine.advance()
        if result is not None:
            steps.append(result)
    raise AssertionError("the engine does not come to an end")


def request(name: str, prompt: int, output: int, hashes: tuple[Any, ...] = ()) -> SimRequest:
    return SimRequest(name, prompt, output, hashes)


def emissions_of(steps: list[StepResult], job: Job) -> list[tuple[float, Emission]]:
    return [(s.end_s, e) for s in steps for e in s.emissions if e.job is job]


def test_one_request_golden() -> None:
    """300 tokens of prompt in one step, then a token a step."""
    engine = Engine(plain(ttft_overhead_s=0.5))
    job = engine.submit(request("a", 300, 4), now_s=2.0)
    steps = drain(engine)
    first = 2.0 + 0.5 + 0.01 + 300 / 10_000
    decode = 0.01 + 0.001
    assert [at for at, _ in emissions_of(steps, job)] == pytest.approx([first + k * decode for k in range(4)])
    assert [e.finished for _, e in emissions_of(steps, job)] == [False, False, False, True]
    assert (job.first_s, job.last_s) == pytest.approx((first, first + 3 * decode))
    assert engine.counters.ttft.total == pytest.approx(first - 2.0)
    assert engine.counters.e2e.total == pytest.approx(first + 3 * decode - 2.0)
    assert engine.counters.itl.count == 3
    assert engine.counters.itl.total == pytest.approx(3 * decode)
    assert engine.counters.prompt_tokens == 300
    assert engine.counters.generation_tokens == 4


def test_kv_reads_make_steps_longer_golden() -> None:
    engine = Engine(plain(step_per_kv_token_s=1e-5))
    job = engine.submit(request("a", 100, 3), 0.0)
    stamps = [at for at, _ in emissions_of(drain(engine), job)]
    # While the second token is made 101 tokens are read (the prompt and the first), then 102.
    assert stamps[1] - stamps[0] == pytest.approx(0.011 + 101e-5)
    assert stamps[2] - stamps[1] == pytest.approx(0.011 + 102e-5)


def test_a_long_prompt_is_prefilled_in_chunks_and_slows_decoding() -> None:
    engine = Engine(plain())
    fast = engine.submit(request("fast", 10, 30), 0.0)
    engine.advance()
    for _ in range(5):
        engine.advance()
    alone = fast.last_s
    long = engine.submit(request("long", 1200, 2), alone or 0.0)
    steps = drain(engine)
    # The running step was planned without it; then 511, 511 and 178 tokens ride with one decoding sequence.
    carried = [s for s in steps if s.prefill_tokens]
    assert [s.prefill_tokens for s in carried] == [511, 511, 178]
    assert [s.end_s - s.start_s for s in carried] == pytest.approx([0.011 + q / 10_000 for q in (511, 511, 178)])
    assert all(any(e.job is fast for e in s.emissions) for s in carried)
    assert long.first_s == carried[-1].end_s


def test_waiting_is_first_come_first_served() -> None:
    engine = Engine(plain(max_running=2))
    jobs = [engine.submit(request(str(i), 20, 5), 0.0) for i in range(6)]
    assert engine.gauges().waiting == 6
    engine.advance()
    assert (engine.gauges().running, engine.gauges().waiting) == (2, 4)
    drain(engine)
    firsts = [job.first_s or 0.0 for job in jobs]
    assert firsts == sorted(firsts)
    assert firsts[2] > (jobs[0].last_s or 0.0)


def test_prefix_cache_hits_of_the_same_prefix_only() -> None:
    engine = Engine(plain())
    shared = tuple(("s", i) for i in range(10))
    first = engine.submit(request("1", 16 * 10 + 3, 2, shared), 0.0)
    drain(engine)
    longer = engine.submit(request("2", 16 * 14 + 3, 2, (*shared, *(("x", i) for i in range(4)))), 1.0)
    drain(engine)
    other = engine.submit(request("3", 16 * 10 + 3, 2, tuple(("t", i) for i in range(10))), 2.0)
    drain(engine)
    assert (first.cached_tokens, longer.cached_tokens, other.cached_tokens) == (0, 160, 0)
    assert engine.counters.prefix_hits == 160
    assert engine.counters.prefix_queries == 163 + 227 + 163
    # An identical prompt of whole blocks: the last block is computed again, since its output is wanted.
    whole = tuple(("w", i) for i in range(4))
    engine.submit(request("4", 64, 2, whole), 3.0)
    drain(engine)
    again = engine.submit(request("5", 64, 2, whole), 4.0)
    drain(engine)
    assert again.cached_tokens == 48


def test_no_prefix_cache_no_hits() -> None:
    engine = Engine(plain(prefix_cache=False))
    hashes = tuple(range(10))
    for index in range(2):
        job = engine.submit(request(str(index), 163, 2, hashes), float(index))
        drain(engine)
        assert job.cached_tokens == 0


def test_cached_tokens_shorten_the_prefill() -> None:
    engine = Engine(plain(max_step_tokens=4000))
    hashes = tuple(range(100))
    cold = engine.submit(request("cold", 1610, 1, hashes), 0.0)
    drain(engine)
    warm = engine.submit(request("warm", 1610, 1, hashes), 10.0)
    drain(engine)
    assert (cold.first_s or 0) == pytest.approx(0.01 + 0.161)
    assert (warm.first_s or 0) - 10 == pytest.approx(0.01 + 10 / 10_000)


def test_preemption_when_the_pool_is_full() -> None:
    profile = plain(context_tokens=512, kv_pool_tokens=640, max_step_tokens=512)
    engine = Engine(profile)
    old = engine.submit(request("old", 200, 200), 0.0)
    new = engine.submit(request("new", 200, 200), 0.0)
    steps = drain(engine)
    assert engine.counters.preemptions >= 1
    for job in (old, new):
        assert sum(e.tokens for _, e in emissions_of(steps, job)) == 200
    assert (old.last_s or 0) < (new.last_s or 0)
    stamps = [at for at, _ in emissions_of(steps, old)]
    assert max(b - a for a, b in pairwise(stamps)) < 0.1  # the older one is not thrown out


def test_a_preempted_job_comes_back_before_later_ones() -> None:
    """Two jobs outgrow the pool while a third, too large for what is left, waits behind them."""
    engine = Engine(plain(context_tokens=512, kv_pool_tokens=640, max_step_tokens=512))
    old, new = (engine.submit(request(name, 200, 200), 0.0) for name in ("old", "new"))
    late = engine.submit(request("late", 240, 100), 0.1)
    drain(engine)
    assert engine.counters.preemptions >= 1
    # `late` would fit beside `old` once `new` was thrown out, but `new` came first.
    assert (late.admitted_s or 0) >= (old.last_s or 0)
    assert (new.last_s or 0) > (old.last_s or 0)


def test_tokens_per_event() -> None:
    engine = Engine(plain(tokens_per_event=4))
    job = engine.submit(request("a", 10, 11), 0.0)
    assert [e.tokens for _, e in emissions_of(drain(engine), job)] == [1, 4, 4, 2]


def test_speculative_decoding_gains_the_expected_tokens_per_step() -> None:
    profile = plain(draft_tokens=3, draft_acceptance=0.7, max_step_tokens=1024)
    engine = Engine(profile, seed=3)
    job = engine.submit(request("a", 10, 4000), 0.0)
    counts = [e.tokens for _, e in emissions_of(drain(engine), job)]
    assert sum(counts) == 4000
    assert set(counts[1:-1]) == {1, 2, 3, 4}
    assert 3999 / (len(counts) - 1) == pytest.approx(profile.tokens_per_step(), rel=0.05)


def test_jitter_keeps_the_mean_and_varies_with_the_seed() -> None:
    ends = []
    for seed in (1, 1, 2):
        engine = Engine(plain(jitter=0.3), seed)
        engine.submit(request("a", 10, 3000), 0.0)
        steps = drain(engine)
        ends.append(steps[-1].end_s)
        assert steps[-1].end_s / len(steps) == pytest.approx(0.011, rel=0.03)
    assert ends[0] == ends[1] != ends[2]


def test_abort_frees_blocks_at_any_time() -> None:
    engine = Engine(plain(max_running=2))
    jobs = [engine.submit(request(str(i), 100, 50), 0.0) for i in range(3)]
    engine.advance()
    engine.abort(jobs[0], 0.0)  # in prefill
    engine.abort(jobs[2], 0.0)  # in the queue
    engine.advance()
    engine.advance()
    assert jobs[1].state == "decode"
    engine.abort(jobs[1], 1.0)
    assert engine.gauges().kv_usage == 0.0
    assert engine.gauges().running == engine.gauges().waiting == 0
    assert drain(engine)[-1].emissions == []
    assert engine.counters.finished["abort"] == 3
    engine.abort(jobs[1], 1.0)
    assert engine.counters.finished["abort"] == 3


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (4000, 97)])
def test_what_never_fits_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError, match="cannot be served"):
        Engine(plain()).submit(request("a", prompt, output), 0.0)


_loads = st.lists(
    st.tuples(
        st.integers(1, 200),  # prompt
        st.integers(1, 100),  # output
        st.floats(0, 0.5),  # arrival
        st.integers(0, 3),  # which prefix it shares
        st.booleans(),  # aborted by its client
    ),
    min_size=4,
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(
    load=_loads,
    block=st.sampled_from([1, 4, 16]),
    pool=st.integers(260, 700),
    running=st.integers(2, 12),
    draft=st.integers(0, 3),
    per_event=st.integers(1, 5),
    jitter=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 100),
)
def test_nothing_is_lost_and_nothing_overflows(
    load: list[tuple[int, int, float, int, bool]],
    block: int,
    pool: int,
    running: int,
    draft: int,
    per_event: int,
    jitter: float,
    seed: int,
) -> None:
    profile = plain(
        context_tokens=240 - 4 * block if block < 16 else 240,
        kv_pool_tokens=max(pool, 240 + (1 + draft) * block),
        block_tokens=block,
        max_running=running,
        max_step_tokens=running * (1 + draft) + 40,
        draft_tokens=draft,
        draft_acceptance=0.6,
        tokens_per_event=per_event,
        jitter=jitter,
        ttft_overhead_s=0.01,
    )
    load = [(min(p, profile.context_tokens - o), o, t, k, a) for p, o, t, k, a in load]
    assert _play_out(profile, load, seed) == _play_out(profile, load, seed)


def _play_out(profile: Profile, load: list[tuple[int, int, float, int, bool]], seed: int) -> list[tuple[float, int]]:
    """Run a load to its end, checking every invariant after every step; the times and tokens of all emissions."""
    engine = Engine(profile, seed)
    block = profile.block_tokens
    arrivals = sorted(enumerate(load), key=lambda item: item[1][2])
    jobs: list[Job] = []
    got: dict[int, int] = {}
    log: list[tuple[float, int]] = []
    prefilled: set[Any] = set()
    admitted: set[int] = set()
    clock = 0.0
    while True:
        at_s = engine.next_s()
        if arrivals and (at_s is None or arrivals[0][1][2] <= at_s):
            index, (prompt, output, when, prefix, aborts) = arrivals.pop(0)
            # Half of the prompt is shared by name, the rest is the request's own.
            whole = prompt // block
            hashes = tuple((prefix, i) if i < whole // 2 else (prefix, index, i) for i in range(whole))
            jobs.append(engine.submit(request(str(index), prompt, output, hashes), when))
            jobs[-1].sink = aborts
            continue
        if at_s is None:
            break
        assert at_s >= clock
        clock = at_s
        result = engine.advance()
        for job in jobs:
            if job.order in admitted:
                prefilled.update(job.request.block_hashes[: job.computed // block])
        for job in jobs:
            if job.admitted_s is not None and job.order not in admitted:
                admitted.add(job.order)
                assert set(job.request.block_hashes[: job.cached_tokens // block]) <= prefilled
                assert job.cached_tokens < job.request.prompt_tokens
        assert engine.pool.resident <= engine.pool.capacity
        assert engine.gauges().running <= profile.max_running
        running = [job for job in jobs if job.state in ("prefill", "decode")]
        pinned = {job.order: job.holding.count if job.holding else 0 for job in running}
        assert all(len(job.holding.names) == pinned[job.order] for job in running if job.holding)
        decoding = [job for job in running if job.state == "decode"]
        assert engine._kv_tokens == sum(job.request.prompt_tokens + engine.written(job) for job in decoding)
        # Blocks are there before they are written to: in a step, room for all tokens of a job but the newest.
        room = {job.order: engine.held(job) for job in running}
        room.update(
            {j.order: -(-(j.request.prompt_tokens + engine.written(j) + j.gain - 1) // block) for j in decoding}
        )
        assert engine.pool.private == sum(room.values()) - sum(pinned.values())
        assert 0 <= engine.gauges().kv_usage <= 1
        if result is not None:
            assert result.end_s > result.start_s
            assert result.prefill_tokens + result.decoded <= profile.max_step_tokens
            for job, tokens, finished in result.emissions:
                got[job.order] = got.get(job.order, 0) + tokens
                log.append((result.end_s, tokens))
                assert finished == (got[job.order] == job.request.output_tokens)
            for job in jobs:
                if job.sink and engine.written(job) > job.request.output_tokens // 2:
                    engine.abort(job, clock)
    for job in jobs:
        assert job.state in ("done", "aborted")
        if job.state == "done":
            assert got[job.order] == job.request.output_tokens == job.written
    counters = engine.counters
    assert sum(counters.finished.values()) == len(load)
    assert counters.generation_tokens == sum(job.written for job in jobs)
    assert counters.prompt_tokens == sum(j.request.prompt_tokens for j in jobs if j.first_s is not None)
    assert counters.prefix_queries == sum(j.request.prompt_tokens for j in jobs if j.admitted_s is not None)
    assert engine.pool.in_use == 0
    return log
