"""How sessions are replayed: policies of the run, never of the trace."""

from typing import Literal

from msgspec import Struct

from agentperf.wire.chat import BodySettings


class ReplaySettings(Struct, frozen=True, kw_only=True):
    """All of them are in the manifest and part of the workload's identity."""

    body: BodySettings
    history: Literal["recorded", "live"] = "recorded"
    time_scale: float = 1.0
    salt: Literal["play", "level", "run", "none"] = "play"
    seed: int = 0
    run_id: str = ""
    """Makes salts of different runs differ."""
    speed: Literal["first_event", "n-1"] = "first_event"
    """Tokens that the output speed leaves out: those of the first event, or one, as some protocols have it."""
    failure_pause_s: float = 1.0
    """After a failed request an agent waits at least this long, so that fast errors do not become a request storm."""
