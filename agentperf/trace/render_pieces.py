"""One message of a prompt with its size, as rendering passes it on from turn to turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentperf.trace.model import Message
from agentperf.trace.sizing import TokenSizes, Tools
from agentperf.trace.text import language_of


@dataclass(frozen=True, slots=True)
class Piece:
    """A message, its predicted tokens, and how much of the recording's prompt it stands for."""

    message: Message
    tokens: float
    segments: int = 0
    """Segments of a shape that ended with this message, those merged into it included."""
    end: int = 0
    """Token position at which it ends in a prompt of hashed blocks."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What rendering one session needs beside its requests."""

    sizes: TokenSizes
    language: str
    tools: tuple[dict[str, Any], ...]
    tools_ref: str | None
    shared: str
    """Names what this session's system prompt is shared by: its product, else the session itself."""
    seed: str
    """Makes the text of this session its own."""

    @property
    def fixed(self) -> float:
        """Tokens of a prompt that are in no message but the tools."""
        return self.sizes.base + self.tools_tokens

    @property
    def tools_tokens(self) -> float:
        """Tokens of the tool schemas on this endpoint."""
        return self.sizes.tools(self.tools_ref, self.tools)

    @property
    def code(self) -> str:
        """Kind of text for source code."""
        return f"code:{language_of(self.language)}"


def total(frame: Frame, pieces: Sequence[Piece]) -> float:
    """Predicted tokens of a prompt."""
    return frame.fixed + sum(p.tokens for p in pieces)


def measured(message: Message, frame: Frame, *, first: bool) -> Piece:
    """A recorded message, untouched, with an estimate of its size."""
    sizes = frame.sizes
    role = str(message.get("role"))
    tokens = 0.0 if first and role in ("system", "developer") else sizes.frame(role)
    kind = frame.code if role in ("tool", "function") else "prose"
    tokens += _content_tokens(message.get("content"), kind, sizes)
    for call in message.get("tool_calls") or ():
        function = call.get("function", {}) if isinstance(call, Mapping) else {}
        arguments = function.get("arguments", "")
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        tokens += sizes.call_overhead + sizes.short_args(len(text))
    return Piece(message, tokens)


def _content_tokens(content: Any, kind: str, sizes: TokenSizes) -> float:
    if isinstance(content, str):
        return sizes.text(kind, len(content))
    tokens = 0.0
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            tokens += sizes.text(kind, len(part))
        elif isinstance(part, Mapping):
            text, given = part.get("text"), part.get("tokens")
            tokens += sizes.text(kind, len(text)) if isinstance(text, str) else 0.0
            tokens += given if isinstance(given, int | float) else 0.0  # the size of an image, where it is known
    return tokens


def common_start(a: Sequence[Piece], b: Sequence[Piece]) -> int:
    """How many leading messages two prompts share."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x is not y and x.message != y.message:
            break
        n += 1
    return n


def chars_of(tokens: float, kind: str, sizes: TokenSizes, least: int = 1) -> int:
    """Characters of a text of this many tokens."""
    return max(least, round(tokens * sizes.cpt(kind)))


def known_tools(tools: Tools, name: str) -> Mapping[str, Any] | None:
    """The parameter schema of a tool by name."""
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, Mapping) else {}
    return None
