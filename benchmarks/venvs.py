"""Virtual environments of the peers: made on demand outside the repository, once, and used again by later runs."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = "AGENTPERF_BENCH_VENVS"
"""Environment variable with the folder that holds the environments; without it one below the system's temporary one."""
AIPERF = "AGENTPERF_AIPERF_VENV"
"""Environment variable with an environment that has aiperf already."""
AIPERF_VERSION = "0.13.0"
INSTALL_S = 900.0


class MissingError(Exception):
    """A peer cannot be had; one line with the cause."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What is installed, and how it is seen to be there."""

    name: str
    packages: tuple[str, ...]
    module: str
    variable: str | None = None


AIOHTTP_PEER = Peer("aiohttp", ("aiohttp", "uvloop"), "aiohttp")
AIPERF_PEER = Peer(f"aiperf-{AIPERF_VERSION}", (f"aiperf=={AIPERF_VERSION}",), "aiperf", AIPERF)


def folder() -> Path:
    """Where environments are made."""
    given = os.environ.get(FOLDER)
    return Path(given) if given else Path(tempfile.gettempdir()) / f"agentperf-benchmarks-{os.getuid()}"


def python_of(venv: Path) -> Path:
    """Its interpreter."""
    return venv / "bin" / "python"


def has_module(python: Path, module: str) -> bool:
    """Whether that interpreter finds the module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        return subprocess.run([str(python), "-c", code], capture_output=True, check=False, timeout=60).returncode == 0
    except OSError:
        return False


def find(peer: Peer) -> Path | None:
    """The interpreter that has the peer, where there is one already."""
    given = os.environ.get(peer.variable) if peer.variable else None
    places = [Path(given)] if given else [folder() / peer.name]
    for venv in places:
        if has_module(python_of(venv), peer.module):
            return python_of(venv)
    if given:
        raise MissingError(f"{peer.name}: {given} ({peer.variable}) has no {peer.module}")
    return None


def python_for(peer: Peer) -> Path:
    """The interpreter that has the peer, which is installed when it is not there. MissingError when that fails.

    A package that this interpreter has itself needs no environment, unless the peer is a whole tool.
    """
    if peer.variable is None and importlib.util.find_spec(peer.module) is not None:
        return Path(sys.executable)
    found = find(peer)
    if found is not None:
        return found
    venv = folder() / peer.name
    print(f"installing {' '.join(peer.packages)} into {venv}", file=sys.stderr, flush=True)
    try:
        venv.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", "--clear", str(venv)])
        _run([str(python_of(venv)), "-m", "pip", "install", "--quiet", *peer.packages])
        if not has_module(python_of(venv), peer.module):
            raise MissingError(f"{peer.name}: installed, but {peer.module} cannot be imported")  # noqa: TRY301
    except (OSError, MissingError) as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(venv)
        raise MissingError(f"{peer.name}: {error}") from error
    return python_of(venv)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise MissingError(f"{command[0]} took more than {INSTALL_S:.0f} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise MissingError(f"{' '.join(command[1:4])} failed: {(said[-1] if said else 'no message')[:200]}")
