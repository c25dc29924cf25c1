"""The preflight with facts of machines that we do not have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.errors import UsageError
from agentperf.fleet import preflight
from agentperf.fleet.preflight import (
    Demand,
    Facts,
    Finding,
    available_bytes,
    check,
    demand_of,
    look,
    parallel_sessions,
    port_count,
    require,
)
from agentperf.replay.bodies import EncodedSession, EncodedTree, EncodedTurn
from tests.replay.fakes import tree, tree_with_subagent

GIB = 2**30
PLENTY = Facts(open_files=1_048_576, ports=28_232, memory_bytes=64 * GIB, cores=8)


def demand(agents: int = 256, parallel: int = 1, workers: int = 2, job: int = 10 * 2**20) -> Demand:
    return Demand(agents, parallel, workers, job)


def found(facts: Facts, wanted: Demand) -> dict[str, Finding]:
    return {f.name: f for f in check(facts, wanted)}


def test_a_large_machine_holds_a_small_level() -> None:
    findings = check(PLENTY, demand())
    assert {f.status for f in findings} == {"ok"}
    require(findings)


def test_too_few_open_files_are_refused_with_the_command_that_helps() -> None:
    facts = Facts(open_files=1024, ports=28_232, memory_bytes=64 * GIB, cores=8)
    wanted = demand(agents=4000, parallel=2, workers=2)
    assert wanted.files == 2000 * 2 + 64
    finding = found(facts, wanted)["open files"]
    assert (finding.status, finding.text) == ("refuse", "1,024 allowed, 4,064 needed in a load process")
    assert "ulimit -n 4064" in str(finding.remedy)
    # (1024 - 64) // 2 requests of an agent, on 2 processes
    assert "at most 960 agents" in str(finding.remedy)
    with pytest.raises(UsageError, match="open files: 1,024 allowed") as raised:
        require(check(facts, wanted))
    assert raised.value.exit_code == 2
    assert "ulimit -n 4064" in str(raised.value.remedy)
    assert found(facts, demand(agents=960, parallel=2))["open files"].status == "ok"
    assert found(facts, demand(agents=962, parallel=2))["open files"].status == "refuse"


def test_more_load_processes_share_the_open_files() -> None:
    facts = Facts(open_files=1024, ports=28_232, memory_bytes=64 * GIB, cores=8)
    assert found(facts, demand(agents=2000, workers=1))["open files"].status == "refuse"
    assert found(facts, demand(agents=2000, workers=4))["open files"].status == "ok"


def test_ports_bound_all_load_processes_together() -> None:
    facts = Facts(open_files=10**6, ports=16_384, memory_bytes=64 * GIB, cores=8)
    assert found(facts, demand(agents=14_745))["ports"].status == "ok"
    finding = found(facts, demand(agents=14_746))["ports"]
    assert finding.status == "refuse"
    assert "at most 14,745 agents" in str(finding.remedy)


def test_memory_warns() -> None:
    facts = Facts(open_files=10**6, ports=28_232, memory_bytes=2 * GIB, cores=8)
    wanted = demand(agents=100, workers=2, job=GIB)
    assert wanted.memory_bytes == 2 * (80 * 2**20 + GIB) + GIB + 100 * 256 * 2**10
    finding = found(facts, wanted)["memory"]
    assert finding.status == "warn"
    assert finding.text == "2.0 GiB available, about 3.2 GiB needed"
    require([finding])  # an estimate refuses nothing


def test_what_is_not_known_is_said_and_refuses_nothing() -> None:
    facts = Facts(open_files=None, ports=None, memory_bytes=None, cores=1)
    findings = check(facts, demand(agents=10**6, workers=1))
    assert [f.status for f in findings] == ["ok", "unknown", "unknown", "ok"]
    require(findings)


def test_load_processes_on_every_core_warn() -> None:
    assert found(PLENTY, demand(workers=8))["cores"].status == "warn"
    assert found(PLENTY, demand(workers=7))["cores"].status == "ok"


# -- how many requests of a play can be open at once


def made(sessions: dict[str, list[list[str]]]) -> EncodedTree:
    """Sessions by name, each a list of its turns' dependencies; turn i of `a` is `a-i`."""

    def turn(name: str, i: int, depends_on: list[str]) -> EncodedTurn:
        return EncodedTurn(f"{name}-{i}", i, 0, 0, -1, depends_on, 0.0, 1, 0, 1, "", b"", 0)

    return EncodedTree(
        [
            EncodedSession(name, "r", None, [b""], [turn(name, i, d) for i, d in enumerate(turns)], 0)
            for name, turns in sessions.items()
        ]
    )


def test_sessions_without_subagents_have_one() -> None:
    assert parallel_sessions(tree("s", 4)) == 1


def test_a_subagent_that_is_waited_for_takes_the_place_of_its_parent() -> None:
    """The root's turn after the one that started it runs beside nothing: it waits for the subagent's end."""
    assert parallel_sessions(tree_with_subagent()) == 1


def test_subagents_beside_each_other() -> None:
    joined = made({"r": [[], ["a-0", "b-0", "c-0"]], "a": [["r-0"]], "b": [["r-0"]], "c": [["r-0"]]})
    assert parallel_sessions(joined) == 3
    free = made({"r": [[], [], []], "a": [["r-0"]], "b": [["r-0"]]})
    assert parallel_sessions(free) == 3


def test_subagents_one_after_the_other() -> None:
    chain = made({"r": [[], ["a-0"], ["b-0"], []], "a": [["r-0"]], "b": [["r-1"]]})
    assert parallel_sessions(chain) == 1


def test_a_subagent_of_a_subagent() -> None:
    nested = made({"r": [[], ["a-1"], []], "a": [["r-0"], ["aa-0"]], "aa": [["a-0"]]})
    # a and aa lie in the same gap of the root; that aa runs while a waits is not used: never too low.
    assert parallel_sessions(nested) == 2
    after = made({"r": [[], ["a-1"], [], []], "a": [["r-0"], ["aa-0"]], "aa": [["a-0"]], "b": [["r-2"]]})
    assert parallel_sessions(after) == 2


@st.composite
def trees(draw: st.DrawFn) -> EncodedTree:
    """A root, and sessions that start after any turn before them and are joined by any root turn, or never."""
    root: list[list[str]] = [[] for _ in range(draw(st.integers(1, 5)))]
    sessions: dict[str, list[list[str]]] = {}
    known = [f"r-{i}" for i in range(len(root))]
    for number in range(draw(st.integers(0, 5))):
        name, turns = f"s{number}", draw(st.integers(1, 3))
        start = draw(st.sampled_from(known))
        sessions[name] = [[start]] + [[] for _ in range(turns - 1)]
        if start.startswith("r-") and draw(st.booleans()):
            after = int(start[2:]) + 1
            if after < len(root):
                root[draw(st.integers(after, len(root) - 1))].append(f"{name}-{turns - 1}")
        known += [f"{name}-{i}" for i in range(turns)]
    return made({"r": root, **sessions})


@given(trees(), st.randoms(use_true_random=False))
def test_no_order_of_events_opens_more(made_tree: EncodedTree, chance: object) -> None:
    """Play it with replies that take any time: what is open at once never exceeds the bound."""
    bound = parallel_sessions(made_tree)
    done: set[str] = set()
    open_now: dict[str, str] = {}
    next_turn = {s.session_id: 0 for s in made_tree.sessions}
    turns = {s.session_id: s.turns for s in made_tree.sessions}
    while True:
        for name, number in next_turn.items():
            if name in open_now or number >= len(turns[name]):
                continue
            turn = turns[name][number]
            depends_on = turn.depends_on or ([turns[name][number - 1].request_id] if number else [])
            if all(d in done for d in depends_on):
                open_now[name] = turn.request_id
        if not open_now:
            break
        assert len(open_now) <= bound
        ended = chance.choice(sorted(open_now))  # type: ignore[attr-defined]
        done.add(open_now.pop(ended))
        next_turn[ended] += 1
    assert len(done) == sum(len(t) for t in turns.values())


def test_demand_of_a_set() -> None:
    wanted = demand_of([tree("a", 2), tree("b", 3)], 100, 3)
    assert (wanted.agents, wanted.parallel, wanted.workers) == (100, 1, 3)
    assert wanted.files == 34 + preflight.SPARE_FILES
    assert wanted.job_bytes > 100


# -- reading


def test_readers() -> None:
    assert port_count("32768\t60999\n") == 28_232
    assert port_count("49152\n65535\n") == 16_384
    assert port_count("") is None
    assert port_count("60999 32768") is None
    assert available_bytes("MemTotal: 10 kB\nMemAvailable:   2048 kB\n") == 2 * 2**20
    assert available_bytes("MemTotal: 10 kB\n") is None


@given(st.text(max_size=80))
def test_readers_take_any_text(text: str) -> None:
    assert port_count(text) is None or 0 < (port_count(text) or 0) < 65_536
    assert available_bytes("MemAvailable:" + text) is None or (available_bytes("MemAvailable:" + text) or 0) >= 0


def test_this_machine_has_facts() -> None:
    facts = look()
    assert facts.cores >= 1
    assert facts.open_files is None or facts.open_files >= 64
    assert facts.memory_bytes is None or facts.memory_bytes > 0
