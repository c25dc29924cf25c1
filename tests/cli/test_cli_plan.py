"""`agentperf plan` and `run --endpoint virtual:PROFILE`: searches inside the process, labelled so."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentperf.cli.plan import named
from agentperf.cli.plan_figure import draw, series
from agentperf.cli.variants import Found, Variant, read_vary, variant_of, variants
from agentperf.errors import UsageError
from agentperf.sim.profile import load_profile
from agentperf.store.rundir import read_run

DEMO = load_profile("demo")
QUICK = ("--traces", "smoke", "--slo", "80tps")


def command(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    made = subprocess.run(
        [sys.executable, "-m", "agentperf", *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert made.returncode == code, made.stderr
    return made


def test_values_are_absolute_or_factors() -> None:
    vary = read_vary("kv_pool_tokens=0.5x, 1x,3000000", DEMO)
    assert vary.values == (500_000, 1_000_000, 3_000_000)
    assert all(isinstance(v, int) for v in vary.values)
    assert read_vary("prefill-tokens-per-s=2x,1e5", DEMO).values == (500_000.0, 100_000.0)
    assert read_vary("prefix_cache=on,off", DEMO).values == (True, False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("speed=1,2", "no number called 'speed'"),
        ("name=a", "no number called 'name'"),
        ("replicas", "names no values"),
        ("replicas=", "names no values"),
        ("replicas=two", "'two' is no number"),
        ("replicas=-1", "'-1' is no number"),
        ("prefix_cache=maybe", "neither on nor off"),
        ("replicas=1.2.3", "is no number"),
    ],
)
def test_what_cannot_be_varied_is_said(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_vary(text, DEMO)


@settings(max_examples=200, deadline=None)
@given(text=st.one_of(st.text(max_size=30), st.text("0123456789.ex,=-", max_size=12).map(lambda t: f"replicas={t}")))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        vary = read_vary(text, DEMO)
    except UsageError:
        return
    assert vary.values
    assert len(vary.values) == len(vary.texts)


def test_a_profile_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(UsageError, match="kv_pool_tokens must hold"):
        variant_of(DEMO, [("kv_pool_tokens", 10)])
    with pytest.raises(UsageError, match="replicas"):
        variant_of(DEMO, [("replicas", 0)])


def test_each_variant_once_alone_or_in_a_grid() -> None:
    varied = [read_vary("replicas=1,2", DEMO), read_vary("kv_pool_tokens=0.5x,1x", DEMO)]
    alone = variants(DEMO, varied, grid=False)
    assert [named(v) for v in alone] == ["as it is", "replicas = 2", "kv_pool_tokens = 500,000"]
    grid = variants(DEMO, varied, grid=True)
    assert len(grid) == 4
    assert {(v.profile.replicas, v.profile.kv_pool_tokens) for v in grid} == {
        (1, 500_000),
        (2, 500_000),
        (1, 1_000_000),
        (2, 1_000_000),
    }


def found(variant: Variant, capacity: int | None) -> Found:
    fail = None if capacity is None else capacity + 1
    return Found(variant, capacity, capacity, fail, "found", 0.95, 81.0, 0.1, 0.7, 60.0, 1.0, interrupted=False)


def test_series_and_figure(tmp_path: Path) -> None:
    rows = [
        found(variant_of(DEMO, []), 20),
        found(variant_of(DEMO, [("replicas", 4)]), 80),
        found(variant_of(DEMO, [("kv_pool_tokens", 500_000)]), None),
        found(variant_of(DEMO, [("replicas", 2), ("kv_pool_tokens", 500_000)]), 39),
    ]
    assert series(rows) == {"replicas": [(1.0, 20, 21), (4.0, 80, 81)], "kv_pool_tokens": [(1_000_000.0, 20, 21)]}
    written = draw(rows, "demo", tmp_path / "figure.png")
    assert [p.name for p in written] == ["figure.png", "figure.svg"]
    assert "virtual" in written[1].read_text()
    assert rows[1].per_accelerator == 20.0
    assert draw(rows[:1], "demo", tmp_path / "none") == []


def test_two_replicas_carry_twice_as_many() -> None:
    made = command("plan", "demo", *QUICK, "--vary", "replicas=1,2", "--resolution", "10%", "--json")
    document: dict[str, Any] = json.loads(made.stdout)
    assert document["virtual"] is True
    one, two = document["rows"]
    assert (one["changes"], two["changes"]) == ({}, {"replicas": 2})
    assert 18 <= one["capacity"] <= 26
    assert 1.75 <= two["capacity"] / one["capacity"] <= 2.25
    assert two["per_accelerator"] == two["capacity"] / 2
    assert one["wall_s"] < one["virtual_s"]
    assert made.stderr.count("[virtual] demo") == 2


def columns(directory: Path) -> list[Any]:
    """All records of a run in a comparable form."""
    return list(read_run(directory).records().to_pylist())


def test_a_virtual_run_is_a_run_and_says_what_it_is(tmp_path: Path) -> None:
    words = ("run", "--endpoint", "virtual:demo", "--slo", "80tps", "--resolution", "20%", "--plain")
    for name in ("one", "two"):
        made = command(*words, "--seed", "3", "--out", str(tmp_path / name), "--name", "x")
        assert "(virtual)" in made.stdout
    one, two = (next((tmp_path / name).iterdir()) for name in ("one", "two"))
    run = read_run(one)
    assert run.manifest["virtual"] is run.manifest["simulated"] is True
    assert run.manifest["endpoint"]["profile"]["name"] == "demo"
    assert run.summary is not None
    assert run.summary["virtual"] is True
    assert 16 <= run.summary["answers"][0]["capacity"] <= 26
    assert "(virtual)" in (one / "report.md").read_text()
    assert "VIRTUAL" in (one / "scaling.svg").read_text()
    # Equal seeds, equal runs: every stamp, token and salt.
    assert columns(one) == columns(two)


def test_a_dry_run_sends_nothing_and_writes_nothing(tmp_path: Path) -> None:
    made = command("run", "--endpoint", "virtual:demo", "--slo", "80tps", "--dry-run", "--out", str(tmp_path))
    assert "virtual:demo (virtual), model demo-coder" in made.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_profile_is_told() -> None:
    made = command("run", "--endpoint", "virtual:nothing", "--slo", "80tps", code=2)
    assert "there is no simulator profile 'nothing'" in made.stderr


def test_ctrl_c_ends_a_virtual_run_after_its_level(tmp_path: Path) -> None:
    words = ["run", "--endpoint", "virtual:glm-5.3-8xh200", "--levels", "64,65,66,67,68,69", "--duration", "20m"]
    with subprocess.Popen(
        [sys.executable, "-m", "agentperf", *words, "--out", str(tmp_path), "--plain"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("writing"):
                break
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    run = read_run(next(tmp_path.iterdir()))
    assert run.summary is not None
    assert 1 <= len(run.summary["levels"]) < 6
    assert run.records().num_rows > 0
