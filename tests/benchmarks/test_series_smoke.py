"""The other benchmarks end to end with tiny loads, where the truth server's source and a C compiler are at hand."""

import shutil
from pathlib import Path

import pytest

from benchmarks import connections, endurance, memory, overload
from benchmarks.truth import build
from benchmarks.work import Work
from tests.benchmarks.test_accuracy_smoke import SOURCE, pytestmark  # noqa: F401 - skips all of this too


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert shutil.which("cc")
    return build(SOURCE, tmp_path_factory.mktemp("truth"))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of 0.15 s and waits of 0.1 s."""
    for module in (endurance, memory):
        for name, value in {"TTFT_MS": 50.0, "TPS": 100.0, "TOKENS": 11, "STREAM_S": 0.15}.items():
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(endurance, "WAIT_MS", 100.0)


@pytest.mark.parametrize("name", ["agentperf", "bare"])
def test_a_burst_of_connections_arrives(name: str, binary: Path, tmp_path: Path) -> None:
    found = connections.burst(name, 40, 20.0, binary, tmp_path)
    assert (found.arrived, found.ok) == (40, 40)
    # By the server's log, so behind the start, and before the client was done with all of it.
    assert 0 < found.median_s <= found.last_s < found.done_s
    assert found.done_s >= connections.TTFT_MS / 1e3


@pytest.mark.usefixtures("short")
def test_endurance_counts_turns_waits_and_memory(binary: Path, tmp_path: Path) -> None:
    found = endurance.measure(4, 20, 1.5, 1, binary, tmp_path)
    assert found.failed == 0
    # Turns of 0.25 s; a busy machine may lose half of them.
    assert found.requests >= 12
    assert 0 <= found.overhead_p99_s < 0.1
    # The server sees a turn no earlier than its wait after the reply before it, and no later than a busy machine is.
    assert -0.001 < found.gap_p99_s < 0.2
    assert min(found.rss) > 20e6
    assert found.lag_p99_s <= found.lag_max_s


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", ["agentperf", "naive"])
def test_memory_is_that_beyond_one_agent(name: str, binary: Path, tmp_path: Path) -> None:
    (found,) = memory.measure(name, [6], 200, 1.0, binary, tmp_path)
    assert found.agents == 6
    assert found.failed == 0
    assert found.ok >= 6
    assert found.base_bytes > 20e6
    assert abs(found.mb_per_agent) < 20


def test_a_level_is_judged_beside_its_true_figures(binary: Path, tmp_path: Path) -> None:
    work = Work(streams=2, tps=50, ttft_ms=100, tokens=21, seconds=1)
    judged = overload.measure(work, 1, binary, tmp_path)
    assert judged.true.requests >= 1
    assert judged.true.unmatched == judged.true.lost == 0
    # Which verdict it gets depends on what else the machine does; that it has all that the rules look at does not.
    assert judged.health.workers == 1
    assert judged.health.loop_lag_p99_s is not None
    assert judged.health.send_delay_p99_s is not None
    assert judged.health.in_flight_ratio is not None and judged.health.in_flight_ratio > 0.5
    assert not judged.cut


def test_a_client_that_cannot_keep_up_is_void(binary: Path, tmp_path: Path) -> None:
    """32 streams of 20,000 tok/s: the loop has no time for its own timer, on any machine."""
    work = Work(streams=32, tps=20_000, ttft_ms=100, tokens=2000, seconds=1.0)
    judged = overload.measure(work, 1, binary, tmp_path)
    assert judged.untrue
    assert judged.health.status == "invalid"
    assert judged.caught
