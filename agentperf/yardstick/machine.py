"""What a calibration is of: a machine with its interpreter. No names and no addresses."""

import os
import platform
from pathlib import Path

from msgspec import Struct

from agentperf.yardstick.cores import usable_cores

_CPUINFO = Path("/proc/cpuinfo")


class Machine(Struct, kw_only=True, frozen=True):
    """What the speed of a client depends on. Two that are equal are taken for one machine."""

    os: str
    machine: str
    cpu_model: str
    cores: int
    """That this process may use."""
    python: str
    """Major and minor version."""

    @property
    def line(self) -> str:
        """In one line."""
        return f"{self.cpu_model}, {self.cores} core{'s' if self.cores != 1 else ''}, {self.os}, Python {self.python}"


def cpu_model(cpuinfo: str) -> str | None:
    """The model's name from the text of /proc/cpuinfo; None where it has none (ARM)."""
    for line in cpuinfo.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip().lower() == "model name" and value.strip():
            return " ".join(value.split())
    return None


def this_machine() -> Machine:
    """The one that this runs on."""
    try:
        model = cpu_model(_CPUINFO.read_text(errors="replace"))
    except OSError:
        model = None
    return Machine(
        os=platform.system(),
        machine=platform.machine(),
        cpu_model=model or platform.processor() or platform.machine(),
        cores=len(usable_cores()),
        python=".".join(platform.python_version_tuple()[:2]),
    )


def cache_file() -> Path:
    """Where it is kept: in `$AGENTPERF_CACHE_DIR`, else `$XDG_CACHE_HOME/agentperf`, else `~/.cache/agentperf`."""
    own = os.environ.get("AGENTPERF_CACHE_DIR")
    if own:
        return Path(own) / "calibration.json"
    root = os.environ.get("XDG_CACHE_HOME")
    base = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    return base / "agentperf" / "calibration.json"
