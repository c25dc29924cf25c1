"""Checking, sizing and asking a real server: what agentperf says of it against what the server itself says."""

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from agentperf.errors import ConnectError, ExitCode, ProtocolError
from agentperf.run.calibrate import calibrate
from agentperf.trace.render import render_tree
from agentperf.trace.sizing import calibration_prompts_for
from agentperf.wire import chat
from agentperf.wire.chat import BodySettings
from agentperf.wire.check import check
from agentperf.wire.client import OpenCaller, TransportName, open_caller
from agentperf.wire.count import count_prompt_tokens
from agentperf.wire.endpoint import Limits, parse_endpoint
from agentperf.wire.exchange import Exchange
from agentperf.wire.outcome import Outcome
from tests.real.llama import MODEL, SLOT_CONTEXT, Llama, require
from tests.real.traces import HEADER, TOOLS, TOOLS_REF, prompts_of, sized_session

pytestmark = [pytest.mark.real, pytest.mark.anyio]

LIMITS = Limits(connect_s=30, first_byte_s=300, stall_s=300)
PLAIN = [{"role": "system", "content": "You count."}, {"role": "user", "content": "One, two, three, and then?"}]
TOOL_TURN = [
    *PLAIN,
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": f"c{n}", "type": "function", "function": {"name": "bash", "arguments": f'{{"command": "ls {n}"}}'}}
            for n in range(2)
        ],
    },
    {"role": "tool", "tool_call_id": "c0", "content": "a.py\nb.py"},
    {"role": "tool", "tool_call_id": "c1", "content": "c.py"},
]


def caller_of(llama: Llama, transport: TransportName = "timed") -> Any:
    return open_caller(parse_endpoint(llama.url), path=chat.PATH, limits=LIMITS, transport=transport)


async def ask(
    caller: OpenCaller,
    messages: list[dict[str, Any]],
    output: chat.OutputMode,
    tokens: int,
    tools: list[dict[str, Any]] | None = None,
) -> tuple[Exchange, Outcome]:
    settings = BodySettings(MODEL, output=output, extra={"temperature": 0})
    encoded = b",".join(chat.encode_message(message) for message in messages)
    tail = chat.body_tail(settings, chat.encode_tools(tools or []), tokens)
    exchange = await caller(chat.body_head(settings) + encoded + tail, "real-1")
    return exchange, chat.fold(exchange)


@pytest.mark.parametrize("transport", ["timed", "httpx"])
async def test_the_check_finds_what_this_server_can_do(llama: Llama, transport: TransportName) -> None:
    found = await check(parse_endpoint(llama.root), transport=transport)
    assert (found.model, found.models) == (MODEL, [MODEL])
    assert found.context_tokens == SLOT_CONTEXT, "of one slot, not of all together"
    assert found.usage
    assert found.cached_tokens
    assert found.stream_options
    assert found.ignore_eos == "honoured"
    assert found.best_output == "exact"
    assert (found.engine, found.server, found.transport) == ("llama.cpp", "llama.cpp", transport)


async def test_waiting_for_a_server_that_is_up_ends_at_once(llama: Llama) -> None:
    steps: list[str] = []
    found = await check(parse_endpoint(llama.url), wait_s=120, on_step=steps.append)
    assert found.model == MODEL
    assert not [step for step in steps if step.startswith("waiting")]


async def test_output_length_is_forced_exactly_and_ends_by_itself_otherwise(llama: Llama) -> None:
    async with caller_of(llama) as caller:
        _, forced = await ask(caller, PLAIN, "exact", 90)
        _, free = await ask(caller, PLAIN, "max", 90)
    assert (forced.outcome, forced.finish_reason, forced.output_tokens) == ("ok", "length", 90)
    assert free.outcome == "ok"
    assert free.finish_reason == "stop"
    assert free.output_tokens is not None
    assert free.output_tokens < 90


@pytest.mark.parametrize(
    ("messages", "tools", "output"),
    [(PLAIN, [], "exact"), (PLAIN, [], "max"), (TOOL_TURN, TOOLS, "exact")],
    ids=["forced", "free", "tools"],
)
async def test_both_transports_agree_on_what_came_back(
    llama: Llama, messages: list[dict[str, Any]], tools: list[dict[str, Any]], output: chat.OutputMode
) -> None:
    seen: list[Outcome] = []
    async with caller_of(llama) as timed, caller_of(llama, "httpx") as stock:
        await ask(timed, messages, output, 40, tools)  # so that the cache is equally warm for both
        for caller in (timed, stock):
            exchange, outcome = await ask(caller, messages, output, 40, tools)
            assert exchange.status == 200
            assert list(exchange.stamps) == sorted(exchange.stamps)
            seen.append(outcome)
    one, other = seen
    assert one.outcome == other.outcome == "ok"
    for name in ("finish_reason", "prompt_tokens", "cached_tokens", "output_tokens", "visible_chars", "message"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.prompt_tokens is not None
    assert one.cached_tokens == one.prompt_tokens - 1, "the same prompt again: all but the last token is cached"
    assert len(one.visible_ns) == len(other.visible_ns)


async def test_stamps_never_claim_to_be_quicker_than_the_server_says_it_was(llama: Llama) -> None:
    async with caller_of(llama) as caller:
        exchange, outcome = await ask(caller, [{"role": "user", "content": "truth " * 300}], "exact", 120)
    assert outcome.outcome == "ok"
    timings = _timings(exchange)
    assert timings["predicted_n"] == outcome.output_tokens == 120
    assert timings["prompt_n"] + timings["cache_n"] == outcome.prompt_tokens
    assert outcome.first_visible_ns is not None
    assert outcome.last_visible_ns is not None
    assert outcome.first_visible_ns - exchange.t0_ns >= timings["prompt_ms"] * 1e6
    assert exchange.end_ns - exchange.t0_ns >= (timings["prompt_ms"] + timings["predicted_ms"]) * 1e6
    assert outcome.first_visible_ns < outcome.last_visible_ns <= exchange.end_ns
    # one event a token, as this server sends it; half of a character may wait for its other half
    assert 100 <= len(outcome.visible_ns) <= 120


def _timings(exchange: Exchange) -> dict[str, float]:
    lines = b"".join(exchange.chunks).split(b"\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    return next(event["timings"] for event in reversed(events) if "timings" in event)


async def test_token_counts_add_up_to_those_of_the_servers_own_counters(llama: Llama) -> None:
    names = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")
    before = [llama.metric(name) for name in names]
    questions = ("Which file?", "Which file? And which line?", "Which file?")
    async with caller_of(llama) as caller:
        outcomes = [(await ask(caller, [{"role": "user", "content": q}], "exact", 12))[1] for q in questions]
    grown = [llama.metric(name) - was for name, was in zip(names, before, strict=True)]
    prompt = sum(o.prompt_tokens or 0 for o in outcomes)
    cached = sum(o.cached_tokens or 0 for o in outcomes)
    assert grown == [prompt - cached, cached, 36]
    assert cached > 0


async def test_a_prompt_that_is_too_long_is_a_context_overflow_on_both_transports(llama: Llama) -> None:
    too_long = [{"role": "user", "content": "overflow " * (SLOT_CONTEXT + 500)}]
    for transport in ("timed", "httpx"):
        async with caller_of(llama, transport) as caller:
            exchange, outcome = await ask(caller, too_long, "exact", 10)
        assert exchange.status == 400
        assert (outcome.outcome, outcome.error_class) == ("failed", "context_overflow")
        assert outcome.error is not None
        assert "\n" not in outcome.error
        assert outcome.prompt_tokens is None
        assert outcome.output_tokens is None


async def test_a_request_that_is_cut_off_no_longer_loads_the_server(llama: Llama) -> None:
    before = llama.metric("tokens_predicted_total")
    async with caller_of(llama) as caller:
        with anyio.move_on_after(1.5) as scope:
            await ask(caller, [{"role": "user", "content": "Go on for ever."}], "exact", SLOT_CONTEXT - 200)
    assert scope.cancelled_caught
    with anyio.fail_after(60):
        while llama.metric("requests_processing") > 0:  # noqa: ASYNC110 - another process cannot set an event
            await anyio.sleep(0.1)
    assert llama.metric("tokens_predicted_total") - before < SLOT_CONTEXT / 2


async def test_wrong_paths_are_told_in_one_line(llama: Llama) -> None:
    for path in ("api/v2", "nothing/at/all/v1"):
        with pytest.raises(ProtocolError) as caught:
            await check(parse_endpoint(f"{llama.root}/{path}"))
        assert caught.value.exit_code == ExitCode.ENDPOINT
        assert "\n" not in str(caught.value)
        assert path in str(caught.value)
        assert "--endpoint" in str(caught.value), "the remedy"


async def test_a_port_where_nobody_listens_is_told_in_one_line(llama: Llama, unused_port: int) -> None:
    with pytest.raises(ConnectError) as caught:
        await check(parse_endpoint(f"http://127.0.0.1:{unused_port}"))
    assert "\n" not in str(caught.value)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_model_that_is_not_listed_is_tried_and_noted(llama: Llama) -> None:
    found = await check(parse_endpoint(llama.url), model="somebody-elses")
    assert found.model == "somebody-elses"
    assert [note for note in found.notes if "somebody-elses" in note]


# -- sizes -----------------------------------------------------------------------------------------------------------

LANGUAGES = ("python", "typescript", "javascript", "rust", "csharp", "php")
SIZES = (2000, 2800, 4000, 6000)
BY_USAGE = 3
"""So many prompts are really sent, since each has to be computed; those of a whole run are checked by its own test."""
TOLERANCE = 0.02


async def test_prompts_have_their_recorded_size_by_the_servers_own_count(
    llama: Llama, record_property: Callable[[str, object], None]
) -> None:
    """By the server's chat template and tokenizer; `usage.prompt_tokens` must say the same where prompts are sent."""
    trees = [[sized_session(language, SIZES)] for language in LANGUAGES]
    blobs = {TOOLS_REF: TOOLS}
    settings = BodySettings(MODEL)
    errors: dict[str, list[float]] = {}
    async with caller_of(llama) as caller:
        sizes = await calibrate(caller, settings, calibration_prompts_for(trees, blobs))
        assert sizes.source == "calibrated"
        for language, tree in zip(LANGUAGES, trees, strict=True):
            session = render_tree(tree, blobs, sizes, HEADER).sessions[0]
            counts = llama.count_tokens(prompts_of(session), session.tools)
            errors[language] = [count / size - 1 for count, size in zip(counts, SIZES, strict=True)]
            if language == LANGUAGES[0]:
                by_usage = [
                    await count_prompt_tokens(caller, settings, messages, session.tools)
                    for messages in prompts_of(session)[:BY_USAGE]
                ]
                assert by_usage == counts[:BY_USAGE]
    worst = max(abs(error) for row in errors.values() for error in row)
    record_property("worst_size_error", worst)
    assert worst <= TOLERANCE, {language: [f"{e:+.2%}" for e in row] for language, row in errors.items()}


# -- the fixture itself ----------------------------------------------------------------------------------------------


def test_a_missing_package_skips_at_home_and_fails_in_ci() -> None:
    require(("json",), {"CI": "true"})
    with pytest.raises(pytest.skip.Exception, match="make test"):
        require(("json", "no_such_package"), {})
    with pytest.raises(pytest.fail.Exception, match="no_such_package"):
        require(("json", "no_such_package"), {"CI": "true"})
