"""Cores of this machine: who runs where, and how much of them others use."""

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

_STAT = Path("/proc/stat")


def usable_cores() -> list[int]:
    """The cores that this process may use; numbers from 0 where the system does not tell which."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def split_cores(cores: Sequence[int], workers: int) -> tuple[list[int], list[int]] | None:
    """(cores of the load processes, cores of as many reference servers), None where there are too few to divide."""
    if len(cores) < 2 * workers or not hasattr(os, "sched_setaffinity"):
        return None
    return list(cores[: len(cores) - workers]), list(cores[len(cores) - workers :])


@contextlib.contextmanager
def children_on(cores: Collection[int] | None) -> Iterator[None]:
    """Children started inside stay on `cores`; this process itself may go anywhere again afterwards."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def busy_s(stat: str) -> float:
    """CPU time that all processes have used since boot, from the text of /proc/stat."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(v) for v in stat.partition("\n")[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def machine_busy_s() -> float | None:
    """CPU time that all processes have used since boot; None where the system does not tell."""
    try:
        return busy_s(_STAT.read_text())
    except (OSError, ValueError):
        return None


def other_cores(busy_from_s: float | None, busy_to_s: float | None, own_cpu_s: float, wall_s: float) -> float | None:
    """Cores that everything but our own processes used on average between two readings of `machine_busy_s`."""
    if busy_from_s is None or busy_to_s is None or wall_s <= 0:
        return None
    return max(0.0, busy_to_s - busy_from_s - own_cpu_s) / wall_s
