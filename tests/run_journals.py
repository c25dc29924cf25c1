"""Records and journals for the tests of store and report."""

import datetime as dt
from typing import Any

import msgspec
import numpy as np

from agentperf.measure.health import Health
from agentperf.measure.judge import observe
from agentperf.measure.metrics import summarise
from agentperf.measure.record import Record
from agentperf.slo.expression import parse
from agentperf.slo.verdict import Rules, Verdict, judge

SECOND = 1_000_000_000
NOW = dt.datetime(2026, 12, 1, 9, 30, tzinfo=dt.UTC)


def record(number: int = 0, **changes: Any) -> Record:
    """A plausible successful request, issued `number` tenths of a second after zero."""
    t0 = number * SECOND // 10
    offsets = np.arange(20, dtype="<i4") * 12_500
    base = Record(
        request_id=f"r{number}",
        probe=1,
        level=4,
        phase="warmup",
        agent=number % 4,
        play=f"p{number % 5}",
        session_id=f"s{number % 5}",
        root_session_id=f"s{number % 5}",
        turn=number // 5,
        due_ns=t0,
        t0_ns=t0,
        connected_ns=t0 + 10_000,
        sent_ns=t0 + 20_000,
        first_byte_ns=t0 + 400_000_000,
        first_visible_ns=t0 + 500_000_000,
        first_answer_ns=t0 + 500_000_000,
        last_visible_ns=t0 + 500_000_000 + 237_500_000,
        end_ns=t0 + 740_000_000,
        status=200,
        outcome="ok",
        error_class=None,
        error=None,
        finish_reason="stop",
        prompt_tokens=1000 + number,
        cached_tokens=800,
        output_tokens=20,
        reasoning_tokens=None,
        token_source="usage",
        expected_prompt_tokens=1000,
        expected_cached_tokens=820,
        target_output_tokens=20,
        events=20,
        reads=20,
        first_event_tokens=1.0,
        max_gap_ns=12_500_000,
        p99_gap_ns=12_500_000,
        body_bytes=4096,
        new_connection=number == 0,
        stale_retries=0,
        worker=0,
        ttft_s=0.5,
        ttfo_s=0.5,
        speed_tps=80.0,
        e2e_s=0.74,
        e2e_tps=20 / 0.74,
        itl_s=0.0125,
        event_offsets_us=offsets.tobytes(),
    )
    return msgspec.structs.replace(base, **changes)


def failure(number: int, **changes: Any) -> Record:
    """A request of the window that got no answer in time."""
    base = record(number, phase="window", outcome="failed", error_class="timeout", speed_tps=None, ttft_s=None)
    return msgspec.structs.replace(base, **changes)


def health(status: str = "ok", *reasons: str) -> Health:
    return Health(
        status=status,
        reasons=list(reasons),
        remedy="use more --workers" if reasons else None,
        loop_lag_p99_s=0.001,
        send_delay_p99_s=0.0005,
        cpu_share_max=0.4,
        in_flight_ratio=0.999,
        rss_bytes_max=100_000_000,
        fds_max=40,
        sockets_max=8,
        limit_s=0.1,
    )


def verdict(slo_text: str, records: list[Record], **rules: Any) -> Verdict:
    # A large error, and one request at a time, so that a few hundred requests decide.
    few = {"min_requests": 20, "min_plays": 2, "alpha": 0.3, "agents": 1, **rules}
    return judge(parse(slo_text), observe(records), Rules(**few))


def probe_records(probe: int, level: int, speed: float, n: int = 120, seed: int = 0, ttft: float = 0.6) -> list[Record]:
    """Requests of one probe whose speeds and times scatter about the given ones."""
    rng = np.random.default_rng(seed * 1000 + probe)
    rows = []
    for i in range(n):
        s = float(speed * rng.lognormal(0, 0.12))
        t = float(ttft * rng.lognormal(0, 0.4))
        rows.append(
            record(
                i,
                request_id=f"{probe}-{i}",
                probe=probe,
                level=level,
                speed_tps=s,
                ttft_s=t,
                phase="window",
                play=f"{probe}-{i % max(5, level)}",
            )
        )
    return rows


def probe_events(
    probe: int, level: int, records: list[Record], slos: list[str], why: str = "ramp", **extra: Any
) -> list[dict[str, Any]]:
    """The two journal lines of a probe, with metrics and verdicts that the records really give."""
    open_ns, close_ns = 0, max(r.t0_ns for r in records) + 1
    verdicts = {s: verdict(s, records) for s in slos}
    client = extra.pop("health", health())
    if client.status == "invalid":
        verdicts = {
            n: msgspec.structs.replace(v, status="invalid", reason="client_limited") for n, v in verdicts.items()
        }
    return [
        {"event": "probe_started", "probe": probe, "level": level, "why": why, "at_ns": 0},
        {
            "event": "probe_finished",
            "probe": probe,
            "level": level,
            "why": why,
            "window": {"open_ns": open_ns, "close_ns": close_ns, "warmup_s": 3.0, "drain_s": 1.0},
            "metrics": msgspec.to_builtins(summarise(records, level=level, open_ns=open_ns, close_ns=close_ns)),
            "verdicts": {n: msgspec.to_builtins(v) for n, v in verdicts.items()},
            "health": msgspec.to_builtins(client),
            "warnings": [],
            **extra,
        },
    ]


def manifest(slos: list[str], *, simulated: bool = False, **extra: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "agentperf_version": "0.1.0",
        "created_at": "2026-12-01T09:30:00+00:00",
        "name": "demo",
        "simulated": simulated,
        "endpoint": {"url": "http://localhost:8000/v1", "auth": "key"},
        "model": "glm-5.3",
        "slos": [{"name": s, "expression": s, "canonical": str(parse(s)), "source": ""} for s in slos],
        "protocol": {"protocol": "quick"},
        "trace_set": {"id": "coding-v1", "digest": "abc", "sessions": 10, "requests": 380, "license": "CC0-1.0"},
        "workload_fingerprint": "0123456789abcdef",
        "capabilities": {},
        "host": {"os": "Linux"},
        "seed": 0,
        "deployment": None,
        **extra,
    }


def finished(answers: list[dict[str, Any]], reason: str = "found") -> dict[str, Any]:
    return {"event": "run_finished", "reason": reason, "at": "2026-12-01T09:40:00+00:00", "answers": answers}


def answer(slo: str, low: int | None, high: int | None, reason: str = "found", **extra: Any) -> dict[str, Any]:
    return {
        "slo": slo,
        "capacity": low or 0,
        "largest_pass": low,
        "smallest_fail": high,
        "reason": reason,
        "monotone": True,
        "notes": [],
        **extra,
    }


def search_journal(
    slos: list[str] | None = None, levels: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 24, 20)
) -> tuple[list[dict[str, Any]], list[Record]]:
    """A whole search on a made endpoint: speed falls from 150 tok/s with the level."""
    slos = slos or ["80tps"]
    events: list[dict[str, Any]] = [{"event": "run_started", "at": "2026-12-01T09:30:00+00:00"}]
    rows: list[Record] = []
    for probe, level in enumerate(levels, 1):
        records = probe_records(probe, level, 150 / (1 + level / 24), n=40 + 8 * level, ttft=0.4 + level / 30)
        rows += records
        events += probe_events(probe, level, records, slos, why="ramp" if probe <= 6 else "bisect")
    return events, rows
