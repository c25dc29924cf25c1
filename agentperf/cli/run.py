"""`agentperf run`: options only; `execute.py` does it."""

from pathlib import Path
from typing import Annotated, Any

import typer


def _of(panel: str, metavar: str | None, text: str, *names: str) -> Any:
    """An option of a help panel; a flag has no metavar."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel)


def _endpoint(metavar: str | None, text: str, *names: str) -> Any:
    return _of("Endpoint", metavar, text, *names)


def _search(metavar: str | None, text: str, *names: str) -> Any:
    return _of("Search", metavar, text, *names)


def _load(metavar: str | None, text: str, *names: str) -> Any:
    return _of("Load", metavar, text, *names)


def _output(metavar: str | None, text: str, *names: str) -> Any:
    return _of("Output", metavar, text, *names)


def run(
    *,
    context_of_call: typer.Context,
    endpoint: Annotated[str | None, _endpoint("URL", "http://host:8000/v1, sim:P, virtual:P.")] = None,
    model: Annotated[str | None, _endpoint("NAME", "Else the only one served.")] = None,
    api_key_env: Annotated[str, _endpoint("NAME", "Variable with the key.")] = "OPENAI_API_KEY",
    header: Annotated[list[str] | None, _endpoint("LINE", "'Name: value', repeatable.")] = None,
    wait: Annotated[float, _endpoint("S", "Wait for it to come up.")] = 0.0,
    ca_file: Annotated[Path | None, _endpoint("FILE", "CA certificates, PEM.")] = None,
    insecure: Annotated[bool, _endpoint(None, "Do not verify TLS.", "--insecure")] = False,
    trust_env: Annotated[bool, _endpoint(None, "Obey proxy variables.", "--trust-env")] = False,
    transport: Annotated[str, _endpoint("NAME", "Or httpx.")] = "timed",
    connect_timeout: Annotated[float, _endpoint("S", "To a connection.")] = 10.0,
    first_byte_timeout: Annotated[float, _endpoint("S", "0: none.")] = 600.0,
    stall_timeout: Annotated[float, _endpoint("S", "Between bytes.")] = 300.0,
    metrics_url: Annotated[list[str] | None, _endpoint("URL", "Metrics pages; or --no-metrics.")] = None,
    no_metrics: Annotated[bool, typer.Option("--no-metrics", hidden=True)] = False,
    slo: Annotated[list[str] | None, _search("SLO", "80tps, a tier, or terms; repeatable.")] = None,
    protocol: Annotated[str, _search("NAME", "Or aa, sweep.")] = "quick",
    levels: Annotated[str | None, _search("LIST", "Sweep these: 1,2,4,8.")] = None,
    concurrency: Annotated[int | None, _search("N", "Hold this one level.")] = None,
    duration: Annotated[str | None, _search("TIME", "Fixed window: 90s, 10m, 1h.")] = None,
    max_agents: Annotated[int, _search("N", "Never more agents.")] = 1024,
    start: Annotated[int, _search("N", "First level.")] = 1,
    resolution: Annotated[str | None, _search("N", "Bracket width: 2, or 2% (default 1%).")] = None,
    budget: Annotated[str | None, _search("TIME", "For the whole search: 30m.")] = None,
    warmup_max: Annotated[str, _search("TIME", "Longest warm-up.")] = "3m",
    window_min: Annotated[str, _search("TIME", "Shortest window.")] = "10s",
    window_max: Annotated[str, _search("TIME", "Longest window.")] = "5m",
    traces: Annotated[str | None, _load("SET", "File, folder, coding-v1, or smoke.")] = None,
    history: Annotated[str, _load("KIND", "Or live.")] = "recorded",
    output_length: Annotated[str, _load("KIND", "Or natural, exact, max.")] = "auto",
    time_scale: Annotated[float, _load("X", "Factor on recorded waits.")] = 1.0,
    cache_salt: Annotated[str, _load("KIND", "Or level, run, none.")] = "play",
    context: Annotated[int | None, _load("N", "Served context in tokens.")] = None,
    context_rule: Annotated[str, _load("RULE", "Too long sessions; or drop.")] = "cut",
    extra_body: Annotated[str | None, _load("JSON", "Object added to each body.")] = None,
    workers: Annotated[str, _load("N", "Load processes.")] = "auto",
    seed: Annotated[int, _load("N", "Of order, entries, salts.")] = 0,
    out: Annotated[Path, _output("DIR", "Folder for run directories.")] = Path("results"),
    name: Annotated[str | None, _output("NAME", "Name of the run.")] = None,
    resume: Annotated[Path | None, _output("DIR", "Take an interrupted run up again.")] = None,
    deployment: Annotated[Path | None, _output("FILE", "TOML, kept in the manifest.")] = None,
    dry_run: Annotated[bool, _output(None, "Print the plan, send no load.", "--dry-run")] = False,
    plain: Annotated[bool, _output(None, "One line a level, no live view.", "--plain")] = False,
    json: Annotated[bool, _output(None, "Print the summary as JSON.", "--json")] = False,
) -> None:
    """Find how many agents an endpoint carries within an SLO, with the curve."""
    given: dict[str, Any] = dict(locals())
    said = {name for name in given if _was_said(given["context_of_call"], name)}
    from agentperf.cli.options import RunOptions
    from agentperf.cli.resume import taken_up

    if resume is not None:
        given, said = taken_up(given, said, resume)
    options = RunOptions.read(given, said)  # what is wrong is told before the heavy imports
    from agentperf.cli.execute import execute

    raise typer.Exit(int(execute(options)))


def _was_said(context: typer.Context, name: str) -> bool:
    """Whether an option stood on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
