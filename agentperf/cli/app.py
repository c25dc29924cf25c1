"""The `agentperf` command. Modules of commands import what is heavy only when they run, so `--help` is fast."""

from typing import Annotated

import typer

from agentperf import __version__
from agentperf.cli import console
from agentperf.cli.calibrate import calibrate
from agentperf.cli.plan import plan
from agentperf.cli.report import report
from agentperf.cli.run import run
from agentperf.cli.sim import app as sim_app
from agentperf.cli.tiers import tiers
from agentperf.cli.traces import app as traces_app

app = typer.Typer(
    name="agentperf",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run)
app.command("plan")(plan)
app.command("report")(report)
app.command("calibrate")(calibrate)
app.command("tiers")(tiers)
app.add_typer(traces_app, name="traces", help="Show, validate, make and import trace sets.")
app.add_typer(sim_app, name="sim", help="The simulated inference server.")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"agentperf {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How many coding agents can an LLM serving deployment carry while each still gets the speed it was promised?"""
    del version
    console.set_verbose(verbose=verbose)


def main() -> None:
    """Entry point of the command."""
    with console.one_line_errors():
        app()
