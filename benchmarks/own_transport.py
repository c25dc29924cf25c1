"""agentperf's transport alone, under the same loop of users as the peers: no agents, no decoding, no records.

It is the client of the benchmark of connections, and in the one of accuracy it tells what the transport costs of the
whole. A row of it says when the last byte was sent; it counts no events.
"""

import contextlib
import gc
import json
from collections.abc import AsyncIterator

from agentperf.wire.client import open_caller
from agentperf.wire.endpoint import Limits, parse_endpoint
from benchmarks.bare_protocol import content_stamps
from benchmarks.load import Load, OneRequest, Row, body_of, run_as_process


class FailedRequestError(Exception):
    """What the exchange says went wrong."""


@contextlib.asynccontextmanager
async def opened(load: Load) -> AsyncIterator[OneRequest]:
    """The function that sends one prompt and waits for the end of its stream."""
    body = json.dumps(body_of(load)).encode()
    async with open_caller(parse_endpoint(load.base_url), path="chat/completions", limits=Limits()) as caller:
        gc.collect()
        gc.freeze()
        gc.disable()

        async def one_request(row: Row) -> None:
            exchange = await caller(body, row.id)
            if exchange.error_class is not None or exchange.status != 200:
                raise FailedRequestError(f"{exchange.error_class} {exchange.status}")
            row.events, row.sent_ns, row.tokens = None, exchange.sent_ns, load.tokens
            chunks, stamps = exchange.chunks, exchange.stamps
            ends = range(len(chunks)) if len(chunks) <= 8 else [*range(4), *range(len(chunks) - 4, len(chunks))]
            found = content_stamps([(stamps[i], chunks[i]) for i in ends])
            if found is None:
                raise FailedRequestError("no event with text")
            row.first, row.last = found[0] / 1e9, found[1] / 1e9

        yield one_request


if __name__ == "__main__":
    run_as_process(opened, (FailedRequestError,), uvloop=True)
