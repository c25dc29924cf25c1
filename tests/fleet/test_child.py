"""What a parent makes of a load process: its clock, its end, its silence."""

import os
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.errors import ClientError
from agentperf.fleet import child, messages
from agentperf.fleet.child import Child, clock_error_ns, ending
from agentperf.fleet.machine import OpenFiles, idle_s, running_of
from agentperf.fleet.messages import Ping, Pong, Ready, StartLevel, command, frame, report


class Process:
    """A process that only knows whether it was killed."""

    pid = 1
    returncode: int | None = None
    killed = 0

    def kill(self) -> None:
        self.killed += 1


class Inbox:
    def __init__(self) -> None:
        self.sent: list[object] = []

    def send_nowait(self, message: object) -> None:
        self.sent.append(message)


@pytest.fixture
def watched() -> Child:
    made = Child(1, Process(), Inbox())  # type: ignore[arg-type]
    made.reports_due = True
    return made


def test_a_clock_within_the_round_trip_is_ours() -> None:
    assert clock_error_ns(100, 150, 200) == 0
    assert clock_error_ns(100, 40, 200) == 60
    assert clock_error_ns(100, 270, 200) == 70


@given(st.integers(), st.integers(), st.integers(0, 10**9))
def test_a_clock_that_is_off_by_more_than_the_round_trip_is_seen(sent: int, offset: int, trip: int) -> None:
    error = clock_error_ns(sent, sent + offset, sent + trip)
    assert error >= abs(offset) - trip
    assert (error == 0) == (0 <= offset <= trip)


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "was killed (SIGKILL)"), (-250, "was killed (signal 250)"), (1, "ended with code 1")]
)
def test_how_it_ended(code: int, words: str) -> None:
    assert ending(code) == words


def silent(watched: Child, looks: int, each_s: float = child.WATCH_S) -> str | None:
    for _ in range(looks):
        watched.watch(each_s)
    return watched.lost


def test_three_seconds_of_silence_lose_it(watched: Child) -> None:
    assert silent(watched, 12) is None
    assert silent(watched, 1) == "said nothing for 3 s (it was stopped, or this machine hangs)"
    assert watched._process.killed == 1  # type: ignore[attr-defined]
    assert len(watched._inbox.sent) == 1  # type: ignore[attr-defined]


def test_a_busy_process_is_told_from_a_stopped_one(watched: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([10.0, 12.9])
    monkeypatch.setattr(child, "running_of", lambda _: (True, next(used)))
    assert silent(watched, 13) == "was too busy to report for 3 s"


@pytest.mark.parametrize("state", [None, (True, 10.0), (False, 99.0)])
def test_without_work_of_its_own_it_was_stopped(
    watched: Child, monkeypatch: pytest.MonkeyPatch, state: tuple[bool, float] | None
) -> None:
    first = iter([(True, 10.0)])
    monkeypatch.setattr(child, "running_of", lambda _: next(first, state))
    assert silent(watched, 13) == "said nothing for 3 s (it was stopped, or this machine hangs)"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_state_of_a_process() -> None:
    found = running_of(os.getpid())
    assert found is not None and found[0]
    assert found[1] == pytest.approx(time.process_time(), rel=0.2, abs=0.5)
    assert running_of(2**30) is None


def test_any_word_ends_the_silence(watched: Child) -> None:
    silent(watched, 11)
    watched._heard = True
    assert silent(watched, 13) is None
    assert silent(watched, 1) is not None


def test_a_pause_of_the_parent_is_not_the_silence_of_its_children(watched: Child) -> None:
    watched.watch(60.0)  # the parent slept for a minute: their reports wait in the pipe
    assert watched.lost is None


def test_while_the_parent_takes_no_reports_their_silence_is_its_own(watched: Child) -> None:
    watched._handing_on = True
    assert silent(watched, 100) is None


def test_between_levels_nothing_is_expected(watched: Child) -> None:
    watched.reports_due = False
    assert silent(watched, 100) is None


def test_the_first_cause_stands(watched: Child) -> None:
    watched.lose("was killed (SIGKILL)")
    watched.lose("ended with code 1")
    assert watched.lost == "was killed (SIGKILL)"


def test_frames() -> None:
    for said in (Ready(worker=3), Pong(worker=1, at_ns=5)):
        assert report(frame(said)[messages.LENGTH_BYTES :]) == said
    start = StartLevel(probe=1, level=3, agents=[0, 2], spread_s=0.5, start_ns=7)
    assert command(frame(start)[messages.LENGTH_BYTES :]) == start
    assert command(frame(Ping())[messages.LENGTH_BYTES :]) == Ping()


def test_a_message_that_is_too_long_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_FRAME_BYTES", 10)
    with pytest.raises(ClientError, match="trace set"):
        frame(StartLevel(probe=1, level=3, agents=list(range(100)), spread_s=0.5))


def test_idle_time_of_the_machine() -> None:
    stat = b"cpu  10 0 10 300 100 0 0 0\ncpu0 5 0 5 150 50 0 0\ncpu1 5 0 5 150 50 0 0\nintr 5\n"
    found = idle_s(stat)
    assert found is not None
    seconds, cores = found
    assert cores == 2
    assert seconds * 100 == pytest.approx(400, rel=0.5)  # in ticks of the system


@given(st.binary(max_size=200))
def test_any_text_is_read_as_nothing_rather_than_wrongly(stat: bytes) -> None:
    found = idle_s(stat)
    assert found is None or found[0] == found[0]


def test_open_files_are_a_number() -> None:
    assert OpenFiles().count(0) > 2
