"""Records collected into one trace set, with the checks that need more than one line; several files become one set."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from agentperf.errors import TraceError
from agentperf.trace.codec import LineError, blob_id
from agentperf.trace.model import Blob, Counts, Header, Request, Session, SessionTrace, Shape, TraceRecord, TraceSet

IdKind = Literal["session", "request", "blob"]


@dataclass(slots=True)
class Part:
    """What one file holds."""

    file: str
    header: Header
    blobs: dict[str, Any] = field(default_factory=dict)
    blob_extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    sessions: list[SessionTrace] = field(default_factory=list)


class Builder:
    """Takes the records of one file after the other and checks what holds between them.

    With `keep=False` it only checks and counts, so memory is bounded by ids. `add` raises LineError for the record at
    hand, `finish` TraceError for what was never found.
    """

    def __init__(self, *, keep: bool = True) -> None:
        self.parts: list[Part] = []
        self._keep = keep
        self._file = ""
        self._seen: dict[tuple[IdKind, str], str] = {}  # over all files, for duplicates
        self._here: set[tuple[IdKind, str]] = set()  # in this file, for references
        self._wanted: list[tuple[IdKind, str, int, str]] = []
        self._open: dict[str, SessionTrace] = {}
        self._next_index: Counter[str] = Counter()
        self._counts = Counts()

    def start(self, file: str) -> None:
        """Begin a file."""
        self._file = file
        self._here.clear()
        self._wanted.clear()
        self._open.clear()
        self._next_index.clear()
        self._counts = Counts()

    def counts(self) -> Counts:
        """Totals of the file so far."""
        return self._counts

    def add(self, line: int, record: TraceRecord) -> None:
        """Take the next record of the file."""
        if isinstance(record, Header):
            self.parts.append(Part(file=self._file, header=record))
        elif isinstance(record, Blob):
            self._add_blob(line, record)
        elif isinstance(record, Session):
            self._add_session(line, record)
        else:
            self._add_request(line, record)

    def _add_blob(self, line: int, blob: Blob) -> None:
        if blob.id != blob_id(blob.type, blob.value):
            raise LineError("id", f"the content has another address: {blob_id(blob.type, blob.value)}")
        if ("blob", blob.id) in self._here:
            raise LineError("id", f"blob {blob.id} is already in this file")
        self._here.add(("blob", blob.id))
        if self._keep:
            self.parts[-1].blobs[blob.id] = blob.value
            if blob.extra:
                self.parts[-1].blob_extra[blob.id] = blob.extra

    def _add_session(self, line: int, session: Session) -> None:
        self._claim("session", session.session_id, line)
        self._want("session", session.root_session_id, line, "root_session_id")
        self._want("session", session.parent_session_id, line, "parent_session_id")
        self._want("blob", session.system_ref, line, "system_ref")
        self._want("blob", session.tools_ref, line, "tools_ref")
        if session.spawn:
            self._want("request", session.spawn.by_request_id, line, "spawn.by_request_id")
        self._counts.sessions += 1
        if self._keep:
            item = SessionTrace(session=session, requests=[])
            self._open[session.session_id] = item
            self.parts[-1].sessions.append(item)

    def _add_request(self, line: int, request: Request) -> None:
        if ("session", request.session_id) not in self._here:
            raise LineError("session_id", f"no session {request.session_id!r} on an earlier line of this file")
        expected = self._next_index[request.session_id]
        if request.index != expected:
            raise LineError("index", f"expected {expected}, got {request.index}: a session's requests come in order")
        self._claim("request", request.request_id, line)
        for i, edge in enumerate(request.depends_on or ()):
            self._want("request", edge.request_id, line, f"depends_on[{i}].request_id")
        for i, tool in enumerate(request.tools_before):
            self._want("session", tool.child_session_id, line, f"tools_before[{i}].child_session_id")
        self._next_index[request.session_id] += 1
        self._counts.requests += 1
        self._counts.input_tokens += request.input_tokens
        self._counts.output_tokens += request.output_tokens
        if self._keep:
            self._open[request.session_id].requests.append(request)

    def _claim(self, kind: IdKind, id_: str, line: int) -> None:
        if (kind, id_) in self._seen:
            raise LineError(f"{kind}_id", f"{id_!r} is already taken at {self._seen[kind, id_]}")
        self._seen[kind, id_] = f"{self._file}:{line}"
        self._here.add((kind, id_))

    def _want(self, kind: IdKind, id_: str | None, line: int, name: str) -> None:
        if id_ is not None and (kind, id_) not in self._here:
            self._wanted.append((kind, id_, line, name))

    def finish(self) -> None:
        """End a file: everything referred to must be in it, and the header's counts must be those of the file."""
        for kind, id_, line, name in self._wanted:
            if (kind, id_) not in self._here:
                raise TraceError(f"{self._file}:{line}: {name}: no {kind} {id_!r} in this file")
        announced = self.parts[-1].header.counts
        for name in ("sessions", "requests", "input_tokens", "output_tokens"):
            said, found = getattr(announced, name), getattr(self._counts, name)
            if said != found and announced != Counts():
                what = f"the header announces {said}, the file holds {found}"
                raise TraceError(f"{self._file}:1: counts.{name}: {what}", "the file is cut off or was edited")


def merge_parts(name: str, parts: list[Part]) -> TraceSet:
    """One set of the files of a folder, in the order of their names; `name` becomes its id when there are several."""
    if len(parts) == 1:
        one = parts[0]
        return TraceSet(header=one.header, blobs=one.blobs, blob_extra=one.blob_extra, sessions=one.sessions)
    header = _merged_header(name, parts)
    if header.hash_scope in (None, "file"):
        _separate_hashes(parts)
    return TraceSet(
        header=header,
        blobs={k: v for p in parts for k, v in p.blobs.items()},
        blob_extra={k: v for p in parts for k, v in p.blob_extra.items()},
        sessions=[s for p in parts for s in p.sessions],
    )


def _merged_header(name: str, parts: list[Part]) -> Header:
    headers = [p.header for p in parts]
    licenses = sorted({h.license for h in headers if h.license})
    contents = {h.content for h in headers}
    files = [{"file": p.file.replace("\\", "/").rpartition("/")[2], **_as_dict(p.header)} for p in parts]
    return Header(
        trace_set_id=name,
        content=contents.pop() if len(contents) == 1 else "mixed",
        # a file without a licence leaves the whole without one: nobody may assume that the others' covers it
        license=" AND ".join(licenses) if all(h.license for h in headers) else None,
        attribution="; ".join(dict.fromkeys(h.attribution for h in headers if h.attribution)) or None,
        redistributable=all(h.redistributable for h in headers),
        source={"files": files},
        tokenizer=_same(parts, "tokenizer", strict=False),
        block_size=_same(parts, "block_size"),
        hash_scope=_same(parts, "hash_scope"),
        hash_algo=_same(parts, "hash_algo"),
    )


def _as_dict(header: Header) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(header)
    extra = fields.pop("extra", {})
    return {k: v for k, v in (fields | extra).items() if k != "kind"}


def _same(parts: list[Part], name: str, *, strict: bool = True) -> Any:
    """The value that every file with one agrees on; without agreement an error, or None when not strict."""
    given = [(p.file, v) for p in parts if (v := getattr(p.header, name)) is not None]
    for file, value in given:
        if value != given[0][1]:
            if not strict:
                return None
            raise TraceError(
                f"{file}:1: {name}: {value!r}, but {given[0][0]} has {given[0][1]!r}",
                "block hashes of different kinds cannot be compared: keep these files in separate folders",
            )
    return given[0][1] if given else None


def _separate_hashes(parts: list[Part]) -> None:
    """Equal hashes of different files mean nothing: prefix each with the number of its file."""
    for number, part in enumerate(parts):
        for session in part.sessions:
            for request in session.requests:
                if isinstance(request.input, Shape):
                    request.input.block_hashes = [f"{number}.{h}" for h in request.input.block_hashes]
