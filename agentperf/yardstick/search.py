"""Which level to try next: a pure function of what was tried. Double until one does not pass, then bisect."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Verdict = Literal["pass", "fail", "server"]
"""Of a probe: within the bounds; the client beyond one; the reference server could not hold the pace."""
Limit = Literal["client", "server", "max-streams", "budget", "error", "interrupted"]
Stopped = Literal["budget", "error", "interrupted"]
"""What keeps the answer from being larger."""


class Answer(Struct, frozen=True, kw_only=True):
    """What a search found."""

    streams: int
    """The largest level that passed; 0 when none did."""
    limit: Limit
    smallest_miss: int | None
    """The smallest level above it that did not pass."""

    @property
    def at_least(self) -> bool:
        """The client was not the limit: it may well drive more."""
        return self.limit != "client"


def bracket(tried: Mapping[int, Verdict]) -> tuple[int, int | None]:
    """(largest level that passed, smallest above it that did not).

    A level that passed overrules smaller ones that did not: a disturbance makes levels miss, and none makes one pass.
    """
    low = max((n for n, verdict in tried.items() if verdict == "pass"), default=0)
    return low, min((n for n, verdict in tried.items() if verdict != "pass" and n > low), default=None)


def next_level(tried: Mapping[int, Verdict], start: int, max_streams: int, resolution: float) -> int | None:
    """The next level to probe, None when the answer is known to within `resolution` (a share of the level)."""
    low, high = bracket(tried)
    if not tried:
        return max(1, min(start, max_streams))
    if high is None:
        return min(2 * low, max_streams) if low < max_streams else None
    if low == 0:
        return high // 2 or None
    if high - low <= max(1.0, resolution * high):
        return None
    middle = (low + high) // 2
    return middle if low < middle < high else None


def answer(tried: Mapping[int, Verdict], *, stopped: Stopped | None, resolved: bool) -> Answer:
    """What the levels tried so far say. `stopped` names why the search ended before it was `resolved`."""
    low, high = bracket(tried)
    if not resolved and stopped is not None:
        limit: Limit = stopped
    elif high is None:
        limit = "max-streams"
    else:
        limit = "server" if tried[high] == "server" else "client"
    return Answer(streams=low, limit=limit, smallest_miss=high)
