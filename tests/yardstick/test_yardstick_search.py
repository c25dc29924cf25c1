"""The search over levels: pure, so it is driven with machines that are made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.yardstick.search import Verdict, answer, bracket, next_level


def _search(
    capacity: int, start: int, top: int, resolution: float = 0.1, miss: Verdict = "fail"
) -> tuple[dict[int, Verdict], list[int]]:
    tried: dict[int, Verdict] = {}
    order: list[int] = []
    while (level := next_level(tried, start, top, resolution)) is not None:
        assert level not in tried, "a level is probed once"
        order.append(level)
        tried[level] = "pass" if level <= capacity else miss
        assert len(order) < 60
    return tried, order


def test_doubles_then_bisects() -> None:
    tried, order = _search(capacity=1000, start=256, top=8192)
    assert order == [256, 512, 1024, 768, 896, 960]
    found = answer(tried, stopped=None, resolved=True)
    assert (found.streams, found.limit, found.smallest_miss, found.at_least) == (960, "client", 1024, False)


def test_a_start_that_is_too_high_is_halved() -> None:
    _, order = _search(capacity=100, start=640, top=8192)
    assert order == [640, 320, 160, 80, 120, 100, 110]


def test_all_pass_up_to_the_most() -> None:
    tried, order = _search(capacity=10**6, start=300, top=1000)
    assert order == [300, 600, 1000]
    found = answer(tried, stopped=None, resolved=True)
    assert (found.streams, found.limit, found.smallest_miss, found.at_least) == (1000, "max-streams", None, True)


def test_none_passes() -> None:
    tried, order = _search(capacity=0, start=4, top=1000)
    assert order == [4, 2, 1]
    found = answer(tried, stopped=None, resolved=True)
    assert (found.streams, found.limit, found.smallest_miss) == (0, "client", 1)


def test_the_server_as_limit_gives_at_least() -> None:
    tried, _ = _search(capacity=700, start=256, top=8192, miss="server")
    found = answer(tried, stopped=None, resolved=True)
    assert found.limit == "server"
    assert found.at_least
    assert found.streams <= 700 < (found.smallest_miss or 0)


def test_the_verdict_of_the_smallest_miss_names_the_limit() -> None:
    tried: dict[int, Verdict] = {256: "pass", 512: "fail", 1024: "server"}
    assert answer(tried, stopped=None, resolved=True).limit == "client"


def test_a_search_that_was_cut_short_says_at_least() -> None:
    found = answer({256: "pass", 1024: "fail"}, stopped="budget", resolved=False)
    assert (found.streams, found.limit, found.at_least) == (256, "budget", True)
    # Cut short after the bracket had closed: the answer stands.
    assert answer({256: "pass", 260: "fail"}, stopped="budget", resolved=True).limit == "client"


def test_a_pass_overrules_smaller_misses() -> None:
    assert bracket({256: "fail", 512: "pass", 1024: "fail", 2048: "server"}) == (512, 1024)


@pytest.mark.parametrize("resolution", [0.05, 0.1, 0.25])
@given(capacity=st.integers(0, 5000), start=st.integers(1, 6000), top=st.integers(1, 4096))
def test_every_search_ends_with_a_bracket_as_narrow_as_asked(
    resolution: float, capacity: int, start: int, top: int
) -> None:
    tried, order = _search(capacity, start, top, resolution)
    low, high = bracket(tried)
    assert len(order) <= 2 + 2 * top.bit_length() + 8
    if capacity >= top:
        assert (low, high) == (top, None)
    else:
        assert high is not None
        assert low <= capacity < high
        assert high - low <= max(1, resolution * high)
