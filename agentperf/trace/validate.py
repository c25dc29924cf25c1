"""Everything that is wrong with a trace set, in one pass over it.

`docs/trace-format.md` lists the rules. Memory grows with ids, segments and block hashes, not with content.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from agentperf.trace.codec import RECORD_KINDS, LineError, check_version, decode_any, decode_record, parse_fields
from agentperf.trace.io import PlaceError, Progress, explained, iter_lines, resolve, trace_files
from agentperf.trace.model import Blob, Counts, Header, Request, Session
from agentperf.trace.prompts import Dependencies, Prompt, PromptLog
from agentperf.trace.rules import (
    Finding,
    Severity,
    blob_rules,
    header_rules,
    request_rules,
    secrets,
    session_rules,
    type_faults,
    unit_names,
    unknown_fields,
)

_FOREIGN_AFTER = 20
"""A file whose first lines, this many, hold neither a header nor any record is taken for no trace at all."""


class Problem(Struct, kw_only=True, frozen=True):
    """One thing that is wrong: `field` is a path in the record of that line ("" for the line as a whole)."""

    file: str
    line: int
    field: str
    message: str
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: {self.field}: " if self.field else f"{self.file}:{self.line}: "
        return f"{where}{'warning: ' if self.severity == 'warning' else ''}{self.message}"


def validate(path: str | Path, progress: Progress | None = None) -> list[Problem]:
    """Problems of a file or of all files of a folder, by file and line. Raises TraceError when there are none."""
    problems: list[Problem] = []
    taken: dict[tuple[str, str], str] = {}
    for file in trace_files(resolve(path)):
        check = _FileCheck(file, taken)
        check.run(progress)
        problems += sorted(check.problems, key=lambda p: p.line)
    return problems


class _SessionState(Struct):
    """What is remembered of a session. `prompt` is None before its first request and after an unreadable one."""

    line: int
    root: str
    parent: str | None = None
    fork_of: str | None = None
    known_tokens: int = 0
    next_index: int = 0
    prompt: Prompt | None = None
    lost: bool = False
    largest: int = 0
    last_request: str | None = None


_Kind = Literal["session", "request", "system", "tools"]


class _Reference(Struct):
    """An id that a record names: it must exist, in the tree `root`, and be a request of session `owner` if given."""

    line: int
    field: str
    kind: _Kind
    id: str
    root: str | None = None
    owner: str | None = None


class _FileCheck:
    """The state of one pass over one file."""

    def __init__(self, file: Path, taken: dict[tuple[str, str], str]) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._taken = taken  # ids over all files of the folder
        self._header: Header | None = None
        self._line = 0
        self._sessions: dict[str, _SessionState] = {}
        self._requests: dict[str, tuple[int, str]] = {}  # id -> line, session
        self._prompts: dict[str, Prompt] = {}
        self._blobs: dict[str, str] = {}  # id -> type
        self._wanted: list[_Reference] = []
        self._log = PromptLog(block_size=None)
        self._waits = Dependencies()
        self._counts = Counts()
        self._first_prefixes: list[tuple[int, str, int]] = []  # line, request, prefix_tokens_ideal
        self._redistributable = False
        self._complete = True
        self._unreadable = False

    def run(self, progress: Progress | None) -> None:
        """Read the file to its end and gather problems."""
        records = 0
        first = True
        try:
            for number, line, ended in iter_lines(self._file, progress):
                self._line = number
                records += self._take(line, first=first, ended=ended)
                first = False
                if self._unreadable or (number >= _FOREIGN_AFTER and records == 0):
                    return
        except PlaceError as e:
            self._line = e.line
            self._say(e.field, e.what)
        if first:
            self._line = 1
            if not self.problems:
                self._say("", "the file is empty, expected a header")
            return
        self._end()

    def _say(self, field: str, message: str, severity: Severity = "error", line: int | None = None) -> None:
        where = self._line if line is None else line
        self.problems.append(Problem(file=str(self._file), line=where, field=field, message=message, severity=severity))

    def _say_all(self, findings: Iterable[Finding]) -> None:
        for field, message, severity in findings:
            self._say(field, message, severity)

    def _take(self, line: bytes, *, first: bool, ended: bool) -> bool:
        """One line; whether it is a record of the format, good or bad."""
        fields: dict[str, Any] = {}
        try:
            raw = parse_fields(line)
            headless = first and self._lacks_header(raw)
            if self._unreadable:
                return False
            fields = decode_any(line)
            record = decode_record(line, first=False if self._header else None)
        except LineError as e:
            if not (fields and first and headless):
                self._broken(fields, e, first=first, ended=ended)
            return fields.get("kind") in RECORD_KINDS
        self._common(fields)
        if isinstance(record, Header):
            self._take_header(record)
        elif isinstance(record, Blob):
            self._take_blob(record)
        elif isinstance(record, Session):
            self._take_session(record)
        else:
            self._take_request(record)
        return True

    def _lacks_header(self, raw: dict[str, msgspec.Raw]) -> bool:
        """Report a first line that is not this version's header; of another version nothing more can be said."""
        try:
            check_version(raw)
        except LineError as e:
            field, what, _ = explained(e, first=True, ended=True)
            self._say(field, what)
            self._unreadable = field in ("format", "version")
            return True
        return False

    def _broken(self, fields: dict[str, Any], error: LineError, *, first: bool, ended: bool) -> None:
        """Report an unreadable record in full, and keep its ids so that nothing else is reported because of it."""
        findings = list(type_faults(fields)) if fields else []
        if findings:
            self._say_all(findings)
        else:
            field, what, _ = explained(error, first=first, ended=ended)
            self._say(field, what)
        self._complete = False
        kind = fields.get("kind")
        ids = {k: v for k in ("id", "session_id", "request_id") if isinstance(v := fields.get(k), str)}
        if kind == "header":
            self._redistributable = fields.get("redistributable") is True
        elif kind == "blob" and "id" in ids:
            self._blobs.setdefault(ids["id"], "")
        elif kind == "session" and "session_id" in ids:
            root, parent = fields.get("root_session_id"), fields.get("parent_session_id")
            state = _SessionState(
                line=self._line,
                root=root if isinstance(root, str) else ids["session_id"],
                parent=parent if isinstance(parent, str) else None,
                lost=True,
            )
            self._sessions.setdefault(ids["session_id"], state)
        elif kind == "request" and len(ids.keys() & {"session_id", "request_id"}) == 2:
            self._requests.setdefault(ids["request_id"], (self._line, ids["session_id"]))
            if owner := self._sessions.get(ids["session_id"]):
                owner.next_index += 1
                owner.lost, owner.last_request = True, ids["request_id"]

    def _common(self, fields: dict[str, Any]) -> None:
        self._say_all(unknown_fields(fields))
        self._say_all(unit_names(fields))
        if fields["kind"] == "header":
            self._redistributable = fields.get("redistributable") is True
        if self._redistributable:
            self._say_all(secrets(fields))

    def _claim(self, kind: str, id_: str) -> bool:
        taken_at = self._taken.get((kind, id_))
        if taken_at:
            self._say(f"{kind}_id", f"{id_!r} is already taken at {taken_at}")
            return False
        self._taken[kind, id_] = f"{self._file}:{self._line}"
        return True

    def _want(
        self, field: str, kind: _Kind, id_: str | None, root: str | None = None, owner: str | None = None
    ) -> None:
        if id_ is not None:
            self._wanted.append(_Reference(self._line, field, kind, id_, root, owner))

    def _take_header(self, header: Header) -> None:
        self._say_all(header_rules(header))
        self._header = header
        self._log.block_size = header.block_size

    def _take_blob(self, blob: Blob) -> None:
        if blob.id in self._blobs:
            self._say("id", f"blob {blob.id} is already in this file")
        self._blobs[blob.id] = blob.type
        self._say_all(blob_rules(blob))

    def _take_session(self, session: Session) -> None:
        self._say_all(session_rules(session))
        self._counts.sessions += 1
        self._want("root_session_id", "session", session.root_session_id)
        self._want("parent_session_id", "session", session.parent_session_id)
        self._want("system_ref", "system", session.system_ref)
        self._want("tools_ref", "tools", session.tools_ref)
        spawn = session.spawn
        if spawn is not None:
            root, parent = session.root_session_id, session.parent_session_id
            self._want("spawn.by_request_id", "request", spawn.by_request_id, root, parent)
        self._claim("session", session.session_id)
        state = _SessionState(
            line=self._line,
            root=session.root_session_id,
            parent=session.parent_session_id,
            fork_of=spawn.by_request_id if spawn and spawn.kind == "fork" else None,
            known_tokens=max(0, session.system_tokens or 0) + max(0, session.tools_tokens or 0),
            last_request=spawn.by_request_id if spawn else None,
        )
        self._sessions.setdefault(session.session_id, state)

    def _take_request(self, request: Request) -> None:
        self._say_all(request_rules(request, self._header.content if self._header else "mixed"))
        self._counts.requests += 1
        self._counts.input_tokens += request.input_tokens
        self._counts.output_tokens += request.output_tokens
        state = self._sessions.get(request.session_id)
        root = state.root if state else None
        for i, edge in enumerate(request.depends_on or ()):
            self._want(f"depends_on[{i}].request_id", "request", edge.request_id, root)
        for i, tool in enumerate(request.tools_before):
            self._want(f"tools_before[{i}].child_session_id", "session", tool.child_session_id)
        unique = self._claim("request", request.request_id)
        self._requests.setdefault(request.request_id, (self._line, request.session_id))
        if state is None:
            self._say("session_id", f"no session {request.session_id!r} on an earlier line of this file")
            return
        if request.index != state.next_index:
            self._say("index", f"expected {state.next_index}, got {request.index}: a session's requests come in order")
        if request.depends_on is None:
            waits = [state.last_request] if state.last_request else []
        else:
            waits = [d.request_id for d in request.depends_on]
        if unique:
            self._waits.edges[request.request_id] = waits
        self._take_prompt(request, state)
        state.next_index, state.last_request = request.index + 1, request.request_id

    def _take_prompt(self, request: Request, state: _SessionState) -> None:
        fork = self._prompts.get(state.fork_of) if state.fork_of else None
        lost = state.lost or (state.next_index == 0 and state.fork_of is not None and fork is None)
        parent = fork if state.prompt is None and not state.lost else state.prompt
        scope = state.root if self._header and self._header.hash_scope == "session" else ""
        prompt, faults = self._log.add(request, parent, scope)
        for field, what in faults:
            if not (lost and field.startswith("input.")):
                self._say(field, what)
        # helper calls (titles, summaries) go without the agent's system prompt and tools
        if request.trigger not in ("side", "compaction") and state.known_tokens > max(0, request.input_tokens):
            what = f"{request.input_tokens}, but the session's system prompt and tools hold {state.known_tokens}"
            self._say("input_tokens", what)
        ideal = request.prefix_tokens_ideal or 0
        if state.prompt is None or lost:
            self._first_prefixes.append((self._line, request.request_id, ideal))
        elif ideal > max(state.largest, parent.total_tokens if parent else 0):
            what = f"{ideal}, but no earlier prompt of the session with its answer is longer than {state.largest}"
            self._say("prefix_tokens_ideal", what)
        state.lost = False
        state.prompt = self._prompts[request.request_id] = prompt
        state.largest = max(state.largest, prompt.total_tokens, parent.total_tokens if parent else 0)

    def _end(self) -> None:
        """What only the whole file shows."""
        for reference in self._wanted:
            self._check_reference(reference)
        self._check_trees()
        self._check_waits()
        totals = sorted((p.total_tokens, id_) for id_, p in self._prompts.items())[-2:]
        for line, id_, ideal in self._first_prefixes:
            most = max((t for t, other in totals if other != id_), default=0)
            scope = self._header.hash_scope if self._header else None
            if ideal > most and scope != "global":
                what = f"{ideal}, but no other prompt of the file with its answer is longer than {most}"
                self._say("prefix_tokens_ideal", what, line=line)
        announced = self._header.counts if self._header else Counts()
        for name in ("sessions", "requests", "input_tokens", "output_tokens"):
            said, found = getattr(announced, name), getattr(self._counts, name)
            if self._complete and said != found and announced != Counts():
                self._say(f"counts.{name}", f"the header announces {said}, the file holds {found}", line=1)

    def _check_reference(self, ref: _Reference) -> None:
        fault = None
        if ref.kind == "session":
            if ref.id not in self._sessions:
                fault = f"no session {ref.id!r} in this file"
        elif ref.kind == "request":
            fault = self._request_fault(ref)
        elif ref.id not in self._blobs:
            fault = f"no blob {ref.id!r} in this file"
        elif self._blobs[ref.id] not in ("", ref.kind):
            fault = f"blob {ref.id!r} is of type {self._blobs[ref.id]}, not {ref.kind}"
        if fault:
            self._say(ref.field, fault, line=ref.line)

    def _request_fault(self, ref: _Reference) -> str | None:
        if ref.id not in self._requests:
            return f"no request {ref.id!r} in this file"
        session_id = self._requests[ref.id][1]
        if ref.owner is not None and session_id != ref.owner:
            return f"request {ref.id!r} belongs to session {session_id!r}, not to the parent {ref.owner!r}"
        other = self._sessions.get(session_id)
        if ref.root is not None and other is not None and other.root != ref.root:
            return f"request {ref.id!r} belongs to another tree, {other.root!r}"
        return None

    def _check_trees(self) -> None:
        for id_, state in self._sessions.items():
            parent = self._sessions.get(state.parent) if state.parent and state.parent != id_ else None
            if parent is None:
                continue
            if parent.root != state.root and state.root in self._sessions:
                what = f"{state.root!r}, but its parent's is {parent.root!r}"
                self._say("root_session_id", what, line=state.line)
            seen = {id_}
            at: str | None = state.parent
            while at is not None and at not in seen:
                seen.add(at)
                at = self._sessions[at].parent if at in self._sessions else None
            if at == id_:
                self._say("parent_session_id", "the session is its own ancestor", line=state.line)

    def _check_waits(self) -> None:
        for cycle in self._waits.cycles():
            line = self._requests[cycle[0]][0]
            self._say("depends_on", f"waits for itself: {' -> '.join([*cycle, cycle[0]])}", line=line)
