"""The server's own metrics in report and summary; runs of before they were read."""

from typing import Any

from run_journals import answer, finished, manifest, search_journal

from agentperf.report.server import difference, server_section
from agentperf.report.tables import make_report, to_markdown
from agentperf.store.summary import summarise_run

SERVER: dict[str, Any] = {
    "engines": ["vllm"],
    "scrapes": 4,
    "ttft_n": 120,
    "ttft_mean_s": 0.5,
    "ttft_p50": {"low": 0.25, "high": 0.5},
    "ttft_p95": {"low": 80.0, "high": None},
    "client_ttft_n": 119,
    "client_ttft_mean_s": 0.512,
    "client_ttft_range": {"low": 0.51, "high": 0.516},
    "ttft_difference_s": 0.012,
    "running_mean": 14.25,
    "waiting_mean": 0.5,
    "kv_usage_mean": 0.625,
    "cache_share": 0.75,
    "cache_unit": "tokens",
    "client_cache_share": 0.74,
    "preemptions": 3,
    "reasons": {},
}
NONE: dict[str, Any] = {"reasons": {"ttft": "llama.cpp exports no TTFT histogram", "cache": "why not"}, "scrapes": 2}


def _summary(*servers: dict[str, Any] | None) -> dict[str, Any]:
    events, _ = search_journal(levels=tuple(range(1, len(servers) + 1)))
    found = iter(servers)
    for event in events:
        if event["event"] == "probe_finished":
            event["server"] = next(found)
    return summarise_run(manifest(["80tps"]), [*events, finished([answer("80tps", 1, None)])])


def test_every_figure_in_its_column() -> None:
    summary = _summary(SERVER, None)
    assert [row["server"] for row in summary["levels"]] == [SERVER, None]
    (section,) = [s for s in make_report(summary).sections if s.title == "Server"]
    cells = dict(zip((c.title for c in section.columns), (c.text for c in section.rows[0]), strict=True))
    assert cells == {
        "agents": "1",
        "first tokens server / client": "120 / 119",
        "mean TTFT client": "512 ms",
        "server": "500 ms",
        "difference": "10.0 ms – 16.0 ms",
        "server TTFT p50": "250 ms – 500 ms",
        "server TTFT p95": "> 80.00 s",
        "running": "14.2",
        "waiting": "0.5",
        "KV in use": "62.5 %",
        "cache hit by counters": "75.0 %",
        "by usage": "74.0 %",
        "preemptions": "3",
        "scrapes": "4",
    }
    assert {c.text for c in section.rows[1][1:]} == {"–"}
    assert "## Server" in to_markdown(make_report(summary))


def test_reasons_once_with_their_levels() -> None:
    section = server_section(_summary(SERVER, NONE, NONE)["levels"], repeated=False)
    assert section.note.endswith(
        "Not measured: TTFT at 2, 3 (llama.cpp exports no TTFT histogram). Not measured: cache hit at 2, 3 (why not)."
    )
    alone = server_section(_summary(NONE)["levels"], repeated=False)
    assert "Not measured: cache hit (why not)." in alone.note


def test_runs_without_it_read_as_before() -> None:
    summary = _summary(None, None)
    assert not [s for s in make_report(summary).sections if s.title == "Server"]
    for row in summary["levels"]:
        del row["server"]  # a summary.json of an older version
    assert not [s for s in make_report(summary).sections if s.title == "Server"]


def test_a_difference_is_a_range_only_where_it_is_one() -> None:
    same = {**SERVER, "client_ttft_range": {"low": 0.51201, "high": 0.51203}}
    assert difference(same) == "12.0 ms"
    assert difference({**SERVER, "ttft_difference_s": None}) == "–"
    assert difference({**SERVER, "client_ttft_range": None}) == "12.0 ms"
    assert difference({}) == "–"
