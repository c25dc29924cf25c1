"""The summary is a pure function of manifest and journal, whole or broken off."""

import json
from typing import Any

import pytest
from run_journals import answer, finished, health, manifest, probe_events, probe_records, search_journal

from agentperf.store.summary import summarise_run


def _votes(votes: list[tuple[int, str]], **extra: Any) -> list[dict[str, Any]]:
    """A journal of bare verdicts."""
    return [
        {
            "event": "probe_finished",
            "probe": n,
            "level": level,
            "why": "ramp",
            "verdicts": {"80tps": {"status": status, "reason": status}},
            "metrics": {"started": 100 + n, "plays": n},
            **extra,
        }
        for n, (level, status) in enumerate(votes, 1)
    ]


def test_a_finished_search() -> None:
    events, records = search_journal()
    summary = summarise_run(manifest(["80tps"], simulated=True), [*events, finished([answer("80tps", 16, 20)])])
    json.dumps(summary, allow_nan=False)
    assert (summary["complete"], summary["reason"], summary["simulated"]) == (True, "found", True)
    (one,) = summary["answers"]
    assert (one["capacity"], one["largest_pass"], one["smallest_fail"]) == (16, 16, 20)
    at_16 = [r for r in records if r.level == 16]
    assert one["pass_end"] == {
        "level": 16,
        "probes": 1,
        "passed": 1,
        "requests": len(at_16),
        "plays": len({r.play for r in at_16}),
        "confidence": 0.95,
        "close": True,
        "estimated": False,
        "suspect": False,
    }
    assert one["fail_end"]["level"] == 20
    row = next(r for r in summary["levels"] if r["level"] == 16)
    finished_event = next(e for e in events if e["event"] == "probe_finished" and e["level"] == 16)
    metrics = finished_event["metrics"]
    assert row["speed_p25"] == metrics["speed"]["p25"]
    assert row["ttft_p95"] == metrics["ttft"]["p95"]
    assert row["cached_share"] == metrics["cached_share"]
    assert row["started"] == row["ok"] + row["failed"] + row["truncated"] == len(at_16)
    assert row["status"] == {"80tps": "pass"}
    assert row["terms"]["80tps"] == list(finished_event["verdicts"]["80tps"]["terms"])
    assert summary["unfinished"] is None
    assert [r["probe"] for r in summary["levels"]] == list(range(1, 9))


@pytest.mark.parametrize(
    ("votes", "low", "high"),
    [
        ([], None, None),
        ([(1, "pass"), (2, "pass")], 2, None),
        ([(1, "pass"), (2, "pass"), (4, "fail")], 2, 4),
        ([(1, "fail")], None, 1),
        ([(4, "fail"), (2, "fail")], None, 2),
        ([(1, "pass"), (2, "inconclusive"), (4, "invalid")], 1, None),
        ([(4, "fail"), (8, "pass"), (2, "pass")], 2, 4),
        ([(2, "pass"), (4, "fail"), (4, "pass"), (4, "pass")], 4, None),
        ([(2, "pass"), (4, "fail"), (4, "pass")], 4, None),
        ([(2, "pass"), (4, "pass"), (4, "inconclusive")], 2, None),
    ],
)
def test_the_bracket_so_far(votes: list[tuple[int, str]], low: int | None, high: int | None) -> None:
    summary = summarise_run(manifest(["80tps"]), _votes(votes))
    (one,) = summary["answers"]
    assert (one["largest_pass"], one["smallest_fail"]) == (low, high)
    assert one["capacity"] == (0 if high == 1 else low)
    assert one["reason"] == summary["reason"] == "interrupted"
    assert one["monotone"] == (votes[:2] != [(4, "fail"), (8, "pass")])
    assert not summary["complete"]


def test_the_probe_that_has_no_end() -> None:
    events, _ = search_journal(levels=(1, 2))
    cut = events[:-1]
    assert summarise_run(manifest(["80tps"]), cut)["unfinished"] == {"probe": 2, "level": 2, "why": "ramp"}
    assert summarise_run({}, [])["unfinished"] is None


def test_an_interrupted_probe_decides_nothing() -> None:
    records = probe_records(1, 4, 150)
    events = probe_events(1, 4, records, ["80tps"], interrupted=True)
    summary = summarise_run(manifest(["80tps"]), [*events, finished([answer("80tps", None, None, "budget")], "budget")])
    assert summary["levels"][0]["status"] == {"80tps": "inconclusive"}
    assert summary["levels"][0]["interrupted"] is True
    assert (summary["complete"], summary["reason"]) == (False, "interrupted")


@pytest.mark.parametrize(
    ("note", "complete"), [("ended early: interrupted", False), ("ended early: the time budget is spent", True)]
)
def test_a_stopped_run_is_not_complete_and_a_spent_budget_is(note: str, complete: bool) -> None:
    end = finished([answer("80tps", 2, 4, "budget", notes=[note])], "budget")
    summary = summarise_run(manifest(["80tps"]), [*_votes([(2, "pass"), (4, "fail")]), end])
    assert summary["complete"] is complete
    assert summary["reason"] == ("budget" if complete else "interrupted")
    assert summary["answers"][0]["notes"] == [note]


def test_a_failed_run_says_why() -> None:
    summary = summarise_run(manifest(["80tps"]), [{"event": "run_failed", "error": "a load process died"}])
    assert (summary["complete"], summary["reason"], summary["error"]) == (False, "failed", "a load process died")


def test_an_invalid_probe_stays_invalid() -> None:
    records = probe_records(1, 4, 150)
    events = probe_events(1, 4, records, ["80tps"], health=health("invalid", "event loop lag p99 80.0 ms > 5 ms"))
    (row,) = summarise_run(manifest(["80tps"]), events)["levels"]
    assert row["status"] == {"80tps": "invalid"}
    assert row["health"] == "invalid"
    assert row["health_reasons"] == ["event loop lag p99 80.0 ms > 5 ms"]


def test_two_slos_share_probes() -> None:
    events, _ = search_journal(["80tps", "20tps"], (4, 16, 32))
    summary = summarise_run(manifest(["80tps", "20tps"]), events)
    brackets = {a["slo"]: (a["largest_pass"], a["smallest_fail"]) for a in summary["answers"]}
    assert brackets == {"80tps": (16, 32), "20tps": (32, None)}


def test_a_sweep_without_slo_has_levels_and_no_answers() -> None:
    events = probe_events(1, 4, probe_records(1, 4, 150), [])
    summary = summarise_run(manifest([]), [*events, finished([], "swept")])
    assert summary["answers"] == []
    assert summary["levels"][0]["status"] == {}
    assert summary["complete"]
