"""What a buffer does to a stream is told from what honest servers, networks and clients do to it."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.measure.bursts import (
    BIG_BURST,
    FASTEST,
    MIN_EVENTS,
    Bursts,
    bounds_of,
    bursts_of,
    can_tell,
    held_back,
    is_buffered,
    is_suspect,
    streamed_tokens,
    typical_pause_s,
)
from agentperf.wire.outcome import HIDDEN_REASONING
from tests.measure.records import record
from tests.measure.streams import (
    Times,
    blocks,
    late_client,
    made,
    pieces,
    seen,
    speculative,
    stalled,
    timer,
    whole,
)


def share(stream: Callable[[random.Random], Times], count: int = 50) -> float:
    """Of many such streams: how many are taken for buffered."""
    rng = random.Random(7)
    return sum(is_buffered(seen(stream(rng))) for _ in range(count)) / count


def event_bytes(rng: random.Random, count: int) -> list[int]:
    """A chat chunk with a token is about 200 bytes on the wire."""
    return [rng.randint(180, 260) for _ in range(count)]


RATES = (30, 50, 80, 150)
LENGTHS = (60, 150, 400)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("events", LENGTHS)
class TestBuffers:
    """A buffer is found at all speeds from 30 tok/s on; the share is over replies, a level needs 5 %."""

    def test_emptied_every_100_ms(self, rate: int, events: int) -> None:
        assert share(lambda rng: timer(made(rng, events, rate), 0.1, rng.uniform(0, 0.1))) > 0.5

    def test_emptied_every_250_ms(self, rate: int, events: int) -> None:
        assert share(lambda rng: timer(made(rng, events, rate), 0.25, rng.uniform(0, 0.25))) > 0.75

    def test_emptied_every_second(self, rate: int, events: int) -> None:
        assert share(lambda rng: timer(made(rng, events, rate), 1.0, rng.uniform(0, 1))) > 0.95

    @pytest.mark.parametrize("size", [4096, 16384])
    def test_handed_on_in_blocks(self, rate: int, events: int, size: int) -> None:
        def stream(rng: random.Random) -> Times:
            return blocks(made(rng, events, rate), size, event_bytes(rng, events))

        assert share(stream) > 0.95

    def test_handed_on_whole(self, rate: int, events: int) -> None:
        assert share(lambda rng: whole(made(rng, events, rate))) == 1.0

    @pytest.mark.parametrize("pause_s", [30e-6, 0.001, 0.03])
    def test_handed_on_whole_in_pieces(self, rate: int, events: int, pause_s: float) -> None:
        assert share(lambda rng: pieces(made(rng, events, rate), 60, pause_s)) == 1.0


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("events", LENGTHS)
class TestHonestStreams:
    """None of these is taken for a buffer."""

    def test_one_event_a_read(self, rate: int, events: int) -> None:
        assert share(lambda rng: made(rng, events, rate)) == 0.0
        assert share(lambda rng: made(rng, events, rate / 10, jitter=0.3), 20) == 0.0  # a slow server

    @pytest.mark.parametrize("together", [False, True])
    def test_one_stall(self, rate: int, events: int, together: bool) -> None:
        def stream(rng: random.Random) -> Times:
            times = made(rng, events, rate)
            return stalled(times, rng.randint(events // 3, events), rng.uniform(0.2, 5), together=together)

        assert share(stream) == 0.0

    def test_prefills_of_others_that_halt_it_again_and_again(self, rate: int, events: int) -> None:
        def stream(rng: random.Random) -> Times:
            times = made(rng, events, rate)
            for at in range(5, events, 10):
                times = stalled(times, at, rng.uniform(0.1, 1.0), together=False)
            return times

        assert share(stream) == 0.0

    def test_several_tokens_an_event(self, rate: int, events: int) -> None:
        rng = random.Random(1)
        slower = [seen(made(rng, max(MIN_EVENTS, events // 4), rate / 4), tokens=events) for _ in range(50)]
        assert not any(map(is_buffered, slower))


@pytest.mark.parametrize("rate", [300, 800, 1500])
@pytest.mark.parametrize("events", [60, 300, 1000])
def test_a_fast_engine_whose_events_share_reads(rate: int, events: int) -> None:
    """The client comes to the socket every 5 to 20 ms, or the kernel waits 40 ms for an acknowledgement."""
    assert share(lambda rng: late_client(made(rng, events, rate), lambda: rng.uniform(0.005, 0.02))) == 0.0
    if rate * 0.04 < 32:
        assert share(lambda rng: late_client(made(rng, events, rate), lambda: 0.04)) == 0.0


@pytest.mark.parametrize("step_s", [0.01, 0.03, 0.06, 0.1, 0.3])
@pytest.mark.parametrize(("draft", "accept"), [(1, 0.9), (3, 0.7), (3, 0.95), (5, 0.8), (8, 0.8)])
def test_a_speculative_decoder_that_sends_each_token_by_itself(step_s: float, draft: int, accept: float) -> None:
    assert share(lambda rng: speculative(rng, 300, step_s, draft, accept)) == 0.0


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=MIN_EVENTS - 1))
def test_a_short_reply_never_tells(offsets: list[int]) -> None:
    times = [0.5 + t / 1e6 for t in sorted(offsets)]
    assert not can_tell(seen(times))
    assert not is_buffered(seen(times))


def test_a_record_without_offsets_never_tells() -> None:
    assert not can_tell(record(events=100, reads=2))
    assert not is_buffered(record(events=100, reads=2))


def test_moments_golden() -> None:
    # 0, 0.5 and 2.0 ms are one moment from 0; 2.1 ms begins the next, which ends at 4.1 ms; 70 ms is alone.
    found = bursts_of(np.array([0, 500, 500, 2000, 2100, 4000, 70_000]))
    assert found.sizes.tolist() == [4, 2, 1]
    assert found.pauses_us.tolist() == [0, 100, 66_000]
    assert bursts_of(np.zeros(0, np.int64)).sizes.tolist() == []
    assert bursts_of(np.zeros(5, np.int64)).sizes.tolist() == [5]


@given(st.lists(st.integers(0, 500_000), min_size=1, max_size=200))
def test_every_event_is_in_one_moment(offsets: list[int]) -> None:
    ordered = np.sort(np.array(offsets, dtype=np.int64))
    sizes, pauses = bursts_of(ordered - ordered[0])
    assert sizes.sum() == len(offsets)
    assert (sizes > 0).all()
    assert len(pauses) == len(sizes)
    assert (pauses >= 0).all()
    assert isinstance(held_back(Bursts(sizes, pauses)), bool)


@pytest.mark.parametrize(
    ("sizes", "pauses_ms", "held"),
    [
        ([1] * 40, 20, False),
        ([5] * 8, 100, True),
        ([1] + [5] * 8, 100, False),  # the first alone: a speculative decoder
        ([1] + [BIG_BURST] * 5, 100, True),
        ([5] * 8, 50, False),  # no pause that the network does not make
        ([2] * 20, 100, False),
        ([1] * 30 + [40] + [1] * 30, 100, False),  # one stall
        ([1, 8, 8, 7], 100, True),  # what the end of the reply let go counts for nothing
        ([1, 8, 8, 7, 1], 100, False),
        ([60, 40], 30, True),
        ([40], 0, True),
        ([31], 0, False),  # a fast engine and a late client can do that
        ([16, 4], 300, True),
        ([15], 0, False),
    ],
)
def test_the_rule_golden(sizes: list[int], pauses_ms: int, held: bool) -> None:
    pauses = np.array([0] + [pauses_ms * 1000] * (len(sizes) - 1))
    assert held_back(Bursts(np.array(sizes), pauses)) is held


def test_the_pause_is_how_long_events_were_held() -> None:
    rng = random.Random(2)
    held = [typical_pause_s(seen(timer(made(rng, 200, 60), 0.25, 0.1))) for _ in range(5)]
    assert held == pytest.approx([0.25] * 5, abs=0.001)
    assert typical_pause_s(seen(whole(made(rng, 200, 60)))) is None


def test_five_per_cent_make_a_level_suspect() -> None:
    assert not is_suspect(0, 0)
    assert not is_suspect(0, 100)
    assert not is_suspect(4, 100)
    assert is_suspect(5, 100)


def test_bounds_golden() -> None:
    """100 tokens, one an event: 20 every second from 1.5 s on; 5.5 s in all."""
    r = seen([1.5 + i // 20 for i in range(100)])
    bounds = bounds_of(r)
    assert bounds is not None
    assert r.speed_tps == pytest.approx(80 / 4)
    assert bounds.speed_low == pytest.approx(99 / 5.5)
    assert bounds.speed_high == pytest.approx(80 / 3)  # the last burst may have been ready a second before
    assert bounds.ttft_low == pytest.approx(1.5 - 5.5 * 20 / 100 / 0.8)
    assert bounds.ttfo_low == pytest.approx(bounds.ttft_low)
    assert bounds.itl_low == pytest.approx(3 / 80)
    assert bounds.itl_high == pytest.approx(5.5 / 99)


def test_of_what_came_at_once_there_is_no_upper_bound() -> None:
    bounds = bounds_of(seen([2.0] * 100))
    assert bounds is not None
    assert bounds.speed_high == FASTEST
    assert bounds.ttft_low == 0.0
    assert bounds.speed_low == pytest.approx(99 / 2.0)


def test_what_came_late_and_fast_may_have_been_ready_long_before() -> None:
    bounds = bounds_of(seen([5.0 + 0.01 * (i // 50) for i in range(250)]))
    assert bounds is not None
    assert bounds.ttft_low == 0.0
    assert bounds.speed_high == pytest.approx(200 / 0.03)


def test_no_bounds_without_tokens_or_success() -> None:
    steady = [0.5 + 0.02 * i for i in range(40)]
    assert bounds_of(seen(steady, output_tokens=None)) is None
    assert bounds_of(seen(steady, outcome="failed")) is None
    assert bounds_of(seen(steady, e2e_s=None)) is None


BUFFERS: list[Callable[[random.Random, Times], Times]] = [
    lambda rng, t: timer(t, 0.1, rng.uniform(0, 0.1)),
    lambda rng, t: timer(t, 0.25, rng.uniform(0, 0.25)),
    lambda rng, t: timer(t, 1.0, rng.uniform(0, 1.0)),
    lambda rng, t: blocks(t, 4096, event_bytes(rng, len(t))),
    lambda rng, t: blocks(t, 16384, event_bytes(rng, len(t))),
    lambda _, t: whole(t),
    lambda _, t: pieces(t, 60, 0.005),
]


@pytest.mark.parametrize("buffer", BUFFERS)
def test_the_truth_lies_within_the_bounds(buffer: Callable[[random.Random, Times], Times]) -> None:
    rng = random.Random(3)
    told = 0
    for _ in range(100):
        events, rate = rng.choice([40, 100, 300]), rng.uniform(30, 150)
        times = made(rng, events, rate, first_s=rng.uniform(0.1, 3.0))
        r = seen(buffer(rng, times))
        if not is_buffered(r):
            continue
        told += 1
        bounds = bounds_of(r)
        assert bounds is not None
        truth = (events - 1) / (times[-1] - times[0])
        # The tokens behind the first burst alone may have been a little slower than all of them.
        assert bounds.speed_low <= truth <= bounds.speed_high * 1.05
        assert bounds.ttft_low <= times[0] <= r.ttft_s
        assert bounds.itl_low <= 1.05 / truth
        assert 1 / truth <= bounds.itl_high
    assert told > 60


def test_reasoning_that_was_not_streamed_is_no_part_of_a_speed() -> None:
    steady = [0.5 + 0.02 * i for i in range(40)]
    r = seen(steady, tokens=100, reasoning_tokens=60, notes=f"x; {HIDDEN_REASONING}")
    assert streamed_tokens(r) == 40
    assert streamed_tokens(seen(steady, tokens=100, reasoning_tokens=60)) == 100
    assert streamed_tokens(seen(steady, output_tokens=None)) is None
