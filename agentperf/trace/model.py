"""The trace format `agentperf-trace/1` as types: header, blob, session, request.

JSON Lines, one record a line, told apart by `kind`. Durations carry their unit in the name (`_ms`), token counts are
integers. `docs/trace-format.md` is the reference; `validate.py` checks the invariants that types cannot.
"""

from typing import Any, Literal

from msgspec import Struct, field

FORMAT = "agentperf-trace"
VERSION = 1

Message = dict[str, Any]
"""One message in the shape of the OpenAI chat API."""

TokenSource = Literal["provider", "tokenizer", "estimated", "synthetic"]
DelaySource = Literal["measured", "derived", "synthetic", "missing"]
Trigger = Literal["user", "tool", "subagent", "compaction", "retry", "side"]
Role = Literal["system", "user", "assistant", "tool"]
SegmentKind = Literal["system", "tools", "user", "tool_result", "assistant", "reasoning", "summary"]


class _Base(Struct, kw_only=True, omit_defaults=True):
    """Fields named `x_*` that a file carries beside the known ones are kept in `extra` and written back."""


class Counts(_Base):
    """Totals of a trace set."""

    sessions: int = 0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Header(_Base, tag_field="kind", tag="header"):
    """The first line of a trace set: what it is, whose it is, how it was made."""

    trace_set_id: str
    format: str = FORMAT
    version: int = VERSION
    created_at: str | None = None
    generator: dict[str, Any] = field(default_factory=dict)
    content: Literal["full", "shape", "mixed"] = "full"
    license: str | None = None
    attribution: str | None = None
    redistributable: bool = False
    privacy: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, Any] | None = None
    block_size: int | None = None
    hash_scope: Literal["file", "session", "global"] | None = None
    hash_algo: str | None = None
    seed: int | None = None
    description: str | None = None
    counts: Counts = field(default_factory=Counts)
    extra: dict[str, Any] = field(default_factory=dict)


class Blob(_Base, tag_field="kind", tag="blob"):
    """Content that several records share, addressed by the SHA-256 of its canonical JSON (`sha256:...`)."""

    id: str
    type: Literal["tools", "system", "messages", "text"]
    value: Any
    extra: dict[str, Any] = field(default_factory=dict)


class Spawn(_Base):
    """Where a subagent's session comes from."""

    by_request_id: str
    tool_call_id: str | None = None
    kind: Literal["fork", "spawn"] = "spawn"
    background: bool = False


class Session(_Base, tag_field="kind", tag="session"):
    """One line of turns: a main session, or a subagent of the tree that `root_session_id` names."""

    session_id: str
    root_session_id: str
    parent_session_id: str | None = None
    agent: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    arrival_ms: float | None = None
    started_at: str | None = None
    context_window: int | None = None
    language: str | None = None
    """Main programming language of the work, e.g. "python"; chooses the flavour of filler text."""
    product: str | None = None
    """Sessions of one product share system prompt and tool schema, and so their prefix."""
    tags: list[str] = field(default_factory=list)
    system_ref: str | None = None
    tools_ref: str | None = None
    system_tokens: int | None = None
    """Size of a system prompt whose text is not in the file: filler is made for it, the same for one product."""
    tools_tokens: int | None = None
    seed: int | None = None
    spawn: Spawn | None = None
    license: str | None = None
    source_ref: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class DelayParts(_Base):
    """What the client-side wait consists of; overlapping tool spans count once."""

    tool_ms: float = 0.0
    human_ms: float = 0.0
    client_ms: float = 0.0


class Tool(_Base):
    """A tool call that ran before this request; offsets are from the end of the request that issued it."""

    call_id: str
    name: str
    tool_class: str | None = None
    start_ms: float | None = None
    end_ms: float | None = None
    duration_ms: float | None = None
    internal_ms: float | None = None
    is_error: bool = False
    result_tokens: int | None = None
    result_bytes: int | None = None
    waits_on_human: bool = False
    child_session_id: str | None = None


class Dependency(_Base):
    """This request starts after `request_id` is complete."""

    request_id: str
    type: Literal["turn", "spawn", "join"] = "turn"


class Segment(_Base):
    """A stretch of prompt known by size only; filler text is made for it at load."""

    role: Role
    tokens: int
    kind: SegmentKind
    tool: str | None = None
    calls: list[str] | None = None
    """For an assistant segment: ids of the tool calls it makes, described in the next request's `tools_before`."""
    block: int | None = None


class Append(_Base, tag_field="mode", tag="append"):
    """Only the messages that are new since the parent request (the parent's answer included)."""

    messages: list[Message]


class Full(_Base, tag_field="mode", tag="full"):
    """The whole message list."""

    messages: list[Message]


class Splice(_Base, tag_field="mode", tag="splice"):
    """The first `keep_messages` messages of the parent's prompt, then these."""

    keep_messages: int
    messages: list[Message]


class Shape(_Base, tag_field="mode", tag="shape"):
    """No content: sizes of segments and, where known, hashes of whole prompt blocks.

    `segments` describes the whole prompt, or, when `keep_segments` is set, what follows the first `keep_segments`
    segments of the parent's prompt. `block_hashes` likewise follows the first `keep_blocks` blocks of the parent.
    """

    segments: list[Segment] = field(default_factory=list)
    keep_segments: int | None = None
    block_hashes: list[int | str] = field(default_factory=list)
    keep_blocks: int | None = None
    tail_tokens: int | None = None


Input = Append | Full | Splice | Shape


class Recorded(_Base):
    """What the original server did. Never used as a replay target except by name."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_ttl: str | None = None
    uncached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    start_ms: float | None = None
    finish_reason: str | None = None
    model: str | None = None
    error: str | None = None
    cancelled: bool = False


class PrefixEvent(_Base):
    """An explicit break of the prompt prefix."""

    type: Literal["compaction", "prune", "rewind", "clear", "model_switch", "tools_changed", "ttl_expiry"]
    kept_tokens: int | None = None
    dropped_tokens: int | None = None


class Request(_Base, tag_field="kind", tag="request"):
    """One model call: its prompt, its recorded output length, and the client-side wait before it."""

    request_id: str
    session_id: str
    index: int
    input: Input
    input_tokens: int
    input_tokens_source: TokenSource
    output_tokens: int
    output_tokens_source: TokenSource
    depends_on: list[Dependency] | None = None
    """None: the request before it in the session."""
    delay_ms: float = 0.0
    """From the end of the last dependency to dispatch: tool, human and client time; never server time."""
    delay_parts: DelayParts | None = None
    delay_source: DelaySource = "missing"
    tools_before: list[Tool] = field(default_factory=list)
    trigger: Trigger = "tool"
    prefix_tokens_ideal: int | None = None
    """Longest common prefix with any earlier request in scope, in tokens."""
    recorded: Recorded | None = None
    reasoning_tokens: int | None = None
    reasoning_policy: Literal["kept", "stripped", "encrypted", "none"] | None = None
    output: dict[str, Any] | None = None
    """Recorded answer {text?, reasoning?, tool_calls?}."""
    prefix_event: PrefixEvent | None = None
    sampling: dict[str, Any] | None = None
    stream: bool = True
    endpoint: Literal["chat", "responses", "messages", "completions"] = "chat"
    cache_markers: list[dict[str, Any]] = field(default_factory=list)
    source_ref: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


TraceRecord = Header | Blob | Session | Request


class SessionTrace(Struct, kw_only=True):
    """A session with its requests in order."""

    session: Session
    requests: list[Request]


class TraceSet(Struct, kw_only=True):
    """A whole trace set in memory. `digest` is the SHA-256 of its canonical records, header counts included."""

    header: Header
    blobs: dict[str, Any]
    """Values by id."""
    sessions: list[SessionTrace]
    digest: str = ""
    blob_extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Unknown fields of blobs, by id."""

    def trees(self) -> list[list[SessionTrace]]:
        """Sessions grouped by root, the root first, in the order of the file."""
        groups: dict[str, list[SessionTrace]] = {}
        for item in self.sessions:
            groups.setdefault(item.session.root_session_id, []).append(item)
        return [sorted(g, key=lambda s: s.session.session_id != s.session.root_session_id) for g in groups.values()]
