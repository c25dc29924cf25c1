"""Protocols as data: what they set, what may be changed, and a whole run by the rules of `aa`."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from typer import Context

from agentperf.cli.options import RunOptions
from agentperf.cli.run import run as run_command
from agentperf.errors import UsageError
from agentperf.run.presets import applied, load_preset, preset_names
from agentperf.run.workload import encode, load_workload, render
from agentperf.sim.profile import load_profile
from agentperf.store.rundir import read_run
from agentperf.trace.sizing import DEFAULT_SIZES
from tests.run.virtually import run


def flags(**changes: Any) -> dict[str, Any]:
    """Every option of the command with its default."""
    given = {name: p.default for name, p in inspect.signature(run_command).parameters.items()}
    return {**given, "context_of_call": None, "endpoint": "sim:demo", "slo": ["80tps"], **changes}


def options(**changes: Any) -> RunOptions:
    return RunOptions.read(flags(**changes), set(changes))


def test_quick_is_what_the_command_line_defaults_to() -> None:
    given = flags()
    preset = load_preset("quick")
    for name, value in preset.flags.items():
        default = given[name]
        assert value == default or (name == "resolution" and default is None), name
    assert options().plan.label == "quick" and options(window_max="1m").plan.label == "not quick: --window-max 1m"
    assert Context is not None


@pytest.mark.parametrize("name", preset_names())
def test_every_flag_of_a_protocol_is_one_of_the_command(name: str) -> None:
    preset = load_preset(name)
    known = flags()
    assert preset.flags.keys() | set(preset.open) | set(preset.closed) <= known.keys()
    assert all(s.knob and s.choice and s.why for s in preset.silent)


def test_aa_by_its_public_rules() -> None:
    plan = options(protocol="aa").plan
    assert plan.label == "aa" and plan.phase is not None
    assert (plan.phase.sessions, plan.phase.sessions_per_agent, plan.window.window_min_s) == (30, 3, 600.0)
    assert plan.rules.decide == "point"
    assert plan.search is not None and plan.search.reprobes == 0 and plan.search.start == 1
    read = options(protocol="aa")
    assert (read.output_length, read.history, read.cache_salt) == ("natural", "recorded", "play")
    assert read.preset.knobs.speed == "n-1" and read.preset.knobs.output_cap == 16_384
    assert any("random prefix" in sentence for sentence in read.preset.sentences("aa"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"history": "live"}, "--history live"),
        ({"start": 2}, "--start 2"),
        ({"duration": "5m"}, "--duration 5m"),
        ({"window_min": "1m"}, "--window-min 1m"),
        ({"context": 4096}, "--context 4096"),
    ],
)
def test_a_changed_knob_makes_it_another_protocol(change: dict[str, Any], said: str) -> None:
    assert options(protocol="aa", **change).plan.label == f"not aa: {said}"


def test_what_does_not_depart() -> None:
    assert options(protocol="aa", history="recorded", max_agents=64, seed=3).plan.label == "aa"
    assert options(protocol="sweep", levels="1,4", duration="30s").plan.label == "sweep"
    assert options(protocol="sweep", levels="1,4").plan.levels == (1, 4)
    assert options(protocol="sweep", max_agents=8).plan.levels == (1, 2, 4, 8)
    assert options(protocol="sweep").plan.duration_s == 60.0
    assert options(protocol="sweep", concurrency=4).plan.levels == (4,)


def test_unknown_protocols_are_refused_with_the_list() -> None:
    with pytest.raises(UsageError, match="aa, quick, sweep"):
        options(protocol="ab")


def test_nothing_that_was_said_is_replaced() -> None:
    merged, departed = applied({"history": "live", "time_scale": 1.0}, {"history"}, load_preset("sweep"))
    assert merged["history"] == "live" and merged["duration"] == "60s" and departed == ("--history live",)


def test_a_run_by_the_rules_of_aa(tmp_path: Path) -> None:
    plan = options(protocol="aa", max_agents=2).plan
    trees = encode(render(load_workload("smoke", 32_768), DEFAULT_SIZES), live=False)
    done, progress = run(plan, trees, load_profile("demo"), tmp_path / "aa", seed=1)
    assert done.answers[0].largest_pass == 2 and done.reason == "all_pass"
    assert [o.level for o in progress.history] == [1, 2], "no level twice"
    for outcome in progress.history:
        verdict = outcome.verdicts["80tps"]
        assert verdict.status == "pass" and verdict.confidence is None and not verdict.close
        assert outcome.metrics.window_s >= 600
        assert verdict.terms[0].value == outcome.metrics.speed.p25
    table = read_run(tmp_path / "aa").records().to_pandas()
    for level in (1, 2):
        window = table[(table.level == level) & (table.phase != "warmup")]
        ended = window[(window.session_id == window.root_session_id) & window.ends_session]
        assert len(ended) >= 30 and (ended.groupby("agent").size() >= 3).all()


def test_a_phase_that_is_not_complete_decides_nothing(tmp_path: Path) -> None:
    plan = options(protocol="aa", max_agents=1, window_min="30s", window_max="60s").plan
    trees = encode(render(load_workload("smoke", 32_768), DEFAULT_SIZES), live=False)
    done, progress = run(plan, trees, load_profile("demo"), tmp_path / "short", seed=1)
    verdict = progress.history[0].verdicts["80tps"]
    assert verdict.status == "inconclusive" and "sessions were completed" in verdict.reason
    assert done.answers[0].capacity is None
    assert any("the phase is not complete" in w for w in progress.history[0].warnings)
