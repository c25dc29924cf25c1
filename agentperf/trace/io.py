"""Trace sets on disk: JSON Lines, plain or compressed (.gz, .zst), a file or a folder of files.

Reading goes by magic bytes and is a stream: memory is bounded by the longest line (`iter_records`) or by the set itself
(`load`). Writing goes by suffix, gives the same bytes for the same set in any process, and replaces the target only
when everything is written. `docs/trace-format.md` is the reference.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from agentperf.errors import TraceError
from agentperf.paths import data_dir
from agentperf.trace.codec import BlobType, LineError, blob_id, blob_type, decode_record, encode_record
from agentperf.trace.merge import Builder, merge_parts
from agentperf.trace.model import Blob, Counts, Header, Request, Session, TraceRecord, TraceSet

__all__ = ["Writer", "blob_id", "iter_records", "load", "resolve", "sealed", "trace_files", "write"]

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
MAX_LINE = 1 << 28
"""Bytes of the longest line that is read: 256 MiB, a guard against files that are no JSON Lines at all."""
_CHUNK = 4 << 20
# One frame of the compressed file holds this much text, so that memory stays bounded; levels are part of the bytes.
_LEVELS = {"gzip": 6, "zstd": 12}

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all) of the files as they lie on disk."""


def resolve(path: str | Path) -> Path:
    """The file or folder that a user's word names: a path, or the name of a bundled set (`smoke`, `coding-v1`)."""
    given = Path(path)
    if given.exists():
        return given
    if len(given.parts) == 1:
        for suffix in SUFFIXES:
            bundled = data_dir("traces") / f"{given.name}{suffix}"
            if bundled.is_file():
                return bundled
    raise TraceError(f"{path}: no such trace set", f"give a file, a folder, or one of: {', '.join(bundled_names())}")


def bundled_names() -> list[str]:
    """Names of the sets that come with agentperf."""
    return sorted({_stem(p) for p in data_dir("traces").glob("*.jsonl*") if p.name.endswith(SUFFIXES)})


def _stem(path: Path) -> str:
    return path.name[: path.name.index(".jsonl")]


def trace_files(path: Path) -> list[Path]:
    """The files of a trace set: the path itself, or what a folder holds, by name. Raises TraceError when empty."""
    if not path.is_dir():
        return [path]
    files = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES) and not p.name.startswith("."))
    if not files:
        raise TraceError(f"{path}: no trace file in this folder", f"expected files named *{', *'.join(SUFFIXES)}")
    return files


class PlaceError(TraceError):
    """A fault with its place: `line` counts from 1, `field` is "" for the whole line."""

    def __init__(self, path: Path, line: int, field: str, what: str, remedy: str | None = None) -> None:
        super().__init__(f"{path}:{line}: {field}: {what}" if field else f"{path}:{line}: {what}", remedy)
        self.line = line
        self.field = field
        self.what = what


def iter_lines(path: Path, progress: Progress | None = None) -> Iterator[tuple[int, bytes, bool]]:
    """(line number, line, whether it ends in a newline) of every line that is not blank. Raises TraceError."""
    number = 0
    try:
        with ExitStack() as stack:
            file = stack.enter_context(path.open("rb"))
            total = os.fstat(file.fileno()).st_size
            text = _decompressed(file, stack)
            while line := text.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise PlaceError(path, number, "", f"line longer than {MAX_LINE >> 20} MiB", "is this JSON Lines?")
                if progress and number % 256 == 0:
                    progress(file.tell(), total)
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if stripped := line.strip():
                    yield number, stripped, line.endswith(b"\n")
            if progress:
                progress(total, total)
    except FileNotFoundError:
        raise PlaceError(path, 1, "", "no such file") from None
    except OSError as e:
        reason = e.strerror or f"compressed data is damaged or cut off ({e})"
        raise PlaceError(path, number + 1, "", reason) from None


def _decompressed(file: BufferedReader, stack: ExitStack) -> IO[bytes]:
    magic = file.peek(4)[:4]
    if magic[:2] == b"\x1f\x8b":
        codec = "gzip"
    elif magic == b"\x28\xb5\x2f\xfd" or (magic[1:] == b"\x2a\x4d\x18" and magic[0] >> 4 == 5):
        codec = "zstd"
    else:
        return file
    import pyarrow as pa

    raw = stack.enter_context(pa.CompressedInputStream(file, codec))
    return stack.enter_context(BufferedReader(raw, 1 << 20))


def iter_records(path: str | Path, progress: Progress | None = None) -> Iterator[tuple[int, TraceRecord]]:
    """(line number, record) through a file, or through each file of a folder. Raises TraceError at the first fault.

    Checks what one line can show: JSON, types, and that exactly the first record of each file is a header.
    """
    for file in trace_files(resolve(path)):
        yield from _iter_file(file, progress)


def _iter_file(path: Path, progress: Progress | None = None) -> Iterator[tuple[int, TraceRecord]]:
    first = True
    for number, line, ended in iter_lines(path, progress):
        try:
            record = decode_record(line, first=first)
        except LineError as e:
            raise PlaceError(path, number, *explained(e, first=first, ended=ended)) from None
        first = False
        yield number, record
    if first:
        raise PlaceError(path, 1, "", "the file is empty, expected a header")


def explained(error: LineError, *, first: bool, ended: bool) -> tuple[str, str, str | None]:
    """(field, what, remedy) of a line that is no record, said for where in the file it stands."""
    if first:
        if error.field == "version":
            return error.field, error.what, "a newer agentperf reads it"
        return error.field, f"no agentperf trace: {error.what}", "import it first: agentperf traces import"
    if not ended and error.what.startswith("not valid JSON"):
        return "", "the last line is cut off in the middle of a record", None
    return error.field, error.what, None


def load(path: str | Path, progress: Progress | None = None) -> TraceSet:
    """A whole trace set: a file, a folder (its files merged), or the name of a bundled set.

    Beside what `iter_records` checks: ids unique over all files, indices dense, every id that is referred to present,
    blobs true to their address, counts as the header says. Raises TraceError naming file, line and field.
    """
    where = resolve(path)
    builder = Builder()
    for file in trace_files(where):
        builder.start(str(file))
        for number, record in _iter_file(file, progress):
            try:
                builder.add(number, record)
            except LineError as e:
                raise PlaceError(file, number, e.field, e.what) from None
        builder.finish()
    return sealed(merge_parts(where.name, builder.parts))


def sealed(trace_set: TraceSet) -> TraceSet:
    """The same set with the header's counts and the digest filled in from what it holds."""
    header = _counted(trace_set)
    counted = msgspec.structs.replace(trace_set, header=header)
    digest = hashlib.sha256()
    for record in _records(counted):
        digest.update(_line(record))
    return msgspec.structs.replace(counted, digest=digest.hexdigest())


def _counted(trace_set: TraceSet) -> Header:
    requests = [r for s in trace_set.sessions for r in s.requests]
    for r in requests:
        if type(r.input_tokens) is not int or type(r.output_tokens) is not int:
            _line(r)  # says what is wrong with it
    counts = Counts(
        sessions=len(trace_set.sessions),
        requests=len(requests),
        input_tokens=sum(r.input_tokens for r in requests),
        output_tokens=sum(r.output_tokens for r in requests),
    )
    return msgspec.structs.replace(trace_set.header, counts=counts)


def _records(trace_set: TraceSet) -> Iterator[TraceRecord]:
    """The set in canonical order: header, blobs by id, each session followed by its requests."""
    yield trace_set.header
    for id_, value in sorted(trace_set.blobs.items()):
        type_ = blob_type(id_, value)
        if type_ is None:
            raise TraceError(f"blob {id_}: its content has another SHA-256", "make the id with blob_id(type, value)")
        yield Blob(id=id_, type=type_, value=value, extra=trace_set.blob_extra.get(id_, {}))
    for item in trace_set.sessions:
        yield item.session
        yield from item.requests


def _line(record: TraceRecord) -> bytes:
    try:
        return encode_record(record) + b"\n"
    except LineError as e:
        raise _unwritable(record, e) from None


def _unwritable(record: TraceRecord, error: LineError) -> TraceError:
    names = {Header: "trace_set_id", Blob: "id", Session: "session_id", Request: "request_id"}
    kind = type(record).__name__.lower()
    return TraceError(f"{kind} {getattr(record, names[type(record)])!r} cannot be written: {error}")


def write(trace_set: TraceSet, path: str | Path) -> TraceSet:
    """Write a set (suffix .jsonl, .jsonl.gz or .jsonl.zst) and give it back sealed. The target is replaced whole.

    Raises TraceError for a set that could not be read back, or when the disk refuses; the old file is then untouched.
    """
    target = _checked_target(path)
    counted = msgspec.structs.replace(trace_set, header=_counted(trace_set))
    builder = Builder(keep=False)
    builder.start(str(target))
    digest = hashlib.sha256()
    with _Sink(target) as sink:
        for number, record in enumerate(_records(counted), 1):
            line = _line(record)
            _take(builder, number, record)
            digest.update(line)
            sink.write(line)
        builder.finish()
    return msgspec.structs.replace(counted, digest=digest.hexdigest())


def _take(builder: Builder, number: int, record: TraceRecord) -> None:
    try:
        builder.add(number, record)
    except LineError as e:
        raise _unwritable(record, e) from None


def _checked_target(path: str | Path) -> Path:
    target = Path(path)
    if not target.name.endswith(SUFFIXES):
        raise TraceError(f"{target}: unknown kind of file", f"name it *{', *'.join(SUFFIXES)}")
    return target


class _Sink:
    """A file that appears under its name when the `with` block ends without an error, compressed by its suffix."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._temp = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        self._codec = {".gz": "gzip", ".zst": "zstd"}.get(target.suffix)
        self._pending = bytearray()

    def __enter__(self) -> Self:
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temp.open("wb")
        except OSError as e:
            raise TraceError(f"{self._target}: cannot be written: {e.strerror}") from None
        return self

    def write(self, data: bytes) -> None:
        """Add text."""
        self._pending += data
        while len(self._pending) >= _CHUNK:
            self._flush(_CHUNK)

    def _flush(self, size: int) -> None:
        chunk = bytes(self._pending[:size])
        del self._pending[:size]
        if self._codec:
            import pyarrow as pa

            chunk = pa.Codec(self._codec, compression_level=_LEVELS[self._codec]).compress(chunk, asbytes=True)
        try:
            self._file.write(chunk)
        except OSError as e:
            raise TraceError(f"{self._target}: cannot be written: {e.strerror}") from None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                if self._pending:
                    self._flush(len(self._pending))
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                self._temp.replace(self._target)
        except OSError as e:
            raise TraceError(f"{self._target}: cannot be written: {e.strerror}") from None
        finally:
            with suppress(OSError):
                self._file.close()
            self._temp.unlink(missing_ok=True)


class Writer:
    """A trace file written record by record, for sources that do not fit in memory.

    Use as a context manager: records are spooled beside the target, and when the block ends without an error the file
    appears with the header's counts filled in. A session comes before its requests, a blob anywhere. After an error
    inside the block nothing is left behind and an old target is untouched.
    """

    def __init__(self, path: str | Path, header: Header) -> None:
        self._target = _checked_target(path)
        self._header = header
        self._builder = Builder(keep=False)
        self._blobs: set[str] = set()
        self.counts = Counts()
        self.digest = ""
        """SHA-256 of the text of the finished file; equals `load(path).digest` when written in canonical order."""

    def __enter__(self) -> Self:
        _line(self._header)
        self._builder.start(str(self._target))
        self._builder.add(1, msgspec.structs.replace(self._header, counts=Counts()))
        try:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self._spool: IO[bytes] = tempfile.TemporaryFile(dir=self._target.parent)
        except OSError as e:
            raise TraceError(f"{self._target}: cannot be written: {e.strerror}") from None
        self._lines = 1
        return self

    def add(self, record: Blob | Session | Request) -> None:
        """Append a record. Raises TraceError when it cannot be read back, or its ids clash."""
        line = _line(record)
        self._lines += 1
        _take(self._builder, self._lines, record)
        try:
            self._spool.write(line)
        except OSError as e:
            raise TraceError(f"{self._target}: cannot be written: {e.strerror}") from None

    def add_blob(self, type_: BlobType, value: Any) -> str:
        """Append shared content unless it is there already; gives its id."""
        id_ = blob_id(type_, value)
        if id_ not in self._blobs:
            self._blobs.add(id_)
            self.add(Blob(id=id_, type=type_, value=value))
        return id_

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._spool:
            if kind is not None:
                return
            self._builder.finish()
            self.counts = self._builder.counts()
            header = _line(msgspec.structs.replace(self._header, counts=self.counts))
            digest = hashlib.sha256(header)
            self._spool.seek(0)
            with _Sink(self._target) as sink:
                sink.write(header)
                while chunk := self._spool.read(_CHUNK):
                    digest.update(chunk)
                    sink.write(chunk)
            self.digest = digest.hexdigest()
