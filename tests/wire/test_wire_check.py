"""The capability check against scripted servers: what it finds, and one line with a remedy for whatever is wrong."""

import gzip
import json
import ssl
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trustme
from scripted import Reply, Seen, Step, json_reply, serve
from wire_scenario import chunk, sse

from agentperf.errors import (
    AuthError,
    ConnectError,
    EndpointError,
    ExitCode,
    ModelError,
    ProtocolError,
)
from agentperf.wire import chat
from agentperf.wire.chat import BodySettings
from agentperf.wire.check import Capabilities, check
from agentperf.wire.client import open_caller
from agentperf.wire.count import count_prompt_tokens
from agentperf.wire.endpoint import Endpoint, Limits, parse_endpoint
from agentperf.wire.models import guess_engine, parse_models

NOT_FOUND = json_reply(b'{"detail":"Not Found"}', 404)


def bad(message: str, status: int = 400) -> Reply:
    return json_reply(json.dumps({"error": {"message": message}}).encode(), status)


class Fake:
    """An OpenAI-compatible server in a few switches."""

    def __init__(self, **switches: Any) -> None:
        self.models: Any = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 8192}]}
        self.usage = True
        self.cached = True
        self.honours_ignore_eos = True
        self.natural_tokens = 3
        self.refuses: tuple[str, ...] = ()
        self.props: Any = None
        self.chat: Callable[[dict[str, Any]], Reply | None] = lambda _: None
        self.bodies: list[dict[str, Any]] = []
        for name, value in switches.items():
            assert hasattr(self, name)
            setattr(self, name, value)

    def __call__(self, seen: Seen) -> Reply:
        if seen.path == "/v1/models":
            return self.models if isinstance(self.models, Reply) else json_reply(json.dumps(self.models).encode())
        if seen.path == "/props" and self.props is not None:
            return json_reply(json.dumps(self.props).encode())
        if seen.path == "/health":
            return json_reply(b"{}")
        return Reply(late=self.answer) if seen.path == "/v1/chat/completions" else NOT_FOUND

    def answer(self, seen: Seen) -> Reply:
        body = json.loads(seen.body)
        self.bodies.append(body)
        for name in self.refuses:
            if name in body:
                return bad(f"Unsupported parameter: '{name}' is not supported. Use 'max_completion_tokens' instead.")
        special = self.chat(body)
        if special is not None:
            return special
        limit = body.get("max_tokens", body.get("max_completion_tokens"))
        forced = body.get("ignore_eos") and self.honours_ignore_eos
        n = limit if forced else min(limit, self.natural_tokens)
        parts = [chunk({"content": "x"})] * n + [chunk(None, "length" if n == limit else "stop")]
        if self.usage and "stream_options" in body:
            usage: dict[str, Any] = {"prompt_tokens": 17, "completion_tokens": n}
            usage |= {"prompt_tokens_details": {"cached_tokens": 16}} if self.cached else {}
            parts.append(sse({"choices": [], "usage": usage}))
        return Reply([Step(b"".join(parts) + b"data: [DONE]\n\n")])


async def checked(fake: Any, model: str | None = None, **more: Any) -> Capabilities:
    options: dict[str, Any] = {k: more.pop(k) for k in ("limits", "models_limit_s", "wait_s", "on_step") if k in more}
    async with serve(fake) as server:
        with anyio.fail_after(20):
            return await check(parse_endpoint(server.base(), **more), model=model, **options)


async def refused(fake: Any, kind: type[EndpointError], *words: str, model: str | None = None, **more: Any) -> str:
    """The error in one line, of just this class, with all the words."""
    with pytest.raises(EndpointError) as caught:
        await checked(fake, model, **more)
    assert type(caught.value) is kind, repr(caught.value)
    assert caught.value.exit_code == ExitCode.ENDPOINT == 4
    text = str(caught.value)
    assert "\n" not in text and caught.value.remedy
    for word in words:
        assert word in text
    return text


@pytest.mark.anyio
async def test_good_server() -> None:
    fake = Fake()
    found = await checked(fake)
    assert found == Capabilities(
        model="m",
        models=["m"],
        context_tokens=8192,
        usage=True,
        cached_tokens=True,
        ignore_eos="honoured",
        max_tokens_field="max_tokens",
        stream_options=True,
        server=None,
        engine="vllm",
        transport="timed",
    )
    assert found.best_output == "exact"
    assert found.settings("exact") == BodySettings("m", output="exact")
    assert [("ignore_eos" in body, body["max_tokens"]) for body in fake.bodies] == [(False, 48), (True, 48)]
    assert all(body["model"] == "m" and body["stream"] for body in fake.bodies)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({"honours_ignore_eos": False}, {"ignore_eos": "ignored"}),
        ({"refuses": ("ignore_eos",)}, {"ignore_eos": "refused"}),
        ({"usage": False}, {"usage": False, "cached_tokens": False, "ignore_eos": "honoured"}),
        ({"usage": False, "honours_ignore_eos": False}, {"usage": False, "ignore_eos": "ignored"}),
        ({"cached": False}, {"usage": True, "cached_tokens": False}),
        ({"refuses": ("max_tokens",)}, {"max_tokens_field": "max_completion_tokens", "ignore_eos": "honoured"}),
        ({"refuses": ("stream_options",)}, {"stream_options": False, "usage": False}),
        ({"refuses": ("stream_options", "max_tokens", "ignore_eos")},
         {"stream_options": False, "max_tokens_field": "max_completion_tokens", "ignore_eos": "refused"}),
        # A model that does not stop by itself in 48 tokens gets 512; then it is known, or it is not.
        ({"natural_tokens": 100}, {"ignore_eos": "honoured"}),
        ({"natural_tokens": 100, "honours_ignore_eos": False}, {"ignore_eos": "ignored"}),
        ({"natural_tokens": 9999}, {"ignore_eos": "unknown"}),
        ({"models": {"data": [{"id": "m", "meta": {"n_ctx_train": 131072}}]}}, {"context_tokens": None}),
        ({"models": {"data": [{"id": "m", "context_length": 4096}]}}, {"context_tokens": 4096}),
        ({"models": {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 32768}}]},
          "props": {"default_generation_settings": {"n_ctx": 8192}}}, {"context_tokens": 8192, "engine": "llama.cpp"}),
        ({"models": {"models": [{"name": "m"}]}}, {"model": "m", "engine": None}),
    ],
)  # fmt: skip
async def test_what_is_found(switches: dict[str, Any], expected: dict[str, Any]) -> None:
    found = await checked(Fake(**switches))
    assert {name: getattr(found, name) for name in expected} == expected
    sent = found.settings("exact")
    assert sent.ignore_eos == (found.ignore_eos != "refused")
    assert (sent.include_usage, sent.max_tokens_field) == (found.stream_options, found.max_tokens_field)
    assert found.best_output == ("exact" if found.ignore_eos == "honoured" else "max")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("refused_fields", "says", "expected"),
    [
        # Words of several servers, each about one field.
        (("stream_options",), "Extra inputs are not permitted: body -> stream_options", (False, "max_tokens")),
        (("stream_options",), "Unrecognized request argument supplied: streamOptions", (False, "max_tokens")),
        (("max_tokens",), "max_tokens is not supported, use max_completion_tokens", (True, "max_completion_tokens")),
        (("max_tokens",), "unknown field `max_tokens`", (True, "max_completion_tokens")),
        # And words that name none.
        (("stream_options",), "invalid request body", (False, "max_tokens")),
        (("max_tokens",), "Bad Request", (True, "max_completion_tokens")),
        (("max_tokens", "stream_options"), "", (False, "max_completion_tokens")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("status", [400, 422])
async def test_servers_that_refuse_fields(
    refused_fields: tuple[str, ...], says: str, expected: tuple[bool, str], status: int
) -> None:
    fake = Fake(chat=lambda body: bad(says, status) if set(refused_fields) & body.keys() else None)
    found = await checked(fake)
    assert (found.stream_options, found.max_tokens_field) == expected
    assert len(fake.bodies) <= 6
    assert found.ignore_eos == "honoured"
    waited = await checked(Fake(chat=fake.chat), wait_s=10)
    assert waited.settings("exact") == found.settings("exact")


@pytest.mark.anyio
async def test_a_refusal_that_nothing_helps_against_is_told_as_it_was_first() -> None:
    count = 0

    def refuse(_: dict[str, Any]) -> Reply:
        nonlocal count
        count += 1
        return bad(f"refused for the {count}. time")

    await refused(Fake(chat=refuse), EndpointError, "refused for the 1. time")
    assert count == 4
    count = 0
    overflow = Fake(chat=lambda _: bad("max_tokens: prompt exceeds the maximum context length"))
    await refused(overflow, EndpointError, "context_overflow")
    assert len(overflow.bodies) == 1
    named = Fake(chat=lambda _: bad("the model is not loaded"))
    await refused(named, ModelError, "not loaded")
    assert len(named.bodies) == 1


@pytest.mark.anyio
async def test_server_that_does_not_stream() -> None:
    whole = json_reply(
        b'{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":9,"completion_tokens":1}}'
    )
    found = await checked(Fake(chat=lambda _: whole))
    assert any("does not stream" in note for note in found.notes)


@pytest.mark.anyio
async def test_compressed_answers() -> None:
    """gzip is read, with its usage; what cannot be read is told with the remedy."""
    parts = chunk({"content": "x"}, "stop") + sse(
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
    )
    kind = ("Content-Type", "text/event-stream")
    packed = Reply([Step(gzip.compress(parts + b"data: [DONE]\n\n"))], 200, [kind, ("Content-Encoding", "gzip")])
    assert (await checked(Fake(chat=lambda _: packed))).usage
    brotli = Reply([Step(b"\x0b\x02\x80abc\x03")], 200, [kind, ("Content-Encoding", "br")])
    await refused(Fake(chat=lambda _: brotli), ProtocolError, "compressed with 'br'", "turn compression off")


@pytest.mark.anyio
async def test_choice_of_the_model() -> None:
    two = {"data": [{"id": "a"}, {"id": "b"}]}
    await refused(Fake(models=two), ModelError, "serves 2 models", "--model", "a, b")
    assert (await checked(Fake(models=two), "b")).model == "b"
    unlisted = await checked(Fake(models=two), "c")
    assert unlisted.model == "c" and any("'c'" in note for note in unlisted.notes)
    assert (await checked(Fake(models={"data": [{"id": "long", "aliases": ["short"]}]}), "short")).notes == []
    assert (await checked(Fake(models=NOT_FOUND), "c")).model == "c"
    await refused(Fake(models={"data": []}), ModelError, "lists none", "--model")
    many = {"data": [{"id": f"m{i}"} for i in range(30)]}
    await refused(Fake(models=many), ModelError, "m9 and 20 more")


@pytest.mark.anyio
async def test_unknown_model() -> None:
    unknown = Fake(chat=lambda _: bad("The model `nope` does not exist.", 404))
    await refused(unknown, ModelError, "'nope'", "does not exist", "choose one with --model: m", model="nope")


@pytest.mark.anyio
async def test_keys() -> None:
    wants_key = json_reply(b'{"error":"Unauthorized"}', 401)
    await refused(lambda _: wants_key, AuthError, "HTTP 401", "no key was sent", "--api-key-env")
    text = await refused(
        lambda seen: json_reply(b'{"error":"no such key: %b"}' % seen.headers["authorization"].encode(), 401),
        AuthError,
        "check the key",
        "no such key: ***",
        api_key="s3cret-key",
    )
    assert "s3cret" not in text
    # A models page that is open to all, and a chat that is not.
    await refused(Fake(chat=lambda _: wants_key), AuthError, "Unauthorized")


@pytest.mark.anyio
async def test_servers_that_fail() -> None:
    start = time.monotonic()
    await refused(lambda _: bad("boom", 500), EndpointError, "HTTP 500: boom")
    await refused(Fake(chat=lambda _: bad("boom", 500)), EndpointError, "HTTP 500: boom")
    in_stream = Reply([Step(sse({"error": {"message": "no worker"}}) + b"data: [DONE]\n\n")])
    await refused(Fake(chat=lambda _: in_stream), EndpointError, "no worker")
    await refused(Fake(chat=lambda _: bad("slow down", 429)), EndpointError, "limits the rate")
    await refused(Fake(chat=lambda _: bad("Loading model", 503)), EndpointError, "Loading model")
    assert time.monotonic() - start < 10


@pytest.mark.anyio
async def test_servers_that_hang() -> None:
    silent = Reply([Step(fault="silence")], raw=True)
    await refused(lambda _: silent, ConnectError, "hangs", "0.2 s", models_limit_s=0.2)
    limits = Limits(1.0, 0.4, 0.4)
    await refused(Fake(chat=lambda _: silent), EndpointError, "hangs", "0.4 s", limits=limits)
    stuck = Reply([Step(chunk({"content": "a"})), Step(fault="silence")])
    await refused(Fake(chat=lambda _: stuck), EndpointError, "stall_timeout", limits=limits)


@pytest.mark.anyio
async def test_no_openai_server() -> None:
    page = Reply([Step(b"<html>Welcome to nginx</html>")], 200, [("Content-Type", "text/html")], "length")
    await refused(lambda _: page, ProtocolError, "is no OpenAI-compatible server", "/v1")
    await refused(lambda _: page, ProtocolError, "is no OpenAI-compatible server", model="m")
    await refused(lambda _: NOT_FOUND, ProtocolError, "is no OpenAI-compatible server", "HTTP 404")
    await refused(lambda _: NOT_FOUND, ProtocolError, "is no OpenAI-compatible server", model="m")
    other = json_reply(b'{"status":"up"}')
    await refused(lambda _: other, ProtocolError, "is no OpenAI-compatible server", model="m")
    ssh = Reply([Step(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", fault="close")], raw=True)
    await refused(lambda _: ssh, ProtocolError, "is no OpenAI-compatible server")
    moved = Reply([], 308, [("Location", "https://h/v1/models")], "length")
    await refused(lambda _: moved, ProtocolError, "redirects to https://h/v1/models")


async def error_of(endpoint: Endpoint, **more: Any) -> EndpointError:
    with pytest.raises(EndpointError) as caught, anyio.fail_after(20):
        await check(endpoint, **more)
    return caught.value


@pytest.mark.anyio
async def test_no_connection() -> None:
    refused_ = await error_of(parse_endpoint("http://127.0.0.1:1"))
    assert type(refused_) is ConnectError and "127.0.0.1:1" in str(refused_) and "--wait" in str(refused_)
    lost = await error_of(parse_endpoint("http://no-such-host.invalid"))
    assert type(lost) is ConnectError and "no-such-host.invalid does not resolve" in str(lost)


@pytest.mark.anyio
async def test_s12_tls_reason_is_named_at_once() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with serve(Fake(), tls=context) as server:
        start = time.monotonic()
        error = await error_of(parse_endpoint(server.base("https")), wait_s=60)
        assert time.monotonic() - start < 20
        assert type(error) is ConnectError
        assert "unable to get local issuer certificate" in str(error) or "self-signed" in str(error)
        assert "--ca-file" in str(error)
        found = await check(parse_endpoint(server.base("https"), insecure=True))
        assert found.ignore_eos == "honoured"


@pytest.mark.anyio
async def test_s21_wait_until_ready() -> None:
    """Health fails, then the models are empty, then one token fails; then all is well."""
    fake = Fake()
    asked: list[str] = []

    def waking(seen: Seen) -> Reply:
        asked.append(seen.path)
        if seen.path == "/health" and asked.count("/health") == 1:
            return bad("starting", 503)
        if seen.path == "/v1/models" and asked.count("/v1/models") == 1:
            return json_reply(b'{"data":[]}')
        if seen.path == "/v1/chat/completions" and asked.count("/v1/chat/completions") == 1:
            return bad("Loading model", 503)
        return fake(seen)

    steps: list[str] = []
    found = await checked(waking, wait_s=30, on_step=steps.append)
    assert found.model == "m"
    assert [word in " ".join(steps) for word in ("/health", "lists none", "Loading model")] == [True] * 3
    assert asked[:7] == ["/health", "/health", "/v1/models", "/health", "/v1/models", "/v1/chat/completions", "/health"]


@pytest.mark.anyio
async def test_s21_wait_ends_with_the_last_error() -> None:
    await refused(lambda _: bad("starting", 503), EndpointError, "not ready after 0.6 s", "503", wait_s=0.6)
    wants_key = json_reply(b'{"error":"Unauthorized"}', 401)
    start = time.monotonic()
    await refused(lambda seen: json_reply(b"{}") if seen.path == "/health" else wants_key, AuthError, wait_s=60)
    assert time.monotonic() - start < 20
    silent = Reply([Step(fault="silence")], raw=True)
    await refused(lambda _: silent, EndpointError, "not ready after 0.3 s", wait_s=0.3)


@pytest.mark.anyio
async def test_count_prompt_tokens() -> None:
    fake = Fake()
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with serve(fake) as server, open_caller(parse_endpoint(server.base()), path=chat.PATH) as caller:
        settings = BodySettings("m", output="exact")
        assert await count_prompt_tokens(caller, settings, [{"role": "user", "content": "a"}], tools) == 17
        assert fake.bodies[0]["max_tokens"] == 1 and fake.bodies[0]["tools"] == tools
        assert "ignore_eos" not in fake.bodies[0]
        fake.usage = False
        assert await count_prompt_tokens(caller, settings, [{"role": "user", "content": "a"}]) is None
        fake.usage, fake.natural_tokens = True, 0
        assert await count_prompt_tokens(caller, settings, [{"role": "user", "content": "a"}]) == 17
        fake.chat = lambda _: bad("this model's maximum context length is 5 tokens")
        with pytest.raises(EndpointError, match="context_overflow"):
            await count_prompt_tokens(caller, settings, [{"role": "user", "content": "a"}])


def test_model_lists() -> None:
    assert parse_models(None) == parse_models("x") == parse_models({"data": {"a": 1}}) == []
    assert (
        parse_models([{"id": ""}, {"no": 1}, 3, {"id": "m", "context_window": 5, "max_model_len": 4}])[0].context_tokens
        == 4
    )
    assert guess_engine(None, "") is None
    assert guess_engine("llama.cpp") == "llama.cpp" and guess_engine("uvicorn", "vllm") == "vllm"
