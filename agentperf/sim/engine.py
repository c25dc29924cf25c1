"""The model of an inference engine: continuous batching with chunked prefill over a paged KV pool. No I/O, no asyncio.

Time is given by the caller, in seconds of any clock. A step is planned at its start from what is there, takes the
profile's step time, and hands out its tokens at its end. In one step every decoding job gains a token (or several
with speculative decoding); what is left of the step's token budget prefills prompts, running ones first, then waiting
ones in order of arrival. A prompt that is complete gives its first token at the end of that step.

A job is admitted when the pool has room for its whole prompt. When a decoding job needs a block and none is
left, the job that arrived last is preempted: its blocks go, its tokens stay, and its prefill is done again. Blocks
that hold written tokens are never shared.
"""

import math
import random
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from agentperf.sim.kv import KvPool
from agentperf.sim.metrics import Counters, Gauges
from agentperf.sim.profile import Profile


class SimRequest(Struct, frozen=True, gc=False):
    """One request, sizes in tokens; `block_hashes` name the whole blocks of the prompt, each with all before it."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    """Tokens that the model will write, at least 1."""
    block_hashes: Sequence[Hashable] = ()
    finish_reason: str = "length"
    """For the counters: stop or length."""


class Job(Struct, eq=False):
    """A request inside the engine."""

    request: SimRequest
    arrived_s: float
    ready_s: float
    """When a step may take it."""
    order: int
    target: int
    """Tokens to prefill: the prompt, and after a preemption what was written before it as well."""
    sink: Any = None
    """The caller's own."""
    state: Literal["waiting", "prefill", "decode", "done", "aborted"] = "waiting"
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at first admission."""
    computed: int = 0
    """Tokens of `target` whose KV is there."""
    generated: int = 0
    gain: int = 1
    """Tokens that the running step will add, while decoding."""
    unsent: int = 0
    """Tokens written and not yet handed out (events of several tokens)."""
    pinned: list[Hashable] = []
    private: int = 0
    room: int = 0
    """Tokens that its blocks can hold."""
    admitted_s: float | None = None
    first_s: float | None = None
    """When its first token came out."""
    last_s: float | None = None
    """When its latest token came out."""


class Emission(NamedTuple):
    """Tokens that left the engine at the end of a step; the last of a job when `finished`."""

    job: Job
    tokens: int
    finished: bool


class StepResult(NamedTuple):
    """What a step gave."""

    start_s: float
    end_s: float
    emissions: list[Emission]
    decoded: int
    """Jobs that decoded in it."""
    prefill_tokens: int


class _Step(NamedTuple):
    start_s: float
    end_s: float
    decoding: list[Job]
    chunks: list[tuple[Job, int]]
    prefill_tokens: int


class Engine:
    """Deterministic: the same profile, seed and calls give the same emissions at the same times."""

    def __init__(self, profile: Profile, seed: int = 0) -> None:
        self.profile = profile
        self.counters = Counters()
        self.pool = KvPool(profile.kv_pool_tokens // profile.block_tokens)
        self._random = random.Random(seed)
        self._arrived = 0
        self._waiting: deque[Job] = deque()
        self._prefilling: list[Job] = []
        self._decoding: list[Job] = []
        self._kv_tokens = 0
        self._step: _Step | None = None
        self._now_s = 0.0

    # -- calls of the outside ---------------------------------------------------------------------------------------

    def submit(self, request: SimRequest, now_s: float, sink: Any = None) -> Job:
        """Put a request into the queue. ValueError when it can never fit."""
        total = request.prompt_tokens + request.output_tokens
        if request.prompt_tokens < 1 or request.output_tokens < 1 or total > self.profile.context_tokens:
            raise ValueError(f"{request.prompt_tokens} + {request.output_tokens} tokens cannot be served")
        job = Job(
            request=request,
            arrived_s=now_s,
            ready_s=now_s + self.profile.ttft_overhead_s,
            order=self._arrived,
            sink=sink,
            target=request.prompt_tokens,
        )
        self._arrived += 1
        self._waiting.append(job)
        return job

    def abort(self, job: Job) -> None:
        """Drop a job (the client went away); its blocks are free at once. Nothing happens if it has ended."""
        if job.state in ("done", "aborted"):
            return
        if job.state == "waiting":
            self._waiting.remove(job)
        self._leave(job)
        job.state = "aborted"
        self.counters.finished["abort"] += 1

    def next_s(self) -> float | None:
        """When `advance` is to be called next: the end of the running step, or the start of one; None when idle.

        A submission may make it earlier only where no step is running.
        """
        if self._step is not None:
            return self._step.end_s
        if self._waiting:
            return max(self._now_s, self._waiting[0].ready_s)
        return None

    def advance(self) -> StepResult | None:
        """Go on to `next_s()`: end the running step and begin the next one, or begin a first one (then None)."""
        result = None
        at_s = self.next_s()
        if at_s is None:
            return None
        self._now_s = at_s
        if self._step is not None:
            result = self._complete(self._step)
        self._step = self._plan(at_s)
        return result

    def gauges(self) -> Gauges:
        """Running, waiting, KV use."""
        running = len(self._prefilling) + len(self._decoding)
        return Gauges(running, len(self._waiting), self.pool.in_use / self.pool.capacity)

    # -- a step -----------------------------------------------------------------------------------------------------

    def _plan(self, now_s: float) -> _Step | None:
        profile = self.profile
        if profile.draft_tokens:
            self._draw_gains()
        self._make_room()
        decoding = list(self._decoding)
        budget = profile.max_step_tokens - len(decoding) * (1 + profile.draft_tokens)
        chunks: list[tuple[Job, int]] = []
        for job in self._prefilling:
            if budget <= 0:
                break
            chunk = min(budget, job.target - job.computed)
            chunks.append((job, chunk))
            budget -= chunk
        while budget > 0 and self._waiting and self._waiting[0].ready_s <= now_s:
            if len(self._prefilling) + len(decoding) >= profile.max_running or not self._admit(now_s):
                break
            job = self._prefilling[-1]
            chunk = min(budget, job.target - job.computed)
            chunks.append((job, chunk))
            budget -= chunk
        if not decoding and not chunks:
            return None
        prefill_tokens = sum(chunk for _, chunk in chunks)
        seconds = profile.step_s(len(decoding), self._kv_tokens, prefill_tokens)
        if profile.jitter:
            seconds *= math.exp(self._random.gauss(0.0, profile.jitter) - profile.jitter**2 / 2)
        return _Step(now_s, now_s + seconds, decoding, chunks, prefill_tokens)

    def _draw_gains(self) -> None:
        """Tokens that each decoding job gains in a step with speculative decoding, never beyond its end."""
        profile, draw = self.profile, self._random.random
        for job in self._decoding:
            gain = 1
            while gain <= profile.draft_tokens and draw() < profile.draft_acceptance:
                gain += 1
            job.gain = min(gain, job.request.output_tokens - job.generated)

    def _make_room(self) -> None:
        """Give every decoding job the blocks for this step; preempt the newest where none are left."""
        block = self.profile.block_tokens
        for job in list(self._decoding):
            # The token that goes in is written to the pool, and so are the accepted ones behind it; the last is not.
            need = job.request.prompt_tokens + job.generated + job.gain - 1
            while need > job.room and job.state == "decode":
                blocks = -(-(need - job.room) // block)
                if self.pool.allocate(blocks):
                    job.private += blocks
                    job.room += blocks * block
                else:
                    self._preempt()

    def _preempt(self) -> None:
        """Put the newest running job back to the head of the queue."""
        victim = max((*self._prefilling, *self._decoding), key=lambda s: s.order)
        self._leave(victim)
        victim.state = "waiting"
        victim.target = victim.request.prompt_tokens + victim.generated
        victim.computed = 0
        self.counters.preemptions += 1
        self._waiting.appendleft(victim)

    def _admit(self, now_s: float) -> bool:
        """Move the head of the queue to the running ones if its prompt fits the pool."""
        job = self._waiting[0]
        block = self.profile.block_tokens
        hashes = job.request.block_hashes
        # The last token is always computed, since its output is wanted.
        limit = min((job.target - 1) // block, len(hashes)) if self.profile.prefix_cache else 0
        hits = self.pool.match(hashes, limit)
        found = list(hashes[:hits])
        blocks = -(-job.target // block) - hits
        if blocks + self.pool.idle_among(found) > self.pool.capacity - self.pool.in_use:
            return False
        self.pool.pin(found)
        self.pool.allocate(blocks)
        self._waiting.popleft()
        job.pinned = found
        job.private = blocks
        job.room = (hits + blocks) * block
        job.computed = hits * block
        job.state = "prefill"
        self._prefilling.append(job)
        if job.admitted_s is None:
            job.admitted_s = now_s
            job.cached_tokens = hits * block
            self.counters.queue.observe(now_s - job.arrived_s)
            self.counters.prefix_queries += job.request.prompt_tokens
            self.counters.prefix_hits += job.cached_tokens
        return True

    def _complete(self, step: _Step) -> StepResult:
        emissions: list[Emission] = []
        decoded = 0
        for job in step.decoding:
            if job.state == "decode":  # it may have been aborted meanwhile
                decoded += 1
                self._kv_tokens += job.gain
                self._write(job, job.gain, step.end_s, emissions)
        if decoded:
            self.counters.itl.observe(step.end_s - step.start_s, decoded)
        for job, chunk in step.chunks:
            if job.state == "prefill":
                self._prefilled(job, chunk, step.end_s, emissions)
        return StepResult(step.start_s, step.end_s, emissions, decoded, step.prefill_tokens)

    def _prefilled(self, job: Job, chunk: int, end_s: float, emissions: list[Emission]) -> None:
        block = self.profile.block_tokens
        hashes = job.request.block_hashes
        before = job.computed // block
        job.computed += chunk
        if self.profile.prefix_cache:
            for index in range(before, min(job.computed // block, len(hashes))):
                if self.pool.publish(hashes[index]):
                    job.pinned.append(hashes[index])
                    job.private -= 1
        if job.computed < job.target:
            return
        self._prefilling.remove(job)
        self._decoding.append(job)
        job.state = "decode"
        self._kv_tokens += job.target + 1
        if job.first_s is None:
            job.first_s = end_s
            self.counters.prompt_tokens += job.request.prompt_tokens
            self.counters.prompt.observe(job.request.prompt_tokens)
            self.counters.ttft.observe(end_s - job.arrived_s)
        else:
            self.counters.itl.observe(end_s - (job.last_s or end_s))
        self._write(job, 1, end_s, emissions)

    def _write(self, job: Job, gain: int, end_s: float, emissions: list[Emission]) -> None:
        """Count `gain` new tokens and hand out what is due."""
        first = job.generated == 0
        job.generated += gain
        job.unsent += gain
        job.last_s = end_s
        self.counters.generation_tokens += gain
        finished = job.generated >= job.request.output_tokens
        if finished:
            self._leave(job)
            job.state = "done"
            self.counters.finished[job.request.finish_reason] += 1
            self.counters.e2e.observe(end_s - job.arrived_s)
            self.counters.generation.observe(job.generated)
        if finished or first or job.unsent >= self.profile.tokens_per_event:
            emissions.append(Emission(job, job.unsent, finished))
            job.unsent = 0

    def _leave(self, job: Job) -> None:
        """Take a running job out and free its blocks."""
        if job.state == "decode":
            self._decoding.remove(job)
            self._kv_tokens -= job.request.prompt_tokens + job.generated
        elif job.state == "prefill":
            self._prefilling.remove(job)
        self.pool.release(job.pinned, job.private)
        job.pinned = []
        job.private = job.room = 0
