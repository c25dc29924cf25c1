"""The KV pool: a fixed number of blocks, some private to a running sequence, some shared by the hash of their prefix.

A block of prompt gets its hash (which covers everything before it as well) once it has been prefilled, and may from
then on be used by other sequences. Blocks that nobody uses stay until room is needed: least recently used first.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class KvPool:
    """Counts blocks; holds no data. `private` blocks belong to one sequence, hashed ones to all who pin them."""

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

    def match(self, hashes: Sequence[Hashable], limit: int) -> int:
        """How many of the first `limit` blocks are here, from the start without a gap."""
        found = 0
        for block in hashes[:limit]:
            if block not in self._pinned and block not in self._idle:
                break
            found += 1
        return found

    def idle_among(self, hashes: Sequence[Hashable]) -> int:
        """How many of these resident blocks are idle: pinning them takes as much from what can be allocated."""
        return sum(block in self._idle for block in hashes)

    def pin(self, hashes: Sequence[Hashable]) -> None:
        """Use these resident blocks."""
        for block in hashes:
            if block in self._idle:
                del self._idle[block]
                self._pinned[block] = 1
            else:
                self._pinned[block] += 1

    def allocate(self, blocks: int) -> bool:
        """Take private blocks, evicting idle ones; False, and nothing is taken, when there are not enough."""
        if blocks > self.capacity - self.in_use:
            return False
        for _ in range(self.resident + blocks - self.capacity):
            self._idle.popitem(last=False)
        self.private += blocks
        return True

    def publish(self, block: Hashable) -> bool:
        """Turn a private block into a pinned one under its hash; False when the hash is taken: it stays private."""
        if block in self._pinned or block in self._idle:
            return False
        self.private -= 1
        self._pinned[block] = 1
        return True

    def release(self, hashes: Sequence[Hashable], private: int) -> None:
        """Give back pinned and private blocks. The tail of a prefix is evicted before its head."""
        self.private -= private
        for block in reversed(hashes):
            left = self._pinned[block] - 1
            if left:
                self._pinned[block] = left
            else:
                del self._pinned[block]
                self._idle[block] = None
