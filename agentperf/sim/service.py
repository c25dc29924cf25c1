"""A chat request answered without any transport: accepted with a plan, or refused in the shape of vLLM's errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentperf.sim.bodies import KnownBody
from agentperf.sim.engine import SimRequest
from agentperf.sim.profile import Profile
from agentperf.sim.prompt import ChatBody, parse_body, read_prompt
from agentperf.sim.reply import ReplyPlan, ReplyWriter, plan_reply, plan_text

SIMULATED_HEADER = "x-agentperf-simulated"
OWNER = "agentperf-sim"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP error."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request for the engine, and who writes its reply."""

    request: SimRequest
    writer: ReplyWriter
    stream: bool
    include_usage: bool

    def last(self, cached_tokens: int) -> bytes:
        """The end of the stream, usage included if it was asked for."""
        usage = self.writer.usage(self.request.prompt_tokens, cached_tokens) if self.include_usage else None
        return self.writer.last(usage)

    def whole(self, cached_tokens: int) -> bytes:
        """The reply as one document."""
        return self.writer.whole(self.writer.usage(self.request.prompt_tokens, cached_tokens))


class Service:
    """Reads requests for one profile."""

    def __init__(self, profile: Profile, seed: int = 0) -> None:
        self.profile = profile
        self.seed = seed
        self._number = 0

    def prepare(self, body: bytes, created: int, *, as_runs: bool = False) -> Accepted | Refusal:
        """Accept or refuse a body; `created` is the reply's date in epoch seconds.

        The blocks of the prompt are named for a pool of blocks, or as runs of one block each for a pool of runs.
        """
        try:
            chat = parse_body(body)
        except ValueError as error:
            return refusal(400, str(error), "BadRequestError")
        refused = self._refuse(chat)
        if refused is not None:
            return refused
        if not chat.messages:
            return refusal(400, "messages must hold at least one message", "BadRequestError", "messages")
        prompt = read_prompt(chat, self.profile)
        limit = self._limit(chat, prompt.tokens)
        if isinstance(limit, Refusal):
            return limit
        plan = plan_reply(chat, prompt, limit, self.profile, self.seed)
        names: Sequence[Any] = prompt.block_hashes
        if as_runs:
            names = tuple((block, i, i + 1) for i, block in enumerate(names))
        return self._accept(chat, prompt.tokens, names, plan, created)

    def prepare_known(self, known: KnownBody, created: int) -> Accepted | Refusal:
        """The same for a body that was read by its parts; the reply is text, of the same length."""
        chat = known.options
        refused = self._refuse(chat)
        if refused is not None:
            return refused
        limit = self._limit(chat, known.tokens)
        if isinstance(limit, Refusal):
            return limit
        plan = plan_text(chat, known.seed, limit, self.profile, self.seed)
        return self._accept(chat, known.tokens, known.runs, plan, created)

    def _refuse(self, chat: ChatBody) -> Refusal | None:
        if chat.model is not None and chat.model != self.profile.model:
            text = f"The model `{chat.model}` does not exist. Valid aliases: {self.profile.model}."
            return refusal(404, text, "NotFoundError", "model")
        return None

    def _limit(self, chat: ChatBody, tokens: int) -> int | Refusal:
        """Most tokens that the reply may have."""
        profile = self.profile
        room = profile.context_tokens - tokens
        limit = chat.output_limit
        if room < 1 or (limit is not None and limit > room):
            wanted = f" and {limit} output tokens were requested" if limit is not None else ""
            text = (
                f"This model's maximum context length is {profile.context_tokens} tokens. However, the prompt has"
                f" {tokens} input tokens{wanted}. Please reduce the length of the input or of the output."
            )
            return refusal(400, text, "BadRequestError", "input_tokens")
        if limit is not None and limit < 1:
            return refusal(400, f"max_tokens must be at least 1, got {limit}.", "BadRequestError", "max_tokens")
        return room if limit is None else limit

    def _accept(self, chat: ChatBody, tokens: int, names: Sequence[Any], plan: ReplyPlan, created: int) -> Accepted:
        self._number += 1
        request = SimRequest(
            request_id=f"sim-{self._number:08x}",
            prompt_tokens=tokens,
            output_tokens=plan.output_tokens,
            block_hashes=names,
            finish_reason="length" if plan.finish_reason == "length" else "stop",
            mark=plan.reasoning_tokens + 1 if plan.reasoning_tokens else 0,
        )
        options = chat.stream_options
        return Accepted(
            request=request,
            writer=ReplyWriter(plan, self._number, self.profile.model, created),
            stream=bool(chat.stream),
            include_usage=options is not None and options.include_usage,
        )

    def models(self, created: int) -> bytes:
        """Body of GET /v1/models."""
        model = {
            "id": self.profile.model,
            "object": "model",
            "created": created,
            "owned_by": OWNER,
            "root": self.profile.model,
            "parent": None,
            "max_model_len": self.profile.context_tokens,
        }
        return _encode({"object": "list", "data": [model]})


def refusal(status: int, message: str, kind: str, param: str | None = None) -> Refusal:
    """An error in vLLM's shape."""
    return Refusal(status, _encode({"error": {"message": message, "type": kind, "param": param, "code": status}}))
