"""Rounds of one thread -> requests of one session: sizes, waits, prefix, and what the provider recorded."""

from dataclasses import dataclass, field
from typing import Literal

from agentperf.trace.importers.claude_code_lines import Line, Round, Transcript, Usage
from agentperf.trace.importers.claude_code_messages import (
    MESSAGE_TOKENS,
    answer_message,
    interrupted,
    message_tokens,
    reasoning_text,
    typed_by_a_person,
)
from agentperf.trace.importers.claude_code_prompts import Prompt, PromptTree, input_of
from agentperf.trace.importers.claude_code_waits import tool_runs, wait_before
from agentperf.trace.importers.result import ImportOptions, ImportReport
from agentperf.trace.model import Dependency, PrefixEvent, Recorded, Request, TokenSource, Trigger

_TTL_MS = {"5m": 300_000, "1h": 3_600_000}
"""How long the provider keeps a cached prefix after its last use."""
_PLACEHOLDER = 0.5
"""An answer whose end nobody recorded, counted at less than this share of its visible text, has a placeholder count."""
_IMPOSSIBLE = 0.25
"""The same for an answer with a stop reason: its count is final, unless no text has so few tokens."""


@dataclass(slots=True)
class Thread:
    """One line of conversation: a main session or a subagent."""

    file: Transcript
    lines: list[Line]
    agent_id: str | None = None
    rounds: list[Round] = field(default_factory=list)
    emitted: list[Round] = field(default_factory=list)
    """Rounds that become requests, in order: neither the client's own nor copies of another file's."""
    session_id: str = ""
    parents: dict[str, str | None] = field(default_factory=dict)
    parent: "Thread | None" = None
    call_id: str | None = None
    """The parent's tool call that started it."""
    spawned_by: Round | None = None
    background: bool = False
    kind: str | None = None
    """Type of the subagent."""
    final: Usage | None = None
    final_output: int = 0
    """What the parent's tool result says of the last call."""
    system_tokens: int = 0
    requests: list[Request] = field(default_factory=list)

    def request_id(self, one: Round) -> str:
        """Name of an emitted round."""
        return f"{self.session_id}:{next(i for i, r in enumerate(self.emitted) if r is one)}"

    @property
    def root(self) -> "Thread":
        """The main session of the tree."""
        at = self
        while at.parent is not None:
            at = at.parent
        return at

    @property
    def start_ms(self) -> float:
        """When its first request could leave."""
        first = self.emitted[0]
        return first.ready_ms if first.ready_ms is not None else first.first.at_ms

    @property
    def done_ms(self) -> float:
        """When its last answer was complete."""
        return max(one.done_ms for one in self.emitted)


@dataclass(slots=True)
class Joins:
    """Subagents that the requests of a thread wait for."""

    by_call: dict[str, Thread] = field(default_factory=dict)
    """The tool call whose result the subagent's answer is (its own call, or one that waits for it)."""
    by_notice: dict[str, Thread] = field(default_factory=dict)
    """Agent id -> background subagent whose end a user line announces."""


class SessionBuilder:
    """Makes the requests of one thread. Threads that it waits for need their ids and rounds, not their requests."""

    def __init__(self, thread: Thread, joins: Joins, report: ImportReport, options: ImportOptions) -> None:
        self._thread = thread
        self._joins = joins
        self._report = report
        self._options = options
        self._tree = PromptTree(thread.parents, report, options)
        self._emitted = {id(one): index for index, one in enumerate(thread.emitted)}
        self._asked: list[Prompt] = []  # of the requests so far, calls beside the conversation included
        self._joined: set[str] = set()
        self._prompt_tokens: dict[int, int] = {}

    def build(self) -> None:
        """Fill in the thread's `requests` and `system_tokens`."""
        prompts: list[tuple[Round, Prompt, Round | None]] = []
        for one in self._thread.rounds:
            if not one.synthetic:
                last = self._tree.last
                prompts.append((one, self._tree.add(one), last))
        self._thread.system_tokens = self._system_tokens([p for _, p, _ in prompts])
        for one, prompt, _ in prompts:
            known = one.usage.prompt
            self._prompt_tokens[id(one)] = known or self._thread.system_tokens + prompt.visible_tokens
        for one, prompt, last in prompts:
            if id(one) in self._emitted:
                self._thread.requests.append(self._request(one, prompt, last))
                self._asked.append(prompt)
        self._keep_last_answers([p for one, p, _ in prompts if id(one) in self._emitted])

    def _system_tokens(self, prompts: list[Prompt]) -> int:
        """System prompt, tool schemas and what else a prompt holds beside its messages, none of which is in the file.

        The first prompt with a count, less the estimate of its visible messages; never more than a later prompt holds.
        """
        counted = [(u.prompt, p) for p in prompts if (u := p.round.usage).prompt]
        if not counted:
            return 0
        gap = max(0, counted[0][0] - counted[0][1].visible_tokens)
        return min([gap, *(tokens for tokens, p in counted if p.round.aux is None)])

    def _request(self, one: Round, prompt: Prompt, last: Round | None) -> Request:
        thread, cpt = self._thread, self._options.chars_per_token
        index = self._emitted[id(one)]
        runs = tool_runs(prompt.answered, one.eaten, prompt.own, cpt) if prompt.answered else []
        joins = self._ended(one, [r.tool.call_id for r in runs])
        for run in runs:
            child = self._joins.by_call.get(run.tool.call_id)
            run.tool.child_session_id = child.session_id if child else None
        first = index == 0
        after = None if first else self._follows()
        wait = wait_before(one, after, runs, [t.done_ms for t in joins])
        if wait.source == "missing":
            self._report.estimate("waits without time stamps: none is replayed")
        tokens, source = self._output(one)
        thinking, _ = reasoning_text(one)
        known = one.usage.prompt
        made = Request(
            request_id=f"{thread.session_id}:{index}",
            session_id=thread.session_id,
            index=index,
            input=input_of(prompt, self._asked[-1] if self._asked else None),
            input_tokens=self._prompt_tokens[id(one)],
            input_tokens_source="provider" if known else "estimated",
            output_tokens=tokens,
            output_tokens_source=source,
            depends_on=self._depends_on(after, joins),
            delay_ms=wait.delay_ms,
            delay_parts=wait.parts,
            delay_source=wait.source,
            tools_before=[r.tool for r in runs] if one.aux != "side" else [],
            trigger=self._trigger(one, first=first),
            prefix_tokens_ideal=self._ideal(one, prompt),
            recorded=self._recorded(one, after, tokens, source),
            reasoning_tokens=min(tokens, round(len(thinking) / cpt)) if thinking else None,
            reasoning_policy=self._reasoning(one),
            prefix_event=self._event(one, prompt, last),
            source_ref=_source_ref(one),
        )
        if source == "estimated":
            made.extra["x_reported_output_tokens"] = one.reported_output
        if not known:
            self._report.estimate("input tokens: no count in the file, taken from the text")
        if any(interrupted(line) for line in one.eaten):
            self._report.note("interruptions by the user")
        return made

    # -- sizes -------------------------------------------------------------------------------------------------------

    def _output(self, one: Round) -> tuple[int, TokenSource]:
        """The recorded count, or an estimate from text, thinking and tool calls where the record is a placeholder."""
        thread = self._thread
        if thread.final_output and one is thread.emitted[-1] and thread.final == one.usage:
            return thread.final_output, "provider"
        cpt = self._options.chars_per_token
        thinking, hidden = reasoning_text(one)
        answer = message_tokens(answer_message(one, ImportReport(format="")), cpt) - MESSAGE_TOKENS
        estimate = answer + round(len(thinking) / cpt)
        reported = one.reported_output
        least = estimate * (_PLACEHOLDER if one.stop_reason is None else _IMPOSSIBLE)
        if reported and reported >= least:
            return reported, "provider"
        if not reported and not estimate:
            return 0, "provider" if one.usage.prompt else "estimated"
        self._report.estimate("output tokens: the file has a placeholder, taken from text and tool calls")
        if hidden:
            self._report.note("estimated answers with thinking that is not in the file, so longer than said")
        return max(estimate, reported), "estimated"

    def _reasoning(self, one: Round) -> Literal["stripped", "none"]:
        types = {b.get("type") for b in one.blocks}
        return "stripped" if types & {"thinking", "redacted_thinking"} else "none"

    def _recorded(self, one: Round, after: Round | None, output: int, source: str) -> Recorded:
        usage, known = one.usage, bool(one.usage.prompt)
        ready = one.ready_ms
        start = None if ready is None else max(ready, after.done_ms) if after else ready
        timed = start is not None and one.timed
        return Recorded(
            cached_tokens=usage.cache_read if known else None,
            cache_write_tokens=usage.cache_write if known else None,
            cache_write_ttl=usage.ttl,
            uncached_tokens=usage.uncached if known else None,
            output_tokens=output if source == "provider" else None,
            duration_ms=round(max(0.0, one.done_ms - start), 3) if start is not None and timed else None,
            start_ms=round(start - self._thread.root.start_ms, 3) if start is not None else None,
            finish_reason=one.stop_reason,
            model=one.model,
        )

    # -- prefix ------------------------------------------------------------------------------------------------------

    def _ideal(self, one: Round, prompt: Prompt) -> int | None:
        """Tokens of the prompt that this one is built on; its answer is left out, as in the statistics.

        None for a prompt without one: what it shares is the system prompt, see `claude_code.py`.
        """
        if prompt.base is None:
            return None if not self._asked else min(self._thread.system_tokens, self._prompt_tokens[id(one)])
        return min(self._prompt_tokens[id(one)], self._prompt_tokens[id(prompt.base.round)])

    def _event(self, one: Round, prompt: Prompt, last: Round | None) -> PrefixEvent | None:
        """Why the prefix broke, by structure or by what the cache did.

        As long as nothing breaks, `cache_read(n+1) == cache_read(n) + cache_creation(n)`.
        """
        if last is None or not one.usage.prompt:
            return None
        read, before = one.usage.cache_read, last.usage
        if prompt.event is not None:
            base = prompt.base
            kept = self._prompt_tokens[id(base.round)] if base else read
            kept = min(kept, one.usage.prompt)
            return PrefixEvent(type=prompt.event, kept_tokens=kept, dropped_tokens=max(0, before.prompt - kept))
        left = before.cache_read + before.cache_write
        if not left or read == left:
            return None
        if read > left:
            self._report.note("prompts with more in the cache than the call before left (a call is not in the file)")
            return None
        kind = self._cause(one, last)
        if kind is None:
            self._report.note("cache reads that fell short without a visible cause")
            return None
        return PrefixEvent(type=kind, kept_tokens=read, dropped_tokens=left - read)

    def _cause(self, one: Round, last: Round) -> Literal["model_switch", "prune", "ttl_expiry"] | None:
        if one.model != last.model:
            return "model_switch"
        if one.usage.prompt < last.usage.prompt:
            return "prune"
        ready = one.ready_ms
        idle = ready - last.done_ms if ready is not None else 0.0
        return "ttl_expiry" if idle > _TTL_MS[last.usage.ttl or "5m"] else None

    # -- order -------------------------------------------------------------------------------------------------------

    def _ended(self, one: Round, calls: list[str]) -> list[Thread]:
        """Subagents whose answers this round ate, each once."""
        found = [self._joins.by_call[c] for c in calls if c in self._joins.by_call]
        for line in one.eaten if self._joins.by_notice else ():
            text = "".join(str(b.get("text", "")) for b in line.blocks)
            if "<task-notification>" in text:
                found += [t for agent, t in self._joins.by_notice.items() if f"<task-id>{agent}</task-id>" in text]
        ended = [t for t in found if t.session_id not in self._joined and self._is_end(t, one, calls)]
        self._joined.update(t.session_id for t in ended)
        return ended

    def _is_end(self, child: Thread, one: Round, calls: list[str]) -> bool:
        """Nothing waits for a subagent that it started itself, as files with an id used twice would have it.

        The call that starts a background subagent returns at once; only later ones wait for it.
        """
        by = child.spawned_by
        later = by is not None and self._emitted.get(id(by), len(self._emitted)) < self._emitted[id(one)]
        return later and not (child.background and child.call_id in calls)

    def _depends_on(self, after: Round | None, joins: list[Thread]) -> list[Dependency] | None:
        """None where the default says it: the request before."""
        if not joins and (after is None or after is self._asked[-1].round):
            return None
        edges = [] if after is None else [Dependency(request_id=self._thread.request_id(after))]
        return edges + [Dependency(request_id=t.request_id(t.emitted[-1]), type="join") for t in joins]

    def _follows(self) -> Round | None:
        """The request that must be complete first: nothing waits for a call that was made beside the conversation."""
        return next((p.round for p in reversed(self._asked) if p.round.aux != "side"), None)

    def _trigger(self, one: Round, *, first: bool) -> Trigger:
        if one.aux is not None:
            return one.aux
        if first:
            return "subagent" if self._thread.parent else "user"
        return "user" if any(typed_by_a_person(line) for line in one.eaten) else "tool"

    def _keep_last_answers(self, prompts: list[Prompt]) -> None:
        """Answers that no later prompt of the session carries are kept beside their request."""
        carried = {id(p.answered) for p in prompts}
        for prompt, request in zip(prompts, self._thread.requests, strict=True):
            if id(prompt.round) not in carried:
                message = answer_message(prompt.round, ImportReport(format=""))
                kept = {"text": message["content"], "tool_calls": message.get("tool_calls")}
                request.output = {k: v for k, v in kept.items() if v} or None


def _source_ref(one: Round) -> dict[str, object]:
    numbers = [line.number for line in one.lines]
    ref: dict[str, object] = {"file": one.first.file, "first_line": min(numbers), "last_line": max(numbers)}
    return ref | {k: v for k, v in (("message_id", one.message_id), ("api_request_id", one.request_id)) if v}
