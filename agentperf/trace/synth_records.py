"""Records of the trace format from a drafted session."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentperf.trace.model import (
    DelayParts,
    Dependency,
    Request,
    Segment,
    Session,
    SessionTrace,
    Shape,
    Spawn,
    Tool,
    Trigger,
)
from agentperf.trace.text import seed_of

if TYPE_CHECKING:
    from agentperf.trace.synth import Draft


def session_trace(draft: "Draft", drafts: "Sequence[Draft]", tools_ref: str, *, shared: bool) -> SessionTrace:
    """The session with its requests. `shared`: an earlier one of the same product has sent the same start."""
    children = [d for d in drafts if d.parent is draft]
    inputs = draft.inputs()
    parent = draft.parent
    session = Session(
        session_id=draft.session_id,
        root_session_id=draft.root_id,
        parent_session_id=parent.session_id if parent else None,
        agent={"name": draft.product.name, "role": "helper" if parent else "main"},
        language=draft.language,
        product=draft.product.name,
        tools_ref=tools_ref,
        system_tokens=draft.product.system_tokens,
        tools_tokens=draft.product.tools_tokens,
        seed=draft.seed % 1_000_000_007,
        spawn=_spawn(draft),
    )
    ideal = [draft.fixed if shared else 0, *inputs[:-1]]
    requests = [_request(draft, at, inputs[at], ideal[at], children) for at in range(draft.turns)]
    return SessionTrace(session=session, requests=requests)


def request_id(draft: "Draft", at: int) -> str:
    """Name of a request."""
    return f"{draft.session_id}-{at}"


def _spawn(draft: "Draft") -> Spawn | None:
    if draft.parent is None:
        return None
    by = request_id(draft.parent, draft.spawned_at)
    return Spawn(by_request_id=by, tool_call_id=_call_id(draft.parent, draft.spawned_at, draft.calls_at))


def _call_id(draft: "Draft", at: int, number: int) -> str:
    return f"call_{seed_of('call', draft.seed, at, number) % 16**10:010x}"


def _request(draft: "Draft", at: int, tokens: int, ideal: int, children: "Sequence[Draft]") -> Request:
    hidden = draft.outputs[at] - draft.visible[at]
    spawned = [d for d in children if d.spawned_at == at - 1] if at else []
    wait = draft.waits[at - 1] if at else 0.0
    human = at > 0 and not draft.steps[at - 1].calls
    return Request(
        request_id=request_id(draft, at),
        session_id=draft.session_id,
        index=at,
        input=_shape(draft, at),
        input_tokens=tokens,
        input_tokens_source="synthetic",
        output_tokens=draft.outputs[at],
        output_tokens_source="synthetic",
        depends_on=_dependencies(draft, at, spawned),
        delay_ms=wait,
        delay_parts=DelayParts(human_ms=wait) if human else DelayParts(tool_ms=wait) if at else None,
        delay_source="synthetic",
        tools_before=_tools(draft, at, spawned),
        trigger=_trigger(draft, at),
        prefix_tokens_ideal=ideal,
        reasoning_tokens=hidden or None,
        reasoning_policy="stripped" if hidden else None,
    )


def _trigger(draft: "Draft", at: int) -> Trigger:
    if at == 0:
        return "subagent" if draft.parent else "user"
    return "tool" if draft.steps[at - 1].calls else "user"


def _dependencies(draft: "Draft", at: int, spawned: "Sequence[Draft]") -> list[Dependency] | None:
    if at == 0 and draft.parent is not None:
        return [Dependency(request_id=request_id(draft.parent, draft.spawned_at), type="spawn")]
    if not spawned:
        return None
    joins = [Dependency(request_id=request_id(d, d.turns - 1), type="join") for d in spawned]
    return [Dependency(request_id=request_id(draft, at - 1)), *joins]


def _shape(draft: "Draft", at: int) -> Shape:
    if at == 0:
        return Shape(
            segments=[
                Segment(role="system", tokens=draft.product.system_tokens, kind="system"),
                Segment(role="system", tokens=draft.product.tools_tokens, kind="tools"),
                Segment(role="user", tokens=draft.first_user, kind="user"),
            ]
        )
    step, results = draft.steps[at - 1], draft.results[at - 1]
    calls = [_call_id(draft, at - 1, i) for i in range(len(step.calls))]
    said = Segment(role="assistant", tokens=draft.visible[at - 1], kind="assistant", calls=calls or None)
    if not calls:
        heard = [Segment(role="user", tokens=results[0], kind="user")]
    else:
        names = [draft.product.names[k] for k in step.calls]
        heard = [
            Segment(role="tool", tokens=n, kind="tool_result", tool=name)
            for n, name in zip(results, names, strict=True)
        ]
    keep = 3 + sum(1 + len(r) for r in draft.results[: at - 1])
    return Shape(segments=[said, *heard], keep_segments=keep)


def _tools(draft: "Draft", at: int, spawned: "Sequence[Draft]") -> list[Tool]:
    """The calls before a request. Calls of one turn run side by side; the slowest of them sets the wait."""
    if at == 0:
        return []
    step, wait, results = draft.steps[at - 1], draft.waits[at - 1], draft.results[at - 1]
    ids = [_call_id(draft, at - 1, i) for i in range(len(step.calls))]
    slowest = seed_of(*ids) % len(ids) if ids else 0
    children = {d.calls_at: d.session_id for d in spawned}
    tools = []
    for i, (id_, kind) in enumerate(zip(ids, step.calls, strict=True)):
        share = 1.0 if i == slowest else 0.2 + seed_of("share", id_) % 700 / 1000
        span = None if kind == "task" else round(wait * share, 1)
        tools.append(
            Tool(
                call_id=id_,
                name=draft.product.names[kind],
                tool_class=kind,
                start_ms=0.0,
                end_ms=span,
                duration_ms=span,
                is_error=step.failed and i == 0,
                result_tokens=results[i],
                child_session_id=children.get(i),
            )
        )
    return tools
