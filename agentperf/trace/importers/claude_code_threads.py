"""Files of Claude Code -> threads (main sessions and subagents), and which thread started which."""

import re
from dataclasses import dataclass, field
from typing import Any

from agentperf.trace.importers.claude_code_lines import (
    Aux,
    Line,
    Round,
    Transcript,
    count,
    read_usage,
    rounds_of,
    text_of,
)
from agentperf.trace.importers.claude_code_requests import Joins, Thread
from agentperf.trace.importers.result import ImportReport

_LABELLED = re.compile(r"^a(compact|[a-z]+(?:_[a-z]+)+)-")
"""Agent ids such as acompact-f46190 name a helper call; those of subagents are hexadecimal."""
_WAITING_TOOLS = frozenset({"TaskOutput", "AgentOutputTool", "TaskOutputTool"})
_SPAWNING_TOOLS = frozenset({"Task", "Agent"})


@dataclass(slots=True)
class Call:
    """A tool call somewhere in the files, in the copy that is imported."""

    thread: Thread
    round: Round
    block: dict[str, Any]
    line: Line


@dataclass(slots=True)
class Forest:
    """All threads of an import."""

    threads: list[Thread] = field(default_factory=list)
    joins: dict[int, Joins] = field(default_factory=dict)
    """By identity of the thread that waits."""

    def joins_of(self, thread: Thread) -> Joins:
        """What a thread waits for."""
        return self.joins.setdefault(id(thread), Joins())


def plant(transcripts: list[Transcript], report: ImportReport) -> Forest:
    """Threads with rounds, ids and parents, main sessions in order of time, each before its subagents."""
    mains, children = _threads(transcripts)
    _attach_helpers(transcripts, [*mains, *children], report)
    for thread in [*mains, *children]:
        thread.rounds = rounds_of(thread.lines)
    mains.sort(key=lambda t: (*_extent(t), t.file.name))
    _choose_copies([*mains, *children], report)
    alive = [t for t in [*mains, *children] if t.emitted]
    _name(alive)
    forest = Forest(threads=alive)
    _link(forest, report)
    order = {id(t): i for i, t in enumerate(alive)}
    forest.threads.sort(key=lambda t: (order[id(t.root)], t.parent is not None, order[id(t)]))
    return forest


def _extent(thread: Thread) -> tuple[float, float]:
    """A resumed session holds copies of the older one's lines, so the older one is the one that ends first."""
    stamps = [line.at_ms for line in thread.lines if line.timed]
    return (min(stamps), max(stamps)) if stamps else (0.0, 0.0)


def _threads(transcripts: list[Transcript]) -> tuple[list[Thread], list[Thread]]:
    mains, children = [], []
    for file in transcripts:
        if file.agent_id is not None:
            if _helper(file) is None:
                children.append(Thread(file, file.lines, agent_id=file.agent_id, parents=file.parents))
            continue
        main = [line for line in file.lines if not line.flag("isSidechain")]
        mains.append(Thread(file, main, parents=file.parents))
        groups: dict[str, list[Line]] = {}
        for line in file.lines:
            if line.flag("isSidechain"):
                groups.setdefault(text_of(line.data.get("agentId")) or _root(line, file), []).append(line)
        children += [Thread(file, lines, agent_id=key, parents=file.parents) for key, lines in groups.items()]
    return mains, children


def _root(line: Line, file: Transcript) -> str:
    """The first line of the chain that a line of an inline subagent hangs on."""
    at, seen = line.uuid or f"line-{line.number}", set()
    while at not in seen:
        seen.add(at)
        at = file.parents.get(at) or at
    return at


def _helper(file: Transcript) -> Aux | None:
    """Whether the file is one call beside a conversation: the summary of a compaction, a suggestion, an aside."""
    match = _LABELLED.match(file.agent_id or "")
    if match is None:
        return None
    if match[1] == "compact":
        return "compaction"
    answers = {text_of(x.message.get("id")) or str(x.number) for x in file.lines if x.kind == "assistant"}
    return "side" if len(answers) <= 1 else None


def _attach_helpers(transcripts: list[Transcript], threads: list[Thread], report: ImportReport) -> None:
    """Put helper calls into the thread whose conversation they send; only instruction and answer are theirs."""
    for file in transcripts:
        aux = _helper(file)
        if aux is None:
            continue
        own = [line for line in file.lines if line.kind == "assistant" or not line.flag("isMeta")]
        if aux == "side":
            asked = [line for line in own if line.kind == "user"][-1:]
            own = [line for line in own if line.kind == "assistant" or line in asked]
        report.ignore("lines copied into files of helper calls", len(file.lines) - len(own))
        above = {line.parent for line in file.lines if line.parent}
        owner = next((t for t in threads if above & t.parents.keys()), None) or next(
            (t for t in threads if t.agent_id is None and file.session_ids.keys() & t.file.session_ids.keys()), None
        )
        if owner is None:
            n = len(rounds_of(own))
            report.leave_out("helper calls of a session that is not in the files", n)
            report.requests_seen += n
            report.warn(file.name, 1, "the session that this helper call belongs to is not in the files")
            continue
        for line in own:
            line.aux = aux
        owner.lines = owner.lines + own


def _choose_copies(threads: list[Thread], report: ImportReport) -> None:
    """Which rounds become requests. Resumed and forked sessions repeat old rounds: the first thread keeps each."""
    taken: set[tuple[str | None, str | None]] = set()
    for thread in threads:
        mine = []
        if thread.rounds:
            end = max(one.done_ms for one in thread.rounds)
            tail = sum(1 for line in thread.lines if line.kind == "user" and line.at_ms > end)
            report.ignore("user lines that no answer follows", tail)
        for one in thread.rounds:
            report.requests_seen += 1
            if one.synthetic:
                report.leave_out("text that the client wrote itself (model <synthetic>)")
            elif one.key in taken:
                report.leave_out("copies in a resumed or forked session")
            else:
                thread.emitted.append(one)
                if one.key != (None, None):
                    mine.append(one.key)
        taken.update(mine)


def _name(threads: list[Thread]) -> None:
    """Session ids: the file's for main sessions, root and agent for the others; unique over all files."""
    taken: set[str] = set()
    for thread in threads:
        file = thread.file
        declared = max(file.session_ids, key=lambda s: file.session_ids[s]) if file.session_ids else file.stem
        name = file.stem if file.stem in file.session_ids else declared
        if thread.agent_id is not None:
            name = f"{name if file.agent_id is None else declared}/{thread.agent_id}"
        unique, n = name, 1
        while unique in taken:
            n += 1
            unique = f"{name}~{n}"
        taken.add(unique)
        thread.session_id = unique


# -- who started whom ------------------------------------------------------------------------------------------------


def _link(forest: Forest, report: ImportReport) -> None:
    calls = {
        block["id"]: Call(thread, one, block, line)
        for thread in reversed(forest.threads)
        for one in reversed(thread.emitted)
        for block, line in one.tool_lines()
    }
    agents = {t.agent_id: t for t in reversed(forest.threads) if t.agent_id is not None}
    started = _agent_calls(forest, report)
    started |= {c: a for c, a in _by_prompt(forest, calls, started).items() if c not in started}
    for call_id, agent_id in started.items():
        call, child = calls.get(call_id), agents.get(agent_id)
        if call is None:
            continue
        if child is None:
            report.note("subagents whose file is missing")
            what = f"no file of subagent {agent_id}; its time stays the time of the tool call"
            report.warn(call.line.file, call.line.number, what)
        elif child.parent is None and call.thread is not child and child not in _ancestors(call.thread):
            _start(forest, child, call, call_id)
    for thread in forest.threads:
        if thread.agent_id is not None and thread.parent is None:
            _adopt(forest, thread, report)
    _find_waits(forest, calls)


def _ancestors(thread: Thread) -> list[Thread]:
    out, at = [], thread.parent
    while at is not None:
        out.append(at)
        at = at.parent
    return out


def _start(forest: Forest, child: Thread, call: Call, call_id: str) -> None:
    found = call.block.get("input")
    given: dict[str, Any] = found if isinstance(found, dict) else {}
    child.parent, child.call_id, child.spawned_by = call.thread, call_id, call.round
    child.kind = text_of(given.get("subagent_type")) or child.kind
    child.background = child.background or given.get("run_in_background") is True
    joins = forest.joins_of(call.thread)
    joins.by_call[call_id] = child
    if child.background and child.agent_id:
        joins.by_notice[child.agent_id] = child


def _agent_calls(forest: Forest, report: ImportReport) -> dict[str, str]:
    """Tool call id -> agent id, from results of subagents and from progress lines."""
    found: dict[str, str] = {}
    by_id = {t.agent_id: t for t in forest.threads if t.agent_id is not None}
    for thread in forest.threads:
        for line in (x for one in thread.rounds for x in one.eaten):
            result = line.data.get("toolUseResult")
            agent = text_of(result.get("agentId")) if isinstance(result, dict) else None
            if agent is None or not isinstance(result, dict):
                continue
            for block in line.blocks:
                if block.get("type") == "tool_result" and (call := text_of(block.get("tool_use_id"))):
                    found.setdefault(call, agent)
            if child := by_id.get(agent):
                _check_end(child, result, report)
        for call, agent in thread.file.task_agents.items():
            found.setdefault(call, agent)
    return found


def _check_end(child: Thread, result: dict[str, Any], report: ImportReport) -> None:
    """Take from the parent's result what the subagent's own file may lack."""
    if result.get("isAsync") is True or result.get("status") in ("async_launched", "running"):
        child.background = True
    usage = result.get("usage")
    if isinstance(usage, dict) and count(usage.get("output_tokens")):
        child.final, child.final_output = read_usage(usage), count(usage.get("output_tokens"))
    said = count(result.get("totalToolUseCount"))
    made = sum(1 for one in child.rounds for _ in one.tool_lines())
    if said and said != made:
        what = f"the parent counts {said} tool calls of subagent {child.agent_id}, its file holds {made}"
        report.warn(child.file.name, 1, what)


def _by_prompt(forest: Forest, calls: dict[str, Call], known: dict[str, str]) -> dict[str, str]:
    """Inline subagents of old versions have no id: their first line repeats the prompt of the call."""
    named = set(known.values())
    prompts: dict[str, str] = {}
    for thread in forest.threads:
        if thread.agent_id is not None and thread.agent_id not in named and thread.file.agent_id is None:
            first = next((b.get("text") for line in thread.emitted[0].eaten for b in line.blocks), None)
            if isinstance(first, str):
                prompts[first] = thread.agent_id
    found = {}
    for id_, call in calls.items():
        given = call.block.get("input")
        prompt = given.get("prompt") if isinstance(given, dict) else None
        if text_of(call.block.get("name")) not in _SPAWNING_TOOLS:
            continue
        if isinstance(prompt, str) and prompt in prompts:
            found[id_] = prompts[prompt]
    return found


def _adopt(forest: Forest, child: Thread, report: ImportReport) -> None:
    """A subagent that no call names: under the session it says, after the round before it; nothing waits for it."""
    parents = [t for t in forest.threads if t.agent_id is None and t.file.session_ids.keys() & child.file.session_ids]
    before = [one for t in parents[:1] for one in t.emitted if one.aux is None and one.done_ms <= child.start_ms + 1000]
    if not before:
        report.note("subagents without their main session, imported as sessions of their own")
        report.warn(child.file.name, 1, "the session that started this subagent is not in the files")
        return
    child.parent, child.spawned_by, child.background = parents[0], before[-1], True
    report.note("subagents that no tool call names, started by time")
    report.warn(child.file.name, 1, "no tool call names this subagent; it starts after the round before it")


def _find_waits(forest: Forest, calls: dict[str, Call]) -> None:
    """Later tool calls that wait for a background subagent."""
    background = {(id(t.parent), t.agent_id): t for t in forest.threads if t.background and t.parent}
    for id_, call in calls.items():
        given = call.block.get("input")
        if text_of(call.block.get("name")) not in _WAITING_TOOLS or not isinstance(given, dict):
            continue
        agent = next((a for n in ("task_id", "agentId", "agent_id") if (a := text_of(given.get(n)))), None)
        child = background.get((id(call.thread), agent))
        if child is not None and child.spawned_by is not None:
            at = call.thread.emitted
            if _position(at, child.spawned_by) < _position(at, call.round):
                forest.joins_of(call.thread).by_call[id_] = child


def _position(rounds: list[Round], one: Round) -> int:
    return next(i for i, r in enumerate(rounds) if r is one)
