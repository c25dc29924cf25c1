"""What does it cost to send a turn whose prompt is large? CPU time a request, and copies of the body that are made.

    python -m benchmarks.bodies

The requests of one session go out one behind another to a server that only takes them: as agentperf sends them (the
messages encoded once, the salt spliced in, parts handed to the socket), by the same transport with the messages dumped
anew for each turn, and as httpx's `json=` sends them. Exits with 1 when agentperf takes more than 400 us of CPU for
100 KB, the kernel's copy included.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx
import uvloop

from agentperf.replay.bodies import recorded_body
from agentperf.wire import chat
from agentperf.wire.chat import BodySettings
from agentperf.wire.client import open_caller
from agentperf.wire.endpoint import Limits, parse_endpoint
from agentperf.wire.exchange import size
from agentperf.yardstick.cores import children_on
from benchmarks.cores import split_cores
from benchmarks.figures import markdown, ratio
from benchmarks.ours import Shape, text_of, trees
from benchmarks.sink import sink

BOUND_US, BOUND_KB = 400.0, 100
MESSAGES = 40
"""Messages that a prompt is made of."""
SETTINGS = BodySettings(model="truth", output="max")
SALT = b"[salt 0123456789abcdef] "

Send = Callable[[int], Awaitable[int]]
"""Sends request number n; the length of its body."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one way to send bodies of one size, a request."""

    way: str
    kilobytes: int
    cpu_us: float
    wall_us: float
    copies: float
    """Most memory that was newly held during a request, over the length of the body."""


def messages_of(kilobytes: int) -> list[dict[str, object]]:
    """A prompt of that size."""
    chars = kilobytes * 1000 // MESSAGES
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text_of(chars, f"Message {i}")} for i in range(MESSAGES)]


@contextlib.asynccontextmanager
async def _agentperf(base_url: str, kilobytes: int) -> AsyncIterator[Send]:
    """As an agent does: parts of the session's buffer, and the salt."""
    chars = kilobytes * 1000 // MESSAGES
    session = trees(Shape(16, trees=1, turns=MESSAGES, first_chars=chars, step_chars=chars))[0].sessions[0]
    turn, head = session.turns[-1], chat.body_head(SETTINGS)
    async with open_caller(parse_endpoint(base_url), path=chat.PATH, limits=Limits()) as caller:

        async def send(number: int) -> int:
            tail = chat.body_tail(SETTINGS, session.tools, turn.output_tokens)
            body = recorded_body(session, turn, SALT, head, tail)
            exchange = await caller(body, f"r-{number}")
            assert exchange.status == 200, exchange.error
            return size(body)

        yield send


@contextlib.asynccontextmanager
async def _dumped(base_url: str, kilobytes: int) -> AsyncIterator[Send]:
    """The same transport, the messages dumped anew for each turn."""
    messages = messages_of(kilobytes)
    async with open_caller(parse_endpoint(base_url), path=chat.PATH, limits=Limits()) as caller:

        async def send(number: int) -> int:
            body = json.dumps({"model": "truth", "messages": messages, "stream": True, "max_tokens": 16}).encode()
            exchange = await caller(body, f"r-{number}")
            assert exchange.status == 200, exchange.error
            return len(body)

        yield send


@contextlib.asynccontextmanager
async def _httpx(base_url: str, kilobytes: int) -> AsyncIterator[Send]:
    """What one would write first."""
    messages = messages_of(kilobytes)
    async with httpx.AsyncClient(timeout=None, trust_env=False) as client:

        async def send(number: int) -> int:
            body = {"model": "truth", "messages": messages, "stream": True, "max_tokens": 16}
            headers = {"X-Request-Id": f"r-{number}"}
            response = await client.post(f"{base_url}/chat/completions", json=body, headers=headers)
            assert response.status_code == 200
            return int(response.request.headers["content-length"])

        yield send


WAYS = {"agentperf": _agentperf, "json.dumps, own transport": _dumped, "httpx json=": _httpx}


async def cost(way: str, base_url: str, kilobytes: int, requests: int) -> Cost:
    """CPU and wall time of `requests` requests, after some that warm up; copies by a few more that are traced."""
    async with WAYS[way](base_url, kilobytes) as send:
        for number in range(10):
            await send(number)
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        for number in range(requests):
            await send(number)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        copies = [await _copies(send) for _ in range(3)]
    return Cost(way, kilobytes, cpu * 1e6 / requests, wall * 1e6 / requests, min(copies))


async def _copies(send: Send) -> float:
    """Peak of memory newly held by Python objects during one request, over the length of its body."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        length = await send(0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (peak - before) / length


def table(found: Sequence[Cost]) -> str:
    """Markdown; ratios are to agentperf's at the same size."""
    rows = [["body", "way", "CPU a request", "ratio", "wall", "copies of the body"]]
    for c in found:
        ours = next(o for o in found if o.kilobytes == c.kilobytes and o.way == "agentperf")
        behind = "" if c is ours else ratio(c.cpu_us, ours.cpu_us)
        rows.append(
            [f"{c.kilobytes} KB", c.way, f"{c.cpu_us:,.0f} us", behind, f"{c.wall_us:,.0f} us", f"{c.copies:.2f}"]
        )
    return markdown(rows)


async def _all(base_url: str, sizes: Sequence[int], requests: int) -> list[Cost]:
    return [await cost(way, base_url, kilobytes, requests) for kilobytes in sizes for way in WAYS]


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 within the bound, 1 not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bodies", description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=300, help="requests of each size and way (default 300)")
    parser.add_argument("--sizes", default="100,500", help="sizes of bodies in KB (default 100,500)")
    options = parser.parse_args(argv)
    try:
        sizes = [int(part) for part in options.sizes.split(",")]
    except ValueError:
        sizes = []
    if not (1 <= options.requests <= 10_000 and sizes and all(1 <= s <= 5000 for s in sizes)):
        parser.error("1 to 10000 requests; sizes of 1 to 5000 KB, separated by commas")
    client_cores, server_core = split_cores()
    sink_cores = frozenset() if server_core is None else frozenset({server_core})
    with (
        sink(sink_cores, 300.0) as base_url,
        children_on(client_cores),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(_all(base_url, sizes, options.requests))
    print(f"{table(found)}\n")
    return conclude(found)


def conclude(found: Sequence[Cost]) -> int:
    """Print the verdict, where the size that has a bound was measured; the exit code."""
    ours = next((c for c in found if c.way == "agentperf" and c.kilobytes == BOUND_KB), None)
    if ours is None:
        return 0
    within = ours.cpu_us <= BOUND_US
    verdict = "within" if within else "MISSED"
    print(f"- agentperf: {ours.cpu_us:.0f} us of CPU for {BOUND_KB} KB <= {BOUND_US:.0f} us: {verdict}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
