"""Token sizes by the server's own count, without a tokenizer.

A prompt is taken to cost

    base + tools + sum over messages (overhead of its role + characters / characters per token of its kind of text)
         + sum over tool calls (call overhead + its arguments)

`calibration_prompts` are a few short prompts whose counts by the server determine these figures: one word; a text as
one message and the same text as nine; a text of each kind; tools; many short calls; one long call. `fit` solves for
them one after the other. What a server drops (tool schemas, tool calls) comes out as zero, and `render` then fills the
gap with other text. Filler is made so that every stretch of it is much like any other (`text.py`); the calibration text
of a kind is the most typical one of several, judged by how it falls into words, digits and signs.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from agentperf.trace.model import Message, SessionTrace, Shape
from agentperf.trace.text import filler, language_of, round_chars, seed_of

__all__ = ["DEFAULT_SIZES", "CalibrationPrompt", "TokenSizes", "calibration_prompts", "calibration_prompts_for", "fit"]

SYSTEM = "Answer with one word."
WORD = "Ready."
_CALLS = 6
_PIECES = 9
_TEXT_TOKENS = 400  # of a text of one kind
_CANDIDATES = 64
_PLAUSIBLE = (0.7, 16.0)  # characters per token of ASCII text under any tokenizer
_DROPPED = 0.3  # of the cost of a call's arguments; below, the chat template is taken to leave calls out

Tools = Sequence[Mapping[str, Any]]


class TokenSizes(Struct, frozen=True, kw_only=True):
    """What texts cost on one endpoint, in tokens."""

    source: Literal["calibrated", "default"]
    base: float
    """Begin of text, the system message's frame, and the opening of the answer."""
    overhead: dict[str, float]
    """Frame of a message, by role. That of the first system message is in `base`."""
    chars_per_token: dict[str, float]
    """By kind of text."""
    tools_tokens: dict[str, int]
    """What a set of tool schemas adds to a prompt, by blob id."""
    call_overhead: float
    """A tool call without its arguments."""
    args_factor: float
    """Cost of text inside a call's arguments, relative to the same text as content; 0 when calls are dropped."""

    @property
    def mean_chars_per_token(self) -> float:
        """For estimating the tokens of an answer whose kind of text is not known."""
        kinds = [k for k in self.chars_per_token if k == "prose" or k.startswith("code:")]
        return len(kinds) / sum(1 / self.chars_per_token[k] for k in kinds)

    def cpt(self, kind: str) -> float:
        """Characters per token of a kind; of one that was not measured: the default, scaled by how others differ."""
        known = self.chars_per_token.get(kind)
        if known is not None:
            return known
        family = [k for k in self.chars_per_token if k.startswith("code:") == kind.startswith("code:")]
        family = family or list(self.chars_per_token)
        ratio = sum(self.chars_per_token[k] / _DEFAULT_CPT[k] for k in family) / len(family)
        return _DEFAULT_CPT[kind] * ratio

    def text(self, kind: str, chars: float) -> float:
        """Tokens of a text."""
        return chars / self.cpt(kind)

    def frame(self, role: str) -> float:
        """Tokens of a message beyond its text."""
        return self.overhead.get(role, self.overhead["user"])

    def short_args(self, chars: float) -> float:
        """Tokens of a call's arguments, apart from long text in them."""
        return self.text("args", chars) if self.args_factor else 0.0

    def tools(self, tools_ref: str | None, tools: Tools) -> float:
        """Tokens of tool schemas; estimated from their JSON when they were not measured."""
        if not tools:
            return 0.0
        known = self.tools_tokens.get(tools_ref or "")
        return len(_compact(tools)) / self.cpt("json") if known is None else known


_DEFAULT_CPT = {
    "prose": 4.31,
    "log": 2.76,
    "listing": 2.37,
    "diff": 2.79,
    "json": 2.66,
    "args": 2.72,
    "code:python": 3.61,
    "code:typescript": 3.45,
    "code:go": 2.85,
    "code:rust": 3.14,
    "code:java": 3.95,
    "code:javascript": 3.23,
    "code:cpp": 3.16,
    "code:c": 2.53,
    "code:csharp": 3.77,
    "code:ruby": 3.18,
    "code:php": 3.73,
    "code:kotlin": 3.73,
    "code:swift": 3.89,
    "code:scala": 3.52,
    "code:shell": 2.64,
    "code:sql": 2.99,
}
"""Measured on 60,000 characters of each kind with the tokenizer of SmolLM2 (a vocabulary of 49,152)."""

DEFAULT_SIZES = TokenSizes(
    source="default",
    base=8.0,
    overhead={"system": 5.0, "user": 5.0, "assistant": 5.0, "tool": 5.0},
    chars_per_token=_DEFAULT_CPT,
    tools_tokens={},
    call_overhead=20.0,
    args_factor=1.05,
)
"""For endpoints that do not count prompt tokens: a tokenizer with a vocabulary of about 50,000, a ChatML template."""


@dataclass(frozen=True, slots=True)
class CalibrationPrompt:
    """One prompt whose tokens the server is to count."""

    name: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


def calibration_prompts(kinds: Iterable[str], tools: Mapping[str, Tools] | None = None) -> list[CalibrationPrompt]:
    """The prompts that tell what texts of these kinds, and these sets of tools (by blob id), cost.

    Each has about 400 tokens beside the tools. Their texts come from seeds that no session uses.
    """
    sets = dict(tools or {})
    wanted = ["prose", "args", *sorted(set(kinds) - {"prose", "args"})]
    code = next((k for k in wanted if k.startswith("code:")), "code:python")
    if code not in wanted:
        wanted.append(code)
    first = tuple(next(iter(sets.values()), ()))
    return [
        CalibrationPrompt("word", _user(WORD)),
        *(CalibrationPrompt(f"text:{kind}", _user(typical_text(kind))) for kind in wanted),
        CalibrationPrompt("split", _dialogue()),
        *(CalibrationPrompt(f"tools:{ref}", _user(WORD), tuple(value)) for ref, value in sets.items()),
        CalibrationPrompt("calls", _short_calls(_tool_name(first)), first),
        CalibrationPrompt(f"long-call:{code}", _long_call(_tool_name(first), typical_text(code)), first),
    ]


def calibration_prompts_for(
    trees: Iterable[Sequence[SessionTrace]], blobs: Mapping[str, Any]
) -> list[CalibrationPrompt]:
    """The prompts that a workload needs: the kinds of text and the tools that its sessions use."""
    kinds = {"prose", "log", "listing"}
    tools: dict[str, Tools] = {}
    for tree in trees:
        for item in tree:
            if item.session.tools_ref is not None:
                tools[item.session.tools_ref] = blobs[item.session.tools_ref]
            kinds.add(f"code:{language_of(item.session.language)}")
            if any(isinstance(r.input, Shape) and r.input.segments for r in item.requests):
                kinds.add("diff")
    return calibration_prompts(kinds, dict(sorted(tools.items())))


# -- the prompts -----------------------------------------------------------------------------------------------------


def _user(text: str) -> tuple[Message, ...]:
    return ({"role": "system", "content": SYSTEM}, {"role": "user", "content": text})


def _pieces(text: str, n: int) -> list[str]:
    """The text cut into n pieces at line ends or spaces, nothing lost."""
    cuts = [0]
    for i in range(1, n):
        cuts.append(text.index(" ", max(cuts[-1] + 1, len(text) * i // n)))
    return [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def _dialogue() -> tuple[Message, ...]:
    roles = ["user", "assistant"] * _PIECES
    pieces = _pieces(typical_text("prose"), _PIECES)
    return (
        {"role": "system", "content": SYSTEM},
        *({"role": r, "content": p} for r, p in zip(roles, pieces, strict=False)),
    )


def _tool_name(tools: Tools) -> str:
    return str(tools[0]["function"]["name"]) if tools else "bash"


def _call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _short_calls(name: str) -> tuple[Message, ...]:
    pieces = iter(_pieces(typical_text("prose"), 2 * _CALLS + 1))
    arguments = _typical_arguments()
    messages: list[Message] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": next(pieces)}]
    for number, text in enumerate(arguments):
        call = _call(number, name, text)
        messages.append({"role": "assistant", "content": next(pieces), "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": next(pieces)})
    return tuple(messages)


def _long_call(name: str, code: str) -> tuple[Message, ...]:
    call = _call(0, name, json.dumps({"path": "/work/repo/src/first.txt", "content": code}))
    return (
        *_user(WORD),
        {"role": "assistant", "content": WORD, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": WORD},
    )


# -- typical text ----------------------------------------------------------------------------------------------------

_PROXIES = (
    re.compile(r" ?[A-Za-z]{1,6}|[A-Za-z]|\d{1,3}|[^\sA-Za-z\d]|\s+"),
    re.compile(r" ?[A-Z]?[a-z]+|[A-Z]+|\d| ?[^\sA-Za-z\d]+|\n\s*|\s+"),
    re.compile(r"[a-z]{1,4}|[A-Z]|\d|[^\sA-Za-z\d]|\n|[ \t]+"),
    re.compile(r" ?[A-Za-z]{1,3}|\d|[^A-Za-z\d]"),
)


def _features(text: str) -> list[float]:
    """Pieces per character under a few crude tokenizers."""
    return [len(p.findall(text)) / len(text) for p in _PROXIES]


@cache
def typical_text(kind: str) -> str:
    """A text of about 400 tokens, of whole rounds where those are no longer, that is closest to the kind's average."""
    average = _features(filler(kind, seed_of("calibration", "average", kind), 40_000))
    wanted, one = _TEXT_TOKENS * _DEFAULT_CPT[kind], round_chars(kind)
    size = one * max(1, round(wanted / one)) if one < 1.35 * wanted else round(wanted)

    def distance(text: str) -> float:
        return max(abs(a / b - 1) for a, b in zip(_features(text), average, strict=True))

    texts = (filler(kind, seed_of("calibration", kind, i), size) for i in range(_CANDIDATES))
    return min(texts, key=distance)


@cache
def _typical_arguments() -> list[str]:
    """Arguments of a few short calls that are together as close as can be to the average."""
    average = _features(filler("args", seed_of("calibration", "average", "args"), 40_000))

    def distance(lines: list[str]) -> float:
        return max(abs(a / b - 1) for a, b in zip(_features("\n".join(lines)), average, strict=True))

    texts = (filler("args", seed_of("calibration", "calls", i), 2000) for i in range(_CANDIDATES))
    return min((text.split("\n")[:_CALLS] for text in texts), key=distance)


# -- the fit ---------------------------------------------------------------------------------------------------------


def fit(prompts: Sequence[CalibrationPrompt], counts: Mapping[str, int]) -> TokenSizes:
    """Sizes from the server's counts, by prompt name. The defaults when the counts make no sense.

    KeyError when a prompt has no count.
    """
    by_name = {p.name: p for p in prompts}
    word = counts["word"]
    prose = str(by_name["text:prose"].messages[1]["content"])
    gained = counts["text:prose"] - word
    if not _plausible(gained, len(prose) - len(WORD)):
        return DEFAULT_SIZES
    word_tokens = 2.0  # a word and its full stop, under every tokenizer of words
    frames = word - word_tokens - len(SYSTEM) * gained / (len(prose) - len(WORD))
    cpt: dict[str, float] = {}
    for prompt in prompts:
        kind = prompt.name.removeprefix("text:")
        if kind != prompt.name:
            text = str(prompt.messages[1]["content"])
            tokens = counts[prompt.name] - word + word_tokens
            cpt[kind] = len(text) / tokens if _plausible(tokens, len(text)) else _DEFAULT_CPT[kind]
    overhead = (counts["split"] - counts["text:prose"]) / (_PIECES - 1)
    tools = {n.removeprefix("tools:"): max(0, counts[n] - word) for n in by_name if n.startswith("tools:")}
    sizes = TokenSizes(
        source="calibrated",
        base=frames - overhead,
        overhead=dict.fromkeys(("system", "user", "assistant", "tool"), overhead),
        chars_per_token=cpt,
        tools_tokens=tools,
        call_overhead=0.0,
        args_factor=1.0,
    )
    return _with_calls(sizes, by_name, counts)


def _plausible(tokens: float, chars: int) -> bool:
    return tokens > 0 and _PLAUSIBLE[0] <= chars / tokens <= _PLAUSIBLE[1]


def _with_calls(sizes: TokenSizes, prompts: Mapping[str, CalibrationPrompt], counts: Mapping[str, int]) -> TokenSizes:
    """Solve for the cost of a call and of the text in its arguments."""
    name = next(n for n in prompts if n.startswith("long-call:"))
    code_kind = name.removeprefix("long-call:")
    short, long = prompts["calls"], prompts[name]
    with_tools = next(iter(sizes.tools_tokens.values()), 0) if short.tools else 0
    code = str(json.loads(_arguments(long)[0])["content"])
    short_chars = sum(len(a) for a in _arguments(short))
    other_chars = len(_arguments(long)[0]) - len(json.dumps(code))
    # what is left when everything that costs the same without calls is taken away
    short_rest = counts["calls"] - counts["text:prose"] - with_tools - (2 * _CALLS) * sizes.frame("user")
    long_rest = counts[name] - counts["word"] - with_tools - 2 * (sizes.frame("user") + 2.0)
    call = (short_rest - sizes.text("args", short_chars)) / _CALLS
    factor = (long_rest - call - sizes.text("args", other_chars)) / sizes.text(code_kind, len(code))
    if factor < _DROPPED:
        call, factor = short_rest / _CALLS, 0.0
    return msgspec.structs.replace(sizes, call_overhead=call, args_factor=factor)


def _arguments(prompt: CalibrationPrompt) -> list[str]:
    return [c["function"]["arguments"] for m in prompt.messages for c in m.get("tool_calls", ())]


def _compact(value: Any) -> bytes:
    return msgspec.json.encode(value)
