"""Entry point of a load process: `python -m agentperf.fleet.process`, frames in on stdin, frames out on stdout."""

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import sys

from agentperf.clock import monotonic_ns
from agentperf.fleet.machine import raise_open_files
from agentperf.fleet.messages import LENGTH_BYTES, Command, Job, Quit, Ready, Report, WorkerFailed, command, frame
from agentperf.fleet.worker import Gauges, Send, serve
from agentperf.wire import chat
from agentperf.wire.client import open_caller


async def _streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    # The protocol's own stdout is kept aside, so that a stray print cannot break the frames.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    reader = asyncio.StreamReader(limit=2**30)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, out)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


async def _read(reader: asyncio.StreamReader) -> Command:
    """The next command; a closed pipe means that the parent is gone."""
    try:
        head = await reader.readexactly(LENGTH_BYTES)
        return command(await reader.readexactly(int.from_bytes(head, "big")))
    except asyncio.IncompleteReadError:
        return Quit()


class _ParentGoneError(Exception):
    """The pipe to the parent is closed: there is nobody to tell anything."""


def _cause(error: BaseException) -> BaseException:
    """What a task group's error is about."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _hold(job: Job, reader: asyncio.StreamReader, send: Send) -> None:
    """Obey the parent until it says Quit."""
    assert job.target is not None
    endpoint, limits = pickle.loads(job.target.endpoint)  # noqa: S301 - written by our own parent a moment ago
    async with open_caller(endpoint, path=chat.PATH, limits=limits, transport=job.target.transport) as caller:
        # The loop allocates no cycles worth collecting, and a collection would be a pause in every open stream.
        gc.disable()
        gc.collect()
        gc.freeze()
        await send(Ready(worker=job.worker))
        gauges = Gauges(caller.awaiting_first_byte, lambda: caller.open_connections)
        await serve(job, caller, lambda: _read(reader), send, monotonic_ns, gauges)


async def _main() -> None:
    reader, writer = await _streams()

    async def send(message: Report) -> None:
        try:
            writer.write(frame(message))
            await writer.drain()
        except (RuntimeError, ConnectionError) as error:
            raise _ParentGoneError from error

    try:
        job = await _read(reader)
        if isinstance(job, Job) and job.target is not None:
            await _hold(job, reader, send)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it in one line
        cause = _cause(error)
        if isinstance(cause, _ParentGoneError):
            return
        line = " ".join(f"{type(cause).__name__}: {cause}".split())
        with contextlib.suppress(_ParentGoneError):
            await send(WorkerFailed(worker=-1, error=line[:500]))


def main() -> None:
    """Run on uvloop; Ctrl-C is the parent's business, and arrives here as a command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_open_files()
    import uvloop

    uvloop.run(_main())


if __name__ == "__main__":
    main()
