"""What an agent hands on for each request: who sent it, what was asked, and what came back, decoded."""

from dataclasses import dataclass

from agentperf.wire.exchange import Exchange
from agentperf.wire.outcome import Outcome


@dataclass(slots=True)
class TurnResult:
    """One request of one play. `due_ns` is when its wait was over; `exchange.t0_ns` when it was really started."""

    request_id: str
    agent: int
    play: str
    session_id: str
    root_session_id: str
    turn: int
    due_ns: int
    exchange: Exchange
    outcome: Outcome
    body_bytes: int
    expected_prompt_tokens: int
    expected_cached_tokens: int
    target_output_tokens: int
    ends_session: bool = False
    """The last turn of its session."""
