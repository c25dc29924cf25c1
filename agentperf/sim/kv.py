"""The KV pool: a fixed number of blocks, some private to a running sequence, some shared by the hash of their prefix.

A block of prompt gets its hash (which covers everything before it as well) once it has been prefilled, and may from
then on be used by other sequences. Blocks that nobody uses stay until room is needed: least recently used first.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Protocol


class Holding:
    """The named blocks that one sequence has pinned; what `names` holds is the pool's own affair."""

    __slots__ = ("count", "names")

    def __init__(self) -> None:
        self.names: list[Any] = []
        self.count = 0


class Pool(Protocol):
    """Counts blocks; holds no data. `private` blocks belong to one sequence, named ones to all who pin them."""

    capacity: int
    private: int

    @property
    def in_use(self) -> int:
        """Blocks that running sequences need."""

    @property
    def resident(self) -> int:
        """Blocks that hold something, idle ones of the cache included. Never above `capacity`."""

    def admit(self, names: Sequence[Any], limit: int, blocks: int) -> Holding | None:
        """Room for a sequence of `blocks` blocks: of the first `limit` names what is here, from the start without a
        gap, is pinned, the rest is private. None, and nothing is taken, when there is not enough room."""

    def allocate(self, blocks: int) -> bool:
        """Take private blocks, evicting idle ones; False, and nothing is taken, when there are not enough."""

    def publish(self, holding: Holding, names: Sequence[Any], start: int, end: int) -> None:
        """Turn the private blocks `start`..`end` into pinned ones by name; those whose name is taken stay private."""

    def release(self, holding: Holding, private: int) -> None:
        """Give back all that a sequence has. The tail of a prefix is evicted before its head."""


class KvPool:
    """A pool whose names are one hashable for each block: for prompts of any origin."""

    __slots__ = ("_idle", "_pinned", "capacity", "private")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.private = 0
        self._pinned: dict[Hashable, int] = {}
        self._idle: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def in_use(self) -> int:
        """Blocks that running sequences need."""
        return self.private + len(self._pinned)

    @property
    def resident(self) -> int:
        """Blocks that hold something, idle ones of the cache included. Never above `capacity`."""
        return self.in_use + len(self._idle)

    def match(self, names: Sequence[Hashable], limit: int) -> int:
        """How many of the first `limit` blocks are here, from the start without a gap."""
        found = 0
        for block in names[:limit]:
            if block not in self._pinned and block not in self._idle:
                break
            found += 1
        return found

    def admit(self, names: Sequence[Hashable], limit: int, blocks: int) -> Holding | None:
        """See `Pool`."""
        found = list(names[: self.match(names, limit)])
        idle = sum(block in self._idle for block in found)  # pinning them takes as much from what can be allocated
        if blocks - len(found) + idle > self.capacity - self.in_use:
            return None
        for block in found:
            if block in self._idle:
                del self._idle[block]
                self._pinned[block] = 1
            else:
                self._pinned[block] += 1
        self.allocate(blocks - len(found))
        holding = Holding()
        holding.names, holding.count = found, len(found)
        return holding

    def allocate(self, blocks: int) -> bool:
        """See `Pool`."""
        if blocks > self.capacity - self.in_use:
            return False
        for _ in range(self.resident + blocks - self.capacity):
            self._idle.popitem(last=False)
        self.private += blocks
        return True

    def publish(self, holding: Holding, names: Sequence[Hashable], start: int, end: int) -> None:
        """See `Pool`."""
        for block in names[start:end]:
            if block in self._pinned or block in self._idle:
                continue
            self.private -= 1
            self._pinned[block] = 1
            holding.names.append(block)
            holding.count += 1

    def release(self, holding: Holding, private: int) -> None:
        """See `Pool`."""
        self.private -= private
        for block in reversed(holding.names):
            left = self._pinned[block] - 1
            if left:
                self._pinned[block] = left
            else:
                del self._pinned[block]
                self._idle[block] = None
        holding.names, holding.count = [], 0
