"""The table about the streams of each level: whether stamps and counts can be taken as they are."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentperf.report import words
from agentperf.report.cells import Cell, Column, Section, probe_section

Json = Mapping[str, Any]

_COLUMNS: Final = (
    Column("agents"),
    Column("streams", "left"),
    Column("in bursts"),
    Column("at one moment", drop=1),
    Column("tokens / event p50"),
    Column("counts by usage + estimate", drop=1),
    Column("characters / token", drop=4),
    Column("largest gap"),
    Column("in request", "left", drop=6),
    Column("p99 gap", drop=3),
    Column("stalled"),
    Column("errors inside streams", drop=2),
    Column("new connections", drop=2),
    Column("handshake p50 / p99 / max", drop=5),
    Column("stale retries", drop=5),
)

NOTE: Final = (
    "In bursts: replies that something held back, of those long enough to tell. Gaps are between events, each the time "
    "of as many tokens as an event carries; speed and ITL are per token. Stalled: a gap above 1 s and above 20 times "
    "the request's median gap. Errors inside streams: status 200, then an error; they count as failed. A handshake is "
    "inside the TTFT of its request."
)


def streams_section(rows: Sequence[Json], *, repeated: bool) -> Section:
    """One row a probe; dashes for probes of journals that do not tell. `repeated`: levels have several probes."""
    return probe_section("Streams", _COLUMNS, _row, rows, NOTE, repeated=repeated)


def _row(row: Json) -> list[Cell]:
    facts: Json = row.get("streams") or {}
    return [
        Cell(str(row["level"]), "bold"),
        Cell(words.stream_word(row), words.stream_style(row)),
        Cell(_of(facts.get("buffered"), facts.get("tellable")), "red" if facts.get("suspect") else ""),
        Cell(words.count(facts.get("without_speed"))),
        Cell(words.number(facts.get("tokens_per_event_p50"), 2)),
        Cell(_sources(facts), "yellow" if facts.get("estimated") else ""),
        Cell(words.number(facts.get("chars_per_token"), 2)),
        Cell(words.duration(facts.get("largest_gap_s"))),
        Cell(facts.get("largest_gap_request") or words.DASH),
        Cell(words.duration(facts.get("p99_gap_s"))),
        Cell(words.count(facts.get("stalled")), "yellow" if facts.get("stalled") else ""),
        Cell(words.count(facts.get("in_band_errors")), "red" if facts.get("in_band_errors") else ""),
        Cell(words.share(facts.get("new_connection_share"))),
        Cell(" / ".join(_fine(facts.get(f"handshake_{name}")) for name in ("p50", "p99", "max"))),
        Cell(words.count(facts.get("stale_retries"))),
    ]


def _of(part: int | None, whole: int | None) -> str:
    """`3 of 120`; a dash where no reply could tell."""
    return f"{words.count(part)} of {words.count(whole)}" if whole else words.DASH


def _sources(facts: Json) -> str:
    sources = facts.get("token_sources")
    if sources is None:
        return words.DASH
    return f"{words.count(sources.get('usage', 0))} + {words.count(sources.get('estimate', 0))}"


def _fine(value: float | None) -> str:
    """A handshake takes a fraction of a millisecond on a local network."""
    return f"{value * 1e3:.2f} ms" if value is not None and value < 0.01 else words.duration(value)
