"""Load processes that are killed, stopped or cannot start, in the middle of `agentperf run`: the level is void, in one
line, the process is replaced, the run goes on, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentperf.sim.process import SimProcess
from agentperf.store.rundir import Run, read_run

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimProcess("demo") as process:
        yield process.url


class Running:
    """`agentperf run` with two load processes, and what it has written so far."""

    def __init__(self, url: str, out: Path, *more: str, **environment: str) -> None:
        self.out = out
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "agentperf", "run", "--endpoint", url, "--traces", "smoke", "--out", str(out)),
                *("--workers", "2", "--warmup-max", "1s", "--time-scale", "0.05", *more),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "OPENAI_API_KEY"} | environment,
        )

    def run(self) -> Run | None:
        found = list(self.out.glob("*/events.jsonl"))
        return read_run(found[0].parent) if found else None

    def rows(self) -> int:
        run = self.run()
        return 0 if run is None else run.records().num_rows

    def wait_for(self, condition: Any, limit_s: float = 90) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "it did not come so far"
            time.sleep(0.05)

    def load_processes(self) -> list[int]:
        return [pid for pid in children(self.process.pid) if b"agentperf.fleet.process" in command_line(pid)]

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(path.parent.name))
    return sorted(found)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def probes(run: Run | None) -> list[dict[str, Any]]:
    assert run is not None
    return [e for e in run.events if e["event"] == "probe_finished"]


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGKILL, "was killed (SIGKILL): level 4 is void"),
        (signal.SIGSTOP, "said nothing for 3 s (it was stopped, or this machine hangs): level 4 is void"),
    ],
)
def test_a_lost_load_process_voids_its_level_and_is_replaced(
    endpoint: str, tmp_path: Path, number: signal.Signals, line: str
) -> None:
    running = Running(endpoint, tmp_path, "--levels", "4", "--duration", "3s")
    running.wait_for(lambda: running.rows() > 6)
    before = running.load_processes()
    assert len(before) == 2
    hit = time.monotonic()
    os.kill(before[1], number)
    running.wait_for(lambda: probes(running.run()))
    assert time.monotonic() - hit < 30, "a level with a lost load process ends within seconds"
    running.wait_for(lambda: len(running.load_processes()) == 2)
    after = running.load_processes()
    code, out, err = running.end()
    void, again = probes(running.run())
    # On a machine that is busy with other things the client of the second probe may be late, and the level invalid.
    assert code == (3 if again["health"]["status"] == "invalid" else 0), (out, err)
    assert void["level"] == again["level"] == 4
    assert void["void"].endswith(line)
    assert void["void"].startswith("load process ")
    assert void["health"]["status"] == "invalid"
    assert void["health"]["cause"] == "process_lost"
    assert again["void"] is None
    assert again["health"]["workers"] == 2
    assert line in out + err, "said where a person reads it"
    run = running.run()
    assert run is not None
    assert [e["event"] for e in run.events].count("load_process_replaced") == 1
    records = run.records().to_pylist()
    assert {r["phase"] for r in records if r["probe"] == 1} == {"void"}, "kept, and marked"
    assert len([r for r in records if r["probe"] == 1]) > 6
    assert "window" in {r["phase"] for r in records if r["probe"] == 2}
    assert run.complete
    assert before[1] not in after
    assert not any(b"agentperf.fleet.process" in command_line(pid) for pid in {*before, *after}), "no process is left"


def test_load_processes_that_keep_dying_end_the_run_with_what_there_is(endpoint: str, tmp_path: Path) -> None:
    running = Running(endpoint, tmp_path, "--levels", "2,3", "--duration", "30s")
    for times in range(3):
        # A probe has its processes when records of it are on the disk.
        running.wait_for(lambda times=times: times + 1 in of_probes(running))
        os.kill(running.load_processes()[0], signal.SIGKILL)
    code, out, err = running.end()
    assert code == 3, (out, err)
    assert "lost at 3 probes in a row, at last: load process" in err
    run = running.run()
    assert run is not None
    assert run.summary is not None
    assert not run.complete
    assert run.summary["reason"] == "failed"
    assert len(probes(run)) == 3
    assert (run.directory / "report.md").exists(), "reported with what there is"
    assert not running.load_processes()


def of_probes(running: Running) -> set[int]:
    run = running.run()
    return set() if run is None else set(run.records(["probe"]).column("probe").to_pylist())


def test_a_load_process_that_cannot_start_is_one_line(endpoint: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    # Only the load process imports it: an installation that lost the package which the loop needs.
    (broken / "uvloop.py").write_text("raise ImportError('libuv is not here')\n")
    script = (
        "import sys, os; os.environ['PYTHONPATH'] = sys.argv[1]; sys.argv = ['agentperf', *sys.argv[2:]];"
        "import uvloop; from agentperf.cli.app import main; main()"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", script, str(broken), "run", "--endpoint", endpoint, "--traces", "smoke"),
            *("--levels", "1", "--duration", "2s", "--out", str(tmp_path / "out")),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert "load process 0 could not start: it ended with code 1 (ImportError: libuv is not here)" in done.stderr
    assert "Traceback" not in done.stderr
