"""A load generator that keeps each user's session as a list of messages of its own, and dumps it for each turn.

What one would write first for agents: it is what agentperf's memory is compared with. `python -m benchmarks.naive JSON`
runs it as a process of its own (arguments: the fields of `Load`).
"""

import contextlib
from collections.abc import AsyncIterator

import httpx

from benchmarks.load import Load, OneRequest, Row, body_of, run_as_process, take_chunk

MESSAGE_CHARS = 10_000


def session_of(user: str, chars: int) -> list[dict[str, object]]:
    """A session of that length, whose texts no other user shares."""
    count = max(1, chars // MESSAGE_CHARS)
    text = "Read the file and say what it does, line by line. " * (chars // count // 50 + 1)
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": f"{user} {i} {text}"[: chars // count]} for i in range(count)]


@contextlib.asynccontextmanager
async def opened(load: Load) -> AsyncIterator[OneRequest]:
    """The function that sends a user's whole session and reads the stream."""
    url = f"{load.base_url}/chat/completions"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    sessions: dict[str, list[dict[str, object]]] = {}
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:

        async def one_request(row: Row) -> None:
            user = row.id.rpartition("-")[0]
            messages = sessions.setdefault(user, []) or session_of(user, load.history_chars)
            sessions[user] = messages
            messages.append({"role": "user", "content": load.prompt})
            body = {**body_of(load), "messages": messages}
            async with client.stream("POST", url, json=body, headers={"X-Request-Id": row.id}) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        take_chunk(row, line[6:])
            messages.append({"role": "assistant", "content": "Done."})

        yield one_request


if __name__ == "__main__":
    run_as_process(opened, (httpx.HTTPError,), uvloop=False)
