"""How late this process reads its sockets, sampled on a fixed grid of times.

On Linux a kernel timer (timerfd) becomes readable at each time of the grid and waits in the same queue as the sockets,
so its lateness is the time that data waited in the kernel before the loop read it. Elsewhere, and in virtual time, a
timer of the loop stands for it. A pause counts with every time of the grid that fell into it: one sample a wake-up
would make a pause of 100 ms weigh as little as a moment.
"""

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Iterator

import anyio

from agentperf.clock import NowNs, monotonic_ns

TICK_S = 0.02
_TICK_NS = round(TICK_S * 1e9)
MOST_AT_ONCE = 3_000
"""Samples that one pause may count for, a minute's worth: after a night's sleep more would tell no more."""

_CLOCK_MONOTONIC = 1
_ABSTIME = 1
_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000


def latenesses(due_ns: int, now_ns: int, tick_ns: int = _TICK_NS) -> tuple[list[float], int]:
    """Lateness in s of each time of the grid from `due_ns` to now, and the next one to come.

    >>> latenesses(0, 50, tick_ns=20)
    ([5e-08, 3e-08, 1e-08], 60)
    """
    if now_ns < due_ns:
        return [], due_ns
    missed = (now_ns - due_ns) // tick_ns + 1
    late = [(now_ns - due_ns - i * tick_ns) / 1e9 for i in range(min(missed, MOST_AT_ONCE))]
    return late, due_ns + missed * tick_ns


class LagWatch:
    """Collects the lateness of a loop while `watching`; `taken` hands over what has come since the last time."""

    def __init__(self, now_ns: NowNs) -> None:
        self._now_ns = now_ns
        self._late: list[float] = []
        self._due_ns = now_ns() + _TICK_NS

    def taken(self) -> list[float]:
        """Latenesses in s, oldest first; each is handed over once."""
        late, self._late = self._late, []
        return late

    def _look(self) -> None:
        late, self._due_ns = latenesses(self._due_ns, self._now_ns())
        self._late += late

    async def watch(self, ended: anyio.Event) -> None:
        """Sample until `ended`."""
        with _kernel_timer(self._due_ns) if self._now_ns is monotonic_ns else contextlib.nullcontext(None) as fd:
            if fd is None:
                while not ended.is_set():
                    await anyio.sleep(max(0.0, (self._due_ns - self._now_ns()) / 1e9))
                    self._look()
                return

            def readable() -> None:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 8)
                self._look()

            loop = asyncio.get_running_loop()
            loop.add_reader(fd, readable)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(fd)


@contextlib.contextmanager
def _kernel_timer(first_ns: int) -> Iterator[int | None]:
    """A file descriptor that is readable at every time of the grid; None where the system has no such thing."""
    fd = _make_timer(first_ns) if sys.platform == "linux" else None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _make_timer(first_ns: int) -> int | None:
    """By way of libc: `os.timerfd_create` came with Python 3.13."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC))
    except (OSError, AttributeError):
        return None
    if fd < 0:
        return None
    tick, first = divmod(_TICK_NS, 10**9), divmod(first_ns, 10**9)
    if libc.timerfd_settime(fd, _ABSTIME, struct.pack("@4l", *tick, *first), None) != 0:
        os.close(fd)
        return None
    return fd
