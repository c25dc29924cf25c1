"""The server's own count of a prompt's tokens, by a request for one token of output."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from agentperf.errors import EndpointError
from agentperf.wire import chat, failures
from agentperf.wire.exchange import Caller
from agentperf.wire.outcome import Outcome

_numbers = count(1)


async def count_prompt_tokens(
    caller: Caller,
    settings: chat.BodySettings,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> int | None:
    """`usage.prompt_tokens` of this prompt, cached ones included; None when the server does not tell.

    Raises EndpointError when the request fails, for instance because the prompt does not fit the context.
    """
    outcome = await ask(caller, replace(settings, output="max"), messages, tools, 1, f"count-{next(_numbers)}")
    # One token may have no text (a role marker, half a character): the count is good all the same.
    if outcome.outcome == "ok" or outcome.error_class == failures.EMPTY_STREAM or outcome.prompt_tokens is not None:
        return outcome.prompt_tokens
    raise EndpointError(f"counting prompt tokens failed ({outcome.error_class}): {outcome.error}")


async def ask(
    caller: Caller,
    settings: chat.BodySettings,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    output_tokens: int,
    request_id: str,
) -> Outcome:
    """One chat request, decoded."""
    encoded = b",".join(chat.encode_message(message) for message in messages)
    body = chat.body_head(settings) + encoded + chat.body_tail(settings, chat.encode_tools(tools), output_tokens)
    return chat.fold(await caller(body, request_id))
