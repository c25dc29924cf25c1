"""Time: the one monotonic clock of a run, and an event loop whose clock jumps to the next timer.

Every stamp is an integer of nanoseconds from one monotonic clock, never epoch arithmetic. On Linux that clock is
CLOCK_MONOTONIC and so comparable between processes.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Any

NowNs = Callable[[], int]

monotonic_ns: NowNs = time.monotonic_ns

_ROUNDS_A_POLL = 64
"""Rounds of the loop between two looks at real files: a signal or another thread is heard within a few ms."""
_IDLE_S = 0.05
"""Where nothing is scheduled only a signal or another thread can wake the loop: real time to wait for it at once."""
_FEW = 256


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time: sleeping costs nothing, and the order of events is that of their due times.

    Timers that are due at the same time fire in the order in which they were set. Hand it to anyio as
    `backend_options={"loop_factory": VirtualLoop}`. Code under it reads the clock with `loop_now_ns`. Real sockets do
    not belong under it: the clock would run away from them.
    """

    # The base class keeps its timers in a heap that compares them in Python and asks the selector in every round; in
    # virtual time these two would be most of its cost. So the round is written anew, on the same queue of handles.
    _ready: "Any"

    def __init__(self) -> None:
        self._now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self._cancelled = 0
        self._rounds = 0
        super().__init__()

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._order), handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        """Called by the handle; without this, deadlines that were not needed would pile up until they are due."""
        self._cancelled += 1
        if self._cancelled > _FEW and 2 * self._cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapify(self._timers)
            self._cancelled = 0

    def _poll(self, timeout_s: float) -> None:
        events = self._selector.select(timeout_s)  # type: ignore[attr-defined]
        self._process_events(events)  # type: ignore[attr-defined]

    def _run_once(self) -> None:
        """One round: what is ready, else what is due next, the clock being set to it."""
        ready = self._ready
        self._rounds += 1
        if not self._rounds % _ROUNDS_A_POLL:
            self._poll(0)
        if not ready:
            self._jump()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 - as the base class does

    def _jump(self) -> None:
        """Move the clock to the next timer and make all that are due then ready."""
        timers, ready = self._timers, self._ready
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not timers:
            self._poll(_IDLE_S)
            return
        now_s = self._now_s = max(self._now_s, timers[0][0])
        while timers and timers[0][0] <= now_s:
            ready.append(heappop(timers)[2])


def loop_now_ns() -> int:
    """The running loop's own clock in ns: real time on a real loop, virtual time on a VirtualLoop."""
    return round(asyncio.get_running_loop().time() * 1e9)
