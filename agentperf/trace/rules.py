"""Rules that one record can break by itself. Each function yields (field, what, severity) and stops at nothing."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, get_args

import msgspec

from agentperf.trace.codec import KNOWN, blob_id, split_message
from agentperf.trace.model import Blob, Header, Recorded, Request, Session, Shape, Tool
from agentperf.trace.redact import PERSONAL, find_secrets, strings

Severity = Literal["error", "warning"]
Finding = tuple[str, str, Severity]

_TYPES: dict[str, type] = {"header": Header, "blob": Blob, "session": Session, "request": Request}
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_DURATION = re.compile(r"(?:^|_)(?:delay|duration|latency|elapsed|wait|ttft|timeout|time|interval)$")
_OTHER_UNIT = re.compile(
    r"(?:delay|duration|latency|elapsed|wait|ttft|timeout|time|interval)_(?:s|secs?|seconds|us|ns)$"
)
# Content and foreign options: their field names are other people's.
_CONTENT = frozenset({"messages", "output", "sampling", "value", "import_options", "files"})


def type_faults(fields: dict[str, Any]) -> Iterator[Finding]:
    """Everything in which a JSON object differs from the type that its `kind` names, field by field."""
    kind = _TYPES.get(fields.get("kind", "")) if isinstance(fields.get("kind"), str) else None
    if kind is None:
        what = f"{fields['kind']!r} is none of {', '.join(_TYPES)}" if "kind" in fields else "missing"
        yield "kind", what, "error"
        return
    for f in msgspec.structs.fields(kind):
        if f.name == "extra":
            continue
        if f.encode_name not in fields:
            if f.required:
                yield f.encode_name, "missing", "error"
            continue
        try:
            msgspec.convert(fields[f.encode_name], f.type)
        except msgspec.ValidationError as e:
            place, what = split_message(e)
            dot = "." if place and not place.startswith("[") else ""
            yield f"{f.encode_name}{dot}{place}", what, "error"


def unknown_fields(fields: dict[str, Any]) -> Iterator[Finding]:
    """Fields that the format does not know and that do not say so with an `x_` name."""
    kind = _TYPES[fields["kind"]]
    for name in fields:
        if name not in KNOWN[kind] and not name.startswith("x_"):
            yield name, "unknown field; kept, but name it x_... to say that it is an addition", "warning"
    for name, value in fields.items():
        for path in _unknown_below(value, _struct_types(kind, name), name):
            yield path, "unknown field; it is lost when the file is rewritten", "warning"


@cache
def _struct_types(kind: type, name: str) -> tuple[type, ...]:
    for f in msgspec.structs.fields(kind):
        if f.encode_name == name:
            return tuple(_structs_in(f.type))
    return ()


def _structs_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield hint
    for arg in get_args(hint):
        yield from _structs_in(arg)


@cache
def _struct_of(types: tuple[type, ...], mode: str) -> tuple[type, frozenset[str]]:
    """Which of the types (several: told apart by their tag) a value has, and the names that it knows."""
    config = {t: t.__struct_config__ for t in types}  # type: ignore[attr-defined]
    kind = next((t for t in types if len(types) > 1 and config[t].tag == mode), types[0])
    tag = {config[kind].tag_field} if config[kind].tag_field else set()
    return kind, frozenset(f.encode_name for f in msgspec.structs.fields(kind)) | tag


def _unknown_below(value: Any, types: tuple[type, ...], path: str) -> Iterator[str]:
    if not types:
        return
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _unknown_below(item, types, f"{path}[{i}]")
    elif isinstance(value, dict):
        kind, known = _struct_of(types, str(value.get("mode")))
        for name, item in value.items():
            if name not in known:
                yield f"{path}.{name}"
            else:
                yield from _unknown_below(item, _struct_types(kind, name), f"{path}.{name}")


def unit_names(value: Any, path: str = "") -> Iterator[Finding]:
    """Numbers that are durations by their name but do not say in which unit."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from unit_names(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            here = f"{path}.{name}" if path else name
            if isinstance(item, int | float) and not isinstance(item, bool):
                if _DURATION.search(name):
                    yield here, "a duration without its unit; durations end in _ms", "error"
                elif _OTHER_UNIT.search(name):
                    yield here, "durations of this format are in milliseconds and end in _ms", "warning"
            elif name not in _CONTENT:
                yield from unit_names(item, here)


def secrets(fields: dict[str, Any]) -> Iterator[Finding]:
    """Strings that look like credentials (errors) or e-mail addresses (warnings); their text is not repeated."""
    header = fields.get("kind") == "header"  # its attribution may well name somebody with an address
    for path, text in strings(fields):
        for secret in find_secrets(text):
            what = f"looks like a secret: {secret.kind}, characters {secret.start} to {secret.end}"
            if secret.kind not in PERSONAL:
                yield path, f"{what}; a redistributable set must hold none", "error"
            elif not header:
                yield path, f"{what}; may name a person", "warning"


def header_rules(header: Header) -> Iterator[Finding]:
    """A header by itself."""
    if header.block_size is not None and header.block_size < 1:
        yield "block_size", f"{header.block_size} is not positive", "error"
    if header.redistributable and not header.license:
        yield "license", "missing, though the set is said to be redistributable", "error"
    yield from _not_negative(header.counts, "counts.", ("sessions", "requests", "input_tokens", "output_tokens"))


def blob_rules(blob: Blob) -> Iterator[Finding]:
    """A blob by itself: true to its address, of the type it says."""
    if blob.id != (right := blob_id(blob.type, blob.value)):
        yield "id", f"the content has another address: {right}", "error"
    value = blob.value
    if blob.type in ("tools", "messages") and not (isinstance(value, list) and all(isinstance(v, dict) for v in value)):
        yield "value", f"a blob of type {blob.type} is a list of objects", "error"
    if blob.type == "text" and not isinstance(value, str):
        yield "value", "a blob of type text is a string", "error"
    if blob.type == "system" and not isinstance(value, str | list):
        yield "value", "a blob of type system is a string, or a list of content parts", "error"


def session_rules(session: Session) -> Iterator[Finding]:
    """A session by itself."""
    yield from _not_negative(session, "", ("arrival_ms", "context_window", "system_tokens", "tools_tokens"))
    if session.parent_session_id is None:
        if session.root_session_id != session.session_id:
            yield "root_session_id", "a session without a parent is its own root", "error"
        if session.spawn is not None:
            yield "spawn", "given, but the session has no parent_session_id", "error"
    elif session.parent_session_id == session.session_id:
        yield "parent_session_id", "a session is not its own parent", "error"


def request_rules(request: Request, content: str) -> Iterator[Finding]:
    """A request by itself; `content` is what the header says that the set holds."""
    yield from _not_negative(
        request, "", ("input_tokens", "output_tokens", "reasoning_tokens", "delay_ms", "prefix_tokens_ideal")
    )
    if request.reasoning_tokens is not None and request.reasoning_tokens > request.output_tokens:
        yield "reasoning_tokens", f"{request.reasoning_tokens} of {request.output_tokens} output tokens", "error"
    if request.prefix_tokens_ideal is not None and request.prefix_tokens_ideal > request.input_tokens:
        what = f"{request.prefix_tokens_ideal}, but the prompt has {request.input_tokens} tokens"
        yield "prefix_tokens_ideal", what, "error"
    yield from _delay_rules(request)
    for i, tool in enumerate(request.tools_before):
        yield from _tool_rules(tool, f"tools_before[{i}].")
    if request.recorded is not None:
        yield from _recorded_rules(request.recorded, request)
    if request.prefix_event is not None:
        yield from _not_negative(request.prefix_event, "prefix_event.", ("kept_tokens", "dropped_tokens"))
    yield from _input_rules(request, content)


def _delay_rules(request: Request) -> Iterator[Finding]:
    parts = request.delay_parts
    if parts is None:
        return
    yield from _not_negative(parts, "delay_parts.", ("tool_ms", "human_ms", "client_ms"))
    total = parts.tool_ms + parts.human_ms + parts.client_ms
    if abs(total - request.delay_ms) > 1 + 0.01 * request.delay_ms:
        yield "delay_parts", f"add up to {total:g} ms, delay_ms is {request.delay_ms:g}", "warning"


def _tool_rules(tool: Tool, at: str) -> Iterator[Finding]:
    # start_ms may be negative: a tool can begin while its call is still streaming
    yield from _not_negative(tool, at, ("duration_ms", "internal_ms", "result_tokens", "result_bytes"))
    if tool.start_ms is not None and tool.end_ms is not None and tool.end_ms < tool.start_ms:
        yield f"{at}end_ms", f"{tool.end_ms:g} is before start_ms {tool.start_ms:g}", "error"


def _recorded_rules(recorded: Recorded, request: Request) -> Iterator[Finding]:
    names = ("cached_tokens", "cache_write_tokens", "uncached_tokens", "output_tokens", "reasoning_tokens")
    yield from _not_negative(recorded, "recorded.", (*names, "ttft_ms", "duration_ms"))
    reasoning, output = recorded.reasoning_tokens, recorded.output_tokens
    if reasoning is not None and output is not None and reasoning > output:
        yield "recorded.reasoning_tokens", f"{reasoning} of {output} output tokens", "error"
    if recorded.ttft_ms is not None and recorded.duration_ms is not None and recorded.ttft_ms > recorded.duration_ms:
        yield "recorded.ttft_ms", f"{recorded.ttft_ms:g} is after duration_ms {recorded.duration_ms:g}", "warning"
    if request.input_tokens_source != "provider":
        return  # two counts of different tokenizers need not agree
    for name in ("uncached_tokens", "cache_write_tokens"):
        known = (recorded.cached_tokens or 0) + (getattr(recorded, name) or 0)
        if known > request.input_tokens:
            what = f"{request.input_tokens}, but recorded.cached_tokens and recorded.{name} add up to {known}"
            yield "input_tokens", what, "error"
            return


def _input_rules(request: Request, content: str) -> Iterator[Finding]:
    given = request.input
    if isinstance(given, Shape):
        if content == "full":
            yield "input.mode", "shape, though the header says that the set's content is full", "error"
        for i, segment in enumerate(given.segments):
            if segment.tokens < 0:
                yield f"input.segments[{i}].tokens", f"{segment.tokens} is negative", "error"
        return
    if content == "shape":
        yield "input.mode", "messages, though the header says that the set's content is shape", "error"
    for i, message in enumerate(given.messages):
        role = message.get("role")
        if role not in _ROLES:
            yield f"input.messages[{i}].role", f"{role!r} is none of {', '.join(sorted(_ROLES))}", "error"


def _not_negative(record: Any, at: str, names: tuple[str, ...]) -> Iterator[Finding]:
    for name in names:
        value = getattr(record, name)
        if value is not None and value < 0:
            yield f"{at}{name}", f"{value} is negative", "error"
