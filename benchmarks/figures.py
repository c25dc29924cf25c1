"""Figures of the accuracy benchmark: what a client says of its requests, joined with what the server logged of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.truth import TruthRow

TTFT_BOUND_MS = 5.0
SPEED_BOUND = 0.005


@dataclass(frozen=True, slots=True)
class Said:
    """One request by the client's own account; stamps in ns of the clock that the server logs with."""

    id: str
    t0_ns: int
    first_ns: int | None
    last_ns: int | None
    events: int
    """Events with text that it received."""
    speed_tps: float | None
    end_ns: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Run:
    """What one client did: its window is [open_ns, close_ns)."""

    client: str
    streams: int
    open_ns: int
    close_ns: int
    said: list[Said]
    cpu_s: float
    """CPU time of the client's process in the window."""
    others: float | None
    """Cores that other work on the machine used meanwhile; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run in figures. Errors are absolute values over the requests issued in the window that both sides call ok."""

    client: str
    requests: int
    lost: int
    """Issued in the window and failed, cut off, or without figures."""
    unmatched: int
    """Requests, of the whole run, that the server's log does not have."""
    ttft_ms: tuple[float, float, float]
    """p50, p99, max of |client's stamp of the first token - the server's|."""
    speed: tuple[float, float]
    """p50, p99 of |client's speed / the server's - 1|."""
    upload_ms: float
    """p99 of server's receipt of the whole request - client's t0: a part of TTFT that no token stamp shows."""
    in_flight: float
    """Time-weighted mean of the requests that the server had open in the window."""
    wanted: int
    us_per_event: float
    """CPU time of the client over events that it received, both in the window."""
    events_per_s: float
    """Events that the client received."""
    server_late_ms: float
    """p99 of how late the server itself was with first tokens."""
    others: float | None

    @property
    def within_bound(self) -> bool:
        """p99 of the TTFT error <= 5 ms, of the speed error <= 0.5 %, and nothing lost."""
        return (
            self.requests > 0
            and self.lost == self.unmatched == 0
            and self.ttft_ms[1] <= TTFT_BOUND_MS
            and self.speed[1] <= SPEED_BOUND
        )


def ttft_errors_ms(pairs: Sequence[tuple[Said, TruthRow]]) -> list[float]:
    """Client's stamp of the first token minus the server's, in ms.

    Both TTFTs counted from the client's t0, the difference of the two is the difference of these stamps.
    """
    return [(said.first_ns - row.t_first) / 1e6 for said, row in pairs if said.first_ns is not None]


def speed_errors(pairs: Sequence[tuple[Said, TruthRow]]) -> list[float]:
    """Client's speed over the server's own, less 1."""
    return [s.speed_tps / t.speed_tps - 1 for s, t in pairs if s.speed_tps is not None and t.speed_tps is not None]


def overlap(start_ns: int, end_ns: int, open_ns: int, close_ns: int) -> int:
    """Length of the part of [start, end] that lies in [open, close], in ns."""
    return max(0, min(end_ns, close_ns) - max(start_ns, open_ns))


def in_flight(rows: Sequence[TruthRow], open_ns: int, close_ns: int, now_ns: int) -> float:
    """Time-weighted mean of requests between receipt and the last byte handed to the socket, by the server's log.

    A request that never ended was open until `now_ns`.
    """
    held = sum(overlap(r.t_recv, r.t_done or now_ns, open_ns, close_ns) for r in rows)
    return held / (close_ns - open_ns)


def events_in(said: Sequence[Said], open_ns: int, close_ns: int) -> float:
    """Events that the client received in the window, those of a stream spread evenly between its first and last one."""
    total = 0.0
    for s in said:
        if s.first_ns is None or s.last_ns is None:
            continue
        if s.last_ns > s.first_ns:
            total += s.events * overlap(s.first_ns, s.last_ns, open_ns, close_ns) / (s.last_ns - s.first_ns)
        elif open_ns <= s.first_ns < close_ns:
            total += s.events
    return total


def _percentile(values: Sequence[float], p: float) -> float:
    return float(np.percentile(np.abs(np.asarray(values)), p)) if len(values) else float("nan")


def figures(run: Run, log: Mapping[str, TruthRow]) -> Figures:
    """The figures of one run against the log of the server that it ran against."""
    window = [s for s in run.said if run.open_ns <= s.t0_ns < run.close_ns]
    matched = [(s, log[s.id]) for s in window if s.id in log]
    pairs = [(s, row) for s, row in matched if s.ok and row.outcome == "ok"]
    events = events_in(run.said, run.open_ns, run.close_ns)
    ttft, speed = ttft_errors_ms(pairs), speed_errors(pairs)
    last_ns = max((s.end_ns for s in run.said), default=run.close_ns)
    return Figures(
        client=run.client,
        requests=len(pairs),
        lost=len(window) - min(len(ttft), len(speed)),
        unmatched=sum(s.id not in log for s in run.said),
        ttft_ms=(_percentile(ttft, 50), _percentile(ttft, 99), _percentile(ttft, 100)),
        speed=(_percentile(speed, 50), _percentile(speed, 99)),
        upload_ms=_percentile([(row.t_recv - s.t0_ns) / 1e6 for s, row in pairs], 99),
        in_flight=in_flight(list(log.values()), run.open_ns, run.close_ns, last_ns),
        wanted=run.streams,
        us_per_event=run.cpu_s * 1e6 / events if events else float("nan"),
        events_per_s=events * 1e9 / (run.close_ns - run.open_ns),
        server_late_ms=_percentile([(row.t_first - row.s_first) / 1e6 for _, row in pairs], 99),
        others=run.others,
    )


def quietest(rounds: Sequence[Sequence[Figures]]) -> int:
    """Index of the round in which other work used least CPU: chosen by what disturbs, never by the errors measured."""
    return min(range(len(rounds)), key=lambda i: max((f.others or 0.0 for f in rounds[i]), default=0.0))


# -- a table

HEADERS = (
    "client", "TTFT error p50", "p99", "max", "speed error p50", "p99", "upload p99", "in flight / wanted",
    "events/s", "CPU per event", "requests", "lost", "server late p99", "other work",
)  # fmt: skip


def _ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 100 else f"{value:,.0f} ms"


def _cells(f: Figures) -> list[str]:
    others = "?" if f.others is None else f"{f.others:.2f} cores"
    return [
        f.client, _ms(f.ttft_ms[0]), _ms(f.ttft_ms[1]), _ms(f.ttft_ms[2]), f"{f.speed[0]:.3%}", f"{f.speed[1]:.3%}",
        _ms(f.upload_ms), f"{f.in_flight:.1f} / {f.wanted}", f"{f.events_per_s:,.0f}", f"{f.us_per_event:.0f} us",
        str(f.requests), str(f.lost + f.unmatched), _ms(f.server_late_ms), others,
    ]  # fmt: skip


def _ratio(a: float, b: float) -> str:
    return f"{a / b:,.3g}x" if b > 0 else "-"


def ratios(ours: Figures, other: Figures) -> list[str]:
    """The other client's figures over ours, where a ratio says something."""
    ttft = [_ratio(a, b) for a, b in zip(other.ttft_ms, ours.ttft_ms, strict=True)]
    speed = [_ratio(a, b) for a, b in zip(other.speed, ours.speed, strict=True)]
    name = f"{other.client} / {ours.client}"
    upload = _ratio(other.upload_ms, ours.upload_ms)
    in_flight_ = _ratio(other.in_flight, ours.in_flight)
    events, cpu = _ratio(other.events_per_s, ours.events_per_s), _ratio(other.us_per_event, ours.us_per_event)
    return [name, *ttft, *speed, upload, in_flight_, events, cpu, "", "", "", ""]


def table(found: Sequence[Figures]) -> str:
    """Markdown, columns lined up; with two clients a row of ratios (second over first) below."""
    rows = [_cells(f) for f in found]
    if len(found) == 2:
        rows.append(ratios(found[0], found[1]))
    widths = [max(len(row[i]) for row in [list(HEADERS), *rows]) for i in range(len(HEADERS))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in [list(HEADERS), *rows]
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)
