"""Token counts out of the usage objects that servers send, in the spellings that are known."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Usage(NamedTuple):
    """Counts as the server gave them; None where it did not. `output_tokens` includes the reasoning tokens."""

    prompt_tokens: int | None
    """Includes the cached ones."""
    cached_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None


_CACHED_KEYS = ("cached_tokens", "num_cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
"""At the top level of usage: SGLang and Moonshot, vLLM, DeepSeek, gateways in front of Anthropic's API."""


MAX_COUNT = 2**31 - 1
"""No request has more tokens; a larger number is a fault of the server's, and would spoil every sum it enters."""


def whole(value: Any) -> int | None:
    """A count: a whole number, also as a float (24.0), that a request can have. Anything else is not measured."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value <= MAX_COUNT else None


def _first(source: Any, *keys: str) -> int | None:
    if not isinstance(source, dict):
        return None
    for key in keys:
        count = whole(source.get(key))
        if count is not None:
            return count
    return None


def read_usage(value: Any) -> Usage | None:
    """Usage of one chunk; None when it carries no count at all (null, {}, or something that is no usage)."""
    if not isinstance(value, dict):
        return None
    prompt_details = value.get("prompt_tokens_details") or value.get("input_tokens_details")
    output_details = value.get("completion_tokens_details") or value.get("output_tokens_details")
    cached = _first(prompt_details, "cached_tokens")
    if cached is None:
        cached = _first(value, *_CACHED_KEYS)
    reasoning = _first(output_details, "reasoning_tokens")
    if reasoning is None:
        reasoning = _first(value, "reasoning_tokens")
    prompt = _first(value, "prompt_tokens", "input_tokens")
    output = _first(value, "completion_tokens", "output_tokens")
    if reasoning and output is not None and _is_apart(prompt, output, reasoning, _first(value, "total_tokens")):
        output += reasoning
    usage = Usage(prompt_tokens=prompt, cached_tokens=cached, output_tokens=output, reasoning_tokens=reasoning)
    return usage if usage.prompt_tokens is not None or usage.output_tokens is not None else None


def _is_apart(prompt: int | None, output: int, reasoning: int, total: int | None) -> bool:
    """Whether reasoning is not part of the output count, as its own sum or the sizes show (xAI counts that way)."""
    if total is not None and prompt is not None:
        return total == prompt + output + reasoning
    return reasoning > output


_LOOKED_AT = 8
"""Usage objects at either end of a stream that are read; some servers send one with every event."""


def usage_of_stream(found: Sequence[tuple[Any, int]], events: int) -> tuple[Usage | None, bool]:
    """(usage, whether its output count was stale) of a stream with so many visible events.

    `found` holds each usage object with the number of visible events before it, its own included. The last one that
    carries a count wins. What it does not say of the prompt is taken from the others; its output count is only of use
    when no output followed.
    """
    usage: Usage | None = None
    stale = False
    ends = [*reversed(found[-_LOOKED_AT:]), *found[: max(0, min(_LOOKED_AT, len(found) - _LOOKED_AT))]]
    for value, seen in ends:
        one = read_usage(value)
        if one is None:
            continue
        if usage is None:
            usage = one
            if seen < events and one.output_tokens is not None:
                stale = True
                usage = one._replace(output_tokens=None, reasoning_tokens=None)
        if usage.prompt_tokens is None:
            usage = usage._replace(prompt_tokens=one.prompt_tokens)
        if usage.cached_tokens is None:
            usage = usage._replace(cached_tokens=one.cached_tokens)
    return usage, stale
