"""The summary of a run: a pure function of its manifest and its journal, which may go on or have broken off."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

SUMMARY_VERSION: Final = 1
RUNNING: Final = "interrupted"
"""Reason of a run whose journal has no end: it was killed, or it goes on."""

Json = dict[str, Any]


def summarise_run(manifest: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Json:
    """Answers and levels as JSON. Null is not measured.

    `complete` says whether the run came to its own end: its search ended, or its list of levels or time budget was
    spent. A run that was stopped or killed is not complete, and its answers are the brackets so far.
    """
    journal = list(events)
    levels = [_level_row(e) for e in journal if e.get("event") == "probe_finished"]
    lately = _since_resumed(journal)
    finished = _last(lately, "run_finished")
    failed = _last(lately, "run_failed")
    slos = list(manifest.get("slos") or [])
    answers = _answers(slos, levels, finished)
    begun = {e["probe"] for e in lately if e.get("event") == "probe_started"}
    interrupted = finished is None or _was_interrupted(finished, [row for row in levels if row["probe"] in begun])
    return {
        "schema_version": SUMMARY_VERSION,
        "complete": not interrupted and failed is None,
        "reason": "failed" if failed is not None else RUNNING if interrupted else finished["reason"],  # type: ignore[index]
        "error": failed.get("error") if failed is not None else None,
        "simulated": bool(manifest.get("simulated", False)),
        "virtual": bool(manifest.get("virtual", False)),
        "name": manifest.get("name"),
        "model": manifest.get("model"),
        "endpoint": (manifest.get("endpoint") or {}).get("url"),
        "trace_set": (manifest.get("trace_set") or {}).get("id"),
        "workload_fingerprint": manifest.get("workload_fingerprint"),
        "protocol": _protocol_name(manifest.get("protocol")),
        "started_at": (_last(journal, "run_started") or {}).get("at"),
        "resumed_at": [e.get("at") for e in journal if e.get("event") == "run_resumed"],
        "finished_at": (finished or {}).get("at"),
        "slos": slos,
        "answers": answers,
        "ladder": _ladder(journal),
        "levels": levels,
        "unfinished": _unfinished(journal),
    }


def _last(events: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    return next((e for e in reversed(events) if e.get("event") == name), None)


def _since_resumed(events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The journal from the last time that the run was taken up; all of it where it never was."""
    starts = [index for index, e in enumerate(events) if e.get("event") == "run_resumed"]
    return events[starts[-1] :] if starts else events


def _protocol_name(protocol: Any) -> str | None:
    name = (
        protocol.get("label", protocol.get("protocol", protocol.get("name")))
        if isinstance(protocol, Mapping)
        else protocol
    )
    return name if isinstance(name, str) else None


def _was_interrupted(finished: Mapping[str, Any], levels: Sequence[Json]) -> bool:
    notes = [n for a in finished.get("answers") or [] for n in a.get("notes") or []]
    stopped = any(note.startswith("ended early") and note.endswith("interrupted") for note in notes)
    return bool(finished.get("interrupted")) or stopped or any(row["interrupted"] for row in levels)


def _unfinished(events: Sequence[Mapping[str, Any]]) -> Json | None:
    """The probe that had begun and has no end."""
    done = {e["probe"] for e in events if e.get("event") == "probe_finished"}
    begun = _last(_since_resumed(events), "probe_started")
    if begun is None or begun["probe"] in done:
        return None
    return {"probe": begun["probe"], "level": begun["level"], "why": begun.get("why")}


def _level_row(event: Mapping[str, Any]) -> Json:
    """One probe, flat: a row of the table and a point of the curve."""
    metrics: Mapping[str, Any] = event.get("metrics") or {}
    verdicts: Mapping[str, Mapping[str, Any]] = event.get("verdicts") or {}
    health: Mapping[str, Any] = event.get("health") or {}
    interrupted = bool(event.get("interrupted", False))

    def at(measure: str, percentile: str) -> float | None:
        value: float | None = (metrics.get(measure) or {}).get(percentile)
        return value

    return {
        "level": event["level"],
        "probe": event["probe"],
        "why": event.get("why"),
        "interrupted": interrupted,
        "status": {
            name: "inconclusive" if interrupted and v.get("status") != "invalid" else v.get("status")
            for name, v in verdicts.items()
        },
        "verdict_reason": {name: v.get("reason") for name, v in verdicts.items()},
        "confidence": {name: v.get("confidence") for name, v in verdicts.items()},
        "lean": {name: None if interrupted else v.get("lean") for name, v in verdicts.items()},
        "more_minutes": {name: v.get("more_minutes") for name, v in verdicts.items()},
        "close": {name: v.get("close") for name, v in verdicts.items()},
        "terms": {name: list(v.get("terms") or ()) for name, v in verdicts.items()},
        "window_s": metrics.get("window_s"),
        "started": metrics.get("started"),
        "ok": metrics.get("ok"),
        "failed": metrics.get("failed"),
        "truncated": metrics.get("truncated"),
        "errors_by_class": dict(metrics.get("errors_by_class") or {}),
        "plays": metrics.get("plays"),
        "speed_n": at("speed", "n"),
        "speed_p10": at("speed", "p10"),
        "speed_p25": at("speed", "p25"),
        "speed_p50": at("speed", "p50"),
        "speed_ok_p25": at("speed_ok", "p25"),
        "ttft_n": at("ttft", "n"),
        "ttft_p50": at("ttft", "p50"),
        "ttft_p95": at("ttft", "p95"),
        "ttft_ok_p50": at("ttft_ok", "p50"),
        "ttft_ok_p95": at("ttft_ok", "p95"),
        "cached_share": metrics.get("cached_share"),
        "expected_cached_share": metrics.get("expected_cached_share"),
        "output_tps": metrics.get("output_tps"),
        "uncached_input_tps": metrics.get("uncached_input_tps"),
        "cached_input_tps": metrics.get("cached_input_tps"),
        "total_tps": metrics.get("total_tps"),
        "in_flight": metrics.get("in_flight"),
        "streams": _streams(metrics),
        "server": event.get("server"),
        "void": event.get("void"),
        "client": {k: v for k, v in health.items() if k not in ("status", "reasons")} or None,
        "health": health.get("status"),
        "health_reasons": list(health.get("reasons") or ()),
        "warnings": list(event.get("warnings") or ()),
    }


def _streams(metrics: Mapping[str, Any]) -> Json | None:
    """What the streams of a level were like; None for journals of before this was looked at."""
    facts: Mapping[str, Any] | None = metrics.get("streams")
    if facts is None:
        return None
    sources = dict(facts.get("token_sources") or {})
    handshake = facts.get("handshake") or {}
    return {
        "suspect": bool(facts.get("suspect", False)),
        "buffered": facts.get("buffered"),
        "tellable": facts.get("tellable"),
        "hold_s": facts.get("hold_s"),
        "tokens_per_event_p50": (facts.get("tokens_per_event") or {}).get("p50"),
        "token_sources": sources,
        "estimated": sources.get("estimate", 0) > 0,
        "chars_per_token": facts.get("chars_per_token"),
        "hidden_reasoning": facts.get("hidden_reasoning"),
        "without_speed": facts.get("without_speed"),
        "in_band_errors": facts.get("in_band_errors"),
        "largest_gap_s": facts.get("largest_gap_s"),
        "largest_gap_request": facts.get("largest_gap_request"),
        "p99_gap_s": metrics.get("p99_gap_s"),
        "stalled": facts.get("stalled"),
        "new_connection_share": metrics.get("new_connection_share"),
        "handshake_p50": handshake.get("p50"),
        "handshake_p99": handshake.get("p99"),
        "handshake_max": facts.get("handshake_max_s"),
        "stale_retries": metrics.get("stale_retries"),
    }


def _ladder(events: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Agents at 20, 40, 60, 80 and 100 tok/s (p25) from the curve of all sound probes, with 95 % bands."""
    points: dict[float, dict[int, tuple[float, float]]] = {}
    for event in events:
        if event.get("event") != "probe_finished" or event.get("interrupted") or event.get("void"):
            continue
        if (event.get("health") or {}).get("status") == "invalid":
            continue
        for point in event.get("ladder") or ():
            levels = points.setdefault(float(point["tps"]), {})
            share, weight = levels.get(event["level"], (0.0, 0.0))
            both = weight + point["n_eff"]
            if both > 0:
                mean = (share * weight + point["share"] * point["n_eff"]) / both
                levels[event["level"]] = (min(1.0, mean), both)
    if not points:
        return []
    from agentperf.stats.isotonic import ladder

    return [asdict(rung) for rung in ladder(points)]


def _answers(
    slos: Sequence[Mapping[str, Any]], levels: Sequence[Json], finished: Mapping[str, Any] | None
) -> list[Json]:
    planned = {a["slo"]: a for a in (finished or {}).get("answers") or []}
    names = list(
        dict.fromkeys([s["name"] for s in slos] + list(planned) + [n for row in levels for n in row["status"]])
    )
    return [_answer(planned.get(name) or _so_far(name, levels), levels) for name in names]


def _so_far(slo: str, levels: Sequence[Json]) -> Json:
    """The bracket of an unfinished search by the last verdicts: smallest fail, and largest pass below it."""
    votes: dict[int, int] = {}
    for row in levels:
        status = row["status"].get(slo)
        if status in ("pass", "fail", "inconclusive"):  # the last one: it rests on all probes of the level
            votes[row["level"]] = {"pass": 1, "fail": -1}.get(status, 0)
    fails = [level for level, vote in votes.items() if vote < 0]
    passes = [level for level, vote in votes.items() if vote > 0]
    low, high = _bracket(passes, fails)
    strays = [p for p in passes if high is not None and p > high]
    note = (
        [f"not monotone so far: {high} failed although {', '.join(map(str, sorted(strays)))} passed"] if strays else []
    )
    return {
        "slo": slo,
        "capacity": 0 if low is None and high == 1 else low,
        "largest_pass": low,
        "smallest_fail": high,
        "reason": RUNNING,
        "monotone": not strays,
        "notes": note,
    }


def _bracket(passes: Sequence[int], fails: Sequence[int]) -> tuple[int | None, int | None]:
    """Largest pass below the smallest fail, and that fail; as the planner's answers have it."""
    high = min(fails, default=None)
    return max((p for p in passes if high is None or p < high), default=None), high


def _answer(answer: Mapping[str, Any], levels: Sequence[Json]) -> Json:
    """An answer with the requests and plays behind both ends of its bracket."""
    slo = answer["slo"]
    passed, failed = answer.get("largest_pass"), answer.get("smallest_fail")
    return {
        "slo": slo,
        "capacity": answer.get("capacity"),
        "largest_pass": passed,
        "smallest_fail": failed,
        "reason": answer.get("reason"),
        "monotone": answer.get("monotone", True),
        "notes": list(answer.get("notes") or ()),
        "confidence": answer.get("confidence"),
        "estimate": answer.get("estimate"),
        "undecided": list(answer.get("undecided") or ()),
        "pass_end": _end(slo, passed, levels),
        "fail_end": _end(slo, failed, levels),
    }


def _end(slo: str, level: int | None, levels: Sequence[Json]) -> Json | None:
    """Probes of one end that judged the SLO, and how much was measured in them: all of them count together."""
    rows = [r for r in levels if r["level"] == level and r["status"].get(slo) in ("pass", "fail", "inconclusive")]
    if level is None or not any(r["status"][slo] != "inconclusive" for r in rows):
        return None
    return {
        "level": level,
        "probes": len(rows),
        "passed": sum(r["status"][slo] == "pass" for r in rows),
        "requests": sum(r["started"] or 0 for r in rows),
        "plays": sum(r["plays"] or 0 for r in rows),
        "confidence": min((c for r in rows if (c := r["confidence"].get(slo)) is not None), default=None),
        "close": any(bool(r["close"].get(slo)) for r in rows),
        "estimated": any((r["streams"] or {}).get("estimated", False) for r in rows),
        "suspect": any((r["streams"] or {}).get("suspect", False) for r in rows),
    }
