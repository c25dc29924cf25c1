"""The simulated server behind real HTTP: an OpenAI-compatible ASGI application, every response marked as simulated.

Event bytes are made once at the end of a step and queued on each connection; a connection that reads slowly delays
nobody else.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agentperf.sim.driver import REAL_SLACK_S
from agentperf.sim.engine import Emission
from agentperf.sim.kv import KvPool
from agentperf.sim.page import page_text
from agentperf.sim.profile import Profile
from agentperf.sim.replicas import Replicas
from agentperf.sim.service import SIMULATED_HEADER, Accepted, Refusal, Service, refusal

_SIMULATED = (SIMULATED_HEADER.encode(), b"1")
_JSON = "application/json"
_MAX_BODY_BYTES = 64 * 1024 * 1024


class Server:
    """The replicas and the requests that are open on them. They start with the first request."""

    def __init__(self, profile: Profile, seed: int = 0, api_key: str | None = None) -> None:
        self.profile = profile
        self._replicas = Replicas(profile, seed, KvPool, each_token=True)
        self.service = Service(profile, seed)
        self._api_key = api_key

    @property
    def replicas(self) -> Replicas:
        """The engines, on the loop of the first request."""
        if not self._replicas.running:
            self._replicas.start(time.monotonic, REAL_SLACK_S)
        return self._replicas

    def refuse(self, scope: Scope) -> Refusal | None:
        """401 where a key is wanted and not given."""
        if self._api_key is None:
            return None
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if hmac.compare_digest(given, b"Bearer " + self._api_key.encode()):
            return None
        return refusal(401, "Unauthorized: the API key is missing or wrong", "AuthenticationError")


class _Stream:
    """Bytes of one reply on their way out: filled by the engine, emptied by the connection's own task."""

    __slots__ = ("accepted", "finished", "gone", "pending", "wake", "written")

    def __init__(self, accepted: Accepted) -> None:
        self.accepted = accepted
        self.pending: list[bytes] = []
        self.wake = asyncio.Event()
        self.written = 0
        self.finished = False
        self.gone = False

    def sink(self, emission: Emission, _at_s: float) -> None:
        """Take what the engine wrote."""
        accepted = self.accepted
        if accepted.stream:
            if self.written == 0:
                self.pending.append(accepted.writer.first())
            self.pending.append(accepted.writer.event(self.written, emission.tokens))
        self.written += emission.tokens
        if emission.finished:
            cached = emission.job.cached_tokens
            self.pending.append(accepted.last(cached) if accepted.stream else accepted.whole(cached))
            self.finished = True
        if accepted.stream or self.finished:
            self.wake.set()

    async def watch(self, receive: Receive) -> None:
        """Notice that the client goes away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.wake.set()


class _Chat:
    """POST /v1/chat/completions as a bare ASGI application: no framework between engine and socket."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:
            return
        server = self._server
        prepared = server.refuse(scope) or (
            refusal(413, f"the body is larger than {_MAX_BODY_BYTES >> 20} MiB", "BadRequestError")
            if len(body) > _MAX_BODY_BYTES
            else server.service.prepare(body, int(time.time()))
        )
        request_id = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        if isinstance(prepared, Refusal):
            await _start(send, prepared.status, _JSON.encode(), request_id, len(prepared.body))
            await send({"type": "http.response.body", "body": prepared.body})
            return
        stream = _Stream(prepared)
        driver = server.replicas.choose(reversed(prepared.request.block_hashes))
        job = driver.submit(prepared.request, stream.sink)
        watcher = asyncio.create_task(stream.watch(receive))
        try:
            await self._send(stream, send, request_id)
        finally:
            driver.abort(job)
            watcher.cancel()

    async def _send(self, stream: _Stream, send: Send, request_id: bytes | None) -> None:
        if stream.accepted.stream:
            await _start(send, 200, b"text/event-stream; charset=utf-8", request_id)
        while not stream.gone:
            await stream.wake.wait()
            stream.wake.clear()
            data = b"".join(stream.pending)
            stream.pending.clear()
            finished = stream.finished
            if finished and not stream.accepted.stream and not stream.gone:
                await _start(send, 200, _JSON.encode(), request_id, len(data))
            if data and not stream.gone:
                await send({"type": "http.response.body", "body": data, "more_body": not finished})
            if finished:
                return


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body (of one that is too large only so much as proves it), None when the client left before its end."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size - len(part) <= _MAX_BODY_BYTES:
            parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _start(send: Send, status: int, kind: bytes, request_id: bytes | None, length: int | None = None) -> None:
    headers = [(b"content-type", kind), _SIMULATED]
    if request_id is not None:
        headers.append((b"x-request-id", request_id))
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})


def _plain(server: Server, make: Callable[[], tuple[str, str | bytes]], *, open_to_all: bool) -> "Handler":
    """A GET that answers with the (content type, content) that `make` gives."""

    async def handle(request: Request) -> Response:
        refused = None if open_to_all else server.refuse(request.scope)
        if refused is not None:
            return _respond(refused.body, _JSON, refused.status)
        kind, content = make()
        return _respond(content, kind)

    return handle


Handler = Callable[[Request], Awaitable[Response]]


def _respond(content: str | bytes, kind: str, status: int = 200) -> Response:
    return Response(content, status, {SIMULATED_HEADER: "1"}, kind)


def make_app(profile: Profile, seed: int = 0, api_key: str | None = None) -> Starlette:
    """The application: chat completions, models, health, version, metrics. `app.state.server` is its Server."""
    server = Server(profile, seed, api_key)
    started = int(time.time())

    def metrics_page() -> tuple[str, str]:
        return "text/plain; version=0.0.4; charset=utf-8", page_text(server.replicas, profile)

    async def http_error(_request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        refused = refusal(status, HTTPStatus(status).phrase, "NotFoundError" if status == 404 else "BadRequestError")
        return _respond(refused.body, _JSON, refused.status)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", _Chat(server), methods=["POST"]),
            Route("/v1/models", _plain(server, lambda: (_JSON, server.service.models(started)), open_to_all=False)),
            Route("/health", _plain(server, lambda: ("text/plain", ""), open_to_all=True)),
            Route("/version", _plain(server, lambda: (_JSON, '{"version":"agentperf-sim"}'), open_to_all=True)),
            Route("/metrics", _plain(server, metrics_page, open_to_all=True)),
        ],
        exception_handlers={HTTPException: http_error},
    )
    app.state.server = server
    return app
