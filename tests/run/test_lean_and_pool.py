"""What ends a probe early, and what a second probe of a level goes on from."""

from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from agentperf.measure.window import WindowSettings
from agentperf.run.conductor import earlier_counts
from agentperf.run.plan import Plan
from agentperf.run.probe import HOPELESS, ProbeState
from agentperf.search.model import SearchSettings
from agentperf.slo.expression import parse
from agentperf.slo.verdict import Rules, Verdict
from agentperf.stats.sequence import Counts
from tests.slo.test_slo_verdict import spread, window


def verdict(**changes) -> Verdict:
    base = Verdict(
        slo="a", status="inconclusive", close=True, reason="", terms=(), n=0, plays=0, confidence=0.95, more_minutes=1.0
    )
    return msgspec.structs.replace(base, **changes)


def state(**changes) -> ProbeState:
    plan = Plan(
        protocol="quick",
        slos=(parse("80tps"), parse("20tps")),
        window=WindowSettings(window_max_s=300),
        rules=Rules(),
        search=SearchSettings(slos=("a", "b"), max_agents=64),
    )
    made = ProbeState(plan, 1, 8, "ramp", 0)
    made.open_ns, made.now_ns = 0, int(changes.pop("elapsed_s", 20.0) * 1e9)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("found", "changes", "over"),
    [
        ({"a": verdict(status="pass")}, {}, True),
        ({"a": verdict()}, {}, False),
        ({"a": verdict(lean="pass")}, {}, False),
        ({"a": verdict(lean="pass")}, {"may_lean": True}, True),
        ({"a": verdict(lean="pass"), "b": verdict()}, {"may_lean": True}, False),
        ({"a": verdict(lean="pass"), "b": verdict()}, {"may_lean": True, "waiting": ("a",)}, True),
        ({"a": verdict(more_minutes=None)}, {}, False),
        ({"a": verdict(more_minutes=None)}, {"elapsed_s": 101.0}, True),
        ({"a": verdict(more_minutes=HOPELESS * 5 + 0.1)}, {"elapsed_s": 101.0}, True),
        ({"a": verdict(more_minutes=HOPELESS * 5 - 0.1)}, {"elapsed_s": 101.0}, False),
    ],
)
def test_when_a_window_may_close(found, changes, over):
    assert state(**changes)._settled(found) is over


def test_a_level_that_is_held_for_its_own_sake_is_never_hopeless():
    fixed = state(elapsed_s=250.0)
    fixed.plan = msgspec.structs.replace(fixed.plan, search=None)
    assert not fixed._settled({"a": verdict(more_minutes=None)})


def test_rules_of_a_probe():
    made = state(alpha=0.003)
    assert (made.rules.error, made.rules.agents, made.rules.min_plays) == (0.003, 8, 5)
    assert replace(made.rules, alpha=None).error == pytest.approx(0.05)


def test_earlier_counts_leave_out_what_was_no_measurement():
    from agentperf.slo.verdict import judge

    slo = parse("p25 speed >= 80, errors <= 1 %")
    found = judge(slo, window(spread(200, 92)), Rules())
    term = found.terms[0]
    probe = SimpleNamespace(level=8, interrupted=False, void=None, verdicts={"a": found})
    others = [
        SimpleNamespace(level=9, interrupted=False, void=None, verdicts={"a": found}),
        SimpleNamespace(level=8, interrupted=True, void=None, verdicts={"a": found}),
        SimpleNamespace(level=8, interrupted=False, void="lost", verdicts={"a": found}),
        SimpleNamespace(
            level=8, interrupted=False, void=None, verdicts={"a": msgspec.structs.replace(found, status="invalid")}
        ),
    ]
    counts = earlier_counts([probe, *others, probe], 8)["a"][term.term]
    assert counts.n == pytest.approx(2 * term.n_eff)
    assert counts.share == pytest.approx(term.share)
    assert earlier_counts(others, 8) == {}
    assert isinstance(counts, Counts)
