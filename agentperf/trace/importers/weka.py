"""weka / kv-cache-tester traces (`trace_*.json`, also SemiAnalysis' re-publications) -> trace set without content.

Each prompt is known by its size and the hashes of its 64-token blocks. Waits are `think_time`: whole seconds, derived
from times of the API by the recorder, and 10 to 30 times as long as tool waits measured elsewhere. Subagents run beside
their siblings, from `t - duration` on, and the next call of their parent after `t` waits for them. Prompts longer than
a model's context and answers of length 0 are kept; what fits is decided when a run is planned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from agentperf.errors import TraceError
from agentperf.trace.importers.result import (
    ImportOptions,
    ImportReport,
    ImportResult,
    SourceFile,
    any_file,
    finish,
    read_bytes,
    read_head,
    source_file,
)
from agentperf.trace.importers.weka_calls import Call, Chain, Marker, chain_of, count_calls, lanes_of, tokens
from agentperf.trace.importers.weka_shape import Blocks, Line, shapes
from agentperf.trace.model import (
    DelayParts,
    Dependency,
    Recorded,
    Request,
    Session,
    SessionTrace,
    Shape,
    Spawn,
    Trigger,
)

NAME = "weka"
DEFAULT_BLOCK = 64
_SLACK_MS = 1000.0
"""Times are whole seconds: two that differ by one may be equal."""


def detect(path: Path) -> bool:
    """Whether the file, or a file in the folder, looks like a trace."""
    return any_file(path, "*.json", _fits)


def _fits(path: Path) -> bool:
    head = read_head(path)
    return head.lstrip()[:1] == b"{" and b'"hash_ids"' in head and b'"requests"' in head


def read(paths: Sequence[Path], options: ImportOptions | None = None) -> ImportResult:
    """Import files and folders as one set. Raises TraceError when no file is a trace, or block sizes differ."""
    options = options or ImportOptions()
    report = ImportReport(format=NAME)
    sources: list[SourceFile] = []
    sessions: list[SessionTrace] = []
    sizes: dict[int, str] = {}
    scopes: set[str] = set()
    names: set[str] = set()
    for path, name in _files(paths):
        data = read_bytes(path)
        document = _document(name, data, report)
        if document is None:
            continue
        sizes.setdefault(tokens(document.get("block_size")) or DEFAULT_BLOCK, name)
        scopes.add("global" if document.get("hash_id_scope") == "global" else "session")
        sources.append(source_file(name, data))
        sessions += _Tree(document, name, names, report).sessions()
    if not sources:
        where = ", ".join(p.name for p in paths) or "nothing"
        raise TraceError(f"{where}: no weka trace", "give trace_*.json files or a folder that holds them")
    if len(sizes) > 1 or len(scopes) > 1:
        what = f"block sizes {sorted(sizes)}" if len(sizes) > 1 else "scopes of block hashes"
        raise TraceError(f"{', '.join(sizes.values())}: {what} differ", "import them into separate trace sets")
    if not sessions:
        raise TraceError(f"{sources[0].name}: no call in any trace")
    header: dict[str, Any] = {
        "trace_set_id": paths[0].name.removesuffix(".json"),
        "content": "shape",
        "block_size": next(iter(sizes)),
        "hash_scope": scopes.pop(),
        "source": {"tool": "kv-cache-tester"},
    }
    return finish(sessions, sources, report, options, header)


def _files(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    found: dict[Path, str] = {}
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*.json")):
                found.setdefault(file.resolve(), file.relative_to(path).as_posix())
        elif path.is_file():
            found.setdefault(path.resolve(), path.name)
        else:
            raise TraceError(f"{path}: no such file")
    return [(file, name) for file, name in found.items() if file.is_file()]


def _document(name: str, data: bytes, report: ImportReport) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(data.decode(errors="replace"))
    except (msgspec.MsgspecError, RecursionError, ValueError) as e:
        report.ignore("files that are not JSON")
        report.warn(name, 1, f"not valid JSON, or cut off: {e}")
        return None
    if not isinstance(value, dict) or not isinstance(value.get("requests"), list):
        report.ignore("files that are no trace")
        report.warn(name, 1, "no list of requests; the file is skipped")
        return None
    return value


@dataclass(slots=True)
class _Run:
    """One chain on its way to sessions: a main conversation or a subagent."""

    names: list[str]
    """Session ids of its lanes."""
    chain: Chain
    system_tokens: int
    tool_tokens: int
    parent: "_Run | None" = None
    marker: Marker | None = None
    lanes: list[list[Call]] = field(default_factory=list)
    ids: dict[int, str] = field(default_factory=dict)
    """Request id by position in the list."""

    @property
    def main(self) -> list[Call]:
        """The conversation itself."""
        return self.lanes[0]

    def before(self, number: int) -> Call:
        """The call of the conversation that a position in the list follows."""
        return [c for c in self.main if c.number < number][-1]


class _Tree:
    """One file: a main session, its subagents, and lanes of calls beside the conversation."""

    def __init__(self, document: dict[str, Any], file: str, names: set[str], report: ImportReport) -> None:
        self._report = report
        self._file = file
        self._names = names
        self._blocks = Blocks(tokens(document.get("block_size")) or DEFAULT_BLOCK)
        given = document.get("id")
        self._name = given if isinstance(given, str) and given else file.rsplit("/", 1)[-1].removesuffix(".json")
        self._chain = chain_of(document["requests"], 0.0, file, report)
        self._sizes = tokens(document.get("system_tokens")) or 0, tokens(document.get("tool_tokens")) or 0

    def sessions(self) -> list[SessionTrace]:
        """All sessions of the file, the main one first."""
        if not self._chain.calls:
            self._report.leave_out("calls of subagents whose main session has none", count_calls(self._chain))
            return []
        root = _Run([_unique(self._name, self._names)], self._chain, *self._sizes)
        runs: list[_Run] = []
        self._prepare(root, runs)
        out = []
        for run in runs:
            joins = _joins(run, [r for r in runs if r.parent is run])
            out += [self._session(run, lane, joins, root.names[0]) for lane in range(len(run.lanes))]
        return out

    def _prepare(self, run: _Run, runs: list[_Run]) -> None:
        """Lanes and ids of a chain and of all below it."""
        runs.append(run)
        for call in run.chain.calls:
            self._blocks.check(call, self._report)
        run.lanes = lanes_of(run.chain.calls)
        run.names += [_unique(f"{run.names[0]}/side-{n}", self._names) for n in range(1, len(run.lanes))]
        for name, calls in zip(run.names, run.lanes, strict=True):
            run.ids |= {c.number: f"{name}:{i}" for i, c in enumerate(calls)}
        self._report.note("calls beside the conversation, in sessions of their own", sum(map(len, run.lanes[1:])))
        for marker in run.chain.markers:
            name = _unique(f"{run.names[0]}/{marker.agent_id}", self._names)
            self._prepare(_Run([name], marker.chain, marker.system_tokens, marker.tool_tokens, run, marker), runs)

    def _session(self, run: _Run, lane: int, joins: dict[int, list[_Run]], root_id: str) -> SessionTrace:
        calls = run.lanes[lane]
        system, tool = self._lead(run, lane)
        session = Session(
            session_id=run.names[lane],
            root_session_id=root_id,
            agent={"role": "side" if lane else (run.marker.kind or "subagent") if run.marker else "main"},
            model={"name": calls[0].model} if calls[0].model else {},
            system_tokens=system or None,
            tools_tokens=tool or None,
            source_ref={"file": self._file},
        )
        if lane:
            session.parent_session_id = run.names[0]
            session.spawn = Spawn(by_request_id=run.ids[run.before(calls[0].number).number], background=True)
        elif run.parent is not None and run.marker is not None:
            session.parent_session_id = run.parent.names[0]
            by = _spawner(run.parent, run.marker)
            session.spawn = Spawn(by_request_id=run.parent.ids[by.number], background=_beside(run.parent, run.marker))
        made = shapes(Line(calls, system, tool, self._blocks.size), self._blocks, self._report)
        requests: list[Request] = []
        largest = 0
        for at, (shape, event) in enumerate(made):
            request = self._request(run, lane, at, joins, shape)
            request.prefix_event = event
            ideal = calls[at].shared * self._blocks.size
            # what is shared with other sessions of the tree counts as far as it is no longer than the own prompts
            request.prefix_tokens_ideal = min(ideal, largest) if at else ideal
            largest = max(largest, calls[at].tokens + calls[at].output)
            requests.append(request)
        return SessionTrace(session=session, requests=requests)

    def _lead(self, run: _Run, lane: int) -> tuple[int, int]:
        """Sizes of system prompt and tools at the start of each prompt of a lane; (0, 0) where they are not there."""
        lead = run.system_tokens + run.tool_tokens
        calls = run.lanes[lane]
        if lane and min(c.shared for c in calls) * self._blocks.size < lead:
            return 0, 0  # another prompt, which does not begin as the conversation does
        if lead and min(c.tokens for c in calls) <= lead:
            self._report.note(
                "sessions with a prompt too small for the system prompt and tools that the trace announces"
            )
            return 0, 0
        return run.system_tokens, run.tool_tokens

    def _request(self, run: _Run, lane: int, at: int, joins: dict[int, list[_Run]], shape: Shape) -> Request:
        call = run.lanes[lane][at]
        delay, edges = _wait(run, lane, at, joins)
        tools = "tool_result" in call.input_types
        trigger: Trigger = "tool" if tools else "user"
        if lane:
            trigger = "side"
        elif at == 0 and run.parent is not None:
            trigger = "subagent"
        parts = None
        if trigger in ("tool", "user") and at:
            parts = DelayParts(tool_ms=delay) if tools else DelayParts(human_ms=delay)
        if call.cancelled:
            self._report.note("calls that were cancelled, or whose answer the recorder did not understand")
        if not call.output:
            self._report.note("calls without output tokens")
        return Request(
            request_id=run.ids[call.number],
            session_id=run.names[lane],
            index=at,
            input=shape,
            input_tokens=call.tokens,
            input_tokens_source="provider",
            output_tokens=call.output,
            output_tokens_source="provider",
            depends_on=edges,
            delay_ms=delay,
            delay_parts=parts,
            delay_source="derived",
            trigger=trigger,
            recorded=_recorded(call),
            stream=call.stream,
            source_ref={"file": self._file, "request": call.number},
        )


def _wait(run: _Run, lane: int, at: int, joins: dict[int, list[_Run]]) -> tuple[float, list[Dependency] | None]:
    """(milliseconds from the end of the last dependency, dependencies; None for the default one)."""
    call = run.lanes[lane][at]
    ends: list[float] = []
    edges: list[Dependency] = []
    if lane:
        by = run.before(call.number)
        before = [run.lanes[lane][at - 1]] if at else []
        edges = [Dependency(request_id=run.ids[c.number]) for c in before]
        edges.append(Dependency(request_id=run.ids[by.number], type="turn" if at else "spawn"))
        ends = [c.end_ms for c in [*before, by]]
    elif at == 0:
        if run.parent is None or run.marker is None:
            return 0.0, None
        by = _spawner(run.parent, run.marker)
        edges = [Dependency(request_id=run.parent.ids[by.number], type="spawn")]
        ends = [by.end_ms]
    else:
        last = run.main[at - 1]
        beside = [
            [c for c in other if last.number < c.number < call.number and c.end_ms <= call.start_ms + _SLACK_MS]
            for other in run.lanes[1:]
        ]
        children = joins.get(call.number, [])
        joined = [(run.ids[calls[-1].number], calls[-1].end_ms) for calls in beside if calls]
        joined += [(r.ids[r.main[-1].number], r.marker.done_ms) for r in children if r.marker]
        if not joined:
            think = call.think_ms
            return round(max(0.0, call.start_ms - last.end_ms) if think is None else think, 3), None
        edges = [Dependency(request_id=run.ids[last.number])]
        edges += [Dependency(request_id=id_, type="join") for id_, _ in joined]
        ends = [last.end_ms, *(end for _, end in joined)]
    return round(max(0.0, call.start_ms - max(ends)), 3), edges


def _spawner(parent: _Run, marker: Marker) -> Call:
    """The call of the parent that a subagent follows: the last one that was complete when it started."""
    return next((c for c in reversed(parent.main) if c.end_ms <= marker.spawn_ms + _SLACK_MS), parent.main[0])


def _joins(run: _Run, children: list[_Run]) -> dict[int, list[_Run]]:
    """Position of a call -> subagents that it waits for: those complete before it and after the call before it."""
    found: dict[int, list[_Run]] = {}
    for child in children:
        if child.marker is None:
            continue
        by, done = _spawner(run, child.marker), child.marker.done_ms
        after = (c for c in run.main if c.number > by.number and c.start_ms >= done - _SLACK_MS)
        if (call := next(after, None)) is not None:
            found.setdefault(call.number, []).append(child)
    return found


def _beside(parent: _Run, marker: Marker) -> bool:
    """Whether the parent went on while the subagent ran."""
    return any(marker.spawn_ms + _SLACK_MS < c.start_ms < marker.done_ms - _SLACK_MS for c in parent.main)


def _recorded(call: Call) -> Recorded:
    return Recorded(
        output_tokens=call.output,
        ttft_ms=None if call.ttft_ms is None else round(call.ttft_ms, 3),
        duration_ms=round(call.api_ms, 3),
        start_ms=round(call.start_ms, 3),
        finish_reason=call.stop or None,
        model=call.model,
        cancelled=call.cancelled,
    )


def _unique(name: str, taken: set[str]) -> str:
    unique, n = name, 1
    while unique in taken:
        n += 1
        unique = f"{name}~{n}"
    taken.add(unique)
    return unique
