"""The document, the file it is kept in, and what a plan is told by it."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_yardstick_measure import probe

from agentperf.errors import UsageError
from agentperf.slo.tiers import resolve
from agentperf.yardstick.calibration import Bounds, Calibration, Firehose, RateResult, load, merged, save
from agentperf.yardstick.cores import busy_s, children_on, other_cores, split_cores, usable_cores
from agentperf.yardstick.machine import Machine, cache_file, cpu_model, this_machine
from agentperf.yardstick.quote import day, quote, quote_kept, speed_target

DOC = Path(__file__).parents[2] / "docs" / "calibrate.md"
BOX = Machine(os="Linux", machine="x86_64", cpu_model="Some CPU", cores=4, python="3.11")


def result(tps: float, streams: int, workers: int = 1, **changes: Any) -> RateResult:
    fields: dict[str, Any] = {
        "tps": tps,
        "workers": workers,
        "measured_at": "2026-12-01T04:30:52Z",
        "streams": streams,
        "at_least": False,
        "limit": "client",
        "smallest_miss": streams + 64,
        "disturbed": False,
        "pinned": True,
        "error": None,
        "probes": [probe(streams, tps), probe(streams + 64, tps, "fail")],
    }
    return RateResult(**(fields | changes))


def calibration(*results: RateResult, **changes: Any) -> Calibration:
    fields: dict[str, Any] = {
        "agentperf_version": "0.1.0",
        "measured_at": "2026-12-01T04:35:00Z",
        "seconds": 200.0,
        "machine": BOX,
        "bounds": Bounds(),
        "window_s": 3.0,
        "ttft_ms": 200.0,
        "decode_s": 2.0,
        "results": list(results),
        "firehose": [Firehose(workers=1, streams=8, events_per_s=280_000.0, us_per_event=2.2)],
    }
    return Calibration(**(fields | changes))


KNOWN = calibration(result(20.0, 2000), result(50.0, 1000), result(200.0, 256, at_least=True), result(50.0, 1900, 2))


# -- the document


def test_the_json_and_its_description_name_the_same_fields() -> None:
    data = json.loads(msgspec.json.encode(KNOWN))
    assert data["schema"] == "agentperf-calibration/1"
    names = {*data, *data["machine"], *data["bounds"], *data["firehose"][0]}
    names |= {*data["results"][0], *data["results"][0]["probes"][0]}
    described = set(re.findall(r"`(\w+)`", DOC.read_text()))
    assert names - described == set(), "docs/calibrate.md leaves fields out"


def test_best_is_the_probe_behind_the_answer() -> None:
    found = result(50.0, 100, probes=[probe(100, 50.0, "fail"), probe(100), probe(150, 50.0, "fail")])
    assert found.best is not None
    assert (found.best.level, found.best.verdict) == (100, "pass")
    assert result(50.0, 0, probes=[probe(1, 50.0, "fail")]).best is None


def test_saved_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "calibration.json"
    save(path, KNOWN)
    assert load(path) == KNOWN
    save(path, calibration(result(20.0, 1)))
    assert [p.name for p in path.parent.iterdir()] == ["calibration.json"], "nothing is left beside it"


@pytest.mark.parametrize("text", ["", "{}", "null", '{"schema":"agentperf-calibration/2"}', "[1]"])
def test_what_is_no_calibration_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    assert load(path) is None
    assert load(tmp_path / "missing") is None


@given(data=st.binary(max_size=200))
def test_no_bytes_of_a_file_break_a_run(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.json"
    path.write_bytes(data)
    assert load(path) is None


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be kept") as error:
        save(tmp_path / "file" / "calibration.json", KNOWN)
    assert "AGENTPERF_CACHE_DIR" in str(error.value)


def test_a_new_calibration_replaces_what_it_measured_anew() -> None:
    new = calibration(result(50.0, 900, measured_at="2026-12-02T00:00:00Z"), result(80.0, 600))
    both = merged(KNOWN, new)
    assert [(r.workers, r.tps, r.streams) for r in both.results] == [
        (1, 20.0, 2000),
        (1, 50.0, 900),
        (1, 80.0, 600),
        (1, 200.0, 256),
        (2, 50.0, 1900),
    ]
    assert merged(None, new) == new
    assert merged(calibration(result(20.0, 1), agentperf_version="0.0.9"), new) == new
    other = msgspec.structs.replace(BOX, cores=8)
    assert merged(calibration(result(20.0, 1), machine=other), new) == new


# -- what a plan is told


def _quote(known: Calibration | None = KNOWN, **changes: Any) -> Any:
    given: dict[str, Any] = {"level": 64, "workers": 1, "tps": 50.0, "machine": BOX, "version": "0.1.0"} | changes
    return quote(known, given.pop("machine"), given.pop("version"), **given)


def test_within() -> None:
    said = _quote()
    assert said.state == "within"
    assert said.sentence == (
        "this machine's client, measured 1 Dec 2026: 1,000 streams at 50 tok/s with 1 load process;"
        " the plan's largest level of 64 agents is within it"
    )
    assert said.remedy is None
    assert said.facts() == {
        "state": "within",
        "measured_at": "2026-12-01T04:30:52Z",
        "streams": 1000,
        "tps": 50.0,
        "workers": 1,
        "sentence": said.sentence,
    }


@pytest.mark.parametrize(
    ("changes", "state", "streams", "rate"),
    [
        ({"level": 1000}, "within", 1000, 50.0),
        ({"level": 1001}, "exceeded", 1000, 50.0),
        ({"tps": None, "level": 1001}, "exceeded", 1000, 50.0),
        ({"tps": 10.0, "level": 1001}, "within", 2000, 20.0),
        # A rate between two is judged by the faster one.
        ({"tps": 51.0, "level": 256}, "within", 256, 200.0),
        ({"tps": 51.0, "level": 257}, "exceeded", 256, 200.0),
        # More load processes than were calibrated: what fewer can do holds for them too.
        ({"workers": 2, "level": 1900}, "within", 1900, 50.0),
        ({"workers": 7, "level": 1900}, "within", 1900, 50.0),
        ({"workers": 7, "level": 1901}, "exceeded", 1900, 50.0),
    ],
)
def test_which_figure_is_quoted(changes: dict[str, Any], state: str, streams: int, rate: float) -> None:
    said = _quote(**changes)
    assert (said.state, said.streams, said.tps) == (state, streams, rate)
    assert (said.remedy is None) == (state == "within")


def test_exceeded_says_what_to_do() -> None:
    assert "1,001 agents exceeds it" in _quote(level=1001).sentence
    assert "more --workers" in _quote(level=1001).remedy
    assert "calibrate --workers 4" in _quote(level=4000, workers=4).remedy
    said = _quote(tps=200.0, level=300)
    assert "at least 256 streams at 200 tok/s" in said.sentence
    assert "may exceed" in said.sentence


def test_a_rate_beyond_all_that_was_calibrated() -> None:
    said = _quote(tps=300.0)
    assert said.state == "unknown"
    assert said.sentence == "this machine's client is calibrated only up to 200 tok/s, the plan is for 300 tok/s"
    assert said.remedy == "agentperf calibrate --rates 300 --workers 1"
    assert _quote(calibration(result(50.0, 10, workers=2)), workers=1).state == "unknown"
    assert _quote(calibration()).state == "unknown"


def test_never_and_stale() -> None:
    assert _quote(None).state == "never"
    assert "agentperf calibrate" in _quote(None).remedy
    other = _quote(machine=msgspec.structs.replace(BOX, cores=8))
    assert other.state == "stale"
    assert other.sentence == (
        "the client's calibration of 1 Dec 2026 is of another machine (Some CPU, 4 cores, Linux, Python 3.11)"
    )
    older = _quote(version="0.2.0")
    assert older.state == "stale"
    assert older.sentence.endswith("is of agentperf 0.1.0, this is 0.2.0")
    assert older.streams is None, "a figure that does not hold is not quoted"


@pytest.mark.parametrize(
    ("slos", "target"),
    [(["80tps"], 80.0), (["40tps", "p50 speed >= 120"], 120.0), (["p95 ttft <= 2s"], None), ([], None)],
)
def test_the_speed_that_an_slo_promises(slos: list[str], target: float | None) -> None:
    assert speed_target([resolve(text) for text in slos]) == target


def test_quote_kept_reads_the_users_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTPERF_CACHE_DIR", str(tmp_path))
    assert quote_kept([resolve("80tps")], 64, 1).state == "never"
    from agentperf import __version__

    save(cache_file(), calibration(result(80.0, 700), machine=this_machine(), agentperf_version=__version__))
    said = quote_kept([resolve("80tps")], 64, 1)
    assert (said.state, said.streams, said.tps) == ("within", 700, 80.0)


@pytest.mark.parametrize(("iso", "text"), [("2026-01-09T23:59:59Z", "9 Jan 2026"), ("yesterday", "yesterday")])
def test_day(iso: str, text: str) -> None:
    assert day(iso) == text


# -- the machine


def test_where_the_file_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AGENTPERF_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_file() == tmp_path / "agentperf" / "calibration.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_file() == Path.home() / ".cache" / "agentperf" / "calibration.json"
    monkeypatch.setenv("AGENTPERF_CACHE_DIR", str(tmp_path / "own"))
    assert cache_file() == tmp_path / "own" / "calibration.json"


def test_cpu_model() -> None:
    assert cpu_model("processor : 0\nmodel name\t:  Fast   CPU 9\nflags : fpu\n") == "Fast CPU 9"
    assert cpu_model("processor : 0\nmodel name :\n") is None
    assert cpu_model("") is None
    assert this_machine() == this_machine()
    assert "core" in this_machine().line


def test_cores_are_divided_only_where_there_are_enough() -> None:
    assert split_cores([0], 1) is None
    assert split_cores([0, 1], 1) == ([0], [1])
    assert split_cores([0, 1, 2, 3], 1) == ([0, 1, 2], [3])
    assert split_cores([0, 1, 2, 3], 2) == ([0, 1], [2, 3])
    assert split_cores([0, 1, 2, 3], 3) is None


def test_children_on_restores_the_cores() -> None:
    before = usable_cores()
    with children_on(before[:1]):
        assert usable_cores() == before[:1]
    assert usable_cores() == before
    with children_on(None):
        assert usable_cores() == before


def test_other_work() -> None:
    import os

    tick = os.sysconf("SC_CLK_TCK")
    assert busy_s("cpu  100 20 30 4000 500 6 7 8 0 0\ncpu0 1 2\n") == (100 + 20 + 30 + 6 + 7 + 8) / tick
    assert other_cores(10.0, 16.0, 3.0, 4.0) == pytest.approx(0.75)
    assert other_cores(10.0, 12.0, 3.0, 4.0) == 0.0
    assert other_cores(None, 12.0, 3.0, 4.0) is None
