"""What `agentperf run` was asked to do, checked: every wrong value is one UsageError that names the flag."""

import json
import math
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from agentperf.cli.resume import MASK, invocation
from agentperf.errors import UsageError
from agentperf.measure.window import WindowSettings
from agentperf.run.plan import Phase, Plan
from agentperf.run.presets import Preset, applied, load_preset
from agentperf.search.model import SearchSettings
from agentperf.server.fetch import parse_page_url
from agentperf.slo.model import Slo
from agentperf.slo.tiers import resolve
from agentperf.slo.verdict import Rules
from agentperf.wire.endpoint import Endpoint, Limits, parse_header

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
DEFAULT_SWEEP = (1, 2, 4, 8, 16, 32, 64, 128)


def seconds(flag: str, text: str) -> float:
    """`90`, `90s`, `30m`, `1h` -> seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h)?\s*", text)
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"{flag} {text!r} is no duration", "write it as 90s, 30m or 1h")
    return float(match[1]) * _UNITS[match[2] or ""]


def choice(flag: str, value: str, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if value not in allowed:
        raise UsageError(f"{flag} {value!r} is unknown", f"it is one of: {', '.join(allowed)}")
    return value


def read_resolution(text: str | None) -> int | float | None:
    """`2` agents, or `2%` / `0.02` of the level; None: the planner's default."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    value = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if match is None or value <= 0 or (value >= 1 and (match[2] or value != int(value))):
        raise UsageError(f"--resolution {text!r} is neither agents nor a share", "write 2 or 2%")
    return int(value) if value >= 1 else value


def read_levels(text: str) -> tuple[int, ...]:
    """`1,2,4` -> ascending levels, each once."""
    try:
        found = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise UsageError(f"--levels {text!r} is no list of agent counts", "write it as 1,2,4,8")
    return tuple(found)


def read_deployment(path: Path | None) -> dict[str, Any] | None:
    """The deployment file, kept as it is; UsageError when it is no TOML."""
    if path is None:
        return None
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--deployment {path}: {error}", "it must be a readable TOML file") from error


def read_extra_body(text: str | None) -> dict[str, Any]:
    """A JSON object for each body."""
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--extra-body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError("--extra-body must be a JSON object", "for example --extra-body '{\"temperature\": 0}'")
    return value


def read_metrics(given: Mapping[str, Any]) -> tuple[Endpoint, ...] | None:
    """The pages of --metrics-url; None with --no-metrics."""
    urls = given["metrics_url"] or []
    if given["no_metrics"]:
        if urls:
            raise UsageError("--metrics-url and --no-metrics exclude each other")
        return None
    for url in urls:
        if MASK in url:
            raise UsageError(
                "the address of a metrics page held a secret that no file keeps", "give --metrics-url again"
            )
    try:
        return tuple(
            parse_page_url(url, given["ca_file"], insecure=given["insecure"], trust_env=given["trust_env"])
            for url in urls
        )
    except UsageError as error:
        text = error.message.replace("the endpoint", "the page of --metrics-url")
        raise UsageError(text, "use a URL such as http://localhost:8000/metrics") from error


def read_workers(text: str, max_level: int) -> int:
    """`auto`: one load process for every 500 agents, at most one a core less one for this process and the view."""
    if text == "auto":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
        return max(1, min(cores - 1, -(-max_level // 500)))
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"--workers {text!r} is neither auto nor a number from 1")
    return int(text)


def _limit(value: float) -> float | None:
    return value if value > 0 else None


def read_slos(texts: list[str] | None) -> tuple[Slo, ...]:
    """Each --slo resolved; two of one name would be one row, so they are refused."""
    slos = tuple(resolve(text) for text in texts or [])
    names = [s.name for s in slos]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise UsageError(f"--slo {twice!r} is given twice")
    return slos


def make_plan(
    given: Mapping[str, Any], slos: tuple[Slo, ...], said: Collection[str] = (), departures: tuple[str, ...] = ()
) -> Plan:
    """The plan that the flags describe; `said` are those that stood on the command line."""
    levels = read_levels(given["levels"]) if given["levels"] else ()
    if given["concurrency"] is not None:
        if levels and "levels" in said:
            raise UsageError("--levels and --concurrency exclude each other")
        if given["concurrency"] < 1:
            raise UsageError("--concurrency must be at least 1")
        levels = (given["concurrency"],)
    preset = load_preset(given["protocol"])
    if "levels" in preset.flags and given["levels"] == preset.flags["levels"]:
        levels = tuple(n for n in levels if n <= given["max_agents"])
    if not levels and not slos:
        raise UsageError("a search needs an SLO", "add --slo 80tps, or sweep with --levels 1,2,4,8")
    if given["max_agents"] < given["start"] or given["start"] < 1:
        raise UsageError("--start must lie between 1 and --max-agents")
    window = WindowSettings(
        warmup_max_s=seconds("--warmup-max", given["warmup_max"]),
        window_min_s=seconds("--window-min", given["window_min"]),
        window_max_s=seconds("--window-max", given["window_max"]),
    )
    if window.window_min_s > window.window_max_s:
        raise UsageError("--window-min is longer than --window-max")
    knobs = preset.knobs
    rules = Rules(min_requests=window.first_look, decide=knobs.decide)
    phase = Phase(knobs.phase_sessions, knobs.phase_sessions_per_agent) if knobs.phase_sessions else None
    common: dict[str, Any] = {
        "preset": given["protocol"],
        "departures": departures,
        "phase": phase,
        "slos": slos,
        "window": window,
        "rules": rules,
        "duration_s": seconds("--duration", given["duration"]) if given["duration"] else None,
        "isolated": given["cache_salt"] == "play",
        "budget_s": seconds("--budget", given["budget"]) if given["budget"] else None,
    }
    if levels:
        kind: Literal["fixed", "sweep"] = "fixed" if given["concurrency"] is not None else "sweep"
        if common["duration_s"] is None and not slos:
            common["duration_s"] = min(60.0, window.window_max_s)
        return Plan(protocol=kind, levels=levels, **common)
    extra: dict[str, Any] = {}
    if (resolution := read_resolution(given["resolution"])) is not None:
        extra["resolution"] = resolution
    if knobs.reprobes is not None:
        extra["reprobes"] = knobs.reprobes
    search = SearchSettings(
        slos=tuple(s.name for s in slos),
        start=given["start"],
        max_agents=given["max_agents"],
        confidence=rules.confidence,
        **extra,
    )
    return Plan(protocol="quick", search=search, **common)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Checked options. The API key is read here and goes into the Endpoint only."""

    endpoint: str
    invocation: dict[str, Any]
    """The flags for the manifest, so that the run can be taken up again; the endpoint as it was given."""
    resume: Path | None
    preset: Preset
    model: str | None
    api_key: str | None
    headers: tuple[tuple[str, str], ...]
    wait_s: float
    ca_file: Path | None
    insecure: bool
    trust_env: bool
    transport: Literal["timed", "httpx"]
    limits: Limits
    metrics: tuple[Endpoint, ...] | None
    """Metrics pages that were given; none: the one beside the API root is looked for. None: no page is read."""
    plan: Plan
    traces: str | None
    history: Literal["recorded", "live"]
    output_length: Literal["auto", "natural", "exact", "max"]
    time_scale: float
    cache_salt: Literal["play", "level", "run", "none"]
    context: int | None
    context_rule: Literal["cut", "drop"]
    extra_body: dict[str, Any]
    workers: int
    seed: int
    out: Path
    name: str | None
    deployment: dict[str, Any] | None
    dry_run: bool
    plain: bool
    json: bool

    @classmethod
    def read(cls, given: Mapping[str, Any], said: Collection[str] = ()) -> "RunOptions":
        """Check the values of the command line; `said` names the options that stood on it."""
        kept = invocation(given)
        preset = load_preset(given["protocol"])
        given, departures = applied(given, said, preset)
        if given["endpoint"] is None:
            raise UsageError("no endpoint is given", "add --endpoint http://host:8000/v1, or sim:demo to try it out")
        plan = make_plan(given, read_slos(given["slo"]), said, departures)
        top = max(plan.levels, default=plan.search.max_agents if plan.search else 1)
        for flag in ("time_scale", "wait", "connect_timeout", "first_byte_timeout", "stall_timeout"):
            if not (math.isfinite(given[flag]) and given[flag] >= 0):
                name = flag.replace("_", "-")
                raise UsageError(f"--{name} {given[flag]} is no number from 0 on", "give seconds, or 0")
        if given["context"] is not None and given["context"] < 1:
            raise UsageError("--context must be at least 1")
        return cls(
            endpoint=given["endpoint"],
            invocation={**kept, "said": sorted(said)},
            preset=preset,
            resume=given["resume"],
            model=given["model"],
            api_key=os.environ.get(given["api_key_env"]) or None,
            headers=tuple(parse_header(h) for h in given["header"] or []),
            wait_s=given["wait"],
            ca_file=given["ca_file"],
            insecure=given["insecure"],
            trust_env=given["trust_env"],
            transport=cast("Literal['timed', 'httpx']", choice("--transport", given["transport"], ("timed", "httpx"))),
            limits=Limits(
                connect_s=_limit(given["connect_timeout"]),
                first_byte_s=_limit(given["first_byte_timeout"]),
                stall_s=_limit(given["stall_timeout"]),
            ),
            metrics=read_metrics(given),
            plan=plan,
            traces=given["traces"],
            history=cast("Literal['recorded', 'live']", choice("--history", given["history"], ("recorded", "live"))),
            output_length=cast(
                "Literal['auto', 'natural', 'exact', 'max']",
                choice("--output-length", given["output_length"], ("auto", "natural", "exact", "max")),
            ),
            time_scale=given["time_scale"],
            cache_salt=cast(
                "Literal['play', 'level', 'run', 'none']",
                choice("--cache-salt", given["cache_salt"], ("play", "level", "run", "none")),
            ),
            context=given["context"],
            context_rule=cast(
                "Literal['cut', 'drop']", choice("--context-rule", given["context_rule"], ("cut", "drop"))
            ),
            extra_body=read_extra_body(given["extra_body"]),
            workers=read_workers(given["workers"], top),
            seed=given["seed"],
            out=given["out"],
            name=given["name"],
            deployment=read_deployment(given["deployment"]),
            dry_run=given["dry_run"],
            plain=given["plain"],
            json=given["json"],
        )
