"""What the operating system tells about a process and the machine around it, each figure with a fallback or None."""

import os
import resource
import sys
import time
from pathlib import Path

from agentperf.clock import NowNs, monotonic_ns
from agentperf.measure.health import MachineSample

FDS_EVERY_NS = 5_000_000_000
_FDS = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
_STATM = Path("/proc/self/statm")
_STAT = Path("/proc/stat")
MACHINE_EVERY_NS = 1_000_000_000


class OpenFiles:
    """How many file descriptors this process has open; 0 where the system does not tell."""

    def __init__(self) -> None:
        self._listed = 0
        self._listed_ns = -FDS_EVERY_NS

    def count(self, now_ns: int) -> int:
        """Asked for with every batch, so it must cost microseconds however many sockets there are."""
        try:
            # Linux 6.2 and later: the size of the folder is the number of its entries.
            if sys.platform == "linux" and (size := _FDS.stat().st_size):
                return size
            if now_ns - self._listed_ns >= FDS_EVERY_NS:
                # A listing takes a millisecond per thousand sockets, in which no stream is read: once in a while.
                self._listed, self._listed_ns = sum(1 for _ in _FDS.iterdir()), now_ns
        except OSError:
            return 0
        return self._listed


def rss_bytes() -> int:
    """Memory of this process now; where the system tells only that, the most it ever had."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def running_of(pid: int) -> tuple[bool, float] | None:
    """Whether a process can run (it was not stopped), and the CPU time in s it has used; None where nothing tells."""
    try:
        # The name in parentheses may hold spaces and parentheses itself.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0] not in (b"T", b"t"), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def raise_open_files() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard one where allowed; (soft, hard) as they are then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return soft, hard
    # macOS names no hard limit and yet refuses more than the kernel's own.
    for wanted in (hard, 1_048_576, 10_240):
        if wanted == resource.RLIM_INFINITY or wanted <= soft or (hard != resource.RLIM_INFINITY and wanted > hard):
            continue
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            continue
        return wanted, hard
    return soft, hard


def idle_s(stat: bytes) -> tuple[float, int] | None:
    """Idle time of all cores together since boot in s, and their number, from the text of /proc/stat.

    Waiting for a disk counts as idle. None when the text is not as expected.
    """
    lines = stat.splitlines()
    try:
        fields = lines[0].split()
        if fields[0] != b"cpu":
            return None
        ticks = int(fields[4]) + int(fields[5])
    except (IndexError, ValueError):
        return None
    number = sum(1 for line in lines[1:] if line.startswith(b"cpu"))
    return ticks / os.sysconf("SC_CLK_TCK"), number


def _idle_now() -> float | None:
    try:
        found = idle_s(_STAT.read_bytes())
    except OSError:
        return None
    return None if found is None else found[0]


class Meter:
    """Samples the parent's own CPU and the cores that are free, at most once a second."""

    def __init__(self, now_ns: NowNs = monotonic_ns) -> None:
        self._now_ns = now_ns
        self._at_ns = now_ns()
        self._cpu = time.process_time()
        self._idle = _idle_now()

    def sample(self) -> MachineSample | None:
        """The time since the last sample; None when that was less than a second ago."""
        now = self._now_ns()
        span_s = (now - self._at_ns) / 1e9
        if now - self._at_ns < MACHINE_EVERY_NS:
            return None
        cpu, idle = time.process_time(), _idle_now()
        free = None if idle is None or self._idle is None else max(0.0, (idle - self._idle) / span_s)
        sample = MachineSample(at_ns=now, cpu_share=(cpu - self._cpu) / span_s, free_cores=free)
        self._at_ns, self._cpu, self._idle = now, cpu, idle
        return sample
