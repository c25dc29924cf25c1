"""Ctrl-C once and twice, SIGTERM, and kill -9 in mid-run: nothing recorded is lost, and `report` reads it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentperf.sim.process import SimProcess
from agentperf.store.rundir import read_run


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with SimProcess("demo") as process:
        yield process.url


def start(url: str, out: Path, *more: str) -> "subprocess.Popen[str]":
    arguments = [
        *("run", "--endpoint", url, "--slo", "80tps", "--traces", "smoke", "--levels", "3,4,5", "--out", str(out)),
        *("--warmup-max", "1s", *more),
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "agentperf", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "OPENAI_API_KEY"},
    )


def wait_for(condition: Callable[[], Any], process: "subprocess.Popen[str]", limit_s: float = 90) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not come so far"
        time.sleep(0.05)


def directory(out: Path) -> Path | None:
    found = list(out.glob("*/events.jsonl"))
    return found[0].parent if found else None


def rows(out: Path) -> int:
    found = directory(out)
    return 0 if found is None else read_run(found).records().num_rows


def test_first_ctrl_c_finishes_the_level_and_reports(endpoint: str, tmp_path: Path) -> None:
    process = start(endpoint, tmp_path, "--duration", "4s")
    wait_for(lambda: rows(tmp_path) > 3, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    run = read_run(directory(tmp_path) or tmp_path)
    levels = [e["level"] for e in run.events if e["event"] == "probe_finished"]
    assert levels == [3]
    finished = next(e for e in run.events if e["event"] == "probe_finished")
    assert finished["metrics"]["window_s"] >= 3.9
    assert finished["metrics"]["truncated"] == 0
    assert run.summary is not None
    assert "agents" in out


def test_second_ctrl_c_stops_now_with_a_partial_report(endpoint: str, tmp_path: Path) -> None:
    process = start(endpoint, tmp_path, "--duration", "10m")
    wait_for(lambda: rows(tmp_path) > 3, process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    run = read_run(directory(tmp_path) or tmp_path)
    assert run.summary is not None
    assert not run.complete
    records = run.records().to_pylist()
    assert {r["error_class"] for r in records if r["outcome"] == "truncated"} <= {"interrupted"}
    assert all(r["outcome"] in ("ok", "truncated") for r in records)


def test_sigterm_stops_now(endpoint: str, tmp_path: Path) -> None:
    process = start(endpoint, tmp_path, "--duration", "10m")
    wait_for(lambda: rows(tmp_path) > 3, process)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert read_run(directory(tmp_path) or tmp_path).summary is not None


def test_after_kill_9_the_records_are_there_and_report_reads_them(endpoint: str, tmp_path: Path) -> None:
    process = start(endpoint, tmp_path, "--duration", "10m")
    wait_for(lambda: rows(tmp_path) > 10, process)
    before = rows(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    found = directory(tmp_path)
    assert found is not None
    assert rows(tmp_path) >= before > 10
    done = subprocess.run(
        [sys.executable, "-m", "agentperf", "report", str(found), "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["complete"] is False
    assert not (found / "summary.json").exists()


def test_load_processes_do_not_outlive_a_killed_parent(endpoint: str, tmp_path: Path) -> None:
    process = start(endpoint, tmp_path, "--duration", "10m")
    wait_for(lambda: rows(tmp_path) > 0, process)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    children = [int(line) for line in found.stdout.split()]
    process.kill()
    process.communicate(timeout=60)
    assert children
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in children):
        assert time.monotonic() < deadline, "a load process lives on"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
