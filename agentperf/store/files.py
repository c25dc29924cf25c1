"""Writing single files so that a reader never sees half of one, as strict JSON."""

import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from agentperf.errors import ClientError


def strict(value: Any) -> Any:
    """Plain JSON types only. What is not finite becomes null: JSON has no NaN and no infinity."""
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, dict):
        return {k if isinstance(k, str) else str(k): strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [strict(v) for v in value]
    if isinstance(value, np.ndarray):
        return strict(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    return strict(msgspec.to_builtins(value))


def to_json(value: Any, indent: int | None = None) -> bytes:
    """Strict JSON in UTF-8; a lone surrogate stays an escape."""
    text = json.dumps(strict(value), allow_nan=False, ensure_ascii=False, indent=indent)
    return text.encode("utf-8", "backslashreplace")


def write_all(fd: int, data: bytes) -> None:
    """`os.write` until everything is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(directory: Path) -> None:
    """Make a rename last. Not every file system allows it, and then there is nothing to do."""
    try:
        fd = os.open(directory, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file or none of it; ClientError when the disk does not take it."""
    part = path.with_name(path.name + ".part")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        part.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    sync_directory(path.parent)


def cannot_write(path: Path, error: OSError) -> ClientError:
    """The one line for a disk that refuses."""
    return ClientError(f"cannot write {path}: {error.strerror or error}", "free space, or choose another --out")
