"""Claude Code transcripts as lines, and lines as rounds: one round is one model call.

Facts this rests on (checked on recordings of 2.1.38, 2.1.39): one answer is written as several lines that share
`message.id`, with lines of tool results in between; the lines of a file are not in the order of their time stamps;
`usage` is on every line of an answer, and its `output_tokens` may be a placeholder taken at the start of the stream.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from agentperf.trace.importers.result import ImportReport

SYNTHETIC = "<synthetic>"
"""Model name of text that the client wrote itself, such as an error of the API."""

LineKind = Literal["user", "assistant", "boundary"]
Aux = Literal["compaction", "side"]
"""A call beside the conversation: it sends the conversation and an instruction, and leaves nothing in it."""
_BIGGEST = 1 << 53


@dataclass(slots=True)
class Line:
    """One line that matters: a user line, a part of an answer, or the mark of a compaction."""

    file: str
    number: int
    kind: LineKind
    data: dict[str, Any]
    at_ms: float
    """Milliseconds since the epoch; of the line before it when it has none of its own (`timed` False)."""
    timed: bool
    uuid: str | None
    parent: str | None
    is_root: bool
    """It says that nothing is before it."""
    aux: Aux | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The message in the line, empty when there is none."""
        found = self.data.get("message")
        return found if isinstance(found, dict) else {}

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """Content blocks; plain text counts as one text block."""
        content = self.message.get("content")
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        return typed_blocks(content)

    def flag(self, name: str) -> bool:
        """A boolean field of the line."""
        return self.data.get(name) is True


@dataclass(slots=True)
class Transcript:
    """What one file holds."""

    name: str
    stem: str
    lines: list[Line] = field(default_factory=list)
    parents: dict[str, str | None] = field(default_factory=dict)
    """Line id -> id of the line before it, for every kind of line."""
    session_ids: dict[str, int] = field(default_factory=dict)
    """How many lines name each session."""
    agent_id: str | None = None
    task_agents: dict[str, str] = field(default_factory=dict)
    """Tool call id -> agent id, from progress lines of running subagents."""
    versions: dict[str, int] = field(default_factory=dict)
    known_lines: int = 0
    """Lines that look like Claude Code's."""


@dataclass(slots=True)
class Usage:
    """What the provider counted for a prompt; the parts are disjoint."""

    uncached: int = 0
    cache_write: int = 0
    cache_read: int = 0
    ttl: str | None = None

    @property
    def prompt(self) -> int:
        """The whole prompt."""
        return self.uncached + self.cache_write + self.cache_read


@dataclass(slots=True)
class Round:
    """One model call: what it ate (user lines since the call before), and its answer."""

    message_id: str | None
    request_id: str | None
    lines: list[Line] = field(default_factory=list)
    eaten: list[Line] = field(default_factory=list)
    after_compaction: bool = False
    aux: Aux | None = None

    @property
    def synthetic(self) -> bool:
        """Whether the client wrote the answer itself."""
        return self.model == SYNTHETIC

    @property
    def key(self) -> tuple[str | None, str | None]:
        """The same in every copy of the line that a resumed or forked session made."""
        return self.message_id, self.request_id

    @property
    def first(self) -> Line:
        """The line that came first."""
        return self.lines[0]

    @property
    def done_ms(self) -> float:
        """When the last part of the answer was complete."""
        return max(line.at_ms for line in self.lines)

    @property
    def timed(self) -> bool:
        """Whether the answer has time stamps of its own."""
        return all(line.timed for line in self.lines)

    @property
    def ready_ms(self) -> float | None:
        """When the last thing that its prompt holds was there; None without a time stamp on any of it."""
        stamps = [line.at_ms for line in self.eaten if line.timed]
        return max(stamps) if stamps else None

    @property
    def model(self) -> str | None:
        """Name of the model that answered."""
        found = self.first.message.get("model")
        return found if isinstance(found, str) else None

    @property
    def stop_reason(self) -> str | None:
        """Why the answer ended, from whichever line says it."""
        return next((s for x in reversed(self.lines) if isinstance(s := x.message.get("stop_reason"), str)), None)

    @property
    def reported_output(self) -> int:
        """Output tokens: the largest count on any line, since the order of placeholder and final count varies."""
        return max((count(_usage(line).get("output_tokens")) for line in self.lines), default=0)

    @property
    def usage(self) -> Usage:
        """Counts of the prompt, from the line with the most."""
        return max((read_usage(_usage(line)) for line in self.lines), key=lambda u: u.prompt)

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """All parts of the answer in the order of their lines."""
        return [b for line in self.lines for b in line.blocks]

    def tool_lines(self) -> Iterator[tuple[dict[str, Any], Line]]:
        """Tool calls of the answer, each once, with the line that ends it."""
        seen = set()
        for line in self.lines:
            for block in line.blocks:
                id_ = block.get("id")
                if block.get("type") == "tool_use" and isinstance(id_, str) and id_ not in seen:
                    seen.add(id_)
                    yield block, line


def typed_blocks(content: Any) -> list[dict[str, Any]]:
    """The blocks of a content list; one whose type is no text gets the type `?`."""
    blocks = [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []
    return [b if isinstance(b.get("type"), str) else {**b, "type": "?"} for b in blocks]


def _usage(line: Line) -> dict[str, Any]:
    found = line.message.get("usage")
    return found if isinstance(found, dict) else {}


def read_usage(usage: dict[str, Any]) -> Usage:
    """Anthropic's `usage` object."""
    made = usage.get("cache_creation")
    ttl = None
    if isinstance(made, dict):
        if count(made.get("ephemeral_1h_input_tokens")):
            ttl = "1h"
        elif count(made.get("ephemeral_5m_input_tokens")):
            ttl = "5m"
    return Usage(
        uncached=count(usage.get("input_tokens")),
        cache_write=count(usage.get("cache_creation_input_tokens")),
        cache_read=count(usage.get("cache_read_input_tokens")),
        ttl=ttl,
    )


def count(value: Any) -> int:
    """A token count, 0 for anything that is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _BIGGEST else 0


def text_of(value: Any) -> str | None:
    """A string that is not empty, or None."""
    return value if isinstance(value, str) and value else None


def parse(name: str, data: bytes, report: ImportReport) -> Transcript:
    """One file. What cannot be read is counted and said; nothing is raised."""
    stem = name.rsplit("/", 1)[-1].removesuffix(".jsonl")
    out = Transcript(name=name, stem=stem)
    if stem.startswith("agent-"):
        out.agent_id = stem.removeprefix("agent-")
    clock = 0.0
    raw = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, piece in enumerate(raw, 1):
        if not piece.strip():
            continue
        fields = _decode(name, number, piece, report, last=number == len(raw))
        if fields is not None:
            at = _stamp(fields.get("timestamp"))
            clock = clock if at is None else at
            _take(out, number, fields, clock, report, timed=at is not None)
    _place_untimed(out)
    return out


def _place_untimed(out: Transcript) -> None:
    """Lines before the first time stamp of a file belong to its start, not to 1970."""
    first = next((line.at_ms for line in out.lines if line.timed), 0.0)
    for line in out.lines:
        if line.at_ms == 0.0 and not line.timed:
            line.at_ms = first


def _decode(name: str, number: int, piece: bytes, report: ImportReport, *, last: bool) -> dict[str, Any] | None:
    try:
        piece.decode()
    except UnicodeDecodeError:
        report.ignore("bytes that are not UTF-8 (lines with)")
        report.warn(name, number, "not UTF-8; the bytes were replaced")
    text = piece.decode(errors="replace")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        value = _decode_leniently(text)
    if isinstance(value, dict):
        return value
    if last:  # no newline after it
        report.ignore("last line cut off")
        report.warn(name, number, "the last line is cut off; the session was being written when it was copied")
    else:
        report.ignore("lines that are not a JSON object")
        report.warn(name, number, "not a JSON object")
    return None


def _decode_leniently(text: str) -> Any:
    """JSON with lone surrogates or numbers out of range, which occur in tool output that a client cut in the middle."""
    try:
        return _clean(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 1 << 63 else str(value)
    if isinstance(value, dict):
        return {_clean(k): _clean(v) for k, v in value.items()}
    return [_clean(v) for v in value] if isinstance(value, list) else value


def _stamp(value: Any) -> float | None:
    """ISO 8601 to milliseconds since the epoch; a stamp without a zone is taken for UTC."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000
    except (ValueError, OverflowError):
        return None


def _take(
    out: Transcript, number: int, fields: dict[str, Any], clock: float, report: ImportReport, *, timed: bool
) -> None:
    type_, uuid = fields.get("type"), text_of(fields.get("uuid"))
    parent = text_of(fields.get("parentUuid")) or text_of(fields.get("logicalParentUuid"))
    if uuid:
        out.parents.setdefault(uuid, parent)
    session, agent = text_of(fields.get("sessionId")), text_of(fields.get("agentId"))
    out.known_lines += isinstance(type_, str) and (session is not None or uuid is not None)
    if session:
        out.session_ids[session] = out.session_ids.get(session, 0) + 1
    if agent and out.stem.startswith("agent-"):
        out.agent_id = agent
    if version := text_of(fields.get("version")):
        out.versions[version] = out.versions.get(version, 0) + 1
    kind = _kind(fields)
    if kind is None:
        _progress(out, fields)
        report.ignore(f"lines of type {type_ if isinstance(type_, str) else '?'}")
        return
    if not timed:
        report.note("lines without a time stamp")
    is_root = "parentUuid" in fields and parent is None
    out.lines.append(Line(out.name, number, kind, fields, clock, timed, uuid, parent, is_root))


def _kind(fields: dict[str, Any]) -> LineKind | None:
    type_ = fields.get("type")
    if type_ == "system" and fields.get("subtype") == "compact_boundary":
        return "boundary"
    if not isinstance(fields.get("message"), dict):
        return None
    if type_ == "assistant":
        return "assistant"
    hidden = fields.get("isVisibleInTranscriptOnly") is True and fields.get("isCompactSummary") is not True
    return "user" if type_ == "user" and not hidden else None


def _progress(out: Transcript, fields: dict[str, Any]) -> None:
    data = fields.get("data")
    if fields.get("type") == "progress" and isinstance(data, dict):
        agent, call = text_of(data.get("agentId")), text_of(fields.get("parentToolUseID"))
        if agent and call:
            out.task_agents[call] = agent


def rounds_of(lines: list[Line]) -> list[Round]:
    """Lines of one thread as rounds, in time order (file order where stamps are equal).

    Rounds are told apart by `message.id`, wherever their lines stand: results of tools that started while the answer
    still streamed come in between. A user line belongs to the first round that starts after it. Rounds of the client
    itself (`<synthetic>`) are kept here so that they can be counted; their text is in no prompt.
    """
    found: dict[tuple[str | None, str | None, int], Round] = {}
    out: list[Round] = []
    pending: list[Line] = []
    asked: list[Line] = []  # instructions of calls beside the conversation
    compacted = False
    for line in sorted(lines, key=lambda x: x.at_ms):
        if line.kind == "boundary" or (line.kind == "user" and line.flag("isCompactSummary")):
            pending, compacted = [], True
        if line.kind == "user":
            (asked if line.aux else pending).append(line)
        if line.kind != "assistant":
            continue
        one = found.get(key := _round_key(line))
        if one is None:
            one = found[key] = Round(key[0], text_of(line.data.get("requestId")), aux=line.aux)
            out.append(one)
            if line.aux:
                one.eaten, asked = pending + asked, []
            elif line.message.get("model") != SYNTHETIC:
                one.eaten, pending = pending, []
                one.after_compaction, compacted = compacted, False
        one.request_id = one.request_id or text_of(line.data.get("requestId"))
        one.lines.append(line)
    return out


def _round_key(line: Line) -> tuple[str | None, str | None, int]:
    """An answer without an id is told by its request, and without that a round of its own."""
    message_id, request_id = text_of(line.message.get("id")), text_of(line.data.get("requestId"))
    if message_id:
        return message_id, None, 0
    return None, request_id, 0 if request_id else line.number
