"""Streams that something holds back: whether a reply's events came as the server made them, or out of a buffer.

A buffer between server and client (a proxy, a gateway, compression) lets events pile up and passes them on together:
a long pause, then many events in one read, again and again, or everything at once. The stamps of such a reply are the
buffer's. From a burst's edges follows what the server can have done, but not what it did: see `Bounds`.

Not taken for a buffer: events that share reads because they come fast or the client is a little late (the pauses are
short, the bursts small), one long pause (it is not repeated), steps of a speculative decoder (few events at a time, and
the first token of a prompt comes alone), several tokens in an event (it is one event), and replies too short to tell.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentperf.measure.record import Record
from agentperf.wire.outcome import HIDDEN_REASONING

MIN_EVENTS = 16
"""A reply with fewer visible events cannot tell."""
MOMENT_US = 2_000
"""Reads within 2 ms belong to one burst: a block of a buffer may take several reads."""
HOLD_US = 60_000
"""A pause before a burst: longer than the 40 ms that Nagle's rule with delayed acknowledgements makes."""
SMALL_BURST = 3
"""Events after a pause that make a burst, where the reply began with two events or more at one moment."""
BIG_BURST = 8
"""The same where the reply's first event came alone, as a prompt's first token does without a buffer."""
WHOLE_BURST = 32
"""Events at one moment that make a reply one burst, if they are nearly all of it: at 1,500 events a second, 20 ms."""
HUGE_BURST = 48
"""Events at one moment that make a burst whatever the pause: a whole reply that a buffer hands on in pieces."""
BURST_SHARE = 0.8
"""Share of the events that must have come in bursts."""
HUGE_SHARE = 0.6
"""The same for huge bursts, of which the last is as large as what was left."""
LEADING_SHARE = 0.25
"""Above this share of tokens in the first burst, nothing is known of how fast they were made."""
SUSPECT_SHARE = 0.05
"""From this share of buffered replies on, a level is suspect: a p95 can rest on them alone."""
FASTEST = 20_000.0
"""tok/s: no request decodes as fast."""
LATE_SPAN = 0.5
PACE = 0.8
"""A first burst was made at no less than this part of the pace of the whole request, its wait included."""

Ints = NDArray[np.int64]


class Bursts(NamedTuple):
    """The visible events of a reply by moments: how many came at each, and the pause before it in us (0 first)."""

    sizes: Ints
    pauses_us: Ints


def bursts_of(offsets_us: Ints) -> Bursts:
    """Group events (offsets from the first, ascending, in us) into moments of at most `MOMENT_US`."""
    stamps, counts = np.unique(offsets_us, return_counts=True)
    if len(stamps) == 0:
        return Bursts(np.zeros(0, np.int64), np.zeros(0, np.int64))
    starts = _moment_starts(stamps)
    edges = np.append(starts, len(stamps))
    sizes = np.add.reduceat(counts, starts).astype(np.int64)
    pauses = np.zeros(len(starts), np.int64)
    pauses[1:] = stamps[starts[1:]] - stamps[edges[1:-1] - 1]
    return Bursts(sizes, pauses)


def _moment_starts(stamps: Ints) -> Ints:
    """Index of the first stamp of each moment; a moment lasts `MOMENT_US` from its first stamp, it does not chain."""
    if len(stamps) == 1 or int(np.diff(stamps).min()) > MOMENT_US:
        return np.arange(len(stamps), dtype=np.int64)
    starts = [0]
    at = 0
    while True:
        at = int(np.searchsorted(stamps, stamps[at] + MOMENT_US, side="right"))
        if at >= len(stamps):
            return np.array(starts, dtype=np.int64)
        starts.append(at)


def held_back(bursts: Bursts) -> bool:
    """Whether these are the bursts of a buffer.

    Either one moment of 32 events or more brought 80 % of them; or the reply began with 8 at once, and moments of 48 or
    more brought 60 %; or at least two moments were bursts and brought 80 %. A burst is 8 events or more at the
    beginning; or, after a pause of 60 ms, 8 events, or 3 where the reply began with two or more at once. The last
    moment of four or more is left out there: the end of a reply empties the buffer, however little it holds.
    """
    sizes, pauses = bursts
    events = int(sizes.sum())
    if events < MIN_EVENTS:
        return False
    if int(sizes.max()) >= max(WHOLE_BURST, BURST_SHARE * events):
        return True
    if sizes[0] >= BIG_BURST and int(sizes[sizes >= HUGE_BURST].sum()) >= HUGE_SHARE * events:
        return True
    if len(sizes) >= 4:
        sizes, pauses = sizes[:-1], pauses[:-1]
    least = SMALL_BURST if sizes[0] > 1 else BIG_BURST
    burst = (sizes >= least) & (pauses >= HOLD_US)
    burst[0] = sizes[0] >= BIG_BURST
    counted = sizes if burst[0] else sizes[1:]
    return int(burst.sum()) >= 2 and int(sizes[burst].sum()) >= BURST_SHARE * int(counted.sum())


def is_suspect(buffered: int, tellable: int) -> bool:
    """Whether so many of the replies that can tell came out of a buffer that the level's stamps are in doubt."""
    return buffered > 0 and buffered >= SUSPECT_SHARE * tellable


def offsets_of(record: Record) -> Ints | None:
    """Offsets of the visible events in us; None when the record has none."""
    packed = record.event_offsets_us
    return None if not packed else np.frombuffer(packed, dtype="<i4").astype(np.int64)


def can_tell(record: Record) -> bool:
    """Whether a reply is long enough to show whether it was held back."""
    return record.events >= MIN_EVENTS and bool(record.event_offsets_us)


def is_buffered(record: Record) -> bool:
    """Whether a reply came out of a buffer; False too where it cannot tell."""
    if not can_tell(record):
        return False
    if (record.max_gap_ns or 0) < HOLD_US * 1000 and record.reads * 2 > record.events:
        return False  # the usual stream: no pause, and hardly two events a read; nothing to work out
    offsets = offsets_of(record)
    return offsets is not None and held_back(bursts_of(offsets))


def streamed_tokens(record: Record) -> int | None:
    """Output tokens that came over the wire: those of reasoning that was counted and not streamed left out."""
    if record.output_tokens is None or HIDDEN_REASONING not in (record.notes or ""):
        return record.output_tokens
    return max(record.output_tokens - (record.reasoning_tokens or 0), 0) or None


def typical_pause_s(record: Record) -> float | None:
    """Median pause before the bursts of a reply, in s: for how long the buffer held events back. None for one burst."""
    offsets = offsets_of(record)
    if offsets is None:
        return None
    pauses = bursts_of(offsets).pauses_us[1:]
    long = pauses[pauses >= HOLD_US]
    return float(np.median(long)) / 1e6 if len(long) else None


class Bounds(NamedTuple):
    """What the server can have done, given that a buffer held its reply back. Speeds in tok/s, times in s."""

    speed_low: float
    """(n - 1) / time of the whole request: decoding took no longer than that."""
    speed_high: float
    """(n - n1) / (last - first visible - the pause before the last burst); `FASTEST` where too much came at once."""
    ttft_low: float
    """TTFT less the time that the tokens of the first burst take at 0.8 times the pace of the whole request. Zero where
    too much came at once, or all of it within the last half of the request: then it may have been ready long before."""
    ttfo_low: float
    itl_low: float
    itl_high: float


def bounds_of(record: Record) -> Bounds | None:
    """Bounds for a buffered reply that succeeded; None where tokens or times are not known."""
    n, e2e, ttft = streamed_tokens(record), record.e2e_s, record.ttft_s
    if record.outcome != "ok" or n is None or n < 2 or not e2e or ttft is None:
        return None
    n1 = min(float(n), record.first_event_tokens or 1.0)
    low = (n - 1) / e2e
    held = _first_held_s(record, n, n1, e2e)
    high = max(low, min(FASTEST, _speed_high(record, n, n1)))
    return Bounds(
        speed_low=low,
        speed_high=high,
        ttft_low=max(0.0, ttft - held),
        ttfo_low=max(0.0, (record.ttfo_s if record.ttfo_s is not None else ttft) - held),
        itl_low=1 / high,
        itl_high=1 / low,
    )


def _first_held_s(record: Record, n: int, n1: float, e2e_s: float) -> float:
    """How long the first burst can have been held back, in s; no longer than all of the request."""
    span_ns = (record.last_visible_ns or 0) - (record.first_visible_ns or 0)
    if n1 > LEADING_SHARE * n or span_ns < LATE_SPAN * e2e_s * 1e9:
        return e2e_s
    return e2e_s * n1 / n / PACE


def _speed_high(record: Record, n: int, n1: float) -> float:
    first, last, offsets = record.first_visible_ns, record.last_visible_ns, offsets_of(record)
    if first is None or last is None or offsets is None or n1 > LEADING_SHARE * n:
        return FASTEST
    last_pause_s = int(bursts_of(offsets).pauses_us[-1]) / 1e6
    span_s = (last - first) / 1e9 - last_pause_s
    return (n - n1) / span_s if span_s > 0 else FASTEST
