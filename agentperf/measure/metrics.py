"""Metrics of one probe from its records. Each has one formula; `docs/how-we-measure.md` prints them all.

Two populations: *requests* are those issued while the window was open (long ones are not cut off, short ones not
favoured); *rates* (throughput, in flight, prefill) are of what happened while the window was open, whichever request
it belongs to.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from agentperf.measure.quantiles import Quantiles, quantiles
from agentperf.measure.record import Record
from agentperf.measure.streams import StreamFacts, stream_facts
from agentperf.wire import failures

__all__ = ["CUT_OFF", "OVERFLOW", "LevelMetrics", "Quantiles", "counts_for_slo", "quantiles", "summarise", "union_ns"]

OVERFLOW = failures.CONTEXT_OVERFLOW
"""A prompt the server has no room for says nothing about speed: it is counted, and kept out of every percentile."""


class LevelMetrics(Struct, kw_only=True):
    """What one probe measured; counts are of requests issued in the window, durations in s, speeds in tok/s."""

    level: int
    window_s: float
    started: int
    ok: int
    failed: int
    truncated: int
    overflowed: int
    """Of `failed`: prompts above the served context, which no percentile counts."""
    errors_by_class: dict[str, int]
    plays: int
    speed: Quantiles
    """Failed requests count as 0 tok/s."""
    speed_ok: Quantiles
    """Successes only."""
    one_event_replies: int
    """Replies that came all at one moment have no speed."""
    ttft: Quantiles
    """Failed requests count as infinite."""
    ttft_ok: Quantiles
    ttfo_ok: Quantiles
    e2e_ok: Quantiles
    e2e_speed: Quantiles
    itl: Quantiles
    ttft_cold: Quantiles
    """Successes, first turn an agent sent of its play: no cached history of its own."""
    ttft_warm: Quantiles
    speed_cold: Quantiles
    speed_warm: Quantiles
    max_gap_s: float | None
    p99_gap_s: float | None
    """p99 over requests of each request's p99 gap between visible events."""
    prompt_tokens: Quantiles
    output_tokens: Quantiles
    prompt_ratio: float | None
    """Prompt tokens by the server's count over those of the trace, summed: how true the filler text is to size."""
    output_ratio: float | None
    cached_share: float | None
    """Cached / prompt tokens by the server's usage; None where any reply left it out."""
    expected_cached_share: float | None
    output_tps: float | None
    uncached_input_tps: float | None
    cached_input_tps: float | None
    total_tps: float | None
    """Sum of the three: output, uncached input, cached input."""
    prefill_tps: float | None
    in_flight: float
    wanted_in_flight: float
    requests_per_s: float
    tokens_per_event: float | None
    estimated_token_share: float
    """Share of replies whose token count is an estimate because the server sent no usage."""
    new_connection_share: float
    stale_retries: int
    buffered_share: float
    """Share of replies long enough to tell that came out of a buffer: their stamps are the buffer's."""
    notes: dict[str, int]
    streams: StreamFacts


CUT_OFF = failures.CUT
"""Still open when the load had waited for it as long as it waits: the server's failure, unlike an interrupted run."""


def counts_for_slo(record: Record) -> bool:
    """Whether a request belongs to the population that verdicts and percentiles are taken over."""
    if record.outcome == "truncated":
        return record.error_class == CUT_OFF
    return record.error_class != OVERFLOW


def speed_for_verdict(record: Record) -> float | None:
    """Output speed, a failure as 0; None for a one-event reply, which has none."""
    return record.speed_tps if record.outcome == "ok" else 0.0


def _overlap(start: int, end: int, low: int, high: int) -> int:
    return max(0, min(end, high) - max(start, low))


def _in_flight(records: Sequence[Record], open_ns: int, close_ns: int) -> tuple[float, float]:
    span = close_ns - open_ns
    sent = sum(_overlap(r.t0_ns if r.sent_ns is None else r.sent_ns, r.end_ns, open_ns, close_ns) for r in records)
    wanted = sum(_overlap(r.due_ns, r.end_ns, open_ns, close_ns) for r in records)
    return sent / span, wanted / span


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Total length of the union of intervals."""
    total = 0
    reach: int | None = None
    for start, end in sorted(spans):
        if reach is None or start > reach:
            total += max(0, end - start)
            reach = end
        elif end > reach:
            total += end - reach
            reach = end
    return total


def _rates(records: Sequence[Record], open_ns: int, close_ns: int) -> dict[str, float | None]:
    """Tokens per second of the window: output spread evenly over its generation, input at the first visible token."""
    span_s = (close_ns - open_ns) / 1e9
    output = 0.0
    for r in records:
        wasted = r.outcome == "failed"  # tokens that no agent could use
        if wasted or r.output_tokens is None or r.first_visible_ns is None or r.last_visible_ns is None:
            continue
        length = r.last_visible_ns - r.first_visible_ns
        if length > 0:
            output += r.output_tokens * _overlap(r.first_visible_ns, r.last_visible_ns, open_ns, close_ns) / length
        elif open_ns <= r.first_visible_ns < close_ns:
            output += r.output_tokens
    prefilled = [
        r
        for r in records
        if r.prompt_tokens is not None and r.first_visible_ns is not None and open_ns <= r.first_visible_ns < close_ns
    ]
    if not prefilled:
        return {"output": output / span_s, "uncached": None, "cached": None, "total": None, "prefill": None}
    prompt = sum(r.prompt_tokens or 0 for r in prefilled)
    known = all(r.cached_tokens is not None for r in prefilled)
    cached = sum(r.cached_tokens or 0 for r in prefilled) if known else None
    waiting = union_ns(
        (max(r.t0_ns, open_ns), min(r.first_visible_ns or r.end_ns, close_ns))
        for r in records
        if _overlap(r.t0_ns, r.first_visible_ns or r.end_ns, open_ns, close_ns) > 0
    )
    uncached = None if cached is None else prompt - cached
    return {
        "output": output / span_s,
        "uncached": None if uncached is None else uncached / span_s,
        "cached": None if cached is None else cached / span_s,
        "total": (output + prompt) / span_s,
        "prefill": uncached * 1e9 / waiting if uncached is not None and waiting > 0 else None,
    }


def _ratio(pairs: Sequence[tuple[int | None, int]]) -> float | None:
    known = [(a, b) for a, b in pairs if a is not None and b > 0]
    expected = sum(b for _, b in known)
    return sum(a for a, _ in known) / expected if expected else None


def _cached_share(ok: Sequence[Record]) -> float | None:
    """Cached of all prompt tokens, summed; None where a reply left it out."""
    reported = [r for r in ok if r.prompt_tokens is not None]
    total = sum(r.prompt_tokens or 0 for r in reported)
    if total == 0 or any(r.cached_tokens is None for r in reported):
        return None
    return sum(r.cached_tokens or 0 for r in reported) / total


def first_turns(records: Iterable[Record]) -> frozenset[str]:
    """Ids of the requests that opened a session in a play: nothing of their own history can be cached yet."""
    first: dict[tuple[str, str], Record] = {}
    for r in records:
        known = first.get((r.play, r.session_id))
        if known is None or r.t0_ns < known.t0_ns:
            first[(r.play, r.session_id)] = r
    return frozenset(r.request_id for r in first.values())


def summarise(records: Sequence[Record], *, level: int, open_ns: int, close_ns: int) -> LevelMetrics:
    """Metrics of a closed probe from all its records, those of warm-up and drain included (one call, one table row)."""
    window = [r for r in records if r.phase == "window"]
    judged = [r for r in window if counts_for_slo(r)]
    ok = [r for r in window if r.outcome == "ok"]
    rates = _rates(records, open_ns, close_ns)
    in_flight, wanted = _in_flight(records, open_ns, close_ns)
    opening = first_turns(records)
    cold = [r for r in ok if r.request_id in opening]
    warm = [r for r in ok if r.request_id not in opening]
    outputs = [r for r in ok if r.output_tokens is not None]
    events = sum(r.events for r in outputs)
    streams = stream_facts(window)
    gaps = [r.max_gap_ns for r in ok if r.max_gap_ns is not None]
    p99_gaps = quantiles(r.p99_gap_ns / 1e9 for r in ok if r.p99_gap_ns is not None)
    return LevelMetrics(
        level=level,
        window_s=(close_ns - open_ns) / 1e9,
        started=len(window),
        ok=len(ok),
        failed=sum(r.outcome == "failed" for r in window),
        truncated=sum(r.outcome == "truncated" for r in window),
        overflowed=sum(r.error_class == OVERFLOW for r in window),
        errors_by_class=dict(Counter(r.error_class or "unknown" for r in window if r.outcome == "failed")),
        plays=len({r.play for r in judged}),
        speed=quantiles(s for r in judged if (s := speed_for_verdict(r)) is not None),
        speed_ok=quantiles(r.speed_tps for r in ok if r.speed_tps is not None),
        one_event_replies=streams.without_speed,
        ttft=quantiles(math.inf if r.outcome == "failed" or r.ttft_s is None else r.ttft_s for r in judged),
        ttft_ok=quantiles(r.ttft_s for r in ok if r.ttft_s is not None),
        ttfo_ok=quantiles(r.ttfo_s for r in ok if r.ttfo_s is not None),
        e2e_ok=quantiles(r.e2e_s for r in ok if r.e2e_s is not None),
        e2e_speed=quantiles(speed for r in judged if (speed := 0.0 if r.outcome != "ok" else r.e2e_tps) is not None),
        itl=quantiles(r.itl_s for r in ok if r.itl_s is not None),
        ttft_cold=quantiles(r.ttft_s for r in cold if r.ttft_s is not None),
        ttft_warm=quantiles(r.ttft_s for r in warm if r.ttft_s is not None),
        speed_cold=quantiles(r.speed_tps for r in cold if r.speed_tps is not None),
        speed_warm=quantiles(r.speed_tps for r in warm if r.speed_tps is not None),
        max_gap_s=max(gaps) / 1e9 if gaps else None,
        p99_gap_s=p99_gaps.p99,
        prompt_tokens=quantiles(float(r.prompt_tokens) for r in ok if r.prompt_tokens is not None),
        output_tokens=quantiles(float(r.output_tokens) for r in ok if r.output_tokens is not None),
        prompt_ratio=_ratio([(r.prompt_tokens, r.expected_prompt_tokens) for r in ok]),
        output_ratio=_ratio([(r.output_tokens, r.target_output_tokens) for r in ok]),
        cached_share=_cached_share(ok),
        expected_cached_share=_ratio([(r.expected_cached_tokens, r.expected_prompt_tokens) for r in ok]),
        output_tps=rates["output"],
        uncached_input_tps=rates["uncached"],
        cached_input_tps=rates["cached"],
        total_tps=rates["total"],
        prefill_tps=rates["prefill"],
        in_flight=in_flight,
        wanted_in_flight=wanted,
        requests_per_s=len(window) / ((close_ns - open_ns) / 1e9),
        tokens_per_event=sum(r.output_tokens or 0 for r in outputs) / events if events else None,
        estimated_token_share=sum(r.token_source == "estimate" for r in ok) / len(ok) if ok else 0.0,  # noqa: S105
        new_connection_share=sum(r.new_connection for r in window) / len(window) if window else 0.0,
        stale_retries=sum(r.stale_retries for r in window),
        buffered_share=streams.buffered / streams.tellable if streams.tellable else 0.0,
        notes=dict(Counter(note for r in window for note in (r.notes or "").split("; ") if note)),
        streams=streams,
    )
