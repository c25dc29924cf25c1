"""Profiles: the parameters of a simulated inference server, read from TOML.

The time of one engine step that decodes n sequences and carries q tokens of prefill is

    step = a + b n + c (1 - (1 - p)^n) + d kv + q / prefill rate        (times jitter, where set)

a is the fixed part (launches, dense weights read), b the cost of each sequence, c the cost of reading all experts of a
mixture, of which a sequence touches the share p (so n of them touch 1 - (1 - p)^n), kv the number of tokens whose
keys and values the decoding sequences read. Prefill and decode do not overlap inside a step: a prompt slows everybody
who decodes, the more the larger the part of it that a step may carry.
"""

from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from agentperf.errors import UsageError

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1)]

_PACKAGE = "agentperf.sim"
_FOLDER = "profiles"


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated server. Times in seconds, sizes in tokens."""

    name: str
    description: str
    model: str
    """As /v1/models names it."""
    source: str | None = None
    """Where the parameters come from."""
    context_tokens: Count
    """Most tokens of prompt and output of one request together."""
    replicas: Count = 1
    """So many engines, each with all that follows, behind one address that keeps a session on its replica."""
    accelerators: Count = 1
    """Of one replica; for capacity per accelerator."""

    step_fixed_s: NotNegative
    """a"""
    step_per_sequence_s: NotNegative
    """b"""
    step_experts_s: NotNegative = 0.0
    """c; 0 for a dense model."""
    expert_share: Share = 0.0
    """p"""
    step_per_kv_token_s: NotNegative = 0.0
    """d"""
    jitter: NotNegative = 0.0
    """Standard deviation of the logarithm of a step's time; its mean is left as it is."""

    prefill_tokens_per_s: Positive
    """Rate of all prefill together."""
    max_step_tokens: Count = 8192
    """Tokens that one step carries at most, decoded ones included; longer prompts are prefilled in chunks."""
    max_running: Count = 256
    """Sequences that run at once; further ones wait."""
    kv_pool_tokens: Count
    block_tokens: Count = 16
    """Tokens of one block of the KV pool: the grain of the prefix cache."""
    prefix_cache: bool = True

    ttft_overhead_s: NotNegative = 0.0
    """From the arrival of a request to the earliest step that may take it: parsing, tokenizing, routing."""
    tokens_per_event: Count = 1
    """The first token is sent at once, later ones in events of at least this many."""
    draft_tokens: Annotated[int, Meta(ge=0)] = 0
    """Speculative decoding: tokens drafted in each step."""
    draft_acceptance: Share = 0.0
    """Chance that a drafted token is accepted, given that the one before it was."""

    bytes_per_token: Positive = 4.0
    """UTF-8 bytes of text that make one token."""
    message_overhead_tokens: Annotated[int, Meta(ge=0)] = 4
    """What the chat template adds to each message."""

    natural_output_tokens: Positive = 150.0
    """Median length at which the model stops by itself (where it may): log-normal."""
    natural_output_sigma: NotNegative = 1.0
    tool_call_share: Share = 0.7
    """Share of replies that are a tool call, where tools are offered."""
    reasoning_share: Share = 0.0
    """Part of each reply that is reasoning."""

    def __post_init__(self) -> None:
        if self.max_step_tokens <= self.max_running * (1 + self.draft_tokens):
            raise ValueError("max_step_tokens must exceed max_running x (1 + draft_tokens), or prompts may starve")
        if self.kv_pool_tokens < self.context_tokens + (1 + self.draft_tokens) * self.block_tokens:
            raise ValueError("kv_pool_tokens must hold one sequence of context_tokens and a block to spare")

    def step_s(self, decoding: int, kv_tokens: int, prefill_tokens: int) -> float:
        """Time of one step, without jitter."""
        experts = self.step_experts_s * (1.0 - (1.0 - self.expert_share) ** decoding)
        return (
            self.step_fixed_s
            + self.step_per_sequence_s * decoding
            + experts
            + self.step_per_kv_token_s * kv_tokens
            + prefill_tokens / self.prefill_tokens_per_s
        )

    def tokens_per_step(self) -> float:
        """Mean tokens that a sequence gains in one decode step (1 without speculative decoding)."""
        return 1.0 + sum(self.draft_acceptance**k for k in range(1, self.draft_tokens + 1))

    def decode_tokens_per_s(self, sequences: int, kv_tokens_each: int = 0) -> float:
        """Steady output of `sequences` that always decode, all together."""
        return sequences * self.tokens_per_step() / self.step_s(sequences, sequences * kv_tokens_each, 0)


def bundled_profiles() -> list[str]:
    """Names of the profiles that come with agentperf."""
    folder = resources.files(_PACKAGE) / _FOLDER
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load_profile(name_or_path: str | Path) -> Profile:
    """A bundled profile by name, or one from a TOML file. UsageError, naming field and remedy, on anything else."""
    text = str(name_or_path)
    if isinstance(name_or_path, str) and text in bundled_profiles():
        data = (resources.files(_PACKAGE) / _FOLDER / f"{text}.toml").read_bytes()
    else:
        path = Path(name_or_path)
        if not path.is_file():
            names = ", ".join(bundled_profiles())
            raise UsageError(f"there is no simulator profile {text!r}", f"a TOML file, or one of: {names}")
        data = path.read_bytes()
    return parse_profile(data, text)


def parse_profile(data: bytes, name: str) -> Profile:
    """A profile from the bytes of a TOML file; `name` is for error messages."""
    try:
        return msgspec.toml.decode(data, type=Profile)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"the simulator profile {name} cannot be used: {error}") from error
