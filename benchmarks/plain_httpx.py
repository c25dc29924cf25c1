"""The load generator that one would write in an afternoon: httpx, asyncio, `aiter_lines`, `time.perf_counter`.

It is what agentperf is compared with. Two of httpx's defaults are lifted, since with them it could not hold the load at
all: the cap of 100 connections, and the time limit of 5 s on each read. `python -m benchmarks.plain_httpx JSON` runs it
as a process of its own (arguments: the fields of `Load`) and writes the run as JSON.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field

import httpx


@dataclass(frozen=True, slots=True)
class Load:
    """Closed loop: `streams` users, each sending again as soon as its stream has ended."""

    base_url: str
    streams: int
    tokens: int
    prompt: str
    spread_s: float
    warmup_s: float
    seconds: float
    grace_s: float


@dataclass(slots=True)
class Row:
    """One request; times in s of perf_counter."""

    id: str
    t0: float
    first: float | None = None
    last: float | None = None
    events: int = 0
    """Events with content."""
    tokens: int = 0
    end: float = 0.0
    ok: bool = False


@dataclass(slots=True)
class Result:
    """The window, the CPU time used in it, and all requests."""

    open_s: float = 0.0
    close_s: float = 0.0
    cpu_s: float = 0.0
    rows: list[Row] = field(default_factory=list)


async def one_request(client: httpx.AsyncClient, load: Load, row: Row) -> None:
    """Send one prompt and read its stream."""
    body = {
        "model": "truth",
        "messages": [{"role": "user", "content": load.prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": load.tokens,
    }
    url = f"{load.base_url}/chat/completions"
    async with client.stream("POST", url, json=body, headers={"X-Request-Id": row.id}) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if chunk.get("usage"):
                row.tokens = chunk["usage"]["completion_tokens"]
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                row.last = time.perf_counter()
                row.events += 1
                if row.first is None:
                    row.first = row.last


async def run(load: Load) -> Result:
    """Hold the load; requests that are open `grace_s` after the window are cut off and counted as not ok."""
    result = Result()
    stopped = False

    async def user(number: int, client: httpx.AsyncClient) -> None:
        await asyncio.sleep(load.spread_s * number / load.streams)
        turn = 0
        while not stopped:
            row = Row(f"plain-{number}-{turn}", time.perf_counter())
            result.rows.append(row)
            turn += 1
            try:
                await one_request(client, load, row)
                row.ok = True
            except httpx.HTTPError:
                await asyncio.sleep(0.1)
            finally:
                row.end = time.perf_counter()

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:
        users = [asyncio.create_task(user(n, client)) for n in range(load.streams)]
        await asyncio.sleep(load.spread_s + load.warmup_s)
        result.open_s, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(load.seconds)
        result.close_s, result.cpu_s = time.perf_counter(), time.process_time() - cpu
        stopped = True
        _, late = await asyncio.wait(users, timeout=load.grace_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*users, return_exceptions=True)
    return result


def main() -> None:
    """Run with the load that the one argument describes."""
    json.dump(asdict(asyncio.run(run(Load(**json.loads(sys.argv[1]))))), sys.stdout)


if __name__ == "__main__":
    main()
