"""Small trace sets, and hypothesis strategies for any."""

from typing import Any

from hypothesis import strategies as st

from agentperf.trace.codec import BLOB_TYPES, blob_id
from agentperf.trace.model import (
    Append,
    Counts,
    DelayParts,
    Dependency,
    Full,
    Header,
    PrefixEvent,
    Recorded,
    Request,
    Segment,
    Session,
    SessionTrace,
    Shape,
    Spawn,
    Splice,
    Tool,
    TraceSet,
)


def request(session: str, index: int, **more: Any) -> Request:
    fields: dict[str, Any] = {
        "request_id": f"{session}-{index}",
        "session_id": session,
        "index": index,
        "input": Append(messages=[{"role": "user", "content": f"turn {index}"}]),
        "input_tokens": 100 * (index + 1),
        "input_tokens_source": "synthetic",
        "output_tokens": 10,
        "output_tokens_source": "synthetic",
    }
    return Request(**(fields | more))


def session(name: str, requests: list[Request] | None = None, **more: Any) -> SessionTrace:
    fields: dict[str, Any] = {"session_id": name, "root_session_id": name}
    return SessionTrace(session=Session(**(fields | more)), requests=requests or [])


def trace_set(*sessions: SessionTrace, blobs: dict[str, Any] | None = None, **header: Any) -> TraceSet:
    return TraceSet(header=Header(**({"trace_set_id": "t"} | header)), blobs=blobs or {}, sessions=list(sessions))


# -- any trace set ---------------------------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
names = st.text("abcxyz_", min_size=1, max_size=6)
small = st.integers(0, 10**9)
millis = st.floats(0, 1e9, allow_nan=False)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(text, json_values, max_size=3)
extras = st.dictionaries(names.map(lambda n: f"x_{n}"), json_values, max_size=2)
messages = st.lists(objects.map(lambda o: {"role": "user", **o}), max_size=3)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


segments = st.builds(
    Segment,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    tokens=small,
    kind=st.sampled_from(["system", "tools", "user", "tool_result", "assistant", "reasoning", "summary"]),
    tool=optional(text),
    calls=optional(st.lists(text, max_size=2)),
    block=optional(small),
)
inputs = (
    st.builds(Append, messages=messages)
    | st.builds(Full, messages=messages)
    | st.builds(Splice, keep_messages=small, messages=messages)
    | st.builds(
        Shape,
        segments=st.lists(segments, max_size=3),
        keep_segments=optional(small),
        block_hashes=st.lists(st.integers(0, 2**64 - 1) | text, max_size=3),
        keep_blocks=optional(small),
        tail_tokens=optional(small),
    )
)
tools = st.builds(
    Tool,
    call_id=text,
    name=text,
    start_ms=optional(st.floats(-1e6, 1e6)),
    duration_ms=optional(millis),
    is_error=st.booleans(),
    result_tokens=optional(small),
)
sources = st.sampled_from(["provider", "tokenizer", "estimated", "synthetic"])


@st.composite
def any_request(draw: st.DrawFn, session_id: str, index: int) -> Request:
    return Request(
        request_id=f"{session_id}/{index}",
        session_id=session_id,
        index=index,
        input=draw(inputs),
        input_tokens=draw(small),
        input_tokens_source=draw(sources),
        output_tokens=draw(small),
        output_tokens_source=draw(sources),
        depends_on=draw(optional(st.just([]) | st.just([Dependency(request_id=f"{session_id}/0", type="join")]))),
        delay_ms=draw(millis),
        delay_parts=draw(optional(st.builds(DelayParts, tool_ms=millis, human_ms=millis, client_ms=millis))),
        delay_source=draw(st.sampled_from(["measured", "derived", "synthetic", "missing"])),
        tools_before=draw(st.lists(tools, max_size=2)),
        trigger=draw(st.sampled_from(["user", "tool", "subagent", "compaction", "retry", "side"])),
        prefix_tokens_ideal=draw(optional(small)),
        recorded=draw(optional(st.builds(Recorded, cached_tokens=optional(small), cancelled=st.booleans()))),
        output=draw(optional(objects)),
        prefix_event=draw(optional(st.just(PrefixEvent(type="compaction", kept_tokens=3)))),
        sampling=draw(optional(objects)),
        stream=draw(st.booleans()),
        cache_markers=draw(st.lists(objects, max_size=1)),
        extra=draw(extras),
    )


@st.composite
def any_trace_set(draw: st.DrawFn) -> TraceSet:
    blobs = {
        blob_id(t, v): v for t, v in draw(st.lists(st.tuples(st.sampled_from(BLOB_TYPES), json_values), max_size=3))
    }
    sessions: list[SessionTrace] = []
    for number, name in enumerate(draw(st.lists(text, unique=True, max_size=3))):
        requests = [draw(any_request(name, i)) for i in range(draw(st.integers(0, 3)))]
        child = number > 0 and sessions[0].requests and draw(st.booleans())
        sessions.append(
            SessionTrace(
                session=Session(
                    session_id=name,
                    root_session_id=sessions[0].session.session_id if child else name,
                    parent_session_id=sessions[0].session.session_id if child else None,
                    agent=draw(objects),
                    arrival_ms=draw(optional(millis)),
                    language=draw(optional(text)),
                    tags=draw(st.lists(text, max_size=2)),
                    tools_ref=draw(st.sampled_from([None, *blobs])),
                    spawn=Spawn(by_request_id=sessions[0].requests[0].request_id) if child else None,
                    extra=draw(extras),
                ),
                requests=requests,
            )
        )
    header = Header(
        trace_set_id=draw(text),
        content=draw(st.sampled_from(["full", "shape", "mixed"])),
        license=draw(optional(text)),
        redistributable=draw(st.booleans()),
        source=draw(objects),
        block_size=draw(optional(small)),
        counts=Counts(sessions=draw(small)),  # wrong on purpose: writing fills them in
        extra=draw(extras),
    )
    return TraceSet(header=header, blobs=blobs, sessions=sessions)
