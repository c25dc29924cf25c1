"""The notebook's code runs from a checkout, and its curve is that of the summary."""

import json
from pathlib import Path

import pytest

from agentperf.store.rundir import read_run

ROOT = Path(__file__).resolve().parents[2]


def test_the_notebook_runs_and_redraws_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    cells = json.loads((ROOT / "notebooks" / "read_a_run.ipynb").read_text())["cells"]
    names: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "read_a_run.ipynb", "exec"), names)
    levels = read_run(ROOT / "results" / "example").summarised()["levels"]
    once = [row for row in levels if sum(r["level"] == row["level"] for r in levels) == 1]
    assert once
    for row in once:
        assert names["curve"].loc[row["level"], 0.25] == pytest.approx(row["speed_p25"], rel=1e-6)
    assert list(names["ttft"].columns) == ["first turn", "later turns"]
