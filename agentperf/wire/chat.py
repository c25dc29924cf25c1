"""The OpenAI chat dialect: bodies made of parts that are encoded ahead, and `fold`, which decodes what came back.

A body is `body_head + b",".join(messages) + body_tail`. Messages are encoded once and stay a byte-exact prefix from
turn to turn; everything that varies by turn (the output limit) is in the tail, behind them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from agentperf.errors import UsageError
from agentperf.wire.chat_fold import fold, fold_steps

__all__ = [
    "PATH",
    "BodySettings",
    "body_head",
    "body_tail",
    "encode_message",
    "encode_salted",
    "encode_tools",
    "fold",
    "fold_steps",
    "output_limit",
]

PATH = "chat/completions"
"""Below the endpoint's base path."""

OutputMode = Literal["natural", "exact", "max"]

_FIXED = frozenset({"model", "messages", "tools", "stream"})
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class BodySettings:
    """What every body of a run has in common."""

    model: str
    output: OutputMode = "natural"
    """natural: the model stops by itself, `cap` is a guard; exact: as many tokens as recorded, by ignore_eos;
    max: at most as many as recorded."""
    cap: int = 16_384
    include_usage: bool = True
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    ignore_eos: bool = True
    """Whether mode exact sends ignore_eos (False for a server that refuses unknown fields). Other modes never do."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields; one of the same name as a field of ours replaces it."""

    def __post_init__(self) -> None:
        taken = sorted(_FIXED & set(self.extra))
        if taken:
            raise UsageError(f"the extra body field {taken[0]!r} is set by agentperf itself")
        if self.cap < 1:
            raise UsageError("the cap of output tokens must be at least 1")


def encode_message(message: Mapping[str, Any]) -> bytes:
    """One message as compact JSON; equal messages give equal bytes."""
    return _encode(message)


def encode_salted(message: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """The message's JSON split at the very start of its text, so that an ASCII salt can be put in between.

    The salt must need no JSON escape (letters, digits, space, `[]:-`). A list of parts takes it in its first text part,
    or in a new one in front where it has none. ValueError for a message without content.
    """
    mark = "@salt@"
    encoded = _encode(message)
    while mark.encode() in encoded:
        mark = f"@{mark}@"
    content = message.get("content")
    if isinstance(content, str):
        marked: Any = mark + content
    elif isinstance(content, list):
        marked = _mark_parts(content, mark)
    else:
        raise ValueError(f"a {message.get('role')} message without text content cannot carry a cache salt")  # noqa: TRY004 - a value of the trace
    before, _, after = _encode({**message, "content": marked}).partition(mark.encode())
    return before, after


def _mark_parts(parts: list[Any], mark: str) -> list[Any]:
    for index, part in enumerate(parts):
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            return [*parts[:index], {**part, "text": mark + part["text"]}, *parts[index + 1 :]]
    return [{"type": "text", "text": mark}, *parts]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> bytes | None:
    """The tool schema as JSON, None where there are no tools (servers refuse an empty list)."""
    return _encode(list(tools)) if tools else None


def body_head(settings: BodySettings) -> bytes:
    """Everything before the first message: `{"model":"...","messages":[`."""
    return b'{"model":' + _encode(settings.model) + b',"messages":['


def output_limit(settings: BodySettings, target_output_tokens: int) -> int:
    """Most tokens that the server may write: the cap, or in modes exact and max the recorded length if that is less."""
    if settings.output == "natural":
        return settings.cap
    return max(1, min(target_output_tokens, settings.cap))


def body_tail(settings: BodySettings, tools_json: bytes | None, target_output_tokens: int) -> bytes:
    """Everything behind the last message, from the `]` on."""
    fields: dict[str, Any] = {}
    if tools_json is not None:
        fields["tools"] = msgspec.Raw(tools_json)
    fields["stream"] = True
    if settings.include_usage:
        fields["stream_options"] = {"include_usage": True}
    fields[settings.max_tokens_field] = output_limit(settings, target_output_tokens)
    if settings.output == "exact" and settings.ignore_eos:
        fields["ignore_eos"] = True
    fields.update(settings.extra)
    return b"]," + _encode(fields)[1:]
