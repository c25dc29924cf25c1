"""What the peers have in common: a load to hold, the rows that come of it, and the loop of users around one request.

Standard library only, since peers run under other interpreters (`venvs.py`) with nothing of agentperf installed.
"""

import asyncio
import contextlib
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Load:
    """Closed loop: `streams` users, each sending again as soon as its stream has ended. Burst: each sends once, now."""

    base_url: str
    streams: int
    tokens: int
    prompt: str
    spread_s: float
    warmup_s: float
    seconds: float
    grace_s: float
    """How long open requests may go on after the window; of a burst, how long it may take in all."""
    mode: Literal["closed", "burst"] = "closed"
    tokens_per_event: int = 1
    history_chars: int = 0
    """Text of the session that each user brings along; for `naive`."""


@dataclass(slots=True)
class Row:
    """One request; times in s of perf_counter."""

    id: str
    t0: float
    first: float | None = None
    last: float | None = None
    events: int | None = 0
    """Events with content; None for a client that does not look."""
    tokens: int = 0
    end: float = 0.0
    ok: bool = False
    error: str = ""
    sent_ns: int | None = None
    """When the last byte of the request was handed to the socket; known to clients that watch it."""


@dataclass(slots=True)
class Result:
    """The window, the CPU time used in it, the most memory ever held, and all requests."""

    open_s: float = 0.0
    close_s: float = 0.0
    cpu_s: float = 0.0
    rss_bytes: int = 0
    rows: list[Row] = field(default_factory=list)


def body_of(load: Load) -> dict[str, object]:
    """The request that every peer sends."""
    return {
        "model": "truth",
        "messages": [{"role": "user", "content": load.prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": load.tokens,
    }


def take_chunk(row: Row, text: str) -> None:
    """What one `data:` line tells: the way one would write it, with the clock read after the JSON was parsed."""
    chunk = json.loads(text)
    if chunk.get("usage"):
        row.tokens = chunk["usage"]["completion_tokens"]
    if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
        row.last = time.perf_counter()
        row.events = (row.events or 0) + 1
        if row.first is None:
            row.first = row.last


OneRequest = Callable[[Row], Awaitable[None]]


async def hold(load: Load, one_request: OneRequest, errors: tuple[type[Exception], ...]) -> Result:
    """Hold the load; requests that are open `grace_s` after the window are cut off and counted as not ok.

    `one_request` raises one of `errors` for a request that failed.
    """
    result = Result()
    stopped = False

    async def once(number: int, turn: int) -> None:
        row = Row(f"peer-{number}-{turn}", time.perf_counter())
        result.rows.append(row)
        try:
            await one_request(row)
            row.ok = True
        except errors as error:
            row.error = f"{type(error).__name__}: {error}"[:200]
        finally:
            row.end = time.perf_counter()
        if not row.ok:
            await asyncio.sleep(0.1)

    async def user(number: int) -> None:
        await asyncio.sleep(load.spread_s * number / load.streams)
        turn = 0
        while not stopped:
            await once(number, turn)
            turn += 1

    burst = load.mode == "burst"
    cpu = time.process_time()
    result.open_s = time.perf_counter()
    users = [asyncio.create_task(once(n, 0) if burst else user(n)) for n in range(load.streams)]
    if not burst:
        await asyncio.sleep(load.spread_s + load.warmup_s)
        result.open_s, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(load.seconds)
        result.close_s, result.cpu_s = time.perf_counter(), time.process_time() - cpu
    stopped = True
    _, late = await asyncio.wait(users, timeout=load.grace_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*users, return_exceptions=True)
    if burst:
        result.close_s, result.cpu_s = time.perf_counter(), time.process_time() - cpu
    return result


def raise_open_files() -> None:
    """As many sockets as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def peak_rss_bytes() -> int:
    """The most memory that this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def run_as_process(
    opened: Callable[[Load], contextlib.AbstractAsyncContextManager[OneRequest]],
    errors: tuple[type[Exception], ...],
    *,
    uvloop: bool,
    finish: Callable[[Load, Result], None] = lambda _load, _result: None,
) -> None:
    """Run with the load of the first argument (JSON) and write the result to stdout; `finish` decodes what is left."""
    load = Load(**json.loads(sys.argv[1]))
    raise_open_files()

    async def main() -> Result:
        async with opened(load) as one_request:
            return await hold(load, one_request, errors)

    with asyncio.Runner(loop_factory=_uvloop_factory() if uvloop else None) as runner:
        result = runner.run(main())
    finish(load, result)
    result.rss_bytes = peak_rss_bytes()
    json.dump(asdict(result), sys.stdout)


def _uvloop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """Uvloop where it is installed, else None: asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
