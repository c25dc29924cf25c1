"""A KV pool that counts runs of blocks instead of single ones, with the same results as `kv.KvPool`.

A prompt is named by its runs `(chain, start, end)`, one behind the other: block i of the prompt is block i of the chain
that covers it. A chain is any hashable; two prompts that name a block alike have everything before it in common. The
cost of a call does not depend on the length of a prompt but on its few runs.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from agentperf.sim.kv import Holding

Run = tuple[Hashable, int, int]


class _Piece:
    """Resident blocks `start`..`end` of a chain that have one fate: pinned by `refs`, or idle since `stamp`."""

    __slots__ = ("end", "refs", "stamp", "start")

    def __init__(self, start: int, end: int, refs: int, stamp: int) -> None:
        self.start, self.end, self.refs, self.stamp = start, end, refs, stamp


def block_count(runs: Sequence[Run]) -> int:
    """Blocks that have a name."""
    return runs[-1][2] if runs else 0


def clipped(runs: Sequence[Run], start: int, end: int) -> list[Run]:
    """What lies between two blocks of the prompt."""
    return [(c, max(a, start), min(b, end)) for c, a, b in runs if a < end and b > start]


class RunPool:
    """See `kv.Pool`; names are runs. Idle pieces are evicted oldest first, each from its tail."""

    __slots__ = ("_chains", "_idle", "_idle_blocks", "_pinned_blocks", "_stamp", "capacity", "private")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.private = 0
        self._chains: dict[Hashable, list[_Piece]] = {}
        self._idle: OrderedDict[int, Hashable] = OrderedDict()
        self._pinned_blocks = 0
        self._idle_blocks = 0
        self._stamp = 0

    @property
    def in_use(self) -> int:
        """Blocks that running sequences need."""
        return self.private + self._pinned_blocks

    @property
    def resident(self) -> int:
        """Blocks that hold something, idle ones of the cache included. Never above `capacity`."""
        return self.in_use + self._idle_blocks

    def match(self, names: Sequence[Run], limit: int) -> int:
        """How many of the first `limit` blocks are here, from the start without a gap."""
        at = 0
        for chain, start, run_end in names:
            end = min(run_end, limit)
            if start != at or start >= end:
                break
            for piece in self._chains.get(chain, ()):
                if piece.end <= at:
                    continue
                if piece.start > at or at >= end:
                    break
                at = min(piece.end, end)
            if at < end:
                break
        return at

    def admit(self, names: Sequence[Run], limit: int, blocks: int) -> Holding | None:
        """See `Pool`."""
        hits = self.match(names, limit)
        found = clipped(names, 0, hits)
        idle = 0
        for chain, start, end in found:
            for piece in self._chains[chain]:
                if not piece.refs and piece.start < end and piece.end > start:
                    idle += min(piece.end, end) - max(piece.start, start)
        if blocks - hits + idle > self.capacity - self.in_use:
            return None
        for run in found:
            self._pin(run)
        self.allocate(blocks - hits)
        holding = Holding()
        holding.names, holding.count = found, hits
        return holding

    def allocate(self, blocks: int) -> bool:
        """See `Pool`."""
        if blocks > self.capacity - self.in_use:
            return False
        over = self.resident + blocks - self.capacity
        while over > 0:
            over -= self._evict(over)
        self.private += blocks
        return True

    def publish(self, holding: Holding, names: Sequence[Run], start: int, end: int) -> None:
        """See `Pool`."""
        for chain, a, b in clipped(names, start, end):
            pieces = self._chains.setdefault(chain, [])
            at = a
            for piece in list(pieces):
                if piece.end <= at or piece.start >= b:
                    continue
                if piece.start > at:
                    self._add(holding, chain, pieces, at, piece.start)
                at = piece.end
            if at < b:
                self._add(holding, chain, pieces, at, b)

    def _add(self, holding: Holding, chain: Hashable, pieces: list[_Piece], start: int, end: int) -> None:
        pieces.append(_Piece(start, end, 1, 0))
        if len(pieces) > 1:
            pieces.sort(key=lambda p: p.start)
            _merge(pieces)
        self.private -= end - start
        self._pinned_blocks += end - start
        holding.count += end - start
        last = holding.names[-1] if holding.names else None
        if last is not None and last[0] == chain and last[2] == start:
            holding.names[-1] = (chain, last[1], end)
        else:
            holding.names.append((chain, start, end))

    def release(self, holding: Holding, private: int) -> None:
        """See `Pool`."""
        self.private -= private
        for chain, start, end in reversed(holding.names):
            pieces = self._cut(chain, start, end)
            for piece in reversed(pieces):
                if not start <= piece.start < end:
                    continue
                piece.refs -= 1
                if not piece.refs:
                    self._stamp += 1
                    piece.stamp = self._stamp
                    self._idle[self._stamp] = chain
                    self._pinned_blocks -= piece.end - piece.start
                    self._idle_blocks += piece.end - piece.start
            _merge(pieces)
        holding.names, holding.count = [], 0

    def _pin(self, run: Run) -> None:
        chain, start, end = run
        pieces = self._cut(chain, start, end)
        for piece in pieces:
            if not start <= piece.start < end:
                continue
            if not piece.refs:
                self._pinned_blocks += piece.end - piece.start
                self._idle_blocks -= piece.end - piece.start
                stamp, piece.stamp = piece.stamp, 0
                self._forget(stamp, pieces)
            piece.refs += 1
        _merge(pieces)

    def _cut(self, chain: Hashable, start: int, end: int) -> list[_Piece]:
        """Split pieces so that none reaches over `start` or `end`; both halves of an idle one keep their stamp."""
        pieces = self._chains[chain]
        for at in (start, end):
            for index, piece in enumerate(pieces):
                if piece.start < at < piece.end:
                    pieces.insert(index + 1, _Piece(at, piece.end, piece.refs, piece.stamp))
                    piece.end = at
                    break
        return pieces

    def _forget(self, stamp: int, pieces: list[_Piece]) -> None:
        """Drop a stamp from the order of eviction when no piece has it any more."""
        if all(piece.stamp != stamp for piece in pieces):
            del self._idle[stamp]

    def _evict(self, most: int) -> int:
        """Drop up to `most` blocks of the piece that has been idle longest, from its tail; how many it were."""
        stamp, chain = next(iter(self._idle.items()))
        pieces = self._chains[chain]
        index = max(i for i, piece in enumerate(pieces) if piece.stamp == stamp and not piece.refs)
        piece = pieces[index]
        count = min(most, piece.end - piece.start)
        piece.end -= count
        self._idle_blocks -= count
        if piece.start == piece.end:
            del pieces[index]
            self._forget(stamp, pieces)
            if not pieces:
                del self._chains[chain]
        return count


def _merge(pieces: list[_Piece]) -> None:
    """Join neighbours that are pinned by equally many."""
    index = 1
    while index < len(pieces):
        before, piece = pieces[index - 1], pieces[index]
        if before.end == piece.start and before.refs == piece.refs > 0:
            before.end = piece.end
            del pieces[index]
        else:
            index += 1
