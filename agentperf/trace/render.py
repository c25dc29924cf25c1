"""Sessions made ready to send: messages with text, in the shape of the OpenAI chat API (dialects translate from it)."""

from dataclasses import dataclass
from typing import Any

from agentperf.trace.model import Dependency, Message


@dataclass(frozen=True, slots=True)
class RenderedTurn:
    """One model call. Its prompt is the first `keep_messages` of the previous turn's prompt, then `new_messages`."""

    request_id: str
    index: int
    keep_messages: int
    new_messages: tuple[Message, ...]
    depends_on: tuple[Dependency, ...]
    delay_ms: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    trigger: str


@dataclass(frozen=True, slots=True)
class RenderedSession:
    """One session of a tree; `salt_message` is the index of the message that takes the cache salt (first user one)."""

    session_id: str
    root_session_id: str
    tools: tuple[dict[str, Any], ...]
    turns: tuple[RenderedTurn, ...]
    salt_message: int


@dataclass(frozen=True, slots=True)
class RenderedTree:
    """What one play replays: the root session first, then its subagents."""

    sessions: tuple[RenderedSession, ...]

    @property
    def root_session_id(self) -> str:
        """Name of the tree."""
        return self.sessions[0].root_session_id
