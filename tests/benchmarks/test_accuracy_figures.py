"""The formulas of the accuracy benchmark, against values worked out by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import accuracy, clients, truth
from benchmarks.accuracy import verdicts
from benchmarks.figures import Figures, Run, Said, events_in, figures, in_flight, quietest, ratio, table
from benchmarks.load import Row
from benchmarks.truth import TruthRow, TruthServerError, build, find, read_log

MS = 1_000_000
S = 1000 * MS


def truth_row(name: str, at: int = 10 * S, **changes: object) -> TruthRow:
    """Received at `at`, first token 500 ms later, 101 tokens in 2 s: 50 tok/s."""
    fields = {
        "id": name, "outcome": "ok", "t_head": at - MS, "t_recv": at, "t_first": at + 500 * MS,
        "t_last": at + 2500 * MS, "t_done": at + 2500 * MS, "s_first": at + 499 * MS, "s_last": at + 2500 * MS,
        "tokens": 101, "chunks": 101,
    }  # fmt: skip
    return TruthRow(**{**fields, **changes})  # type: ignore[arg-type]


def said(name: str, at: int = 10 * S, late_ms: float = 2, speed: float | None = 50.5, **changes: object) -> Said:
    """Sent 3 ms before the server had it; the first token seen `late_ms` after the server handed it over."""
    first = at + 500 * MS + round(late_ms * MS)
    fields = {
        "id": name, "t0_ns": at - 3 * MS, "first_ns": first, "last_ns": first + 2 * S, "events": 101,
        "speed_tps": speed, "end_ns": first + 2 * S, "ok": True,
    }  # fmt: skip
    return Said(**{**fields, **changes})  # type: ignore[arg-type]


def run(requests: list[Said], **changes: object) -> Run:
    fields = {
        "client": "x", "streams": 2, "open_ns": 9 * S, "close_ns": 19 * S, "said": requests, "cpu_s": 0.0202,
        "others": 0.1,
    }  # fmt: skip
    return Run(**{**fields, **changes})  # type: ignore[arg-type]


def of(requests: list[Said], rows: list[TruthRow]) -> Figures:
    return figures(run(requests), {r.id: r for r in rows})


def test_one_request() -> None:
    f = of([said("a")], [truth_row("a")])
    assert f.requests == 1
    assert f.ttft_ms == pytest.approx((2.0, 2.0, 2.0))
    assert f.speed == pytest.approx((0.01, 0.01))
    assert f.upload_ms == pytest.approx(3.0)
    assert f.in_flight == pytest.approx(0.25)  # 2.5 s of a window of 10 s
    assert f.events_per_s == pytest.approx(10.1)
    assert f.us_per_event == pytest.approx(200.0)
    assert figures(run([said("a")], collector_s=0.00505), {"a": truth_row("a")}).collector_us == pytest.approx(50.0)
    assert f.server_late_ms == pytest.approx(1.0)
    assert (f.lost, f.unmatched) == (0, 0)


def test_errors_count_in_either_direction() -> None:
    f = of([said("a", late_ms=-4, speed=49.0)], [truth_row("a")])
    assert f.ttft_ms[0] == pytest.approx(4.0)
    assert f.speed[0] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("late_ms", "speed", "within"),
    [(5.0, 50.0, True), (5.01, 50.0, False), (1.0, 50.24, True), (1.0, 50.26, False), (1.0, 49.74, False)],
)
def test_the_bound(late_ms: float, speed: float, within: bool) -> None:
    assert of([said("a", late_ms=late_ms, speed=speed)], [truth_row("a")]).within_bound is within


def test_what_is_lost_or_unknown_to_the_server_breaks_the_bound() -> None:
    good, row = said("a", late_ms=1, speed=50.0), truth_row("a")
    assert of([good], [row]).within_bound
    failed = replace(said("b", late_ms=1, speed=50.0), ok=False)
    assert of([good, failed], [row, truth_row("b")]).lost == 1
    assert not of([good, failed], [row, truth_row("b")]).within_bound
    f = of([good, said("c", late_ms=1, speed=50.0)], [row])
    assert (f.lost, f.unmatched) == (1, 1)
    assert not f.within_bound
    no_speed = said("b", late_ms=1, speed=None)
    assert of([good, no_speed], [row, truth_row("b")]).lost == 1
    assert not of([], []).within_bound


def test_only_requests_issued_in_the_window_count() -> None:
    before, after = said("b", at=9 * S, late_ms=90), said("c", at=19 * S + 3 * MS, late_ms=90)
    f = of([said("a"), before, after], [truth_row("a"), truth_row("b", 9 * S), truth_row("c", 19 * S)])
    assert f.requests == 1
    assert f.ttft_ms[2] == pytest.approx(2.0)


def test_in_flight_counts_what_lies_in_the_window() -> None:
    rows = [truth_row("a", t_recv=8 * S, t_done=10 * S), truth_row("b", t_recv=18 * S, t_done=0)]
    assert in_flight(rows, 9 * S, 19 * S, 30 * S) == pytest.approx((1 + 1) / 10)


def test_events_are_spread_over_their_stream() -> None:
    half = said("a", first_ns=8 * S, last_ns=10 * S, events=100)
    whole = said("b", first_ns=12 * S, last_ns=12 * S, events=7)
    unseen = said("c", first_ns=None)
    assert events_in([half, whole, unseen], {}, 9 * S, 19 * S) == pytest.approx(57.0)
    uncounted = said("d", first_ns=12 * S, last_ns=14 * S, events=None)
    assert events_in([uncounted], {"d": truth_row("d", chunks=40)}, 9 * S, 13 * S) == pytest.approx(20.0)
    assert events_in([uncounted], {}, 9 * S, 13 * S) == 0


def test_the_quietest_round_is_chosen_by_other_work_alone() -> None:
    noisy, quiet = of([said("a", late_ms=1)], [truth_row("a")]), of([said("a", late_ms=9)], [truth_row("a")])
    rounds = [[replace(noisy, others=0.9), replace(noisy, others=0.2)], [replace(quiet, others=0.3)] * 2]
    assert quietest(rounds) == 1


def test_table_has_a_column_for_each_client_with_ratios_to_the_first() -> None:
    ours, other = of([said("a")], [truth_row("a")]), of([said("a", late_ms=20)], [truth_row("a")])
    lines = table([ours, replace(other, client="y", us_per_event=500.0)]).splitlines()
    assert lines[0].split("|")[2].strip() == "x"
    assert lines[0].split("|")[3].strip() == "y"
    by_name = {line.split("|")[1].strip(): line for line in lines}
    assert "| 20.00 ms (10x)" in by_name["TTFT error p99"]
    assert "| 500.0 us (2.5x)" in by_name["CPU per event"]
    assert "| 505 / 505 ms " in by_name["TTFT reported p50 / p99"]
    assert "| +1.000% " in by_name["speed bias (median)"]
    assert len({len(line) for line in lines}) == 1
    few = table([ours], ["lost"]).splitlines()
    assert [line.split("|")[1].strip() for line in few[2:]] == ["lost"]


def test_a_ratio_that_says_nothing_is_a_dash() -> None:
    assert ratio(3.0, 2.0) == "1.5x"
    assert ratio(3.0, 0.0) == ratio(math.nan, 2.0) == "-"


def test_verdicts_name_the_bounds_that_apply() -> None:
    good = of([said("a", late_ms=1, speed=50.0)], [truth_row("a")])
    ours, two = replace(good, client="agentperf"), replace(good, client="agentperf x 2", ttft_ms=(1.0, 9.0, 9.0))
    bare = replace(good, client="bare protocol", us_per_event=ours.us_per_event / 1.6)
    assert [met for _, met in verdicts([ours, two])] == [True, False]
    assert [met for _, met in verdicts([ours, bare])] == [True, False]
    assert [met for _, met in verdicts([ours, replace(bare, us_per_event=ours.us_per_event / 1.4)])] == [True, True]
    # A floor that is not known meets no bound.
    assert [met for _, met in verdicts([ours, replace(bare, us_per_event=math.nan)])] == [True, False]
    assert [met for _, met in verdicts([ours, replace(two, judged=False)])] == [True]
    peer = replace(good, client="aiperf", speed=(0.0, 0.2), us_per_event=ours.us_per_event * 6)
    exact = replace(ours, speed=(0.0, 0.004))
    assert [met for _, met in verdicts([exact, peer])] == [True, True, True]
    assert [met for _, met in verdicts([exact, replace(peer, speed=(0.0, 0.07))])] == [True, False, True]
    assert [met for _, met in verdicts([exact, replace(peer, us_per_event=ours.us_per_event * 4)])] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("worse", "missing", "code"), [(1.0, 0, 0), (9.0, 0, 1), (1.0, 1, 2), (9.0, 1, 1)])
def test_exit_code(worse: float, missing: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    good = replace(of([said("a", late_ms=worse, speed=50.0)], [truth_row("a")]), client="agentperf")
    assert accuracy.conclude([[good]], ["aiperf: cannot be installed"] * missing) == code
    assert accuracy.conclude([[good]], ["agentperf: load process 0 was lost"]) == 1
    shown = capsys.readouterr().out
    assert ("MISSED" in shown) is (worse > 5)
    assert ("missing: aiperf" in shown) is bool(missing)


def test_speed_of_the_truth_leaves_out_the_first_event() -> None:
    """25 events of 4 tokens, 24 of them after the first one: 96 tokens in 2 s."""
    row = truth_row("a", tokens=100, chunks=25)
    assert row.first_tokens == 4
    assert row.speed_tps == pytest.approx(48.0)
    assert truth_row("a", tokens=4, chunks=1).speed_tps is None


def test_log_is_read_and_an_id_that_comes_twice_is_refused(tmp_path: Path) -> None:
    head = "id,outcome,t_head,t_recv,t_first,t_last,t_done,s_first,s_last,tokens,chunks,bytes_in\n"
    line = "r-1,ok,1,2,3,1000000003,1000000004,3,4,51,51,900\n"
    path = tmp_path / "log.csv"
    path.write_text(head + line)
    row = read_log(path)["r-1"]
    assert (row.t_recv, row.t_first, row.tokens) == (2, 3, 51)
    assert row.speed_tps == pytest.approx(50.0)
    assert replace(row, outcome="abort").speed_tps is None
    path.write_text(head + line + line)
    with pytest.raises(ValueError, match="r-1 twice"):
        read_log(path)


def test_a_row_of_a_peer() -> None:
    row = Row("p", t0=1.0, first=1.5, last=3.5, events=101, tokens=101, end=3.6, ok=True)
    made = clients.said_by_row(row)
    assert made.first_ns == 1_500_000_000
    assert made.speed_tps == pytest.approx(50.0)
    assert clients.said_by_row(row, first_tokens=5).speed_tps == pytest.approx(48.0)
    assert clients.said_by_row(Row("p", t0=1.0, end=2.0)).speed_tps is None


def test_without_a_server_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(truth.VARIABLE, raising=False)
    assert accuracy.main(["--seconds", "1"]) == 2
    assert "--server PATH" in capsys.readouterr().err
    with pytest.raises(TruthServerError, match="does not exist"):
        find(str(tmp_path / "none.c"))
    monkeypatch.setenv(truth.VARIABLE, str(tmp_path))
    with pytest.raises(TruthServerError, match="does not exist"):
        find(None)


def test_a_source_that_does_not_compile_is_told(tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("int main(void) { return nothing; }\n")
    with pytest.raises(TruthServerError, match=r"broken\.c|no C compiler"):
        build(source, tmp_path)


def test_the_work_is_bounded() -> None:
    for words in (
        ["--streams", "0"],
        ["--seconds", "1000"],
        ["--tokens", "1"],
        ["--rounds", "0"],
        ["--tps", "0"],
        ["--tokens", "101", "--tokens-per-event", "4"],
    ):
        with pytest.raises(SystemExit) as caught:
            accuracy.main(words)
        assert caught.value.code == 2
    work = accuracy.Work(streams=1, tps=50, ttft_ms=500, tokens=101, seconds=5)
    assert work.stream_s == pytest.approx(2.5)
    assert replace(work, tokens=104, tokens_per_event=4).stream_s == pytest.approx(2.5)
    assert math.isfinite(work.lifetime_s)
