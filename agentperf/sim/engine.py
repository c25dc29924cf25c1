"""The model of an inference engine: continuous batching with chunked prefill over a paged KV pool. No I/O, no asyncio.

Time is given by the caller, in seconds of any clock. A step is planned at its start from what is there, takes the
profile's step time, and hands out its tokens at its end. In one step every decoding job gains a token (or several
with speculative decoding); what is left of the step's token budget prefills prompts, running ones first, then waiting
ones in order of arrival. A prompt that is complete gives its first token at the end of that step.

A job is admitted when the pool has room for its whole prompt. When a decoding job needs a block and none is
left, the job that arrived last is preempted: its blocks go, its tokens stay, and its prefill is done again. Blocks
that hold written tokens are never shared.

Steps between two changes of the batch are alike but for the KV tokens that they read, so where single tokens are not
asked for (`each_token` False) they are taken as one stretch in closed form, with the same results: its length is an
arithmetic series, its jitter one draw of the same mean and variance, and an arrival ends it at the next step.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from agentperf.sim.kv import Holding, KvPool, Pool
from agentperf.sim.metrics import Counters, Gauges, Histogram
from agentperf.sim.profile import Profile
from agentperf.sim.stretch import Stretch, draw_factor


class SimRequest(Struct, frozen=True, gc=False):
    """One request, sizes in tokens."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    """Tokens that the model will write, at least 1."""
    block_hashes: Sequence[Any] = ()
    """Names of the whole blocks of the prompt, each with all before it, as the engine's pool takes them."""
    finish_reason: str = "length"
    """For the counters: stop or length."""
    mark: int = 0
    """Besides the first and the last token the one with this number is handed out when it is written (0: none)."""


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
    written: int = 0
    """Tokens written, up to date while it is not decoding; see `Engine.written`."""
    base: int = 0
    """While decoding: tokens written less the engine's count of steps."""
    entry: int = 0
    """Number of its latest entry into decoding."""
    gain: int = 1
    """Tokens that the running step will add, while decoding."""
    sent: int = 0
    """Tokens handed out."""
    holding: Holding | None = None
    admitted_s: float | None = None
    first_s: float | None = None
    """When its first token came out."""
    last_s: float | None = None
    """When its latest token came out, as far as it was handed out."""


class Emission(NamedTuple):
    """Tokens that left the engine at the end of a step; the last of a job when `finished`."""

    job: Job
    tokens: int
    finished: bool


class StepResult(NamedTuple):
    """What a step gave, or a stretch of steps: then its emissions are those of its last step."""

    start_s: float
    end_s: float
    emissions: list[Emission]
    decoded: int
    """Jobs that decoded in it."""
    prefill_tokens: int
    steps: int
    running: int
    """Jobs inside, prefilled or decoding."""


class Engine:
    """Deterministic: the same profile, seed and calls give the same emissions at the same times.

    `each_token` hands out every event of a reply; without it only the first and last token of each job (and the marked
    one) come out, and whole stretches of steps are taken at once.
    """

    def __init__(self, profile: Profile, seed: int = 0, *, each_token: bool = True, pool: Pool | None = None) -> None:
        self.profile = profile
        self.counters = Counters()
        self.pool: Pool = pool or KvPool(profile.kv_pool_tokens // profile.block_tokens)
        self._each_token = each_token
        self._singly = each_token or profile.draft_tokens > 0
        self._random = random.Random(seed)
        self._arrived = 0
        self._entries = 0
        self._waiting: deque[Job] = deque()
        self._prefilling: list[Job] = []
        self._decoding: dict[int, Job] = {}
        """By entry, so in the order in which they entered."""
        self._due: list[tuple[int, int, Job]] = []
        """(step, entry, job): the next token of the job that is to be handed out is written in that step."""
        self._crossing = [0] * profile.block_tokens
        """Decoding jobs by the step, modulo the size of a block, for which they need another block."""
        self._steps = 0
        """Steps that were decoded in."""
        self._kv_tokens = 0
        self._stretch: Stretch | None = None
        self._chunks: list[tuple[Job, int]] = []
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
        # Behind another job it can enter no earlier than that one, for which the stretch was cut already.
        if self._stretch is not None and len(self._waiting) == 1:
            self._stretch.cut(job.ready_s, self._random)
        return job

    def abort(self, job: Job, now_s: float) -> None:
        """Drop a job (the client went away); its blocks are free at once. Nothing happens if it has ended."""
        if job.state in ("done", "aborted"):
            return
        self.settle(now_s)
        if job.state == "waiting":
            self._waiting.remove(job)
        self._leave(job, job.gain)
        job.state = "aborted"
        self.counters.finished["abort"] += 1

    def settle(self, now_s: float) -> None:
        """Count the steps of the running stretch that are over by now; the one that runs goes on alone."""
        stretch = self._stretch
        if stretch is None or stretch.steps == 1:
            return
        over = stretch.over(now_s)
        if over:
            self._decode(over, stretch.leave(over))
            self._make_room()  # what the running step needs is within the blocks that were free for the stretch
        stretch.keep_one()

    def next_s(self) -> float | None:
        """When `advance` is to be called next: the end of the running step, or the start of one; None when idle.

        A submission may make it earlier, but never so early that it lies before the submission.
        """
        if self._stretch is not None:
            return self._stretch.end_s
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
        if self._stretch is not None:
            result = self._complete(self._stretch)
        self._stretch = self._plan(at_s)
        return result

    def gauges(self) -> Gauges:
        """Running, waiting, KV use."""
        return Gauges(self.running, len(self._waiting), self.pool.in_use / self.pool.capacity)

    def seen(self, now_s: float) -> tuple[Counters, Gauges]:
        """Counts and state with the steps of the running stretch that are over by now; changes nothing."""
        stretch, gauges = self._stretch, self.gauges()
        over = stretch.over(now_s) if stretch is not None and stretch.steps > 1 else 0
        if stretch is None or not over:
            return self.counters, gauges
        decoded = len(self._decoding)
        itl = Histogram(self.counters.itl.bounds)
        itl.add(self.counters.itl)
        itl.observe(stretch.factor * stretch.time(over) / over, decoded * over)
        tokens = self.counters.generation_tokens + decoded * over
        blocks = self.pool.in_use + self._blocks_for(1, over)
        counters = replace(self.counters, generation_tokens=tokens, itl=itl)
        return counters, replace(gauges, kv_usage=blocks / self.pool.capacity)

    @property
    def running(self) -> int:
        """Jobs that are being prefilled or decoded."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def load(self) -> int:
        """Jobs that have not ended."""
        return self.running + len(self._waiting)

    def written(self, job: Job) -> int:
        """Tokens that a job has written, as of the last step that was ended."""
        return job.base + self._steps if job.state == "decode" else job.written

    def held(self, job: Job) -> int:
        """Blocks that a job has between two steps."""
        if job.state == "prefill":
            return -(-job.target // self.profile.block_tokens)
        if job.state == "decode":
            # The token that goes into a step is written to the pool in it; the newest one is not there yet.
            return -(-(job.request.prompt_tokens + self.written(job) - 1) // self.profile.block_tokens)
        return 0

    # -- planning a step --------------------------------------------------------------------------------------------

    def _plan(self, now_s: float) -> Stretch | None:
        profile = self.profile
        if profile.draft_tokens:
            self._draw_gains()
        if self._decoding:
            self._make_room()
        decoding = len(self._decoding)
        budget = profile.max_step_tokens - decoding * (1 + profile.draft_tokens)
        chunks = self._chunks = []
        for job in self._prefilling:
            if budget <= 0:
                break
            chunk = min(budget, job.target - job.computed)
            chunks.append((job, chunk))
            budget -= chunk
        while budget > 0 and self._waiting and self._waiting[0].ready_s <= now_s:
            if len(self._prefilling) + decoding >= profile.max_running or not self._admit(now_s):
                break
            job = self._prefilling[-1]
            chunk = min(budget, job.target - job.computed)
            chunks.append((job, chunk))
            budget -= chunk
        if not decoding and not chunks:
            return None
        prefill_tokens = sum(chunk for _, chunk in chunks)
        steps = 1 if chunks or self._singly else self._alike()
        stretch = Stretch(
            start_s=now_s,
            steps=steps,
            first_s=profile.step_s(decoding, self._kv_tokens, prefill_tokens),
            growth_s=profile.step_per_kv_token_s * decoding,
            jitter=profile.jitter,
            prefill_tokens=prefill_tokens,
        )
        draw_factor(stretch, self._random)
        if steps > 1 and self._waiting and self._waiting[0].ready_s > now_s:
            stretch.cut(self._waiting[0].ready_s, self._random)
        return stretch

    def _alike(self) -> int:
        """Steps until a token is to be handed out, as far as there are blocks for them; at least 1."""
        due = self._due
        while due[0][2].state != "decode" or due[0][2].entry != due[0][1]:
            heappop(due)
        steps = due[0][0] - self._steps
        free = self.pool.capacity - self.pool.in_use
        while steps > 1 and self._blocks_for(1, steps - 1) > free:
            steps //= 2
        return steps

    def _blocks_for(self, ahead: int, steps: int) -> int:
        """Blocks that all decoding jobs together need for `steps` steps, the first of them `ahead` steps from now."""
        crossing = self._crossing
        cycles, rest = divmod(steps, len(crossing))
        start = (self._steps + ahead) % len(crossing)
        end = start + rest
        return (
            cycles * len(self._decoding)
            + sum(crossing[start:end])
            + (sum(crossing[: end - len(crossing)]) if end > len(crossing) else 0)
        )

    def _draw_gains(self) -> None:
        """Tokens that each decoding job gains in a step with speculative decoding, never beyond its end."""
        profile, draw = self.profile, self._random.random
        for job in self._decoding.values():
            gain = 1
            while gain <= profile.draft_tokens and draw() < profile.draft_acceptance:
                gain += 1
            job.gain = min(gain, job.request.output_tokens - self.written(job))

    def _make_room(self) -> None:
        """Give every decoding job the blocks for this step; preempt the newest where none are left."""
        if not self.profile.draft_tokens:
            blocks = self._crossing[self._steps % len(self._crossing)]
            if not blocks or self.pool.allocate(blocks):
                return
        block = self.profile.block_tokens
        ready: set[int] = set()
        for job in list(self._decoding.values()):
            # The token that goes in is written to the pool, and so are the accepted ones behind it; the last is not.
            need = -(-(job.request.prompt_tokens + self.written(job) + job.gain - 1) // block)
            while job.state == "decode" and need > self.held(job):
                if self.pool.allocate(need - self.held(job)):
                    ready.add(job.order)
                    break
                self._preempt(ready)
            else:
                ready.add(job.order)

    def _preempt(self, ready: set[int]) -> None:
        """Put the newest running job back to the head of the queue; those in `ready` have blocks for this step."""
        victim = max((*self._prefilling, *self._decoding.values()), key=lambda s: s.order)
        self._leave(victim, victim.gain if victim.order in ready else 0)
        victim.state = "waiting"
        victim.target = victim.request.prompt_tokens + victim.written
        victim.computed = 0
        self.counters.preemptions += 1
        self._waiting.appendleft(victim)

    def _admit(self, now_s: float) -> bool:
        """Move the head of the queue to the running ones if its prompt fits the pool."""
        job = self._waiting[0]
        block = self.profile.block_tokens
        # The last token is always computed, since its output is wanted.
        limit = (job.target - 1) // block if self.profile.prefix_cache else 0
        holding = self.pool.admit(job.request.block_hashes, limit, -(-job.target // block))
        if holding is None:
            return False
        self._waiting.popleft()
        job.holding = holding
        job.computed = holding.count * block
        job.state = "prefill"
        self._prefilling.append(job)
        if job.admitted_s is None:
            job.admitted_s = now_s
            job.cached_tokens = job.computed
            self.counters.queue.observe(now_s - job.arrived_s)
            self.counters.prefix_queries += job.request.prompt_tokens
            self.counters.prefix_hits += job.cached_tokens
        return True

    # -- ending a step ----------------------------------------------------------------------------------------------

    def _complete(self, stretch: Stretch) -> StepResult:
        emissions: list[Emission] = []
        decoded, running, end_s = len(self._decoding), self.running, stretch.end_s
        if decoded:
            self._decode(stretch.steps, end_s - stretch.start_s)
            if self._singly:
                for job in list(self._decoding.values()):
                    self._hand_out(job, end_s, emissions)
            else:
                self._hand_out_due(end_s, emissions)
        for job, chunk in self._chunks:
            if job.state == "prefill":
                self._prefilled(job, chunk, end_s, emissions)
        return StepResult(stretch.start_s, end_s, emissions, decoded, stretch.prefill_tokens, stretch.steps, running)

    def _decode(self, steps: int, seconds: float) -> None:
        """Count the tokens of so many steps; the blocks of the first one are there already."""
        decoded = len(self._decoding)
        if steps > 1:
            fits = self.pool.allocate(self._blocks_for(1, steps - 1))
            assert fits, "a stretch is planned within the free blocks"
        self._steps += steps
        tokens = decoded * steps
        if self.profile.draft_tokens:
            for job in self._decoding.values():
                job.base += job.gain - 1
                tokens += job.gain - 1
        self._kv_tokens += tokens
        self.counters.generation_tokens += tokens
        self.counters.itl.observe(seconds / steps, decoded * steps)

    def _prefilled(self, job: Job, chunk: int, end_s: float, emissions: list[Emission]) -> None:
        block = self.profile.block_tokens
        before = job.computed // block
        job.computed += chunk
        assert job.holding is not None
        if self.profile.prefix_cache and job.computed // block > before:
            self.pool.publish(job.holding, job.request.block_hashes, before, job.computed // block)
        if job.computed < job.target:
            return
        self._prefilling.remove(job)
        self._enter(job)
        self._kv_tokens += job.target + 1
        self.counters.generation_tokens += 1
        if job.first_s is None:
            job.first_s = end_s
            self.counters.prompt_tokens += job.request.prompt_tokens
            self.counters.prompt.observe(job.request.prompt_tokens)
            self.counters.ttft.observe(end_s - job.arrived_s)
        elif self._each_token:
            self.counters.itl.observe(end_s - (job.last_s or end_s))
        self._hand_out(job, end_s, emissions)

    def _enter(self, job: Job) -> None:
        """From prefill to decoding, with one token more."""
        self._entries += 1
        job.entry = self._entries
        job.state = "decode"
        job.base = job.written + 1 - self._steps
        job.gain = 1
        self._decoding[job.entry] = job
        if not self.profile.draft_tokens:
            self._crossing[self._phase(job)] += 1

    def _phase(self, job: Job) -> int:
        """The step, modulo the size of a block, for which it needs another block: fixed where all gain one token."""
        return (1 - job.request.prompt_tokens - job.base) % len(self._crossing)

    def _hand_out_due(self, end_s: float, emissions: list[Emission]) -> None:
        due = self._due
        while due and due[0][0] <= self._steps:
            _, entry, job = heappop(due)
            if job.state == "decode" and job.entry == entry:
                self._hand_out(job, end_s, emissions)

    def _hand_out(self, job: Job, end_s: float, emissions: list[Emission]) -> None:
        """Hand out what is due of the tokens of a decoding job, and let it go when they were its last."""
        request, written = job.request, job.base + self._steps
        finished = written >= request.output_tokens
        if finished:
            self._leave(job, 0)
            job.state = "done"
            self.counters.finished[request.finish_reason] += 1
            self.counters.e2e.observe(end_s - job.arrived_s)
            self.counters.generation.observe(written)
        if self._each_token:
            due = finished or not job.sent or written - job.sent >= self.profile.tokens_per_event
        else:
            due = finished or not job.sent or job.sent < request.mark <= written
        if self._each_token or due:
            job.last_s = end_s
        if due:
            emissions.append(Emission(job, written - job.sent, finished))
            job.sent = written
        if not (finished or self._singly):
            token = request.mark if job.sent < request.mark else request.output_tokens
            heappush(self._due, (token - job.base, job.entry, job))

    def _leave(self, job: Job, gain: int) -> None:
        """Take a running job out and free its blocks, those for `gain` tokens of the running step among them."""
        if job.holding is None:
            return
        blocks = self.held(job)
        if job.state == "decode":
            job.written = job.base + self._steps
            tokens = job.request.prompt_tokens + job.written
            if gain:
                blocks = -(-(tokens + gain - 1) // self.profile.block_tokens)
            del self._decoding[job.entry]
            if not self.profile.draft_tokens:
                self._crossing[self._phase(job)] -= 1
            self._kv_tokens -= tokens
        else:
            self._prefilling.remove(job)
        self.pool.release(job.holding, blocks - job.holding.count)
        job.holding = None
