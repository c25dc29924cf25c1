"""A level that this machine cannot hold is refused before the first request, and a dry run shows what was compared."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentperf.sim.process import SimProcess


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimProcess("demo") as process:
        yield process.url


def run(endpoint: str, out: Path, files: int, *more: str) -> "subprocess.CompletedProcess[str]":
    """`agentperf run` under a hard limit of open files."""
    command = [
        *("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", sys.executable, "-m", "agentperf", "run"),
        *("--endpoint", endpoint, "--traces", "smoke", "--workers", "1", "--out", str(out), *more),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_too_few_open_files_are_refused_with_the_remedy(endpoint: str, tmp_path: Path) -> None:
    done = run(endpoint, tmp_path / "out", 256, "--levels", "8,500", "--duration", "5s")
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "open files: 256 allowed, 564 needed in a load process" in done.stderr
    assert "remedy: raise the limit: ulimit -n 564 (or more --workers, or at most 192 agents)" in done.stderr
    assert not list((tmp_path / "out").glob("*")), "nothing was measured"


def test_a_dry_run_shows_the_preflight(endpoint: str, tmp_path: Path) -> None:
    done = run(endpoint, tmp_path / "out", 1000, "--slo", "80tps", "--max-agents", "64", "--dry-run")
    assert done.returncode == 0, (done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("preflight ")]
    assert lines[0] == "preflight ok, open files at 64 agents: 1,000 allowed, 128 needed in a load process"
    assert [line.split(", ")[1].split(" at ")[0] for line in lines] == ["open files", "ports", "memory", "cores"]
