"""The manifest: every knob of a run, and the fingerprint by which two runs measure the same workload."""

import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import msgspec

from agentperf import __version__
from agentperf.replay.settings import ReplaySettings
from agentperf.run.conductor import now_iso
from agentperf.run.plan import Plan
from agentperf.run.workload import Workload

METRIC_DEFINITIONS = 1
"""Raised whenever a formula of `docs/how-we-measure.md` changes, so that runs across the change do not compare."""


def host_facts() -> dict[str, Any]:
    """What the measuring machine is; no names and no addresses."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return {
        "os": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory,
        "python": platform.python_version(),
        "executable": Path(sys.executable).name,
    }


def workload_identity(plan: Plan, replay: ReplaySettings, workload: Workload) -> dict[str, Any]:
    """What must be equal for two runs to have measured the same thing (not: endpoint, seed, levels)."""
    return {
        "trace_set": workload.digest,
        "trees": workload.tree_count,
        "context_limit": workload.context_limit,
        "context_rule": workload.context_rule,
        "protocol": plan.protocol,
        "preset": plan.label,
        "speed": replay.speed,
        "decide": plan.rules.decide,
        "phase": [plan.phase.sessions, plan.phase.sessions_per_agent] if plan.phase is not None else None,
        "history": replay.history,
        "output": replay.body.output,
        "cap": replay.body.cap,
        "ignore_eos": replay.body.ignore_eos and replay.body.output == "exact",
        "extra_body": dict(replay.body.extra),
        "salt": replay.salt,
        "time_scale": replay.time_scale,
        "warmup": [plan.window.warmup_min_s, plan.window.warmup_max_s, plan.spread_s],
        "metric_definitions": METRIC_DEFINITIONS,
    }


def fingerprint(identity: dict[str, Any]) -> str:
    """Short digest of a workload identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def make_manifest(
    *,
    name: str,
    plan: Plan,
    replay: ReplaySettings,
    workload: Workload,
    endpoint: dict[str, Any],
    capabilities: dict[str, Any],
    simulated: bool,
    workers: int,
    deployment: dict[str, Any] | None,
    choices: list[str],
    server_metrics: dict[str, Any] | None = None,
    client_calibration: dict[str, Any] | None = None,
    invocation: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The manifest as JSON. `choices` are sentences about what was decided for the user, and why.

    `client_calibration` is what the kept calibration of this machine's client says of the plan's largest level.
    """
    identity = workload_identity(plan, replay, workload)
    return {
        "schema_version": 1,
        "agentperf_version": __version__,
        "created_at": now_iso(),
        "name": name,
        "simulated": simulated,
        "endpoint": endpoint,
        "model": replay.body.model,
        "slos": [
            {"name": s.name, "expression": s.expression, "canonical": str(s), "source": s.source} for s in plan.slos
        ],
        "protocol": plan.knobs(),
        "replay": msgspec.to_builtins(replay),
        "trace_set": workload.facts(),
        "workload_identity": identity,
        "workload_fingerprint": fingerprint(identity),
        "capabilities": capabilities,
        "choices": choices,
        "server_metrics": server_metrics,
        "workers": workers,
        "host": host_facts(),
        "client_calibration": client_calibration,
        "seed": replay.seed,
        "deployment": deployment,
        "invocation": invocation,
    }
