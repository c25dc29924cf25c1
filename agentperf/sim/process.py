"""The simulated server in a process of its own. `python -m agentperf.sim.process` is what that process runs."""

import argparse
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec

from agentperf.errors import ClientError, UsageError
from agentperf.sim.profile import Profile, load_profile

KEY_VARIABLE = "AGENTPERF_SIM_API_KEY"
"""Carries the key to the child, so that it does not show in the list of processes."""

_WATCH_S = 0.5


class SimProcess:
    """Starts the server on a port of the loopback interface that the system chooses; stops it at the end.

    The listening socket is made here and handed down, so nobody can take the port in between, and requests queue until
    the server is ready. The server also ends by itself when this process dies.
    """

    def __init__(
        self, profile: str | Path | Profile, seed: int = 0, api_key: str | None = None, start_limit_s: float = 30.0
    ) -> None:
        self.profile = profile if isinstance(profile, Profile) else load_profile(profile)
        self._seed = seed
        self._api_key = api_key
        self._start_limit_s = start_limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        """Base URL of the API, `http://127.0.0.1:PORT/v1`, once it runs."""

    @property
    def pid(self) -> int:
        """Of the server."""
        if self._process is None:
            raise RuntimeError("the simulator is not running")
        return self._process.pid

    def start(self) -> Self:
        """Start, and wait until /health answers. ClientError when it does not come up."""
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
            port = listener.getsockname()[1]
            environment = os.environ.copy()
            environment.pop(KEY_VARIABLE, None)
            if self._api_key is not None:
                environment[KEY_VARIABLE] = self._api_key
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [
                    *(sys.executable, "-m", "agentperf.sim.process"),
                    *("--profile-json", msgspec.json.encode(self.profile).decode()),
                    *("--seed", str(self._seed), "--fd", str(listener.fileno()), "--parent", str(os.getpid())),
                ],
                pass_fds=(listener.fileno(),),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # Ctrl-C in the terminal is for the run, which still drains its requests from this server.
                start_new_session=True,
            )
        self.url = f"http://127.0.0.1:{port}/v1"
        try:
            self._wait_healthy(f"http://127.0.0.1:{port}/health")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server: first politely, after 3 s by force. Does nothing when it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(3.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_healthy(self, url: str) -> None:
        process = self._process
        if process is None:
            return
        limit = time.monotonic() + self._start_limit_s
        with httpx.Client(trust_env=False, timeout=2.0) as client:
            while time.monotonic() < limit:
                if process.poll() is not None:
                    text = process.stderr.read().decode(errors="replace") if process.stderr is not None else ""
                    reason = text.strip().splitlines()[-1] if text.strip() else f"exit code {process.returncode}"
                    raise ClientError(f"the simulator did not start: {reason}")
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(url).status_code == 200:
                        return
                time.sleep(0.02)
        raise ClientError(f"the simulator was not ready within {self._start_limit_s:g} s", "is the machine overloaded?")


def serve(profile: Profile, listener: socket.socket, seed: int = 0, api_key: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Takes the listening socket over."""
    import uvicorn

    from agentperf.sim.http import make_app

    config = uvicorn.Config(
        make_app(profile, seed, api_key),
        loop="auto",
        http="httptools",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=600,
        backlog=4096,
    )
    # What is there now stays; a collection in mid-stream would stall every connection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    uvicorn.Server(config).run(sockets=[listener])


def _watch_parent(parent: int) -> None:
    """End this process when its parent is another one than it was."""
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="agentperf.sim.process", description="Serve a simulator profile on a socket.")
    parser.add_argument("--profile-json", required=True, help="the profile as JSON")
    parser.add_argument("--fd", required=True, type=int, help="file descriptor of the listening socket")
    parser.add_argument("--parent", required=True, type=int, help="process whose end ends this one")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        profile = msgspec.json.decode(options.profile_json, type=Profile)
    except msgspec.DecodeError as error:
        raise UsageError(f"the profile cannot be read: {error}") from error
    listener = socket.socket(fileno=options.fd)
    threading.Thread(target=_watch_parent, args=(options.parent,), daemon=True).start()
    serve(profile, listener, options.seed, os.environ.get(KEY_VARIABLE))
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
