"""Where client and server of a benchmark run, and what CPU time processes use."""

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from agentperf.fleet.machine import running_of
from agentperf.yardstick.cores import machine_busy_s, other_cores

Cores = frozenset[int]


def split_cores(clients: int = 1) -> tuple[Cores, int | None]:
    """(cores of a client of that many processes, core of the server): the server shares its own with nobody.

    The client has fewer where there are not as many. (empty, None) where there are not two cores, or none can be had.
    """
    if not hasattr(os, "sched_setaffinity"):
        return frozenset(), None
    cores = sorted(os.sched_getaffinity(0))
    return (frozenset(cores[:-1][:clients]), cores[-1]) if len(cores) > 1 else (frozenset(), None)


def cores_text(clients: int = 1) -> str:
    """One line on where client and server run."""
    client, _ = split_cores(clients)
    if not client:
        return f"{os.cpu_count()} core(s): client and server share them, so expect worse figures"
    own = "one" if len(client) == 1 else str(len(client))
    return f"{os.cpu_count()} cores, the client on {own}, the server on another"


def cpu_of(pid: int) -> float:
    """CPU time of a process in s, 0.0 where /proc does not tell."""
    state = running_of(pid)
    return state[1] if state is not None else 0.0


class TreeCpu:
    """CPU time of a process and all that it started, sampled by a thread: what one had used when it ended stays in."""

    def __init__(self, pid: int, every_s: float = 0.2) -> None:
        self._pid = pid
        self._every_s = every_s
        self._by_pid: dict[int, float] = {}
        self._samples: list[tuple[int, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _sample(self) -> None:
        for pid in tree_of(self._pid, parents()):
            self._by_pid[pid] = max(self._by_pid.get(pid, 0.0), cpu_of(pid))
        self._samples.append((time.monotonic_ns(), sum(self._by_pid.values())))

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            self._sample()

    def between(self, open_ns: int, close_ns: int) -> float:
        """CPU time used in [open, close] in s, between samples by interpolation; nan without samples around it."""
        return spent_between(self._samples, open_ns, close_ns)


def spent_between(samples: Sequence[tuple[int, float]], open_ns: int, close_ns: int) -> float:
    """Growth of a sampled total between two moments; nan unless there are samples before and after.

    >>> spent_between([(0, 1.0), (10, 2.0), (20, 4.0)], 5, 15)
    1.5
    """
    if len(samples) < 2 or samples[0][0] > open_ns or samples[-1][0] < close_ns:
        return float("nan")
    times, totals = [float(t) for t, _ in samples], [v for _, v in samples]
    a, b = np.interp([float(open_ns), float(close_ns)], times, totals)
    return float(b - a)


def parents() -> dict[int, int]:
    """Parent of each process of the machine, by /proc; empty where there is none."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def tree_of(root: int, parent: dict[int, int]) -> set[int]:
    """The process and its descendants.

    >>> sorted(tree_of(2, {2: 1, 3: 2, 4: 3, 5: 1}))
    [2, 3, 4]
    """
    children: dict[int, list[int]] = {}
    for pid, above in parent.items():
        children.setdefault(above, []).append(pid)
    found, todo = {root}, [root]
    while todo:
        for pid in children.get(todo.pop(), []):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


class OtherWork:
    """How many cores the rest of the machine used, on average, since `start`."""

    def __init__(self) -> None:
        self._machine = machine_busy_s()
        self._began = time.monotonic()

    def cores(self, own_cpu_s: Sequence[float]) -> float | None:
        """CPU time of the machine less that of our own processes, over wall time; None where it is not known."""
        return other_cores(self._machine, machine_busy_s(), sum(own_cpu_s), time.monotonic() - self._began)
