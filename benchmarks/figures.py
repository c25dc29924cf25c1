"""Figures of the accuracy benchmark: what a client says of its requests, joined with what the server logged of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.truth import TruthRow

TTFT_BOUND_MS = 5.0
SPEED_BOUND = 0.005
CPU_BOUND = 1.5
"""agentperf's CPU per event over that of the bare protocol, in the same run."""
IN_FLIGHT_BOUND = 0.99
PEER_SPEED, PEER_CPU = 20.0, 5.0
"""How many times agentperf's p99 speed error and its CPU per event aiperf's are, at least, in the same run."""


@dataclass(frozen=True, slots=True)
class Said:
    """One request by the client's own account; stamps in ns of the clock that the server logs with."""

    id: str
    t0_ns: int
    first_ns: int | None
    last_ns: int | None
    events: int | None
    """Events with text that it received; None for a client that does not count: the server's log does."""
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
    """CPU time of all processes of the client in the window."""
    others: float | None
    """Cores that other work on the machine used meanwhile; None where it is not known."""
    collector_s: float = 0.0
    """What of `cpu_s` went to a process that only takes the records."""
    judged: bool = True
    """Whether bounds apply: not where its processes had to share a core."""


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
    reported_ms: tuple[float, float]
    """p50, p99 of the TTFT that the client reports, of the same requests."""
    speed: tuple[float, float]
    """p50, p99 of |client's speed / the server's - 1|."""
    bias: float
    """Median of client's speed / the server's - 1, with its sign."""
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
    collector_us: float = 0.0
    """Of the CPU per event: what went to a process that only takes the records."""
    judged: bool = True
    """Whether bounds apply."""

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


def events_in(said: Sequence[Said], log: Mapping[str, TruthRow], open_ns: int, close_ns: int) -> float:
    """Events that the client received in the window, those of a stream spread evenly between its first and last one."""
    total = 0.0
    for s in said:
        if s.first_ns is None or s.last_ns is None:
            continue
        events = s.events if s.events is not None else log[s.id].chunks if s.id in log else 0
        if s.last_ns > s.first_ns:
            total += events * overlap(s.first_ns, s.last_ns, open_ns, close_ns) / (s.last_ns - s.first_ns)
        elif open_ns <= s.first_ns < close_ns:
            total += events
    return total


def percentile(values: Sequence[float], p: float) -> float:
    """Of the values themselves; nan without any."""
    return float(np.percentile(np.asarray(values), p)) if len(values) else math.nan


def _size(values: Sequence[float], p: float) -> float:
    return percentile([abs(v) for v in values], p)


def figures(run: Run, log: Mapping[str, TruthRow]) -> Figures:
    """The figures of one run against the log of the server that it ran against."""
    window = [s for s in run.said if run.open_ns <= s.t0_ns < run.close_ns]
    matched = [(s, log[s.id]) for s in window if s.id in log]
    pairs = [(s, row) for s, row in matched if s.ok and row.outcome == "ok"]
    events = events_in(run.said, log, run.open_ns, run.close_ns)
    ttft, speed = ttft_errors_ms(pairs), speed_errors(pairs)
    reported = [(s.first_ns - s.t0_ns) / 1e6 for s, _ in pairs if s.first_ns is not None]
    last_ns = max((s.end_ns for s in run.said), default=run.close_ns)
    return Figures(
        client=run.client,
        requests=len(pairs),
        lost=len(window) - min(len(ttft), len(speed)),
        unmatched=sum(s.id not in log for s in run.said),
        ttft_ms=(_size(ttft, 50), _size(ttft, 99), _size(ttft, 100)),
        reported_ms=(percentile(reported, 50), percentile(reported, 99)),
        speed=(_size(speed, 50), _size(speed, 99)),
        bias=percentile(speed, 50),
        upload_ms=_size([(row.t_recv - s.t0_ns) / 1e6 for s, row in pairs], 99),
        in_flight=in_flight(list(log.values()), run.open_ns, run.close_ns, last_ns),
        wanted=run.streams,
        us_per_event=run.cpu_s * 1e6 / events if events else math.nan,
        events_per_s=events * 1e9 / (run.close_ns - run.open_ns),
        server_late_ms=_size([(row.t_first - row.s_first) / 1e6 for _, row in pairs], 99),
        others=run.others,
        collector_us=run.collector_s * 1e6 / events if events else math.nan,
        judged=run.judged,
    )


def quietest(rounds: Sequence[Sequence[Figures]]) -> int:
    """Index of the round in which other work used least CPU: chosen by what disturbs, never by the errors measured."""
    return min(range(len(rounds)), key=lambda i: max((f.others or 0.0 for f in rounds[i]), default=0.0))


# -- tables


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table, the first row its head, columns lined up."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def ms(value: float) -> str:
    """Milliseconds, to the hundredth below 100."""
    return f"{value:.2f} ms" if abs(value) < 100 else f"{value:,.0f} ms"


def ratio(other: float, ours: float) -> str:
    """`12.3x`, `3,890x`, or a dash where it would say nothing."""
    if not (ours > 0 and math.isfinite(other)):
        return "-"
    times = other / ours
    return f"{times:,.0f}x" if times >= 100 else f"{times:.3g}x"


def share(value: float) -> str:
    """A share as a percentage: three digits behind the point below 10 %."""
    return f"{value:.3%}" if abs(value) < 0.1 else f"{value:.1%}"


LINES: tuple[tuple[str, Callable[[Figures], str], Callable[[Figures], float] | None], ...] = (
    ("TTFT error p50", lambda f: ms(f.ttft_ms[0]), lambda f: f.ttft_ms[0]),
    ("TTFT error p99", lambda f: ms(f.ttft_ms[1]), lambda f: f.ttft_ms[1]),
    ("TTFT error max", lambda f: ms(f.ttft_ms[2]), lambda f: f.ttft_ms[2]),
    ("TTFT reported p50 / p99", lambda f: f"{f.reported_ms[0]:,.0f} / {f.reported_ms[1]:,.0f} ms", None),
    ("speed error p50", lambda f: share(f.speed[0]), lambda f: f.speed[0]),
    ("speed error p99", lambda f: share(f.speed[1]), lambda f: f.speed[1]),
    ("speed bias (median)", lambda f: f"{f.bias:+.3%}", None),
    ("upload p99", lambda f: ms(f.upload_ms), lambda f: f.upload_ms),
    ("in flight / wanted", lambda f: f"{f.in_flight:,.1f} / {f.wanted:,}", lambda f: f.in_flight),
    ("events/s", lambda f: f"{f.events_per_s:,.0f}", lambda f: f.events_per_s),
    ("CPU per event", lambda f: f"{f.us_per_event:.1f} us", lambda f: f.us_per_event),
    ("of it, taking the records", lambda f: f"{f.collector_us:.1f} us" if f.collector_us else "", None),
    ("requests", lambda f: f"{f.requests:,}", None),
    ("lost", lambda f: f"{f.lost + f.unmatched:,}", None),
    ("server late p99", lambda f: ms(f.server_late_ms), None),
    ("other work", lambda f: "?" if f.others is None else f"{f.others:.2f} cores", None),
)


def table(found: Sequence[Figures], lines: Sequence[str] | None = None) -> str:
    """Markdown, a column for each client; behind each figure of the others its ratio to the first one's."""
    ours = found[0]
    rows = [["", *(f.client for f in found)]]
    for name, text, value in LINES:
        if lines is not None and name not in lines:
            continue
        cells = [text(ours)]
        for other in found[1:]:
            behind = f" ({ratio(value(other), value(ours))})" if value is not None else ""
            cells.append(text(other) + behind)
        rows.append([name, *cells])
    return markdown(rows)
