"""`agentperf calibrate`, with a calibration of a few seconds, and what a dry run makes of it."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from agentperf.cli import execute
from agentperf.cli.calibrate import read_rates, read_workers, show
from agentperf.cli.options import make_plan
from agentperf.errors import UsageError
from agentperf.slo.tiers import resolve
from agentperf.yardstick.calibration import Calibration, load


def _command(cache: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    environment = os.environ | {"AGENTPERF_CACHE_DIR": str(cache), "COLUMNS": "100"}
    return [sys.executable, "-m", "agentperf", "calibrate", *arguments], environment


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Calibration, Path]:
    """A real calibration that ends with its first probe: four streams at most."""
    cache = tmp_path_factory.mktemp("cache")
    command, environment = _command(
        cache, "--rates", "50", "--max-streams", "4", "--window", "1s", "--budget", "1s", "--json"
    )
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode in (0, 3), done.stderr.decode()
    found = msgspec.json.decode(done.stdout, type=Calibration)
    assert b"calibrating at 50 tok/s" in done.stderr
    assert b"streams" in done.stderr, "each probe is told"
    return found, cache


def test_a_tiny_calibration_measures_something(calibrated: tuple[Calibration, Path]) -> None:
    found, cache = calibrated
    (result,) = found.results
    assert (result.tps, result.workers) == (50.0, 1)
    first = result.probes[0]
    assert first.level == 4
    # 4 streams of 2.2 s for a second at least, and nothing of it lost or unmatched, however busy the machine is.
    assert first.requests >= 1
    assert first.lost == first.blocked == 0
    assert first.in_flight == pytest.approx(4, rel=0.2)
    assert first.events_per_s == pytest.approx(4 * 50 * 2 / 2.2, rel=0.35)
    assert first.ttft_error_p50_ms is not None
    assert first.ttft_error_p50_ms < 20
    assert first.speed_error_p50 is not None
    assert first.speed_error_p50 < 0.05
    assert first.us_per_event is not None
    assert 1 < first.us_per_event < 20_000
    (hose,) = found.firehose
    assert hose.events_per_s > 100 * first.events_per_s / 4, "as fast as it reads is faster than any pace"
    if result.streams:
        assert (result.streams, result.limit, result.at_least) == (4, "max-streams", True)
    assert load(cache / "calibration.json") == found


def test_the_table(calibrated: tuple[Calibration, Path]) -> None:
    found, _ = calibrated
    out = io.StringIO()
    show(found, Console(file=out, width=100, highlight=False))
    text = out.getvalue()
    assert found.machine.line in text
    assert "p99 TTFT error <= 5 ms and p99 speed error <= 0.5%" in " ".join(text.split())
    assert "firehose" in text


def _plan(level: int) -> Any:
    given: dict[str, Any] = {
        "levels": str(level),
        "concurrency": None,
        "protocol": "quick",
        "max_agents": 1024,
        "start": 1,
        "warmup_max": "3m",
        "window_min": "10s",
        "window_max": "5m",
        "duration": None,
        "cache_salt": "play",
        "budget": None,
        "resolution": None,
    }
    return make_plan(given, (resolve("40tps"),))


def _dry_run(level: int) -> str:
    out = io.StringIO()
    options: Any = SimpleNamespace(plan=_plan(level), workers=1)
    prepared: Any = SimpleNamespace(profile=None)
    execute._say_estimate(options, prepared, Console(file=out, width=400))
    return out.getvalue()


def test_a_dry_run_quotes_it(calibrated: tuple[Calibration, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found, cache = calibrated
    if not found.results[0].streams:
        pytest.skip("the machine was too busy to pass four streams")
    monkeypatch.setenv("AGENTPERF_CACHE_DIR", str(cache))
    assert "at least 4 streams at 50 tok/s with 1 load process; the plan's largest level of 4 agents is within it" in (
        _dry_run(4)
    )
    assert "the plan's largest level of 5 agents may exceed it\n          more --workers" in _dry_run(5)


def test_a_dry_run_says_that_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTPERF_CACHE_DIR", str(tmp_path))
    assert "this machine's client was never calibrated\n          agentperf calibrate measures" in _dry_run(4)


def test_ctrl_c_shows_what_there_is_and_keeps_nothing(tmp_path: Path) -> None:
    command, environment = _command(tmp_path, "--rates", "50", "--max-streams", "4", "--window", "60s")
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"calibrating" in process.stderr.readline()
        time.sleep(2.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err.decode()
    assert b"interrupted" in err
    assert b"Traceback" not in err
    assert b"streams held" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "fast", "0", "-5", "50,1001", "nan", "inf"])
def test_rates_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--rates"):
        read_rates(text)


@pytest.mark.parametrize("text", ["", "0", "x", "1,-1", "257", "1.5"])
def test_workers_that_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--workers"):
        read_workers(text)


def test_lists_are_read_in_order() -> None:
    assert read_rates("80,20, 20,") == (20.0, 80.0)
    assert read_workers("2,1") == (1, 2)
    assert read_workers("auto")[0] == 1


def test_help_is_short() -> None:
    command, environment = _command(Path("/nonexistent"), "--help")
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    assert b"--quick" in done.stdout


def test_json_is_one_document(calibrated: tuple[Calibration, Path]) -> None:
    _, cache = calibrated
    data = json.loads((cache / "calibration.json").read_text())
    assert list(data)[:3] == ["schema", "agentperf_version", "measured_at"]


BESIDE = ", beside other work: a quiet machine may do more"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ": 960 streams; the client is the limit; missed at 1,024"),
        (
            {"limit": "server", "at_least": True},
            ": at least 960 streams; the reference server is the limit; missed at 1,024",
        ),
        (
            {"limit": "max-streams", "at_least": True, "smallest_miss": None},
            ": at least 960 streams; --max-streams is the limit",
        ),
        (
            {"limit": "budget", "at_least": True, "disturbed": True},
            f": at least 960 streams; --budget ended the search; missed at 1,024{BESIDE}",
        ),
        (
            {"limit": "error", "at_least": True, "error": "load process 0 was killed"},
            ": at least 960 streams; the load processes failed; missed at 1,024; load process 0 was killed",
        ),
        ({"streams": 0, "smallest_miss": 1}, ": no streams; the client is the limit; missed at 1"),
    ],
)
def test_each_limit_is_said_in_a_line(changes: dict[str, Any], said: str, calibrated: tuple[Calibration, Path]) -> None:
    found, _ = calibrated
    known: dict[str, Any] = {
        "streams": 960,
        "limit": "client",
        "smallest_miss": 1024,
        "at_least": False,
        "disturbed": False,
        "error": None,
    }
    result = msgspec.structs.replace(found.results[0], **(known | changes))
    out = io.StringIO()
    show(msgspec.structs.replace(found, results=[result]), Console(file=out, width=300, highlight=False))
    assert f"50 tok/s, 1 load process{said}" in out.getvalue().splitlines()
