"""From the body of a chat request to what the engine needs: the size of its prompt and the names of its blocks.

The prompt is the bytes of the tool schema, then of each message in turn, a header of fixed size before each, so the
prompt of turn k is a byte prefix of turn k+1's wherever the messages are. A token is a fixed number of bytes; a block
is named by a hash of itself and of everything before it.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw, Struct

from agentperf.sim.profile import Profile

HASH_BYTES = 8


class StreamOptions(Struct):
    """Of a chat request."""

    include_usage: bool = False


class _Function(Struct):
    name: str | None = None
    arguments: Any = None


class _ToolCall(Struct):
    id: str | None = None
    function: _Function | None = None


class ChatMessage(Struct):
    """One message; fields that do not become prompt text are passed over."""

    role: str
    content: str | list[Any] | None = None
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChatBody(Struct):
    """The fields of a chat request that the simulator heeds."""

    messages: list[ChatMessage]
    model: str | None = None
    tools: Raw = Raw(b"")
    tool_choice: Any = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    ignore_eos: bool | None = None

    @property
    def output_limit(self) -> int | None:
        """Most tokens that the reply may have, None where the request does not say."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def tools_json(self) -> bytes:
        """The tool schema as it came, empty where no tools are offered."""
        raw = bytes(self.tools)
        return b"" if raw in (b"", b"null", b"[]") or self.tool_choice == "none" else raw


class Prompt(Struct, frozen=True, gc=False):
    """A prompt as the engine sees it."""

    tokens: int
    block_hashes: tuple[bytes, ...]
    digest: bytes
    """Of the whole prompt; seeds what the model does with it."""


_decode_body = msgspec.json.Decoder(ChatBody).decode


def parse_body(body: bytes) -> ChatBody:
    """The request of a body. ValueError (msgspec's, with the path of the field) when it is none."""
    try:
        return _decode_body(body)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def message_bytes(message: ChatMessage, overhead: int) -> bytes:
    """One message as prompt text behind a header of `overhead` bytes."""
    parts = [f"<{message.role}>".ljust(overhead)[:overhead]]
    parts.extend(text for text in (message.reasoning_content or message.reasoning, message.name) if text)
    if isinstance(message.content, str):
        parts.append(message.content)
    elif message.content:
        parts.extend(_part_text(part) for part in message.content)
    for call in message.tool_calls or ():
        if call.function is not None:
            arguments = call.function.arguments
            parts.append(call.function.name or "")
            parts.append(arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode())
    return "".join(parts).encode("utf-8", "surrogatepass")


def _part_text(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return msgspec.json.encode(part).decode()


def prompt_bytes(messages: Sequence[ChatMessage], tools_json: bytes, profile: Profile) -> bytes:
    """The whole prompt, tools first."""
    overhead = round(profile.message_overhead_tokens * profile.bytes_per_token)
    return b"".join((tools_json, *(message_bytes(m, overhead) for m in messages)))


def prompt_tokens(size_bytes: int, profile: Profile) -> int:
    """Tokens of a prompt of so many bytes; the header of the reply belongs to it."""
    return max(1, -int(-size_bytes // profile.bytes_per_token) + profile.message_overhead_tokens)


def block_bytes(profile: Profile) -> int:
    """Bytes of prompt that one block of the KV pool holds."""
    return max(1, int(profile.block_tokens * profile.bytes_per_token))


def hash_blocks(data: bytes, size: int) -> tuple[list[bytes], bytes]:
    """(hash of each whole block of `size` bytes together with all before it, hash of everything)."""
    running = blake2b(digest_size=HASH_BYTES)
    hashes: list[bytes] = []
    view = memoryview(data)
    whole = len(data) // size * size
    for start in range(0, whole, size):
        running.update(view[start : start + size])
        hashes.append(running.copy().digest())
    running.update(view[whole:])
    return hashes, running.digest()


def read_prompt(body: ChatBody, profile: Profile) -> Prompt:
    """Size and block names of a request's prompt."""
    data = prompt_bytes(body.messages, body.tools_json, profile)
    hashes, digest = hash_blocks(data, block_bytes(profile))
    return Prompt(prompt_tokens(len(data), profile), tuple(hashes), digest)
