"""What a dialect makes of an exchange after its stream has closed."""

from dataclasses import dataclass, field
from typing import Any, Literal

HIDDEN_REASONING = "reasoning tokens are counted but not streamed: left out of speed"
"""The note of a reply with `hidden_tokens`."""

ResultKind = Literal["ok", "failed", "truncated"]


@dataclass(slots=True)
class Outcome:
    """Decoded result of one request. None means not measured; 0 is never a stand-in for it.

    `visible_ns` holds the stamp of each event with visible output (non-empty content, reasoning of either spelling, or
    a tool call's name or arguments). `n1_share` is the share of the visible text (0..1], by characters, that was there
    at the first stamp (several events in one read share it), from which the tokens at that stamp are estimated.
    """

    outcome: ResultKind
    error_class: str | None = None
    error: str | None = None
    notes: list[str] = field(default_factory=list)
    status: int | None = None
    finish_reason: str | None = None
    first_byte_ns: int | None = None
    first_visible_ns: int | None = None
    first_answer_ns: int | None = None
    last_visible_ns: int | None = None
    visible_ns: list[int] = field(default_factory=list)
    visible_chars: int = 0
    n1_share: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    hidden_tokens: int = 0
    """Of the output tokens, those of reasoning that was counted and not streamed; they have no part in a speed."""
    message: dict[str, Any] | None = None
    """The answer as an assistant message (content, reasoning left out, tool_calls merged), for `--history live`."""
