"""The table about the client of each level: whether this machine can be believed."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentperf.report import words
from agentperf.report.cells import Cell, Column, Section, probe_section

Json = Mapping[str, Any]

COLOURS: Final = {"ok": "green", "warn": "yellow", "invalid": "red"}

_COLUMNS: Final = (
    Column("agents"),
    Column("client", "left"),
    Column("loop lag p99"),
    Column("largest lag", drop=4),
    Column("speed unsure by", drop=3),
    Column("send delay p99"),
    Column("until sent p99", drop=3),
    Column("open / wanted", drop=1),
    Column("CPU of load"),
    Column("CPU here", drop=3),
    Column("free cores", drop=4),
    Column("sockets", drop=5),
    Column("files", drop=6),
    Column("RSS", drop=5),
    Column("start skew", drop=6),
    Column("records waiting", drop=7),
    Column("time blocked", drop=7),
)

NOTE: Final = (
    "Loop lag: how late a load process reads its sockets; of the worst one. Speed unsure by: lag p99.5 over the decode "
    "time of the median reply. Send delay: from the end of a turn and its wait to the start of the next, or until its "
    "last byte is sent. CPU in cores, of load processes and of the collecting process (here). Sockets, files, memory "
    "of the load process that has most. Records waiting, time blocked: what one held back since it was not taken."
)


def client_section(rows: Sequence[Json], *, repeated: bool) -> Section:
    """One row a probe; dashes for what a journal does not tell. `repeated`: levels have several probes."""
    return probe_section("Client", _COLUMNS, _row, rows, NOTE, repeated=repeated)


def _row(row: Json) -> list[Cell]:
    facts: Json = row.get("client") or {}
    status = str(row["health"] or words.DASH)
    cause = facts.get("cause") if status == "invalid" else None
    return [
        Cell(str(row["level"]), "bold"),
        Cell(f"{status}: {str(cause).replace('_', ' ')}" if cause else status, COLOURS.get(status, "")),
        Cell(_ms(facts.get("loop_lag_p99_s"))),
        Cell(_ms(facts.get("loop_lag_max_s"))),
        Cell(_percent(facts.get("speed_error"))),
        Cell(_ms(facts.get("send_delay_p99_s"))),
        Cell(_ms(facts.get("turn_overhead_p99_s"))),
        Cell(words.share(facts.get("in_flight_ratio"))),
        Cell(_cpu(facts.get("cpu_shares"))),
        Cell(words.number(facts.get("parent_cpu_share"), 2)),
        Cell(words.number(facts.get("free_cores"))),
        Cell(words.count(facts.get("sockets_max"))),
        Cell(words.count(facts.get("fds_max"))),
        Cell(_megabytes(facts.get("rss_bytes_max"))),
        Cell(_ms(facts.get("start_skew_s"))),
        Cell(words.count(facts.get("pending_records_max"))),
        Cell(words.share(facts.get("blocked_share"))),
    ]


def _ms(value: float | None) -> str:
    """Lateness is a matter of milliseconds: two digits below 10 ms."""
    return words.DASH if value is None else f"{value * 1e3:,.{2 if value < 0.01 else 0}f} ms"


def _percent(value: float | None) -> str:
    return words.DASH if value is None else f"{value * 100:.2f} %"


def _megabytes(value: float | None) -> str:
    return words.DASH if value is None else f"{value / 1e6:,.0f} MB"


def _cpu(shares: Sequence[float] | None) -> str:
    """`0.31` or `0.31, 0.29`; the range of more than four."""
    if not shares:
        return words.DASH
    if len(shares) <= 4:
        return ", ".join(f"{share:.2f}" for share in shares)
    return f"{len(shares)} of {min(shares):.2f} to {max(shares):.2f}"
