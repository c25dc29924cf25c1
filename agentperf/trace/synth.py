"""Synthetic trace sets: `make("coding-v1")` and `make("smoke")`, the bundled ones. Equal seeds give equal bytes.

Figures hold by construction. Who does what comes first (`synth_script.py`); then outputs and waits are dealt: turns are
ranked by what they do, with chance, and the n-th turn of N gets the (n + 1/2) / N quantile of the wanted distribution,
so quantiles are met whatever the ranking. Sizes of tool results are drawn by tool and scaled by one factor, solved for,
at which the mean prompt is as wanted. Only sizes, waits and tool names are stored; text is made at load (`render.py`).

The wanted figures of coding-v1 are those that are published of the AA-AgentPerf workload (traces/README.md).
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TypeVar

from agentperf.errors import UsageError
from agentperf.trace.codec import blob_id
from agentperf.trace.io import sealed
from agentperf.trace.model import Header, SessionTrace, TraceSet
from agentperf.trace.synth_records import session_trace
from agentperf.trace.synth_script import Rng, Step, script
from agentperf.trace.synth_tools import LANGUAGE_WEIGHTS, POCKET, PRODUCTS, Product, helper_of
from agentperf.trace.text import seed_of

__all__ = ["PROFILES", "Profile", "make"]

RECIPE = 1
"""Counts changes of the recipe: sets of another recipe differ for the same seed."""
_Z = NormalDist()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """A log-normal law given by its median and one spread below and one above it, cut off at both ends."""

    median: float
    below: float
    above: float
    least: float
    most: float

    def at(self, share: float) -> float:
        """The quantile at `share`, from 0 to 1."""
        z = _Z.inv_cdf(share)
        value = self.median * math.exp(z * (self.below if z < 0 else self.above))
        return min(self.most, max(self.least, value))


@dataclass(frozen=True, slots=True)
class Profile:
    """What a set is to be like."""

    name: str
    description: str
    sessions: int
    """Main sessions."""
    turns: Spread
    mean_turns: float
    output: Spread
    """Tokens."""
    wait: Spread
    """Milliseconds that a turn waits for its tools."""
    human: tuple[float, float]
    """Milliseconds that the user takes, evenly spread."""
    mean_input: float
    """Tokens of a prompt, in the mean over all requests."""
    most_input: int
    largest: bool
    """Whether the session with most turns ends at `most_input`, so that this size occurs whatever the seed."""
    first_user: Spread
    helpers: tuple[int, ...]
    """Subagents of each main session that has any; two start together."""
    helper_turns: tuple[int, int]
    products: tuple[Product, ...]
    languages: int
    reasoning: bool
    """Whether answers hold reasoning that later prompts do not carry."""


PROFILES = {
    "coding-v1": Profile(
        name="coding-v1",
        description="Coding sessions with the published sizes and waits of the AA-AgentPerf workload. Synthetic.",
        sessions=104,
        turns=Spread(29, 0.75, 0.75, 6, 200),
        mean_turns=38.4,
        # 2,000 tokens at the 95th percentile; below the median calls are short but never empty
        output=Spread(150, 0.75, math.log(2000 / 150) / _Z.inv_cdf(0.95), 24, 8000),
        wait=Spread(1000, 0.85, 0.85, 100, 5000),
        human=(1500, 5000),
        mean_input=27_000,
        most_input=131_000,
        largest=True,
        first_user=Spread(320, 0.6, 0.9, 120, 3500),
        helpers=(1, 1, 2, 1, 1, 2),
        helper_turns=(5, 14),
        products=PRODUCTS,
        languages=16,
        reasoning=True,
    ),
    "smoke": Profile(
        name="smoke",
        description="A dozen short coding sessions for trying things out and for tests. Synthetic.",
        sessions=11,
        turns=Spread(6, 0.25, 0.25, 4, 8),
        mean_turns=6.0,
        output=Spread(40, 0.3, 0.35, 20, 80),
        wait=Spread(150, 0.5, 0.5, 50, 400),
        human=(200, 400),
        mean_input=2900,
        most_input=7800,
        largest=False,
        first_user=Spread(280, 0.2, 0.4, 260, 900),
        helpers=(1,),
        helper_turns=(4, 4),
        products=(POCKET,),
        languages=5,
        reasoning=False,
    ),
}


@dataclass(slots=True)
class Draft:
    """A session in the making. Lists of turns have one entry for each request."""

    session_id: str
    root_id: str
    product: Product
    language: str
    seed: int
    steps: list[Step]
    """`steps[k]` lies between request k and k + 1."""
    parent: "Draft | None" = None
    spawned_at: int = -1
    """The request of the parent whose answer starts this subagent."""
    calls_at: int = 0
    """Which of that answer's calls."""
    first_user: int = 0
    outputs: list[int] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    """Tokens of each answer that later prompts carry."""
    waits: list[float] = field(default_factory=list)
    raw: list[list[float]] = field(default_factory=list)
    """Sizes of what each step brings in, before scaling."""
    results: list[list[int]] = field(default_factory=list)
    growth: float = 1.0

    @property
    def turns(self) -> int:
        return len(self.steps) + 1

    @property
    def fixed(self) -> int:
        return self.product.system_tokens + self.product.tools_tokens

    def inputs(self) -> list[int]:
        """Tokens of each prompt."""
        sizes = [self.fixed + self.first_user]
        for visible, results in zip(self.visible[:-1], self.results, strict=True):
            sizes.append(sizes[-1] + visible + sum(results))
        return sizes


def make(profile: str, seed: int = 0) -> TraceSet:
    """A bundled set by name, or one like it from another seed. UsageError for an unknown name."""
    if profile not in PROFILES:
        raise UsageError(f"there is no set {profile!r} to make", f"one of: {', '.join(PROFILES)}")
    wanted = PROFILES[profile]
    drafts = _drafts(wanted, seed)
    _deal_outputs(drafts, wanted, _stream(seed, profile, "outputs"))
    _deal_waits(drafts, wanted, _stream(seed, profile, "waits"))
    _draw_results(drafts, _stream(seed, profile, "results"))
    _scale(drafts, wanted)
    return sealed(_trace_set(drafts, wanted, seed))


def _stream(*parts: object) -> Rng:
    return random.Random(seed_of("synth", *parts)).random


def _normal(rng: Rng) -> float:
    return _Z.inv_cdf(min(1 - 1e-12, max(1e-12, rng())))


def _shuffled(items: list[T], rng: Rng) -> list[T]:
    keys = [rng() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


# -- who does what ---------------------------------------------------------------------------------------------------


def _drafts(wanted: Profile, seed: int) -> list[Draft]:
    rng = _stream(seed, wanted.name, "sessions")
    turns = _shuffled(_turn_counts(wanted), rng)
    languages = _shuffled(_languages(wanted), rng)
    roots = []
    for number, (n, language) in enumerate(zip(turns, languages, strict=True)):
        product = wanted.products[number % len(wanted.products)]
        name = f"{wanted.name}-{number + 1:03d}"
        steps = script(n - 1, frozenset(product.names), _stream(seed, name, "script"))
        roots.append(Draft(name, name, product, language, seed_of(seed, name), steps))
    for root in roots:
        root.first_user = round(wanted.first_user.at(0.02 + 0.96 * rng()))
    return _with_helpers(roots, wanted, seed, rng)


def _turn_counts(wanted: Profile) -> list[int]:
    """Turns by session: quantiles of the law, its median moved until the mean is right."""
    n = wanted.sessions
    shares = [(i + 0.5) / n for i in range(n)]

    def counts(factor: float) -> list[int]:
        law = wanted.turns
        return [round(min(law.most, max(law.least, law.at(s) * factor))) for s in shares]

    factor = _solve(lambda f: sum(counts(f)) / n, wanted.mean_turns, 0.2, 5.0)
    made = counts(factor)
    made[-1] = round(wanted.turns.most)
    return made


def _solve(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where a growing function reaches the target."""
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return math.sqrt(low * high)


def _languages(wanted: Profile) -> list[str]:
    """A language for each session, by largest remainder; each of the first few at least once."""
    weights = dict(list(LANGUAGE_WEIGHTS.items())[: wanted.languages])
    total = sum(weights.values())
    spare = wanted.sessions - len(weights)
    exact = {k: spare * w / total for k, w in weights.items()}
    counts = {k: 1 + int(v) for k, v in exact.items()}
    by_rest = sorted(exact, key=lambda k: int(exact[k]) - exact[k])
    for k in by_rest[: wanted.sessions - sum(counts.values())]:
        counts[k] += 1
    return [k for k, n in counts.items() for _ in range(n)]


def _with_helpers(roots: list[Draft], wanted: Profile, seed: int, rng: Rng) -> list[Draft]:
    """Give some main sessions a turn that starts subagents; each tree's sessions follow one another."""
    able = [r for r in roots if r.turns >= wanted.turns.median and "task" in r.product.names]
    chosen = {r.session_id: n for r, n in zip(_shuffled(able, rng), wanted.helpers, strict=False)}
    result = []
    for root in roots:
        result.append(root)
        count = chosen.get(root.session_id, 0)
        if not count:
            continue
        at = min(len(root.steps) - 2, 2 + int(rng() * len(root.steps) / 3))
        root.steps[at] = Step(["task"] * count)
        for number in range(count):
            name = f"{root.session_id}.{number + 1}"
            low, high = wanted.helper_turns
            turns = low + int(rng() * (high - low + 1))
            product = helper_of(root.product)
            steps = [s for s in script(turns * 3, frozenset(product.names), _stream(seed, name, "script")) if s.calls]
            child = Draft(name, root.session_id, product, root.language, seed_of(seed, name), steps[: turns - 1])
            child.parent, child.spawned_at, child.calls_at = root, at, number
            child.first_user = round(wanted.first_user.at(0.3 + 0.4 * rng()))
            result.append(child)
    return result


# -- sizes and waits -------------------------------------------------------------------------------------------------

# By class: how an answer that makes such a call ranks by length, and its visible tokens (median, spread).
_ANSWERS = {
    "read": (0.0, 45, 0.3),
    "ls": (-0.3, 38, 0.25),
    "glob": (-0.2, 40, 0.25),
    "grep": (0.0, 48, 0.3),
    "bash": (0.2, 65, 0.4),
    "test": (0.0, 52, 0.35),
    "todo": (0.5, 110, 0.4),
    "fetch": (0.2, 60, 0.3),
    "edit": (0.9, 190, 0.6),
    "write": (1.9, 480, 0.7),
    "task": (1.2, 180, 0.3),
    "": (1.0, 170, 0.5),
}
# By class: how a turn that waits for such a call ranks by time.
_WAITS = {
    "read": -0.9,
    "ls": -0.8,
    "glob": -0.7,
    "grep": -0.3,
    "edit": -0.4,
    "write": -0.5,
    "todo": -1.2,
    "bash": 0.7,
    "test": 1.3,
    "fetch": 0.9,
}
# By class: tokens of a result (median, spread). The failed and the user's words have their own.
_RESULTS = {
    "read": (900, 0.9),
    "ls": (160, 0.7),
    "glob": (180, 0.8),
    "grep": (320, 0.9),
    "bash": (260, 1.1),
    "test": (480, 0.8),
    "todo": (90, 0.3),
    "fetch": (1100, 0.8),
    "edit": (130, 0.4),
    "write": (70, 0.2),
    "task": (420, 0.4),
}
_FAILED = (90, 0.3)
_USER = (120, 0.7)
_LEAST_RESULT = 48
"""Tokens. What an answer costs more than planned under a wordy chat template must find room in a result."""


def _kinds(draft: Draft, at: int) -> list[str]:
    """Classes of the calls that the answer to request `at` makes; one empty class when it makes none."""
    return (draft.steps[at].calls if at < len(draft.steps) else []) or [""]


def _deal_outputs(drafts: list[Draft], wanted: Profile, rng: Rng) -> None:
    places = [(d, at) for d in drafts for at in range(d.turns)]
    scores = [max(_ANSWERS[k][0] for k in _kinds(d, at)) + 1.1 * _normal(rng) for d, at in places]
    dealt = _dealt(scores, wanted.output)
    for (draft, at), output in zip(places, dealt, strict=True):
        visible = sum(m * math.exp(s * _normal(rng)) for _, m, s in (_ANSWERS[k] for k in _kinds(draft, at)))
        visible += 45 * rng() if rng() < 0.5 else 0
        whole = not wanted.reasoning or output - visible < 12
        draft.outputs.append(round(output))
        draft.visible.append(round(output) if whole else round(visible))


def _deal_waits(drafts: list[Draft], wanted: Profile, rng: Rng) -> None:
    """Waits of the turns after tools; the user and the end of subagents have waits of their own."""
    places = [(d, at) for d in drafts for at, s in enumerate(d.steps) if s.calls and s.calls[0] != "task"]
    scores = [max(_WAITS[k] for k in d.steps[at].calls) + 0.6 * _normal(rng) for d, at in places]
    dealt = dict(zip(((id(d), at) for d, at in places), _dealt(scores, wanted.wait), strict=True))
    low, high = wanted.human
    for draft in drafts:
        for at, step in enumerate(draft.steps):
            if not step.calls:
                wait = low + rng() * (high - low)
            else:
                wait = dealt.get((id(draft), at), wanted.wait.least * (1 + rng()))
            draft.waits.append(round(wait, 1))


def _dealt(scores: list[float], law: Spread) -> list[float]:
    """A value for each score: the quantiles of the law in the order of the scores."""
    result = [0.0] * len(scores)
    for rank, at in enumerate(sorted(range(len(scores)), key=scores.__getitem__)):
        result[at] = law.at((rank + 0.5) / len(scores))
    return result


def _draw_results(drafts: list[Draft], rng: Rng) -> None:
    """Sizes of results by tool; long sessions bring in less a turn than short ones."""
    for draft in drafts:
        draft.growth = (draft.turns / 38) ** -0.35 * math.exp(0.3 * _normal(rng))
        for step in draft.steps:
            laws = [_RESULTS[k] for k in step.calls] or [_USER]
            if step.failed:
                laws[0] = _FAILED
            draft.raw.append([m * math.exp(s * _normal(rng)) for m, s in laws])


def _scale(drafts: list[Draft], wanted: Profile) -> None:
    """Settle the sizes of results so that the mean prompt is as wanted and none is longer than allowed."""
    largest = max(drafts, key=lambda d: d.turns) if wanted.largest else None
    if largest is not None:
        _settle(largest, 100.0, wanted.most_input)
    rest = [d for d in drafts if d is not largest]

    def mean(factor: float) -> float:
        for draft in rest:
            _settle(draft, factor, wanted.most_input)
        sizes = [n for d in drafts for n in d.inputs()]
        return sum(sizes) / len(sizes)

    mean(_solve(mean, wanted.mean_input, 0.02, 50.0))


def _settle(draft: Draft, factor: float, most: int) -> None:
    """Results at this factor, or at a smaller one where the session would grow too long."""
    scale = factor * draft.growth
    while True:
        draft.results = [[max(_LEAST_RESULT, round(n * scale)) for n in sizes] for sizes in draft.raw]
        excess = draft.inputs()[-1] - most
        if excess <= 0 or scale < 1e-6:
            return
        brought = sum(sum(r) for r in draft.results)
        scale *= max(0.1, 1 - excess / brought) * 0.9995


# -- records ---------------------------------------------------------------------------------------------------------


def _trace_set(drafts: list[Draft], wanted: Profile, seed: int) -> TraceSet:
    blobs = {}
    sessions: list[SessionTrace] = []
    seen: set[str] = set()
    for draft in drafts:
        tools = draft.product.tools()
        ref = blob_id("tools", tools)
        blobs[ref] = tools
        sessions.append(session_trace(draft, drafts, ref, shared=draft.product.name in seen))
        seen.add(draft.product.name)
    header = Header(
        trace_set_id=wanted.name if seed == 0 else f"{wanted.name}-seed{seed}",
        generator={"name": "agentperf traces synth", "profile": wanted.name, "recipe": RECIPE},
        content="shape",
        license="CC0-1.0",
        redistributable=True,
        seed=seed,
        description=wanted.description,
    )
    return TraceSet(header=header, blobs=blobs, sessions=sessions)
