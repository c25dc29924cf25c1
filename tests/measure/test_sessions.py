"""Whole sessions are counted, and only those."""

from agentperf.measure.sessions import SessionCount
from tests.measure.records import S, record


def turn(agent: int, play: int, index: int, end_s: float, **changes: object) -> object:
    fields = {"agent": agent, "play": f"a{agent}p{play}", "turn": index, "end_ns": round(end_s * S)}
    return record(end_s - 1, **{**fields, "ends_session": False, **changes})


def test_sessions_seen_from_their_first_turn_to_their_last() -> None:
    count = SessionCount()
    count.take([turn(0, 0, 3, 1), turn(0, 0, 4, 2, ends_session=True)])  # entered in its middle
    count.take([turn(0, 1, 0, 3), turn(0, 1, 1, 5, ends_session=True)])
    count.take([turn(1, 0, 0, 4), turn(1, 0, 1, 6)])  # not at its end yet
    count.take([turn(2, 0, 0, 7, ends_session=True)])  # one turn is a session too
    assert count.completed(0) == {0: 1, 2: 1}
    count.take([turn(1, 0, 2, 8, ends_session=True)])
    assert count.completed(0) == {0: 1, 1: 1, 2: 1}
    assert count.completed(round(6.5 * S)) == {1: 1, 2: 1}, "by when they ended"


def test_subagents_and_failed_ends_count_for_nothing() -> None:
    count = SessionCount()
    count.take([turn(0, 0, 0, 1, session_id="child", ends_session=True)])
    count.take([turn(1, 0, 0, 1), turn(1, 0, 1, 2, ends_session=True, outcome="failed")])
    count.take([turn(2, 0, 0, 1), turn(2, 0, 1, 2, ends_session=None)])
    assert count.completed(0) == {}
