"""Where the time between two rounds went: to tools, to a person, or to the client."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from agentperf.trace.importers.claude_code_lines import Line, Round, text_of
from agentperf.trace.importers.claude_code_messages import (
    asks_a_person,
    content_size,
    rejected,
    tool_class,
    typed_by_a_person,
)
from agentperf.trace.model import DelayParts, DelaySource, Message, Tool

Span = tuple[float, float]


@dataclass(slots=True)
class ToolRun:
    """A tool call that ran: as a record of the format, and its span on the clock (None without time stamps)."""

    tool: Tool
    span: Span | None


@dataclass(slots=True)
class Wait:
    """The client-side wait before a round."""

    delay_ms: float
    parts: DelayParts | None
    source: DelaySource


def tool_runs(issued: Round, eaten: list[Line], messages: list[Message], chars_per_token: float) -> list[ToolRun]:
    """Calls of a round whose results the next one ate, in the order of the calls."""
    results: dict[str, tuple[Line, dict[str, Any]]] = {}
    for line in eaten:
        for block in line.blocks:
            if block.get("type") == "tool_result" and isinstance(id_ := block.get("tool_use_id"), str):
                results.setdefault(id_, (line, block))
    sizes = {
        m["tool_call_id"]: content_size(m["content"], chars_per_token) for m in messages if m.get("role") == "tool"
    }
    done = issued.done_ms
    runs = []
    for call, asked in issued.tool_lines():
        if call["id"] not in results:
            continue
        line, block = results[call["id"]]
        name = text_of(call.get("name")) or "unknown"
        tokens, size = sizes.get(call["id"], (None, None))
        tool = Tool(
            call_id=call["id"],
            name=name,
            tool_class=tool_class(name),
            internal_ms=_internal(line),
            is_error=block.get("is_error") is True,
            result_tokens=tokens,
            result_bytes=size,
            waits_on_human=asks_a_person(name) or rejected(block),
        )
        span = None
        if asked.timed and line.timed:
            span = (asked.at_ms, max(asked.at_ms, line.at_ms))
            tool.start_ms, tool.end_ms = _ms(span[0] - done), _ms(span[1] - done)
            tool.duration_ms = _ms(span[1] - span[0])
        runs.append(ToolRun(tool, span))
    return runs


def _internal(line: Line) -> float | None:
    """How long the tool says it took."""
    found = line.data.get("toolUseResult")
    if not isinstance(found, dict):
        return None
    for name in ("durationMs", "totalDurationMs"):
        value = found.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
            return float(value)
    return None


def wait_before(one: Round, last: Round | None, runs: list[ToolRun], joined_ms: list[float]) -> Wait:
    """From the end of the last dependency (the round before, subagents that are joined) to the last thing eaten.

    `delay = max(0, ready - done)`; the parts are a partition of that stretch: covered by a person (a tool that asks,
    or what comes after the last result when the user typed something), else by a tool, else the client's own.
    """
    if last is None:
        return Wait(0.0, None, "derived")
    ready = one.ready_ms
    if ready is None or not last.timed:
        return Wait(0.0, None, "missing")
    done = max([last.done_ms, *joined_ms])
    if ready <= done:
        return Wait(0.0, DelayParts(), "measured")
    people = [r.span for r in runs if r.span and r.tool.waits_on_human]
    tools = [r.span for r in runs if r.span]
    if any(typed_by_a_person(line) for line in one.eaten):
        people.append((max([done, *(end for _, end in tools)]), ready))
    human = covered(people, done, ready)
    busy = covered([*people, *tools], done, ready)
    parts = DelayParts(tool_ms=_ms(busy - human), human_ms=_ms(human), client_ms=_ms(ready - done - busy))
    return Wait(_ms(ready - done), parts, "measured")


def covered(spans: Iterable[Span], start: float, end: float) -> float:
    """How much of [start, end] the spans cover; where they overlap it counts once."""
    total, at = 0.0, start
    for low, high in sorted(spans):
        piece = min(high, end) - max(low, at)
        if piece > 0:
            total += piece
            at = min(high, end)
    return total


def _ms(value: float) -> float:
    """Stamps have milliseconds; the arithmetic of floats must not add digits."""
    return round(value, 3)
