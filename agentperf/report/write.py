"""Report of a run directory: on the screen, and as report.md with figures. Works on partial and growing runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentperf.errors import UsageError
from agentperf.report.points import Curve, curve_points
from agentperf.report.tables import Report, make_report, show, to_markdown
from agentperf.report.words import label_of
from agentperf.store.files import write_atomic
from agentperf.store.rundir import Run, read_run, slug

if TYPE_CHECKING:
    from rich.console import Console

REPORT: Final = "report.md"
_TRACE_FACTS: Final = ("id", "sessions", "requests", "license", "digest")


def report_of(run: Run) -> Report:
    """The report of a run as cells."""
    bad = run.unreadable_events
    problems = [f"unreadable lines of the journal, left out: {bad}"] if bad else []
    summary = run.summarised()
    return make_report(summary, problems, _unjudged(run, summary))


def _unjudged(run: Run, summary: dict[str, Any]) -> int | None:
    """Records of the probe that has begun and not ended; None where there is none."""
    unfinished = summary.get("unfinished")
    if unfinished is None:
        return None
    return int((run.records(["probe"]).column("probe").to_numpy() == unfinished["probe"]).sum())


def show_run(run: Run, console: "Console") -> None:
    """Print answers, table, verdicts and warnings."""
    show(report_of(run), console)


def write_report(run_dir: Path, out: Path | None = None, *, figures: bool = True) -> list[Path]:
    """Write report.md and the figures into the run directory, or into `out`. Returns the files written."""
    run = read_run(run_dir)
    target = out or run_dir
    summary = run.summarised()
    written: list[Path] = []
    pictures: list[tuple[str, str]] = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        if figures and summary["levels"]:
            written, pictures = _write_figures(summary, target)
    except OSError as error:
        raise UsageError(f"cannot write to {target}: {error.strerror or error}", "choose another --out") from error
    text = to_markdown(report_of(run), pictures, _facts(run, summary))
    title = f"# {run.manifest.get('name') or run_dir.name}\n\n"
    write_atomic(target / REPORT, (title + text).encode("utf-8", "backslashreplace"))
    return [target / REPORT, *written]


def _write_figures(summary: dict[str, Any], target: Path) -> tuple[list[Path], list[tuple[str, str]]]:
    """One scaling curve for each SLO, one picture of throughput."""
    from agentperf.report.figures import save, scaling_figure, throughput_figure

    slos = [a["slo"] for a in summary["answers"]] or [None]
    written: list[Path] = []
    pictures: list[tuple[str, str]] = []
    for number, slo in enumerate(slos, 1):
        curve = curve_points(summary, slo)
        stem = "scaling" if len(slos) == 1 else f"scaling-{number}-{slug(slo or '')}"
        written += save(scaling_figure(curve), target / stem)
        pictures.append((_alt(curve), f"{stem}.svg"))
    written += save(throughput_figure(curve_points(summary, slos[0])), target / "throughput")
    pictures.append(("Throughput against the speed of each agent", "throughput.svg"))
    return written, pictures


def _alt(curve: Curve) -> str:
    label = f" ({curve.label})" if curve.label else ""
    return f"Speed and time to first token by number of agents: {curve.title}{label}"


def _facts(run: Run, summary: dict[str, Any]) -> Sequence[tuple[str, str]]:
    manifest = run.manifest
    traces = manifest.get("trace_set") or {}
    host = manifest.get("host") or {}
    facts = {
        "endpoint": (summary["endpoint"] or "") + (f" ({label})" if (label := label_of(summary)) else ""),
        "model": summary["model"],
        "protocol": summary["protocol"],
        "trace set": ", ".join(
            f"{k} {traces[k]}" for k in ("id", "sessions", "requests", "license", "digest") if k in traces
        ),
        "server metrics": _pages(manifest.get("server_metrics")),
        "workload fingerprint": summary["workload_fingerprint"],
        "seed": manifest.get("seed"),
        "started": summary["started_at"],
        "finished": summary["finished_at"],
        "measured from": ", ".join(f"{k} {v}" for k, v in host.items() if v is not None),
        "agentperf": manifest.get("agentperf_version"),
    }
    choices = [("decided for this endpoint", text) for text in manifest.get("choices") or ()]
    return [(k, str(v)) for k, v in facts.items() if v not in (None, "")] + choices


def _pages(found: dict[str, Any] | None) -> str | None:
    """The metrics pages that were read and their engines, or why there are none; None in older manifests."""
    if not found:
        return None
    said = [f"{p['url']} ({', '.join(p['engines']) or p['reason']})" for p in found.get("pages") or ()]
    return "; ".join(said) or f"none: {found.get('reason')}"
