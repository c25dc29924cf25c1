"""What every importer takes and gives: options, the trace set, and a report of what was estimated or left out."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from agentperf import __version__
from agentperf.errors import TraceError
from agentperf.trace.model import Counts, Header, SessionTrace, TraceSet

IMPORTER_VERSION = 1
MAX_WARNINGS = 1000
"""Warnings kept with their text; the rest are only counted."""


class ImportOptions(Struct, kw_only=True, frozen=True):
    """What a user may say about the files."""

    license: str | None = None
    """SPDX expression of the recording; None leaves it open, nobody may assume one."""
    attribution: str | None = None
    trace_set_id: str | None = None
    """Default: the name of the first file or folder."""
    chars_per_token: float = 3.3
    """For sizes that the recording lacks. Measured on real Claude Code sessions: 2.9 to 3.5 by kind of text."""


class ImportReport(Struct, kw_only=True):
    """What became of the model calls of the files: `requests + sum(left_out) == requests_seen`.

    A call that two files hold counts twice in `requests_seen` and once in `left_out`.
    """

    format: str
    files: int = 0
    sessions: int = 0
    requests_seen: int = 0
    requests: int = 0
    estimated: dict[str, int] = field(default_factory=dict)
    """Values that are not in the files as such, by reason."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Model calls that were not imported, by reason."""
    ignored: dict[str, int] = field(default_factory=dict)
    """Lines and parts that belong to no model call, or cannot be read, by reason."""
    noted: dict[str, int] = field(default_factory=dict)
    """Oddities of the recording that were imported as they are, by kind."""
    warnings_count: int = 0
    warnings: list[str] = field(default_factory=list)
    """`file:line: what`, the first MAX_WARNINGS of them."""

    def estimate(self, reason: str, n: int = 1) -> None:
        """Count values that had to be estimated."""
        _add(self.estimated, reason, n)

    def leave_out(self, reason: str, n: int = 1) -> None:
        """Count model calls that are not imported."""
        _add(self.left_out, reason, n)

    def ignore(self, reason: str, n: int = 1) -> None:
        """Count lines and parts that are not used."""
        _add(self.ignored, reason, n)

    def note(self, kind: str, n: int = 1) -> None:
        """Count oddities that were kept."""
        _add(self.noted, kind, n)

    def warn(self, file: str, line: int, what: str) -> None:
        """Say what is wrong at a place."""
        self.warnings_count += 1
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(f"{file}:{line}: {what}")


class ImportResult(Struct, kw_only=True):
    """A trace set, counts filled in and not yet written, and what became of the recording."""

    trace_set: TraceSet
    report: ImportReport


class SourceFile(Struct, kw_only=True, frozen=True):
    """A file that was read: its name without folders that may name a person, and its hash."""

    name: str
    sha256: str


def _add(counts: dict[str, int], reason: str, n: int) -> None:
    if n:
        counts[reason] = counts.get(reason, 0) + n


def read_bytes(path: Path) -> bytes:
    """A whole file. Raises TraceError with the reason of the system."""
    try:
        return path.read_bytes()
    except OSError as e:
        raise TraceError(f"{path}: cannot be read: {e.strerror or e}") from None


def source_file(name: str, data: bytes) -> SourceFile:
    """Name and hash of what was read."""
    return SourceFile(name=name, sha256=hashlib.sha256(data).hexdigest())


def read_head(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a file, empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def any_file(path: Path, pattern: str, fits: Callable[[Path], bool], most: int = 20) -> bool:
    """Whether the path is a file that fits, or a folder with one among its first `most` files of that name pattern."""
    if not path.is_dir():
        return path.is_file() and fits(path)
    return any(fits(p) for p in sorted(path.rglob(pattern))[:most])


def finish(
    sessions: list[SessionTrace],
    files: list[SourceFile],
    report: ImportReport,
    options: ImportOptions,
    header: dict[str, Any],
) -> ImportResult:
    """The set with its header: where it comes from, what it counts. `header` holds the fields of the format at hand."""
    requests = [r for s in sessions for r in s.requests]
    report.files, report.sessions, report.requests = len(files), len(sessions), len(requests)
    source = {
        "format": report.format,
        **header.pop("source", {}),
        "importer_version": IMPORTER_VERSION,
        "import_options": msgspec.to_builtins(options),
        "warnings_count": report.warnings_count,
    }
    if len(files) == 1:
        source |= {"uri": files[0].name, "sha256": files[0].sha256}
    else:
        source["files"] = [{"uri": f.name, "sha256": f.sha256} for f in files]
    made = Header(
        **{
            "trace_set_id": options.trace_set_id or header.pop("trace_set_id"),
            "generator": {"name": "agentperf", "version": __version__},
            "license": options.license,
            "attribution": options.attribution,
            "redistributable": False,
            "privacy": {"redacted": False},
            "source": source,
            "counts": Counts(
                sessions=len(sessions),
                requests=len(requests),
                input_tokens=sum(r.input_tokens for r in requests),
                output_tokens=sum(r.output_tokens for r in requests),
            ),
            **{k: v for k, v in header.items() if k != "trace_set_id"},
        }
    )
    return ImportResult(trace_set=TraceSet(header=made, blobs={}, sessions=sessions), report=report)
