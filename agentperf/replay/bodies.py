"""Bodies encoded ahead of time: the messages of a session once, shared by all agents that play it.

The messages of turn k are a byte-exact prefix of turn k+1's wherever the recording kept its prefix, so a session needs
one buffer, and a turn is a length into it. Where the recording broke its prefix a new buffer begins. The cache salt is
spliced in at the start of the first user message, so the system prompt and tools before it stay shared between plays.
"""

from collections.abc import Sequence

from msgspec import Struct

from agentperf.trace.model import Message
from agentperf.trace.render import RenderedSession, RenderedTree, RenderedTurn
from agentperf.wire import chat
from agentperf.wire.exchange import Body


class EncodedTurn(Struct, array_like=True):
    """One turn: its prompt is `buffers[buffer][:length]`, the salt going in at `salt_at` (-1: nowhere)."""

    request_id: str
    index: int
    buffer: int
    length: int
    salt_at: int
    depends_on: list[str]
    delay_ms: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    trigger: str
    new_messages: bytes
    """The turn's new messages as one JSON array, kept for live history only."""
    keep_messages: int


class EncodedSession(Struct, array_like=True):
    """One session, ready to send."""

    session_id: str
    root_session_id: str
    tools: bytes | None
    buffers: list[bytes]
    turns: list[EncodedTurn]
    salt_message: int
    shared_tokens: int = 0
    """Prompt tokens before the salt: system prompt and tools, warm as soon as any play of the product was."""


class EncodedTree(Struct, array_like=True):
    """What one play replays: the root session first."""

    sessions: list[EncodedSession]


class _Buffer:
    """Encoded messages joined by commas, with the offset where each one ends and where the salt goes."""

    def __init__(self, messages: Sequence[Message], salt_message: int) -> None:
        self.parts: list[bytes] = []
        self.ends: list[int] = []
        self.salt_at = -1
        self._salt_message = salt_message
        self._length = 0
        self.extend(messages)

    def extend(self, messages: Sequence[Message]) -> None:
        for message in messages:
            separator = b"," if self.ends else b""
            if len(self.ends) == self._salt_message:
                before, after = chat.encode_salted(message)
                self.salt_at = self._length + len(separator) + len(before)
                encoded = before + after
            else:
                encoded = chat.encode_message(message)
            self.parts.append(separator + encoded)
            self._length += len(separator) + len(encoded)
            self.ends.append(self._length)


def _encode_turn(turn: RenderedTurn, buffer: int, store: _Buffer, *, live: bool) -> EncodedTurn:
    length = store.ends[-1] if store.ends else 0
    return EncodedTurn(
        request_id=turn.request_id,
        index=turn.index,
        buffer=buffer,
        length=length,
        salt_at=store.salt_at if store.salt_at < length else -1,
        depends_on=[d.request_id for d in turn.depends_on],
        delay_ms=turn.delay_ms,
        input_tokens=turn.input_tokens,
        cached_tokens=turn.cached_tokens,
        output_tokens=turn.output_tokens,
        trigger=turn.trigger,
        new_messages=chat.encode_message({"m": list(turn.new_messages)}) if live else b"",
        keep_messages=turn.keep_messages,
    )


def encode_session(session: RenderedSession, *, live: bool = False) -> EncodedSession:
    """Encode a session; `live` keeps each turn's own messages too, since live history builds its prompts anew."""
    buffers: list[_Buffer] = []
    turns: list[EncodedTurn] = []
    messages: list[Message] = []
    for turn in session.turns:
        if not buffers or turn.keep_messages < len(messages):
            messages = [*messages[: turn.keep_messages], *turn.new_messages]
            buffers.append(_Buffer(messages, session.salt_message))
        else:
            messages.extend(turn.new_messages)
            buffers[-1].extend(turn.new_messages)
        turns.append(_encode_turn(turn, len(buffers) - 1, buffers[-1], live=live))
    return EncodedSession(
        session_id=session.session_id,
        root_session_id=session.root_session_id,
        tools=chat.encode_tools(list(session.tools)),
        buffers=[b"".join(b.parts) for b in buffers],
        turns=turns,
        salt_message=session.salt_message,
        shared_tokens=session.shared_tokens,
    )


def encode_tree(tree: RenderedTree, *, live: bool = False) -> EncodedTree:
    """Encode all sessions of a tree."""
    return EncodedTree([encode_session(s, live=live) for s in tree.sessions])


def recorded_body(session: EncodedSession, turn: EncodedTurn, salt: bytes, head: bytes, tail: bytes) -> Body:
    """The body of a turn with recorded history, in parts: its messages are not copied, all agents share them."""
    view = memoryview(session.buffers[turn.buffer])
    if turn.salt_at < 0 or not salt:
        return head, view[: turn.length], tail
    return head, view[: turn.salt_at], salt, view[turn.salt_at : turn.length], tail
