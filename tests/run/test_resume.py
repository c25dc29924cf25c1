"""A run that was broken off is taken up: nothing is measured twice, nothing is lost, and only the same run goes on."""

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentperf.clock import VirtualLoop
from agentperf.errors import UsageError
from agentperf.run.conductor import answers_of, conduct
from agentperf.run.probe import as_event
from agentperf.run.resume import as_outcome, check_same, past_of
from agentperf.run.workload import encode, load_workload, render
from agentperf.sim.profile import load_profile
from agentperf.sim.virtual import VirtualEndpoint
from agentperf.store.files import to_json
from agentperf.store.rundir import RunWriter, read_run
from agentperf.trace.sizing import DEFAULT_SIZES
from tests.run.virtually import fleet_of, search_plan

PLAN = search_plan("80tps", resolution=0.2, max_agents=32)


def trees() -> Any:
    return encode(render(load_workload("smoke", 32_768), DEFAULT_SIZES), live=False)


async def _run(writer: RunWriter, past: Any) -> Any:
    async with (
        VirtualEndpoint(load_profile("demo"), 3) as endpoint,
        fleet_of(trees(), endpoint.caller, 3, endpoint.facts.model) as fleet,
    ):
        done, progress = await conduct(PLAN, fleet, writer, lambda _: None, past=past, handle_signals=False)
    writer.finish()
    return done, progress


def go(writer: RunWriter, past: Any = None) -> Any:
    return anyio.run(_run, writer, past, backend_options={"loop_factory": VirtualLoop})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "whole"
    writer = RunWriter.create(directory)
    writer.write_manifest({"schema_version": 1, "name": "x", "slos": [{"name": "80tps"}]})
    go(writer)
    return directory


def broken(whole: Path, target: Path, probes: int) -> Path:
    """The directory as a kill -9 in probe `probes` + 1 leaves it: no end, no summary, a torn line."""
    shutil.copytree(whole, target)
    (target / "summary.json").unlink()
    events = target / "events.jsonl"
    kept: list[bytes] = []
    for line in events.read_bytes().splitlines(keepends=True):
        event = json.loads(line)
        kept.append(line)
        if event["event"] == "probe_started" and event["probe"] == probes + 1:
            break
    events.write_bytes(b"".join(kept) + b'{"event": "probe_fin')
    return target


@pytest.mark.parametrize("probes", [0, 1, 4])
def test_a_run_goes_on_where_it_broke_off(whole: Path, tmp_path: Path, probes: int) -> None:
    before = read_run(whole)
    directory = broken(whole, tmp_path / "broken", probes)
    rows = read_run(directory).records().num_rows
    writer = RunWriter.reopen(directory)
    past = past_of(read_run(directory).events)
    assert [o.probe for o in past.outcomes] == list(range(1, probes + 1)) and past.broken_off == 1
    done, progress = go(writer, past)
    run = read_run(directory)
    assert run.complete and run.unreadable_events == 0 and run.summary is not None
    assert [row["probe"] for row in run.summary["levels"]] == [
        *range(1, probes + 1),
        *range(probes + 2, progress.before + len(progress.history) + 1),
    ]
    assert run.summary["answers"][0]["capacity"] == before.summarised()["answers"][0]["capacity"]
    assert run.summary["resumed_at"] and run.summary["unfinished"] is None
    assert run.summary["levels"][:probes] == before.summarised()["levels"][:probes]
    records = run.records()
    assert records.num_rows > rows, "what was on disk is still there, and the rest is behind it"
    assert records.slice(0, rows).column("request_id") == before.records().column("request_id")
    assert answers_of(done)[0]["slo"] == "80tps"


def test_the_journal_gives_back_the_probes(whole: Path) -> None:
    events = [e for e in read_run(whole).events if e["event"] == "probe_finished"]
    for event in events:
        assert (
            json.loads(to_json(as_event(as_outcome(event)))).items()
            >= {k: event[k] for k in ("metrics", "verdicts", "health", "window", "warnings", "level", "why")}.items()
        )


def test_an_interrupted_probe_is_measured_again(whole: Path) -> None:
    events = [dict(e) for e in read_run(whole).events]
    last = next(e for e in reversed(events) if e["event"] == "probe_finished")
    last["interrupted"] = True
    past = past_of(events)
    assert last["probe"] not in [o.probe for o in past.outcomes] and past.broken_off == 1
    assert past.spent_s > 0


def test_what_cannot_be_read_is_said(whole: Path) -> None:
    events = [dict(e) for e in read_run(whole).events]
    next(e for e in events if e["event"] == "probe_finished")["health"] = {"status": 1}
    with pytest.raises(UsageError, match="probe 1 of the journal cannot be read"):
        past_of(events)


SAME: dict[str, Any] = {
    "agentperf_version": "1",
    "workload_fingerprint": "f",
    "endpoint": {"url": "http://a/v1"},
    "model": "m",
    "slos": [{"name": "80tps"}],
    "capabilities": {"engine": "vllm", "context_tokens": 4096},
    "workers": 1,
    "seed": 0,
    "protocol": {"protocol": "quick", "budget_s": None, "window": {"looks": 5}},
}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"agentperf_version": "2"}, "version"),
        ({"workload_fingerprint": "g"}, "workload"),
        ({"endpoint": {"url": "http://b/v1"}}, "endpoint"),
        ({"model": "n"}, "model"),
        ({"slos": []}, "SLOs"),
        ({"capabilities": {"engine": "sglang", "context_tokens": 4096}}, "engine"),
        ({"capabilities": {"engine": "vllm", "context_tokens": 8192}}, "context"),
        ({"workers": 2}, "load processes"),
        ({"seed": 1}, "seed"),
        ({"protocol": {"protocol": "quick", "budget_s": None, "window": {"looks": 6}}}, "window"),
    ],
)
def test_another_measurement_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        check_same(SAME, {**SAME, **change})


def test_only_the_budget_may_change() -> None:
    check_same(SAME, {**SAME, "protocol": {**SAME["protocol"], "budget_s": 60.0}})


def test_one_writer_a_directory(whole: Path, tmp_path: Path) -> None:
    directory = broken(whole, tmp_path / "locked", 2)
    writer = RunWriter.reopen(directory)
    with pytest.raises(UsageError, match="another agentperf"):
        RunWriter.reopen(directory)
    writer.finish()
    again = RunWriter.reopen(directory)
    again.finish()
    assert read_run(directory).records().num_rows > 0
