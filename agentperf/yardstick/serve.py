"""Entry point of a reference server: `python -m agentperf.yardstick.serve`.

It takes one-word commands on stdin and answers each on stdout with a frame (4 bytes of length, msgpack): `work` with a
`Work`, `rows` with the log since the last time. It ends when stdin closes, so it does not outlive its parent, and in
any case after `--exit-after` seconds.
"""

import argparse
import contextlib
import gc
import os
import selectors
import signal
import socket
import sys

import msgspec

from agentperf.clock import monotonic_ns
from agentperf.yardstick.reply import Pace
from agentperf.yardstick.server import ReferenceServer

LENGTH_BYTES = 4


def _answer(out: int, document: object) -> None:
    data = msgspec.msgpack.encode(document)
    rest = memoryview(len(data).to_bytes(LENGTH_BYTES, "big") + data)
    while rest:
        rest = rest[os.write(out, rest) :]


def serve(listener: socket.socket, pace: Pace, exit_after_s: float, commands: int, out: int) -> None:
    """Serve until `commands` closes, or for `exit_after_s`."""
    server = ReferenceServer(listener, pace)
    server.selector.register(commands, selectors.EVENT_READ, commands)
    deadline = monotonic_ns() + round(exit_after_s * 1e9)
    gc.collect()
    gc.freeze()
    gc.disable()  # the loop makes no cycles, and a collection would be a pause in every stream
    pending = b""
    with contextlib.closing(server), contextlib.suppress(BrokenPipeError):
        while monotonic_ns() < deadline:
            if not server.turn():
                continue
            data = os.read(commands, 4096)
            if not data:
                return
            *words, pending = (pending + data).split(b"\n")
            for word in words:
                _answer(out, server.take_rows() if word == b"rows" else server.work())


def main(argv: list[str] | None = None) -> None:
    """Serve the listening socket that was handed down."""
    parser = argparse.ArgumentParser(prog="agentperf.yardstick.serve", description=__doc__.partition("\n")[0])
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the listening socket")
    parser.add_argument("--tps", type=float, required=True, help="tokens per second of each stream; 0 is the firehose")
    parser.add_argument("--ttft-ms", type=float, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--exit-after", type=float, required=True, help="longest life in seconds")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    pace = Pace(options.tps, options.ttft_ms, options.tokens)
    serve(socket.socket(fileno=options.fd), pace, options.exit_after, sys.stdin.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main()
