"""Profiles made for tests: every parameter known, no noise unless asked for."""

from typing import Any

from agentperf.sim.profile import Profile

_PLAIN: dict[str, Any] = {
    "name": "test",
    "description": "made by a test",
    "model": "test-model",
    "context_tokens": 4096,
    "step_fixed_s": 0.01,
    "step_per_sequence_s": 0.001,
    "prefill_tokens_per_s": 10_000.0,
    "max_step_tokens": 512,
    "max_running": 64,
    "kv_pool_tokens": 100_000,
    "block_tokens": 16,
}


def plain(**changes: Any) -> Profile:
    """A dense server: step = 10 ms + 1 ms a sequence, prefill 10k tok/s in chunks of 512."""
    return Profile(**{**_PLAIN, **changes})
