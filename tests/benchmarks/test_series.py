"""Figures, bounds and exit codes of the other benchmarks, by values worked out by hand; a few small runs."""

import asyncio
import importlib
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from agentperf.measure.health import Health, WorkerSample
from benchmarks import all as series
from benchmarks import bodies, connections, in_flight, memory, overload, startup
from benchmarks.cores import TreeCpu, split_cores
from benchmarks.endurance import Endurance, gaps_by_server, quarters
from benchmarks.load import Result, Row
from benchmarks.naive import session_of
from benchmarks.ours import Shape, trees, worker_cpu_s
from benchmarks.sink import sink
from benchmarks.venvs import MissingError
from tests.benchmarks.test_accuracy_figures import MS, S, of, said, truth_row
from tests.measure.records import record

GOOD = replace(of([said("a", late_ms=1, speed=50.0)], [truth_row("a")]), client="agentperf", in_flight=2.0)


def sample(at_s: float, worker: int = 0, cpu: float = 0.5, rss: int = 0) -> WorkerSample:
    return WorkerSample(worker, round(at_s * S), [0.001], cpu, rss, 10, 5)


# -- connections


def test_arrival_at_the_server() -> None:
    result = Result(
        open_s=10.0, close_s=12.5, cpu_s=0.3, rows=[Row("a", 10.0, ok=True), Row("b", 10.0), Row("c", 10.0)]
    )
    log = {"a": truth_row("a", at=10 * S + 200 * MS), "b": truth_row("b", at=10 * S + 900 * MS)}
    found = connections.arrival("agentperf", 3, result, log)
    assert (found.arrived, found.ok) == (2, 1)
    assert found.last_s == pytest.approx(0.9)
    assert found.median_s == pytest.approx(0.55)
    assert found.done_s == pytest.approx(2.5)
    assert not found.met, "one of three never arrived"
    whole = replace(found, arrived=3)
    assert whole.met
    assert not replace(whole, last_s=1.01).met
    assert connections.conclude([whole], []) == 0
    assert connections.conclude([replace(whole, last_s=1.01)], ["x"]) == 1
    assert connections.conclude([whole], ["aiohttp: no network"]) == 2
    assert "| 2x " in connections.table([whole, replace(whole, client="httpx", last_s=1.8)])


# -- in flight


@pytest.mark.parametrize(("held", "missing", "code"), [(1.98, [], 0), (1.97, [], 1), (2.0, ["aiperf"], 2)])
def test_in_flight(held: float, missing: list[str], code: int) -> None:
    peer = replace(GOOD, client="aiperf", in_flight=0.1)
    assert in_flight.conclude([replace(GOOD, in_flight=held), peer], missing) == code


# -- overload


def health(status: str) -> Health:
    nothing = dict.fromkeys(
        ("remedy", "loop_lag_p99_s", "send_delay_p99_s", "cpu_share_max", "in_flight_ratio", "rss_bytes_max", "fds_max",
         "sockets_max")
    )  # fmt: skip
    return Health(status=status, reasons=["because"], limit_s=0.005, **nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "speed", "held", "code"),
    [
        ("ok", 0.001, 2.0, 0),
        ("warn", 0.001, 2.0, 0),
        ("ok", 0.006, 2.0, 1),
        ("warn", 0.001, 1.9, 1),
        ("invalid", 0.5, 1.0, 0),
        ("invalid", 0.001, 2.0, 0),
    ],
)
def test_untrue_figures_must_be_void(status: str, speed: float, held: float, code: int) -> None:
    true = replace(GOOD, speed=(0.0, speed), in_flight=held)
    assert overload.conclude(overload.Judged(health(status), true)) == code


# -- endurance


def test_memory_by_quarter() -> None:
    samples = [sample(10 + i, rss=[5, 6, 7, 9][i // 2] * 1000 + i) for i in range(8)]
    assert quarters(samples, 10 * S, 18 * S) == (5000.5, 6002.5, 7004.5, 9006.5)
    assert math.isnan(quarters(samples[:2], 10 * S, 18 * S)[3])


def test_time_between_turns_by_the_servers_log() -> None:
    turns = [record(request_id=f"r{i}", play="p", agent=1, turn=i) for i in (2, 0, 1, 4)]
    log = {
        "r0": truth_row("r0", t_done=10 * S),
        "r1": truth_row("r1", t_head=11 * S + 4 * MS, t_done=14 * S),
        "r2": truth_row("r2", t_head=15 * S + 2 * MS),
        "r4": truth_row("r4", t_head=90 * S),
    }
    assert sorted(gaps_by_server(turns, log, 1.0)) == pytest.approx([0.002, 0.004])


def test_bounds_of_endurance() -> None:
    e = Endurance(100, 0, 0.004, 0.1, 0.004, 0.004, (50e6, 60e6, 60e6, 61e6), 0.2)
    assert e.growth == pytest.approx(1 / 60)
    assert all(met for _, met in e.bounds)
    for worse in (
        {"lag_p99_s": 0.005}, {"overhead_p99_s": 0.006}, {"gap_p99_s": 0.006}, {"failed": 1},
        {"rss": (50e6, 60e6, 60e6, 62e6)}, {"rss": (50e6, 60e6, 60e6, math.nan)},
    ):  # fmt: skip
        assert sum(not met for _, met in replace(e, **worse).bounds) == 1, worse  # type: ignore[arg-type]


# -- memory


def test_memory_of_an_agent() -> None:
    m = memory.Memory("agentperf", 101, 160_000_000, 60_000_000, ok=9, failed=0)
    assert m.mb_per_agent == pytest.approx(1.0)
    assert memory.conclude([m], []) == 0
    assert memory.conclude([replace(m, rss_bytes=160_200_000)], []) == 1
    assert memory.conclude([replace(m, failed=1)], []) == 1
    assert memory.conclude([m], ["naive"]) == 2
    naive = replace(m, client="naive", rss_bytes=360_000_000)
    assert "| 3x " in memory.table([naive, m])


def test_a_naive_users_session_is_its_own() -> None:
    a, b = session_of("a", 50_000), session_of("b", 50_000)
    assert sum(len(str(m["content"])) for m in a) == 50_000
    assert all(x["content"] != y["content"] for x, y in zip(a, b, strict=True))


# -- bodies


def test_bodies_are_measured_in_every_way() -> None:
    with sink(frozenset(), 30.0) as base_url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = {way: runner.run(bodies.cost(way, base_url, 50, 5)) for way in bodies.WAYS}
    ours = found["agentperf"]
    assert all(c.cpu_us > 0 and c.wall_us > 0 for c in found.values())
    # The shared buffer goes out as it is: what is newly held is a small part of a body. Others build one at least.
    assert ours.copies < 0.5
    assert found["json.dumps, own transport"].copies > 1
    assert found["httpx json="].copies > 1
    within = replace(ours, kilobytes=100, cpu_us=400.0)
    assert bodies.conclude([within]) == 0
    assert bodies.conclude([replace(within, cpu_us=401.0)]) == 1
    assert "| 2x " in bodies.table([within, replace(within, way="httpx json=", cpu_us=800.0)])


@pytest.mark.parametrize("kilobytes", [100, 500])
def test_bodies_of_all_ways_are_about_as_large(kilobytes: int) -> None:
    chars = sum(len(str(m["content"])) for m in bodies.messages_of(kilobytes))
    session = trees(Shape(16, trees=1, turns=40, first_chars=chars // 40, step_chars=chars // 40))[0].sessions[0]
    assert session.turns[-1].length == pytest.approx(kilobytes * 1000, rel=0.05)
    assert chars == pytest.approx(kilobytes * 1000, rel=0.01)


# -- start


def test_start_is_timed_and_a_command_that_fails_is_told() -> None:
    found = startup.timed("python import", [sys.executable, "-c", "import time; time.sleep(0.05)"], 2)
    assert len(found.times) == 2
    assert found.median_s >= 0.05
    with pytest.raises(MissingError, match="ended with 3"):
        startup.timed("python", [sys.executable, "-c", "raise SystemExit(3)"], 1)
    assert startup.conclude(0.3, network=False, missing=["aiperf"]) == 0
    assert startup.conclude(0.31, network=False, missing=[]) == 1
    assert startup.conclude(0.1, network=True, missing=[]) == 1


def test_help_asks_no_network_and_the_watch_would_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not startup.uses_network()
    look_up = 'import socket; socket.getaddrinfo("127.0.0.1", 1)\nfrom agentperf.cli.app import main'
    monkeypatch.setattr(startup, "WATCHED", startup.WATCHED.replace("from agentperf.cli.app import main", look_up))
    assert startup.uses_network()


# -- CPU time


def test_cpu_of_a_load_process_out_of_its_samples() -> None:
    samples = [sample(9), sample(10, cpu=0.9), sample(11, cpu=0.2), sample(12, cpu=0.4), sample(13, cpu=0.8)]
    assert worker_cpu_s(samples, 10 * S, 12 * S) == pytest.approx(0.2 + 0.4)
    # Half of the last second is in the window.
    assert worker_cpu_s(samples, 10 * S, round(12.5 * S)) == pytest.approx(0.2 + 0.4 + 0.4)
    # A second of three is covered: too little to speak of the rest.
    assert math.isnan(worker_cpu_s(samples, 12 * S, 15 * S))


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="/proc tells the CPU time of processes")
def test_cpu_of_a_tree_counts_children_that_have_ended() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    code = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); time.sleep(0.2)"
    with subprocess.Popen([sys.executable, "-c", code]) as process, TreeCpu(process.pid, 0.02) as cpu:
        began = time.monotonic_ns()
        time.sleep(0.05)
        process.wait(30)
        ended = time.monotonic_ns()
        time.sleep(0.1)
    assert 0.1 < cpu.between(began, ended) < 3
    assert math.isnan(cpu.between(began - 60 * S, ended))


def test_server_and_client_never_share_a_core() -> None:
    for processes in (1, 2, 64):
        client, server = split_cores(processes)
        assert server not in client
        assert len(client) <= processes


# -- the series


@pytest.mark.parametrize("step", series.steps(endurance_minutes=10, quick=False, without=[]), ids=lambda s: s.name)
def test_every_step_is_a_command_that_its_benchmark_takes(
    step: series.Step, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told of no server it ends with 2 before it measures anything; an argument that it does not know would raise."""
    monkeypatch.delenv("AGENTPERF_TRUTHSERVER", raising=False)
    module = importlib.import_module(f"benchmarks.{step.module}")
    if step.needs_server:
        assert module.main(list(step.arguments)) == 2
        assert "no truth server" in capsys.readouterr().err
    else:
        with pytest.raises(SystemExit) as caught:
            module.main([*step.arguments, "--help"])
        assert caught.value.code == 0


def test_steps_can_leave_clients_out_and_be_shortened() -> None:
    whole = {s.name: s for s in series.steps(endurance_minutes=7, quick=False, without=[])}
    short = {s.name: s for s in series.steps(endurance_minutes=7, quick=True, without=["aiperf", "httpx"])}
    assert "aiperf" in whole["1000x50"].command
    assert "aiperf" not in short["1000x50"].command
    assert "httpx" not in " ".join(s.command for s in short.values())
    assert whole["endurance"].arguments == ("--minutes", "7")
    assert short["endurance"].arguments == ("--minutes", "0.1")
    assert "--tokens-per-event 4" in whole["512x80x4"].command


def test_the_document_holds_verdicts_commands_and_what_was_printed(tmp_path: Path) -> None:
    step = series.Step("startup", "Start", "startup", ("--runs", "1", "--only-agentperf"), needs_server=False)
    done = series.run(step, None, 60.0)
    assert done.code in (0, 1), done.output
    text = series.document([done, replace(done, code=2), replace(done, code=-9)], "now", "here")
    assert "    python -m benchmarks.startup --runs 1 --only-agentperf" in text
    assert "| agentperf --help |" in text
    assert [w for w in ("missing", "broke (-9)", "Measured at now on here.") if w not in text] == []


@pytest.mark.parametrize(("codes", "code"), [([0, 0], 0), ([0, 2], 2), ([2, 1], 1), ([-15], 1)])
def test_exit_code_of_the_series(codes: list[int], code: int) -> None:
    step = series.Step("x", "X", "startup")
    assert series.code_of([series.Done(step, c, "", 1.0) for c in codes]) == code


def test_unknown_names_and_places_are_refused(tmp_path: Path) -> None:
    for words in (["--out", str(tmp_path / "no" / "x.md")], ["--out", str(tmp_path / "x.md"), "--only", "nonsense"]):
        with pytest.raises(SystemExit) as caught:
            series.main(words)
        assert caught.value.code == 2
    assert series.main(["--out", str(tmp_path / "x.md"), "--server", str(tmp_path / "none.c")]) == 2
    assert not (tmp_path / "x.md").exists()
