"""Reference servers as processes of their own, seen from the parent."""

import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from agentperf.errors import ClientError
from agentperf.yardstick.cores import children_on
from agentperf.yardstick.reply import Pace
from agentperf.yardstick.rows import Row, Work
from agentperf.yardstick.serve import LENGTH_BYTES

ANSWER_S = 20.0
"""A server that does not answer its parent for this long has failed."""


class ServerProcess:
    """One reference server on a port of the loopback interface. ClientError when it does not start or answer."""

    def __init__(self, pace: Pace, lifetime_s: float, cores: Sequence[int] | None = None) -> None:
        self.pace = pace
        self._lifetime_s = lifetime_s
        self._cores = cores
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def base_url(self) -> str:
        """Base URL of its API."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        """Of the server. ClientError when it does not run."""
        if self._process is None:
            raise ClientError("the reference server is not running")
        return self._process.pid

    def __enter__(self) -> Self:
        # The socket is made here and handed down: nobody can take the port, and requests wait until the server is up.
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener, children_on(self._cores):
            self.port = listener.getsockname()[1]
            options = {
                "fd": listener.fileno(),
                "tps": self.pace.tps,
                "ttft-ms": self.pace.ttft_ms,
                "tokens": self.pace.tokens,
                "exit-after": self._lifetime_s,
            }
            command = [sys.executable, "-m", "agentperf.yardstick.serve"]
            command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
                start_new_session=True,  # Ctrl-C is for the parent, which still reads the log
            )
        try:
            self.work()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def work(self) -> Work:
        """CPU time and tokens so far. Costs the server microseconds, so it may be asked in the middle of a level."""
        return msgspec.msgpack.decode(self._ask(b"work"), type=Work)

    def take_rows(self) -> list[Row]:
        """Its log since the last time. To be asked between levels: it stops the streams for milliseconds."""
        return msgspec.msgpack.decode(self._ask(b"rows"), type=list[Row])

    def _ask(self, word: bytes) -> bytes:
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(word + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise self._failed() from error
        limit = time.monotonic() + ANSWER_S
        length = int.from_bytes(self._read(LENGTH_BYTES, limit), "big")
        return self._read(length, limit)

    def _read(self, size: int, limit: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        data = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(max(0.0, limit - time.monotonic())):
                    raise ClientError(
                        f"the reference server has not answered for {ANSWER_S:g} s", "is the machine overloaded?"
                    )
                part = os.read(descriptor, size - len(data))
                if not part:
                    raise self._failed()
                data += part
        return bytes(data)

    def _failed(self) -> ClientError:
        assert self._process is not None
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return ClientError("the reference server has closed its pipe")
        return ClientError(f"the reference server ended by itself (exit code {code})")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.stdin is None or process.stdout is None:
            return
        try:
            process.stdin.close()
        except OSError:
            process.kill()
        try:
            process.wait(3.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
