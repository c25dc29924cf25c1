"""From the records of a window to observations and the verdict of each SLO, the client's own health first."""

import math
from collections.abc import Sequence

import numpy as np

from agentperf.measure.health import Health
from agentperf.measure.metrics import counts_for_slo, speed_for_verdict
from agentperf.measure.record import Record
from agentperf.slo.model import Slo
from agentperf.slo.verdict import Observations, Rules, Verdict, invalidate, judge
from agentperf.wire import failures

RATE_LIMITED = failures.RATE_LIMITED
LIMITED_SHARE = 0.01
"""From this share of 429 answers on, what a level fails by is the key's limit, not the server's."""


def _value(value: float | None, missing: float) -> float:
    return missing if value is None else value


def observe(records: Sequence[Record]) -> Observations:
    """The population of a window as arrays: failures at speed 0 and infinitely late, what was not measurable as nan."""
    judged = [r for r in records if counts_for_slo(r)]
    failed = np.array([r.outcome != "ok" for r in judged], dtype=bool)

    def late(name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([_value(getattr(r, name), math.nan) if r.outcome == "ok" else math.inf for r in judged])

    plays = {play: code for code, play in enumerate(dict.fromkeys(r.play for r in judged))}
    start = min((r.t0_ns for r in judged), default=0)
    return Observations(
        speed=np.array([_value(speed_for_verdict(r), math.nan) for r in judged], dtype=float),
        ttft=late("ttft_s"),
        ttfo=late("ttfo_s"),
        itl=late("itl_s"),
        e2e_speed=np.array([_value(r.e2e_tps, math.nan) if r.outcome == "ok" else 0.0 for r in judged], dtype=float),
        turn=np.array([r.turn + 1 for r in judged], dtype=np.int64),
        play=np.array([plays[r.play] for r in judged], dtype=np.int64),
        failed=failed,
        start_s=np.array([(r.t0_ns - start) / 1e9 for r in judged], dtype=float),
    )


def ttft_limit(slos: Sequence[Slo]) -> float | None:
    """The strictest TTFT ceiling in s, against which the client's own lateness is held."""
    return min((t.limit for s in slos for t in s.terms if t.metric == "ttft"), default=None)


def verdicts(slos: Sequence[Slo], records: Sequence[Record], rules: Rules, health: Health | None) -> dict[str, Verdict]:
    """One verdict an SLO. A late client voids them all; a rate limiter voids what it made fail."""
    observations = observe(records)
    limited = sum(r.error_class == RATE_LIMITED for r in records)
    result: dict[str, Verdict] = {}
    for slo in slos:
        verdict = judge(slo, observations, rules)
        if health is not None and health.status == "invalid":
            verdict = invalidate(verdict, f"client_limited: {'; '.join(health.reasons)}; {health.remedy}")
        elif verdict.status != "pass" and limited > 0 and limited >= LIMITED_SHARE * len(records):
            reason = f"{limited} of {len(records)} requests were refused with 429; lift the limit of this key"
            verdict = invalidate(verdict, f"{RATE_LIMITED}: {reason}")
        result[slo.name] = verdict
    return result
