"""The simulated server inside the running event loop, in its time: for capacity planning and tests of the search."""

import asyncio
from array import array
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from agentperf.clock import loop_now_ns
from agentperf.sim.driver import VIRTUAL_SLACK_S, EngineDriver
from agentperf.sim.engine import Emission, Engine
from agentperf.sim.profile import Profile
from agentperf.sim.service import SIMULATED_HEADER, Accepted, Service
from agentperf.wire.exchange import Body, Caller, Exchange, whole


@dataclass(frozen=True, slots=True)
class SimFacts:
    """What is known of a simulated endpoint without asking it."""

    model: str
    context_tokens: int
    bytes_per_token: float
    message_overhead_tokens: int
    profile: str
    seed: int
    simulated: bool = True
    ignore_eos: bool = True
    include_usage: bool = True
    cached_tokens: bool = True


class VirtualEndpoint:
    """An endpoint without sockets. Use it as an async context manager inside the loop whose time it shall share.

    `caller` sends a body and gives the exchange that a transport would have seen: SSE bytes, stamps of the loop clock.
    """

    def __init__(self, profile: Profile, seed: int = 0) -> None:
        self.profile = profile
        self.seed = seed
        self.engine = Engine(profile, seed)
        self._service = Service(profile, seed)
        self._driver: EngineDriver | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._driver = EngineDriver(self.engine, loop.time, VIRTUAL_SLACK_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._driver is not None:
            self._driver.close()
        self._driver = None

    @property
    def facts(self) -> SimFacts:
        """What the capability check of a real endpoint would have found out."""
        profile = self.profile
        return SimFacts(
            model=profile.model,
            context_tokens=profile.context_tokens,
            bytes_per_token=profile.bytes_per_token,
            message_overhead_tokens=profile.message_overhead_tokens,
            profile=profile.name,
            seed=self.seed,
        )

    @property
    def caller(self) -> Caller:
        """The way in, in the place of a transport."""
        return self._call

    async def _call(self, body: Body, request_id: str) -> Exchange:
        if self._driver is None:
            raise RuntimeError("the virtual endpoint is not open")
        now_ns = loop_now_ns()
        exchange = Exchange(t0_ns=now_ns, connected_ns=now_ns, sent_ns=now_ns, new_connection=False)
        exchange.headers = [(SIMULATED_HEADER, "1"), ("x-request-id", request_id)]
        prepared = self._service.prepare(whole(body), now_ns // 1_000_000_000)
        if not isinstance(prepared, Accepted):
            await asyncio.sleep(self.profile.ttft_overhead_s)
            exchange.status = prepared.status
            _add(exchange, loop_now_ns(), prepared.body)
            return exchange
        tokens = await self._generate(self._driver, prepared, exchange)
        exchange.status = 200
        _write_chunks(exchange, prepared, tokens)
        return exchange

    async def _generate(self, driver: EngineDriver, accepted: Accepted, exchange: Exchange) -> "array[int]":
        """Wait for the reply; stamps go into the exchange, the tokens of each event come back, then the cached ones."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stamp = exchange.stamps.append
        tokens = array("q")

        def sink(emission: Emission, at_s: float) -> None:
            stamp(round(at_s * 1e9))
            tokens.append(emission.tokens)
            if emission.finished and not done.done():
                done.set_result(None)

        job = driver.submit(accepted.request, sink)
        try:
            await done
        except asyncio.CancelledError:
            driver.abort(job)
            raise
        tokens.append(job.cached_tokens)
        return tokens


def _write_chunks(exchange: Exchange, accepted: Accepted, tokens: "array[int]") -> None:
    """One chunk for each event, as a reader that keeps up would see them."""
    cached_tokens = tokens.pop()
    if not accepted.stream:
        del exchange.stamps[:-1]
        exchange.chunks = [accepted.whole(cached_tokens)]
    else:
        event = accepted.writer.event
        start = 0
        chunks: list[bytes] = []
        for count in tokens:
            chunks.append(event(start, count))
            start += count
        chunks[0] = accepted.writer.first() + chunks[0]
        chunks[-1] += accepted.last(cached_tokens)
        exchange.chunks = chunks
    exchange.end_ns = exchange.stamps[-1]


def _add(exchange: Exchange, now_ns: int, data: bytes) -> None:
    exchange.stamps.append(now_ns)
    exchange.chunks.append(data)
    exchange.end_ns = now_ns
