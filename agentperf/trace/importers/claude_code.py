"""Claude Code transcripts (`~/.claude/projects/<project>/<session>.jsonl`, subagent files included) -> trace set.

The files hold messages, tool results, time stamps and the provider's counts, but neither system prompt nor tool
schemas: their size is estimated from the first prompt (`Session.system_tokens`) and filler stands for them, shared by
all sessions of one product. Thinking is left out of later prompts (`reasoning_policy`), images become placeholders.
Waits are those between lines; a permission that the user granted is part of the time of its tool, since the file
does not show it. Calls that leave no line (titles, retries after an API error, interrupted answers) are not in the set.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentperf.errors import TraceError
from agentperf.trace.importers.claude_code_lines import Transcript, parse, text_of
from agentperf.trace.importers.claude_code_messages import language_of
from agentperf.trace.importers.claude_code_requests import SessionBuilder, Thread
from agentperf.trace.importers.claude_code_threads import Forest, plant
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
from agentperf.trace.model import Dependency, Session, SessionTrace, Spawn

NAME = "claude-code"
_TYPES = frozenset({"user", "assistant", "progress", "file-history-snapshot", "summary", "system", "queue-operation"})


def detect(path: Path) -> bool:
    """Whether the file, or a file in the folder, looks like a transcript."""
    return any_file(path, "*.jsonl", _fits)


def _fits(path: Path) -> bool:
    for line in read_head(path, 1 << 20).split(b"\n")[:50]:
        try:
            fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            type_ = msgspec.json.decode(fields.get("type", b"null"))
        except (msgspec.MsgspecError, RecursionError, ValueError):
            continue
        known = type_ in _TYPES if isinstance(type_, str) else False
        if known and fields.keys() & {"sessionId", "parentUuid", "snapshot", "leafUuid"}:
            return True
    return False


def read(paths: Sequence[Path], options: ImportOptions | None = None) -> ImportResult:
    """Import files and folders as one set. Raises TraceError when nothing in them is a transcript with an answer."""
    options = options or ImportOptions()
    report = ImportReport(format=NAME)
    transcripts, sources = _parse_all(paths, report)
    forest = plant(transcripts, report)
    for thread in forest.threads:
        SessionBuilder(thread, forest.joins_of(thread), report, options).build()
    for thread in forest.threads:
        _set_start(thread)
    if not forest.threads:
        where = ", ".join(p.name for p in paths) or "nothing"
        raise TraceError(f"{where}: no answer of a model in these files", "give Claude Code transcripts (*.jsonl)")
    _missing_compactions(forest, report)
    sessions = _sessions(forest)
    versions = sorted({v for t in transcripts for v in t.versions})
    header: dict[str, Any] = {
        "trace_set_id": paths[0].name.removesuffix(".jsonl"),
        "content": "full",
        "source": {"tool": "Claude Code", "tool_version": ", ".join(versions) or None},
    }
    return finish(sessions, sources, report, options, header)


# -- files -----------------------------------------------------------------------------------------------------------


def _parse_all(paths: Sequence[Path], report: ImportReport) -> tuple[list[Transcript], list[SourceFile]]:
    transcripts: list[Transcript] = []
    sources: list[SourceFile] = []
    for path, name in _files(paths):
        data = read_bytes(path)
        if not data.strip():
            report.warn(name, 1, "the file is empty")
            report.ignore("empty files")
            continue
        probe = ImportReport(format=NAME)
        found = parse(name, data, probe)
        if not found.known_lines:
            report.warn(name, 1, "no line looks like Claude Code's; the file is skipped")
            report.ignore("files that are no transcript")
            continue
        _merge(report, probe)
        transcripts.append(found)
        sources.append(source_file(name, data))
    if not transcripts:
        where = ", ".join(p.name for p in paths) or "nothing"
        raise TraceError(f"{where}: no Claude Code transcript", "give *.jsonl files or a folder that holds them")
    return transcripts, sources


def _merge(report: ImportReport, part: ImportReport) -> None:
    for reason, n in part.ignored.items():
        report.ignore(reason, n)
    for kind, n in part.noted.items():
        report.note(kind, n)
    report.warnings += part.warnings
    report.warnings_count += part.warnings_count


def _files(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """(file, name without the folders above what the user gave); a session's file brings its subagents' along."""
    found: dict[Path, str] = {}
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*.jsonl")):
                found.setdefault(file.resolve(), file.relative_to(path).as_posix())
            continue
        if not path.is_file():
            raise TraceError(f"{path}: no such file")
        found.setdefault(path.resolve(), path.name)
        for file in sorted((path.parent / path.stem / "subagents").rglob("agent-*.jsonl")):
            found.setdefault(file.resolve(), file.relative_to(path.parent).as_posix())
        beside = sorted(path.parent.glob("agent-*.jsonl"))  # where older versions put them
        text = read_bytes(path) if beside else b""
        for file in beside:
            if file.stem.removeprefix("agent-").encode() in text:
                found.setdefault(file.resolve(), file.name)
    return [(file, name) for file, name in found.items() if file.is_file()]


# -- sessions --------------------------------------------------------------------------------------------------------


def _set_start(child: Thread) -> None:
    """A subagent starts when the round that called it is complete, plus what the client took to start it."""
    if child.parent is None or child.spawned_by is None:
        return
    first, by = child.requests[0], child.spawned_by
    first.depends_on = [Dependency(request_id=child.parent.request_id(by), type="spawn")]
    if by.timed and child.emitted[0].ready_ms is not None:
        first.delay_ms = round(max(0.0, child.start_ms - by.done_ms), 3)
        first.delay_source = "measured"
    else:
        first.delay_source = "missing"


def _missing_compactions(forest: Forest, report: ImportReport) -> None:
    for thread in forest.threads:
        for before, request in zip([None, *thread.requests], thread.requests, strict=False):
            event = request.prefix_event
            if event and event.type == "compaction" and (before is None or before.trigger != "compaction"):
                report.note("compactions whose summarising call is not in the files")


def _sessions(forest: Forest) -> list[SessionTrace]:
    """Sessions in the order of the forest, with the prefix that a first prompt shares with sessions before it."""
    shared: dict[str, int] = {}
    out = []
    for thread in forest.threads:
        session = _session(thread)
        product = session.product or ""
        for request in thread.requests:
            if request.prefix_tokens_ideal is None:
                shares = min(thread.system_tokens, shared.get(product, 0), request.input_tokens)
                request.prefix_tokens_ideal = shares
        shared[product] = max(shared.get(product, 0), thread.system_tokens)
        out.append(SessionTrace(session=session, requests=thread.requests))
    return out


def _session(thread: Thread) -> Session:
    file, first = thread.file, thread.emitted[0]
    version = max(file.versions, key=lambda v: file.versions[v]) if file.versions else None
    role = "main" if thread.agent_id is None else thread.kind or "subagent"
    started = next((s for line in thread.lines if (s := text_of(line.data.get("timestamp")))), None)
    numbers = [line.number for line in thread.lines if line.file == file.name]
    session = Session(
        session_id=thread.session_id,
        root_session_id=thread.root.session_id,
        agent={k: v for k, v in (("name", NAME), ("version", version), ("role", role)) if v},
        model={k: v for k, v in (("name", first.model), ("provider", "anthropic")) if v},
        started_at=started,
        language=language_of(thread.rounds),
        # subagents have other system prompts and tools: they share with their own kind only
        product=NAME if thread.agent_id is None else f"{NAME}/{thread.kind or 'subagent'}",
        system_tokens=thread.system_tokens,
        source_ref={"file": file.name, "first_line": min(numbers), "last_line": max(numbers)},
    )
    if thread.parent is not None and thread.spawned_by is not None:
        session.parent_session_id = thread.parent.session_id
        session.spawn = Spawn(
            by_request_id=thread.parent.request_id(thread.spawned_by),
            tool_call_id=thread.call_id,
            background=thread.background,
        )
    return session
