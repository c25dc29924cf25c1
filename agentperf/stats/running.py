"""Exact percentiles of numbers that keep coming, without sorting them again at each look."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

BLOCK: Final = 1024
"""A block is split at twice this size: an insertion moves at most that many numbers."""


class RunningValues:
    """Numbers in order, in blocks. Adding one costs a search among blocks and a move inside one; nothing is dropped.

    Infinite values take part (a failed request), nan may not be added (ValueError).
    """

    __slots__ = ("_blocks", "_count", "_tops", "_total", "moves")

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._blocks: list[list[float]] = []
        self._tops: list[float] = []
        self._count = 0
        self._total = 0.0
        self.moves = 0
        """Numbers that were moved or looked at to make room: the work done so far."""
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return self._count

    def add(self, value: float) -> None:
        """Take one number."""
        if value != value:
            raise ValueError("nan has no place in an order")
        self._count += 1
        self._total += value
        if not self._blocks:
            self._blocks.append([value])
            self._tops.append(value)
            return
        at = min(bisect_left(self._tops, value), len(self._tops) - 1)
        block = self._blocks[at]
        insort(block, value)
        self._tops[at] = block[-1]
        self.moves += len(block)
        if len(block) > 2 * BLOCK:
            self._blocks[at : at + 1] = [block[:BLOCK], block[BLOCK:]]
            self._tops[at : at + 1] = [block[BLOCK - 1], block[-1]]
            self.moves += len(self._blocks)

    def mean(self) -> float | None:
        """Arithmetic mean; None without a number."""
        return self._total / self._count if self._count else None

    def max(self) -> float | None:
        """The largest number; None without one."""
        return self._tops[-1] if self._tops else None

    def at_rank(self, rank: int) -> float:
        """The number at this place of the order, from 0."""
        if not 0 <= rank < self._count:
            raise IndexError(rank)
        block, place = self._find(rank)
        return self._blocks[block][place]

    def _find(self, rank: int) -> tuple[int, int]:
        for number, block in enumerate(self._blocks):
            if rank < len(block):
                return number, rank
            rank -= len(block)
        raise AssertionError("blocks hold every number")

    def percentile(self, percent: float) -> float | None:
        """numpy's "linear", 0 <= percent <= 100. Between a finite number and infinity it is infinite; None if empty."""
        if not self._count:
            return None
        place = (self._count - 1) * percent / 100
        low = int(place)
        part = place - low
        block, at = self._find(low)
        below = self._blocks[block][at]
        if part == 0:
            return below
        above = self._blocks[block][at + 1] if at + 1 < len(self._blocks[block]) else self._blocks[block + 1][0]
        return below if below == above else below + (above - below) * part
