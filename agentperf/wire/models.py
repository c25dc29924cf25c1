"""What an endpoint says about itself before anything is generated: its models, their context, its engine."""

from typing import Any, NamedTuple

import anyio
import httpx
import msgspec

from agentperf.errors import ConnectError, EndpointError, ProtocolError
from agentperf.wire import failures, server_errors
from agentperf.wire.chat_usage import whole
from agentperf.wire.client import request_headers
from agentperf.wire.endpoint import Endpoint
from agentperf.wire.refusal import LOG_REMEDY, auth_error, connect_error, not_the_api
from agentperf.wire.stock import root_cause
from agentperf.wire.timed_connect import failure_of

_CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length", "max_input_tokens", "n_ctx")
"""Of a model's entry: vLLM and SGLang, OpenRouter and others, Groq, LM Studio and Mistral, gateways, llama.cpp."""


class ModelEntry(NamedTuple):
    """One served model."""

    id: str
    aliases: tuple[str, ...]
    context_tokens: int | None
    owned_by: str


class Listing(NamedTuple):
    """Answer of the models path; `note` says why there are none, when there are none."""

    models: list[ModelEntry]
    server: str | None
    note: str | None


def open_client(endpoint: Endpoint, limit_s: float) -> httpx.AsyncClient:
    """A plain client for everything that is not timed."""
    return httpx.AsyncClient(
        headers=[pair for pair in request_headers(endpoint) if pair[0].lower() not in ("accept", "content-type")],
        verify=endpoint.ssl_context() if endpoint.scheme == "https" else False,
        trust_env=endpoint.trust_env,
        timeout=httpx.Timeout(limit_s),
        follow_redirects=False,
    )


async def get(client: httpx.AsyncClient, endpoint: Endpoint, url: str, limit_s: float) -> httpx.Response:
    """GET within `limit_s` in all. Raises ConnectError for whatever keeps an answer from coming."""
    shown = url.partition("?")[0]
    try:
        with anyio.fail_after(limit_s):
            return await client.get(url)
    except (TimeoutError, httpx.ReadTimeout, httpx.PoolTimeout, httpx.WriteTimeout) as error:
        text = f"the endpoint hangs: no answer to GET {shown} within {limit_s:g} s"
        raise ConnectError(text, LOG_REMEDY) from error
    except httpx.ConnectTimeout as error:
        text = f"no connection to {endpoint.authority} within {limit_s:g} s"
        raise connect_error(failures.CONNECT_TIMEOUT, text) from error
    except httpx.ConnectError as error:
        failure = failure_of(root_cause(error), endpoint.authority)
        raise connect_error(failure.error_class, failure.text) from error
    except httpx.RemoteProtocolError as error:
        raise not_the_api(endpoint, f"GET {shown}: {server_errors.one_line(str(error), 120)}") from error
    except httpx.HTTPError as error:
        text = server_errors.one_line(str(error) or type(error).__name__)
        raise ConnectError(f"GET {shown} failed: {text}", LOG_REMEDY) from error


async def list_models(client: httpx.AsyncClient, endpoint: Endpoint, limit_s: float) -> Listing:
    """GET models. A server without that path gives an empty list and a note; one that fails or refuses raises."""
    url = endpoint.url("models")
    response = await get(client, endpoint, url, limit_s)
    server = response.headers.get("server")
    status = response.status_code
    if status in (401, 403):
        raise auth_error(endpoint, f"HTTP {status}: {endpoint.mask(server_errors.from_body(response.content).message)}")
    if 300 <= status < 400:
        location = server_errors.one_line(response.headers.get("location", "?"), 120)
        raise ProtocolError(f"GET {url.partition('?')[0]} redirects to {location}", "use that address as --endpoint")
    if status >= 500 and status != 501:
        message = endpoint.mask(server_errors.from_body(response.content).message)
        raise EndpointError(f"the endpoint fails: GET models answers HTTP {status}: {message}", LOG_REMEDY)
    if not response.is_success:
        return Listing([], server, f"GET models answers HTTP {status}")
    try:
        models = parse_models(msgspec.json.decode(response.content))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        kind = response.headers.get("content-type", "no content type")
        return Listing([], server, f"GET models answers with {server_errors.one_line(kind, 60)}, which is no JSON")
    return Listing(models, server, None if models else "GET models lists none")


def parse_models(value: Any) -> list[ModelEntry]:
    """Entries of `{"data": [...]}`, `{"models": [...]}` or a bare list; what has no id is left out."""
    if isinstance(value, dict):
        value = value.get("data") or value.get("models")
    if not isinstance(value, list):
        return []
    return [entry for entry in map(_entry, value) if entry is not None]


def _entry(value: Any) -> ModelEntry | None:
    if not isinstance(value, dict):
        return None
    name = value.get("id") or value.get("name") or value.get("model")
    if not isinstance(name, str) or not name:
        return None
    aliases = value.get("aliases")
    owner = value.get("owned_by")
    return ModelEntry(
        id=name,
        aliases=tuple(a for a in aliases if isinstance(a, str)) if isinstance(aliases, list) else (),
        context_tokens=_context(value),
        owned_by=owner if isinstance(owner, str) else "",
    )


def _context(entry: dict[str, Any]) -> int | None:
    """The served context: the smallest of what the entry says. What the model was trained with is not it."""
    sources: list[Any] = [entry, entry.get("meta"), entry.get("top_provider"), entry.get("limits")]
    found = [whole(s.get(key)) for s in sources if isinstance(s, dict) for key in _CONTEXT_KEYS]
    known = [count for count in found if count]
    return min(known) if known else None


async def slot_context(client: httpx.AsyncClient, endpoint: Endpoint, limit_s: float) -> int | None:
    """llama.cpp's context of one slot, from /props: what one request can use. None where there is no such page."""
    try:
        response = await get(client, endpoint, endpoint.root_url("props"), limit_s)
        value = msgspec.json.decode(response.content) if response.is_success else None
    except (EndpointError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    settings = value.get("default_generation_settings") if isinstance(value, dict) else None
    return (whole(settings.get("n_ctx")) or None) if isinstance(settings, dict) else None


_ENGINES = {
    "llamacpp": "llama.cpp",
    "llama.cpp": "llama.cpp",
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt_llm": "tensorrt-llm",
    "trt-llm": "tensorrt-llm",
    "ollama": "ollama",
    "library": "ollama",
    "lmdeploy": "lmdeploy",
    "litellm": "litellm",
    "agentperf": "agentperf-sim",
    "openai": "openai",
}


def guess_engine(*hints: str | None) -> str | None:
    """The engine by the words in a Server header, an owner of a model, a fingerprint; None when nothing tells."""
    for hint in hints:
        for word, engine in _ENGINES.items():
            if hint and word in hint.lower():
                return engine
    return None
