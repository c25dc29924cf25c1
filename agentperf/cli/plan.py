"""`agentperf plan`: what a server would have to be like. Searches variants of a profile in virtual time."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from agentperf.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from agentperf.cli.variants import Found, Variant
    from agentperf.run.conductor import Progress
    from agentperf.run.plan import Plan
    from agentperf.slo.model import Slo

LABEL = "virtual"


def plan(
    *,
    profile: Annotated[str, typer.Argument(help="A bundled profile (see `agentperf sim profiles`), or a TOML file.")],
    slo: Annotated[str, typer.Option(metavar="SLO", help="80tps, a tier, or terms.")] = "80tps",
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LIST", help="kv_pool_tokens=0.5x,1x,2x or replicas=1,2,4; repeatable."),
    ] = None,
    grid: Annotated[bool, typer.Option("--grid", help="All combinations, instead of each parameter alone.")] = False,
    traces: Annotated[str, typer.Option(metavar="SET", help="File, folder, coding-v1, or smoke.")] = "coding-v1",
    max_agents: Annotated[int, typer.Option(min=1, metavar="N", help="Never more agents.")] = 1024,
    resolution: Annotated[str, typer.Option(metavar="N", help="Bracket width: 2, or 2%.")] = "2%",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Common to all variants.")] = 0,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw capacity against each parameter; PNG and SVG.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Show how capacity depends on a server's parameters, by searches in virtual time: nothing is sent anywhere."""
    from agentperf.cli import console
    from agentperf.cli.variants import Workloads, read_vary, search, variants
    from agentperf.sim.profile import load_profile
    from agentperf.slo.tiers import resolve

    base, wanted = load_profile(profile), resolve(slo)
    varied = [read_vary(text, base) for text in vary or []]
    cases = variants(base, varied, grid=grid)
    search_plan = _plan(wanted, max_agents, resolution)
    workloads = Workloads(traces)
    found: list[Found] = []
    err = console.stderr()
    for number, case in enumerate(cases, 1):
        title = f"[{LABEL}] {base.name} {number}/{len(cases)}: {named(case)}"
        with _Line(err, title) as view:
            found.append(search(case, search_plan, workloads, seed, view))
        err.print(f"{title}: {_agents(found[-1])}", style="dim", markup=False)
        if found[-1].interrupted:
            break
    if json:
        head = {"virtual": True, "profile": base.name, "slo": str(wanted), "traces": traces, "seed": seed}
        console.stdout().print(jsonlib.dumps({**head, "rows": [f.as_json() for f in found]}), markup=False)
    else:
        _show(found, base.name, wanted)
    if figure is not None:
        from agentperf.cli.plan_figure import draw

        for path in draw(found, f"{base.name}: agents at {wanted.name}", figure):
            err.print(f"wrote {path}", style="dim", markup=False)
    raise typer.Exit(int(_exit_code(found)))


def _agents(found: "Found") -> str:
    answer = "undecided" if found.capacity is None else f"{found.capacity:,} agents"
    return f"{answer} ({found.reason}; {found.virtual_s / 60:.0f} min in {found.wall_s:.1f} s)"


def _exit_code(found: "list[Found]") -> ExitCode:
    """0 when every variant has an answer, be it 0 agents; 3 when one could not be decided; 130 when interrupted."""
    if any(f.interrupted for f in found):
        return ExitCode.INTERRUPTED
    return ExitCode.OK if all(f.capacity is not None for f in found) else ExitCode.INCONCLUSIVE


def _plan(slo: "Slo", max_agents: int, resolution: str) -> "Plan":
    from agentperf.cli.options import read_resolution
    from agentperf.measure.window import WindowSettings
    from agentperf.run.plan import Plan
    from agentperf.search.model import SearchSettings
    from agentperf.slo.verdict import Rules

    window = WindowSettings()
    settings = SearchSettings(slos=(slo.name,), max_agents=max_agents, resolution=read_resolution(resolution) or 0.02)
    return Plan(
        protocol="quick", slos=(slo,), window=window, rules=Rules(min_requests=window.first_look), search=settings
    )


def named(variant: "Variant") -> str:
    """What is changed, in words."""
    return ", ".join(f"{name} = {value:,.10g}" for name, value in variant.changes) or "as it is"


class _Line:
    """Progress of one search: the level that runs, on a terminal; then one line with what was found."""

    def __init__(self, out: "Console", title: str) -> None:
        from rich.text import Text

        self._text = Text
        self._out = out
        self._title = title
        self._status = out.status(Text(title)) if out.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, progress: "Progress") -> None:
        """Called whenever something happened."""
        if self._status is None:
            return
        levels = " ".join(str(o.level) for o in progress.history)
        running = f" -> {progress.current.level}" if progress.current is not None else ""
        self._status.update(self._text(f"{self._title}  levels {levels}{running}"))


def _show(found: "list[Found]", profile: str, slo: "Slo") -> None:
    from rich.table import Table

    from agentperf.cli import console

    def text(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    table = Table(box=None, pad_edge=False, title=f"{profile}, {slo} ({LABEL})", title_justify="left")
    table.add_column("variant", no_wrap=True)
    for name in ("agents", "passes", "fails", "against base", "per accelerator", "p25 tok/s", "p95 TTFT", "cache hit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why it ended")
    base = found[0].capacity
    for f in found:
        against = f.capacity / base if base and f.capacity is not None else None
        table.add_row(
            named(f.variant),
            text(f.capacity, ",d"),
            text(f.largest_pass, ",d"),
            text(f.smallest_fail, ",d"),
            "–" if against is None else f"{against:.2f}x",
            text(f.per_accelerator, ".2f"),
            text(f.p25_speed, ".1f"),
            "–" if f.p95_ttft is None else f"{f.p95_ttft:.2f} s",
            "–" if f.cached_share is None else f"{f.cached_share:.1%}",
            f.reason,
        )
    out = console.stdout()
    if not out.is_terminal:
        out.width = 200  # a file has room
    out.print(table)
    virtual, wall = sum(f.virtual_s for f in found), sum(f.wall_s for f in found)
    out.print(f"{virtual / 60:.0f} min of virtual time in {wall:.0f} s; speed, TTFT and hit at the passing level")
