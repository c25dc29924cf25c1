"""Ground truth: what N agents get from a profile, by direct simulation of the engine.

Nothing of the measuring client is used here: no bodies, no streams, no decoding, no windows of probes. Tests compare
the search, which goes through all of these, with the capacity found here.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np

from agentperf.sim.engine import Engine, Job, SimRequest
from agentperf.sim.profile import Profile
from agentperf.sim.prompt import HASH_BYTES, ChatMessage, block_bytes, message_bytes, prompt_tokens
from agentperf.trace.model import Message
from agentperf.trace.render import RenderedSession, RenderedTree

SALT_BYTES = 13
"""Length of the text by which a play keeps its prompts apart from those of other plays."""


@dataclass(frozen=True, slots=True)
class TrueMetrics:
    """Of the requests issued in the window. Speed is (n - 1) / (last token - first token) of one request, in tok/s."""

    agents: int
    requests: int
    speed_p10: float
    speed_p25: float
    speed_p50: float
    ttft_p50: float
    ttft_p95: float
    cached_share: float
    """Cached of all prompt tokens."""
    output_tokens_per_s: float
    running: float
    """Mean of the jobs inside the engine, over its steps."""


@dataclass(frozen=True, slots=True)
class _Call:
    request_id: str
    depends_on: tuple[str, ...]
    delay_s: float
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[bytes, ...]
    shared: int
    """How many of the first blocks lie before the salt, and so are the same in every play."""


_Tree = list[list[_Call]]


class _PromptBytes:
    """A growing prompt: its size and the hashes of its blocks; what follows a break is hashed anew."""

    def __init__(self, session: RenderedSession, profile: Profile, *, salted: bool) -> None:
        self._overhead = round(profile.message_overhead_tokens * profile.bytes_per_token)
        self._block = block_bytes(profile)
        self._tools = msgspec.json.encode(list(session.tools)) if session.tools else b""
        self._salt_message = session.salt_message if salted else -1
        self._messages: list[bytes] = []
        self._start()

    def _start(self) -> None:
        self.size = 0
        self.salt_at: int | None = None
        self.hashes: list[bytes] = []
        self._running = blake2b(digest_size=HASH_BYTES)
        self._rest = b""
        self._feed(self._tools)

    def turn(self, keep: int, new: Sequence[Message]) -> None:
        """Keep the first `keep` messages, add the new ones."""
        if keep < len(self._messages):
            kept = self._messages[:keep]
            self._messages = []
            self._start()
            for data in kept:
                self._add(data)
        for message in new:
            text = message
            if len(self._messages) == self._salt_message:
                text = _salted(message)
            self._add(message_bytes(msgspec.convert(text, ChatMessage), self._overhead))

    def _add(self, data: bytes) -> None:
        if len(self._messages) == self._salt_message:
            self.salt_at = self.size + self._overhead
        self._messages.append(data)
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        self.size += len(data)
        data = self._rest + data
        whole = len(data) // self._block * self._block
        for start in range(0, whole, self._block):
            self._running.update(data[start : start + self._block])
            self.hashes.append(self._running.copy().digest())
        self._rest = data[whole:]

    def shared_blocks(self) -> int:
        """Whole blocks before the salt; all of them where there is none."""
        return len(self.hashes) if self.salt_at is None else self.salt_at // self._block


def _salted(message: Message) -> dict[str, Any]:
    salt = "s" * SALT_BYTES
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": salt}, *content]}
    return {**message, "content": salt + (content or "")}


def _calls(session: RenderedSession, profile: Profile, *, salted: bool, output_cap: int) -> list[_Call]:
    """The session's calls up to the first that does not fit the context."""
    prompt = _PromptBytes(session, profile, salted=salted)
    calls: list[_Call] = []
    previous: tuple[str, ...] = ()
    for turn in session.turns:
        prompt.turn(turn.keep_messages, turn.new_messages)
        tokens = prompt_tokens(prompt.size, profile)
        output = max(1, min(turn.output_tokens, output_cap))
        if tokens + output > profile.context_tokens:
            break
        calls.append(
            _Call(
                request_id=turn.request_id,
                depends_on=tuple(d.request_id for d in turn.depends_on) or previous,
                delay_s=turn.delay_ms / 1e3,
                prompt_tokens=tokens,
                output_tokens=output,
                hashes=tuple(prompt.hashes),
                shared=prompt.shared_blocks(),
            )
        )
        previous = (turn.request_id,)
    return calls


@dataclass(slots=True)
class _Play:
    """One replay of one tree: where each of its sessions stands, and when its requests were complete."""

    number: int
    tree: _Tree
    began_s: float
    known: frozenset[str]
    done_s: dict[str, float] = field(default_factory=dict)
    position: list[int] = field(default_factory=list)
    busy: list[bool] = field(default_factory=list)

    def ready(self) -> Iterator[tuple[int, _Call, float]]:
        """(session, call, due time) of each session that can go on."""
        for index, calls in enumerate(self.tree):
            if self.busy[index] or self.position[index] >= len(calls):
                continue
            call = calls[self.position[index]]
            needs = [d for d in call.depends_on if d in self.known]
            if all(d in self.done_s for d in needs):
                yield index, call, max((self.done_s[d] for d in needs), default=self.began_s) + call.delay_s

    @property
    def over(self) -> bool:
        """True when nothing of it is left."""
        return not any(self.busy) and all(p >= len(c) for p, c in zip(self.position, self.tree, strict=True))


class _World:
    """N agents in closed loop on one engine, driven by a heap of events."""

    def __init__(self, profile: Profile, trees: list[_Tree], agents: int, seed: int, spread_s: float) -> None:
        self.engine = Engine(profile, seed, each_token=False)
        self._trees = trees
        self._random = random.Random(f"truth {seed} {agents}")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._plays = itertools.count()
        self._deck: list[int] = []
        self.jobs: list[Job] = []
        self.steps = 0
        self.running_sum = 0
        self.now_s = 0.0
        for _ in range(agents):
            self._at(self._random.uniform(0.0, spread_s), partial(self._begin, first=True))

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), action))

    def _begin(self, *, first: bool = False) -> None:
        if not self._deck:
            self._deck = list(range(len(self._trees)))
            self._random.shuffle(self._deck)
        tree = self._trees[self._deck.pop()]
        known = frozenset(call.request_id for calls in tree for call in calls)
        play = _Play(next(self._plays), tree, self.now_s, known)
        play.position = [0] * len(tree)
        play.busy = [False] * len(tree)
        if first:
            self._enter(play)
        self._go_on(play)

    def _enter(self, play: _Play) -> None:
        """Enter the root session at a random turn; what was before, and the subagents of it, counts as done."""
        skip = self._random.randrange(len(play.tree[0]))
        play.position[0] = skip
        play.done_s = {call.request_id: play.began_s for call in play.tree[0][:skip]}
        for index, calls in enumerate(play.tree[1:], 1):
            if calls and any(d in play.done_s for d in calls[0].depends_on):
                play.position[index] = len(calls)
        for index, calls in enumerate(play.tree[1:], 1):
            if play.position[index]:
                play.done_s.update((call.request_id, play.began_s) for call in calls)

    def _go_on(self, play: _Play) -> None:
        if play.over:
            self._begin()
            return
        for index, call, due_s in list(play.ready()):
            play.busy[index] = True
            self._at(max(self.now_s, due_s), partial(self._send, play, index, call))

    def _send(self, play: _Play, index: int, call: _Call) -> None:
        own = play.number
        hashes: tuple[Hashable, ...] = call.hashes[: call.shared]
        hashes += tuple((own, h) for h in call.hashes[call.shared :])
        request = SimRequest(call.request_id, call.prompt_tokens, call.output_tokens, hashes)
        self.jobs.append(self.engine.submit(request, self.now_s, (play, index, call)))

    def _ended(self, sink: tuple[_Play, int, _Call]) -> None:
        play, index, call = sink
        play.busy[index] = False
        play.position[index] += 1
        play.done_s[call.request_id] = self.now_s
        self._go_on(play)

    def run_until(self, end_s: float, jobs: Sequence[Job] = ()) -> None:
        """Go on until `end_s`, and beyond it until all of `jobs` have ended."""
        engine = self.engine
        pending = iter(jobs)
        awaited = next(pending, None)
        while True:
            while awaited is not None and awaited.state == "done":
                awaited = next(pending, None)
            step_s = engine.next_s()
            event_s = self._events[0][0] if self._events else None
            times = [t for t in (step_s, event_s) if t is not None]
            if not times or (min(times) > end_s and awaited is None):
                return
            if event_s is not None and (step_s is None or event_s <= step_s):
                self.now_s, _, action = heapq.heappop(self._events)
                action()
            elif step_s is not None:
                self.now_s = step_s
                self._step()

    def _step(self) -> None:
        result = self.engine.advance()
        if result is None:
            return
        self.steps += result.steps
        self.running_sum += result.steps * result.running
        for emission in result.emissions:
            if emission.finished:
                self._ended(emission.job.sink)


class Workload:
    """Trees made ready for a profile once; `metrics` may then be asked for any number of agents."""

    def __init__(
        self, profile: Profile, trees: Sequence[RenderedTree], *, salted: bool = True, output_cap: int = 16_384
    ) -> None:
        self.profile = profile
        made = [[_calls(s, profile, salted=salted, output_cap=output_cap) for s in t.sessions] for t in trees]
        self._trees = [tree for tree in made if tree[0]]
        if not self._trees:
            raise ValueError("no session fits the context of the profile")

    def metrics(self, agents: int, seconds: float = 600.0, seed: int = 0, warmup_s: float | None = None) -> TrueMetrics:
        """What `agents` agents get in `seconds` of steady state, `warmup_s` (a quarter of it) left out before."""
        warm_s = seconds / 4 if warmup_s is None else warmup_s
        world = _World(self.profile, self._trees, agents, seed, spread_s=min(10.0, warm_s / 2))
        world.run_until(warm_s)
        world.engine.settle(warm_s)
        before, written = len(world.jobs), world.engine.counters.generation_tokens
        world.steps = world.running_sum = 0
        world.run_until(warm_s + seconds)
        world.engine.settle(warm_s + seconds)
        written = world.engine.counters.generation_tokens - written
        running = world.running_sum / max(1, world.steps)
        jobs = world.jobs[before:]
        world.run_until(warm_s + seconds, jobs)
        if not jobs:
            raise ValueError(f"no request was issued in {seconds:g} s: take more")
        return _summary(agents, jobs, written / seconds, running)


def _summary(agents: int, jobs: list[Job], output_tokens_per_s: float, running: float) -> TrueMetrics:
    first = np.array([job.first_s for job in jobs], dtype=float)
    last = np.array([job.last_s for job in jobs], dtype=float)
    arrived = np.array([job.arrived_s for job in jobs])
    tokens = np.array([job.request.output_tokens for job in jobs])
    several = last > first
    speed = (tokens[several] - 1) / (last[several] - first[several])
    p10, p25, p50 = np.percentile(speed, [10, 25, 50]) if several.any() else (np.nan,) * 3
    ttft = first - arrived
    return TrueMetrics(
        agents=agents,
        requests=len(jobs),
        speed_p10=float(p10),
        speed_p25=float(p25),
        speed_p50=float(p50),
        ttft_p50=float(np.percentile(ttft, 50)),
        ttft_p95=float(np.percentile(ttft, 95)),
        cached_share=sum(j.cached_tokens for j in jobs) / sum(j.request.prompt_tokens for j in jobs),
        output_tokens_per_s=output_tokens_per_s,
        running=running,
    )


def true_metrics(
    profile: Profile, trees: Sequence[RenderedTree], agents: int, seconds: float = 600.0, seed: int = 0
) -> TrueMetrics:
    """What `agents` agents that replay `trees` get from `profile` in steady state."""
    return Workload(profile, trees).metrics(agents, seconds, seed)


def true_capacity(
    profile: Profile,
    trees: Sequence[RenderedTree],
    meets: Callable[[TrueMetrics], bool],
    max_agents: int,
    seconds: float = 600.0,
    seed: int = 0,
    *,
    exhaustive: bool = False,
) -> int:
    """Largest number of agents up to `max_agents` whose metrics meet; 0 when one agent does not.

    Doubling and bisection, right where `meets` is monotone in the number of agents; `exhaustive` tries every number.
    """
    workload = Workload(profile, trees)

    def passes(agents: int) -> bool:
        return meets(workload.metrics(agents, seconds, seed))

    if exhaustive:
        return max((n for n in range(1, max_agents + 1) if passes(n)), default=0)
    low, high = 0, 1
    while passes(high):
        low = high
        if high == max_agents:
            return max_agents
        high = min(2 * high, max_agents)
    while high - low > 1:
        middle = (low + high) // 2
        if passes(middle):
            low = middle
        else:
            high = middle
    return low
