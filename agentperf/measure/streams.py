"""How honest the streams of a window were: bursts, events that carry several tokens, counts, gaps, connections."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from agentperf.measure.bursts import can_tell, is_buffered, is_suspect, offsets_of, streamed_tokens, typical_pause_s
from agentperf.measure.derive import CONDENSED
from agentperf.measure.quantiles import Quantiles, quantiles
from agentperf.measure.record import Record
from agentperf.wire import failures
from agentperf.wire.outcome import HIDDEN_REASONING

USAGE = "usage"
STALL_NS = 1_000_000_000
STALL_FACTOR = 20
"""A request stalled when its largest gap is above 1 s and above 20 times its median gap."""
GROWTH = 1.2
"""Where prompts should have grown by a fifth, a count that stays what it was is none."""


class StreamFacts(Struct, kw_only=True):
    """Of the requests issued in the window. Shares in 0..1, times in s, None is not measured."""

    tellable: int
    """Replies long enough (16 events) to show whether something held them back."""
    buffered: int
    """Of these: came out of a buffer."""
    suspect: bool
    """So many (5 %) that speeds and TTFTs of the level are the buffer's."""
    hold_s: float | None
    """Median over buffered replies of the pause before their bursts."""
    tokens_per_event: Quantiles
    """Per request: output tokens / visible events, of replies with the server's count."""
    token_sources: dict[str, int]
    """Replies by where their token count comes from: usage, estimate, none."""
    chars_per_token: float | None
    """Visible characters / output tokens, both summed over replies with the server's count."""
    usage_per_event: float | None
    """Output tokens / visible events, likewise."""
    hidden_reasoning: int
    """Replies whose count holds reasoning tokens that were not streamed; no figure here counts those tokens."""
    prompt_zero: int
    """Replies whose usage says that the prompt had no token."""
    prompt_sessions: int
    """Sessions of a play whose prompts should have grown by a fifth or more in the window."""
    prompt_flat: int
    """Of these: the server counted every prompt the same."""
    in_band_errors: int
    """Requests that failed by an error inside a stream of status 200."""
    without_speed: int
    """Successful replies that came at one moment."""
    largest_gap_s: float | None
    largest_gap_request: str | None
    stalled: int
    """Requests with a gap above max(1 s, 20 times their median gap)."""
    new_connections: int
    handshake: Quantiles
    """connected - t0 of requests that opened a connection: name, TCP, TLS, in s."""
    handshake_max_s: float | None


def stream_facts(window: Sequence[Record]) -> StreamFacts:
    """The facts of a window's requests, whatever became of them."""
    ok = [r for r in window if r.outcome == "ok"]
    counted = [
        (tokens, r)
        for r in ok
        if r.token_source == USAGE and r.events > 0 and (tokens := streamed_tokens(r)) is not None
    ]
    told = [(tokens, r) for tokens, r in counted if CONDENSED not in (r.notes or "")]
    text = [(tokens, r.visible_chars) for tokens, r in counted if r.visible_chars is not None]
    buffered = [r for r in ok if is_buffered(r)]
    holds = [pause for r in buffered if (pause := typical_pause_s(r)) is not None]
    gapped = max((r for r in window if r.max_gap_ns is not None), key=lambda r: r.max_gap_ns or 0, default=None)
    handshakes = handshakes_s(window)
    sessions, flat = flat_prompts(ok)
    tellable = sum(map(can_tell, ok))
    return StreamFacts(
        tellable=tellable,
        buffered=len(buffered),
        suspect=is_suspect(len(buffered), tellable),
        hold_s=float(np.median(holds)) if holds else None,
        tokens_per_event=quantiles(tokens / r.events for tokens, r in told),
        token_sources=dict(sorted(Counter(r.token_source or "none" for r in ok).items())),
        chars_per_token=_ratio(sum(chars for _, chars in text), sum(tokens for tokens, _ in text)),
        usage_per_event=_ratio(sum(tokens for tokens, _ in told), sum(r.events for _, r in told)),
        hidden_reasoning=sum(HIDDEN_REASONING in (r.notes or "") for r in ok),
        prompt_zero=sum(r.prompt_tokens == 0 for r in ok),
        prompt_sessions=sessions,
        prompt_flat=flat,
        in_band_errors=sum(r.error_class == failures.SERVER_ERROR_IN_STREAM for r in window),
        without_speed=sum(map(came_at_once, ok)),
        largest_gap_s=None if gapped is None else (gapped.max_gap_ns or 0) / 1e9,
        largest_gap_request=None if gapped is None else gapped.request_id,
        stalled=sum(map(is_stalled, window)),
        new_connections=sum(r.new_connection for r in window),
        handshake=quantiles(handshakes),
        handshake_max_s=max(handshakes, default=None),
    )


def _ratio(above: float, below: float) -> float | None:
    return above / below if below > 0 else None


def came_at_once(record: Record) -> bool:
    """A successful reply with visible output and no speed: all of it was there at one moment."""
    return record.outcome == "ok" and record.first_visible_ns is not None and record.speed_tps is None


def is_stalled(record: Record) -> bool:
    """Whether a stream stood still: its largest gap is above 1 s and above 20 times its median gap."""
    if record.max_gap_ns is None or record.max_gap_ns <= STALL_NS:
        return False
    offsets = offsets_of(record)
    if offsets is None or len(offsets) < 3:
        return False  # one gap is its own median
    return record.max_gap_ns > STALL_FACTOR * float(np.median(np.diff(offsets))) * 1000


def handshakes_s(window: Sequence[Record]) -> list[float]:
    """connected - t0 in s of requests that opened a connection, those left out that had first tried an old one."""
    return [
        (r.connected_ns - r.t0_ns) / 1e9
        for r in window
        if r.new_connection and not r.stale_retries and r.connected_ns is not None and r.connected_ns >= r.t0_ns
    ]


def flat_prompts(ok: Sequence[Record]) -> tuple[int, int]:
    """Sessions whose prompts should have grown by a fifth, and those of them whose counts are all the same."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for r in ok:
        if r.prompt_tokens is not None:
            groups[r.play, r.session_id].append(r)
    growing = [
        {r.prompt_tokens for r in group}
        for group in groups.values()
        if max(r.expected_prompt_tokens for r in group) >= GROWTH * min(r.expected_prompt_tokens for r in group)
        and len(group) > 1
    ]
    return len(growing), sum(len(counts) == 1 for counts in growing)
