"""Which replica serves a request: the one that served the prompt before it, else the one with the least to do."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

MOST_KEYS = 200_000


class Router:
    """Session affinity, as a gateway that knows prefixes has it; forgets what was used longest ago.

    A request is known by the name of its last block (or of its last run of blocks), and the next turn of its session
    has that name in its prompt.
    """

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._where: OrderedDict[Hashable, int] = OrderedDict()

    def choose(self, keys: Iterable[Hashable], load: Callable[[int], int]) -> int:
        """A replica by the names of a prompt, last one first; `load` tells how many jobs a replica has."""
        if self._replicas == 1:
            return 0
        latest: Hashable = None
        found: int | None = None
        for key in keys:
            latest = key if latest is None else latest
            found = self._where.get(key)
            if found is not None:
                self._where.move_to_end(key)
                break
        chosen = found if found is not None else min(range(self._replicas), key=load)
        if latest is not None:
            self._where[latest] = chosen
            if len(self._where) > MOST_KEYS:
                self._where.popitem(last=False)
        return chosen
