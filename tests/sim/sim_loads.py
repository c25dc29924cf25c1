"""Random loads for the engine, and a driver that plays one out and tells what each job got."""

from typing import Any, NamedTuple

from hypothesis import strategies as st
from sim_profiles import plain

from agentperf.sim.engine import Engine, Job, SimRequest
from agentperf.sim.profile import Profile

GRID = 2.0**-10
"""Seconds; all times of `dyadic` profiles are multiples of a power of two, so that sums of them are exact."""


class Arrival(NamedTuple):
    """One request of a load."""

    at_s: float
    prompt: int
    output: int
    prefix: int
    """Which prefix it shares with others."""
    shared: float
    """How much of its prompt that is."""
    gone_after_s: float | None
    """When its client goes away."""
    mark: int


def dyadic(**changes: Any) -> Profile:
    """A profile whose step times are exact in floating point."""
    exact = {
        "step_fixed_s": 2.0**-7,
        "step_per_sequence_s": 2.0**-11,
        "step_per_kv_token_s": 2.0**-17,
        "prefill_tokens_per_s": 2.0**13,
        "ttft_overhead_s": 2.0**-6,
    }
    return plain(**{**exact, **changes})


def arrivals(most: int = 200) -> st.SearchStrategy[list[Arrival]]:
    """Loads on a grid of times, so that arrivals often fall on the end of a step."""
    one = st.builds(
        Arrival,
        at_s=st.integers(0, 600).map(lambda i: i * GRID * 2),
        prompt=st.integers(1, most),
        output=st.integers(1, 100),
        prefix=st.integers(0, 3),
        shared=st.sampled_from([0.0, 0.5, 1.0]),
        gone_after_s=st.one_of(st.none(), st.none(), st.integers(0, 900).map(lambda i: i * GRID + GRID / 8)),
        mark=st.sampled_from([0, 0, 5]),
    )
    return st.lists(one, min_size=3, max_size=25)


def hashes_of(index: int, load: Arrival, block: int) -> tuple[Any, ...]:
    """Names of its blocks one by one."""
    whole = load.prompt // block
    shared = int(whole * load.shared)
    return tuple((load.prefix, i) if i < shared else (load.prefix, index, i) for i in range(whole))


def runs_of(index: int, load: Arrival, block: int) -> tuple[Any, ...]:
    """The same names as runs."""
    whole = load.prompt // block
    shared = int(whole * load.shared)
    found = [(load.prefix, 0, shared)] if shared else []
    return (*found, ((load.prefix, index), shared, whole)) if whole > shared else tuple(found)


class Played(NamedTuple):
    """What became of a load."""

    jobs: list[Job]
    stamps: list[list[tuple[float, int]]]
    """Of each job: (time, tokens so far) of its emissions."""
    advances: int


def play(engine: Engine, load: list[Arrival], *, runs: bool = False) -> Played:
    """Submit and abort at the given times until nothing is left. An arrival at the end of a step comes before it."""
    block = engine.profile.block_tokens
    name = runs_of if runs else hashes_of
    events = [(a.at_s, 0, i) for i, a in enumerate(load)]
    events += [(a.at_s + a.gone_after_s, 1, i) for i, a in enumerate(load) if a.gone_after_s is not None]
    events.sort()
    jobs: dict[int, Job] = {}
    stamps: list[list[tuple[float, int]]] = [[] for _ in load]
    advances = 0
    while True:
        at_s = engine.next_s()
        if events and (at_s is None or events[0][0] <= at_s):
            now_s, leaves, index = events.pop(0)
            if leaves:
                engine.abort(jobs[index], now_s)
            else:
                a = load[index]
                request = SimRequest(str(index), a.prompt, a.output, name(index, a, block), mark=min(a.mark, a.output))
                jobs[index] = engine.submit(request, now_s, index)
            continue
        if at_s is None:
            return Played([jobs[i] for i in range(len(load))], stamps, advances)
        result = engine.advance()
        advances += 1
        for job, tokens, _ in result.emissions if result is not None else ():
            told = stamps[job.sink]
            assert result is not None
            told.append((result.end_s, tokens + (told[-1][1] if told else 0)))
