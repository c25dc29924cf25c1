"""The capability check: is this an endpoint that can be measured, and what does it support?

A few small requests before a run, each within a stated limit. What cannot be measured raises an EndpointError of one
line with its remedy; everything else ends up in `Capabilities`.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import anyio
import httpx
from msgspec import Struct, field

from agentperf.errors import AuthError, EndpointError
from agentperf.wire import failures
from agentperf.wire.chat import PATH, BodySettings, OutputMode
from agentperf.wire.chat_fold import NOT_A_STREAM
from agentperf.wire.client import TransportName, open_caller
from agentperf.wire.count import ask
from agentperf.wire.endpoint import Endpoint, Limits
from agentperf.wire.exchange import Caller
from agentperf.wire.models import Listing, ModelEntry, get, guess_engine, list_models, open_client, slot_context
from agentperf.wire.outcome import Outcome
from agentperf.wire.refusal import LOG_REMEDY, model_error, not_the_api, refusal

MODELS_LIMIT_S = 10.0
"""For each of the requests that generate nothing."""
GENERATE_LIMITS = Limits(connect_s=10.0, first_byte_s=60.0, stall_s=60.0)
"""For each of the short chat requests."""

SHORT_BUDGET, LONG_BUDGET = 48, 512
_LONG_BUDGET_S = 15.0
"""The longer trial of ignore_eos is made only where it takes less than this, by the speed of the short one."""

_PROMPT = [{"role": "user", "content": "Reply with one word only: yes"}]

_REFUSING = (400, 422)

IgnoreEos = Literal["honoured", "ignored", "refused", "unknown"]


class Capabilities(Struct, kw_only=True):
    """What the check found; goes into the manifest as it is."""

    model: str
    models: list[str]
    context_tokens: int | None
    """The longest prompt plus output of one request, as far as the server tells."""
    usage: bool
    """Token counts come with the stream."""
    cached_tokens: bool
    """The count of cached prompt tokens comes with them."""
    ignore_eos: IgnoreEos
    """honoured: output length can be forced; refused: the field is answered with an error; unknown: not told apart."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"]
    stream_options: bool
    """`stream_options.include_usage` is accepted."""
    server: str | None
    """The Server header."""
    engine: str | None
    """A guess from what the server says of itself."""
    transport: TransportName
    notes: list[str] = field(default_factory=list)

    def settings(self, output: OutputMode, cap: int = 16_384) -> BodySettings:
        """Body settings that this endpoint accepts."""
        return BodySettings(
            model=self.model,
            output=output,
            cap=cap,
            include_usage=self.stream_options,
            max_tokens_field=self.max_tokens_field,
            ignore_eos=self.ignore_eos != "refused",
        )

    @property
    def best_output(self) -> OutputMode:
        """exact where the output length can be forced, else max."""
        return "exact" if self.ignore_eos == "honoured" else "max"


def _quiet(_: str) -> None:
    """Progress that nobody wants."""


async def check(
    endpoint: Endpoint,
    *,
    model: str | None = None,
    limits: Limits = GENERATE_LIMITS,
    models_limit_s: float = MODELS_LIMIT_S,
    wait_s: float = 0.0,
    transport: TransportName = "timed",
    on_step: Callable[[str], None] = _quiet,
) -> Capabilities:
    """Check an endpoint. With `wait_s` it is first waited for, up to so many seconds.

    Raises ConnectError, AuthError, ModelError, ProtocolError or EndpointError: one line each.
    """
    async with (
        open_client(endpoint, models_limit_s) as client,
        open_caller(endpoint, path=PATH, limits=limits, transport=transport) as caller,
    ):
        if wait_s > 0:
            await _wait(client, caller, endpoint, model, models_limit_s, wait_s, on_step)
        on_step("models")
        listing = await list_models(client, endpoint, models_limit_s)
        entry, notes = choose_model(endpoint, listing, model)
        context = await _context(client, endpoint, listing, entry, models_limit_s)
        if caller.note:
            notes.append(caller.note)
        on_step("a short chat request")
        settings, first = await _first_request(caller, endpoint, entry.id, [m.id for m in listing.models])
        on_step("ignore_eos")
        forced, ignore_eos = await _try_ignore_eos(caller, settings, first)
        seen = [outcome for outcome in (first, forced) if outcome is not None]
        if NOT_A_STREAM in first.notes:
            notes.append("the server does not stream: TTFT is the time of the whole reply, and there is no speed")
        if first.prompt_tokens is None:
            notes.append("the server sends no usage: token counts are estimates")
        return Capabilities(
            model=entry.id,
            models=[m.id for m in listing.models],
            context_tokens=context,
            usage=first.prompt_tokens is not None and first.output_tokens is not None,
            cached_tokens=any(outcome.cached_tokens is not None for outcome in seen),
            ignore_eos=ignore_eos,
            max_tokens_field=settings.max_tokens_field,
            stream_options=settings.include_usage,
            server=listing.server,
            engine=guess_engine(listing.server, entry.owned_by),
            transport=caller.transport,
            notes=notes,
        )


def choose_model(endpoint: Endpoint, listing: Listing, wanted: str | None) -> tuple[ModelEntry, list[str]]:
    """The model to use, and notes. Without `wanted` it must be the only one; an unlisted name is tried, and noted."""
    if wanted is None:
        if len(listing.models) == 1:
            return listing.models[0], []
        if not listing.models:
            if listing.note and ("HTTP 404" in listing.note or "no JSON" in listing.note):
                raise not_the_api(endpoint, listing.note)
            raise model_error(f"no model is known: {listing.note}", [])
        raise model_error(f"the endpoint serves {len(listing.models)} models", [m.id for m in listing.models])
    for entry in listing.models:
        if wanted == entry.id or wanted in entry.aliases:
            return entry._replace(id=wanted), []
    note = listing.note or "it is not among the models that the endpoint lists"
    return ModelEntry(wanted, (), None, ""), [f"the model {wanted!r} is taken as named: {note}"]


async def _context(
    client: httpx.AsyncClient, endpoint: Endpoint, listing: Listing, entry: ModelEntry, limit_s: float
) -> int | None:
    """llama.cpp's list may tell the context of all slots together, so its own page counts where it exists."""
    if entry.context_tokens is None or guess_engine(listing.server, entry.owned_by) == "llama.cpp":
        slot = await slot_context(client, endpoint, limit_s)
        if slot is not None:
            return slot
    return entry.context_tokens


async def _first_request(
    caller: Caller, endpoint: Endpoint, model: str, known: list[str]
) -> tuple[BodySettings, Outcome]:
    """One real request; a field that the server refuses is replaced or left out, and it is asked again.

    A refusal that names no field is answered by trying without each of the two fields that old and new servers dispute.
    Where nothing helps, the first refusal is the error.
    """
    settings = BodySettings(model, output="max")
    tried = [settings]
    refused: Outcome | None = None
    while True:
        outcome = await ask(caller, settings, _PROMPT, (), SHORT_BUDGET, f"check-{len(tried) - 1}")
        if _usable(outcome):
            return settings, outcome
        refused = refused or outcome
        adapted = [adapt(settings, outcome), *(_guesses(tried[0], outcome) if _names_nothing(refused) else ())]
        following = next((one for one in adapted if one is not None and one not in tried), None)
        if following is None:
            raise refusal(refused if _names_nothing(refused) else outcome, endpoint, model, known)
        settings = following
        tried.append(settings)


def _usable(outcome: Outcome) -> bool:
    """Also a reply without visible text: a model may spend the whole budget on reasoning that it does not show."""
    hidden = outcome.error_class == failures.EMPTY_STREAM and bool(outcome.output_tokens)
    return outcome.outcome == "ok" or hidden


def adapt(settings: BodySettings, outcome: Outcome) -> BodySettings | None:
    """Settings without the field that a 400 or 422 complains of; None when there is nothing to change."""
    text = (outcome.error or "").lower()
    if outcome.status not in _REFUSING or outcome.error_class == failures.CONTEXT_OVERFLOW:
        return None
    if "max_completion_tokens" in text and "max_tokens" in text and settings.max_tokens_field == "max_tokens":
        return replace(settings, max_tokens_field="max_completion_tokens")
    if re.search(r"stream_?options|include_?usage", text) and settings.include_usage:
        return replace(settings, include_usage=False)
    if re.search(r"max_?tokens", text) and settings.max_tokens_field == "max_tokens":
        return replace(settings, max_tokens_field="max_completion_tokens")
    return None


def _names_nothing(outcome: Outcome) -> bool:
    """A refusal in general terms: perhaps of a field, perhaps of something else."""
    named = re.search(r"max_|stream|usage|ignore_?eos|model", (outcome.error or "").lower())
    return outcome.status in _REFUSING and outcome.error_class == failures.HTTP_4XX and not named


def _guesses(first: BodySettings, outcome: Outcome) -> list[BodySettings]:
    """What to try where a refusal does not say what it is about."""
    if outcome.status not in _REFUSING:
        return []
    plain = replace(first, include_usage=False)
    return [
        plain,
        replace(first, max_tokens_field="max_completion_tokens"),
        replace(plain, max_tokens_field="max_completion_tokens"),
    ]


async def _try_ignore_eos(caller: Caller, settings: BodySettings, control: Outcome) -> tuple[Outcome | None, IgnoreEos]:
    """Ask with ignore_eos for what stopped early without it; a model that did not stop early gets a longer trial."""
    budget = SHORT_BUDGET
    if _is_full(control, budget):
        if _seconds_for(control, LONG_BUDGET) > _LONG_BUDGET_S:
            return None, "unknown"
        budget = LONG_BUDGET
        control = await ask(caller, settings, _PROMPT, (), budget, "check-control")
    forced = await ask(caller, replace(settings, output="exact"), _PROMPT, (), budget, "check-ignore-eos")
    if forced.status is not None and forced.status in (400, 422):
        return forced, "refused"
    if not _usable(forced) or not _usable(control) or _is_full(control, budget):
        return forced, "unknown"
    return forced, "honoured" if _is_full(forced, budget) else "ignored"


def _is_full(outcome: Outcome, budget: int) -> bool:
    if outcome.output_tokens is not None:
        return outcome.output_tokens >= budget
    return outcome.finish_reason == "length"


def _seconds_for(outcome: Outcome, tokens: int) -> float:
    """How long that many tokens take at the speed of this reply; without a speed, too long."""
    if outcome.first_visible_ns is None or outcome.last_visible_ns is None or not outcome.output_tokens:
        return float("inf")
    return (outcome.last_visible_ns - outcome.first_visible_ns) / 1e9 * tokens / outcome.output_tokens


async def _wait(
    client: httpx.AsyncClient,
    caller: Caller,
    endpoint: Endpoint,
    model: str | None,
    limit_s: float,
    wait_s: float,
    on_step: Callable[[str], None],
) -> None:
    """Poll /health, the models and one token until all are well. What waiting cannot mend raises at once."""
    deadline = anyio.current_time() + wait_s
    last: EndpointError | None = None
    pause = 0.2
    while anyio.current_time() < deadline:
        try:
            with anyio.fail_after(max(0.1, deadline - anyio.current_time())):
                await _ready(client, caller, endpoint, model, limit_s)
            return
        except EndpointError as error:
            if _hopeless(error):
                raise
            last = error
            on_step(f"waiting: {error.message}")
        except TimeoutError:
            last = last or EndpointError("the endpoint does not answer", LOG_REMEDY)
        await anyio.sleep(min(pause, max(0.0, deadline - anyio.current_time())))
        pause = min(pause * 1.5, 2.0)
    assert last is not None
    raise type(last)(f"not ready after {wait_s:g} s: {last.message}", last.remedy)


async def _ready(
    client: httpx.AsyncClient, caller: Caller, endpoint: Endpoint, model: str | None, limit_s: float
) -> None:
    health = await get(client, endpoint, endpoint.root_url("health"), limit_s)
    if health.status_code >= 500 and health.status_code != 501:
        raise EndpointError(f"/health answers HTTP {health.status_code}", LOG_REMEDY)
    listing = await list_models(client, endpoint, limit_s)
    entry, _ = choose_model(endpoint, listing, model)
    known = [m.id for m in listing.models]
    outcome = await ask(caller, BodySettings(entry.id, output="max"), _PROMPT, (), 1, "check-ready")
    # Complaints about fields are for the check proper; here it matters only that the server generates.
    about_fields = adapt(BodySettings(entry.id), outcome) is not None or _names_nothing(outcome)
    if not _usable(outcome) and outcome.prompt_tokens is None and not about_fields:
        raise refusal(outcome, endpoint, entry.id, known)


def _hopeless(error: EndpointError) -> bool:
    """A refused key and a certificate that is not trusted stay as they are; models may still be loading."""
    return isinstance(error, AuthError) or "certificate" in error.message
