"""The result of a calibration as a document, and the file it is kept in. docs/calibrate.md describes its fields."""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from agentperf.errors import UsageError
from agentperf.yardstick.figures import IN_FLIGHT_BOUND, SPEED_BOUND, TTFT_BOUND_MS, Figures
from agentperf.yardstick.machine import Machine
from agentperf.yardstick.search import Limit


class Bounds(Struct, kw_only=True, frozen=True):
    """Within which a probe passes."""

    ttft_error_p99_ms: float = TTFT_BOUND_MS
    speed_error_p99: float = SPEED_BOUND
    in_flight: float = IN_FLIGHT_BOUND


class RateResult(Struct, kw_only=True, frozen=True):
    """How many streams of one rate the client drives with some number of load processes."""

    tps: float
    workers: int
    measured_at: str
    """ISO 8601, UTC."""
    streams: int
    """The largest level that passed; 0 when none did."""
    at_least: bool
    """Something else than the client kept it from being larger, or may have."""
    limit: Limit
    """client | server | max-streams | budget | error | interrupted: what kept it from being larger."""
    smallest_miss: int | None
    disturbed: bool
    """Other work ran each time that the smallest miss was probed: on a quiet machine the client may drive more."""
    pinned: bool
    """Load processes and reference servers had cores of their own."""
    error: str | None
    """The load processes failed under the last level."""
    probes: list[Figures]

    @property
    def best(self) -> Figures | None:
        """The probe behind `streams`."""
        return next((p for p in reversed(self.probes) if p.level == self.streams and p.verdict == "pass"), None)


class Firehose(Struct, kw_only=True, frozen=True):
    """A few streams that come as fast as the client reads: its ceiling of decoding, where waiting costs nothing."""

    workers: int
    streams: int
    events_per_s: float
    us_per_event: float | None


class Calibration(Struct, kw_only=True, frozen=True):
    """All that is known of a machine's client."""

    schema: Literal["agentperf-calibration/1"] = "agentperf-calibration/1"
    agentperf_version: str
    measured_at: str
    """Of the last calibration."""
    seconds: float
    """That it took."""
    machine: Machine
    bounds: Bounds
    window_s: float
    ttft_ms: float
    """Of the reference server."""
    decode_s: float
    """From the first to the last token of each stream."""
    results: list[RateResult]
    """By workers and rate."""
    firehose: list[Firehose]


def merged(old: Calibration | None, new: Calibration) -> Calibration:
    """`new`, and what `old` knows beside it when it is of the same machine and version."""
    if old is None or old.machine != new.machine or old.agentperf_version != new.agentperf_version:
        return new
    results = {(r.workers, r.tps): r for r in [*old.results, *new.results]}
    hoses = {f.workers: f for f in [*old.firehose, *new.firehose]}
    return msgspec.structs.replace(
        new, results=sort_results(list(results.values())), firehose=[hoses[w] for w in sorted(hoses)]
    )


def sort_results(results: Sequence[RateResult]) -> list[RateResult]:
    """By workers, then rate."""
    return sorted(results, key=lambda r: (r.workers, r.tps))


def load(path: Path) -> Calibration | None:
    """The calibration kept in a file; None when there is none that this version reads."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Calibration)
    except (OSError, msgspec.DecodeError):
        return None


def save(path: Path, calibration: Calibration) -> None:
    """Write it, whole or not at all. UsageError where the folder cannot be written to."""
    data = msgspec.json.format(msgspec.json.encode(calibration), indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".calibration-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data + b"\n")
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"the calibration cannot be kept in {path.parent}: {reason}", "set AGENTPERF_CACHE_DIR, or pass --no-save"
        ) from error
