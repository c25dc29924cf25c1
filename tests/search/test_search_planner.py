"""The planner against simulated endpoints: it ends, says why, is quick, and is right where the endpoint is monotone."""

import math
import random

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from agentperf.search.planner import (
    Answer,
    Done,
    Probe,
    ProbeResult,
    SearchSettings,
    default_max_probes,
    next_step,
    sweep_step,
)


def search(setup, endpoint, stop_after=None):
    """Run a search to its end: the answers, and the history. Fails if it does not end."""
    history = []
    while True:
        step = next_step(setup, history, "time is up" if len(history) == stop_after else None)
        if isinstance(step, Done):
            return step, history
        assert 1 <= step.level <= setup.max_agents
        assert step.slos
        assert set(step.slos) <= set(setup.slos)
        result = endpoint(step.level)
        assert result.level == step.level
        history.append(result)
        assert len(history) <= setup.probe_limit, "does not end"


def result(level, note="", **statuses):
    return ProbeResult(level=level, statuses=statuses, note=note)


def monotone(band=0.15, **capacities):
    """Passes up to the capacity; close within `band` of it."""

    def probe(n):
        close = {k: c > 0 and abs(n / c - 1) < band for k, c in capacities.items()}
        return ProbeResult(
            level=n, statuses={k: "pass" if n <= c else "fail" for k, c in capacities.items()}, close=close
        )

    return probe


def one(max_agents=4096, **more):
    return SearchSettings(slos=("a",), max_agents=max_agents, **more)


def levels(history):
    return [r.level for r in history]


def quick_bound(capacity):
    return 2 * math.ceil(math.log2(capacity + 1)) + 4


# Golden searches.


def test_the_published_search_is_reproduced():
    done, history = search(one(), monotone(a=1840, band=0))
    ramp = [2**k for k in range(12)]
    assert levels(history) == [*ramp, 1536, 1792, 1920, 1856, 1824, 1840]
    assert done.answers == (
        Answer(
            slo="a",
            capacity=1840,
            largest_pass=1840,
            smallest_fail=1856,
            reason="found",
            monotone=True,
            confidence=0.95,
        ),
    )


def leaning(capacity, plain=0.15, decides=1):
    """Far from the capacity a first look only leans; later looks, and levels near it, are decided."""
    looks = {}

    def probe(n):
        looks[n] = looks.get(n, 0) + 1
        side = "pass" if n <= capacity else "fail"
        if abs(n / capacity - 1) > plain and looks[n] <= decides:
            return ProbeResult(level=n, statuses={"a": "inconclusive"}, lean={"a": side})
        return ProbeResult(level=n, statuses={"a": side})

    return probe


def test_what_only_leans_steers_the_search_and_only_the_ends_are_proven():
    done, history = search(one(), leaning(1840, plain=0.001))
    assert done.answers[0].largest_pass == 1840
    assert done.answers[0].smallest_fail == 1856
    assert done.reason == "found"
    again = [n for n in set(levels(history)) if levels(history).count(n) > 1]
    assert sorted(again) == [1856], "1840 is decided at once, the ramp is left at its leaning"
    done, history = search(one(), leaning(1840, plain=0.0001))
    assert done.reason == "found"


def test_a_search_at_the_ends_says_decide_and_may_not_lean():
    history = [ProbeResult(level=n, statuses={"a": "inconclusive"}, lean={"a": "pass"}) for n in (1, 2, 4)]
    setup = one(max_agents=4)
    step = next_step(setup, history)
    assert (step.level, step.why, step.may_lean) == (4, "decide", False)
    assert next_step(setup, history[:2]).may_lean
    decided = [*history, result(4, a="pass")]
    assert next_step(setup, decided).reason == "all_pass"


def test_where_an_end_stays_unproven_the_next_one_is_tried():
    def probe(n):
        lean = "pass" if n <= 50 else "fail"
        return ProbeResult(
            level=n, statuses={"a": "pass" if n <= 32 else "fail" if n >= 60 else "inconclusive"}, lean={"a": lean}
        )

    done, history = search(one(), probe)
    answer = done.answers[0]
    assert (answer.largest_pass, answer.reason) == (32, "inconclusive")
    assert answer.smallest_fail >= 60
    assert any(40 <= n <= 50 for n in answer.undecided)
    assert "leans to a pass and is not proven" in " ".join(answer.notes)
    assert max(levels(history).count(n) for n in levels(history)) <= 3


def test_a_bracket_as_narrow_as_the_data_allow_is_an_answer():
    done, _ = search(one(), lambda n: result(n, a="pass" if n <= 190 else "fail" if n >= 210 else "inconclusive"))
    answer = done.answers[0]
    assert done.reason == "narrowed"
    assert 190 - 0.05 * 190 <= answer.largest_pass <= 190
    assert 210 <= answer.smallest_fail <= 210 * 1.06
    assert answer.undecided


def test_small_brackets_go_to_one_agent():
    done, history = search(one(), monotone(a=5, band=0))
    assert levels(history) == [1, 2, 4, 8, 6, 5]
    assert (done.answers[0].capacity, done.answers[0].smallest_fail) == (5, 6)


def test_none_pass_and_all_pass():
    done, history = search(one(), monotone(a=0))
    assert (levels(history), done.reason, done.answers[0].capacity) == ([1], "none_pass", 0)
    assert done.answers[0].largest_pass is None
    done, history = search(one(max_agents=100), monotone(a=1000))
    assert (levels(history), done.reason) == ([1, 2, 4, 8, 16, 32, 64, 100], "all_pass")
    assert (done.answers[0].capacity, done.answers[0].smallest_fail) == (100, None)


def test_a_start_that_fails_is_searched_below():
    done, history = search(one(start=64), monotone(a=3, band=0))
    assert levels(history) == [64, 32, 16, 8, 4, 2, 3]
    assert (done.reason, done.answers[0].capacity) == ("found", 3)
    done, history = search(one(start=64), monotone(a=0, band=0))
    assert levels(history) == [64, 32, 16, 8, 4, 2, 1]
    assert done.reason == "none_pass"


@pytest.mark.parametrize(("resolution", "width"), [(1, 1), (16, 16), (0.02, 40), (0.1, 200), (0.01, 20)])
def test_resolution(resolution, width):
    setup = one(resolution=resolution)
    assert setup.step(2000) == width
    answer = search(setup, monotone(a=2000, band=0))[0].answers[0]
    assert answer.smallest_fail - answer.largest_pass <= width
    assert answer.largest_pass <= 2000 < answer.smallest_fail


def test_default_resolution_steps():
    assert [one().step(n) for n in (0, 1, 99, 100, 101, 200, 1840)] == [1, 1, 1, 1, 2, 2, 19]


@pytest.mark.parametrize(
    "wrong",
    [
        {"slos": ()},
        {"slos": ("a", "a")},
        {"start": 0},
        {"start": 99},
        {"resolution": 0},
        {"resolution": 1.0},
        {"resolution": 0.0},
        {"resolution": float("nan")},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"resolution|start|SLO"):
        SearchSettings(**{"slos": ("a",), "max_agents": 64, **wrong})


# Levels that say nothing.


def test_an_inconclusive_level_is_probed_once_more_and_then_searched_around():
    def probe(n):
        status = "pass" if n < 100 else "fail" if n > 130 else "inconclusive"
        return result(n, a=status)

    done, history = search(one(), probe)
    answer = done.answers[0]
    assert (done.reason, answer.capacity) == ("narrowed", 96)
    assert answer.smallest_fail - 130 <= 0.05 * 130
    counts = {n: levels(history).count(n) for n in levels(history)}
    assert all(count == (2 if 100 <= n <= 130 else 1) for n, count in counts.items())
    assert "stayed inconclusive" in " ".join(answer.notes)


def test_an_inconclusive_level_below_a_pass_is_not_worth_a_probe():
    seen = []

    def probe(n):
        seen.append(n)
        return result(n, a="inconclusive" if n in (4, 8) else "pass" if n <= 50 else "fail")

    done, _ = search(one(), probe)
    assert done.reason == "found"
    assert done.answers[0].capacity == 50
    assert seen.count(4) == seen.count(8) == 1


def test_an_endpoint_that_never_says_anything():
    done, history = search(one(max_agents=64), lambda n: result(n, a="inconclusive"))
    assert (done.reason, done.answers[0].capacity, done.answers[0].smallest_fail) == ("inconclusive", None, None)
    assert sorted(set(levels(history))) == [1, 2, 4, 8, 16, 32, 64]
    assert len(history) == 14


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        ("client_limited: loop late", "client_limited"),
        ("rate_limited: 429", "rate_limited"),
        ("buffered: 90 of 100 replies came in bursts", "unmeasurable"),
        ("no_speed: 90 of 100 replies came at one moment", "unmeasurable"),
    ],
)
def test_an_invalid_level_ends_the_way_up(note, reason):
    done, history = search(one(), lambda n: result(n, a="pass") if n < 30 else result(n, note, a="invalid"))
    assert levels(history) == [1, 2, 4, 8, 16, 32]
    answer = done.answers[0]
    assert (done.reason, answer.capacity, answer.smallest_fail) == (reason, 16, None)
    assert note in " ".join(answer.notes)


def test_an_invalid_start_is_searched_below_for_anything_that_holds():
    done, history = search(one(start=64), lambda n: result(n, a="pass" if n < 20 else "invalid"))
    assert levels(history) == [64, 32, 16]
    assert (done.reason, done.answers[0].capacity) == ("client_limited", 16)
    done, history = search(one(start=4), lambda n: result(n, a="invalid"))
    assert levels(history) == [4, 2, 1]
    assert (done.reason, done.answers[0].capacity) == ("client_limited", None)


def test_an_invalid_level_inside_the_bracket_bounds_it():
    def probe(n):
        return result(n, a="pass" if n < 40 else "invalid" if n < 60 else "fail")

    done, _ = search(one(), probe)
    assert done.reason == "client_limited"
    assert (done.answers[0].capacity, done.answers[0].smallest_fail) == (39, 64)


# Conflicts.


def scripted(verdicts, otherwise):
    """`verdicts[level]` in turn, then `otherwise(level)`; all close."""
    left = {level: list(statuses) for level, statuses in verdicts.items()}

    def probe(n):
        status = left[n].pop(0) if left.get(n) else otherwise(n)
        return ProbeResult(level=n, statuses={"a": status}, close={"a": True})

    return probe


def below(capacity):
    return lambda n: "pass" if n <= capacity else "fail"


def test_the_last_verdict_counts_for_it_rests_on_all_probes():
    done, _ = search(one(), scripted({21: ["inconclusive", "pass"], 24: ["inconclusive", "fail"]}, below(21)))
    answer = done.answers[0]
    assert (done.reason, answer.capacity, answer.smallest_fail) == ("found", 21, 22)


def test_reprobes_are_limited():
    flip = {}

    def probe(n):
        flip[n] = not flip.get(n, False)
        return ProbeResult(level=n, statuses={"a": "pass" if flip[n] else "fail"}, close={"a": True})

    done, history = search(one(reprobes=0), probe)
    assert len(levels(history)) == len(set(levels(history)))
    assert done.reason == "all_pass"


# Non-monotone endpoints.


def test_a_dip_seen_through_another_slo_is_reported():
    """SLO a fails at 8 and passes again from 16 on; b makes the search go there."""

    def probe(n):
        return result(n, a="fail" if n == 8 or n > 100 else "pass", b="pass" if n <= 300 else "fail")

    setup = SearchSettings(slos=("a", "b"), max_agents=4096)
    done, history = search(setup, probe)
    a, b = done.answers
    assert (a.reason, a.monotone, a.capacity, a.smallest_fail) == ("not_monotone", False, 7, 8)
    assert "8 failed although 16, 32" in " ".join(a.notes)
    assert (b.reason, b.monotone) == ("found", True)
    assert levels(history).count(8) == 2
    assert levels(history).count(16) == 2
    assert done.reason == "not_monotone"


def test_a_contradiction_that_gives_way_is_no_longer_one():
    first = iter(["fail"])

    def probe(n):
        a = next(first, "pass") if n == 8 else "pass" if n <= 100 else "fail"
        return result(n, a=a, b="pass" if n <= 300 else "fail")

    done, _ = search(SearchSettings(slos=("a", "b"), max_agents=4096), probe)
    a = done.answers[0]
    assert (a.reason, a.monotone, a.capacity) == ("found", True, 100)


# Ends, stops, resumes.


def test_stop_gives_the_bracket_so_far():
    done, history = search(one(), monotone(a=1840), stop_after=14)
    answer = done.answers[0]
    assert (done.reason, answer.largest_pass, answer.smallest_fail) == ("budget", 1792, 2048)
    assert answer.notes[-1] == "ended early: time is up"
    assert len(history) == 14


def test_stop_after_the_end_changes_nothing():
    done, history = search(one(), monotone(a=20))
    assert next_step(one(), history, "time is up") == done


def test_stop_before_the_first_probe():
    done = next_step(one(), [], "interrupted")
    assert (done.reason, done.answers[0].capacity) == ("budget", None)


def test_max_probes():
    done, history = search(one(max_probes=5), monotone(a=1840))
    assert (len(history), done.reason, done.answers[0].capacity) == (5, "budget", 16)


def test_everything_survives_the_journal():
    done, history = search(one(), monotone(a=77))
    raw = msgspec.json.encode(history)
    again = msgspec.json.decode(raw, type=list[ProbeResult])
    assert next_step(one(), again) == done
    assert msgspec.json.decode(msgspec.json.encode(done), type=Done) == done
    assert isinstance(next_step(one(), again[:3]), Probe)


# Several SLOs.


def test_slos_share_probes():
    capacities = {"a": 37, "b": 180, "c": 700}
    done, history = search(SearchSettings(slos=("a", "b", "c"), max_agents=4096), monotone(**capacities))
    for answer in done.answers:
        assert answer.largest_pass <= capacities[answer.slo] < answer.smallest_fail
    alone = sum(len(search(one(), monotone(a=c))[1]) for c in capacities.values())
    assert len(history) <= 0.75 * alone


def test_a_probe_names_the_slos_that_wait_for_it():
    history = [monotone(band=0, a=5, b=40)(n) for n in (1, 2, 4, 8, 16, 32, 64)]
    setup = SearchSettings(slos=("a", "b"), max_agents=4096)
    step = next_step(setup, history)
    assert (step.level, step.why, step.slos) in ((6, "bisect", ("a",)), (48, "bisect", ("b",)))
    step = next_step(setup, history[:4])
    assert (step.level, step.why, step.slos) == (16, "ramp", ("b",))


def test_one_level_for_both_when_both_are_halved_by_it():
    history = [result(32, a="pass", b="pass"), result(40, a="pass"), result(64, a="fail", b="fail")]
    setup = SearchSettings(slos=("a", "b"), max_agents=64, start=32)
    step = next_step(setup, history)
    assert step.level in (48, 52)
    assert step.slos == ("a", "b")


def test_the_level_that_helps_most_slos_goes_first():
    history = [
        result(32, a="pass", b="pass", c="pass"),
        result(64, a="fail", b="pass", c="pass"),
        result(128, a="fail", b="fail", c="fail"),
    ]
    setup = SearchSettings(slos=("a", "b", "c"), max_agents=128, start=32)
    step = next_step(setup, history)
    assert (step.level, step.why, step.slos) == (96, "bisect", ("b", "c"))


@given(st.lists(st.integers(0, 3000), min_size=2, max_size=4), st.sampled_from([0.0, 0.15]))
def test_together_is_never_more_than_apart_and_always_right(capacities, band):
    names = tuple("abcd"[: len(capacities)])
    setup = SearchSettings(slos=names, max_agents=2048)
    endpoint = monotone(band=band, **dict(zip(names, capacities, strict=True)))
    done, history = search(setup, endpoint)
    alone = [search(one(2048), monotone(band=band, a=c)) for c in capacities]
    for answer, capacity, (single, _) in zip(done.answers, capacities, alone, strict=True):
        assert answer.monotone
        assert answer.reason == single.answers[0].reason
        assert answer.capacity <= capacity < (answer.smallest_fail or 10**9)
    apart = sum(len(h) for _, h in alone)
    assert len(history) < apart


# Properties over kinds of endpoints.


@given(st.integers(0, 5000), st.integers(1, 300), st.sampled_from([0.01, 0.02, 1, 16]), st.sampled_from([0.0, 0.2]))
def test_right_and_quick_wherever_the_endpoint_is_monotone(capacity, start, resolution, band):
    setup = one(start=start, resolution=resolution)
    done, history = search(setup, monotone(a=capacity, band=band))
    answer = done.answers[0]
    assert answer.monotone
    if capacity >= 4096:
        assert (done.reason, answer.capacity, answer.smallest_fail) == ("all_pass", 4096, None)
    elif capacity == 0:
        assert (done.reason, answer.capacity, answer.smallest_fail) == ("none_pass", 0, 1)
    else:
        assert done.reason == "found"
        assert answer.largest_pass <= capacity < answer.smallest_fail
        assert answer.smallest_fail - answer.largest_pass <= setup.step(answer.largest_pass)
    assert len(history) <= quick_bound(max(start, min(capacity, 4096)))


@given(st.integers(1, 3000), st.integers(0, 2**32), st.floats(0.02, 0.2), st.sampled_from([0.01, 0.02, 4]))
@example(125, 301286209, 0.2, 0.01)
def test_noise_at_the_edge_moves_the_answer_within_the_noise(capacity, seed, band, resolution):
    """Within `band` of the capacity one verdict in five is wrong, and all are close."""
    rng = random.Random(seed)

    def probe(n):
        near = abs(n / capacity - 1) < band
        right = rng.random() >= 0.2 if near else True
        status = "pass" if (n <= capacity) == right else "fail"
        return ProbeResult(level=n, statuses={"a": status}, close={"a": near})

    setup = one(resolution=resolution)
    done, history = search(setup, probe)
    answer = done.answers[0]
    assert done.reason in ("found", "inconclusive", "none_pass")
    assert len(history) <= default_max_probes(setup)
    assert answer.capacity <= capacity * (1 + band)
    # 100 of 125 is within a band of 0.2 or on its edge, as floats round.
    assert answer.smallest_fail is None or answer.smallest_fail >= capacity * (1 - band) - 1e-9
    assert answer.capacity >= capacity * (1 - band) - setup.step(answer.capacity) - 1


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_a_cliff_is_found_like_any_edge(capacity, plateau):
    """Nothing is close: the endpoint is well until it breaks down."""
    assume(plateau <= capacity)
    done, history = search(one(), monotone(a=capacity, band=0))
    assert done.answers[0].largest_pass <= capacity < done.answers[0].smallest_fail
    assert len(levels(history)) == len(set(levels(history))), "a clear verdict is not asked twice"


@given(st.integers(1, 2000), st.integers(0, 400), st.booleans())
def test_an_inconclusive_band_stays_inside_the_bracket(low, width, second_look_helps):
    seen = set()

    def probe(n):
        if n <= low:
            return result(n, a="pass")
        if n > low + width:
            return result(n, a="fail")
        again = n in seen
        seen.add(n)
        return result(n, a="fail" if again and second_look_helps else "inconclusive")

    setup = one()
    done, history = search(setup, probe)
    answer = done.answers[0]
    assert answer.capacity <= low
    assert low - answer.capacity <= max(setup.step(answer.capacity), 0.05 * answer.capacity)
    assert answer.smallest_fail > low
    if not second_look_helps:
        assert answer.smallest_fail > low + width
        assert answer.smallest_fail - (low + width) <= max(setup.step(low + width), 0.05 * (low + width)) + 1
    assert len(history) <= 6 * 13
    assert all(levels(history).count(n) <= 2 for n in levels(history))


@given(st.integers(0, 3000), st.integers(1, 3000), st.integers(1, 200))
def test_invalid_above_a_level(capacity, limit, start):
    setup = one(start=start)
    done, history = search(
        setup, lambda n: result(n, a="invalid" if n > limit else "pass" if n <= capacity else "fail")
    )
    answer = done.answers[0]
    assert answer.capacity <= min(capacity, limit)
    assert done.reason in ("found", "none_pass", "client_limited")
    if done.reason == "found":
        assert capacity < answer.smallest_fail <= limit
        assert answer.smallest_fail - answer.capacity <= setup.step(answer.capacity)
    assert len(history) <= quick_bound(max(start, capacity, limit))


@given(
    st.lists(st.sampled_from(["pass", "fail", "inconclusive", "invalid"]), min_size=64, max_size=64), st.integers(1, 64)
)
def test_any_endpoint_however_odd_ends_with_a_bracket_it_has_seen(statuses, start):
    setup = one(max_agents=64, start=start)
    done, history = search(setup, lambda n: result(n, a=statuses[n - 1]))
    check_bracket(done.answers[0], history, "a")


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([1, 7, 1000, 4096, 100_000]))
def test_pure_chance_ends_too(seed, how_many, max_agents):
    rng = random.Random(seed)
    names = tuple("abcd"[:how_many])
    weights = [rng.random() + 0.01 for _ in range(4)]

    def probe(n):
        votes = rng.choices(["pass", "fail", "inconclusive", "invalid"], weights, k=how_many)
        return ProbeResult(
            level=n, statuses=dict(zip(names, votes, strict=True)), close={k: rng.random() < 0.5 for k in names}
        )

    setup = SearchSettings(slos=names, max_agents=max_agents)
    done, history = search(setup, probe)
    assert len(history) <= default_max_probes(setup)
    assert default_max_probes(setup) <= how_many * (8 * (math.ceil(math.log2(max_agents)) + 1) + 8)
    for answer in done.answers:
        check_bracket(answer, history, answer.slo)


def check_bracket(answer, history, slo):
    """Both ends were really measured, their last sound verdict says so, and they are in order."""

    def last(level):
        return [r.statuses[slo] for r in history if r.level == level and r.statuses[slo] != "invalid"][-1]

    if answer.largest_pass is not None:
        assert last(answer.largest_pass) == "pass"
    if answer.smallest_fail is not None:
        assert last(answer.smallest_fail) == "fail"
        assert (answer.capacity or 0) < answer.smallest_fail
    assert answer.capacity == (answer.largest_pass or (0 if answer.smallest_fail == 1 else None))
    assert answer.monotone or answer.notes


# Sweeps.


def sweep(wanted, endpoint, stop_after=None):
    history = []
    while isinstance(
        step := sweep_step(wanted, history, stop="stopped" if len(history) == stop_after else None), Probe
    ):
        history.append(endpoint(step.level))
    return step, levels(history)


def test_a_sweep_probes_each_level_in_the_order_given():
    done, probed = sweep([8, 1, 4, 2], monotone(a=5))
    assert probed == [8, 1, 4, 2]
    answer = done.answers[0]
    assert (done.reason, answer.capacity, answer.smallest_fail, answer.monotone) == ("swept", 4, 8, True)


def test_a_level_named_twice_is_probed_twice():
    assert sweep([4, 4, 2, 4], monotone(a=5))[1] == [4, 4, 2, 4]


def test_reasons_of_a_sweep():
    assert sweep([1, 2], monotone(a=5))[0].reason == "all_pass"
    assert sweep([8, 16], monotone(a=5))[0].reason == "none_pass"
    assert sweep([32], monotone(a=50))[0].reason == "all_pass"
    odd = sweep([1, 2, 4, 8], lambda n: result(n, a="fail" if n == 2 else "pass"))[0]
    assert (odd.reason, odd.answers[0].capacity, odd.answers[0].monotone) == ("not_monotone", 1, False)
    early = sweep([1, 2, 4, 8], monotone(a=2), stop_after=2)[0]
    assert (early.reason, early.answers[0].capacity) == ("budget", 2)
    late = sweep([1, 2, 4, 8], monotone(a=2), stop_after=4)[0]
    assert late.reason == "swept"
    assert sweep([1, 2], lambda n: result(n, a="pass" if n == 1 else "inconclusive"))[0].reason == "inconclusive"
    limited = sweep([1, 2], lambda n: result(n, "rate_limited", a="pass" if n == 1 else "invalid"))[0]
    assert (limited.reason, limited.answers[0].capacity) == ("rate_limited", 1)


def test_a_sweep_names_its_slos():
    assert sweep_step([1], [], slos=("a", "b")) == Probe(level=1, why="sweep", slos=("a", "b"))
    assert sweep_step([1], [result(1, b="pass")], slos=("a", "b")).answers[0].capacity is None


LOST = "process_lost: load process 1 was killed (SIGKILL)"


def losing(times, at, then):
    """An endpoint whose first `times` probes of level `at` are lost with a load process."""
    left = [times]

    def probe(n):
        if n == at and left[0] > 0:
            left[0] -= 1
            return result(n, LOST, a="invalid")
        return then(n)

    return probe


@pytest.mark.parametrize("times", [1, 2])
def test_a_level_whose_load_process_was_lost_is_probed_again_at_once(times):
    done, history = search(one(max_agents=64), losing(times, 8, monotone(a=20)))
    assert levels(history)[: 4 + times] == [1, 2, 4, *[8] * (times + 1)]
    assert (done.reason, done.answers[0].capacity, done.answers[0].smallest_fail) == ("found", 20, 21)


def test_a_level_that_is_lost_three_times_stays_inconclusive():
    done, history = search(one(max_agents=8), losing(99, 8, monotone(a=20)))
    assert levels(history) == [1, 2, 4, 8, 8, 8, 6, 7]
    answer = done.answers[0]
    assert (done.reason, answer.capacity, answer.smallest_fail) == ("inconclusive", 7, None)
    assert any("8 stayed inconclusive: process_lost" in note for note in answer.notes)


def test_a_lost_second_look_is_tried_again_and_changes_no_verdict():
    seen = {}

    def probe(n):
        seen[n] = seen.get(n, 0) + 1
        if n == 4 and seen[n] == 2:
            return result(n, LOST, a="invalid")
        if n == 4 and seen[n] == 1:
            return ProbeResult(level=n, statuses={"a": "inconclusive"}, lean={"a": "pass"})
        return result(n, a="pass" if n <= 4 else "fail")

    done, history = search(one(max_agents=8), probe)
    assert levels(history).count(4) == 3
    assert (done.reason, done.answers[0].capacity) == ("found", 4)


@given(st.integers(0, 64), st.lists(st.booleans(), min_size=64, max_size=64))
def test_lost_probes_never_change_the_answer_of_a_search_that_ends(capacity, lost_once):
    setup = one(max_agents=64)
    plain, _ = search(setup, monotone(band=0, a=capacity))
    left = [*lost_once]

    def probe(n):
        if left[n - 1]:
            left[n - 1] = False
            return result(n, LOST, a="invalid")
        return monotone(band=0, a=capacity)(n)

    done, _ = search(setup, probe)
    assert done.answers[0].capacity == plain.answers[0].capacity
    assert done.reason == plain.reason


def test_a_sweep_repeats_what_was_lost_and_gives_up():
    done, probed = sweep([1, 2, 4], losing(1, 2, monotone(a=2)))
    assert probed == [1, 2, 2, 4]
    assert done.answers[0].capacity == 2
    gone, probed = sweep([1, 2], losing(99, 2, monotone(a=2)))
    assert probed == [1, 2, 2, 2]
    assert gone.reason == "inconclusive"
