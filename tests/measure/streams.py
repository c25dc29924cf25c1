"""Simulated streams: when a server makes each event, and when a client reads it behind this or that."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentperf.measure.derive import first_event_tokens, gaps_ns, output_speed, pack_offsets
from agentperf.measure.record import Record
from tests.measure.records import S, record

Times = list[float]
"""Seconds, ascending."""


def made(rng: random.Random, events: int, rate: float, first_s: float = 0.5, jitter: float = 0.1) -> Times:
    """Events of a steady decoder, `rate` a second, each step `jitter` longer or shorter."""
    times = [first_s]
    for _ in range(events - 1):
        times.append(times[-1] + rng.gauss(1, jitter) / rate if jitter else times[-1] + 1 / rate)
    return list(np.maximum.accumulate(times))


def timer(times: Times, every_s: float, phase_s: float = 0.0) -> Times:
    """A buffer that is emptied at regular times, and at the end of the stream."""
    ticks = [phase_s + every_s * int(np.ceil(max(0.0, t - phase_s) / every_s)) for t in times]
    return [min(tick, times[-1]) for tick in ticks]


def blocks(times: Times, block_bytes: int, event_bytes: Sequence[int]) -> Times:
    """A buffer that is handed on in whole blocks; an event is complete with its last byte. The rest at the end."""
    ends = np.cumsum(event_bytes)
    read: Times = []
    for end in ends:
        filled = -(-int(end) // block_bytes) * block_bytes
        at = int(np.searchsorted(ends, filled))
        read.append(times[at] if at < len(times) else times[-1])
    return read


def whole(times: Times) -> Times:
    """Nothing before the end."""
    return [times[-1]] * len(times)


def pieces(times: Times, per_read: int, pause_s: float) -> Times:
    """Nothing before the end, and then in several reads."""
    return [times[-1] + i // per_read * pause_s for i in range(len(times))]


def late_client(times: Times, period: Callable[[], float]) -> Times:
    """A client that comes to its socket only now and then: what has arrived meanwhile shares a read."""
    read: Times = []
    at = times[0]
    for t in times:
        while at < t:
            at += period()
        read.append(at)
    return read


def stalled(times: Times, at: int, stall_s: float, *, together: bool) -> Times:
    """One stall before event `at`: of the server (later events follow at their pace), or of the network (`together`:
    what was made meanwhile comes at once)."""
    if together:
        return [max(t, times[at] + stall_s) if i >= at else t for i, t in enumerate(times)]
    return [t + stall_s if i >= at else t for i, t in enumerate(times)]


def speculative(rng: random.Random, events: int, step_s: float, draft: int, accept: float) -> Times:
    """Each step brings one token and those of a draft that are accepted, every one as an event of its own."""
    times = [0.5]
    at = 0.5
    while len(times) < events:
        at += step_s * rng.uniform(0.9, 1.1)
        accepted = 0
        while accepted < draft and rng.random() < accept:
            accepted += 1
        times += [at + i * 20e-6 for i in range(accepted + 1)]
    return times[:events]


def seen(times: Times, *, tokens: int | None = None, request_id: str = "r", **changes: Any) -> Record:
    """The record of a reply whose events were read at these times (s after t0), by the formulas of the product."""
    stamps = [round(t * 1e9) for t in times]
    n = len(times) if tokens is None else tokens
    at_first = stamps.count(stamps[0])
    n1 = first_event_tokens(n, at_first / len(stamps), stamps)
    largest, p99 = gaps_ns(stamps)
    fields: dict[str, Any] = {
        "request_id": request_id,
        "first_byte_ns": stamps[0],
        "first_visible_ns": stamps[0],
        "first_answer_ns": stamps[0],
        "last_visible_ns": stamps[-1],
        "end_ns": stamps[-1],
        "output_tokens": n,
        "events": len(stamps),
        "reads": len(set(stamps)),
        "first_event_tokens": n1,
        "max_gap_ns": largest,
        "p99_gap_ns": p99,
        "ttft_s": times[0],
        "ttfo_s": times[0],
        "speed_tps": output_speed(n, n1, stamps[0], stamps[-1]),
        "e2e_s": times[-1],
        "e2e_tps": n / times[-1],
        "itl_s": (stamps[-1] - stamps[0]) / S / (n - 1) if n > 1 and stamps[-1] > stamps[0] else None,
        "event_offsets_us": pack_offsets(stamps),
        "visible_chars": 4 * n,
    }
    return record(0.0, **{**fields, **changes})
