"""Waiting for sockets with a limit finer than a millisecond, which epoll's own limit is rounded up to."""

import select
import selectors
from collections.abc import Callable

Ready = list[tuple[selectors.SelectorKey, int]]

_LARGEST_FD = 1024
"""select(2) takes no descriptor from here on."""


def fine_wait(selector: selectors.BaseSelector) -> Callable[[float], Ready]:
    """A function that waits at most the given seconds. Where the selector is a descriptor itself, select(2) watches it.

    select(2) takes microseconds, also on the kernels and Python versions whose epoll_wait takes milliseconds.
    """
    fileno = getattr(selector, "fileno", None)
    if fileno is None or fileno() >= _LARGEST_FD:
        return selector.select
    descriptor = [fileno()]

    def wait(limit_s: float) -> Ready:
        if limit_s > 0 and not select.select(descriptor, (), (), limit_s)[0]:
            return []
        return selector.select(0)

    return wait
