"""The context filter: sessions fitted to the context that an endpoint serves, before anything is sent.

A turn does not fit when its prompt and its answer together exceed the limit. Rule `cut`: the session ends before its
first turn that does not fit, and is dropped when that leaves it fewer than two turns. Rule `drop`: a session with such
a turn is dropped whole. In both a subagent goes when the turn that started it goes, a tree goes when its root session
goes, and what waited for a turn that is gone waits for the last turn left of that session instead, or no longer.

Sizes in a trace are those of its own tokenizer, rendered text is within 2 % of them, and the cache salt comes on top.
So a small part of the served context is kept free (`usable_tokens`), and the report tells it. Nothing is done silently.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from agentperf.trace.model import Dependency, Request, SessionTrace

Rule = Literal["cut", "drop"]
MARGIN_SHARE = 0.01
MARGIN_TOKENS = 64
LEAST_TURNS = 2

Tree = list[SessionTrace]


class ContextReport(Struct, frozen=True, kw_only=True):
    """What the filter did. `sessions` counts subagents as well."""

    limit_tokens: int | None
    """The served context; None: not known, nothing was filtered."""
    usable_tokens: int | None
    """What prompt and answer together may have: the limit less the margin."""
    rule: Rule
    trees: int
    trees_dropped: int
    sessions: int
    sessions_cut: int
    sessions_dropped: int
    requests: int
    requests_left_out: int
    largest_tokens: int
    """Largest prompt and answer of the whole set."""

    @property
    def changed(self) -> bool:
        """Whether anything was left out."""
        return self.requests_left_out > 0 or self.sessions_dropped > 0

    def line(self) -> str:
        """One line for people."""
        if self.limit_tokens is None:
            return "not applied, the served context is not known"
        if not self.changed:
            return f"every session fits {self.limit_tokens:,} tokens"
        return (
            f"{self.sessions_cut} of {self.sessions} sessions cut and {self.sessions_dropped} dropped to fit "
            f"{self.usable_tokens:,} of {self.limit_tokens:,} tokens (rule {self.rule}), "
            f"{self.requests_left_out} of {self.requests} turns left out"
        )


def fit_context(
    trees: Sequence[Tree], limit_tokens: int | None, rule: Rule = "cut"
) -> tuple[list[Tree], ContextReport]:
    """The trees that fit, and what was done. The trees given are not changed. No limit: all of them."""
    usable = None if limit_tokens is None else usable_tokens(limit_tokens)
    fitted = [list(t) for t in trees] if usable is None else [_fit_tree(t, usable, rule) for t in trees]
    before = [s for t in trees for s in t]
    after = {s.session.session_id: len(s.requests) for t in fitted for s in t}
    kept = [after.get(s.session.session_id) for s in before]
    requests = sum(len(s.requests) for s in before)
    report = ContextReport(
        limit_tokens=limit_tokens,
        usable_tokens=usable,
        rule=rule,
        trees=len(trees),
        trees_dropped=sum(not t for t in fitted),
        sessions=len(before),
        sessions_cut=sum(n is not None and n < len(s.requests) for n, s in zip(kept, before, strict=True)),
        sessions_dropped=sum(n is None for n in kept),
        requests=requests,
        requests_left_out=requests - sum(after.values()),
        largest_tokens=max((r.input_tokens + r.output_tokens for s in before for r in s.requests), default=0),
    )
    return [t for t in fitted if t], report


def usable_tokens(limit_tokens: int) -> int:
    """What a prompt and its answer may have together under this limit."""
    return max(0, int(limit_tokens * (1 - MARGIN_SHARE)) - MARGIN_TOKENS)


def _fit_tree(tree: Tree, usable: int, rule: Rule) -> Tree:
    lengths = {s.session.session_id: _fitting(s.requests, usable, rule) for s in tree}
    kept: dict[str, list[Request]] = {}
    request_ids: set[str] = set()
    for item in _parents_first(tree):
        session, n = item.session, lengths[item.session.session_id]
        if n == 0 and item.requests:
            continue
        parent, spawn = session.parent_session_id, session.spawn
        if parent is not None and (parent not in kept or (spawn and spawn.by_request_id not in request_ids)):
            continue
        kept[session.session_id] = item.requests[:n]
        request_ids.update(r.request_id for r in item.requests[:n])
    return _mended(tree, kept) if tree[0].session.root_session_id in kept else []


def _fitting(requests: Sequence[Request], usable: int, rule: Rule) -> int:
    """How many leading turns stay; 0: the session goes."""
    for at, request in enumerate(requests):
        if request.input_tokens + request.output_tokens > usable:
            return at if rule == "cut" and at >= LEAST_TURNS else 0
    return len(requests)


def _parents_first(tree: Tree) -> Tree:
    parents = {s.session.session_id: s.session.parent_session_id for s in tree}

    def depth(item: SessionTrace) -> int:
        n, at = 0, item.session.parent_session_id
        while at is not None and n <= len(tree):
            n, at = n + 1, parents.get(at)
        return n

    return sorted(tree, key=depth)


def _mended(tree: Tree, kept: dict[str, list[Request]]) -> Tree:
    """The sessions kept, in the order of the tree, with nothing that refers to what is gone."""
    last: dict[str, str | None] = {}  # of every request that is gone: the one to wait for instead
    for item in tree:
        left = kept.get(item.session.session_id, [])
        instead = left[-1].request_id if left else None
        last |= {r.request_id: instead for r in item.requests[len(left) :]}
    if not last:
        return list(tree)
    return [
        SessionTrace(session=item.session, requests=[_mend(r, last, kept) for r in kept[item.session.session_id]])
        for item in tree
        if item.session.session_id in kept
    ]


def _mend(request: Request, last: dict[str, str | None], kept: dict[str, list[Request]]) -> Request:
    tools = [
        msgspec.structs.replace(t, child_session_id=None)
        if t.child_session_id is not None and t.child_session_id not in kept
        else t
        for t in request.tools_before
    ]
    return msgspec.structs.replace(request, depends_on=_mend_dependencies(request, last), tools_before=tools)


def _mend_dependencies(request: Request, last: dict[str, str | None]) -> list[Dependency] | None:
    given = request.depends_on
    if given is None or all(d.request_id not in last for d in given):
        return given
    mended: dict[str, Dependency] = {}
    for dependency in given:
        target = last.get(dependency.request_id, dependency.request_id)
        if target is not None and target != request.request_id and target not in mended:
            mended[target] = msgspec.structs.replace(dependency, request_id=target)
    return list(mended.values()) or None
