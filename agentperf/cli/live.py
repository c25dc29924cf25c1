"""The views of a running search: three panes on a terminal, one line a level elsewhere."""

import math
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentperf.cli.snapshot import Snapshot, bracket, level_line, mark, take
from agentperf.run.conductor import Progress

COLOURS = {"pass": "green", "fail": "red", "inconclusive": "yellow", "invalid": "magenta"}
PHASES = {
    "warmup": "warming up",
    "window": "measuring",
    "settling": "waiting for the window's last requests",
    "draining": "draining",
}
REFRESH_S = 0.25


class View(Protocol):
    """Shows progress; a context manager because a terminal must be given back."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def update(self, progress: Progress) -> None:
        """Called whenever something happened."""


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞"
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def _number(value: float | None, unit: str = "", digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}{unit}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def strip(progress: Progress) -> Text:
    """`1 ✓  2 ✓  4 ✓  8 ✗  → 6 …` with the bracket behind it."""
    text = Text()
    for outcome in progress.history:
        status = next((v.status for v in outcome.verdicts.values()), "inconclusive")
        text.append(f"{outcome.level} ")
        text.append(f"{mark(outcome)}  ", style=COLOURS[status] if outcome.verdicts else "")
    if progress.current is not None:
        text.append(f"→ {progress.current.level} …", style="bold")
    return text


def search_pane(progress: Progress) -> Panel:
    """What has been found so far."""
    rows: list[RenderableType] = [strip(progress)]
    for slo in progress.plan.slos:
        low, high = bracket(progress.history, slo.name)
        line = Text(f"{slo.name}: ", style="bold")
        line.append(f"passes {low if low is not None else '–'}, fails {high if high is not None else '–'}")
        line.append(f"   {slo}", style="dim")
        rows.append(line)
    if progress.interrupts:
        rows.append(Text("finishing this level, then reporting; Ctrl-C again stops now", style="bold yellow"))
    return Panel(Group(*rows), title="search", title_align="left", border_style="cyan")


def level_pane(progress: Progress, snap: Snapshot | None) -> Panel:
    """The level that is being held."""
    state = progress.current
    if state is None or snap is None:
        return Panel(Text("…"), title="level", title_align="left")
    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_column(style="dim")
    grid.add_column()
    floor = next((t.limit for s in progress.plan.slos for t in s.terms if t.metric == "speed"), None)
    ceiling = next((t.limit for s in progress.plan.slos for t in s.terms if t.metric == "ttft"), None)
    doubt = ("≈" if snap.suspect else "") + ("~" if snap.estimated else "")
    speed = doubt + _number(snap.p25_speed, " tok/s") + (f"  (≥ {floor:g})" if floor is not None else "")
    ttft = _seconds(snap.p95_ttft) + (f"  (≤ {ceiling:g} s)" if ceiling is not None else "")
    grid.add_row("agents", f"{snap.agents}", "p25 speed", _against(speed, snap.p25_speed, floor, above=True))
    grid.add_row("decoding", f"{snap.open - snap.first_token}", "p95 TTFT", _against(ttft, snap.p95_ttft, ceiling))
    grid.add_row("waiting for first token", f"{snap.first_token}", "cache hit", _share(snap.cached_share))
    errors = Text(f"{snap.failed}", style="red" if snap.failed else "")
    grid.add_row("in tool wait", f"{snap.waiting}", "requests / errors", Text(f"{snap.ended} / ").append_text(errors))
    eta = "" if snap.eta_s is None else f", about {max(0.0, snap.eta_s):.0f} s to the next look"
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=1.0, completed=snap.share_done, width=32),
        Text(f"{PHASES[snap.phase]} for {snap.elapsed_s:.0f} s{eta}"),
    )
    title = f"level {state.level} (probe {state.probe}: {state.why})"
    lines = [*_streams(snap), *_server(progress)]
    return Panel(Group(grid, *lines, bar), title=title, title_align="left", border_style="blue")


def _server(progress: Progress) -> list[Text]:
    """One line of what the server's own metrics page says: now, and of the last level that it spoke of."""
    if not progress.server.on:
        return []
    line = Text("server   ", style="dim")
    now = progress.server.latest
    if now is None:
        line.append("is asked once the window opens", style="dim")
    else:
        line.append(
            f"running {_number(now.running, digits=0)}   waiting {_number(now.waiting, digits=0)}", style="none"
        )
        line.append(f"   KV in use {_share(now.kv_usage)}", style="none")
    told = next((o for o in reversed(progress.history) if o.server and o.server.ttft_difference_s is not None), None)
    if told is not None and told.server is not None:
        difference = f"{(told.server.ttft_difference_s or 0.0) * 1e3:+.1f} ms"
        line.append(f"   at {told.level}: client's mean TTFT {difference} against the server's", style="dim")
    return [line]


def _streams(snap: Snapshot) -> list[Text]:
    """One line about the streams: the largest gap, and what is odd."""
    line = Text("streams  ", style="dim")
    line.append(f"largest gap {_seconds(snap.largest_gap_s)}", style="none")
    for odd in snap.streams:
        line.append(f"   {odd}", style="yellow")
    if snap.suspect:
        line.append("   suspect: speeds and TTFTs are those of a buffer", style="bold yellow")
    return [line]


def _against(text: str, value: float | None, limit: float | None, *, above: bool = False) -> Text:
    if value is None or limit is None:
        return Text(text)
    return Text(text, style="green" if (value >= limit if above else value <= limit) else "red")


def health_pane(snap: Snapshot | None) -> Panel:
    """Whether this machine can be believed."""
    if snap is None:
        return Panel(Text("…"), title="client", title_align="left")
    colour = {"ok": "green", "warn": "yellow", "invalid": "red"}[snap.health]
    line = Text()
    line.append(f"{snap.health}  ", style=f"bold {colour}")
    line.append(
        f"loop lag p99 {_seconds(snap.lag_p99_s)}   send delay p99 {_seconds(snap.send_delay_p99_s)}   "
        f"CPU {_share(snap.cpu_max)}, here {_share(snap.parent_cpu)}   "
        f"in flight / wanted {_share(snap.in_flight_ratio)}   "
        f"memory {_number(snap.rss_bytes / 1e6 if snap.rss_bytes else None, ' MB', 0)}   "
        f"sockets {snap.sockets or '–'}   files {snap.fds or '–'}   start skew {_seconds(snap.skew_s)}   "
        f"blocked {_share(snap.blocked_share)}"
    )
    rows: list[RenderableType] = [line, *(Text(reason, style=colour) for reason in snap.reasons)]
    return Panel(Group(*rows), title="client", title_align="left", border_style=colour)


class LiveView:
    """Three panes that are redrawn a few times a second."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._drawn = 0.0

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, value, trace)

    def update(self, progress: Progress) -> None:
        """Redraw, at most four times a second."""
        now = time.monotonic()
        if now - self._drawn < REFRESH_S:
            return
        self._drawn = now
        snap = take(progress.current, progress.plan.slos) if progress.current is not None else None
        self._live.update(
            Group(
                Text(self._title, style="bold"),
                search_pane(progress),
                level_pane(progress, snap),
                health_pane(snap),
            )
        )


class PlainView:
    """One line when a level has its verdict; nothing in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = 0
        self._warned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(self, progress: Progress) -> None:
        """Tell what is new."""
        for outcome in progress.history[self._told :]:
            self._console.print(level_line(outcome), markup=False)
            for warning in outcome.warnings:
                self._console.print(f"warning: level {outcome.level}: {warning}", markup=False)
        self._told = len(progress.history)
        if progress.interrupts == 1 and progress.current is not None and not self._warned:
            self._warned = True
            self._console.print(f"finishing level {progress.current.level}, then reporting; Ctrl-C again stops now")
