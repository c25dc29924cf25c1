"""Sessions of known size, and a transcript as Claude Code writes it, for the tests against the real server."""

import json
from itertools import count, pairwise
from typing import Any

from msgspec.structs import replace

from agentperf.trace.model import Header, Message, Request, Segment, Session, SessionTrace, Shape, Tool, TraceSet
from agentperf.trace.render import RenderedSession

TOOLS_REF = "sha256:" + "0" * 64
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": f"The {key} to use."} for key in keys},
                "required": list(keys),
            },
        },
    }
    for name, about, keys in (
        ("bash", "Run a command in the shell of the workspace and return what it prints.", ("command",)),
        ("read_file", "Return the text of a file, with line numbers.", ("path",)),
        ("write_file", "Replace a file by the text that is given.", ("path", "content")),
        ("search", "Find a pattern in the files below a folder.", ("pattern", "folder")),
    )
]
HEADER = Header(trace_set_id="sized")
SYSTEM, USER, ANSWER = 500, 300, 180


def sized_session(language: str, sizes: tuple[int, ...]) -> SessionTrace:
    """A session whose prompts have these sizes in tokens: a question, then an answer with calls and results a turn."""
    sid = f"sized-{language}"
    segments = [
        Segment(role="system", tokens=SYSTEM, kind="system"),
        Segment(role="user", tokens=USER, kind="user"),
        Segment(role="user", tokens=sizes[0] - SYSTEM - USER, kind="user"),
    ]
    requests = [_request(sid, 0, sizes[0], Shape(segments=segments), [])]
    had = len(segments)
    for index, (before, size) in enumerate(pairwise(sizes), 1):
        calls = [f"{sid}-{index}-{n}" for n in range(1 + index % 2)]
        names = ("write_file", "bash") if index % 2 else ("read_file",)
        each = (size - before - ANSWER) // len(calls)
        new = [Segment(role="assistant", tokens=ANSWER, kind="assistant", calls=calls)]
        new += [Segment(role="tool", tokens=each, kind="tool_result", tool=names[n]) for n in range(len(calls))]
        tools = [Tool(call_id=call, name=name) for call, name in zip(calls, names, strict=True)]
        requests.append(_request(sid, index, size, Shape(segments=new, keep_segments=had), tools))
        had += len(new)
    session = Session(
        session_id=sid, root_session_id=sid, language=language, product="sized", tools_ref=TOOLS_REF, seed=7
    )
    return SessionTrace(session=session, requests=requests)


def _request(sid: str, index: int, size: int, shape: Shape, tools: list[Tool]) -> Request:
    return Request(
        request_id=f"{sid}-r{index}",
        session_id=sid,
        index=index,
        input=shape,
        input_tokens=size,
        input_tokens_source="synthetic",
        output_tokens=ANSWER,
        output_tokens_source="synthetic",
        tools_before=tools,
    )


def prompts_of(session: RenderedSession) -> list[list[Message]]:
    """The whole prompt of each turn, without cache salt."""
    prompts: list[list[Message]] = []
    messages: list[Message] = []
    for turn in session.turns:
        messages = [*messages[: turn.keep_messages], *turn.new_messages]
        prompts.append(messages)
    return prompts


# -- a transcript in the shape of Claude Code's ----------------------------------------------------------------------

SCAFFOLD_TOKENS = 16_000
"""System prompt and tool schemas of the client: in no file, only in the provider's counts."""


def transcript(results: tuple[int, ...]) -> str:
    """JSON Lines of one session: a question, then a tool call a round whose result has so many lines of log.

    As in real files, the lines of a round share one message id, an early line carries a placeholder count of output
    tokens, and lines that are no messages stand between.
    """
    clock = count(start=0, step=400)
    lines: list[dict[str, Any]] = [{"type": "file-history-snapshot", "messageId": "m0", "snapshot": {}}]
    parent: str | None = None

    def add(kind: str, **fields: Any) -> None:
        nonlocal parent
        uuid = f"line-{len(lines):03d}"
        minutes, ms = divmod(next(clock), 60_000)
        stamp = f"2026-03-01T10:{minutes:02d}:{ms // 1000:02d}.{ms % 1000:03d}Z"
        frame = {"parentUuid": parent, "uuid": uuid, "sessionId": "transcript-1", "isSidechain": False}
        lines.append({"type": kind, "timestamp": stamp, "version": "2.1.157", "cwd": "/w", **frame, **fields})
        parent = uuid

    question = "The nightly import of invoices is slow since Tuesday. Find out why, and tell me before you change it."
    add("user", message={"role": "user", "content": question})
    prompt = SCAFFOLD_TOKENS + 30
    cached = 0
    for number, length in enumerate(results):
        call = {
            "type": "tool_use",
            "id": f"toolu_{number}",
            "name": "Bash",
            "input": {"command": f"tail import.{number}.log"},
        }
        text = {"type": "text", "text": f"Step {number}: I look at what the import wrote, part {number}."}
        usage = {
            "input_tokens": 4,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": prompt - cached - 4,
        }
        for block, output, stop in ((text, 1, None), (call, 60, "tool_use")):
            message = {"id": f"msg_{number}", "role": "assistant", "model": "claude-opus-4-6", "content": [block]}
            message |= {"stop_reason": stop, "usage": {**usage, "output_tokens": output}}
            add("assistant", requestId=f"req_{number}", message=message)
        add("progress", data={"type": "bash_progress", "elapsedTimeSeconds": 1})
        log = "\n".join(f"worker {n % 4} stored the invoices of supplier {n * 37 % 900}, slowly" for n in range(length))
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": log, "is_error": False}
        add("user", message={"role": "user", "content": [result]}, toolUseResult={"stdout": log, "stderr": ""})
        cached, prompt = prompt - 4, prompt + 60 + len(log) // 2
    usage = {"input_tokens": 4, "cache_read_input_tokens": cached, "cache_creation_input_tokens": prompt - cached - 4}
    message = {"id": "msg_end", "role": "assistant", "model": "claude-opus-4-6", "stop_reason": "end_turn"}
    message |= {"content": [{"type": "text", "text": "It is the index."}], "usage": {**usage, "output_tokens": 8}}
    add("assistant", requestId="req_end", message=message)
    return "".join(json.dumps(line) + "\n" for line in lines)


def with_small_scaffold(trace_set: TraceSet, tokens: int) -> TraceSet:
    """The set with a system prompt of so many tokens.

    That of a real coding agent fills the small context of the model alone. It is not in the transcripts, filler
    stands for it anyway, so nothing that was recorded changes. The provider's own counts no longer apply.
    """
    return replace(trace_set, sessions=[_small(item, tokens) for item in trace_set.sessions])


def _small(item: SessionTrace, tokens: int) -> SessionTrace:
    less = (item.session.system_tokens or 0) - tokens
    assert less > 0
    requests = [
        replace(
            request,
            input_tokens=request.input_tokens - less,
            prefix_tokens_ideal=max(0, (request.prefix_tokens_ideal or 0) - less),
            recorded=None,
        )
        for request in item.requests
    ]
    return replace(item, session=replace(item.session, system_tokens=tokens), requests=requests)
