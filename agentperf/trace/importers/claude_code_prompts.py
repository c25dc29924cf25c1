"""What each round of a thread sent: the conversation as a tree of prompts.

A prompt is the prompt of an earlier round, that round's answer, and what the client added. It is not kept as a list:
a session of a thousand rounds would then need memory for a million messages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from agentperf.trace.importers.claude_code_lines import Line, Round
from agentperf.trace.importers.claude_code_messages import (
    answer_message,
    message_tokens,
    typed_by_a_person,
    user_messages,
)
from agentperf.trace.importers.result import ImportOptions, ImportReport
from agentperf.trace.model import Append, Full, Message, Splice

Break = Literal["compaction", "rewind", "clear"]


@dataclass(slots=True)
class Prompt:
    """The messages of `base`, then `own`. Sizes are estimates from the visible text."""

    base: "Prompt | None"
    own: list[Message]
    round: Round
    answered: Round | None
    """The round whose answer is the first message of `own`."""
    event: Break | None = None
    messages: int = 0
    visible_tokens: int = 0

    def chain(self) -> Iterator["Prompt"]:
        """This prompt and those it is built on, nearest first."""
        at: Prompt | None = self
        while at is not None:
            yield at
            at = at.base

    def all_messages(self) -> list[Message]:
        """The whole list."""
        return [m for prompt in reversed(list(self.chain())) for m in prompt.own]


def common_messages(a: Prompt, b: Prompt) -> int:
    """How many leading messages two prompts have in common."""
    on_a = list(reversed(list(a.chain())))
    on_b = list(reversed(list(b.chain())))
    n = same = 0
    while n < min(len(on_a), len(on_b)) and on_a[n] is on_b[n]:
        same = on_a[n].messages
        n += 1
    rest_a = (m for p in on_a[n:] for m in p.own)
    rest_b = (m for p in on_b[n:] for m in p.own)
    for left, right in zip(rest_a, rest_b, strict=False):
        if left != right:
            break
        same += 1
    return same


def input_of(prompt: Prompt, before: Prompt | None) -> Append | Full | Splice:
    """The prompt as it differs from the request before it in the session."""
    if before is not None and prompt.base is before:
        return Append(messages=prompt.own)
    messages = prompt.all_messages()
    if before is None:
        return Append(messages=messages)
    same = common_messages(before, prompt)
    if same == before.messages:
        return Append(messages=messages[same:])
    return Splice(keep_messages=same, messages=messages[same:]) if same else Full(messages=messages)


@dataclass(slots=True)
class PromptTree:
    """Builds the prompts of one thread, round by round."""

    parents: dict[str, str | None]
    report: ImportReport
    options: ImportOptions
    prompts: dict[int, Prompt] = field(default_factory=dict)
    """By identity of the round."""
    last: Round | None = None
    """The last round of the conversation itself."""
    _owner: dict[str, Round] = field(default_factory=dict)
    _results: dict[str, Line] = field(default_factory=dict)

    def add(self, one: Round) -> Prompt:
        """The prompt of the next round in time."""
        base, event, eaten = self._place(one)
        own: list[Message] = []
        calls: list[str] = []
        if base is not None:
            own.append(answer_message(base, self.report))
            calls = [block["id"] for block, _ in base.tool_lines()]
        own += user_messages(eaten, calls, self.report)
        under = self.prompts[id(base)] if base is not None else None
        prompt = Prompt(base=under, own=own, round=one, answered=base, event=event)
        prompt.messages = len(own) + (under.messages if under else 0)
        sizes = sum(message_tokens(m, self.options.chars_per_token) for m in own)
        prompt.visible_tokens = sizes + (under.visible_tokens if under else 0)
        self.prompts[id(one)] = prompt
        for line in one.eaten:
            for block in line.blocks:
                if block.get("type") == "tool_result" and isinstance(id_ := block.get("tool_use_id"), str):
                    self._results.setdefault(id_, line)
        if one.aux is None:
            self.last = one
            self._owner.update({line.uuid: one for line in one.lines if line.uuid})
        return prompt

    def _place(self, one: Round) -> tuple[Round | None, Break | None, list[Line]]:
        """(round whose prompt and answer this one continues, why it is not the last one, what was added)."""
        last = self.last
        if one.aux is not None or last is None:
            return last, None, one.eaten
        if one.after_compaction:
            return None, "compaction", one.eaten
        found, path, at_root = self._ancestor(one)
        if found is last:
            return last, None, self._kept(one, path)
        on_path = [line for line in one.eaten if line.uuid in path]
        if found is not None:
            calls = {block["id"] for block, _ in found.tool_lines()}
            lines = [self._results[c] for c in calls if c in self._results and self._results[c] not in on_path]
            return found, "rewind", [*lines, *on_path]
        if at_root and on_path:
            return None, "clear", on_path
        return last, None, one.eaten

    def _ancestor(self, one: Round) -> tuple[Round | None, set[str], bool]:
        """(nearest earlier round above it, ids of the lines in between, whether the way up ended at a root)."""
        path: set[str] = set()
        at = one.first.parent
        if at is None:
            return None, path, one.first.is_root
        while at is not None and at not in path:
            if at in self._owner:
                return self._owner[at], path, False
            path.add(at)
            if at not in self.parents:
                return None, path, False
            at = self.parents[at]
        return None, path, at is None

    def _kept(self, one: Round, path: set[str]) -> list[Line]:
        """What was really sent: a prompt that the user took back and wrote anew is left on a dead branch."""
        forks = {self.parents.get(id_) for id_ in path}
        kept = [line for line in one.eaten if not path or line.uuid in path or not _taken_back(line, forks)]
        self.report.ignore("prompts that the user took back before an answer", len(one.eaten) - len(kept))
        return kept


def _taken_back(line: Line, forks: set[str | None]) -> bool:
    results = any(b.get("type") == "tool_result" for b in line.blocks)
    return line.uuid is not None and line.parent in forks and not results and typed_by_a_person(line)
