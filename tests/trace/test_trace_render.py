import json
from typing import Any

import pytest
from fake_server import SERVERS
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builders import request, session, trace_set

from agentperf.errors import TraceError
from agentperf.trace.codec import blob_id
from agentperf.trace.io import load
from agentperf.trace.model import (
    Append,
    Dependency,
    Full,
    Message,
    Segment,
    SessionTrace,
    Shape,
    Spawn,
    Splice,
    Tool,
    TraceSet,
)
from agentperf.trace.render import RenderedSession, RenderedTree, render_tree
from agentperf.trace.sizing import DEFAULT_SIZES, TokenSizes, calibration_prompts_for, fit
from agentperf.trace.synth import make
from agentperf.trace.synth_tools import PRODUCTS


@pytest.fixture(scope="module")
def smoke() -> TraceSet:
    return load("smoke")


@pytest.fixture(scope="module")
def coding() -> list[RenderedTree]:
    made = load("coding-v1")
    return [render_tree(t, made.blobs, DEFAULT_SIZES, made.header) for t in made.trees()]


def render(trace: TraceSet, sizes: TokenSizes = DEFAULT_SIZES) -> list[RenderedTree]:
    return [render_tree(t, trace.blobs, sizes, trace.header) for t in trace.trees()]


def prompts(item: RenderedSession) -> list[list[Message]]:
    made: list[list[Message]] = []
    for turn in item.turns:
        before = made[-1] if made else []
        made.append([*before[: turn.keep_messages], *turn.new_messages])
    return made


def check_dialogue(messages: list[Message]) -> None:
    """Every call is answered at once, nothing else is, and no message is empty but a call's."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_calls.pop(0)
            continue
        assert not open_calls
        open_calls = [c["id"] for c in message.get("tool_calls", ())]
        assert message["content"] or open_calls
    assert not open_calls


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """JSON Schema, as far as the tools use it."""
    if "enum" in schema and value not in schema["enum"]:
        return False
    kind = schema["type"]
    if kind == "object":
        return (
            isinstance(value, dict)
            and set(schema.get("required", ())) <= value.keys() <= schema["properties"].keys()
            and all(fits(v, schema["properties"][k]) for k, v in value.items())
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and len(value) >= schema.get("minItems", 0)
            and all(fits(v, schema["items"]) for v in value)
        )
    if kind == "integer":
        return type(value) is int and schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if kind == "boolean":
        return isinstance(value, bool)
    return isinstance(value, str) and len(value) >= schema.get("minLength", 0)


# -- the bundled sets ------------------------------------------------------------------------------------------------


def test_every_prompt_is_a_prefix_of_the_next(coding: list[RenderedTree], smoke: TraceSet) -> None:
    for tree in [*coding, *render(smoke)]:
        for item in tree.sessions:
            made = prompts(item)
            for before, after, turn in zip(made, made[1:], item.turns[1:], strict=False):
                assert turn.keep_messages == len(before)
                assert len(turn.new_messages) >= 2
                head = json.dumps(before)[:-1]
                assert json.dumps(after).startswith(head + ",")


def test_every_prompt_has_its_recorded_size_and_none_drifts(coding: list[RenderedTree]) -> None:
    recorded = {r.request_id: r for s in load("coding-v1").sessions for r in s.requests}
    turns = [t for tree in coding for item in tree.sessions for t in item.turns]
    assert len(turns) == len(recorded)
    off = [at for at, t in enumerate(turns) if abs(t.input_tokens - recorded[t.request_id].input_tokens) > 1]
    # A short answer whose call costs more than was recorded, with a result too small to make up for it, until the next
    # turn does.
    assert len(off) <= 4
    assert all(abs(turns[at].input_tokens / recorded[turns[at].request_id].input_tokens - 1) < 0.001 for at in off)
    assert not {at + 1 for at in off} & set(off)
    assert all(t.output_tokens == recorded[t.request_id].output_tokens for t in turns)
    assert all(t.delay_ms == recorded[t.request_id].delay_ms for t in turns)
    assert all(t.cached_tokens == recorded[t.request_id].prefix_tokens_ideal for t in turns)


def test_dialogues_that_a_server_accepts(coding: list[RenderedTree]) -> None:
    parallel = failed = 0
    for tree in coding:
        for item in tree.sessions:
            messages = prompts(item)[-1]
            check_dialogue(messages)
            assert [m["role"] for m in messages[:2]] == ["system", "user"]
            assert item.salt_message == 1
            parallel += sum(len(m.get("tool_calls", ())) > 1 for m in messages)
            failed += sum(m["role"] == "tool" and m["content"].startswith("Error: ") for m in messages)
    assert parallel > 300
    assert failed > 50


def test_arguments_fit_the_schema_of_their_tool(coding: list[RenderedTree]) -> None:
    called: set[str] = set()
    for tree in coding:
        for item in tree.sessions:
            schemas = {t["function"]["name"]: t["function"]["parameters"] for t in item.tools}
            for turn in item.turns:
                for message in turn.new_messages:
                    for call in message.get("tool_calls", ()):
                        name = call["function"]["name"]
                        arguments = json.loads(call["function"]["arguments"])
                        assert fits(arguments, schemas[name]), (name, arguments)
                        called.add(name)
    assert called == {name for p in PRODUCTS for name in p.names.values()}


def test_sessions_of_a_product_share_system_prompt_and_tools_and_nothing_else(coding: list[RenderedTree]) -> None:
    starts: dict[str, set[str]] = {}
    for item, tree in zip(load("coding-v1").trees(), coding, strict=True):
        for one, made in zip(item, tree.sessions, strict=True):
            start = json.dumps([made.tools, made.turns[0].new_messages[0]])
            starts.setdefault(str(one.session.product), set()).add(start)
    assert len(starts) == 6
    assert all(len(s) == 1 for s in starts.values())
    assert len(set.union(*starts.values())) == 6
    users = [made.turns[0].new_messages[1]["content"][:250] for tree in coding for made in tree.sessions]
    assert len(set(users)) > 0.9 * len(users)


def test_text_is_of_the_sessions_language(coding: list[RenderedTree]) -> None:
    marks = {"python": "def ", "go": "func (", "rust": "fn ", "java": "Optional<", "php": "$this->"}
    sent = dict.fromkeys(marks, "")
    for item, tree in zip(load("coding-v1").trees(), coding, strict=True):
        if item[0].session.language in marks:
            text = "".join(str(m["content"]) for t in tree.sessions[0].turns for m in t.new_messages)
            sent[item[0].session.language] += text
    for language, mark in marks.items():
        assert sent[language].count(mark) > 3 * max(sent[language].count(m) for m in marks.values() if m != mark)


def test_the_same_again_and_in_any_order(smoke: TraceSet) -> None:
    forwards = render(smoke)
    backwards = [render_tree(t, smoke.blobs, DEFAULT_SIZES, smoke.header) for t in reversed(smoke.trees())]
    assert forwards == backwards[::-1]
    other = render(make("smoke", 1))
    assert other[0].sessions[0].turns[0].new_messages[1] != forwards[0].sessions[0].turns[0].new_messages[1]


@pytest.mark.parametrize("name", SERVERS)
def test_what_a_server_drops_is_made_up_for(name: str, smoke: TraceSet) -> None:
    prompts_ = calibration_prompts_for(smoke.trees(), smoke.blobs)
    sizes = fit(prompts_, {p.name: SERVERS[name].count(p.messages, p.tools) for p in prompts_})
    recorded = {r.request_id: r.input_tokens for s in smoke.sessions for r in s.requests}
    systems = set()
    for tree in render(smoke, sizes):
        for item in tree.sessions:
            check_dialogue(prompts(item)[-1])
            if name == "bytes":  # the tools alone are larger than the prompt: said as it is
                assert all(t.input_tokens >= recorded[t.request_id] - 1 for t in item.turns)
            else:
                assert all(abs(t.input_tokens - recorded[t.request_id]) <= 1 for t in item.turns)
        systems.add(tree.sessions[0].turns[0].new_messages[0]["content"])
    assert len(systems) == 1


def test_dependencies_are_spelled_out(smoke: TraceSet) -> None:
    for tree in render(smoke):
        root = tree.sessions[0]
        assert root.turns[0].depends_on == ()
        ids = {t.request_id for item in tree.sessions for t in item.turns}
        assert all(d.request_id in ids for item in tree.sessions for t in item.turns for d in t.depends_on)
        for child in tree.sessions[1:]:
            assert [d.type for d in child.turns[0].depends_on] == ["spawn"]
            joined = [t for t in root.turns if any(d.type == "join" for d in t.depends_on)]
            assert [d.request_id for t in joined for d in t.depends_on if d.type == "join"] == [
                child.turns[-1].request_id
            ]


# -- shapes ----------------------------------------------------------------------------------------------------------


def seg(role: Any, tokens: int, kind: Any = "", **more: Any) -> Segment:
    return Segment(role=role, tokens=tokens, kind=kind or {"tool": "tool_result"}.get(role, role), **more)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "save",
            "parameters": {
                "type": "object",
                "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
                "required": ["file_path", "content"],
            },
        },
    }
]
TOOLS_ID = blob_id("tools", TOOLS)


def one(*requests: Any, **session_more: Any) -> SessionTrace:
    return session("s", list(requests), **session_more)


def test_long_answers_put_their_text_into_the_call() -> None:
    first = request("s", 0, input=Shape(segments=[seg("user", 300)]), input_tokens=900)
    second = request(
        "s",
        1,
        input=Shape(
            keep_segments=1,
            segments=[seg("assistant", 900, calls=["a"]), seg("tool", 200, tool="save")],
        ),
        input_tokens=2000,
        tools_before=[Tool(call_id="a", name="save")],
    )
    trace = trace_set(
        one(first, second, tools_ref=TOOLS_ID, language="rust", system_tokens=600), blobs={TOOLS_ID: TOOLS}
    )
    [item] = render(trace)[0].sessions
    said, result = item.turns[1].new_messages
    arguments = json.loads(said["tool_calls"][0]["function"]["arguments"])
    assert arguments["file_path"].endswith(".rs")
    assert len(arguments["content"]) > 1500
    assert result["tool_call_id"] == "a"
    assert [t.input_tokens for t in item.turns] == [900, 2000]
    assert item.turns[0].new_messages[0]["role"] == "system"  # 600 tokens of filler, though no segment says so


def test_results_without_calls_and_calls_without_results() -> None:
    shape = Shape(
        segments=[
            seg("tool", 50),  # answers nothing: becomes the user's
            seg("assistant", 30, "reasoning"),
            seg("assistant", 60, calls=["x", "y", "z"]),
            seg("tool", 40, tool="bash"),
            seg("tool", 40, tool="bash"),
            seg("assistant", 60),
            seg("tool", 40),
            seg("assistant", 30, calls=["never"]),
            seg("user", 40, "summary"),
        ]
    )
    [item] = render(trace_set(one(request("s", 0, input=shape, input_tokens=1200))))[0].sessions
    messages = prompts(item)[0]
    check_dialogue(messages)
    assert [m["role"] for m in messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert [c["id"] for c in messages[1]["tool_calls"]] == ["x", "y"]
    assert item.turns[0].input_tokens == 1200


def test_a_prompt_too_small_for_its_parts_says_so_and_recovers() -> None:
    said = [seg("assistant", 30, calls=["a"]), seg("tool", 10, tool="bash")]
    requests = [
        request("s", 0, input=Shape(segments=[seg("system", 100), seg("user", 60)]), input_tokens=160),
        request("s", 1, input=Shape(keep_segments=2, segments=said), input_tokens=165),
        request(
            "s", 2, input=Shape(keep_segments=4, segments=[seg("assistant", 9), seg("user", 300)]), input_tokens=700
        ),
    ]
    [item] = render(trace_set(one(*requests)))[0].sessions
    assert item.turns[1].input_tokens > 165  # told as it is, not as it was wished
    assert item.turns[2].input_tokens == 700


def test_prefix_broken_in_the_middle_keeps_what_lies_before() -> None:
    start = [seg("system", 200), seg("user", 300), seg("assistant", 80), seg("user", 200)]
    requests = [
        request("s", 0, input=Shape(segments=start), input_tokens=900),
        request("s", 1, input=Shape(keep_segments=2, segments=[seg("user", 400, "summary")]), input_tokens=1000),
        request("s", 2, input=Shape(segments=[seg("system", 200), seg("user", 500)]), input_tokens=800),
    ]
    [item] = render(trace_set(one(*requests)))[0].sessions
    assert [t.keep_messages for t in item.turns] == [0, 2, 1]  # the system prompt is the same text again
    assert [t.input_tokens for t in item.turns] == [900, 1000, 800]
    assert item.turns[1].cached_tokens == pytest.approx(500, abs=450)
    assert item.turns[0].cached_tokens == 0


def test_a_fork_inherits_the_prompt_of_its_origin() -> None:
    root = one(
        request("s", 0, input=Shape(segments=[seg("system", 200), seg("user", 300)]), input_tokens=500),
        request(
            "s", 1, input=Shape(keep_segments=2, segments=[seg("assistant", 50), seg("user", 90)]), input_tokens=640
        ),
    )
    child = session(
        "c",
        [
            request(
                "c",
                0,
                input=Shape(keep_segments=2, segments=[seg("assistant", 50), seg("user", 200)]),
                input_tokens=750,
            )
        ],
        root_session_id="s",
        parent_session_id="s",
        spawn=Spawn(by_request_id="s-0", kind="fork"),
    )
    main, fork = render(trace_set(root, child))[0].sessions
    assert prompts(fork)[0][:2] == prompts(main)[0]
    assert fork.turns[0].keep_messages == 0
    assert fork.turns[0].input_tokens == 750
    assert fork.turns[0].cached_tokens == pytest.approx(500, abs=20)
    assert fork.turns[0].depends_on == (Dependency(request_id="s-0", type="spawn"),)


def test_a_size_and_nothing_else() -> None:
    requests = [request("s", i, input=Shape(), input_tokens=500 + 100 * i) for i in range(2)]
    [item] = render(trace_set(one(*requests)))[0].sessions
    assert len(item.turns) == 2


# -- recorded messages -----------------------------------------------------------------------------------------------


def say(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def test_recorded_messages_are_untouched() -> None:
    parts = say("user", [{"type": "text", "text": "look"}, {"type": "image", "tokens": 700}])
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    said = say("assistant", None, tool_calls=[call])
    result = say("tool", "a.py\nb.py", tool_call_id="c")
    requests = [
        request("s", 0, input=Append(messages=[parts])),
        request("s", 1, input=Append(messages=[said, result])),
        request("s", 2, input=Splice(keep_messages=1, messages=[say("user", "short")])),
        request("s", 3, input=Full(messages=[parts, say("user", "other")])),
        request("s", 4, input=Full(messages=[say("user", "title?")]), trigger="side"),
        request("s", 5, input=Full(messages=[say("system", "own"), say("user", "x")])),
    ]
    [item] = render(trace_set(one(*requests, system_tokens=1000, tools_tokens=500)))[0].sessions
    made = prompts(item)
    system = made[0][0]
    assert system["role"] == "system"
    assert made[0] == [system, parts]
    assert made[1] == [system, parts, said, result]
    assert made[2] == [system, parts, say("user", "short")]
    assert made[3] == [system, parts, say("user", "other")]
    assert made[4] == [say("user", "title?")]
    assert made[5] == [say("system", "own"), say("user", "x")]
    assert [t.keep_messages for t in item.turns] == [0, 2, 2, 2, 0, 0]
    assert item.turns[0].input_tokens == pytest.approx(1500 + 700 + 6, abs=3)
    assert item.turns[1].cached_tokens == item.turns[0].input_tokens
    assert item.turns[4].cached_tokens == 0
    assert item.salt_message == 1  # where every prompt that begins anew can take it


def test_salt_goes_where_every_prompt_can_take_it() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    requests = [
        request("s", 0, input=Full(messages=[say("user", "a")])),
        request("s", 1, input=Full(messages=[say("system", "b"), say("assistant", None, tool_calls=[call])])),
    ]
    [item] = render(trace_set(one(*requests)))[0].sessions
    assert item.salt_message == 0
    title = request("s", 1, input=Full(messages=[say("user", "title?")]), trigger="side")
    [with_title] = render(
        trace_set(one(request("s", 0, input=Append(messages=[say("system", "b"), say("user", "a")])), title))
    )[0].sessions
    assert with_title.salt_message == 1  # the helper call does without rather than that the system prompt is salted
    assert with_title.shared_tokens == pytest.approx(8.2, abs=1)
    [none] = render(trace_set(one(request("s", 0, input=Full(messages=[say("assistant", None, tool_calls=[call])])))))[
        0
    ].sessions
    assert none.salt_message == -1


def test_recorded_system_prompt_and_missing_blobs() -> None:
    text = "You are careful."
    ref = blob_id("system", text)
    shape = Shape(segments=[seg("system", 5), seg("user", 100)])
    requests = [request("s", 0, input=shape, input_tokens=400)]
    trace = trace_set(one(*requests, system_ref=ref), blobs={ref: text})
    [item] = render(trace)[0].sessions
    assert item.turns[0].new_messages[0] == say("system", text)
    assert item.turns[0].input_tokens == 400
    with pytest.raises(TraceError, match="session s: blob sha256"):
        render(trace_set(one(*requests, system_ref=ref)))


# -- hashed blocks ---------------------------------------------------------------------------------------------------

SIZE = 64


@st.composite
def block_sessions(draw: st.DrawFn) -> list[tuple[list[int], int, int]]:
    """(hashes, tail, output) of each prompt: each keeps some of the blocks before, often all, and adds new ones."""
    made: list[tuple[list[int], int, int]] = []
    fresh = 1
    for _ in range(draw(st.integers(1, 6))):
        before = made[-1][0] if made else []
        kept = len(before) if draw(st.integers(0, 3)) else draw(st.integers(0, len(before)))
        new = draw(st.integers(0 if kept == len(before) and before else 1, 12))
        hashes = [*before[:kept], *range(fresh, fresh + new)]
        fresh += new
        made.append((hashes, draw(st.integers(0, SIZE - 1)), draw(st.integers(1, 700))))
    return made


def block_trace(made: list[tuple[list[int], int, int]], **more: Any) -> TraceSet:
    requests = [
        request(
            "s",
            i,
            input=Shape(block_hashes=list(hashes), tail_tokens=tail),
            input_tokens=len(hashes) * SIZE + tail,
            output_tokens=output,
        )
        for i, (hashes, tail, output) in enumerate(made)
    ]
    return trace_set(one(*requests, **more), block_size=SIZE, hash_scope="session")


def joined(messages: list[Message]) -> str:
    return "".join(str(m["content"]) for m in messages)


@settings(max_examples=60, deadline=None)
@given(block_sessions(), st.sampled_from([0, 150, 200]))
def test_equal_leading_blocks_give_an_equal_leading_text(made: list[tuple[list[int], int, int]], system: int) -> None:
    trace = block_trace(made, system_tokens=system)
    [item] = render(trace)[0].sessions
    assert render(trace)[0].sessions[0] == item
    texts = prompts(item)
    for at, (turn, (hashes, tail, _)) in enumerate(zip(item.turns, made, strict=True)):
        target = len(hashes) * SIZE + tail
        # a stretch shorter than the frame of a message cannot be had exactly
        assert abs(turn.input_tokens - target) <= 3 * len(texts[at]) + 12
        if not at:
            continue
        before, tail_before, _ = made[at - 1]
        same = next(
            (i for i, (a, b) in enumerate(zip(before, hashes, strict=False)) if a != b), min(len(before), len(hashes))
        )
        whole = same == len(before) and target >= len(before) * SIZE + tail_before
        if whole:
            assert turn.keep_messages == len(texts[at - 1])
        common = len("x" * max(0, int((same * SIZE - 14 * len(texts[at])) * 2)))  # at least 2 characters a token
        assert joined(texts[at])[:common] == joined(texts[at - 1])[:common]


def test_blocks_with_keep_and_the_answer_in_its_place() -> None:
    requests = [
        request(
            "s", 0, input=Shape(block_hashes=list(range(1, 21)), tail_tokens=10), input_tokens=1290, output_tokens=200
        ),
        request(
            "s", 1, input=Shape(keep_blocks=20, block_hashes=[21, 22, 23, 24, 25], tail_tokens=0), input_tokens=1600
        ),
        request("s", 2, input=Shape(keep_blocks=10, block_hashes=[90, 91, 92], tail_tokens=5), input_tokens=837),
    ]
    trace = trace_set(one(*requests, system_tokens=300, tools_tokens=100), block_size=SIZE, hash_scope="session")
    [item] = render(trace)[0].sessions
    made = prompts(item)
    assert [m["role"] for m in made[1]] == ["system", "user", "assistant", "user"]
    assert [t.keep_messages for t in item.turns] == [0, 2, 1]
    assert [t.input_tokens for t in item.turns] == [pytest.approx(n, abs=3) for n in (1290, 1600, 837)]
    answer = made[1][2]["content"]
    assert 400 < len(answer) < 1000
    # the user's message is cut at block 10 and goes on otherwise
    old, new = made[0][1]["content"], made[2][1]["content"]
    shared = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    assert 400 < shared < 1200
    assert item.turns[1].cached_tokens == pytest.approx(1290, abs=3)


def test_hash_scope_decides_what_is_shared() -> None:
    def start(scope: Any, name: str, set_name: str) -> str:
        shape = Shape(block_hashes=[1, 2, 3, 4], tail_tokens=0)
        trace = trace_set(
            session(name, [request(name, 0, input=shape, input_tokens=256)]),
            block_size=SIZE,
            hash_scope=scope,
            trace_set_id=set_name,
        )
        return joined(prompts(render(trace)[0].sessions[0])[0])

    assert start("session", "a", "x") != start("session", "b", "x")
    assert start("file", "a", "x") == start("file", "b", "x") != start("file", "a", "y")
    assert start("global", "a", "x") == start("global", "b", "y")


def test_string_hashes_and_segments_beside_hashes() -> None:
    shape = Shape(block_hashes=["ff00", "ff01"], tail_tokens=0, segments=[seg("system", 60), seg("user", 68)])
    trace = trace_set(one(request("s", 0, input=shape, input_tokens=128)), block_size=SIZE)
    [item] = render(trace)[0].sessions
    assert [m["role"] for m in prompts(item)[0]] == ["system", "user"]
    assert item.turns[0].input_tokens == pytest.approx(128, abs=1)
