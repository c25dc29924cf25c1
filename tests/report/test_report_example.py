"""The example run of the repository: complete, labelled, small, and its summary is what its records say."""

from pathlib import Path

import numpy as np
import pytest

from agentperf.report.write import write_report
from agentperf.store.rundir import read_run

EXAMPLE = Path(__file__).resolve().parents[2] / "results" / "example"


def test_it_is_complete_simulated_and_small() -> None:
    run = read_run(EXAMPLE)
    assert run.complete
    assert run.manifest["simulated"] is True
    assert sum(f.stat().st_size for f in EXAMPLE.iterdir()) < 1_000_000


def test_its_summary_is_what_its_records_say() -> None:
    run = read_run(EXAMPLE)
    records = run.records().to_pandas()
    summary = run.summarised()
    for row in summary["levels"]:
        window = records[(records["probe"] == row["probe"]) & (records["phase"] == "window")]
        assert len(window) == row["started"] == row["ok"] + row["failed"] + row["truncated"]
        speeds = window["speed_tps"].dropna()
        assert np.percentile(speeds, 25) == pytest.approx(row["speed_p25"], rel=1e-6)
        assert np.percentile(window["ttft_s"], 95) == pytest.approx(row["ttft_p95"], rel=1e-6)


def test_the_readme_quotes_it() -> None:
    readme = (EXAMPLE.parents[1] / "README.md").read_text()
    answer = read_run(EXAMPLE).summarised()["answers"][0]
    assert f"{answer['capacity']} agents at {answer['slo']}" in readme
    assert f"passes at {answer['largest_pass']}, fails at {answer['smallest_fail']}" in readme


def test_its_report_is_what_this_version_writes(tmp_path: Path) -> None:
    write_report(EXAMPLE, tmp_path)
    assert (tmp_path / "report.md").read_text() == (EXAMPLE / "report.md").read_text()
