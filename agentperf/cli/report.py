"""`agentperf report`: tables and figures of a run directory."""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from agentperf.cli import console


def report(
    directory: Annotated[Path, typer.Argument(help="A run directory; it may be partial or still growing.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where report.md and figures go; default: the run directory.", show_default=False),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON document, and write nothing.")
    ] = False,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw the curves as PNG and SVG.")] = True,
) -> None:
    """Show the answers of a run and its levels; write report.md and the figures."""
    from agentperf.report.write import show_run, write_report
    from agentperf.store.rundir import read_run

    run = read_run(directory)
    if json:
        typer.echo(jsonlib.dumps(run.summarised(), allow_nan=False, ensure_ascii=False, indent=2))
        return
    screen = console.stdout()
    show_run(run, screen)
    for path in write_report(directory, out, figures=figures):
        screen.print(f"wrote {path}", style="dim", markup=False)
