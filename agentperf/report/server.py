"""The table of the endpoint's own metrics beside what the client saw, level by level."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentperf.report import words
from agentperf.report.cells import Cell, Column, Section, probe_section

Json = Mapping[str, Any]

_COLUMNS: Final = (
    Column("agents"),
    Column("first tokens server / client"),
    Column("mean TTFT client"),
    Column("server"),
    Column("difference"),
    Column("server TTFT p50", drop=3),
    Column("server TTFT p95", drop=3),
    Column("running", drop=1),
    Column("waiting", drop=1),
    Column("KV in use", drop=2),
    Column("cache hit by counters", drop=2),
    Column("by usage", drop=2),
    Column("preemptions", drop=4),
    Column("scrapes", drop=5),
)

NOTE: Final = (
    "Both means are of requests whose first token came between two scrapes of the server's page, at the window's "
    "opening and at its close. The difference holds network, gateway, client, and tokens that are not visible; it is a "
    "range where requests at the edges may be on either side. The server's percentiles are known to their bucket. "
    "Running, waiting and KV in use are means over time of all scrapes."
)

_NAMES: Final = {
    "all": "all",
    "ttft": "TTFT",
    "ttft_quantiles": "TTFT percentiles",
    "ttft_difference": "difference",
    "e2e": "latency of whole requests",
    "running": "running",
    "waiting": "waiting",
    "kv_usage": "KV in use",
    "cache": "cache hit",
    "preemptions": "preemptions",
}


def server_section(rows: Sequence[Json], *, repeated: bool) -> Section:
    """One row a probe; dashes for probes without a page. `repeated`: levels have several probes."""
    note = " ".join([NOTE, *_unmeasured(rows)])
    return probe_section("Server", _COLUMNS, _row, rows, note, repeated=repeated)


def _row(row: Json) -> list[Cell]:
    found: Json = row.get("server") or {}
    counts = (found.get("ttft_n"), found.get("client_ttft_n"))
    cache = words.share(found.get("cache_share"))
    if found.get("cache_share") is not None and found.get("cache_unit") == "blocks":
        cache += " of blocks"
    return [
        Cell(str(row["level"]), "bold"),
        Cell(" / ".join(map(words.count, counts)) if found else words.DASH),
        Cell(fine(found.get("client_ttft_mean_s"))),
        Cell(fine(found.get("ttft_mean_s"))),
        Cell(difference(found)),
        Cell(_interval(found.get("ttft_p50"))),
        Cell(_interval(found.get("ttft_p95"))),
        Cell(words.number(found.get("running_mean"))),
        Cell(words.number(found.get("waiting_mean"))),
        Cell(words.share(found.get("kv_usage_mean"))),
        Cell(cache),
        Cell(words.share(found.get("client_cache_share"))),
        Cell(words.count(found.get("preemptions"))),
        Cell(words.count(found.get("scrapes"))),
    ]


def fine(value: float | None) -> str:
    """A tenth of a millisecond below 100 ms, where it decides a difference."""
    return f"{value * 1e3:.1f} ms" if value is not None and abs(value) < 0.09995 else words.duration(value)


def difference(found: Json) -> str:
    """Client's mean less server's: one figure, or the range that the requests at the edges leave."""
    middle, server, span = found.get("ttft_difference_s"), found.get("ttft_mean_s"), found.get("client_ttft_range")
    if middle is None or server is None:
        return words.DASH
    if span is None or span.get("high") is None:
        return fine(middle)
    low, high = fine(span["low"] - server), fine(span["high"] - server)
    return fine(middle) if low == high else f"{low} – {high}"


def _interval(bounds: Json | None) -> str:
    """`20.0 ms – 40.0 ms`, or `> 80.0 s` above the last bucket."""
    if bounds is None:
        return words.DASH
    if bounds.get("high") is None:
        return f"> {fine(bounds['low'])}"
    return f"{fine(bounds['low'])} – {fine(bounds['high'])}"


def _unmeasured(rows: Sequence[Json]) -> list[str]:
    """Each reason once, with the levels that it holds for where it is not all."""
    levels: dict[tuple[str, str], list[int]] = {}
    measured = [row for row in rows if row.get("server")]
    for row in measured:
        for column, reason in row["server"].get("reasons", {}).items():
            levels.setdefault((_NAMES.get(column, column), reason), []).append(row["level"])
    columns: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (name, reason), found in levels.items():
        where = tuple(found) if len(found) < len(measured) else ()
        columns.setdefault((reason, where), []).append(name)
    return [
        f"Not measured: {', '.join(names)}"
        + (f" at {', '.join(map(str, dict.fromkeys(where)))}" if where else "")
        + f" ({reason})."
        for (reason, where), names in columns.items()
    ]
