"""The load generator that one would write in an afternoon: httpx, asyncio, `aiter_lines`, `time.perf_counter`.

It is what agentperf is compared with. Two of httpx's defaults are lifted, since with them it could not hold the load at
all: the cap of 100 connections, and the time limit of 5 s on each read. `python -m benchmarks.plain_httpx JSON` runs it
as a process of its own (arguments: the fields of `Load`) and writes the run as JSON.
"""

import contextlib
from collections.abc import AsyncIterator

import httpx

from benchmarks.load import Load, OneRequest, Row, body_of, run_as_process, take_chunk


@contextlib.asynccontextmanager
async def opened(load: Load) -> AsyncIterator[OneRequest]:
    """The function that sends one prompt and reads its stream."""
    url, body = f"{load.base_url}/chat/completions", body_of(load)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:

        async def one_request(row: Row) -> None:
            async with client.stream("POST", url, json=body, headers={"X-Request-Id": row.id}) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        take_chunk(row, line[6:])

        yield one_request


if __name__ == "__main__":
    run_as_process(opened, (httpx.HTTPError,), uvloop=False)
