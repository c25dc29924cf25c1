"""What a trace set is made of, as figures: pure functions of a loaded set.

Quantiles are numpy's "linear". Which requests each figure is taken over is said at its field in `TraceStats`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from agentperf.trace.model import Append, Full, Request, Session, Shape, Splice, Tool, TraceSet

UNSPECIFIED = "unspecified"


class Quantiles(Struct, kw_only=True, frozen=True):
    """A distribution; with n = 0 every figure is None."""

    n: int
    mean: float | None = None
    min: float | None = None
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class ToolStats(Struct, kw_only=True, frozen=True):
    """Calls of one tool."""

    name: str
    calls: int
    failed: int
    p50_ms: float | None
    """Median duration of the calls whose duration is known."""


class TraceStats(Struct, kw_only=True, frozen=True):
    """Figures of a trace set. Durations in milliseconds, sizes in tokens, shares from 0 to 1."""

    trace_set_id: str
    digest: str
    content: str
    license: str | None
    attribution: str | None
    redistributable: bool
    description: str | None
    sessions: int
    trees: int
    subagents: int
    """Sessions with a parent."""
    requests: int
    input_tokens_total: int
    output_tokens_total: int
    languages: dict[str, int]
    """Root sessions by language, most frequent first."""
    turns: Quantiles
    """Requests of a session, over all sessions."""
    turns_main: Quantiles
    """Requests of a session, over root sessions."""
    input_tokens: Quantiles
    output_tokens: Quantiles
    append_tokens: Quantiles
    """Prompt beyond its ideal prefix, over requests that are not the first of their session."""
    reasoning_tokens: Quantiles
    """Over requests for which it is known."""
    tool_wait_ms: Quantiles
    """Over requests that follow tool calls and whose wait is known; spans that overlap count once."""
    human_wait_ms: Quantiles
    """Over requests that follow a person and whose wait is known, the first of a session left out."""
    tool_calls: int
    tools: list[ToolStats]
    """Most frequent first."""
    parallel_share: float | None
    """Of the requests that follow tool calls: those that follow two or more."""
    failed_tool_share: float | None
    ideal_prefix_hit: float | None
    """Token-weighted: sum of ideal prefixes / sum of prompts."""
    prefix_given_share: float | None
    """Share of requests whose ideal prefix is in the file; that of the others is derived (`ideal_prefixes`)."""
    input_sources: dict[str, int]
    output_sources: dict[str, int]
    delay_sources: dict[str, int]
    triggers: dict[str, int]


def describe(trace_set: TraceSet) -> TraceStats:
    """Figures of the set."""
    sessions = trace_set.sessions
    requests = [r for s in sessions for r in s.requests]
    prefixes = ideal_prefixes(trace_set)
    tools = [t for r in requests for t in r.tools_before]
    after_tools = [r for r in requests if r.tools_before]
    roots = [s for s in sessions if s.session.parent_session_id is None]
    prompt_tokens = sum(r.input_tokens for r in requests)
    return TraceStats(
        trace_set_id=trace_set.header.trace_set_id,
        digest=trace_set.digest,
        content=trace_set.header.content,
        license=trace_set.header.license,
        attribution=trace_set.header.attribution,
        redistributable=trace_set.header.redistributable,
        description=trace_set.header.description,
        sessions=len(sessions),
        trees=len({s.session.root_session_id for s in sessions}),
        subagents=len(sessions) - len(roots),
        requests=len(requests),
        input_tokens_total=prompt_tokens,
        output_tokens_total=sum(r.output_tokens for r in requests),
        languages=_counted(s.session.language or UNSPECIFIED for s in roots),
        turns=quantiles(len(s.requests) for s in sessions),
        turns_main=quantiles(len(s.requests) for s in roots),
        input_tokens=quantiles(r.input_tokens for r in requests),
        output_tokens=quantiles(r.output_tokens for r in requests),
        append_tokens=quantiles(r.input_tokens - prefixes[r.request_id] for r in requests if r.index > 0),
        reasoning_tokens=quantiles(r.reasoning_tokens for r in requests if r.reasoning_tokens is not None),
        tool_wait_ms=quantiles(_waits(requests, "tool")),
        human_wait_ms=quantiles(_waits(requests, "human")),
        tool_calls=len(tools),
        tools=tool_stats(tools),
        parallel_share=_share(sum(len(r.tools_before) > 1 for r in after_tools), len(after_tools)),
        failed_tool_share=_share(sum(t.is_error for t in tools), len(tools)),
        ideal_prefix_hit=_share(sum(prefixes.values()), prompt_tokens),
        prefix_given_share=_share(sum(r.prefix_tokens_ideal is not None for r in requests), len(requests)),
        input_sources=_counted(r.input_tokens_source for r in requests),
        output_sources=_counted(r.output_tokens_source for r in requests),
        delay_sources=_counted(r.delay_source for r in requests),
        triggers=_counted(r.trigger for r in requests),
    )


def quantiles(values: Iterable[float]) -> Quantiles:
    """The distribution of some numbers."""
    data = np.array(list(values), dtype=float)
    if not data.size:
        return Quantiles(n=0)
    p10, p50, p90, p95, p99 = (float(v) for v in np.percentile(data, [10, 50, 90, 95, 99]))
    low, high, mean = float(data.min()), float(data.max()), float(data.mean())
    return Quantiles(n=data.size, mean=mean, min=low, p10=p10, p50=p50, p90=p90, p95=p95, p99=p99, max=high)


def tool_stats(calls: Iterable[Tool]) -> list[ToolStats]:
    """Calls by name, most frequent first."""
    groups: dict[str, list[Tool]] = defaultdict(list)
    for call in calls:
        groups[call.name].append(call)
    rows = []
    for name, group in groups.items():
        known = [d for t in group if (d := duration_ms(t)) is not None]
        failed = sum(t.is_error for t in group)
        rows.append(ToolStats(name=name, calls=len(group), failed=failed, p50_ms=median(known) if known else None))
    return sorted(rows, key=lambda r: (-r.calls, r.name))


def duration_ms(tool: Tool) -> float | None:
    """How long a call took, from its duration or its start and end."""
    if tool.duration_ms is not None:
        return tool.duration_ms
    if tool.start_ms is not None and tool.end_ms is not None:
        return tool.end_ms - tool.start_ms
    return None


def _waits(requests: Iterable[Request], kind: str) -> Iterator[float]:
    for r in requests:
        if r.delay_source == "missing":
            continue
        if kind == "tool" and (r.tools_before or (r.trigger == "tool" and r.index > 0)):
            yield r.delay_parts.tool_ms if r.delay_parts else r.delay_ms
        elif kind == "human" and r.trigger == "user" and r.index > 0:
            yield r.delay_parts.human_ms if r.delay_parts else r.delay_ms


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items(), key=lambda kv: (-kv[1], kv[0])))


def ideal_prefixes(trace_set: TraceSet) -> dict[str, int]:
    """Tokens of each request's prompt that an unbounded prefix cache would hold, by request id.

    `prefix_tokens_ideal` where the file has it. Else by arithmetic on the prompt that it was made from (the request
    before it; for the first of a forked session the one that forked it):

    - append: the whole prompt of the parent (its answer is left out: whether it is found cached is up to the server)
    - shape: whole blocks in common with the parent where both have hashes, else the kept segments' tokens, else what
      leading segments have in common
    - full, splice: the parent's prompt, in the proportion of leading messages (by bytes of JSON) that are in common
    - a first request without a fork: system prompt and tools, if an earlier session of the product sent the same

    and never more than the prompt itself.
    """
    result: dict[str, int] = {}
    seen: set[tuple[Any, ...]] = set()
    prompts: dict[str, _Known] = {}
    forks = {s.session.spawn.by_request_id for s in trace_set.sessions if s.session.spawn}
    for item in trace_set.sessions:
        parent = _fork_parent(item.session, prompts)
        shared = _shared_start(item.session, seen)
        for request in item.requests:
            prompt = _Known.of(request, parent)
            common = shared if parent is None else _common(prompt, parent, trace_set.header.block_size)
            given = request.prefix_tokens_ideal
            result[request.request_id] = min(request.input_tokens, common) if given is None else given
            parent = prompt
            if request.request_id in forks:
                prompts[request.request_id] = prompt
    return result


class _Known(Struct):
    """A prompt as far as its file tells: messages' sizes and texts by hash, or segments, or blocks."""

    request: Request
    messages: tuple[tuple[int, int], ...] = ()  # (hash, bytes) of each
    segments: tuple[tuple[str, str, int], ...] = ()
    blocks: tuple[int | str, ...] = ()

    @classmethod
    def of(cls, request: Request, parent: "_Known | None") -> "_Known":
        given = request.input
        if isinstance(given, Shape):
            segments: tuple[tuple[str, str, int], ...] = tuple((s.role, s.kind, s.tokens) for s in given.segments)
            blocks = tuple(given.block_hashes)
            if parent and given.keep_segments:
                segments = parent.segments[: given.keep_segments] + segments
            if parent and given.keep_blocks:
                blocks = parent.blocks[: given.keep_blocks] + blocks
            return cls(request=request, segments=segments, blocks=blocks)
        encoded = [msgspec.json.encode(m) for m in given.messages]
        messages = tuple((hash(e), len(e)) for e in encoded)
        if parent and isinstance(given, Append):
            messages = parent.messages + messages
        elif parent and isinstance(given, Splice):
            messages = parent.messages[: given.keep_messages] + messages
        return cls(request=request, messages=messages)


def _common(prompt: _Known, parent: _Known, block_size: int | None) -> int:
    given, before = prompt.request.input, parent.request
    if isinstance(given, Append):
        return before.input_tokens
    if isinstance(given, Full | Splice):
        size = sum(n for _, n in parent.messages)
        same = sum(n for _, n in parent.messages[: _leading(prompt.messages, parent.messages)])
        return before.input_tokens * same // size if size else 0
    if prompt.blocks and parent.blocks and block_size:
        return _leading(prompt.blocks, parent.blocks) * block_size
    kept = _leading(prompt.segments, parent.segments) if given.keep_segments is None else given.keep_segments
    return sum(tokens for _, _, tokens in prompt.segments[:kept])


def _leading(a: tuple[Any, ...], b: tuple[Any, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _fork_parent(session: Session, prompts: dict[str, _Known]) -> _Known | None:
    if session.spawn is None or session.spawn.kind != "fork":
        return None
    return prompts.get(session.spawn.by_request_id)


def _shared_start(session: Session, seen: set[tuple[Any, ...]]) -> int:
    """Tokens of system prompt and tools that an earlier session of the same product has sent already."""
    tokens = (session.system_tokens or 0) + (session.tools_tokens or 0)
    key = (session.product, session.system_ref, session.tools_ref, session.system_tokens, session.tools_tokens)
    if key[:3] == (None, None, None):
        return 0
    shared = tokens if key in seen else 0
    seen.add(key)
    return shared
