"""The shapes of one chat chunk: a typed decoder for what nearly every chunk is, and a lenient reading of the rest."""

import json
from typing import Any

import msgspec
from msgspec import Struct


class Function(Struct, gc=False):
    """Name and arguments of a tool call, or a fragment of them."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(Struct, gc=False):
    """One fragment of a tool call; later fragments often carry only the index."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(Struct, gc=False):
    """What a chunk adds to the message."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    refusal: str | None = None


class Choice(Struct, gc=False):
    """`message` stands in for `delta` in answers that are not streamed."""

    delta: Delta | None = None
    finish_reason: str | None = None
    message: Delta | None = None
    error: Any = None
    index: Any = None


class Chunk(Struct, gc=False):
    """One event of a chat stream. Without `choices` it is something else, for instance an error."""

    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None


decode_chunk = msgspec.json.Decoder(Chunk).decode
"""Raises msgspec.ValidationError for an odd shape, msgspec.DecodeError for what is no JSON."""


def decode_any(data: bytes) -> tuple[Any, bool]:
    """(value, text is sound) of JSON of any shape, also with lone surrogates and NaN, which some servers send.

    Bytes that are not UTF-8 become U+FFFD, as in every reader of events; then the text is not sound. ValueError for
    what is no JSON.
    """
    try:
        return msgspec.json.decode(data), True
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    text = data.decode("utf-8", "replace")
    try:
        return json.loads(text), text.encode() == data
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def lenient_choice(value: Any) -> Choice:
    """A choice out of odd JSON; parts that cannot be read are left out."""
    if not isinstance(value, dict):
        return Choice()
    reason = value.get("finish_reason")
    if isinstance(reason, dict):
        reason = reason.get("type") or reason.get("reason") or "stop"
    return Choice(
        delta=_lenient_delta(value.get("delta")),
        finish_reason=str(reason) if reason else None,
        message=_lenient_delta(value.get("message")),
        error=value.get("error"),
        index=value.get("index"),
    )


def _lenient_delta(value: Any) -> Delta | None:
    if not isinstance(value, dict):
        return None
    content, thinking = _texts(value.get("content"))
    calls = value.get("tool_calls")
    if isinstance(calls, dict):
        calls = [calls]
    return Delta(
        content=content,
        reasoning=_texts(value.get("reasoning"))[0] or thinking,
        reasoning_content=_texts(value.get("reasoning_content"))[0],
        tool_calls=[_lenient_call(call) for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else None,
        function_call=_lenient_function(value.get("function_call")),
        refusal=_texts(value.get("refusal"))[0],
    )


def _texts(value: Any) -> tuple[str | None, str | None]:
    """(text, thinking) of a string or of a list of parts such as {"type": "text", "text": "..."}."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return None, None
    text, thinking = "", ""
    for part in value:
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict):
            text += part["text"] if isinstance(part.get("text"), str) else ""
            thinking += _texts(part.get("thinking"))[0] or ""
    return text or None, thinking or None


def _lenient_call(value: dict[str, Any]) -> ToolCall:
    index, call_id = value.get("index"), value.get("id")
    if isinstance(index, float) and index.is_integer():
        index = int(index)
    return ToolCall(
        index=index if isinstance(index, int) and not isinstance(index, bool) else None,
        id=call_id if isinstance(call_id, str) else None,
        function=_lenient_function(value.get("function")),
    )


def _lenient_function(value: Any) -> Function | None:
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return Function(name=name if isinstance(name, str) else None, arguments=arguments)
