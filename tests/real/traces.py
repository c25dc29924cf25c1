"""Sessions of known size, and a transcript as Claude Code writes it, for the tests against the real server."""

from agentperf.trace.model import Header, Request, Segment, Session, SessionTrace, Shape, Tool

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
    """A session whose prompts have these numbers of tokens: one question, then an answer with calls and results a turn."""
    sid = f"sized-{language}"
    segments = [
        Segment(role="system", tokens=SYSTEM, kind="system"),
        Segment(role="user", tokens=USER, kind="user"),
        Segment(role="user", tokens=sizes[0] - SYSTEM - USER, kind="user"),
    ]
    requests = [_request(sid, 0, sizes[0], Shape(segments=segments), [])]
    had = len(segments)
    for index, (before, size) in enumerate(zip(sizes, sizes[1:], strict=False), 1):
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
