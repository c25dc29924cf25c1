"""Prompts known by the hashes of their blocks: equal leading blocks are given an equal leading text.

Every token position of a block has its place in a text that depends on the block's hash and scope alone. A message
covers a stretch of positions and takes the text that lies there, its frame standing for the first few. The tail of a
prompt, which has no hash, takes the text of the block that lies there in the next prompt, so that it stays a prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentperf.trace.model import Request, Shape
from agentperf.trace.render_pieces import Frame, Piece
from agentperf.trace.text import filler, seed_of

Hash = int | str
_LEAST = 24  # tokens of a message; a shorter stretch joins its neighbour
_LEAST_CHARS = 8


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of one prompt: whole ones by hash, and the token count."""

    hashes: tuple[Hash, ...]
    tokens: int


class BlockText:
    """Text by block, for one scope of hashes."""

    def __init__(self, scope: str, size: int, frame: Frame) -> None:
        self._scope = scope
        self._size = size
        self._frame = frame
        self._made: dict[Hash, tuple[str, float]] = {}

    def _block(self, block: Hash) -> tuple[str, float]:
        """(text of the block, characters per token of it)."""
        if block not in self._made:
            seed = seed_of("block", self._scope, block)
            kind = ("prose", "log", self._frame.code, self._frame.code)[seed % 4]
            cpt = self._frame.sizes.cpt(kind)
            self._made[block] = filler(kind, seed, round(self._size * cpt)), cpt
        return self._made[block]

    def between(self, blocks: Sequence[Hash], start: float, end: float) -> tuple[str, float]:
        """The text at token positions [start, end), and its predicted tokens."""
        parts: list[str] = []
        tokens = 0.0
        for i in range(int(start) // self._size, -(-int(end) // self._size) if end > start else 0):
            text, cpt = self._block(blocks[i])
            low, high = max(0.0, start - i * self._size), min(float(self._size), end - i * self._size)
            part = text[round(low * cpt) : round(high * cpt)]
            parts.append(part)
            tokens += len(part) / cpt
        return "".join(parts), tokens


def blocks_of(requests: Sequence[Request], inherited: Blocks | None) -> list[Blocks | None]:
    """The blocks of each request's prompt; None for a request that is known otherwise."""
    result: list[Blocks | None] = []
    before = inherited
    for request in requests:
        given = request.input
        if isinstance(given, Shape) and (given.block_hashes or given.keep_blocks):
            kept = before.hashes[: given.keep_blocks] if before and given.keep_blocks else ()
            before = Blocks((*kept, *given.block_hashes), request.input_tokens)
            result.append(before)
        else:
            before = None
            result.append(None)
    return result


def covering(prompts: Sequence[Blocks | None], at: int, size: int) -> list[Hash]:
    """Blocks under every token of prompt `at`: its own, and for its tail those of the next prompt, or made-up ones."""
    own = prompts[at]
    assert own is not None
    needed = -(-own.tokens // size)
    blocks = list(own.hashes[:needed])
    following = prompts[at + 1] if at + 1 < len(prompts) else None
    if following is not None and following.hashes[: len(blocks)] == own.hashes[:needed]:
        blocks += following.hashes[len(blocks) : needed]
    last = blocks[-1] if blocks else "start"
    blocks += [f"tail {last} {i}" for i in range(len(blocks), needed)]
    return blocks


def block_pieces(
    blocks: Sequence[Hash],
    tokens: int,
    common: int,
    answer: int,
    before: Sequence[Piece],
    system: int,
    frame: Frame,
    text: BlockText,
) -> tuple[int, list[Piece]]:
    """(messages kept of the prompt `before`, messages that follow them).

    `common` is how many leading tokens the prompt shares with `before`, `answer` the size of the answer to it, `system`
    that of system prompt and tools, which are the first message.
    """
    kept = 0
    while kept < len(before) and before[kept].end <= common:
        kept += 1
    start = before[kept - 1].end if kept else 0
    spans: list[tuple[str, int]] = []  # (role, end)
    if not kept and system >= _LEAST and tokens >= 2 * _LEAST:
        spans.append(("system", min(system, tokens - _LEAST)))
    elif kept and kept == len(before):
        end = min(start + answer, tokens - _LEAST)
        if end - start >= _LEAST:
            spans.append(("assistant", end))
    elif kept and before[kept].message["role"] == "assistant":
        end = min(common, tokens - _LEAST)
        if end - start >= _LEAST:
            spans.append(("assistant", end))
    if tokens > start:
        spans.append(("user", tokens))
    pieces = []
    for role, end in spans:
        pieces.append(_piece(role, start, end, blocks, frame, text, first=start == 0))
        start = end
    return kept, pieces


def _piece(
    role: str, start: int, end: int, blocks: Sequence[Hash], frame: Frame, text: BlockText, *, first: bool
) -> Piece:
    own = 0.0 if first and role == "system" else frame.sizes.frame(role)
    framed = own + (frame.fixed if first else 0.0)
    content, tokens = text.between(blocks, start + framed, end)
    if len(content) < _LEAST_CHARS:
        content = filler("prose", seed_of("short", blocks[-1], start), _LEAST_CHARS)
        tokens = frame.sizes.text("prose", _LEAST_CHARS)
    return Piece({"role": role, "content": content}, tokens + own, end=end)
