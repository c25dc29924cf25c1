"""Tool calls as they grow out of the fragments of a stream."""

from typing import Any

from agentperf.wire.chat_chunks import Delta, Function, ToolCall
from agentperf.wire.chat_text import sound


class _Call:
    """One call."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name = ""
        self.arguments: list[str] = []


class ToolCalls:
    """The calls of one answer, in the order in which they began."""

    __slots__ = ("_calls", "_open")

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._open: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, delta: Delta) -> int:
        """Merge fragments into their calls; the characters of names and arguments that they add."""
        fragments = delta.tool_calls or []
        if not fragments and delta.function_call is not None:
            fragments = [ToolCall(index=0, function=delta.function_call)]
        chars = 0
        for fragment in fragments:
            call = self._call_of(fragment)
            function = fragment.function or Function()
            if fragment.id and call.id is None:
                call.id = fragment.id
            if function.name and function.name != call.name:
                call.name += function.name
                chars += len(function.name)
            if function.arguments:
                call.arguments.append(function.arguments)
                chars += len(function.arguments)
        return chars

    def _call_of(self, fragment: ToolCall) -> _Call:
        """The call that a fragment continues, or a new one: told apart by index, else id, else order."""
        new_id = fragment.id is not None and all(call.id != fragment.id for call in self._calls)
        named = fragment.function is not None and bool(fragment.function.name)
        if fragment.index is None:
            if self._calls and not new_id and (fragment.id is not None or not named):
                return next((call for call in self._calls if fragment.id and call.id == fragment.id), self._calls[-1])
        else:
            call = self._open.get(fragment.index)
            # Some servers number every parallel call 0: another id together with a name starts another call.
            if call is not None and not (new_id and named and call.id is not None):
                return call
        call = _Call()
        self._calls.append(call)
        if fragment.index is not None:
            self._open[fragment.index] = call
        return call

    def message(self) -> list[dict[str, Any]]:
        """As the `tool_calls` of an assistant message."""
        return [
            {
                "id": sound(call.id or f"call_{index}"),
                "type": "function",
                "function": {"name": sound(call.name), "arguments": sound("".join(call.arguments))},
            }
            for index, call in enumerate(self._calls)
        ]


def visible_length(delta: Delta | None) -> int:
    """Characters of visible output in a delta, tool calls included."""
    if delta is None:
        return 0
    parts = [delta.content or delta.refusal, delta.reasoning or delta.reasoning_content]
    functions = [call.function for call in delta.tool_calls or []] + [delta.function_call]
    for function in functions:
        parts += [function.name, function.arguments] if function is not None else []
    return sum(len(part) for part in parts if part)
