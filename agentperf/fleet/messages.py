"""What parent and load processes say to each other, and how it is framed: msgpack with a length before it."""

from typing import Literal

import msgspec

from agentperf.measure.health import WorkerSample
from agentperf.measure.record import Record
from agentperf.replay.bodies import EncodedTree
from agentperf.replay.settings import ReplaySettings


class Target(msgspec.Struct, frozen=True, kw_only=True, tag="target"):
    """Where and how a load process sends; goes over a pipe to a child, never to a file."""

    endpoint: bytes
    """A pickled pair of `wire.endpoint.Endpoint` and `Limits`: it holds the key, and is neither printed nor logged."""
    transport: Literal["timed", "httpx"] = "timed"


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """All that a load process needs for a run; sent once."""

    worker: int
    workers: int
    target: Target | None
    settings: ReplaySettings
    trees: list[EncodedTree]
    chars_per_token: float


class StartLevel(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Hold this probe's agents until told to stop."""

    probe: int
    level: int
    agents: list[int]
    spread_s: float


class StopLevel(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Issue no new turn; let open requests end within `grace_s`, then cut them off."""

    grace_s: float


class Quit(msgspec.Struct, frozen=True, tag="quit"):
    """End the process."""


Command = Job | StartLevel | StopLevel | Quit


class Batch(msgspec.Struct, kw_only=True, tag="batch"):
    """Sent a few times a second, also when there is nothing to tell: silence means trouble."""

    worker: int
    probe: int
    at_ns: int
    records: list[Record]
    sample: WorkerSample
    agents: int
    open: int
    first_token: int
    """Of `open`: those that wait for their first byte of body."""
    waiting: int
    oldest_open_ns: int | None


class LevelEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """All agents of a probe are gone and all records sent."""

    worker: int
    probe: int


class WorkerFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The load process itself broke; `error` is one line."""

    worker: int
    error: str


Report = Batch | LevelEnded | WorkerFailed

_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS = msgspec.msgpack.Decoder(Command)
_REPORTS = msgspec.msgpack.Decoder(Report)
LENGTH_BYTES = 4


def frame(message: Command | Report) -> bytes:
    """A message with its length before it."""
    data = _ENCODER.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def command(data: bytes) -> Command:
    """The command in a frame's payload."""
    return _COMMANDS.decode(data)


def report(data: bytes) -> Report:
    """The report in a frame's payload."""
    return _REPORTS.decode(data)
