"""weka / kv-cache-tester JSON as calls: what one model call was, and which line of prompts it belongs to.

What its fields mean was checked on 710 published traces (48,658 calls): `hash_ids` are the whole blocks of the prompt,
the rest is not hashed; times are whole seconds; a subagent's `t` is when it *finished*; nested times start at 0 or are
absolute.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from agentperf.trace.importers.result import ImportReport

_SAFE_INT = 1 << 53
_MOST_SECONDS = 1e10

Block = int | str


@dataclass(slots=True)
class Call:
    """One model call. Times are milliseconds from the start of the trace."""

    number: int
    """Position in the list of its chain."""
    start_ms: float
    api_ms: float
    think_ms: float | None
    ttft_ms: float | None
    tokens: int
    output: int
    blocks: list[Block]
    model: str | None
    stream: bool
    input_types: list[str]
    output_types: list[str]
    stop: str
    shared: int = 0
    """Leading blocks that an earlier call of the trace had."""

    @property
    def end_ms(self) -> float:
        """When the answer was complete."""
        return self.start_ms + self.api_ms

    @property
    def cancelled(self) -> bool:
        """No part of an answer and no reason why it ended: cancelled, or not understood by the recorder."""
        return not self.output_types and not self.stop


@dataclass(slots=True)
class Marker:
    """A subagent: its own chain of calls, and when it ran."""

    agent_id: str
    kind: str | None
    spawn_ms: float
    done_ms: float
    tool_tokens: int
    system_tokens: int
    chain: "Chain"


@dataclass(slots=True)
class Chain:
    """A list of calls as the file has it."""

    calls: list[Call] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)


def number(value: Any, most: float = _MOST_SECONDS) -> float | None:
    """A finite number that is not negative, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most and math.isfinite(value) else None


def tokens(value: Any) -> int | None:
    """A token count, or None."""
    found = number(value, _SAFE_INT)
    return int(found) if found is not None else None


def texts(value: Any) -> list[str]:
    """The strings of a list."""
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def chain_of(rows: Any, offset_ms: float, where: str, report: ImportReport) -> Chain:
    """Calls and subagents of a `requests` list; `offset_ms` is added to its times. Every call is counted as seen."""
    chain = Chain()
    at = offset_ms
    for position, row in enumerate(rows if isinstance(rows, list) else []):
        if isinstance(row, dict) and row.get("type") == "subagent":
            _marker(chain, row, offset_ms, f"{where}[{position}]", report)
            continue
        report.requests_seen += 1
        size = tokens(row.get("in")) if isinstance(row, dict) else None
        if size is None:
            report.leave_out("calls without the size of their prompt")
            report.warn(where, position, "no number in `in`; the call is left out")
            continue
        call = _call(row, position, size, offset_ms, at)
        at = call.end_ms
        chain.calls.append(call)
    return chain


def _call(row: dict[str, Any], position: int, size: int, offset_ms: float, at: float) -> Call:
    start, api, think, ttft = (number(row.get(name)) for name in ("t", "api_time", "think_time", "ttft"))
    hashes = row.get("hash_ids")
    stop = row.get("stop")
    return Call(
        number=position,
        start_ms=at + (think or 0.0) * 1000 if start is None else offset_ms + start * 1000,
        api_ms=(api or 0.0) * 1000,
        think_ms=None if think is None else think * 1000,
        ttft_ms=None if ttft is None else ttft * 1000,
        tokens=size,
        output=tokens(row.get("out")) or 0,
        blocks=[b for h in hashes if (b := _block(h)) is not None] if isinstance(hashes, list) else [],
        model=row["model"] if isinstance(row.get("model"), str) else None,
        stream=row.get("type") != "n",
        input_types=texts(row.get("input_types")),
        output_types=texts(row.get("output_types")),
        stop=stop if isinstance(stop, str) else "",
    )


def _block(value: Any) -> Block | None:
    """Hashes beyond 2^53 become text: not every JSON reader keeps such integers."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if isinstance(value, int):
        return value if 0 <= value < _SAFE_INT else f"{value:x}"
    return value


def _marker(chain: Chain, row: dict[str, Any], offset_ms: float, where: str, report: ImportReport) -> None:
    nested = row.get("requests")
    rows = nested if isinstance(nested, list) else []
    stamps = [t for r in rows if isinstance(r, dict) and (t := number(r.get("t"))) is not None]
    done = number(row.get("t"))
    duration = number(row.get("duration_ms"), _MOST_SECONDS * 1000)
    relative = bool(stamps) and stamps[0] == 0
    done_ms = None if done is None else offset_ms + done * 1000
    spawn_ms = max(0.0, done_ms - duration) if done_ms is not None and duration is not None else None
    if spawn_ms is None:
        # without a duration: the first nested call, when its time is absolute; else as early as is known
        start = chain.calls[-1].end_ms if chain.calls else offset_ms
        spawn_ms = offset_ms + stamps[0] * 1000 if stamps and not relative else start
        report.estimate("start of a subagent, which the file does not have")
    inner = chain_of(rows, spawn_ms if relative else offset_ms, where, report)
    if not inner.calls:
        report.ignore("subagents without calls")
        report.leave_out("calls of subagents below a subagent without calls", count_calls(inner))
        return
    agent, kind = row.get("agent_id"), row.get("subagent_type")
    chain.markers.append(
        Marker(
            agent_id=agent if isinstance(agent, str) and agent else f"agent-{len(chain.markers)}",
            kind=kind if isinstance(kind, str) and kind else None,
            spawn_ms=spawn_ms,
            done_ms=max(c.end_ms for c in inner.calls) if done_ms is None else done_ms,
            tool_tokens=tokens(row.get("tool_tokens")) or 0,
            system_tokens=tokens(row.get("system_tokens")) or 0,
            chain=inner,
        )
    )


def count_calls(chain: Chain) -> int:
    """Calls of a chain and of all below it."""
    return len(chain.calls) + sum(count_calls(m.chain) for m in chain.markers)


def common(a: Call, b: Call) -> int:
    """Leading blocks that two prompts share."""
    n = 0
    for x, y in zip(a.blocks, b.blocks, strict=False):
        if x != y:
            break
        n += 1
    return n


def lanes_of(calls: list[Call]) -> list[list[Call]]:
    """Calls of one chain, split where calls on other prompts are mixed in; the main line comes first.

    Some recordings put calls beside the conversation (titles, other models) into its list. Such a call keeps less than
    half of the prompt before it, and a later call takes the old prompt up again: it gets a lane of its own, so that the
    conversation's prefix holds across it. Without a way back it is a break in the lane (compaction, clearing).
    """
    last_use: dict[tuple[int, Block], int] = {}
    for at, call in enumerate(calls):
        for depth, block in enumerate(call.blocks):
            last_use[depth, block] = at
    lanes: list[list[Call]] = []
    current = 0
    for at, call in enumerate(calls):
        if lanes:
            current = _lane_for(call, at, lanes, current, last_use)
        if not lanes or current == len(lanes):
            lanes.append([])
        lanes[current].append(call)
    return lanes


def _lane_for(
    call: Call, at: int, lanes: list[list[Call]], current: int, last_use: dict[tuple[int, Block], int]
) -> int:
    ends = [lane[-1] for lane in lanes]
    kept = [common(end, call) for end in ends]
    best = max(range(len(lanes)), key=lambda i: (kept[i], i == current))
    if kept[best] and kept[best] == len(ends[best].blocks):
        return best  # it goes on where that lane stopped
    end = ends[current]
    if 2 * kept[current] >= len(end.blocks) or not end.blocks:
        return current
    taken_up = last_use.get((len(end.blocks) - 1, end.blocks[-1]), -1) > at
    return len(lanes) if taken_up else current
