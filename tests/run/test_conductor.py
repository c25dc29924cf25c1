"""Whole runs in virtual time against servers that misbehave: each ends, with the right reason and verdict."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentperf.clock import VirtualLoop
from agentperf.measure.window import WindowSettings
from agentperf.run.conductor import Progress
from agentperf.run.plan import Plan
from agentperf.search.model import Done
from agentperf.slo.tiers import resolve
from agentperf.slo.verdict import Rules
from agentperf.store.rundir import RunWriter, read_run
from agentperf.wire.exchange import Caller
from tests.replay.fakes import FakeServer, tree
from tests.run.virtually import run_with, search_plan

TREES = [tree(f"s{i}", 4) for i in range(6)]


def hold(plan: Plan, caller: Caller, directory: Path) -> tuple[Done, Progress]:
    writer = RunWriter.create(directory)
    writer.write_manifest({"schema_version": 1, "name": "t", "simulated": True, "slos": []})
    result: tuple[Done, Progress] = anyio.run(
        lambda: run_with(plan, TREES, caller, writer), backend_options={"loop_factory": VirtualLoop}
    )
    writer.finish()
    return result


def fixed(*levels: int, slo: str = "3tps", **changes: Any) -> Plan:
    window = changes.pop("window", WindowSettings(warmup_max_s=60, window_max_s=300, settle_s=20))
    return Plan(
        protocol="sweep",
        slos=(resolve(slo),),
        window=window,
        rules=Rules(min_requests=window.first_look),
        levels=levels,
        **changes,
    )


def capped(limit: int, slow: float = 40.0) -> Callable[[], FakeServer]:
    """A server that decodes fast up to `limit` requests at once and slowly above."""

    class Capped(FakeServer):
        async def __call__(self, body: bytes, request_id: str) -> Any:
            self.decode_s = 1.0 if self.open < limit else slow
            return await super().__call__(body, request_id)

    return Capped


def test_a_server_without_limit_passes_everywhere(tmp_path: Path) -> None:
    done, progress = hold(search_plan("3tps", max_agents=8), FakeServer(), tmp_path / "r")
    assert done.answers[0].capacity == 8
    assert done.reason == "all_pass"
    assert [o.level for o in progress.history] == [1, 2, 4, 8, 8], "the ramp is left at its leaning, the end is proven"
    assert [o.verdicts["3tps"].lean for o in progress.history[:4]] == ["pass"] * 4
    first, second = progress.history[3:]
    assert second.verdicts["3tps"].status == "pass"
    own, pooled = ([getattr(t, n) for t in second.verdicts["3tps"].terms] for n in ("n_eff", "pooled_n_eff"))
    before = [t.n_eff for t in first.verdicts["3tps"].terms]
    assert pooled == pytest.approx([a + b for a, b in zip(own, before, strict=True)]), "both probes count together"


def test_all_errors_pass_nowhere(tmp_path: Path) -> None:
    server = FakeServer(fail_ids=tuple("0123456789"))
    done, progress = hold(search_plan("3tps", max_agents=8), server, tmp_path / "r")
    assert done.answers[0].capacity == 0
    assert done.reason == "none_pass"
    metrics = progress.history[0].metrics
    assert metrics.failed == metrics.started > 0
    assert metrics.errors_by_class == {"http_5xx": metrics.failed}
    assert metrics.speed.p25 == pytest.approx(0.0)


def test_a_cliff_is_found(tmp_path: Path) -> None:
    """5 tokens a second while at most 5 requests are open, a fortieth of that above."""
    done, _ = hold(search_plan("3tps", max_agents=64), capped(5)(), tmp_path / "r")
    answer = done.answers[0]
    assert answer.reason == "found"
    assert answer.largest_pass is not None
    assert answer.smallest_fail == answer.largest_pass + 1
    assert answer.largest_pass >= 5


def test_one_request_that_is_never_answered_ends_the_level_and_counts_against_it(tmp_path: Path) -> None:
    server = FakeServer(hang_ids=("a0p1-s0-2", "a0p1-s1-2", "a0p1-s2-2", "a0p1-s3-2", "a0p1-s4-2", "a0p1-s5-2"))
    _, progress = hold(fixed(3), server, tmp_path / "r")
    metrics = progress.history[0].metrics
    assert metrics.started == metrics.ok + metrics.failed + metrics.truncated
    records = read_run(tmp_path / "r").records().to_pylist()
    cut = [r for r in records if r["outcome"] == "truncated"]
    assert cut
    assert all(r["first_visible_ns"] is None for r in cut)
    if metrics.truncated:
        assert metrics.ttft.n == metrics.started


def test_rate_limits_are_no_slo_failure(tmp_path: Path) -> None:
    class Limited(FakeServer):
        async def __call__(self, body: bytes, request_id: str) -> Any:
            exchange = await super().__call__(body, request_id)
            if len(self.sent) % 3 == 0:
                exchange.status = 429
                exchange.chunks = [b'{"error": {"message": "slow down"}}']
                del exchange.stamps[1:]
            return exchange

    done, progress = hold(fixed(2), Limited(), tmp_path / "r")
    verdict = progress.history[0].verdicts["3tps"]
    assert verdict.status == "invalid"
    assert verdict.reason.startswith("rate_limited")
    assert done.answers[0].largest_pass is None


def test_the_budget_is_respected_and_said(tmp_path: Path) -> None:
    plan = search_plan("3tps", max_agents=1024, budget_s=200.0)
    done, progress = hold(plan, FakeServer(), tmp_path / "r")
    assert done.reason == "budget"
    end_ns = max(o.close_ns for o in progress.history)
    assert (end_ns - progress.began_ns) / 1e9 <= 201
    passed = [o.level for o in progress.history if o.verdicts["3tps"].status == "pass"]
    assert done.answers[0].capacity == max(passed, default=None)
    assert "ended early: the time budget is spent" in done.answers[0].notes
    assert done.answers[0].undecided, "levels that were only leaning when time was up"


def test_a_sweep_measures_each_level_for_its_duration(tmp_path: Path) -> None:
    done, progress = hold(fixed(1, 2, 4, duration_s=30.0), FakeServer(), tmp_path / "r")
    assert done.reason == "inconclusive", "a handful of requests proves nothing"
    assert {o.verdicts["3tps"].status for o in progress.history} == {"inconclusive"}
    assert [o.level for o in progress.history] == [1, 2, 4]
    assert all(o.metrics.window_s == pytest.approx(30.0, abs=0.5) for o in progress.history)


def test_load_is_held_until_the_last_request_of_the_window_has_ended(tmp_path: Path) -> None:
    _, progress = hold(fixed(4, duration_s=30.0), FakeServer(), tmp_path / "r")
    outcome = progress.history[0]
    records = read_run(tmp_path / "r").records().to_pylist()
    window = [r for r in records if r["phase"] == "window"]
    last_end = max(r["end_ns"] for r in window)
    later = [r for r in records if r["phase"] == "cooldown"]
    assert all(r["outcome"] == "ok" for r in window)
    assert last_end > outcome.close_ns
    assert later, "agents went on while the window's last requests were open"
    assert len(window) == outcome.metrics.started


def test_two_slos_share_probes(tmp_path: Path) -> None:
    done, progress = hold(search_plan("3tps", "2tps", max_agents=8), FakeServer(), tmp_path / "r")
    assert {a.slo for a in done.answers} == {"3tps", "2tps"}
    assert [o.level for o in progress.history] == [1, 2, 4, 8, 8]
    assert all(set(o.verdicts) == {"3tps", "2tps"} for o in progress.history)


def test_the_journal_tells_every_probe(tmp_path: Path) -> None:
    hold(fixed(1, 2), FakeServer(), tmp_path / "r")
    run = read_run(tmp_path / "r")
    kinds = [e["event"] for e in run.events]
    assert kinds == ["run_started", *["probe_started", "probe_finished"] * 2, "run_finished"]
    assert run.complete
    finished = [e for e in run.events if e["event"] == "probe_finished"]
    assert [e["level"] for e in finished] == [1, 2]
    assert all(e["verdicts"]["3tps"]["status"] == "pass" for e in finished)
