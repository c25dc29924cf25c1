"""The simulated server inside the running event loop, in its time: for capacity planning and tests of the search.

A request costs a few events of the loop however long its prompt and its reply are. What comes back is the exchange that
a transport would have seen of a condensed stream: the first token, the first one behind the reasoning where there is
some, and the last one, each with its stamp and the text up to it.
"""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from agentperf.clock import loop_now_ns
from agentperf.sim.bodies import BodyReader
from agentperf.sim.driver import VIRTUAL_SLACK_S
from agentperf.sim.engine import Emission, Engine, Job
from agentperf.sim.profile import Profile
from agentperf.sim.replicas import Replicas
from agentperf.sim.runs import RunPool
from agentperf.sim.service import SIMULATED_HEADER, Accepted, Refusal, Service
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

    `caller` sends a body and gives its exchange. With `each_token` the streams are not condensed: an event for each
    token, slower by their number, with the same times.
    """

    def __init__(self, profile: Profile, seed: int = 0, *, each_token: bool = False) -> None:
        self.profile = profile
        self.seed = seed
        self._each_token = each_token
        self._service = Service(profile, seed)
        self._reader = BodyReader(profile)
        self.replicas = Replicas(profile, seed, RunPool, each_token=each_token)

    async def __aenter__(self) -> Self:
        self.replicas.start(asyncio.get_running_loop().time, VIRTUAL_SLACK_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.replicas.stop()

    @property
    def engine(self) -> Engine:
        """The first replica, or the only one."""
        return self.replicas.engines[0]

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
        if not self.replicas.running:
            raise RuntimeError("the virtual endpoint is not open")
        now_ns = loop_now_ns()
        exchange = Exchange(t0_ns=now_ns, connected_ns=now_ns, sent_ns=now_ns, new_connection=False)
        exchange.headers = [(SIMULATED_HEADER, "1"), ("x-request-id", request_id)]
        prepared = self._prepare(body, now_ns // 1_000_000_000)
        if not isinstance(prepared, Accepted):
            await asyncio.sleep(self.profile.ttft_overhead_s)
            exchange.status = prepared.status
            _add(exchange, loop_now_ns(), prepared.body)
            return exchange
        exchange.status = 200
        exchange.condensed = prepared.stream and not self._each_token
        await self._generate(prepared, exchange)
        return exchange

    def _prepare(self, body: Body, created: int) -> Accepted | Refusal:
        known = self._reader.read(body)
        if known is not None:
            return self._service.prepare_known(known, created)
        return self._service.prepare(whole(body), created, as_runs=True)

    async def _generate(self, accepted: Accepted, exchange: Exchange) -> None:
        """Wait for the reply, and put it into the exchange event by event."""
        driver = self.replicas.choose(run[0] for run in reversed(accepted.request.block_hashes))
        reply = _Reply(accepted, exchange, asyncio.get_running_loop().create_future())
        job = driver.submit(accepted.request, reply.take)
        try:
            await reply.done
        except asyncio.CancelledError:
            driver.abort(job)
            raise


class _Reply:
    """Fills one exchange."""

    __slots__ = ("accepted", "done", "exchange", "written")

    def __init__(self, accepted: Accepted, exchange: Exchange, done: "asyncio.Future[None]") -> None:
        self.accepted = accepted
        self.exchange = exchange
        self.done = done
        self.written = 0

    def take(self, emission: Emission, at_s: float) -> None:
        """Tokens that came out of the engine."""
        if self.accepted.stream:
            self.exchange.stamps.append(round(at_s * 1e9))
            self.exchange.chunks.append(self.accepted.writer.event(self.written, emission.tokens))
        self.written += emission.tokens
        if emission.finished and not self.done.done():
            self._finish(emission.job, round(at_s * 1e9))
            self.done.set_result(None)

    def _finish(self, job: Job, at_ns: int) -> None:
        exchange, accepted = self.exchange, self.accepted
        if accepted.stream:
            exchange.chunks[-1] += accepted.last(job.cached_tokens)
        else:
            _add(exchange, at_ns, accepted.whole(job.cached_tokens))
        exchange.end_ns = exchange.stamps[-1]


def _add(exchange: Exchange, now_ns: int, data: bytes) -> None:
    exchange.stamps.append(now_ns)
    exchange.chunks.append(data)
    exchange.end_ns = now_ns
