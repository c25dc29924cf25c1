"""The whole series, one benchmark behind another, with the parameters that agentperf is held to; tables into one file.

    python -m benchmarks.all --out results.md --server truthserver.c

It takes about 25 minutes on a quiet machine, ten of them the endurance run (`--endurance-minutes`). The file is written
anew after each benchmark, so what was measured stays when it is interrupted. Exits with 1 when a bound was missed, else
with 2 when something is missing.
"""

import argparse
import datetime as dt
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients import ROOT
from benchmarks.figures import markdown
from benchmarks.truth import VARIABLE, TruthServerError, find

LIMIT_S = 900.0
"""Of one benchmark, beside the minutes of the endurance run."""
PACKAGES = ("httpx", "uvloop", "httptools", "msgspec", "anyio")
ALL_CLIENTS = "agentperf,agentperf-2,httpx,aiohttp,transport,bare,aiperf"
SOME_CLIENTS = "agentperf,agentperf-2,aiohttp,bare"


@dataclass(frozen=True, slots=True)
class Step:
    """One benchmark with its arguments."""

    name: str
    title: str
    module: str
    arguments: tuple[str, ...] = ()
    needs_server: bool = True

    @property
    def command(self) -> str:
        """As one would type it."""
        return " ".join(["python -m", f"benchmarks.{self.module}", *self.arguments])


@dataclass(frozen=True, slots=True)
class Done:
    """What one came to."""

    step: Step
    code: int
    output: str
    seconds: float

    @property
    def verdict(self) -> str:
        """By the exit code."""
        return {0: "within", 1: "MISSED", 2: "missing"}.get(self.code, f"broke ({self.code})")


def _accuracy(name: str, title: str, streams: int, tps: int, clients: str, seconds: float, *more: str) -> Step:
    arguments = ("--streams", str(streams), "--tps", str(tps), "--seconds", f"{seconds:g}", "--clients", clients, *more)
    return Step(name, title, "accuracy", arguments)


def steps(*, endurance_minutes: float, quick: bool, without: Iterable[str]) -> list[Step]:
    """The series in order; `quick` shortens every window, to see that all of it runs."""
    s = 2.0 if quick else 10.0
    left_out = set(without)

    def of(names: str) -> str:
        return ",".join(n for n in names.split(",") if n not in left_out)

    peers = of("agentperf,httpx,aiohttp,bare")
    four = ("--tokens-per-event", "4")
    minutes = 0.1 if quick else endurance_minutes
    return [
        Step("startup", "Start", "startup", ("--runs", "3" if quick else "10"), needs_server=False),
        Step("bodies", "Bodies", "bodies", ("--requests", "50" if quick else "300"), needs_server=False),
        _accuracy("256x50", "256 streams x 50 tok/s", 256, 50, of(ALL_CLIENTS), s),
        _accuracy("1000x50", "1,000 streams x 50 tok/s", 1000, 50, of(ALL_CLIENTS), s),
        _accuracy("1840x20", "1,840 streams x 20 tok/s", 1840, 20, of(SOME_CLIENTS), s),
        _accuracy("512x80", "512 streams x 80 tok/s, one token an event", 512, 80, of(SOME_CLIENTS), s),
        _accuracy("512x80x4", "512 streams x 80 tok/s, four tokens an event", 512, 80, of(SOME_CLIENTS), s, *four),
        Step("connections", "2,000 fresh connections at once", "connections",
             ("--connections", "200" if quick else "2000", "--clients", peers)),
        Step("in_flight", "1,000 agents without tool waits", "in_flight",
             ("--streams", "1000", "--seconds", f"{s:g}", "--clients", of("agentperf,agentperf-2"))),
        Step("overload", "More than one load process can drive", "overload",
             ("--streams", "4000", "--tps", "80", "--seconds", f"{0.8 * s:g}")),
        Step("memory", "Memory of an agent", "memory",
             ("--agents", "20" if quick else "100,1000", "--naive", "20" if quick else "100",
              "--seconds", "1" if quick else "3")),
        Step("endurance", "256 agents with large prompts, for minutes", "endurance", ("--minutes", f"{minutes:g}")),
    ]  # fmt: skip


def run(step: Step, server: Path | None, limit_s: float) -> Done:
    """One benchmark as a process of its own; what it prints is shown as it comes, and kept."""
    command = [sys.executable, "-m", f"benchmarks.{step.module}", *step.arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if server is not None:
        environment[VARIABLE] = str(server)
    began = time.monotonic()
    said: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                said.append(line)
                if time.monotonic() - began > limit_s:
                    process.terminate()
            code = process.wait(30)
        except BaseException:
            process.terminate()
            raise
    return Done(step, code, "".join(said), time.monotonic() - began)


def machine() -> str:
    """One line on what it was measured on."""
    model = platform.processor() or platform.machine()
    try:
        names = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    except OSError:
        pass
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return (
        f"{os.cpu_count()} cores ({model}), {platform.system()} {platform.release()}; "
        f"Python {platform.python_version()}, {versions}"
    )


def document(done: Sequence[Done], when: str, where: str) -> str:
    """The file: a table of verdicts, then each benchmark with its command and what it printed."""
    parts = ["# Benchmarks of the client", "", f"Measured at {when} on {where}.", ""]
    rows = [["benchmark", "bounds", "took"]]
    rows += [[d.step.title, d.verdict, f"{d.seconds:.0f} s"] for d in done]
    parts += [markdown(rows), ""]
    for d in done:
        parts += [f"## {d.step.title}", "", f"    {d.step.command}", "", d.output.strip(), ""]
    return "\n".join(parts)


def code_of(done: Sequence[Done]) -> int:
    """1 when a bound was missed or a benchmark broke, else 2 when something was missing."""
    codes = {d.code for d in done}
    if codes - {0, 2}:
        return 1
    return 2 if 2 in codes else 0


def _arguments(argv: list[str] | None) -> tuple[argparse.Namespace, list[Step]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.all", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="file for the tables (Markdown)")
    parser.add_argument("--server", help=f"C source or binary of the truth server (or ${VARIABLE})")
    parser.add_argument("--endurance-minutes", type=float, default=10.0, help="of the endurance run (default 10)")
    parser.add_argument("--only", default="", help="names of benchmarks, separated by commas")
    parser.add_argument("--without", default="", help="clients that are left out, such as aiperf")
    parser.add_argument("--quick", action="store_true", help="short windows: to see that all of it runs")
    options = parser.parse_args(argv)
    series = steps(endurance_minutes=options.endurance_minutes, quick=options.quick, without=options.without.split(","))
    if options.only:
        names = options.only.split(",")
        unknown = sorted(set(names) - {step.name for step in series})
        if unknown:
            parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(step.name for step in series)}")
        series = [step for step in series if step.name in names]
    if not options.out.resolve().parent.is_dir():
        parser.error(f"the folder of {options.out} does not exist")
    return options, series


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 within all bounds, 1 not, 2 when something is missing."""
    options, series = _arguments(argv)
    server: Path | None = None
    if any(step.needs_server for step in series):
        try:
            server = find(options.server).resolve()
        except TruthServerError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    when = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    done: list[Done] = []
    for step in series:
        print(f"\n=== {step.title}: {step.command}\n", flush=True)
        done.append(run(step, server, LIMIT_S + 60 * options.endurance_minutes))
        options.out.write_text(document(done, when, machine()))
    print(f"\n{options.out}: {', '.join(f'{d.step.name} {d.verdict}' for d in done)}")
    return code_of(done)


if __name__ == "__main__":
    sys.exit(main())
