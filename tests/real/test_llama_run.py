"""The whole command against a real server: a sweep of the smoke set, and a recorded Claude Code session."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from agentperf.errors import ExitCode
from agentperf.trace.context import fit_context
from agentperf.trace.io import load, write
from agentperf.trace.model import Append, TraceSet
from agentperf.trace.render import render_tree
from agentperf.trace.sizing import TokenSizes
from agentperf.trace.validate import validate
from tests.real.llama import SLOT_CONTEXT, Llama
from tests.real.traces import prompts_of, transcript, with_small_scaffold

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 240
"""Generous: a third of a minute was measured on one busy core."""
SALT_TOKENS = 20
"""The cache salt comes on top of a prompt's recorded size: about 24 tokens of this model's."""


def agentperf(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "agentperf", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@dataclass(frozen=True)
class Run:
    """A finished run, read back from its directory."""

    directory: Path
    code: int
    stderr: str
    summary: dict[str, Any]
    manifest: dict[str, Any]
    events: list[dict[str, Any]]
    records: pd.DataFrame


def run(llama: Llama, out: Path, *arguments: str) -> Run:
    done = agentperf("run", "--endpoint", llama.url, "--out", str(out), "--json", *arguments)
    assert done.returncode in (ExitCode.OK, ExitCode.INCONCLUSIVE), done.stderr
    (directory,) = out.iterdir()
    summary = json.loads((directory / "summary.json").read_text())
    assert json.loads(done.stdout) == summary, "--json prints the summary and nothing else"
    return Run(
        directory=directory,
        code=done.returncode,
        stderr=done.stderr,
        summary=summary,
        manifest=json.loads((directory / "manifest.json").read_text()),
        events=[json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()],
        records=pd.read_parquet(directory / "records.parquet"),
    )


def assert_sound(done: Run) -> None:
    """What holds for every run against a healthy server."""
    records = done.records
    assert records.request_id.is_unique
    assert set(records.outcome) == {"ok"} or set(records[records.outcome != "ok"].error_class) == {"cut_off"}
    ok = records[records.outcome == "ok"]
    assert len(ok) >= 4
    assert set(ok.status) == {200}
    assert set(ok.token_source) == {"usage"}
    stamps = [
        "due_ns",
        "t0_ns",
        "connected_ns",
        "sent_ns",
        "first_byte_ns",
        "first_visible_ns",
        "last_visible_ns",
        "end_ns",
    ]
    for earlier, later in pairwise(stamps):
        assert (ok[earlier] <= ok[later]).all(), f"{earlier} after {later}"
    assert (ok.cached_tokens < ok.prompt_tokens).all()
    for row in done.summary["levels"]:
        mine = records[(records.probe == row["probe"]) & (records.phase == "window")]
        assert row["started"] == len(mine)
        assert row["started"] == row["ok"] + row["failed"] + row["truncated"]
        assert row["ok"] == (mine.outcome == "ok").sum()
        assert mine.agent.nunique() <= row["level"]
    events = [event["event"] for event in done.events]
    probes = ["probe_started", "probe_finished"] * len(done.summary["levels"])
    assert events == ["run_started", *probes, "run_finished"]
    assert done.summary["complete"]
    assert not done.summary["simulated"]
    assert stat.S_IMODE(done.directory.stat().st_mode) == 0o700
    assert {path.name for path in done.directory.iterdir()} >= {
        *("manifest.json", "events.jsonl", "records.parquet", "summary.json"),
        *("report.md", "scaling.png", "scaling.svg", "throughput.png", "throughput.svg"),
    }


def plays(records: pd.DataFrame) -> list[pd.DataFrame]:
    """Turns of one session in one play each, in order, without those that were cut off."""
    ok = records[records.outcome == "ok"]
    groups = ok.groupby(["probe", "play", "session_id"], sort=False)
    return [group.sort_values("turn") for _, group in groups]


def _assert_server_figures(row: dict[str, Any]) -> None:
    """llama.cpp's own page, as far as it goes. A busy server may answer too late for a level of four seconds."""
    found = row["server"]
    if "all" in found["reasons"] or found["running_mean"] is None:
        return
    assert found["engines"] == ["llama.cpp"]
    assert found["reasons"]["ttft"] == "llama.cpp exports no TTFT histogram"
    assert found["ttft_mean_s"] is None
    assert found["ttft_difference_s"] is None
    assert 0 <= found["running_mean"] <= row["level"]
    assert found["kv_usage_mean"] is None
    if found["cache_queries"]:
        assert 0 <= found["cache_share"] < 1


def test_a_sweep_of_the_smoke_set(llama: Llama, tmp_path: Path) -> None:
    counters = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")
    before = [llama.metric(name) for name in counters]
    done = run(
        *(llama, tmp_path / "runs", "--traces", "smoke", "--levels", "1,2", "--duration", "4s"),
        *("--slo", "p50 speed >= 0.1, p95 ttft <= 200s, errors <= 1%"),
        *("--time-scale", "0.1", "--warmup-max", "4s", "--context", "3600", "--extra-body", '{"max_tokens": 24}'),
    )
    grown = [llama.metric(name) - was for name, was in zip(counters, before, strict=True)]
    assert_sound(done)
    assert [row["level"] for row in done.summary["levels"]] == [1, 2]
    assert done.summary["reason"] in ("swept", "inconclusive")
    _assert_exit_code_of_verdicts(done)
    for row in done.summary["levels"]:
        _assert_server_figures(row)
    ok = done.records[done.records.outcome == "ok"]
    assert set(ok.output_tokens) == {24}, "ignore_eos forces the length"
    assert set(ok.finish_reason) == {"length"}
    assert (ok.prompt_tokens + 24 <= 3600).all(), "the context filter kept long turns out"
    off = (ok.prompt_tokens - ok.expected_prompt_tokens).abs()
    assert (off <= 0.02 * ok.expected_prompt_tokens + SALT_TOKENS).all(), "sized by the server's own count"
    # what is recorded is part of what the server itself counted; the check and the calibration are the rest
    assert grown[0] >= (ok.prompt_tokens - ok.cached_tokens).sum()
    assert grown[1] >= ok.cached_tokens.sum()
    assert grown[2] >= ok.output_tokens.sum()
    follow_ups = [pair for play in plays(done.records[done.records.level == 1]) for pair in pairwise(play.itertuples())]
    assert follow_ups
    for turn, following in follow_ups:
        assert following.turn == turn.turn + 1
        assert following.cached_tokens >= turn.prompt_tokens - 4, "the whole of the turn before is in the cache"
    _assert_disclosed(done)
    assert "level=1 probe=1" in done.stderr
    assert "level=2 probe=2" in done.stderr


def _assert_exit_code_of_verdicts(done: Run) -> None:
    statuses = {status for row in done.summary["levels"] for status in row["status"].values()}
    assert statuses <= {"pass", "inconclusive", "invalid"}, "nothing can fail such an SLO here"
    assert done.code == (ExitCode.OK if statuses == {"pass"} else ExitCode.INCONCLUSIVE)


def _assert_disclosed(done: Run) -> None:
    manifest = done.manifest
    assert manifest["capabilities"]["engine"] == "llama.cpp"
    assert manifest["capabilities"]["context_tokens"] == SLOT_CONTEXT
    assert manifest["trace_set"]["context_limit"] == 3600
    assert manifest["trace_set"]["context"]["requests_left_out"] > 0
    assert manifest["trace_set"]["sizes"]["source"] == "calibrated"
    assert manifest["replay"]["body"]["output"] == "exact"
    assert manifest["replay"]["body"]["extra"] == {"max_tokens": 24}


def test_the_report_of_a_run_can_be_made_again(llama: Llama, tmp_path: Path) -> None:
    done = run(
        *(llama, tmp_path / "runs", "--traces", "smoke", "--concurrency", "1", "--duration", "3s", "--context", "1500"),
        *("--time-scale", "0", "--warmup-max", "3s", "--extra-body", '{"max_tokens": 8}', "--transport", "httpx"),
    )
    assert_sound(done)
    assert done.manifest["capabilities"]["transport"] == "httpx"
    (done.directory / "report.md").unlink()
    again = agentperf("report", str(done.directory))
    assert again.returncode == ExitCode.OK, again.stderr
    assert (done.directory / "report.md").exists()


# -- a recorded session ----------------------------------------------------------------------------------------------


def _sample() -> Path:
    """A real transcript with subagents, from the folder of samples; skips where there is none."""
    folder = Path(os.environ.get("AGENTPERF_SAMPLES") or ROOT.parent / "shared" / "samples") / "claude-code"
    found = [path for path in sorted(folder.glob("*.jsonl")) if (folder / path.stem / "subagents").is_dir()]
    if not found:
        pytest.skip("no real transcript here: AGENTPERF_SAMPLES names a folder with claude-code/<session>.jsonl")
    return found[0]


def _written(folder: Path) -> Path:
    path = folder / "written.jsonl"
    path.write_text(transcript((8, 20, 35, 12, 40, 2000, 5)))
    return path


@pytest.mark.parametrize("source", ["written", "sample"])
def test_a_recorded_claude_code_session_finds_its_turns_in_the_cache(llama: Llama, tmp_path: Path, source: str) -> None:
    transcript_file = _written(tmp_path) if source == "written" else _sample()
    imported = tmp_path / "imported.jsonl.zst"
    made = agentperf("traces", "import", str(transcript_file), "-o", str(imported))
    assert made.returncode == ExitCode.OK, made.stderr
    refused = agentperf("run", "--endpoint", llama.url, "--traces", str(imported), "--levels", "1", "--dry-run")
    assert refused.returncode == ExitCode.USAGE, "the system prompt of the client alone is larger than this context"
    assert str(SLOT_CONTEXT) in refused.stderr
    traces = tmp_path / "traces.jsonl"
    recorded = write(with_small_scaffold(load(imported), 1000), traces)
    assert validate(traces) == []
    done = run(
        *(llama, tmp_path / "runs", "--traces", str(traces), "--context-rule", "cut", "--concurrency", "1"),
        *("--duration", "5s", "--warmup-max", "4s", "--time-scale", "0.01", "--extra-body", '{"max_tokens": 16}'),
    )
    assert_sound(done)
    context = done.manifest["trace_set"]["context"]
    assert (context["limit_tokens"], context["rule"]) == (SLOT_CONTEXT, "cut")
    assert context["requests"] == sum(len(item.requests) for item in recorded.sessions)
    assert context["requests_left_out"] > 0
    whole = [play for play in plays(done.records) if len(play) >= 3]
    assert whole, "a play of three turns or more"
    for play in plays(done.records):
        for turn, following in pairwise(play.itertuples()):
            assert following.cached_tokens >= turn.prompt_tokens - 4, "the whole of the turn before is in the cache"
            assert following.cached_tokens > turn.cached_tokens
    _assert_recorded_text_arrived(llama, done, recorded)


def _assert_recorded_text_arrived(llama: Llama, done: Run, recorded: TraceSet) -> None:
    """Each prompt has the tokens of the recorded messages by the server's own tokenizer, and the salt."""
    (tree,), _ = fit_context(recorded.trees(), SLOT_CONTEXT, "cut")
    sizes = msgspec.convert(done.manifest["trace_set"]["sizes"], TokenSizes)
    session = render_tree(tree, recorded.blobs, sizes, recorded.header).sessions[0]
    prompts = prompts_of(session)
    assert len(prompts) >= 3
    inputs = [request.input for request in tree[0].requests]
    words = [message for given in inputs if isinstance(given, Append) for message in given.messages]
    assert prompts[-1][1:] == words, "behind the system prompt stands what was recorded, untouched"
    counts = llama.count_tokens(prompts, session.tools)
    ok = done.records[done.records.outcome == "ok"]
    salt = ok.prompt_tokens - ok.turn.map(dict(enumerate(counts)))
    assert salt.between(4, SALT_TOKENS).all(), salt.to_list()
