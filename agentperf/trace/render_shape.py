"""Prompts known by the sizes of their segments: messages with text are made for them.

What a model said before (assistant segments) has its recorded size. The rest of a request's new segments, tool results
and what the user says, are *elastic*: they take up what is left, so that the whole prompt has the recorded number of
tokens by the endpoint's own count, turn after turn, whatever its chat template adds or drops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agentperf.trace.model import Message, Request, Segment, Tool
from agentperf.trace.render_calls import Call, result_text, start_call
from agentperf.trace.render_pieces import Frame, Piece, chars_of, total
from agentperf.trace.text import filler, seed_of

_LEAST_SYSTEM = 40  # characters
_LEAST = 16  # characters of an elastic message
_LEAST_PROSE = 4.0  # tokens; a call with less beside it stands alone
_LONG_SHARE = 0.8  # of what an assistant message has left, if a call of it can take long text


@dataclass(slots=True)
class _Plan:
    """A message to be: its role and the segments that it stands for."""

    role: str
    segments: list[Segment] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    call_id: str = ""

    @property
    def tokens(self) -> int:
        return sum(s.tokens for s in self.segments)


def shape_pieces(
    request: Request, segments: Sequence[Segment], kept: Sequence[Piece], system: Piece | None, frame: Frame
) -> list[Piece]:
    """The messages that follow `kept`, made so that the prompt has `request.input_tokens` tokens.

    `system` is the recorded system prompt of the session, where its text is known.
    """
    plans = _plans(request, segments, has_prompt=bool(kept))
    infos = {t.call_id: t for t in request.tools_before}
    made: dict[int, Piece] = {}
    for at, plan in enumerate(plans):
        if plan.role == "system":
            made[at] = replace(system or system_piece(frame, plan.tokens), segments=len(plan.segments))
        elif plan.role == "assistant":
            made[at] = _assistant(plan, infos, frame, seed_of(frame.seed, request.index, at))
    left = request.input_tokens - total(frame, kept) - sum(p.tokens for p in made.values())
    elastic = [at for at in range(len(plans)) if at not in made]
    weight = sum(max(1, plans[at].tokens) for at in elastic)
    for at in elastic:
        own = max(1, plans[at].tokens)
        made[at] = _elastic(plans[at], infos, frame, left * own / weight, seed_of(frame.seed, request.index, at))
        left -= made[at].tokens
        weight -= own
    return [made[at] for at in range(len(plans))]


def _plans(request: Request, segments: Sequence[Segment], *, has_prompt: bool) -> list[_Plan]:
    """Segments grouped into messages such that every call has its result and every result its call."""
    plans: list[_Plan] = []
    for segment in segments:
        last = plans[-1] if plans else None
        if segment.kind in ("system", "tools") or segment.role == "system":
            if last is not None and last.role == "system":
                last.segments.append(segment)
            elif last is None and not has_prompt:
                plans.append(_Plan("system", [segment]))
            else:
                plans.append(_Plan("user", [segment]))
        elif segment.role == "assistant":
            if last is None or last.role != "assistant":
                last = _Plan("assistant")
                plans.append(last)
            last.segments.append(segment)
            last.calls += segment.calls or ()
        else:
            plans.append(_Plan(segment.role, [segment]))
    _pair(plans, request)
    return plans


def _pair(plans: list[_Plan], request: Request) -> None:
    """Give each tool result its call. A result that follows no assistant message becomes the user's words."""
    caller: _Plan | None = None
    open_calls: list[str] = []
    for at, plan in enumerate(plans):
        if plan.role == "assistant":
            _close(caller, open_calls)
            results = 0
            while at + 1 + results < len(plans) and plans[at + 1 + results].role == "tool":
                results += 1
            names = plan.calls + [f"call_{request.index}_{at}_{i}" for i in range(len(plan.calls), results)]
            caller, plan.calls = plan, names[:results]
            open_calls = list(plan.calls)
        elif plan.role == "tool":
            if open_calls:
                plan.call_id = open_calls.pop(0)
            else:
                plan.role = "user"
    _close(caller, open_calls)


def _close(caller: _Plan | None, open_calls: list[str]) -> None:
    """Take back calls that nothing answers: no server accepts them."""
    if caller is not None:
        caller.calls = [c for c in caller.calls if c not in open_calls]


def system_piece(frame: Frame, tokens: int) -> Piece:
    """The system prompt of a product: with the tools it has `tokens` tokens, however a server renders those."""
    chars = chars_of(tokens - frame.fixed, "prose", frame.sizes, _LEAST_SYSTEM)
    text = filler("prose", seed_of("system", frame.shared), chars)
    return Piece({"role": "system", "content": text}, frame.sizes.text("prose", chars))


def _assistant(plan: _Plan, infos: dict[str, Tool], frame: Frame, seed: int) -> Piece:
    sizes = frame.sizes
    names = _call_names(plan, infos, frame)
    calls = [start_call(id_, name, frame, seed_of(seed, id_)) for id_, name in zip(plan.calls, names, strict=True)]
    left = plan.tokens - sizes.frame("assistant") - sum(c.tokens(frame) for c in calls)
    if left > _LEAST_PROSE:
        left -= _lengthen(calls, frame, left * _LONG_SHARE, seed)
    content = ""
    if left >= _LEAST_PROSE or not calls:
        content = filler("prose", seed, chars_of(left, "prose", sizes, _LEAST))
    message: Message = {"role": "assistant", "content": content}
    tokens = sizes.frame("assistant") + sizes.text("prose", len(content))
    if calls:
        message["tool_calls"] = [c.encoded() for c in calls]
        tokens += sum(c.tokens(frame) for c in calls)
    return Piece(message, tokens, len(plan.segments))


def _call_names(plan: _Plan, infos: dict[str, Tool], frame: Frame) -> list[str]:
    first = str(frame.tools[0]["function"]["name"]) if frame.tools else "bash"
    return [infos[c].name if c in infos else first for c in plan.calls]


def _lengthen(calls: list[Call], frame: Frame, tokens: float, seed: int) -> float:
    """Put text into calls that can take it; gives how many tokens more they have than before."""
    takers = [c for c in calls if c.long]
    if not takers or not frame.sizes.args_factor:
        return 0.0
    before = sum(c.tokens(frame) for c in takers)
    for call in takers:
        chars = chars_of(tokens / len(takers) / frame.sizes.args_factor, call.kind, frame.sizes)
        call.fill(chars + sum(len(call.arguments[name]) for name in call.long), seed_of(seed, call.id, "long"))
    return sum(c.tokens(frame) for c in takers) - before


def _elastic(plan: _Plan, infos: dict[str, Tool], frame: Frame, tokens: float, seed: int) -> Piece:
    own = tokens - frame.sizes.frame(plan.role)
    if plan.role == "tool":
        info = infos.get(plan.call_id)
        text, cost = result_text(plan.segments[0].tool, info, frame, own, seed, _LEAST)
        message: Message = {"role": "tool", "tool_call_id": plan.call_id, "content": text}
    else:
        text = filler("prose", seed, chars_of(own, "prose", frame.sizes, _LEAST))
        cost = frame.sizes.text("prose", len(text))
        message = {"role": "user", "content": text}
    return Piece(message, cost + frame.sizes.frame(plan.role), len(plan.segments))


def keep_pieces(pieces: Sequence[Piece], segments: int) -> list[Piece]:
    """The leading messages that stand for the first `segments` segments; one that reaches further is left out."""
    kept: list[Piece] = []
    seen = 0
    for piece in pieces:
        seen += piece.segments
        if seen > segments:
            break
        kept.append(piece)
    return kept
