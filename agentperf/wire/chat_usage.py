"""Token counts out of the usage objects that servers send, in the spellings that are known."""

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
    usage = Usage(
        prompt_tokens=_first(value, "prompt_tokens", "input_tokens"),
        cached_tokens=cached,
        output_tokens=_first(value, "completion_tokens", "output_tokens"),
        reasoning_tokens=reasoning,
    )
    return usage if usage.prompt_tokens is not None or usage.output_tokens is not None else None
