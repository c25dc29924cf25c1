"""The client's table: all figures of each level, dashes for journals that do not tell."""

from typing import Any

import msgspec

from agentperf.measure.health import MachineSample, WorkerSample, assess, voided
from agentperf.report.cells import Section
from agentperf.report.client import client_section
from agentperf.report.tables import make_report, to_markdown
from agentperf.report.words import DASH
from agentperf.store.summary import summarise_run
from tests.run_journals import manifest, probe_events, probe_records

S = 1_000_000_000


def samples(worker: int) -> list[WorkerSample]:
    return [
        WorkerSample(worker, i * S // 5, [0.0012] * 10, 0.31 + worker / 10, 212_000_000, 150, 128, 4 + worker, 0.002)
        for i in range(50)
    ]


HEALTH = assess(
    [*samples(0), *samples(1)],
    [0.0004] * 100,
    [0.0015] * 100,
    15.9,
    16.0,
    None,
    decode_s=[2.0],
    machine=[MachineSample(i * S, 0.05, 5.25) for i in range(10)],
    late_starts_s=[0.0001, 0.0013],
)


def section(*healths: Any) -> Section:
    events: list[dict[str, Any]] = []
    for number, each in enumerate(healths, 1):
        events += probe_events(number, 4, probe_records(number, 4, 40), ["80tps"], health=each)
    summary = summarise_run(manifest(["80tps"]), events)
    (found,) = [s for s in make_report(summary).sections if s.title == "Client"]
    return found


def cells(found: Section, row: int = 0) -> dict[str, str]:
    return {c.title: cell.text for c, cell in zip(found.columns, found.rows[row], strict=True)}


def test_every_figure() -> None:
    assert cells(section(HEALTH)) == {
        "agents": "4",
        "client": "ok",
        "loop lag p99": "1.20 ms",
        "largest lag": "1.20 ms",
        "speed unsure by": "0.06 %",
        "send delay p99": "0.40 ms",
        "until sent p99": "1.50 ms",
        "open / wanted": "99.4 %",
        "CPU of load": "0.31, 0.41",
        "CPU here": "0.05",
        "free cores": "5.2",
        "sockets": "128",
        "files": "150",
        "RSS": "212 MB",
        "start skew": "1.20 ms",
        "records waiting": "5",
        "time blocked": "1.0 %",
    }


def test_an_invalid_level_says_for_what() -> None:
    lost = voided(HEALTH, "process_lost", "load process 1 was killed (SIGKILL): level 4 is void")
    found = section(HEALTH, lost)
    assert [c.title for c in found.columns][:3] == ["agents", "probe", "client"]
    assert cells(found, 1)["client"] == "invalid: process lost"


def test_a_journal_from_before_has_dashes() -> None:
    row = {"level": 4, "probe": 1, "health": "ok", "client": {"loop_lag_p99_s": 0.002}}
    found = client_section([row], repeated=False)
    told = cells(found)
    assert told.pop("agents") == "4"
    assert told.pop("client") == "ok"
    assert told.pop("loop lag p99") == "2.00 ms"
    assert set(told.values()) == {DASH}


def test_many_load_processes_are_a_range() -> None:
    row = {"level": 4, "probe": 1, "health": "ok", "client": {"cpu_shares": [0.1, 0.2, 0.9, 0.3, 0.4, 0.5]}}
    assert cells(client_section([row], repeated=False))["CPU of load"] == "6 of 0.10 to 0.90"


def test_markdown_has_the_section() -> None:
    summary = summarise_run(manifest(["80tps"]), probe_events(1, 4, probe_records(1, 4, 40), ["80tps"], health=HEALTH))
    text = to_markdown(make_report(summary))
    assert "## Client" in text
    assert "0.31, 0.41" in text


def test_the_summary_keeps_every_figure() -> None:
    summary = summarise_run(manifest(["80tps"]), probe_events(1, 4, probe_records(1, 4, 40), ["80tps"], health=HEALTH))
    told = msgspec.to_builtins(HEALTH)
    assert summary["levels"][0]["client"] == {k: v for k, v in told.items() if k not in ("status", "reasons")}
