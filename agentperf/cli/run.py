"""`agentperf run`: options only; `execute.py` does it."""

from pathlib import Path
from typing import Annotated, Any

import typer

_ENDPOINT = "Endpoint"
_LOAD = "Load"
_SEARCH = "Search"
_OUTPUT = "Output"


def run(
    *,
    endpoint: Annotated[
        str,
        typer.Option(help="Base URL (http://host:8000/v1), or sim:PROFILE.", rich_help_panel=_ENDPOINT),
    ],
    model: Annotated[
        str | None, typer.Option(help="Model name; else the only one served.", rich_help_panel=_ENDPOINT)
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the key.", rich_help_panel=_ENDPOINT)
    ] = "OPENAI_API_KEY",
    header: Annotated[
        list[str] | None, typer.Option(help="Extra header 'Name: value'; repeatable.", rich_help_panel=_ENDPOINT)
    ] = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for the endpoint to come up.", rich_help_panel=_ENDPOINT)
    ] = 0.0,
    ca_file: Annotated[
        Path | None, typer.Option(help="CA certificates to trust, PEM.", rich_help_panel=_ENDPOINT)
    ] = None,
    insecure: Annotated[bool, typer.Option(help="Do not verify TLS.", rich_help_panel=_ENDPOINT)] = False,
    trust_env: Annotated[bool, typer.Option(help="Use ambient proxy variables.", rich_help_panel=_ENDPOINT)] = False,
    transport: Annotated[
        str, typer.Option(help="timed, or httpx (slower, proxies).", rich_help_panel=_ENDPOINT)
    ] = "timed",
    connect_timeout: Annotated[float, typer.Option(help="Seconds.", rich_help_panel=_ENDPOINT)] = 10.0,
    first_byte_timeout: Annotated[float, typer.Option(help="Seconds; 0: none.", rich_help_panel=_ENDPOINT)] = 600.0,
    stall_timeout: Annotated[
        float, typer.Option(help="Seconds without a byte; 0: none.", rich_help_panel=_ENDPOINT)
    ] = 300.0,
    slo: Annotated[
        list[str] | None,
        typer.Option(help="80tps, a tier, or 'p25 speed >= 80, p95 ttft <= 2s'; repeatable.", rich_help_panel=_SEARCH),
    ] = None,
    protocol: Annotated[str, typer.Option(help="quick or sweep.", rich_help_panel=_SEARCH)] = "quick",
    levels: Annotated[str | None, typer.Option(help="Sweep these: 1,2,4,8.", rich_help_panel=_SEARCH)] = None,
    concurrency: Annotated[int | None, typer.Option(help="Hold this one level.", rich_help_panel=_SEARCH)] = None,
    duration: Annotated[
        str | None, typer.Option(help="Fixed window of a level: 90s, 10m, 1h.", rich_help_panel=_SEARCH)
    ] = None,
    max_agents: Annotated[int, typer.Option(help="Never more agents.", rich_help_panel=_SEARCH)] = 1024,
    start: Annotated[int, typer.Option(help="First level.", rich_help_panel=_SEARCH)] = 1,
    resolution: Annotated[
        str | None, typer.Option(help="Bracket width: agents (2) or share (2%).", rich_help_panel=_SEARCH)
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time for the whole search: 30m.", rich_help_panel=_SEARCH)] = None,
    warmup_max: Annotated[str, typer.Option(help="Longest warm-up of a level.", rich_help_panel=_SEARCH)] = "3m",
    window_min: Annotated[str, typer.Option(help="Shortest window of a level.", rich_help_panel=_SEARCH)] = "10s",
    window_max: Annotated[str, typer.Option(help="Longest window of a level.", rich_help_panel=_SEARCH)] = "5m",
    traces: Annotated[
        str | None, typer.Option(help="Trace set: file, folder, coding-v1, smoke.", rich_help_panel=_LOAD)
    ] = None,
    history: Annotated[str, typer.Option(help="recorded, or live.", rich_help_panel=_LOAD)] = "recorded",
    output_length: Annotated[str, typer.Option(help="auto, natural, exact, max.", rich_help_panel=_LOAD)] = "auto",
    time_scale: Annotated[float, typer.Option(help="Factor on recorded waits.", rich_help_panel=_LOAD)] = 1.0,
    cache_salt: Annotated[str, typer.Option(help="play, level, run, none.", rich_help_panel=_LOAD)] = "play",
    context: Annotated[
        int | None, typer.Option(help="Served context in tokens, if not told.", rich_help_panel=_LOAD)
    ] = None,
    context_rule: Annotated[str, typer.Option(help="Too long sessions: cut or drop.", rich_help_panel=_LOAD)] = "cut",
    extra_body: Annotated[
        str | None, typer.Option(help="JSON object added to each body.", rich_help_panel=_LOAD)
    ] = None,
    workers: Annotated[str, typer.Option(help="Load processes: auto or a number.", rich_help_panel=_LOAD)] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of order, entry points, salts.", rich_help_panel=_LOAD)] = 0,
    out: Annotated[Path, typer.Option(help="Folder for run directories.", rich_help_panel=_OUTPUT)] = Path("results"),
    name: Annotated[str | None, typer.Option(help="Name of the run.", rich_help_panel=_OUTPUT)] = None,
    deployment: Annotated[
        Path | None, typer.Option(help="TOML about the deployment, kept.", rich_help_panel=_OUTPUT)
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Print plan and time, send no load.", rich_help_panel=_OUTPUT)] = False,
    plain: Annotated[bool, typer.Option(help="One line a level, no live view.", rich_help_panel=_OUTPUT)] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.", rich_help_panel=_OUTPUT)] = False,
) -> None:
    """Find how many agents an endpoint carries within an SLO, with the curve."""
    given: dict[str, Any] = dict(locals())
    from agentperf.cli.execute import execute
    from agentperf.cli.options import RunOptions

    raise typer.Exit(int(execute(RunOptions.read(given))))
