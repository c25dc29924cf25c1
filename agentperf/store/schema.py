"""Arrow schema of the records: the columns of `Record`, in its order, with their units."""

import typing
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from agentperf.measure.record import COLUMNS, Record

SCHEMA_VERSION: Final = 1
"""Raised only when a column changes its meaning. Columns that are added at the end keep it."""

OFFSETS: Final = "event_offsets_us"
TOKEN_COLUMNS: Final = (
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "reasoning_tokens",
    "expected_prompt_tokens",
    "expected_cached_tokens",
    "target_output_tokens",
    "first_event_tokens",
)
_UNITS_BY_SUFFIX: Final = (
    ("_ns", "ns"),
    ("_us", "us"),
    ("_tps", "tok/s"),
    ("_s", "s"),
    ("_tokens", "tokens"),
    ("_bytes", "bytes"),
)
_SCALARS: Final[dict[Any, pa.DataType]] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
_INT64: Final = range(-(2**63), 2**63)


def unit_of(column: str) -> str:
    """Unit of a column, from its name; empty for texts, counts without a unit, and numbers of things."""
    return next((unit for suffix, unit in _UNITS_BY_SUFFIX if column.endswith(suffix)), "")


def _make_schema() -> pa.Schema:
    hints = typing.get_type_hints(Record)
    fields = []
    for name in COLUMNS:
        parts = typing.get_args(hints[name]) or (hints[name],)
        kind = next(p for p in parts if p is not type(None))
        type_ = pa.list_(pa.field("item", pa.int32(), nullable=False)) if name == OFFSETS else _SCALARS[kind]
        unit = unit_of(name)
        fields.append(
            pa.field(name, type_, nullable=type(None) in parts, metadata={b"unit": unit.encode()} if unit else None)
        )
    metadata = {b"schema_version": str(SCHEMA_VERSION).encode(), b"clock": b"monotonic; comparable within one run only"}
    return pa.schema(fields, metadata=metadata)


SCHEMA: Final[pa.Schema] = _make_schema()


def _offsets_column(values: Sequence[bytes | None]) -> pa.Array:
    """Bytes of little-endian int32 as a list<int32> column, without touching single numbers."""
    lengths = np.fromiter((0 if v is None else len(v) // 4 for v in values), dtype=np.int64, count=len(values))
    bounds = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(lengths, out=bounds[1:])
    joined = b"".join(v[: len(v) // 4 * 4] for v in values if v is not None)
    numbers = pa.Array.from_buffers(pa.int32(), len(joined) // 4, [None, pa.py_buffer(joined)])
    mask = pa.array([v is None for v in values], type=pa.bool_())
    return pa.ListArray.from_arrays(pa.array(bounds), numbers, type=SCHEMA.field(OFFSETS).type, mask=mask)


def _representable(value: Any) -> Any:
    """What a column can hold of a value that a server invented: text without lone surrogates, no count above 2^63."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int) and value not in _INT64:
        return None
    return value


def _column(name: str, values: list[Any]) -> pa.Array:
    field = SCHEMA.field(name)
    if name == OFFSETS:
        return _offsets_column(values)
    try:
        return pa.array(values, type=field.type)
    except (OverflowError, UnicodeEncodeError, pa.ArrowInvalid):
        return pa.array([_representable(v) for v in values], type=field.type)


def to_batch(records: Sequence[Record]) -> pa.RecordBatch:
    """Records as one Arrow batch of `SCHEMA`, one row each, in the given order."""
    return pa.RecordBatch.from_arrays([_column(n, [getattr(r, n) for r in records]) for n in COLUMNS], schema=SCHEMA)


def to_records(table: pa.Table) -> list[Record]:
    """The inverse of `to_batch`. Columns that an older file lacks take the struct's default."""
    names = [n for n in COLUMNS if n in table.column_names]
    columns: dict[str, list[Any]] = {}
    for name in names:
        values = table.column(name).to_pylist() if name != OFFSETS else _offsets_bytes(table.column(name))
        columns[name] = values
    return [Record(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _offsets_bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    values: list[bytes | None] = []
    for chunk in column.chunks:
        flat = np.asarray(chunk.values.to_numpy(zero_copy_only=False), dtype="<i4")
        bounds = chunk.offsets.to_numpy(zero_copy_only=False)
        valid = chunk.is_valid().to_numpy(zero_copy_only=False)
        values.extend(
            flat[low:high].tobytes() if ok else None
            for low, high, ok in zip(bounds[:-1], bounds[1:], valid, strict=True)
        )
    return values
