"""One line of a trace file to one record and back.

A record is written with its known fields in the order of `model.py`, then the fields that the format does not know,
sorted by name, so that equal records give equal bytes in any process. The keys inside messages, tool schemas and
other free objects keep the order they came in: chat templates print a tool schema in that order, so it is content.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from agentperf.trace.model import FORMAT, VERSION, Blob, DelayParts, Header, Request, Session, TraceRecord

BlobType = Literal["tools", "system", "messages", "text"]
BLOB_TYPES: tuple[BlobType, ...] = ("tools", "system", "messages", "text")

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_record: msgspec.json.Decoder[TraceRecord] = msgspec.json.Decoder(TraceRecord)
_encode = msgspec.json.Encoder().encode

RECORD_KINDS = ("header", "blob", "session", "request")

KNOWN: dict[type, frozenset[str]] = {
    kind: frozenset(f.encode_name for f in msgspec.structs.fields(kind) if f.name != "extra") | {"kind"}
    for kind in (Header, Blob, Session, Request)
}
"""Names that the format knows at the top level of each kind of record."""


class LineError(Exception):
    """One line is no record of the format: `field` is the place in it ("" for the whole line), `what` the fault."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}" if field else what)
        self.field = field
        self.what = what


def split_message(error: Exception) -> tuple[str, str]:
    """(field, what) of a msgspec error: its text ends in " - at `$.path`" where a place is known."""
    what, _, place = str(error).partition(" - at `")
    place = place.rstrip("`").removeprefix("$").removeprefix(".")
    return place, what


def check_text(line: bytes) -> None:
    """Raise LineError when the line is not UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError as e:
        raise LineError("", f"not UTF-8 at byte {e.start} of the line") from None


def parse_fields(line: bytes) -> dict[str, msgspec.Raw]:
    """The top level of a JSON object, its values left undecoded. Raises LineError."""
    check_text(line)
    try:
        return _decode_fields(line)
    except msgspec.ValidationError as e:
        raise LineError("", f"not a JSON object: {split_message(e)[1]}") from None
    except (msgspec.DecodeError, RecursionError, ValueError) as e:
        raise LineError("", f"not valid JSON: {e}") from None


def check_version(fields: dict[str, msgspec.Raw]) -> None:
    """Raise LineError unless the fields are those of a header of this format and version."""
    found = {name: _small(fields[name]) for name in ("kind", "format", "version") if name in fields}
    if found.get("kind") != "header":
        raise LineError("kind", "the first line is not a header record of the agentperf trace format")
    if found.get("format") != FORMAT:
        raise LineError("format", f"expected {FORMAT!r}, got {found.get('format')!r}")
    version = found.get("version")
    if version != VERSION or isinstance(version, bool):
        raise LineError("version", f"this agentperf reads version {VERSION}, the file has {version!r}")


def _small(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return "something unreadable"


def decode_record(line: bytes, *, first: bool | None = None) -> TraceRecord:
    """The record on one line; fields that the format does not know land in its `extra`. Raises LineError.

    `first` says whether the line begins a file, where a header and nothing else belongs; None leaves that unchecked.
    """
    fields = parse_fields(line)
    kind = _small(fields["kind"]) if "kind" in fields else None
    if first or kind == "header":
        check_version(fields)
    if first is False and kind == "header":
        raise LineError("kind", "a second header; put the files into one folder instead of joining them")
    if "extra" in fields:  # the attribute that holds unknown fields is no field of the format
        line = b"{" + b",".join(_encode(k) + b":" + bytes(v) for k, v in fields.items() if k != "extra") + b"}"
    record = decode_typed(line)
    unknown = fields.keys() - KNOWN[type(record)]
    if unknown:
        record.extra = {name: decode_any(fields[name], name) for name in fields if name in unknown}
    return record


def decode_typed(line: bytes) -> TraceRecord:
    """The record on one line without its unknown fields. Raises LineError."""
    try:
        return _decode_record.decode(line)
    except msgspec.ValidationError as e:
        raise LineError(*split_message(e)) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as e:
        raise LineError("", f"not valid JSON: {e}") from None


def decode_any(data: bytes | msgspec.Raw, name: str = "") -> Any:
    """JSON of any shape; `name` says whose value it is when that must be told. Raises LineError."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as e:
        raise LineError(name, f"not valid JSON: {e}") from None


def encode_record(record: TraceRecord) -> bytes:
    """The line of a record, without the newline. Raises LineError when it could not be read back as written."""
    try:
        # Through the reader's types and back: what cannot be read is found here, and 5 and 5.0 become one text.
        line = _encode_known(_with_default_floats(decode_typed(_encode_known(record))))
        if record.extra:
            line = line[:-1] + b"," + _encode(_checked_extra(record))[1:]
    except (TypeError, ValueError, OverflowError, RecursionError) as e:  # ValueError: also lone surrogates
        raise LineError("", f"cannot be written as JSON: {e}") from None
    if b"null" in line:  # NaN and infinity are written as null
        for path in non_finite(msgspec.to_builtins(record)):
            raise LineError(path, "not a finite number")
    return line


def _with_default_floats(record: TraceRecord) -> TraceRecord:
    """Make zeros the very objects of the defaults: msgspec leaves a float default out by identity, not by value."""
    if isinstance(record, Request):
        for part in (record, record.delay_parts):
            for name, default in _FLOATS.get(type(part), ()):
                if getattr(part, name) == default:
                    setattr(part, name, default)
    return record


_FLOATS: dict[type, tuple[tuple[str, float], ...]] = {
    kind: tuple((f.name, f.default) for f in msgspec.structs.fields(kind) if isinstance(f.default, float))
    for kind in (Request, DelayParts)
}


def _encode_known(record: TraceRecord) -> bytes:
    if isinstance(record, Header):  # what a reader must know is written even where it is the default
        fields = {"kind": "header", "format": record.format, "version": record.version}
        rest = msgspec.to_builtins(record)
        rest.pop("extra", None)
        always = {"content": record.content, "license": record.license, "redistributable": record.redistributable}
        order = [f.encode_name for f in msgspec.structs.fields(Header)]
        merged = fields | rest | always | {"counts": msgspec.to_builtins(record.counts)}
        return _encode({k: merged[k] for k in [*fields, *order] if k in merged})
    return _encode(msgspec.structs.replace(record, extra={}) if record.extra else record)


def _checked_extra(record: TraceRecord) -> dict[str, Any]:
    clash = sorted(record.extra.keys() & KNOWN[type(record)])
    if clash:
        raise LineError(f"extra.{clash[0]}", "is the name of a known field")
    return dict(sorted(record.extra.items()))


def non_finite(value: Any, path: str = "") -> Iterator[str]:
    """Places of NaN and infinity in a JSON value."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from non_finite(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from non_finite(item, f"{path}[{i}]")


def blob_id(type_: BlobType, value: Any) -> str:
    """Address of shared content: SHA-256 of the compact JSON of `[type, value]`, keys in the order they have."""
    return "sha256:" + hashlib.sha256(_encode([type_, value])).hexdigest()


def blob_type(id_: str, value: Any) -> BlobType | None:
    """The type under which `value` has the address `id_`, or None when it has another content."""
    return next((t for t in BLOB_TYPES if blob_id(t, value) == id_), None)
