"""The truth server of the accuracy benchmark: compiled, run on a core of its own, and its log read back.

It is a C program that is no part of this repository (see README.md here): a paced OpenAI-compatible stream server which
logs, per request, when it handed the first and the last token to its socket, by the clock that clients stamp with.
"""

import contextlib
import csv
import os
import selectors
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.cores import cpu_of
from benchmarks.venvs import MissingError
from benchmarks.work import Work

VARIABLE = "AGENTPERF_TRUTHSERVER"
"""Environment variable with the path of the server's source (`.c`) or binary."""

START_S = 10.0


class TruthServerError(MissingError):
    """The truth server cannot be found, compiled or started; one line with the remedy."""


@dataclass(frozen=True, slots=True)
class TruthRow:
    """One request as the server saw it; stamps are ns of CLOCK_MONOTONIC, 0 where the moment never came."""

    id: str
    outcome: str
    t_head: int
    t_recv: int
    """The request was fully received."""
    t_first: int
    """The first token was handed to the socket."""
    t_last: int
    """The last token was handed to the socket."""
    t_done: int
    s_first: int
    """The deadline that `t_first` should have met; the difference is the server's own lateness."""
    s_last: int
    tokens: int
    chunks: int
    """Events with text that it sent."""

    @property
    def first_tokens(self) -> int:
        """Tokens of the first event; a reply here is a multiple of the tokens of an event."""
        return self.tokens // self.chunks if self.chunks else self.tokens

    @property
    def speed_tps(self) -> float | None:
        """(tokens - those of the first event) / (t_last - t_first) in tok/s; None without two events or an end."""
        if self.outcome != "ok" or self.chunks < 2 or self.t_last <= self.t_first:
            return None
        return (self.tokens - self.first_tokens) * 1e9 / (self.t_last - self.t_first)


@dataclass(frozen=True, slots=True)
class TruthServer:
    """A running truth server; `log` is whole only after it has ended."""

    port: int
    pid: int
    log: Path

    @property
    def base_url(self) -> str:
        """Base URL of its API."""
        return f"http://127.0.0.1:{self.port}/v1"

    def cpu_s(self) -> float:
        """CPU time that it has used; 0 where the system does not tell."""
        return cpu_of(self.pid)


def find(given: str | None) -> Path:
    """The path given on the command line, else by the environment variable. TruthServerError when there is none."""
    text = given or os.environ.get(VARIABLE)
    if not text:
        raise TruthServerError(f"no truth server: pass --server PATH, or set {VARIABLE}, to its C source or binary")
    path = Path(text)
    if not path.is_file():
        raise TruthServerError(f"the truth server {path} does not exist")
    return path


def build(source: Path, folder: Path) -> Path:
    """An executable: `source` itself unless it is a `.c` file, which is compiled into `folder`."""
    if source.suffix != ".c":
        return source.resolve()
    compiler = shutil.which("cc")
    if compiler is None:
        raise TruthServerError("no C compiler: install one that answers to cc, or pass a binary to --server")
    binary = folder / "truthserver"
    command = [compiler, "-O2", "-o", str(binary), str(source), "-lm"]
    made = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120)
    if made.returncode != 0:
        raise TruthServerError(f"cc does not compile {source.name}: {made.stderr.strip()[:300]}")
    return binary


@contextlib.contextmanager
def truth_server(
    binary: Path,
    log: Path,
    *,
    ttft_ms: float,
    tps: float,
    tokens: int,
    core: int | None,
    lifetime_s: float,
    tokens_per_event: int = 1,
    prefix_cache: bool = True,
) -> Iterator[TruthServer]:
    """Run the server on `core` until the context ends, and in no case longer than `lifetime_s`.

    Without its model of a prefix cache it does not look at bodies, which saves it time with large ones.
    """
    options = {"port": 0, "ttft-ms": ttft_ms, "tps": tps, "tokens": tokens, "log": log, "exit-after": lifetime_s}
    if tokens_per_event != 1:
        options["tokens-per-chunk"] = tokens_per_event
    if not prefix_cache:
        options["cache-ktok"] = 0
    command = [str(binary), *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            yield TruthServer(_port_of(process), process.pid, log)
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def server_of(work: Work, binary: Path, log: Path, core: int | None) -> contextlib.AbstractContextManager[TruthServer]:
    """The server that paces this work."""
    return truth_server(
        binary,
        log,
        ttft_ms=work.ttft_ms,
        tps=work.tps,
        tokens=work.tokens,
        core=core,
        lifetime_s=work.lifetime_s,
        tokens_per_event=work.tokens_per_event,
    )


def _port_of(process: "subprocess.Popen[bytes]") -> int:
    """The port out of its first line, `listening on HOST:PORT pid N`."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline().decode() if selector.select(START_S) else ""
    words = line.split()
    if not line.startswith("listening on ") or ":" not in words[2]:
        raise TruthServerError(f"the truth server does not start: {line.strip() or 'it says nothing'}")
    return int(words[2].rpartition(":")[2])


def read_log(path: Path) -> dict[str, TruthRow]:
    """Rows by request id. ValueError for an id that occurs twice: the join would be ambiguous."""
    rows: dict[str, TruthRow] = {}
    names = [f.name for f in fields(TruthRow)]
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            values = {n: line[n] if n in ("id", "outcome") else int(line[n]) for n in names}
            row = TruthRow(**values)  # type: ignore[arg-type]
            if row.id in rows:
                raise ValueError(f"the server's log has the request {row.id} twice")
            rows[row.id] = row
    return rows
