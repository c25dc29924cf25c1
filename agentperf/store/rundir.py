"""The run directory, written by a run and read by everything else. Its files and columns: docs/run-directory.md.

manifest.json     what was asked and found before the first request
events.jsonl      journal: one line an event, forced to the disk
records.arrows    records so far, append-only; replaced at the end by
records.parquet   all records
summary.json      answers and levels; written last
"""

import datetime as dt
import fcntl
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from agentperf.clock import NowNs, monotonic_ns
from agentperf.errors import UsageError
from agentperf.measure.record import Record
from agentperf.store.files import cannot_write, sync_directory, to_json, write_all, write_atomic
from agentperf.store.phases import windows_of, with_phases
from agentperf.store.schema import SCHEMA
from agentperf.store.secrets import known_literals, scrub, scrub_text
from agentperf.store.stream import RecordStream, read_batches, rewrite_stream, write_parquet
from agentperf.store.summary import summarise_run

MANIFEST: Final = "manifest.json"
EVENTS: Final = "events.jsonl"
STREAM: Final = "records.arrows"
PARQUET: Final = "records.parquet"
SUMMARY: Final = "summary.json"

FLUSH_ROWS: Final = 1_000
"""Rows of one write, about 20 ms: while a level runs the event loop of this process does not stand still for longer."""
FLUSH_NS: Final = 1_000_000_000
_MOST_PLAIN: Final = 256
_FREE_TEXT: Final = ("error", "notes", "finish_reason")
"""Columns in which a server may echo what it was sent."""


def slug(name: str) -> str:
    """A name as part of a file name: letters and digits of any script, at most 80 characters and 200 bytes."""
    composed = unicodedata.normalize("NFC", name)
    kept = re.sub(r"[^\w.-]+", "-", composed).strip("-.")[:80]
    while len(kept.encode("utf-8", "replace")) > 200:  # file systems bound a name's bytes
        kept = kept[:-1]
    return kept or "run"


def check_writable(out: Path) -> None:
    """UsageError when no run directory could be made in `out`; makes nothing itself."""
    there = out.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UsageError(f"--out {out}: {there} is not a directory", "choose another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"--out {out}: {there} is not writable", "choose another --out")


def default_directory(out: Path, name: str, now: dt.datetime | None = None) -> Path:
    """`out/20261201T093000Z-name`, with a number behind it when that is taken. `now` is an aware time."""
    moment = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
    base = out / f"{moment:%Y%m%dT%H%M%SZ}-{slug(name)}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


class RunWriter:
    """Writes one run directory; what was flushed survives kill -9. Every method raises ClientError on a full disk."""

    def __init__(
        self, directory: Path, secrets: Iterable[str] = (), clock: NowNs = monotonic_ns, *, again: bool = False
    ) -> None:
        self.directory = directory
        self._secrets = known_literals(secrets)
        self._plain: set[str] = set()
        """Texts in which nothing was found: most records repeat a few of them."""
        self._clock = clock
        self._manifest: dict[str, Any] = {}
        self._events: list[dict[str, Any]] = []
        self._buffer: list[Record] = []
        self._flushed_ns = clock()
        self._closed = False
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (0 if again else os.O_EXCL)
        self._journal_fd = os.open(directory / EVENTS, flags, 0o600)
        try:
            _lock(self._journal_fd, directory)
            if again:
                self._take_up()
            self._stream = RecordStream(directory / STREAM, again=again)
        except BaseException:
            os.close(self._journal_fd)
            raise

    @classmethod
    def create(cls, directory: Path, *, secrets: Iterable[str] = (), clock: NowNs = monotonic_ns) -> Self:
        """Make the directory (mode 0700) and open its files. UsageError when it exists and holds something.

        `secrets` are values (keys, header values) that must not be written even where a server echoes them.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if any(directory.iterdir()):
                raise UsageError(f"{directory} exists and is not empty", "choose another --out")
            directory.chmod(0o700)  # mkdir's mode is cut by the umask, and the directory may have been there
            return cls(directory, secrets, clock)
        except OSError as error:
            raise UsageError(f"cannot make {directory}: {error.strerror or error}", "choose another --out") from error

    @classmethod
    def reopen(cls, directory: Path, *, secrets: Iterable[str] = (), clock: NowNs = monotonic_ns) -> Self:
        """Go on writing a run that was interrupted or killed. Nothing that is there is lost.

        UsageError when it is no run, or when somebody is writing it now.
        """
        try:
            return cls(read_run(directory).directory, secrets, clock, again=True)
        except OSError as error:
            raise UsageError(f"cannot write {directory}: {error.strerror or error}") from error

    def _take_up(self) -> None:
        """Make the directory that of a run that goes on: whole journal lines, and the records as a stream again."""
        run = Run(self.directory)
        self._manifest, self._events = run.manifest, list(run.events)
        text = os.pread(self._journal_fd, os.fstat(self._journal_fd).st_size, 0)
        os.ftruncate(self._journal_fd, text.rfind(b"\n") + 1)  # a torn last line is no event
        parquet = self.directory / PARQUET
        rewrite_stream(parquet if parquet.exists() else None, self.directory / STREAM)
        for name in (PARQUET, SUMMARY):
            (self.directory / name).unlink(missing_ok=True)

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Write manifest.json, whole or not at all, without secrets."""
        self._manifest = self._clean(manifest)
        write_atomic(self.directory / MANIFEST, to_json(self._manifest, indent=2) + b"\n")

    def as_written(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """A manifest as `write_manifest` would write it: plain JSON, without secrets."""
        return self._clean(manifest)

    def journal(self, event: dict[str, Any]) -> None:
        """Append one line and force it to the disk. The records it may speak of are written before it."""
        self.flush()
        clean = self._clean(event)
        try:
            write_all(self._journal_fd, to_json(clean) + b"\n")
            os.fsync(self._journal_fd)
        except OSError as error:
            raise cannot_write(self.directory / EVENTS, error) from error
        self._events.append(clean)

    def add(self, records: Sequence[Record]) -> None:
        """Take records; they are on disk after 1,000 of them or at the first call a second later."""
        self._buffer.extend(records)
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Write up to 1,000 records when a second has passed since the last time, or that many wait."""
        if len(self._buffer) >= FLUSH_ROWS or self._clock() - self._flushed_ns >= FLUSH_NS:
            self._flushed_ns = self._clock()
            self._write_some()

    def flush(self) -> None:
        """Write what waits. When that fails, it goes on waiting."""
        self._flushed_ns = self._clock()
        while self._buffer:
            self._write_some()

    def _write_some(self) -> None:
        if self._buffer:
            self._stream.append([self._clean_record(r) for r in self._buffer[:FLUSH_ROWS]])
            del self._buffer[:FLUSH_ROWS]

    def finish(self, summary: dict[str, Any] | None = None) -> dict[str, Any]:
        """Close the run: records.parquet, then summary.json last. Returns the summary; a second call changes nothing.

        Without a summary it is made from the manifest and the journal.
        """
        if summary is None:
            summary = summarise_run(self._manifest, self._events)
        clean = self._clean(summary)
        if self._closed:
            return clean
        self._closed = True
        try:
            self.flush()
        finally:
            os.close(self._journal_fd)
            self._stream.close()
        stream = self.directory / STREAM
        write_parquet(stream, self.directory / PARQUET, windows_of(self._events))
        stream.unlink()
        sync_directory(self.directory)
        write_atomic(self.directory / SUMMARY, to_json(clean, indent=2) + b"\n")
        return clean

    def _clean(self, value: dict[str, Any]) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(to_json(value))
        cleaned: dict[str, Any] = scrub(plain, self._secrets)
        return cleaned

    def _clean_record(self, record: Record) -> Record:
        found: dict[str, str] = {}
        for name in _FREE_TEXT:
            text = getattr(record, name)
            if not text or text in self._plain:
                continue
            if (clean := scrub_text(text, self._secrets)) != text:
                found[name] = clean
            elif len(self._plain) < _MOST_PLAIN:
                self._plain.add(text)
        return msgspec.structs.replace(record, **found) if found else record


def _lock(fd: int, directory: Path) -> None:
    """One writer a directory; the lock goes with the process. A file system without locks has none."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"{directory} is being written by another agentperf", "wait for it, or stop it") from error
    except OSError:
        return


@dataclass(frozen=True)
class Run:
    """A run directory, read when asked; complete, partial or still growing."""

    directory: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """manifest.json, or an empty mapping when the run ended before it."""
        return _read_json(self.directory / MANIFEST) or {}

    @cached_property
    def _journal(self) -> tuple[list[dict[str, Any]], int]:
        return _read_lines(self.directory / EVENTS)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The journal so far. A torn last line is no event yet."""
        return self._journal[0]

    @property
    def unreadable_events(self) -> int:
        """Lines before the last one that are no JSON objects: the file was damaged after it was written."""
        return self._journal[1]

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """summary.json; None while it is not there."""
        return _read_json(self.directory / SUMMARY)

    def summarised(self) -> dict[str, Any]:
        """summary.json, or what can be said from the journal so far."""
        return self.summary or summarise_run(self.manifest, self.events)

    @property
    def complete(self) -> bool:
        """Whether the run came to its own end and everything is written."""
        return bool(self.summary and self.summary.get("complete"))

    def records(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All records written so far, phases set. The columns are those of the schema, or the named ones."""
        table = self._table(columns)
        extra = {"probe", "t0_ns"} - set(columns or SCHEMA.names)
        return table.drop_columns(sorted(extra)) if extra else table

    def _table(self, columns: Sequence[str] | None) -> pa.Table:
        needed = None if columns is None else list(dict.fromkeys([*columns, "probe", "t0_ns"]))
        parquet, stream = self.directory / PARQUET, self.directory / STREAM
        for read in (_from_parquet, _from_stream, _from_parquet):  # a finishing run swaps the files between two looks
            path = stream if read is _from_stream else parquet
            try:
                return with_phases(read(path, needed), windows_of(self.events))
            except FileNotFoundError:
                continue
        empty = SCHEMA.empty_table()
        return empty if needed is None else empty.select(needed)


def _from_parquet(path: Path, columns: list[str] | None) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            return file.read(columns=columns)
    except (pa.ArrowInvalid, pa.ArrowException) as error:
        raise UsageError(f"{path} cannot be read: {error}", "restore it from a copy of the run") from error


def _from_stream(path: Path, columns: list[str] | None) -> pa.Table:
    select: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda b: b if columns is None else b.select(columns)  # noqa: E731
    batches = [select(batch) for batch in read_batches(path)]
    if batches:
        return pa.Table.from_batches(batches)
    return SCHEMA.empty_table() if columns is None else SCHEMA.empty_table().select(columns)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "restore it from a copy of the run") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no JSON object", "restore it from a copy of the run")
    return value


def _read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Events, and the number of lines before the last that are none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    *lines, _torn = data.split(b"\n")
    events: list[dict[str, Any]] = []
    bad = 0
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict):
            events.append(event)
        else:
            bad += 1
    return events, bad


def read_run(directory: Path) -> Run:
    """Open a run directory. UsageError when it is none."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory", "give the directory that `agentperf run` named")
    if not any((directory / name).exists() for name in (MANIFEST, EVENTS, STREAM, PARQUET, SUMMARY)):
        raise UsageError(f"{directory} holds no run", "give the directory that `agentperf run` named")
    run = Run(directory)
    if not run.manifest and (directory / MANIFEST).exists():
        raise UsageError(f"{directory / MANIFEST} says nothing of a run", "restore it from a copy of the run")
    return run
