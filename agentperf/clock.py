"""Time: the one monotonic clock of a run, and an event loop whose clock jumps to the next timer.

Every stamp is an integer of nanoseconds from one monotonic clock, never epoch arithmetic. On Linux that clock is
CLOCK_MONOTONIC and so comparable between processes.
"""

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any

NowNs = Callable[[], int]

monotonic_ns: NowNs = time.monotonic_ns


class _JumpingSelector(selectors.BaseSelector):
    """Polls the real selector, and where it would have slept, moves the clock on instead."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready:
            return ready
        if timeout is None:
            # Nothing is scheduled and no file is ready: only another thread (a signal, an executor) can wake the loop.
            return self._real.select(0.05)
        self.now += max(0.0, timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Any:
        return self._real.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time: sleeping costs nothing, and the order of events is that of their due times.

    Hand it to anyio as `backend_options={"loop_factory": VirtualLoop}`. Code under it reads the clock with
    `loop_now_ns`. Real sockets do not belong under it: the clock would run away from them.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # A timer is due when now + resolution passes its time; the real clock's resolution would let timers fire early.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now


def loop_now_ns() -> int:
    """The running loop's own clock in ns: real time on a real loop, virtual time on a VirtualLoop."""
    return round(asyncio.get_running_loop().time() * 1e9)
