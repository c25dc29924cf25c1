"""`agentperf calibrate`: how many streams can this machine's client drive, and with what error?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from agentperf.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from agentperf.yardstick.calibration import Calibration, RateResult
    from agentperf.yardstick.figures import Figures
    from agentperf.yardstick.measure import Settings

_BUDGET = 360.0
_QUICK = {"window_s": 1.5, "resolution": 0.25}
_QUICK_BUDGET = 120.0


def calibrate(
    *,
    rates: Annotated[str, typer.Option(metavar="LIST", help="Tokens per second of each stream.")] = "20,50,80,200",
    workers: Annotated[
        str, typer.Option(metavar="LIST", help="Load processes: 1, or 1,2. auto: 1, and half of the cores.")
    ] = "auto",
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="In all: 6m, 2m with --quick.", show_default=False)
    ] = None,
    max_streams: Annotated[int, typer.Option(min=1, metavar="N", help="Never more streams.")] = 8192,
    window: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of each probe: 3s, 1.5s with --quick.", show_default=False)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short windows, to within 25 % instead of 10 %, in 2 minutes.")
    ] = False,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Keep it for run --dry-run to quote.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Measure how many streams this machine's client drives with TTFT errors <= 5 ms and speed errors <= 0.5 % at p99.

    The load processes of `run` are held against a built-in server that stamps each token it sends. Loopback only.
    """
    from agentperf.yardstick.measure import Settings, most_streams

    short = _QUICK if quick else {}
    counts = read_workers(workers)
    settings = Settings(
        rates=read_rates(rates),
        workers=counts,
        max_streams=most_streams(max_streams, min(counts)),
        budget_s=_duration("--budget", budget, _QUICK_BUDGET if quick else _BUDGET),
        window_s=_duration("--window", window, short.get("window_s", 3.0)),
        resolution=short.get("resolution", 0.1),
    )
    raise typer.Exit(int(_run(settings, save=save, json=json)))


def read_rates(text: str) -> tuple[float, ...]:
    """`20,50` -> ascending rates, each once."""
    try:
        found = sorted({float(part) for part in text.split(",") if part.strip()})
    except ValueError:
        found = []
    if not found or not all(1 <= rate <= 1000 for rate in found):
        raise UsageError(f"--rates {text!r} is no list of rates from 1 to 1000 tok/s", "write it as 20,50,80,200")
    return tuple(found)


def read_workers(text: str) -> tuple[int, ...]:
    """`auto`, or `1,2` -> ascending numbers of load processes."""
    if text == "auto":
        from agentperf.yardstick.cores import usable_cores

        # Each load process is matched by a reference server, so only half of the cores can be load processes.
        return tuple(sorted({1, max(1, len(usable_cores()) // 2)}))
    try:
        found = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > 256:
        raise UsageError(f"--workers {text!r} is neither auto nor a list of numbers from 1 to 256", "write it as 1,2")
    return tuple(found)


def _duration(flag: str, text: str | None, default: float) -> float:
    from agentperf.cli.options import seconds

    return default if text is None else seconds(flag, text)


def _run(settings: "Settings", *, save: bool, json: bool) -> ExitCode:
    import anyio

    from agentperf.cli import console
    from agentperf.yardstick import measure

    out = console.stderr()
    _say_plan(settings, out)
    progress = measure.Progress()
    interrupted = False
    try:
        anyio.run(
            measure.calibrate, settings, progress, lambda f: _say_probe(f, out), backend_options={"use_uvloop": True}
        )
    except KeyboardInterrupt:
        interrupted = True
        out.print("interrupted: what was measured so far is shown, and not kept", style="yellow")
    found = measure.document(settings, progress)
    if save and not interrupted:
        _keep(found, out)
    if json:
        import msgspec

        console.stdout().print(msgspec.json.encode(found).decode(), markup=False, soft_wrap=True)
    else:
        show(found, console.stdout())
    if interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if found.results and all(r.streams for r in found.results) else ExitCode.INCONCLUSIVE


def _keep(found: "Calibration", out: "Console") -> None:
    from agentperf.yardstick.calibration import load, merged, save
    from agentperf.yardstick.machine import cache_file

    path = cache_file()
    save(path, merged(load(path), found))
    out.print(f"kept in {path}; run --dry-run quotes it", style="dim", markup=False)


def _say_plan(settings: "Settings", out: "Console") -> None:
    from agentperf.yardstick.cores import split_cores, usable_cores

    rates = ", ".join(f"{rate:g}" for rate in settings.rates)
    counts = ", ".join(map(str, settings.workers))
    out.print(f"calibrating at {rates} tok/s with {counts} load process(es), {settings.budget_s / 60:.1f} min at most")
    cores = usable_cores()
    for workers in settings.workers:
        if split_cores(cores, workers) is None:
            out.print(
                f"warning: {workers} load processes and as many reference servers share {len(cores)} core(s), so expect"
                " less than the client can do",
                style="yellow",
            )


def _say_probe(f: "Figures", out: "Console") -> None:
    style = {"pass": "green", "fail": "red", "server": "yellow"}[f.verdict]
    facts = [
        f"TTFT error p99 {_ms(f.ttft_error_p99_ms)}",
        f"speed error p99 {_percent(f.speed_error_p99)}",
        f"{f.requests} requests",
        f"in flight {f.in_flight:,.1f}",
        f"{_us(f.us_per_event)}/event",
        f"{_share(f.cpu_share)} of a core",
        f"lag {_ms(f.loop_lag_p99_ms)}",
    ]
    if f.disturbed and f.other_cores is not None:
        facts.append(f"other work {f.other_cores:.2f} cores")
    head = f"{f.tps:g} tok/s  {f.workers} x  {f.level:>5} streams  [{style}]{f.verdict:<6}[/]"
    out.print(f"{head}  {', '.join(facts)}")
    for reason in f.reasons:
        out.print(f"  {reason}", style="dim", markup=False)


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} us"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms" if value < 100 else f"{value:,.0f} ms"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.3%}"


def _streams(result: "RateResult") -> str:
    if not result.streams:
        return "no"
    return f"{'at least ' if result.at_least else ''}{result.streams:,}"


_LIMITS = {
    "client": "the client is the limit",
    "server": "the reference server is the limit",
    "max-streams": "--max-streams is the limit",
    "budget": "--budget ended the search",
    "error": "the load processes failed",
    "interrupted": "the search was interrupted",
}


def _limit(result: "RateResult") -> str:
    """One line below the table."""
    parts = [_LIMITS[result.limit]]
    if result.smallest_miss:
        beside = ", beside other work: a quiet machine may do more" if result.disturbed else ""
        parts.append(f"missed at {result.smallest_miss:,}{beside}")
    if result.error:
        parts.append(result.error)
    processes = f"{result.workers} load process{'es' if result.workers != 1 else ''}"
    return f"{result.tps:g} tok/s, {processes}: {_streams(result)} streams; {'; '.join(parts)}"


_COLUMNS = ("tok/s", "procs", "streams", "events/s", "TTFT err", "speed err", "CPU/event")


def _row(result: "RateResult") -> Sequence[str]:
    best = result.best
    head = [f"{result.tps:g}", str(result.workers), _streams(result)]
    if best is None:
        return [*head, *["-"] * 4]
    return [
        *head,
        f"{best.events_per_s:,.0f}",
        _ms(best.ttft_error_p99_ms),
        _percent(best.speed_error_p99),
        _us(best.us_per_event),
    ]


def show(found: "Calibration", out: "Console") -> None:
    """The table, and below it what qualifies it."""
    from rich.table import Table

    bounds = found.bounds
    out.print(found.machine.line, markup=False)
    out.print(
        f"streams held with p99 TTFT error <= {bounds.ttft_error_p99_ms:g} ms and p99 speed error"
        f" <= {bounds.speed_error_p99:.1%}, by load processes (procs)"
    )
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for result in found.results:
        table.add_row(*_row(result))
    out.print(table)
    for result in found.results:
        out.print(_limit(result), style="yellow" if result.disturbed or result.error else None, markup=False)
    for hose in found.firehose:
        cost = "" if hose.us_per_event is None else f", {_us(hose.us_per_event)} of CPU each"
        out.print(
            f"firehose, {hose.workers} load process(es), {hose.streams} streams:"
            f" {hose.events_per_s:,.0f} events/s{cost}",
            style="dim",
        )
