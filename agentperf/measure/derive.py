"""From a decoded turn to its record: the formulas of `docs/how-we-measure.md`, each in one function."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from agentperf.measure.bursts import FASTEST
from agentperf.measure.record import Record
from agentperf.replay.turns import TurnResult
from agentperf.wire.outcome import Outcome

DEFAULT_CHARS_PER_TOKEN = 4.0
"""Only for replies of servers that send no usage; such counts are labelled estimates."""

CONDENSED = "gaps not measured: the simulator left out the events between the first and the last"


def seconds(start_ns: int, end_ns: int | None) -> float | None:
    """A duration, None when its end was not seen or lies before its start (a duration is never negative)."""
    return None if end_ns is None or end_ns < start_ns else (end_ns - start_ns) / 1e9


def first_event_tokens(output_tokens: int, share: float | None, visible_ns: Sequence[int]) -> float:
    """Tokens that were visible at the first stamp: their share of the visible text, within what the events allow.

    An event carries at least one token. So of n tokens in E events, k of them at the first stamp, at least k and at
    most n - (E - k) were there; where each event is one token this is k exactly, however long its word. Where all
    events but the last can have carried the same number m of tokens, and the text is as long as that of m k tokens may
    well be, m k is taken: see `even_tokens`. Events that outnumber the tokens say nothing, and the share alone counts
    (at least 1).
    """
    estimate = output_tokens * (share or 0.0)
    events = len(visible_ns)
    if 0 < events <= output_tokens:
        at_first = bisect_right(visible_ns, visible_ns[0])
        even = even_tokens(output_tokens, events)
        if even is not None and abs(estimate - even * at_first) <= (even * at_first) ** 0.5:
            return float(even * at_first)
        return float(min(max(estimate, at_first), output_tokens - events + at_first))
    return max(1.0, estimate)


MIN_EVEN_EVENTS = 8
"""With fewer events than this, nearly every number of tokens could be spread evenly over them."""


def even_tokens(output_tokens: int, events: int) -> int | None:
    """m where n tokens fill E events with m each, the last one with what is left; None where they cannot.

    A server that sends every m-th token has such replies always; with numbers that vary, n hits the m values of these
    among a spread of many times sqrt(E), so it is rare. Words differ in length by about half their mean, so the text
    of m tokens stands for m within sqrt(m) but for one case in twenty.
    """
    if events < MIN_EVEN_EVENTS or output_tokens < events:
        return None
    even = -(-output_tokens // events)
    return even if -(-output_tokens // even) == events else None


def output_speed(
    output_tokens: int | None, n1: float | None, first_ns: int | None, last_ns: int | None
) -> float | None:
    """(n - n1) / (last visible - first visible) in tok/s; None when all of the reply arrived at once.

    Above `bursts.FASTEST` it did: several reads of one buffer lie microseconds apart, and say nothing of the server.
    """
    if output_tokens is None or n1 is None or first_ns is None or last_ns is None:
        return None
    if last_ns <= first_ns or output_tokens <= n1:
        return None
    speed = (output_tokens - n1) * 1e9 / (last_ns - first_ns)
    return speed if speed <= FASTEST else None


def inter_token_latency(output_tokens: int | None, first_ns: int | None, last_ns: int | None) -> float | None:
    """(last - first visible) / (n - 1) in s per token, as AgentX defines it; None below two tokens or events.

    None too where that is shorter than 1 / `bursts.FASTEST`.
    """
    if output_tokens is None or output_tokens < 2 or first_ns is None or last_ns is None or last_ns <= first_ns:
        return None
    latency = (last_ns - first_ns) / 1e9 / (output_tokens - 1)
    return latency if latency >= 1 / FASTEST else None


def gaps_ns(visible_ns: Sequence[int]) -> tuple[int | None, int | None]:
    """Largest and 99th percentile gap between successive visible events; n events have n - 1 gaps."""
    if len(visible_ns) < 2:
        return None, None
    gaps = np.diff(_as_array(visible_ns))
    gaps.sort()
    # numpy's "linear" by hand: np.percentile takes 0.2 ms a call, a pause in every other stream of this process.
    rank = (len(gaps) - 1) * 0.99
    low = int(rank)
    below, above = int(gaps[low]), int(gaps[min(low + 1, len(gaps) - 1)])
    return int(gaps[-1]), int(below + (above - below) * (rank - low))


def pack_offsets(visible_ns: Sequence[int]) -> bytes | None:
    """Visible events as microseconds after the first, int32 little-endian (35 minutes at most; then clipped)."""
    if not visible_ns:
        return None
    stamps = _as_array(visible_ns)
    packed: bytes = np.minimum((stamps - stamps[0]) // 1000, 2**31 - 1).astype("<i4").tobytes()
    return packed


def _as_array(stamps: Sequence[int]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Through `array`, which takes a list of ints at half the cost."""
    return np.frombuffer(array("q", stamps), dtype=np.int64)


def count_output(outcome: Outcome, chars_per_token: float) -> tuple[int | None, str | None]:
    """Output tokens by the server's usage, else estimated from the visible text, with the source's name.

    A usage of 0 beside visible text is no count: such a request would vanish from every speed.
    """
    contradicted = outcome.output_tokens == 0 and outcome.visible_chars > 0
    if outcome.output_tokens is not None and not contradicted:
        return outcome.output_tokens, "usage"
    if outcome.visible_chars == 0:
        return None, None
    return max(1, round(outcome.visible_chars / chars_per_token)), "estimate"


def streamed_tokens(tokens: int | None, source: str | None, outcome: Outcome) -> int | None:
    """Output tokens that came over the wire: those of reasoning that is counted and not shown took no part in it."""
    if tokens is None or source != "usage":
        return tokens
    return max(tokens - outcome.hidden_tokens, 0) or None


def end_of_stream(result: TurnResult) -> int:
    """When the reply was over: the end of the exchange, or the last read where the connection then hung or broke."""
    x = result.exchange
    broke = result.outcome.outcome == "ok" and x.error_class is not None
    return x.stamps[-1] if broke and x.stamps else x.end_ns


def make_record(
    result: TurnResult,
    *,
    probe: int,
    level: int,
    worker: int,
    chars_per_token: float = DEFAULT_CHARS_PER_TOKEN,
    one_token_first: bool = False,
) -> Record:
    """The record of one request. Latencies of a request that failed stay empty; its stamps are kept.

    `one_token_first` takes the first event for one token whatever it held: speed is (n - 1) / (last - first).
    """
    x, out = result.exchange, result.outcome
    ok = out.outcome == "ok"
    tokens, source = count_output(out, chars_per_token)
    seen = streamed_tokens(tokens, source, out) if out.first_visible_ns is not None else None
    n1 = first_event_tokens(seen, out.n1_share, out.visible_ns) if seen is not None else None
    if n1 is not None and one_token_first:
        n1 = 1.0
    max_gap, p99_gap = (None, None) if x.condensed else gaps_ns(out.visible_ns)
    e2e = seconds(x.t0_ns, end_of_stream(result))
    return Record(
        request_id=result.request_id,
        probe=probe,
        level=level,
        phase="warmup",
        agent=result.agent,
        play=result.play,
        session_id=result.session_id,
        root_session_id=result.root_session_id,
        turn=result.turn,
        due_ns=result.due_ns,
        t0_ns=x.t0_ns,
        connected_ns=x.connected_ns,
        sent_ns=x.sent_ns,
        first_byte_ns=out.first_byte_ns,
        first_visible_ns=out.first_visible_ns,
        first_answer_ns=out.first_answer_ns,
        last_visible_ns=out.last_visible_ns,
        end_ns=x.end_ns,
        status=out.status,
        outcome=out.outcome,
        error_class=out.error_class,
        error=out.error,
        finish_reason=out.finish_reason,
        prompt_tokens=out.prompt_tokens,
        cached_tokens=out.cached_tokens,
        output_tokens=tokens,
        reasoning_tokens=out.reasoning_tokens,
        token_source=source,
        expected_prompt_tokens=result.expected_prompt_tokens,
        expected_cached_tokens=result.expected_cached_tokens,
        target_output_tokens=result.target_output_tokens,
        events=len(out.visible_ns),
        reads=len(x.stamps),
        first_event_tokens=n1,
        max_gap_ns=max_gap,
        p99_gap_ns=p99_gap,
        body_bytes=result.body_bytes,
        new_connection=x.new_connection,
        stale_retries=x.stale_retries,
        worker=worker,
        ttft_s=seconds(x.t0_ns, out.first_visible_ns) if ok else None,
        ttfo_s=seconds(x.t0_ns, out.first_answer_ns) if ok else None,
        speed_tps=output_speed(seen, n1, out.first_visible_ns, out.last_visible_ns) if ok else None,
        e2e_s=e2e if ok else None,
        e2e_tps=tokens / e2e if ok and tokens is not None and e2e else None,
        itl_s=inter_token_latency(seen, out.first_visible_ns, out.last_visible_ns) if ok else None,
        notes="; ".join([*out.notes, CONDENSED] if x.condensed else out.notes) or None,
        event_offsets_us=None if x.condensed else pack_offsets(out.visible_ns),
        visible_chars=out.visible_chars or None,
        ends_session=result.ends_session,
    )
