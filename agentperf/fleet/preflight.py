"""Before a run: can this machine hold the largest level? Pure checks of facts and demand; `look` fetches the facts."""

import math
import os
import resource
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentperf.errors import UsageError
from agentperf.fleet.machine import cores, raise_open_files
from agentperf.replay.bodies import EncodedSession, EncodedTree

SPARE_FILES = 64
"""Of a load process besides its connections: pipes, loop, libraries."""
SPARE_PORTS = 0.1
"""Share of the ports that other programs, and connections that have just closed, may hold."""
PROCESS_BYTES = 80 * 2**20
"""A load process without sessions."""
STREAM_BYTES = 256 * 2**10
"""A stream: socket buffers, stamps, what has arrived of its reply."""

_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MEMORY = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_MACOS_FIRST, _MACOS_LAST = "net.inet.ip.portrange.first", "net.inet.ip.portrange.last"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the machine has. None where the system does not tell, or sets no limit."""

    open_files: int | None
    """Descriptors that one process may have, the soft limit raised as far as allowed."""
    ports: int | None
    """Ephemeral ports, and so the most connections to one address and port."""
    memory_bytes: int | None
    """Memory that is available, a container's limit included."""
    cores: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What the largest level of a run needs."""

    agents: int
    parallel: int
    """Most requests that one agent has open at the same time."""
    workers: int
    job_bytes: int
    """Bodies of the sessions, which every load process holds."""

    @property
    def streams(self) -> int:
        """Most requests that can be open at the same time."""
        return self.agents * self.parallel

    @property
    def files(self) -> int:
        """Descriptors of the load process with most agents."""
        return math.ceil(self.agents / self.workers) * self.parallel + SPARE_FILES

    @property
    def memory_bytes(self) -> int:
        """Estimate for all load processes; the bodies once more, for the parent has them too."""
        return self.workers * (PROCESS_BYTES + self.job_bytes) + self.job_bytes + self.streams * STREAM_BYTES


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the preflight. `refuse` means that the level cannot be held, whatever the server does."""

    name: str
    status: Literal["ok", "warn", "refuse", "unknown"]
    text: str
    remedy: str | None = None


def _most_agents(capacity: int, parallel: int, workers: int = 1) -> int:
    return max(0, capacity // parallel) * workers


def check(facts: Facts, demand: Demand) -> list[Finding]:
    """What the machine has against what the largest level needs."""
    return [_files(facts, demand), _ports(facts, demand), _memory(facts, demand), _cores(facts, demand)]


def _files(facts: Facts, demand: Demand) -> Finding:
    if facts.open_files is None:
        return Finding("open files", "ok", f"no limit, {demand.files:,} needed in a load process")
    text = f"{facts.open_files:,} allowed, {demand.files:,} needed in a load process"
    if facts.open_files >= demand.files:
        return Finding("open files", "ok", text)
    most = _most_agents(facts.open_files - SPARE_FILES, demand.parallel, demand.workers)
    remedy = f"raise the limit: ulimit -n {demand.files} (or more --workers, or at most {most:,} agents)"
    return Finding("open files", "refuse", text, remedy)


def _ports(facts: Facts, demand: Demand) -> Finding:
    if facts.ports is None:
        return Finding(
            "ports", "unknown", f"{demand.streams:,} connections needed; how many ports there are is not known"
        )
    usable = int(facts.ports * (1 - SPARE_PORTS))
    text = f"{usable:,} connections to one address and port, {demand.streams:,} needed"
    if usable >= demand.streams:
        return Finding("ports", "ok", text)
    most = _most_agents(usable, demand.parallel)
    remedy = f"widen net.ipv4.ip_local_port_range, use a second machine, or at most {most:,} agents"
    return Finding("ports", "refuse", text, remedy)


def _memory(facts: Facts, demand: Demand) -> Finding:
    need = demand.memory_bytes
    if facts.memory_bytes is None:
        return Finding("memory", "unknown", f"about {need / 2**30:.1f} GiB needed; how much is available is not known")
    text = f"{facts.memory_bytes / 2**30:.1f} GiB available, about {need / 2**30:.1f} GiB needed"
    if need <= 0.8 * facts.memory_bytes:
        return Finding("memory", "ok", text)
    return Finding("memory", "warn", text, "use fewer --workers, a smaller trace set, or a machine with more memory")


def _cores(facts: Facts, demand: Demand) -> Finding:
    text = f"{facts.cores} usable, {demand.workers} load process{'es' if demand.workers > 1 else ''} and this one"
    if demand.workers < facts.cores or demand.workers == 1:
        return Finding("cores", "ok", text)
    return Finding("cores", "warn", text, f"--workers {max(1, facts.cores - 1)} leaves a core for this process")


def require(findings: Iterable[Finding]) -> None:
    """UsageError when the largest level cannot be held."""
    bad = [f for f in findings if f.status == "refuse"]
    if bad:
        raise UsageError(
            "the largest level is too large for this machine: " + "; ".join(f"{f.name}: {f.text}" for f in bad),
            "; ".join(f.remedy or "" for f in bad),
        )


# -- the demand of a trace set


def parallel_sessions(tree: EncodedTree) -> int:
    """Most requests of one play that can be open at the same time; never too low.

    A session has one request open at most. One other than the root's can be open from the turn of the root on which it
    depends until the turn of the root that depends on it, wherever in its tree it was started.
    """
    if len(tree.sessions) <= 1:
        return len(tree.sessions)
    root, others = tree.sessions[0], tree.sessions[1:]
    position = {turn.request_id: i for i, turn in enumerate(root.turns)}
    starts = {s.session_id: _start(s, tree, position) for s in others}
    ends = _ends(tree, position, len(root.turns))
    most = 1
    for i in range(len(root.turns) + 1):
        waiting = sum(starts[s.session_id] < i <= ends[s.session_id] for s in others)
        beside = sum(starts[s.session_id] < i < ends[s.session_id] for s in others)
        most = max(most, waiting, beside + (i < len(root.turns)))
    return most


def _start(session: EncodedSession, tree: EncodedTree, position: dict[str, int]) -> int:
    """The last turn of the root that must be over before the session can begin; -1 for none."""
    owner = {turn.request_id: s for s in tree.sessions for turn in s.turns}
    seen: set[str] = set()
    waits = list(session.turns[0].depends_on) if session.turns else []
    latest = -1
    while waits:
        name = waits.pop()
        if name in seen or name not in owner:
            continue
        seen.add(name)
        if name in position:
            latest = max(latest, position[name])
            continue
        other = owner[name]
        for turn in other.turns:
            waits += turn.depends_on
            if turn.request_id == name:
                break
    return latest


def _ends(tree: EncodedTree, position: dict[str, int], never: int) -> dict[str, int]:
    """The first turn of the root that waits for the last turn of each session, by way of others too."""
    last = {s.turns[-1].request_id: s.session_id for s in tree.sessions[1:] if s.turns}
    ends = {s.session_id: never + 1 for s in tree.sessions[1:]}
    for turn in tree.sessions[0].turns:
        for name in turn.depends_on:
            if name in last:
                ends[last[name]] = min(ends[last[name]], position[turn.request_id])
    changed = True
    while changed:  # a session that another one waits for has ended when that one has
        changed = False
        for session in tree.sessions[1:]:
            for name in (d for turn in session.turns for d in turn.depends_on):
                owner = last.get(name)
                if owner is not None and owner != session.session_id and ends[session.session_id] < ends[owner]:
                    ends[owner] = ends[session.session_id]
                    changed = True
    return ends


def demand_of(trees: Sequence[EncodedTree], agents: int, workers: int) -> Demand:
    """What holding so many agents on these sessions needs."""
    return Demand(
        agents=agents,
        parallel=max((parallel_sessions(tree) for tree in trees), default=1),
        workers=workers,
        job_bytes=sum(len(b) for tree in trees for s in tree.sessions for b in s.buffers),
    )


# -- the facts of the machine


def port_count(text: str) -> int | None:
    """Ports in a range as the kernel writes it: `32768   60999`."""
    try:
        low, high = (int(part) for part in text.split())
    except ValueError:
        return None
    return high - low + 1 if 0 < low <= high < 65_536 else None


def available_bytes(meminfo: str) -> int | None:
    """MemAvailable of /proc/meminfo."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            parts = rest.split()
            return int(parts[0]) * 1024 if len(parts) == 2 and parts[0].isdecimal() and parts[1] == "kB" else None
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _memory_now() -> int | None:
    found = available_bytes(_read(_MEMORY))
    limit, used = _read(_CGROUP / "memory.max").strip(), _read(_CGROUP / "memory.current").strip()
    if limit.isdecimal() and used.isdecimal():
        left = max(0, int(limit) - int(used))
        return left if found is None else min(found, left)
    if found is None and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return found


def _ports_now() -> int | None:
    if os.uname().sysname != "Darwin":
        return port_count(_read(_PORTS))
    try:
        asked = ["/usr/sbin/sysctl", "-n", _MACOS_FIRST, _MACOS_LAST]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return port_count(done.stdout)


def look() -> Facts:
    """The facts of this machine; raises this process' soft limit of open files, which load processes inherit."""
    soft, _ = raise_open_files()
    return Facts(
        open_files=None if soft == resource.RLIM_INFINITY else soft,
        ports=_ports_now(),
        memory_bytes=_memory_now(),
        cores=cores(),
    )
