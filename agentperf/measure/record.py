"""The request record: one row per request, the contract between every part of agentperf.

Column names are fixed; additions come at the end and keep old files readable. All `*_ns` are of one monotonic clock.
Null means not measured, never 0.
"""

from msgspec import Struct


class Record(Struct, array_like=True, gc=False):
    """One request, from due time to the end of its stream. Units are in the names."""

    request_id: str
    probe: int
    level: int
    phase: str
    """warmup | window | cooldown, by `t0_ns` against the window; set by the collector when the probe is closed."""
    agent: int
    play: str
    session_id: str
    root_session_id: str
    turn: int
    due_ns: int
    t0_ns: int
    connected_ns: int | None
    sent_ns: int | None
    first_byte_ns: int | None
    first_visible_ns: int | None
    first_answer_ns: int | None
    last_visible_ns: int | None
    end_ns: int
    status: int | None
    outcome: str
    """ok | failed | truncated"""
    error_class: str | None
    error: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    token_source: str | None
    """usage | estimate"""
    expected_prompt_tokens: int
    expected_cached_tokens: int
    target_output_tokens: int
    events: int
    """Events with visible output."""
    reads: int
    first_event_tokens: float | None
    max_gap_ns: int | None
    p99_gap_ns: int | None
    body_bytes: int
    new_connection: bool
    stale_retries: int
    worker: int
    ttft_s: float | None = None
    ttfo_s: float | None = None
    speed_tps: float | None = None
    e2e_s: float | None = None
    e2e_tps: float | None = None
    itl_s: float | None = None
    notes: str | None = None
    event_offsets_us: bytes | None = None
    """Offsets of the visible events from the first one, int32 little-endian, in microseconds."""
    visible_chars: int | None = None
    """Characters of visible output (content, reasoning, tool calls): what a count of tokens can be checked against."""
    ends_session: bool | None = None
    """Whether it was the last turn of its session. Null in files of versions that did not say."""


COLUMNS: tuple[str, ...] = Record.__struct_fields__
