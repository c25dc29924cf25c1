"""The reference server against the truth server, with a tiny load, where that one and a C compiler are at hand."""

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from agentperf.yardstick.figures import Figures
from agentperf.yardstick.held import Held
from agentperf.yardstick.process import ServerProcess
from agentperf.yardstick.rows import Row
from benchmarks.reference_server import HEADERS, agree, cells, main, open_compiled, probe, row_of, tokens_in
from benchmarks.truth import VARIABLE, TruthRow, build

SOURCE = Path(
    os.environ.get(VARIABLE) or Path(__file__).resolve().parents[2].parent / "shared" / "tools" / "truthserver.c"
)
S = 1_000_000_000


def _figures(**changes: Any) -> Figures:
    empty: dict[str, Any] = {field.name: None for field in msgspec.structs.fields(Figures)}
    fields = {"level": 1, "workers": 1, "tps": 50.0, "verdict": "pass", "reasons": [], "requests": 9, "lost": 0}
    errors = {"ttft_error_p99_ms": 1.0, "speed_error_p99": 0.001}
    return Figures(**(empty | fields | errors | changes))


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"ttft_error_p99_ms": 1.9}, True),
        ({"ttft_error_p99_ms": 2.1}, False),
        ({"speed_error_p99": 0.0001}, True),
        ({"speed_error_p99": 0.0021}, False),
        ({"lost": 1}, False),
        ({"ttft_error_p99_ms": None}, False),
        ({"speed_error_p99": None}, False),
    ],
)
def test_agree(changes: dict[str, Any], same: bool) -> None:
    assert agree(_figures(), _figures(**changes)) is same
    assert agree(_figures(**changes), _figures()) is same


def test_rows_of_both_servers_are_one_thing() -> None:
    truth = TruthRow("a", "ok", 1, 2, 3 * S, 5 * S, 6 * S, 7, 8, 101, 101)
    row = row_of(truth)
    assert row == Row("a", "ok", 2, 3 * S, 5 * S, 6 * S, 7, 8, 101, 0)
    assert row.speed_tps == truth.speed_tps == 50
    assert row_of(replace(truth, outcome="abort")).speed_tps is None


def test_tokens_in_the_window() -> None:
    rows = [
        Row("whole", "ok", 0, 1 * S, 3 * S, 3 * S, 0, 0, 100, 0),
        Row("half", "ok", 0, 3 * S, 5 * S, 5 * S, 0, 0, 100, 0),
        Row("outside", "ok", 0, 5 * S, 6 * S, 6 * S, 0, 0, 100, 0),
    ]
    held = Held(1, 1, 0, 4 * S, [], rows, None, None, None, 0.0, 0, None)
    assert tokens_in(held) == 150


def test_cells_fit_the_headers() -> None:
    assert len(cells("reference", _figures())) == len(HEADERS)


def test_a_missing_server_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert main([]) == 2
    assert VARIABLE in capsys.readouterr().err


@pytest.mark.skipif(not SOURCE.is_file(), reason=f"the truth server is not at hand ({VARIABLE} is not set)")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_same_client_sees_the_same_from_both(tmp_path: Path) -> None:
    binary = build(SOURCE, tmp_path)
    for server in (ServerProcess, partial(open_compiled, binary)):
        found = anyio.run(probe, server, 50.0, 4, 1.0, backend_options={"use_uvloop": True})
        assert found.requests >= 1
        assert found.lost == 0
        # Medians, so that another process that takes the core for a while breaks nothing.
        assert found.ttft_error_p50_ms is not None
        assert found.ttft_error_p50_ms < 10
        assert found.speed_error_p50 is not None
        assert found.speed_error_p50 < 0.02
        assert found.us_per_event is not None
        assert found.events_per_s == pytest.approx(4 * 50 * 2 / 2.2, rel=0.35)
