"""The same profile behind HTTP in real time and in virtual time: capacities within one step, speeds alike."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.virtual_agreement import run

# Neighbouring levels near 80 tok/s differ by a seventh. Windows of seconds hold few requests, hence the tolerance.
PROFILE = """
name = "steep"
description = "made by a test"
model = "steep"
context_tokens = 32768
step_fixed_s = 3.0e-3
step_per_sequence_s = 2.2e-3
prefill_tokens_per_s = 400000.0
max_step_tokens = 2048
max_running = 32
kv_pool_tokens = 400000
block_tokens = 64
jitter = 0.02
ttft_overhead_s = 0.01
"""
LEVELS = (4, 5, 6)
FLAGS = "--slo 80tps --traces smoke --levels 4,5,6 --duration 4s --warmup-max 2s --no-metrics"


def capacity(rows: dict[int, Any]) -> int:
    """Largest of the levels whose measured p25 speed is 80 tok/s or more: windows of seconds decide no verdict."""
    return max((level for level, row in rows.items() if row["speed_p25"] >= 80), default=LEVELS[0] - 1)


def test_http_and_virtual_time_agree(tmp_path: Path) -> None:
    path = tmp_path / "steep.toml"
    path.write_text(PROFILE)
    virtual, real = (
        {row["level"]: row for row in run(kind, str(path), FLAGS.split())[0]["levels"]} for kind in ("virtual", "sim")
    )
    assert set(virtual) == set(LEVELS)
    for level in LEVELS:
        if real[level]["health"] != "ok" or real[level]["void"] is not None:
            pytest.skip("this machine is too busy to measure in real time now")
        assert real[level]["speed_p25"] == pytest.approx(virtual[level]["speed_p25"], rel=0.1)
        assert real[level]["cached_share"] == pytest.approx(virtual[level]["cached_share"], abs=0.1)
    assert capacity(virtual) in (4, 5)
    assert abs(capacity(virtual) - capacity(real)) <= 1
