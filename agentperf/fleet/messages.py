"""What parent and load processes say to each other, and how it is framed: msgpack with a length before it."""

from typing import Literal

import msgspec

from agentperf.errors import ClientError
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
    start_ns: int = 0
    """When all load processes begin, on the clock that they share; 0: at once."""


class StopLevel(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Issue no new turn; let open requests end within `grace_s`, then cut them off."""

    grace_s: float


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Answer with a Pong now; between levels only."""


class Quit(msgspec.Struct, frozen=True, tag="quit"):
    """End the process."""


Command = Job | StartLevel | StopLevel | Ping | Quit


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The load process has its job and can hold levels."""

    worker: int


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag="pong"):
    """The load process' monotonic clock."""

    worker: int
    at_ns: int


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
    """t0 of the oldest request that is open, or has ended and is in no batch yet."""
    late_ns: int = 0
    """How long after the common start this process began the level."""


class LevelEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """All agents of a probe are gone and all records sent."""

    worker: int
    probe: int


class WorkerFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The load process itself broke; `error` is one line."""

    worker: int
    """-1 where it broke before it had a number."""
    error: str


Report = Ready | Pong | Batch | LevelEnded | WorkerFailed

_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS = msgspec.msgpack.Decoder(Command)
_REPORTS = msgspec.msgpack.Decoder(Report)
LENGTH_BYTES = 4
MAX_FRAME_BYTES = 2 ** (8 * LENGTH_BYTES) - 1


def _too_long() -> ClientError:
    return ClientError(
        f"the trace set takes more than {MAX_FRAME_BYTES / 2**30:.0f} GiB as bodies, too much for a load process",
        "use fewer sessions, or cut them with --context",
    )


def frame(message: Command | Report) -> bytes:
    """A message with its length before it. ClientError when it is too long for that: a job of too large a trace set."""
    try:
        data = _ENCODER.encode(message)
    except ValueError as error:  # msgpack has no strings of 4 GiB and more
        raise _too_long() from error
    if len(data) > MAX_FRAME_BYTES:
        raise _too_long()
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def command(data: bytes) -> Command:
    """The command in a frame's payload."""
    return _COMMANDS.decode(data)


def report(data: bytes) -> Report:
    """The report in a frame's payload."""
    return _REPORTS.decode(data)
