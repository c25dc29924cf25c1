"""What the validator must remember of earlier prompts: how long each is, in messages, segments, blocks and tokens.

Bounded by the number of requests, segments and hashes of a file, never by its content.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from agentperf.trace.model import Append, Full, Request, Shape, Splice

Hash = int | str
Fault = tuple[str, str]
"""(field, what is wrong with it)."""


@dataclass(slots=True)
class Segments:
    """Sizes of a prompt's segments: the first `keep` of `base`, then `own`."""

    base: "Segments | None"
    keep: int
    own: list[int]
    count: int = 0
    total: int = 0

    def __post_init__(self) -> None:
        self.count = self.keep + len(self.own)
        self.total = prefix_tokens(self.base, self.keep) + sum(self.own)


def prefix_tokens(segments: Segments | None, n: int) -> int:
    """Tokens in the first `n` segments."""
    tokens = 0
    while segments is not None and n < segments.count:
        if n > segments.keep:
            tokens += sum(segments.own[: n - segments.keep])
            n = segments.keep
        segments = segments.base
    return tokens + (segments.total if segments is not None else 0)


@dataclass(slots=True)
class Prompt:
    """One request as its successors need it. `messages` or `segments` is None where the prompt has none to keep."""

    messages: int | None
    segments: Segments | None
    blocks: int
    last_block: Hash | None
    total_tokens: int
    """Prompt and answer together: the most that a later prompt can share with this one."""


@dataclass(slots=True)
class PromptLog:
    """Prompts of one file in its order, and the tree of block hashes of each scope."""

    block_size: int | None
    before: dict[str, dict[Hash, Hash | None]] = field(default_factory=dict)
    """By scope: the block that precedes each block. Equal hashes mean equal prefixes just when it never changes."""

    def add(self, request: Request, parent: Prompt | None, scope: str) -> tuple[Prompt, list[Fault]]:
        """The request's prompt, built on that of its parent, and what is wrong with it."""
        faults: list[Fault] = []
        given = request.input
        messages: int | None = None
        segments: Segments | None = None
        blocks, last = 0, None
        if isinstance(given, Shape):
            segments = _segments(given, parent, faults)
            blocks, last = self._blocks(given, parent, scope, faults)
            faults += self._sizes(request, given, segments, blocks)
        else:
            messages = _messages(given, parent, faults)
        total = request.input_tokens + request.output_tokens
        return Prompt(messages, segments, blocks, last, total), faults

    def _blocks(self, given: Shape, parent: Prompt | None, scope: str, faults: list[Fault]) -> tuple[int, Hash | None]:
        before = self.before.setdefault(scope, {})
        keep = given.keep_blocks or 0
        there = parent.blocks if parent else 0
        if keep < 0 or keep > there:
            faults.append(("input.keep_blocks", f"keeps {keep} blocks, the parent has {there}"))
            keep = max(0, min(keep, there))
        last = parent.last_block if parent and keep else None
        for _ in range(there - keep if keep else 0):
            last = before.get(last) if last is not None else None
        for i, block in enumerate(given.block_hashes):
            known = before.setdefault(block, last)
            if known != last:
                what = f"block {block!r} follows {_name(last)} here, but {_name(known)} earlier"
                faults.append((f"input.block_hashes[{i}]", f"{what}: equal hashes must mean equal prefixes"))
                break
            last = block
        n = keep + len(given.block_hashes)
        return n, given.block_hashes[-1] if given.block_hashes else last

    def _sizes(self, request: Request, given: Shape, segments: Segments, blocks: int) -> Iterator[Fault]:
        if segments.total > request.input_tokens:
            yield "input_tokens", f"{request.input_tokens}, but the segments of the prompt hold {segments.total}"
        tail = given.tail_tokens
        if blocks and self.block_size is None:
            yield "input.block_hashes", "given, but the header has no block_size"
        if self.block_size is None:
            return
        hashed = blocks * self.block_size
        if hashed + (tail or 0) > request.input_tokens:
            yield "input_tokens", f"{request.input_tokens}, but blocks and tail hold {hashed + (tail or 0)}"
        elif blocks and tail is not None and hashed + tail < request.input_tokens:
            yield "input.tail_tokens", f"{tail}, but {request.input_tokens - hashed} of the prompt follow its blocks"
        if tail is not None and not 0 <= tail < self.block_size:
            yield "input.tail_tokens", f"{tail} is not within a block of {self.block_size}"


def _name(block: Hash | None) -> str:
    return "nothing" if block is None else repr(block)


def _messages(given: Append | Full | Splice, parent: Prompt | None, faults: list[Fault]) -> int | None:
    new = len(given.messages)
    if isinstance(given, Full):
        return new
    there = parent.messages if parent else 0
    if isinstance(given, Append):
        return None if there is None else there + new
    if there is None:
        faults.append(("input.keep_messages", "the parent's prompt is a shape and has no messages to keep"))
        return None
    if not 0 <= given.keep_messages <= there:
        faults.append(("input.keep_messages", f"keeps {given.keep_messages} messages, the parent has {there}"))
    return max(0, min(given.keep_messages, there)) + new


def _segments(given: Shape, parent: Prompt | None, faults: list[Fault]) -> Segments:
    own = [max(0, s.tokens) for s in given.segments]
    if given.keep_segments is None:
        return Segments(None, 0, own)
    base = parent.segments if parent else None
    there = base.count if base else 0
    keep = given.keep_segments
    if not 0 <= keep <= there:
        why = "the parent has" if base else "there is no parent with segments, so"
        faults.append(("input.keep_segments", f"keeps {keep} segments, {why} {there}"))
        keep = max(0, min(keep, there))
    return Segments(base, keep, own)


@dataclass(slots=True)
class Dependencies:
    """Which request waits for which, to find the ones that wait for each other."""

    edges: dict[str, list[str]] = field(default_factory=dict)

    def cycles(self) -> list[list[str]]:
        """Cycles as lists of request ids, each starting at its first request in the file; one for each knot."""
        stuck = self._stuck()
        done: set[str] = set()
        found = []
        order = {id_: i for i, id_ in enumerate(self.edges)}
        for start in stuck:
            path: dict[str, None] = {}
            at: str | None = start
            while at is not None and at not in done and at not in path:
                path[at] = None
                at = next((d for d in self.edges[at] if d in stuck), None)
            if at in path:
                ids = list(path)
                cycle = ids[ids.index(at) :]
                first = cycle.index(min(cycle, key=order.__getitem__))
                found.append(cycle[first:] + cycle[:first])
            done.update(path)
        return found

    def _stuck(self) -> dict[str, None]:
        """Requests that can never start, by Kahn's algorithm: those in a cycle or behind one, in file order."""
        waiting = {id_: sum(d in self.edges for d in deps) for id_, deps in self.edges.items()}
        behind: dict[str, list[str]] = {}
        for id_, deps in self.edges.items():
            for d in deps:
                behind.setdefault(d, []).append(id_)
        ready = [id_ for id_, n in waiting.items() if n == 0]
        while ready:
            id_ = ready.pop()
            del waiting[id_]
            for other in behind.get(id_, ()):
                waiting[other] -= 1
                if waiting[other] == 0:
                    ready.append(other)
        return dict.fromkeys(waiting)
