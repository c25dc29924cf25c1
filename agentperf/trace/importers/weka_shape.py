"""Prompts of one line of weka calls as shapes: block hashes by difference, and segments that add up to each prompt."""

from dataclasses import dataclass, field
from itertools import pairwise

from agentperf.trace.importers.result import ImportReport
from agentperf.trace.importers.weka_calls import Block, Call, common
from agentperf.trace.model import PrefixEvent, Segment, Shape

_MOSTLY = 0.8
"""A prompt that breaks but stays this long was changed in the middle, not cut."""


@dataclass(slots=True)
class Blocks:
    """Makes block lists of one trace hold what the format promises: whole blocks only, equal hashes, equal prefixes."""

    size: int
    before: dict[Block, Block | None] = field(default_factory=dict)

    def check(self, call: Call, report: ImportReport) -> None:
        """Cut what is no whole block or contradicts an earlier prompt, and count the leading blocks seen before."""
        whole = call.tokens // self.size
        if len(call.blocks) > whole:
            report.estimate("prompts with a hash of their last, partial block: the hash is dropped")
        elif call.blocks and len(call.blocks) < whole:
            report.note("prompts with fewer hashes than whole blocks")
        del call.blocks[whole:]
        last: Block | None = None
        known = True
        for n, block in enumerate(call.blocks):
            seen = block in self.before
            if seen and self.before[block] != last:
                report.estimate("prompts with hashes that contradict an earlier prompt: dropped from there on")
                del call.blocks[n:]
                break
            known = known and seen
            call.shared += known
            self.before[block] = last
            last = block

    def tail(self, call: Call) -> int | None:
        """Tokens after the last block; None where hashes are missing."""
        left = call.tokens - len(call.blocks) * self.size
        return left if left < self.size else None


@dataclass(slots=True)
class Line:
    """The calls of one session, in order, with the sizes of what stands before the first message."""

    calls: list[Call]
    system_tokens: int
    tool_tokens: int
    block_size: int
    kept: list[int | None] = field(default_factory=list)
    """Tokens of the prompt before that each call keeps; None when it keeps all of it."""

    def __post_init__(self) -> None:
        self.kept = [0]
        for before, call in pairwise(self.calls):
            same = common(before, call)
            grows = same == len(before.blocks) and call.tokens >= before.tokens and bool(before.blocks)
            self.kept.append(None if grows else same * self.block_size)

    @property
    def lead(self) -> int:
        """Tokens of system prompt and tools."""
        return self.system_tokens + self.tool_tokens


def shapes(line: Line, blocks: Blocks, report: ImportReport) -> list[tuple[Shape, PrefixEvent | None]]:
    """The prompt of each call, as it differs from the one before, and why the prefix broke where it did."""
    out: list[tuple[Shape, PrefixEvent | None]] = []
    prompt: list[Segment] = []  # of the call before
    for at, call in enumerate(line.calls):
        event = _event(line, at)
        if at == 0:
            keep, new = 0, _opening(line)
        elif line.kept[at] is None:
            keep, new = len(prompt), _growth(line, at, report)
        else:
            keep, new = _after_break(line, at, prompt, event, report)
        prompt = [*prompt[:keep], *new]
        same = common(line.calls[at - 1], call) if at else 0
        shape = Shape(
            segments=new,
            keep_segments=keep if at else None,
            block_hashes=list(call.blocks[same:]),
            keep_blocks=same if at else None,
            tail_tokens=blocks.tail(call),
        )
        out.append((shape, event))
    return out


def _opening(line: Line) -> list[Segment]:
    first = line.calls[0]
    out = []
    if line.system_tokens:
        out.append(Segment(role="system", kind="system", tokens=line.system_tokens))
    if line.tool_tokens:
        out.append(Segment(role="system", kind="tools", tokens=line.tool_tokens))
    return out + _user(line, 0, line.lead, first.tokens)


def _growth(line: Line, at: int, report: ImportReport) -> list[Segment]:
    """The answer of the call before, then what came in.

    An answer that is longer than the growth held thinking, which is not sent again; how much of it is left is not in
    the file, so half of the growth is taken for it.
    """
    before, call = line.calls[at - 1], line.calls[at]
    grown = call.tokens - before.tokens
    answer = before.output
    if answer >= grown > 0:
        answer = grown // 2
        report.estimate("sizes of answers in later prompts, where their thinking is left out")
    answer = min(answer, grown)
    out = []
    if answer:
        out.append(Segment(role="assistant", kind="assistant", tokens=answer))
    if answer and "tool_result" in call.input_types:
        out.append(Segment(role="tool", kind="tool_result", tokens=grown - answer))
        return out
    return out + _user(line, at, before.tokens + answer, call.tokens)


def _after_break(
    line: Line, at: int, prompt: list[Segment], event: PrefixEvent | None, report: ImportReport
) -> tuple[int, list[Segment]]:
    """Whole segments within the kept blocks, then one for all the rest."""
    call, kept = line.calls[at], line.kept[at] or 0
    keep = held = 0
    while keep < len(prompt) and held + prompt[keep].tokens <= min(kept, call.tokens - 1):
        held += prompt[keep].tokens
        keep += 1
    if keep and prompt[keep - 1].role == "assistant":  # an answer whose tool results are gone cannot end a prompt
        keep -= 1
        held -= prompt[keep].tokens
    if kept - held > line.block_size:
        report.note("prefix breaks within an answer or a tool result: filler shares less than the recording did")
    if event is not None and event.type == "compaction" and call.tokens > held:
        return keep, [Segment(role="user", kind="summary", tokens=call.tokens - held)]
    return keep, _user(line, at, held, call.tokens)


def _user(line: Line, at: int, start: int, end: int) -> list[Segment]:
    """What the user said, from token `start` to `end` of the prompt of call `at`.

    It is split where a later prompt breaks off, so that what both have in common is a segment of its own.
    """
    cuts: list[int] = []
    left = end
    for kept in line.kept[at + 1 :]:
        if kept is not None and kept < left:
            if kept <= start:
                break
            cuts.append(kept)
            left = kept
    edges = [start, *sorted(cuts), end]
    return [Segment(role="user", kind="user", tokens=b - a) for a, b in pairwise(edges) if b > a]


def _event(line: Line, at: int) -> PrefixEvent | None:
    """What a break looks like; the file does not say why it happened."""
    kept = line.kept[at]
    if at == 0 or kept is None:
        return None
    before, call = line.calls[at - 1], line.calls[at]
    kept = min(kept, call.tokens)
    made = PrefixEvent(type="rewind", kept_tokens=kept, dropped_tokens=max(0, before.tokens - kept))
    if call.model != before.model:
        made.type = "model_switch"
    elif call.tokens >= _MOSTLY * before.tokens:
        made.type = "tools_changed" if kept < line.lead else "prune"
    elif kept < before.tokens / 2:
        made.type = "compaction"
    return made
