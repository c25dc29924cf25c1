"""Sizes by the server's own count: a few requests with text that no session uses give characters per token."""

from collections.abc import Callable, Sequence

from agentperf.trace.sizing import DEFAULT_SIZES, CalibrationPrompt, TokenSizes, fit
from agentperf.wire.chat import BodySettings
from agentperf.wire.count import count_prompt_tokens
from agentperf.wire.exchange import Caller


async def calibrate(
    caller: Caller,
    settings: BodySettings,
    prompts: Sequence[CalibrationPrompt],
    on_step: Callable[[int, int], None] = lambda _done, _of: None,
) -> TokenSizes:
    """Measure `TokenSizes` for this endpoint; the defaults, labelled so, where it does not count prompt tokens."""
    counts: dict[str, int] = {}
    for number, prompt in enumerate(prompts):
        on_step(number, len(prompts))
        tokens = await count_prompt_tokens(caller, settings, list(prompt.messages), list(prompt.tools))
        if tokens is None:
            return DEFAULT_SIZES
        counts[prompt.name] = tokens
    on_step(len(prompts), len(prompts))
    return fit(prompts, counts)
