"""Records for tests, with every field in its place."""

from typing import Any

from agentperf.measure.record import Record

MS = 1_000_000
S = 1_000_000_000


def record(t0_s: float = 0.0, **changes: Any) -> Record:
    """A good request: due at t0, first token after 0.5 s, 101 tokens at 50 tok/s, end with the last one."""
    t0 = round(t0_s * S)
    first = t0 + S // 2
    last = first + 2 * S
    fields: dict[str, Any] = {
        "request_id": f"r{t0}",
        "probe": 1,
        "level": 1,
        "phase": "window",
        "agent": 0,
        "play": "a0p0",
        "session_id": "s",
        "root_session_id": "s",
        "turn": 0,
        "due_ns": t0,
        "t0_ns": t0,
        "connected_ns": t0,
        "sent_ns": t0,
        "first_byte_ns": first,
        "first_visible_ns": first,
        "first_answer_ns": first,
        "last_visible_ns": last,
        "end_ns": last,
        "status": 200,
        "outcome": "ok",
        "error_class": None,
        "error": None,
        "finish_reason": "stop",
        "prompt_tokens": 1000,
        "cached_tokens": 800,
        "output_tokens": 101,
        "reasoning_tokens": None,
        "token_source": "usage",
        "expected_prompt_tokens": 1000,
        "expected_cached_tokens": 800,
        "target_output_tokens": 101,
        "events": 101,
        "reads": 101,
        "first_event_tokens": 1.0,
        "max_gap_ns": 20 * MS,
        "p99_gap_ns": 20 * MS,
        "body_bytes": 4000,
        "new_connection": False,
        "stale_retries": 0,
        "worker": 0,
        "ttft_s": 0.5,
        "ttfo_s": 0.5,
        "speed_tps": 50.0,
        "e2e_s": 2.5,
        "e2e_tps": 40.4,
        "itl_s": 0.02,
    }
    return Record(**{**fields, **changes})


_OF_SUCCESS = (
    *("first_visible_ns", "first_answer_ns", "last_visible_ns", "prompt_tokens", "cached_tokens", "output_tokens"),
    *("token_source", "ttft_s", "ttfo_s", "speed_tps", "e2e_s", "e2e_tps", "itl_s", "max_gap_ns", "p99_gap_ns"),
    "first_event_tokens",
)


def failure(t0_s: float = 0.0, error_class: str = "http_500", **changes: Any) -> Record:
    """A request that failed 0.1 s after it was sent."""
    end = round(t0_s * S) + S // 10
    empty: dict[str, Any] = dict.fromkeys(_OF_SUCCESS)
    return record(
        t0_s,
        **{**empty, "outcome": "failed", "error_class": error_class, "end_ns": end, "events": 0, "reads": 1, **changes},
    )
