"""Taking up a run that was interrupted or killed: its journal gives the history, and what must be equal is checked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentperf.errors import UsageError
from agentperf.measure.health import Health
from agentperf.measure.metrics import LevelMetrics
from agentperf.measure.steady import LadderPoint
from agentperf.run.probe import ProbeOutcome
from agentperf.server.compare import ServerMetrics
from agentperf.slo.verdict import Verdict

FRESH = "start a new run, without --resume"


@dataclass(frozen=True, slots=True)
class Past:
    """What a run had done before it broke off."""

    outcomes: tuple[ProbeOutcome, ...]
    """Probes that came to their end, in order. One that was interrupted decided nothing and is measured again."""
    broken_off: int
    """Probes that had begun and are not among them."""
    spent_s: float
    """Time of all its probes, which the time budget counts."""


def past_of(events: Iterable[Mapping[str, Any]]) -> Past:
    """The past from a journal. UsageError when a line of it cannot be understood."""
    journal = list(events)
    begun = {e["probe"]: int(e["at_ns"]) for e in journal if e.get("event") == "probe_started"}
    outcomes: list[ProbeOutcome] = []
    spent_s = 0.0
    for event in journal:
        if event.get("event") != "probe_finished":
            continue
        try:
            outcome = as_outcome(event)
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise UsageError(f"probe {event.get('probe')} of the journal cannot be read: {error}", FRESH) from error
        spent_s += (outcome.close_ns - begun[outcome.probe]) / 1e9 + outcome.drain_s
        if not outcome.interrupted:
            outcomes.append(outcome)
    highest = max(begun, default=0)
    return Past(tuple(outcomes), highest - len(outcomes), spent_s)


def as_outcome(event: Mapping[str, Any]) -> ProbeOutcome:
    """The inverse of `probe.as_event`, after JSON."""
    window = event["window"]
    return ProbeOutcome(
        probe=event["probe"],
        level=event["level"],
        why=event["why"],
        open_ns=window["open_ns"],
        close_ns=window["close_ns"],
        warmup_s=window["warmup_s"],
        drain_s=window["drain_s"],
        metrics=msgspec.convert(event["metrics"], LevelMetrics, str_keys=True),
        verdicts={name: msgspec.convert(v, Verdict, str_keys=True) for name, v in event["verdicts"].items()},
        health=msgspec.convert(event["health"], Health, str_keys=True),
        warnings=list(event["warnings"]),
        interrupted=event["interrupted"],
        server=msgspec.convert(event.get("server"), ServerMetrics | None, str_keys=True),
        void=event.get("void"),
        ladder=msgspec.convert(event.get("ladder") or (), tuple[LadderPoint, ...]),
    )


def check_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """UsageError, naming what differs, unless both manifests describe one and the same measurement."""
    for what, path in (
        ("agentperf's version", ("agentperf_version",)),
        ("the workload", ("workload_fingerprint",)),
        ("the endpoint", ("endpoint", "url")),
        ("the model", ("model",)),
        ("the SLOs", ("slos",)),
        ("the engine", ("capabilities", "engine")),
        ("the served context", ("capabilities", "context_tokens")),
        ("the number of load processes", ("workers",)),
        ("the seed", ("seed",)),
    ):
        before, now = _at(old, path), _at(new, path)
        if before != now:
            raise UsageError(f"the run cannot be taken up: {what} was {_short(before)} and is {_short(now)}", FRESH)
    knobs_before, knobs_now = dict(_at(old, ("protocol",)) or {}), dict(_at(new, ("protocol",)) or {})
    for name in sorted(knobs_before.keys() | knobs_now.keys()):
        if name != "budget_s" and knobs_before.get(name) != knobs_now.get(name):
            before, now = _short(knobs_before.get(name)), _short(knobs_now.get(name))
            raise UsageError(f"the run cannot be taken up: {name} of its plan was {before} and is {now}", FRESH)


def _at(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
