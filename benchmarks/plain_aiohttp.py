"""The same afternoon's work on aiohttp, on uvloop where it is installed: lines of `response.content`, `json.loads`.

Lifted are aiohttp's cap of 100 connections and its limit of 5 minutes. It runs as `python -m benchmarks.plain_aiohttp
JSON` under an interpreter that has aiohttp, see `venvs.py`.
"""

import contextlib
from collections.abc import AsyncIterator

import aiohttp

from benchmarks.load import Load, OneRequest, Row, body_of, run_as_process, take_chunk


@contextlib.asynccontextmanager
async def opened(load: Load) -> AsyncIterator[OneRequest]:
    """The function that sends one prompt and reads its stream."""
    url, body = f"{load.base_url}/chat/completions", body_of(load)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def one_request(row: Row) -> None:
            async with session.post(url, json=body, headers={"X-Request-Id": row.id}) as response:
                response.raise_for_status()
                async for line in response.content:
                    text = line.decode().strip()
                    if text.startswith("data: ") and text != "data: [DONE]":
                        take_chunk(row, text[6:])

        yield one_request


if __name__ == "__main__":
    run_as_process(opened, (aiohttp.ClientError, OSError), uvloop=True)
