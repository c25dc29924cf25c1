"""What the simulated model says: filler text of a known number of tokens, sometimes a tool call, as SSE or as JSON.

Events are put together from bytes that were made ahead; no JSON is encoded while a reply streams. Each token is visible
text. All of a reply follows from the seed and the prompt, so the same prompt gets the same reply.
"""

import random
import re
from typing import Any

import msgspec
from msgspec import Struct

from agentperf.sim.profile import Profile
from agentperf.sim.prompt import ChatBody, Prompt

_PIECE_COUNT = 4096
_WORDS = re.findall(
    r"\w+",
    "read the file and then run each test again so that we see what fails here before any change is made to it now "
    "look at code path where value None comes from add guard keep call site same update docs note why this works",
)

MIN_CALL_TOKENS = 4
"""A tool call needs a name, the opening of its arguments, some text, their close."""

_PLAIN_TAIL = b'"},"logprobs":null,"finish_reason":null}]}\n\n'
_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"


def _make_pieces() -> list[bytes]:
    """Pieces of four ASCII characters, the tokens of every reply."""
    generator = random.Random(4096)
    words: list[str] = []
    size = 0
    while size < 4 * _PIECE_COUNT:
        words.append(generator.choice(_WORDS))
        size += len(words[-1]) + 1
    text = " ".join(words)[: 4 * _PIECE_COUNT].ljust(4 * _PIECE_COUNT, "s")
    return [text[i : i + 4].encode() for i in range(0, len(text), 4)]


_PIECES = _make_pieces()
_FILLER = b"".join(_PIECES)


class ReplyPlan(Struct, frozen=True):
    """What a reply consists of, in tokens: reasoning, then text, then perhaps a tool call."""

    output_tokens: int
    finish_reason: str
    reasoning_tokens: int = 0
    call_tokens: int = 0
    tool: str = ""
    argument: str = "input"
    start: int = 0
    """Where in the filler the text begins."""


def plan_reply(body: ChatBody, prompt: Prompt, limit: int, profile: Profile, seed: int) -> ReplyPlan:
    """Length and kind of the reply; `limit` is the most tokens that it may have.

    Without ignore_eos the model stops by itself after a log-normal number of tokens, or at the limit.
    """
    draw = random.Random(prompt.digest + seed.to_bytes(8, "big", signed=True))
    natural = max(1, round(profile.natural_output_tokens * draw.lognormvariate(0.0, profile.natural_output_sigma)))
    tokens, reason = (limit, "length") if body.ignore_eos or natural > limit else (natural, "stop")
    reasoning = _reasoning_tokens(tokens, profile)
    start = draw.randrange(_PIECE_COUNT)
    tools = _tool_names(body.tools_json) if draw.random() < profile.tool_call_share else []
    answer = tokens - reasoning
    if not tools or answer < MIN_CALL_TOKENS:
        return ReplyPlan(tokens, reason, reasoning, start=start)
    tool, argument = draw.choice(tools)
    call = max(MIN_CALL_TOKENS, answer - draw.randrange(max(1, answer // 3)))
    return ReplyPlan(tokens, "tool_calls", reasoning, call, tool, argument, start)


def plan_text(body: ChatBody, prompt_seed: bytes, limit: int, profile: Profile, seed: int) -> ReplyPlan:
    """Length of a reply that is all text; nothing is drawn where the request itself sets the length."""
    tokens, reason = limit, "length"
    if not body.ignore_eos:
        draw = random.Random(prompt_seed + seed.to_bytes(8, "big", signed=True))
        natural = max(1, round(profile.natural_output_tokens * draw.lognormvariate(0.0, profile.natural_output_sigma)))
        if natural <= limit:
            tokens, reason = natural, "stop"
    start = int.from_bytes(prompt_seed[:4], "big") % _PIECE_COUNT
    return ReplyPlan(tokens, reason, _reasoning_tokens(tokens, profile), start=start)


def _reasoning_tokens(tokens: int, profile: Profile) -> int:
    return min(int(tokens * profile.reasoning_share), tokens - 1)


def _tool_names(tools_json: bytes) -> list[tuple[str, str]]:
    """(name, first argument) of each tool that has the shape of a function."""
    found: list[tuple[str, str]] = []
    for tool in msgspec.json.decode(tools_json) if tools_json else []:
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            argument = next(iter(properties), "input") if isinstance(properties, dict) else "input"
            found.append((function["name"], argument))
    return found


class Usage(Struct, frozen=True):
    """Token counts of a finished reply."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int

    def as_dict(self) -> dict[str, Any]:
        """In the shape of the OpenAI API."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage


class ReplyWriter:
    """Writes one reply. `number` tells it apart from the others of its server."""

    __slots__ = ("_call_end", "_call_head", "_head", "_plan", "_text_end", "created", "model", "number")

    def __init__(self, plan: ReplyPlan, number: int, model: str, created: int) -> None:
        self._plan = plan
        self.number = number
        self.model = model
        self.created = created
        self._text_end = plan.output_tokens - plan.call_tokens
        self._call_head = _encode(_encode({plan.argument: ""}).decode()[:-2])[1:-1] if plan.call_tokens else b""
        self._call_end = b'\\"}'
        meta = f'{{"id":"{self._id}","object":"chat.completion.chunk","created":{created},"model":'
        self._head = b"data: " + meta.encode() + _encode(model) + b',"choices":['

    @property
    def _id(self) -> str:
        return f"chatcmpl-sim-{self.number:08x}"

    @property
    def _call_id(self) -> str:
        return f"call_sim_{self.number:08x}"

    def first(self) -> bytes:
        """The event that names the role, before any text; it goes out together with the first token."""
        return (
            self._head
            + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
        )

    def event(self, start: int, tokens: int) -> bytes:
        """Tokens `start`.. of the reply: one event, or one for each kind of text that they reach into."""
        plan = self._plan
        end = start + tokens
        if start >= plan.reasoning_tokens and end <= self._text_end and end < plan.output_tokens:
            return b"".join((self._head, b'{"index":0,"delta":{"content":"', self._text(start, end), _PLAIN_TAIL))
        deltas: list[bytes] = []
        if start < plan.reasoning_tokens:
            deltas.append(b'{"reasoning":"' + self._text(start, min(end, plan.reasoning_tokens)) + b'"}')
        begin, stop = max(start, plan.reasoning_tokens), min(end, self._text_end)
        if begin < stop:
            deltas.append(b'{"content":"' + self._text(begin, stop) + b'"}')
        if end > self._text_end:
            deltas.extend(self._call_deltas(max(start, self._text_end), end))
        finish = b"null" if end < plan.output_tokens else _encode(plan.finish_reason)
        out = []
        for index, delta in enumerate(deltas):
            reason = finish if index == len(deltas) - 1 else b"null"
            out.append(self._head + b'{"index":0,"delta":' + delta + b',"logprobs":null,"finish_reason":' + reason)
            out.append(b"}]}\n\n")
        return b"".join(out)

    def last(self, usage: Usage | None) -> bytes:
        """What follows the last token: the usage, where it was asked for, and the end mark."""
        if usage is None:
            return _DONE
        return self._head + b'],"usage":' + _encode(usage.as_dict()) + b"}\n\n" + _DONE

    def whole(self, usage: Usage) -> bytes:
        """The reply as one JSON document, for a request that does not stream."""
        plan = self._plan
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if self._text_end > plan.reasoning_tokens:
            message["content"] = self._text(plan.reasoning_tokens, self._text_end).decode()
        if plan.reasoning_tokens:
            message["reasoning"] = self._text(0, plan.reasoning_tokens).decode()
        if plan.call_tokens:
            text = self._text(self._text_end + 2, plan.output_tokens - 1).decode()
            function = {"name": plan.tool, "arguments": _encode({plan.argument: text}).decode()}
            message["tool_calls"] = [{"id": self._call_id, "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": plan.finish_reason}
        return _encode(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self.created,
                "model": self.model,
                "choices": [choice],
                "usage": usage.as_dict(),
            }
        )

    def usage(self, prompt_tokens: int, cached_tokens: int) -> Usage:
        """The counts of this reply."""
        return Usage(prompt_tokens, cached_tokens, self._plan.output_tokens, self._plan.reasoning_tokens)

    def _text(self, start: int, end: int) -> bytes:
        first = (self._plan.start + start) % _PIECE_COUNT
        if end - start == 1:
            return _PIECES[first]
        begin, size = 4 * first, 4 * (end - start)
        rounds = -(-(begin + size) // len(_FILLER))
        return (_FILLER * rounds)[begin : begin + size] if rounds > 1 else _FILLER[begin : begin + size]

    def _call_deltas(self, start: int, end: int) -> list[bytes]:
        """Deltas of the tokens of a tool call: its name, the opening of its arguments, text, their close."""
        plan = self._plan
        first = self._text_end
        deltas: list[bytes] = []
        if start == first:
            head = {
                "index": 0,
                "id": self._call_id,
                "type": "function",
                "function": {"name": plan.tool, "arguments": ""},
            }
            deltas.append(b'{"tool_calls":[' + _encode(head) + b"]}")
        parts: list[bytes] = []
        if start <= first + 1 < end:
            parts.append(self._call_head)
        begin, stop = max(start, first + 2), min(end, plan.output_tokens - 1)
        if begin < stop:
            parts.append(self._text(begin, stop))
        if end == plan.output_tokens:
            parts.append(self._call_end)
        if parts:
            arguments = b"".join(parts)
            deltas.append(b'{"tool_calls":[{"index":0,"function":{"arguments":"' + arguments + b'"}}]}')
        return deltas
