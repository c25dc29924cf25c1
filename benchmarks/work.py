"""What every client of a benchmark is to do, and the flags that say it."""

import argparse
from dataclasses import dataclass

MAX_STREAMS = 8192
MAX_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Work:
    """Streams held in closed loop against a paced server, measured for `seconds`."""

    streams: int
    tps: float
    ttft_ms: float
    tokens: int
    seconds: float
    tokens_per_event: int = 1

    @property
    def stream_s(self) -> float:
        """How long one stream lasts on a server that is never late."""
        return self.ttft_ms / 1e3 + (self.tokens - self.tokens_per_event) / self.tps

    @property
    def grace_s(self) -> float:
        """How long open streams may go on after the window."""
        return 3 * self.stream_s + 5

    @property
    def lifetime_s(self) -> float:
        """More than a run can last: after this the server ends by itself."""
        return 2 * self.stream_s + self.seconds + self.grace_s + 90

    def __str__(self) -> str:
        many = f" ({self.tokens_per_event} an event)" if self.tokens_per_event > 1 else ""
        return (
            f"{self.streams:,} streams x {self.tps:g} tok/s, TTFT {self.ttft_ms:g} ms, {self.tokens} tokens{many}, "
            f"window {self.seconds:g} s"
        )


def add_work(parser: argparse.ArgumentParser, *, streams: int, tps: float, seconds: float, tokens: int = 100) -> None:
    """The flags of a `Work`, with these defaults."""
    parser.add_argument("--streams", type=int, default=streams, help=f"streams held in closed loop (default {streams})")
    parser.add_argument("--tps", type=float, default=tps, help=f"tokens per second of each stream (default {tps:g})")
    parser.add_argument("--ttft-ms", type=float, default=500.0, help="the server's time to first token (default 500)")
    parser.add_argument("--tokens", type=int, default=tokens, help=f"tokens of each reply (default {tokens})")
    parser.add_argument("--tokens-per-event", type=int, default=1, help="tokens that one event carries (default 1)")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"length of the window (default {seconds:g})")


def work_of(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Work:
    """The work that the flags say; ends the process with 2 when they are out of bounds."""
    work = Work(
        options.streams, options.tps, options.ttft_ms, options.tokens, options.seconds, options.tokens_per_event
    )
    if not (1 <= work.streams <= MAX_STREAMS and 1 <= work.seconds <= MAX_SECONDS):
        parser.error(f"1 to {MAX_STREAMS} streams, 1 to {MAX_SECONDS:g} seconds")
    if not (work.tps > 0 and work.ttft_ms >= 0):
        parser.error("--tps above 0, --ttft-ms 0 at least")
    if not (1 <= work.tokens_per_event <= 256 and work.tokens >= 2 * work.tokens_per_event):
        parser.error("1 to 256 tokens an event, two events at least")
    if work.tokens % work.tokens_per_event:
        parser.error("--tokens must be a multiple of --tokens-per-event, so that all events are alike")
    return work


def add_server(parser: argparse.ArgumentParser) -> None:
    """The flag that names the truth server."""
    parser.add_argument("--server", help="C source or binary of the truth server (or $AGENTPERF_TRUTHSERVER)")
