from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_builders import request, session, trace_set

from agentperf.trace import io
from agentperf.trace.context import fit_context, usable_tokens
from agentperf.trace.io import load
from agentperf.trace.model import Dependency, Request, SessionTrace, Spawn, Tool
from agentperf.trace.validate import validate


def root(*sizes: int, **at: dict[str, Any]) -> SessionTrace:
    """A main session with prompts of these sizes; `r2={...}` sets fields of request 2."""
    requests = [request("m", i, input_tokens=n, **at.get(f"r{i}", {})) for i, n in enumerate(sizes)]
    return session("m", requests)


def other(*sizes: int) -> SessionTrace:
    """Another main session."""
    return session("n", [request("n", i, input_tokens=n) for i, n in enumerate(sizes)])


def child(name: str, by: str, *sizes: int, parent: str = "m") -> SessionTrace:
    return session(
        name,
        [request(name, i, input_tokens=n) for i, n in enumerate(sizes)],
        root_session_id="m",
        parent_session_id=parent,
        spawn=Spawn(by_request_id=by),
    )


def ids(tree: list[SessionTrace]) -> dict[str, int]:
    return {s.session.session_id: len(s.requests) for s in tree}


LIMIT = 1000  # usable: 990 - 64 = 926, prompt and an answer of 10 tokens


def test_the_margin_is_one_in_a_hundred_and_64() -> None:
    assert usable_tokens(1000) == 926
    assert usable_tokens(131_072) == 129_697
    assert usable_tokens(10) == 0


def test_cut_ends_the_session_before_the_first_turn_that_does_not_fit() -> None:
    tree = [root(100, 916, 917, 200)]
    fitted, report = fit_context([tree], LIMIT)
    assert [ids(t) for t in fitted] == [{"m": 2}]
    assert [r.request_id for r in fitted[0][0].requests] == ["m-0", "m-1"]
    assert (report.sessions_cut, report.sessions_dropped, report.requests_left_out) == (1, 0, 2)
    assert (report.largest_tokens, report.usable_tokens, report.trees_dropped) == (927, 926, 0)
    assert report.changed
    assert report.line() == (
        "1 of 1 sessions cut and 0 dropped to fit 926 of 1,000 tokens (rule cut), 2 of 4 turns left out"
    )
    assert len(tree[0].requests) == 4  # what was given is as it was


def test_cut_drops_what_has_fewer_than_two_turns_left() -> None:
    fitted, report = fit_context([[root(100, 2000)], [other(50)]], LIMIT)
    assert [ids(t) for t in fitted] == [{"n": 1}]  # a session that always had one turn and fits stays
    assert (report.trees_dropped, report.sessions_cut, report.sessions_dropped) == (1, 0, 1)


def test_drop_leaves_no_part_of_a_session() -> None:
    fitted, report = fit_context([[root(100, 200, 300, 2000)], [other(1, 2)]], LIMIT, "drop")
    assert [ids(t) for t in fitted] == [{"n": 2}]
    assert (report.sessions_cut, report.sessions_dropped, report.requests_left_out) == (0, 1, 4)
    assert "rule drop" in report.line()


def test_the_answer_counts_as_well() -> None:
    tree = [root(100, 200, 300, r2={"output_tokens": 700})]
    assert ids(fit_context([tree], LIMIT)[0][0]) == {"m": 2}


def test_no_limit_and_nothing_to_do() -> None:
    tree = [root(100, 10**6)]
    fitted, report = fit_context([tree], None)
    assert fitted == [tree]
    assert not report.changed
    assert report.line() == "not applied, the served context is not known"
    fitted, report = fit_context([[root(100, 200)]], LIMIT)
    assert not report.changed
    assert report.line() == "every session fits 1,000 tokens"


def joined(*sizes: int) -> SessionTrace:
    depends = [Dependency(request_id="m-0"), Dependency(request_id="c-2", type="join")]
    tools = [Tool(call_id="t", name="task", child_session_id="c")]
    return root(*sizes, r1={"depends_on": depends, "tools_before": tools})


def test_a_cut_subagent_is_joined_at_its_last_turn_left() -> None:
    [tree], _ = fit_context([[joined(1, 2, 3), child("c", "m-0", 1, 2, 2000)]], LIMIT)
    assert ids(tree) == {"m": 3, "c": 2}
    assert tree[0].requests[1].depends_on == [
        Dependency(request_id="m-0"),
        Dependency(request_id="c-1", type="join"),
    ]
    assert tree[0].requests[1].tools_before[0].child_session_id == "c"


@pytest.mark.parametrize("rule", ["cut", "drop"])
def test_a_dropped_subagent_is_waited_for_no_longer(rule: Any) -> None:
    [tree], report = fit_context([[joined(1, 2, 3), child("c", "m-0", 1, 2000, 3000)]], LIMIT, rule)
    assert ids(tree) == {"m": 3}
    assert tree[0].requests[1].depends_on == [Dependency(request_id="m-0")]
    assert tree[0].requests[1].tools_before[0].child_session_id is None
    assert (report.sessions, report.sessions_dropped, report.trees_dropped) == (2, 1, 0)


def test_who_waited_for_the_dropped_one_alone_waits_for_the_turn_before() -> None:
    main = root(1, 2, 3, r1={"depends_on": [Dependency(request_id="c-0", type="join")]})
    [tree], _ = fit_context([[main, child("c", "m-0", 5000)]], LIMIT)
    assert tree[0].requests[1].depends_on is None


def test_subagents_go_with_the_turn_that_started_them_and_with_their_parents() -> None:
    tree = [
        root(1, 2, 3, 5000, 5000),
        child("kept", "m-1", 1, 2),
        child("late", "m-3", 1, 2),
        child("grandchild", "late-1", 1, 2, parent="late"),
    ]
    [left], report = fit_context([[tree[0], tree[3], tree[2], tree[1]]], LIMIT)
    assert ids(left) == {"m": 3, "kept": 2}
    assert report.sessions_dropped == 2
    assert report.requests_left_out == 6


def test_a_tree_goes_with_its_root() -> None:
    fitted, report = fit_context([[root(1, 5000), child("c", "m-0", 1, 2)]], LIMIT)
    assert fitted == []
    assert (report.trees_dropped, report.sessions_dropped, report.requests_left_out) == (1, 2, 4)


@given(st.integers(500, 140_000), st.sampled_from(["cut", "drop"]))
def test_what_is_left_fits_and_is_a_sound_set(limit: int, rule: Any) -> None:
    smoke = load("smoke") if limit < 9000 else load_coding()
    fitted, report = fit_context(smoke.trees(), limit, rule)
    left = [s for t in fitted for s in t]
    assert all(r.input_tokens + r.output_tokens <= limit for s in left for r in s.requests)
    assert all(len(s.requests) >= 2 for s in left)
    known = {r.request_id for s in left for r in s.requests}
    assert all(d.request_id in known for s in left for r in s.requests for d in r.depends_on or ())
    assert report.requests == report.requests_left_out + len(known)
    assert report.sessions == report.sessions_dropped + len(left)
    whole = {s.session.session_id: s.requests for s in smoke.sessions}
    for item in left:
        before: list[Request] = whole[item.session.session_id]
        if rule == "drop":
            assert len(item.requests) == len(before)
        elif len(item.requests) < len(before):
            following = before[len(item.requests)]
            assert following.input_tokens + following.output_tokens > usable_tokens(limit)


_coding: list[Any] = []


def load_coding() -> Any:
    if not _coding:
        _coding.append(load("coding-v1"))
    return _coding[0]


def test_a_cut_set_still_validates(tmp_path: Any) -> None:
    whole = load_coding()
    fitted, report = fit_context(whole.trees(), 32_768)
    assert report.changed
    assert report.sessions_cut > 10
    cut = msgspec.structs.replace(whole, sessions=[s for t in fitted for s in t])
    io.write(cut, tmp_path / "cut.jsonl")
    assert validate(tmp_path / "cut.jsonl") == []


def test_report_is_data() -> None:
    _, report = fit_context([[root(100, 916, 917)]], LIMIT)
    assert msgspec.to_builtins(report)["sessions_cut"] == 1
    assert trace_set().sessions == []
