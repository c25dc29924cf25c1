"""Which metric of which engine fills which column. The names themselves are data: `engines.toml`."""

from functools import cache
from importlib import resources
from typing import Final, Literal

import msgspec
from msgspec import Struct

Layer = Literal["engine", "frontend"]
Column = Literal["ttft", "e2e", "running", "waiting", "kv_usage", "preemptions", "cache"]

HISTOGRAMS: Final[tuple[Column, ...]] = ("ttft", "e2e")
GAUGES: Final[tuple[Column, ...]] = ("running", "waiting", "kv_usage")
COUNTERS: Final[tuple[Column, ...]] = ("preemptions", "cache")
COLUMNS: Final[tuple[Column, ...]] = (*HISTOGRAMS, *GAUGES, *COUNTERS)

START_TIME: Final = "process_start_time_seconds"
"""When it changes between two scrapes, the process was another one and no difference of counters means anything."""
SIM_MARK: Final = "agentperf_sim_info"
SIM_ENGINE: Final = "agentperf-sim"
DEFAULT_PATH: Final = "metrics"


class CachePair(Struct, frozen=True, forbid_unknown_fields=True):
    """Two counters of a prefix cache: hits, and either all that was looked up or what was not found."""

    hits: str
    queries: str | None = None
    misses: str | None = None
    unit: Literal["tokens", "blocks"] = "tokens"

    def __post_init__(self) -> None:
        if (self.queries is None) == (self.misses is None):
            raise ValueError(f"{self.hits} needs either queries or misses")

    @property
    def other(self) -> str:
        """The name beside hits."""
        return self.queries or self.misses or ""


class Engine(Struct, frozen=True, forbid_unknown_fields=True):
    """One engine's spellings of every column, the newest first."""

    name: str
    layer: Layer
    paths: tuple[str, ...] = ()
    ttft: tuple[str, ...] = ()
    e2e: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_usage: tuple[str, ...] = ()
    preemptions: tuple[str, ...] = ()
    cache: tuple[CachePair, ...] = ()
    absent: dict[Column, str] = {}

    def spellings(self, column: Column) -> tuple[str | CachePair, ...]:
        """What may fill a column, in the order in which it is looked for."""
        found: tuple[str | CachePair, ...] = getattr(self, column)
        return found


class _Map(Struct, frozen=True, forbid_unknown_fields=True):
    engine: tuple[Engine, ...]


@cache
def engines() -> tuple[Engine, ...]:
    """All engines of `engines.toml`, in its order."""
    text = resources.files("agentperf.server").joinpath("engines.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Map).engine


@cache
def paths() -> tuple[str, ...]:
    """Where a page may be beside the API root, the usual place first."""
    return tuple(dict.fromkeys([DEFAULT_PATH, *(path for engine in engines() for path in engine.paths)]))


def counter_names(name: str) -> tuple[str, str]:
    """A counter as it may stand on a page: exporters differ in whether they add `_total`."""
    return f"{name}_total", name


@cache
def wanted() -> frozenset[str]:
    """Every name of a sample that some column may need; all other lines of a page are passed over."""
    names = {START_TIME, SIM_MARK}
    for engine in engines():
        for column in HISTOGRAMS:
            names.update(f"{n}{end}" for n in engine.spellings(column) for end in ("_bucket", "_sum", "_count"))
        for column in GAUGES:
            names.update(str(n) for n in engine.spellings(column))
        names.update(n for spelling in engine.preemptions for n in counter_names(spelling))
        names.update(n for pair in engine.cache for part in (pair.hits, pair.other) for n in counter_names(part))
    return frozenset(names)
