"""Records on disk: an Arrow IPC stream that only grows while a run goes on, and the parquet file made of it at the end.

A stream may end anywhere, as after kill -9: every complete batch in it is read. Each append is one message written
whole, so at most the last one is torn.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from agentperf.errors import ClientError
from agentperf.measure.record import Record
from agentperf.store.files import cannot_write, sync_directory, write_all
from agentperf.store.phases import Window, with_phases
from agentperf.store.schema import SCHEMA, to_batch

_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")
GROUP_ROWS: Final = 20_000
"""Rows of a row group of the parquet file, and so the bound of the memory that making it takes."""


def _stream_bytes(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=_OPTIONS) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


_HEAD: Final = _stream_bytes([])[: -len(_END)]


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """One message of the stream."""
    return _stream_bytes([batch])[len(_HEAD) : -len(_END)]


class RecordStream:
    """The open, append-only stream."""

    def __init__(self, path: Path, *, again: bool = False) -> None:
        """A new stream; or, `again`, one to go on with that `rewrite_stream` has made."""
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | (0 if again else os.O_CREAT | os.O_EXCL), 0o600)
        self._size = os.fstat(self._fd).st_size
        if not again:
            self._append(_HEAD)
        encode_batch(to_batch([]))  # loads what the first one needs, half a second's work, before a level runs

    def _append(self, data: bytes) -> None:
        try:
            write_all(self._fd, data)
        except OSError as error:
            # What was written of this message would tear everything behind it.
            os.ftruncate(self._fd, self._size)
            raise cannot_write(self.path, error) from error
        self._size += len(data)

    def append(self, records: Sequence[Record]) -> None:
        """Write the records as one batch, all or none; ClientError when the disk does not take them."""
        self.append_batch(to_batch(records))

    def append_batch(self, batch: pa.RecordBatch) -> None:
        """The same of a batch of `SCHEMA`."""
        self._append(encode_batch(batch))

    def fileno(self) -> int:
        """The file that it is."""
        return self._fd

    def close(self) -> None:
        """End the stream and force it to the disk."""
        try:
            self._append(_END)
            os.fsync(self._fd)
        finally:
            os.close(self._fd)


def rewrite_stream(parquet: Path | None, stream: Path) -> int:
    """Make `stream` one that can be appended to, of the rows of `parquet`, or of its own whole batches. Their number.

    The old file stays until the new one is complete; ClientError when the disk does not take it.
    """
    part = stream.with_name(stream.name + ".part")
    part.unlink(missing_ok=True)
    rows = 0
    made = RecordStream(part)
    try:
        for batch in _all_batches(parquet, stream):
            made.append_batch(batch)
            rows += batch.num_rows
        os.fsync(made.fileno())
    finally:
        os.close(made.fileno())
    part.replace(stream)
    sync_directory(stream.parent)
    return rows


def _all_batches(parquet: Path | None, stream: Path) -> Iterator[pa.RecordBatch]:
    if parquet is not None:
        with pq.ParquetFile(parquet) as file:
            for batch in file.iter_batches(GROUP_ROWS):
                yield pa.RecordBatch.from_arrays([batch.column(n) for n in SCHEMA.names], schema=SCHEMA)
    elif stream.exists():
        yield from read_batches(stream)


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Every complete batch of a stream that may be torn anywhere."""
    with pa.OSFile(str(path), "rb") as source:
        try:
            reader = pa.ipc.open_stream(source)
        except (pa.ArrowInvalid, OSError):
            return
        while True:
            try:
                batch = reader.read_next_batch()
            except (StopIteration, pa.ArrowInvalid, OSError):
                return
            yield batch


def _groups(path: Path) -> Iterator[pa.Table]:
    """The stream in tables of about `GROUP_ROWS` rows."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in read_batches(path):
        held.append(batch)
        rows += batch.num_rows
        if rows >= GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held)


_DELTA: Final = [f.name for f in SCHEMA if pa.types.is_integer(f.type)] + ["event_offsets_us.list.element"]
_ENCODING: Final[dict[str, Any]] = {
    "compression": "zstd",
    # Stamps and event offsets grow steadily: as differences they take a third less room than as they are.
    "column_encoding": dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
    "use_dictionary": [f.name for f in SCHEMA if pa.types.is_string(f.type)],
}


def write_parquet(stream: Path, target: Path, windows: Mapping[int, Window]) -> int:
    """Turn a stream into the final file, phases set. Returns its rows; the stream is left where it is.

    The file appears only when it is complete and its row count has been read back; ClientError otherwise.
    """
    part = target.with_name(target.name + ".part")
    rows = 0
    try:
        with pq.ParquetWriter(part, SCHEMA, **_ENCODING) as writer:
            for table in _groups(stream):
                writer.write_table(with_phases(table, windows), row_group_size=GROUP_ROWS)
                rows += table.num_rows
        part.chmod(0o600)
        written = pq.read_metadata(part).num_rows
        if written != rows:
            raise ClientError(f"{target} holds {written} of {rows} records", f"the records are still in {stream}")
        fd = os.open(part, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        part.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    sync_directory(target.parent)
    return rows
