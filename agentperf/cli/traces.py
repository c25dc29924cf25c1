"""`agentperf traces`: show, validate, synth, import."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentperf.errors import UsageError

if TYPE_CHECKING:
    from agentperf.trace.model import TraceSet
    from agentperf.trace.stats import TraceStats

app = typer.Typer(name="traces", help="Trace sets: what is in them, are they right, make them.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Out = Annotated[
    Path, typer.Option("--out", "-o", help="File to write: .jsonl, .jsonl.gz or .jsonl.zst.", show_default=False)
]


@app.command()
def show(
    file: Annotated[str, typer.Argument(help="A file, a folder, or the name of a bundled set.")],
    json: Json = False,
) -> None:
    """What a trace set holds: sessions, turns, languages, sizes, waits, tools, ideal prefix hit, licence."""
    from agentperf.trace.io import load
    from agentperf.trace.stats import describe

    with _progress("reading") as step:
        stats = describe(load(file, step))
    if json:
        _print_json(stats)
    else:
        _show(stats)


@app.command()
def validate(
    file: Annotated[str, typer.Argument(help="A file, a folder, or the name of a bundled set.")],
    json: Json = False,
) -> None:
    """Check a trace set against every rule of the format; one line a problem, exit 2 when there is an error."""
    from agentperf.trace.io import resolve
    from agentperf.trace.validate import validate as check

    with _progress("checking") as step:
        problems = check(resolve(file), step)
    errors = sum(p.severity == "error" for p in problems)
    warnings = len(problems) - errors
    if json:
        _print_json({"errors": errors, "warnings": warnings, "problems": problems})
    else:
        for problem in problems:
            typer.echo(str(problem))
        typer.echo(f"{file}: {_many(errors, 'error')}, {_many(warnings, 'warning')}", err=True)
    if errors:
        raise typer.Exit(2)


@app.command()
def synth(
    out: Out,
    name: Annotated[str | None, typer.Argument(help="A bundled set to make again: coding-v1 or smoke.")] = None,
    profile: Annotated[str | None, typer.Option(help="The same as NAME, as an option.")] = None,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal bytes.")] = 0,
    json: Json = False,
) -> None:
    """Make a synthetic trace set with the sizes and waits of a profile."""
    from agentperf.trace.io import write

    maker = import_module("agentperf.trace.synth")

    if (name is None) == (profile is None):
        raise UsageError(
            "say which set to make: either NAME or --profile", "for example: traces synth smoke -o my.jsonl.zst"
        )
    with _spinner("making the set"):
        trace_set = write(maker.make(str(name or profile), seed), out)
    _wrote(trace_set, out, json, {})


@app.command(name="import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Files or folders of recorded sessions.")],
    out: Out,
    format: Annotated[str, typer.Option(help="auto, or a name such as claude-code or weka.")] = "auto",  # noqa: A002
    json: Json = False,
) -> None:
    """Turn sessions that another tool recorded into a trace set, and say what was estimated or left out."""
    from agentperf.trace.io import write
    from agentperf.trace.stats import describe

    for file in files:
        if not file.exists():
            raise UsageError(f"{file}: no such file")
    reader = _importer(format, files)
    with _spinner(f"importing {_many(len(files), 'path')}"):
        result = reader.read(files, None)
        trace_set = write(result.trace_set, out)
    if json:
        _wrote(trace_set, out, json, {"report": result.report})
        return
    _report(result.report)
    _wrote(trace_set, out, json, {})
    _show(describe(trace_set))


def _importer(name: str, files: list[Path]) -> Any:
    formats: dict[str, str] = import_module("agentperf.trace.importers").FORMATS
    modules = {key: import_module(path) for key, path in formats.items() if name in (key, "auto")}
    known = ", ".join(formats)
    if name != "auto":
        if not modules:
            raise UsageError(f"--format {name}: no such format", f"one of: auto, {known}")
        return modules[name]
    fits = [key for key, module in modules.items() if all(module.detect(f) for f in files)]
    if len(fits) != 1:
        what = "no known format" if not fits else f"could be any of {', '.join(fits)}"
        raise UsageError(f"{files[0]}: {what}", f"name it with --format; known: {known}")
    return modules[fits[0]]


def _wrote(trace_set: "TraceSet", out: Path, json: bool, more: dict[str, Any]) -> None:
    counts = trace_set.header.counts
    size = out.stat().st_size
    if json:
        _print_json({"out": str(out), "bytes": size, "digest": trace_set.digest, "counts": counts, **more})
        return
    made = f"{_many(counts.sessions, 'session')}, {_many(counts.requests, 'request')}"
    typer.echo(
        f"wrote {out}: {made}, {counts.input_tokens:,} prompt tokens, {_bytes(size)}, digest {trace_set.digest[:12]}"
    )


def _report(report: Any) -> None:
    """What an importer estimated and left out, as one table."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="import report", title_justify="left", pad_edge=False)
    table.add_column("what", overflow="fold")
    table.add_column("", overflow="fold")
    for path, value in _rows(_plain(report)):
        table.add_row(path, f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
    _console().print(table)


def _rows(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _rows(item, f"{path}: {key}" if path else str(key).replace("_", " "))
    elif isinstance(value, list):
        for item in value:
            yield from _rows(item, path) if isinstance(item, dict) else [(path, item)]
    elif value is not None:
        yield path, value


def _show(stats: "TraceStats") -> None:
    console = _console()
    for label, value in _facts(stats):
        console.print(f"[bold]{label:<12}[/bold] ", end="")
        console.print(value, markup=False, highlight=False, soft_wrap=True)
    console.print(_sizes_table(stats))
    if stats.tools:
        console.print(_tools_table(stats))


def _facts(stats: "TraceStats") -> list[tuple[str, str]]:
    """Labelled lines above the tables."""
    licence = stats.license or "none given"
    may = "redistributable" if stats.redistributable else "not marked as redistributable"
    facts = [
        ("trace set", f"{stats.trace_set_id}  ({stats.content} content, digest {stats.digest[:12]})"),
        ("about", stats.description or ""),
        ("licence", f"{licence}, {may}"),
        ("attribution", stats.attribution or ""),
        ("sessions", f"{stats.sessions:,} in {_many(stats.trees, 'tree')}, {_many(stats.subagents, 'subagent')}"),
        (
            "requests",
            f"{stats.requests:,}: {stats.input_tokens_total:,} prompt tokens in, {stats.output_tokens_total:,} out",
        ),
        ("languages", ", ".join(f"{name} {n}" for name, n in stats.languages.items())),
        ("prefix hit", _prefix_fact(stats)),
        ("tools", _tools_fact(stats)),
        ("counts by", f"input: {_shares(stats.input_sources)}; output: {_shares(stats.output_sources)}"),
        ("waits", _shares(stats.delay_sources)),
        ("triggers", _shares(stats.triggers)),
    ]
    return [(label, text) for label, text in facts if text]


def _prefix_fact(stats: "TraceStats") -> str:
    if stats.ideal_prefix_hit is None or stats.prefix_given_share is None:
        return ""
    given = stats.prefix_given_share
    source = "from the file" if given == 1 else "derived" if given == 0 else f"{given:.0%} from the file, else derived"
    return f"{stats.ideal_prefix_hit:.1%} of prompt tokens with an unbounded cache ({source})"


def _tools_fact(stats: "TraceStats") -> str:
    if stats.parallel_share is None or stats.failed_tool_share is None:
        return ""
    parallel = f"{stats.parallel_share:.1%} of the turns after tools had several at once"
    return f"{_many(stats.tool_calls, 'call')}, {stats.failed_tool_share:.1%} failed; {parallel}"


def _sizes_table(stats: "TraceStats") -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    names = ("n", "mean", "p10", "p50", "p90", "p95", "p99", "max")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    tokens, seconds = _tokens, _seconds
    rows: list[tuple[str, Any, Callable[[float], str]]] = [
        ("turns/session", stats.turns, tokens),
        ("input tok", stats.input_tokens, tokens),
        ("output tok", stats.output_tokens, tokens),
        ("append tok", stats.append_tokens, tokens),
        ("reasoning tok", stats.reasoning_tokens, tokens),
        ("tool wait s", stats.tool_wait_ms, seconds),
        ("human wait s", stats.human_wait_ms, seconds),
    ]
    for label, quantiles, form in rows:
        if quantiles.n:
            table.add_row(label, f"{quantiles.n:,}", *(form(getattr(quantiles, name)) for name in names[1:]))
    return table


def _tools_table(stats: "TraceStats") -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name, side in (
        ("tool", "left"),
        ("calls", "right"),
        ("share", "right"),
        ("failed", "right"),
        ("p50 s", "right"),
    ):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    shown = stats.tools[:20]
    for tool in shown:
        p50 = "" if tool.p50_ms is None else _seconds(tool.p50_ms)
        share, failed = tool.calls / stats.tool_calls, tool.failed / tool.calls
        table.add_row(tool.name, f"{tool.calls:,}", f"{share:.1%}", f"{failed:.1%}", p50)
    if rest := stats.tools[20:]:
        table.add_row(f"{len(rest)} more", f"{sum(t.calls for t in rest):,}", "", "", "")
    return table


def _tokens(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _seconds(ms: float) -> str:
    value = ms / 1000
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _shares(counts: dict[str, int]) -> str:
    total = sum(counts.values())
    return ", ".join(f"{name} {n / total:.0%}" for name, n in counts.items())


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def _bytes(n: int) -> str:
    return f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n / 1e3:.1f} kB"


def _plain(value: Any) -> Any:
    import dataclasses

    import msgspec

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return msgspec.to_builtins(value, str_keys=True)


def _print_json(value: Any) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(_plain(value)), indent=2).decode())


def _console() -> Any:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(100, console.width))


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar of bytes read, on a terminal only; yields what the reader calls."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _spinner(what: str) -> Iterator[None]:
    """A moving bar with the time gone by, on a terminal only, for work that cannot say how far it is."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(what, total=None)
        yield
