"""Variants of a simulator profile for `agentperf plan`, and the search of each one in virtual time."""

import itertools
import math
import re
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec

from agentperf.cli.live import View
from agentperf.cli.virtual import capabilities, conduct_virtually, open_virtual
from agentperf.clock import VirtualLoop, loop_now_ns
from agentperf.errors import UsageError
from agentperf.fleet.messages import Job
from agentperf.replay.bodies import EncodedTree
from agentperf.replay.settings import ReplaySettings
from agentperf.run.calibrate import calibrate
from agentperf.run.conductor import Progress
from agentperf.run.plan import Plan
from agentperf.run.workload import encode, load_workload, render
from agentperf.search.model import Done
from agentperf.sim.profile import Profile
from agentperf.store.rundir import RunWriter
from agentperf.trace.sizing import TokenSizes, calibration_prompts_for

NOT_VARIED = frozenset({"name", "description", "model", "source"})
_VALUE = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)(x?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Vary:
    """One --vary: a parameter of the profile and its values, as they were written and as they are."""

    name: str
    texts: tuple[str, ...]
    values: tuple[float | bool, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """A profile with one or more parameters changed; `changes` is empty for the profile as it is."""

    changes: tuple[tuple[str, float | bool], ...]
    profile: Profile


@dataclass(frozen=True, slots=True)
class Found:
    """What the search of one variant came to. Times in s; None is not measured."""

    variant: Variant
    capacity: int | None
    largest_pass: int | None
    smallest_fail: int | None
    reason: str
    confidence: float | None
    p25_speed: float | None
    p95_ttft: float | None
    cached_share: float | None
    virtual_s: float
    wall_s: float
    interrupted: bool

    @property
    def per_accelerator(self) -> float | None:
        """Agents on each accelerator of all replicas."""
        profile = self.variant.profile
        return None if self.capacity is None else self.capacity / (profile.accelerators * profile.replicas)

    def as_json(self) -> dict[str, Any]:
        """One row of the JSON document."""
        return {
            "changes": dict(self.variant.changes),
            "capacity": self.capacity,
            "largest_pass": self.largest_pass,
            "smallest_fail": self.smallest_fail,
            "reason": self.reason,
            "confidence": self.confidence,
            "per_accelerator": self.per_accelerator,
            "p25_speed": self.p25_speed,
            "p95_ttft": self.p95_ttft,
            "cached_share": self.cached_share,
            "virtual_s": self.virtual_s,
            "wall_s": self.wall_s,
            "interrupted": self.interrupted,
        }


def read_vary(text: str, profile: Profile) -> Vary:
    """`kv_pool_tokens=0.5x,1x,2x` or `replicas=1,2,4`; a value with an x is a factor on the profile's own."""
    name, mark, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    if name in NOT_VARIED or name not in Profile.__struct_fields__:
        known = ", ".join(f for f in Profile.__struct_fields__ if f not in NOT_VARIED)
        raise UsageError(f"--vary {text!r}: a profile has no number called {name!r}", f"it has: {known}")
    texts = tuple(part.strip() for part in listed.split(",") if part.strip())
    if not mark or not texts:
        raise UsageError(f"--vary {text!r} names no values", f"for example --vary {name}=0.5x,1x,2x")
    own = getattr(profile, name)
    return Vary(name, texts, tuple(_value(text, part, own) for part in texts))


def _value(flag: str, text: str, own: Any) -> float | bool:
    if isinstance(own, bool):
        if text.lower() in ("true", "on", "false", "off"):
            return text.lower() in ("true", "on")
        raise UsageError(f"--vary {flag!r}: {text!r} is neither on nor off")
    match = _VALUE.fullmatch(text)
    try:
        number = float(match[1]) if match is not None else math.nan
    except ValueError:
        number = math.nan
    if match is None or not math.isfinite(number):
        raise UsageError(f"--vary {flag!r}: {text!r} is no number", "write 2000000, or 2x for twice the profile's own")
    value = number * own if match[2] else number
    return round(value) if isinstance(own, int) else value


def variant_of(profile: Profile, changes: Sequence[tuple[str, float | bool]]) -> Variant:
    """The profile with the changes. UsageError when it would contradict itself."""
    fields = {**msgspec.structs.asdict(profile), **dict(changes)}
    try:
        return Variant(tuple(changes), msgspec.convert(fields, Profile))
    except (msgspec.ValidationError, ValueError) as error:
        shown = ", ".join(f"{name}={value:g}" for name, value in changes)
        raise UsageError(
            f"a profile with {shown} cannot be: {error}", "vary what it names as well, or leave it"
        ) from error


def variants(profile: Profile, varied: Sequence[Vary], *, grid: bool) -> list[Variant]:
    """The profile as it is, then each value of each parameter alone; with `grid` all combinations. Each one once."""
    cases: Iterator[tuple[tuple[str, float | bool], ...]]
    if grid:
        cases = itertools.product(*([(v.name, value) for value in v.values] for v in varied))
    else:
        cases = (((v.name, value),) for v in varied for value in v.values)
    found = {profile: Variant((), profile)}
    for case in cases:
        variant = variant_of(profile, case)
        found.setdefault(variant.profile, variant)
    return list(found.values())


class Workloads:
    """Trace sets made ready for profiles: once for all that count tokens alike."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._made: dict[tuple[Any, ...], tuple[list[EncodedTree], TokenSizes]] = {}

    def of(self, profile: Profile) -> tuple[list[EncodedTree], TokenSizes]:
        """Bodies at the profile's token size, cut to its context."""
        key = (profile.bytes_per_token, profile.message_overhead_tokens, profile.context_tokens)
        if key not in self._made:
            self._made[key] = self._make(profile)
        return self._made[key]

    def _make(self, profile: Profile) -> tuple[list[EncodedTree], TokenSizes]:
        workload = load_workload(self._source, profile.context_tokens)
        prompts = calibration_prompts_for(workload.trees, workload.trace_set.blobs)

        async def measure() -> TokenSizes:
            async with open_virtual(profile, 0) as caller:
                return await calibrate(caller, capabilities(profile).settings("exact"), prompts)

        sizes = anyio.run(measure, backend_options={"loop_factory": VirtualLoop})
        return encode(render(workload, sizes), live=False), sizes


def search(variant: Variant, plan: Plan, workloads: Workloads, seed: int, view: View) -> Found:
    """One search in virtual time; its run directory is a passing one."""
    profile = variant.profile
    trees, sizes = workloads.of(profile)
    body = capabilities(profile).settings("exact")
    replay = ReplaySettings(body=body, seed=seed, run_id=f"plan-{seed}")

    def make_job(worker: int, workers: int) -> Job:
        return Job(
            worker=worker,
            workers=workers,
            target=None,
            settings=replay,
            trees=trees,
            chars_per_token=sizes.mean_chars_per_token,
        )

    async def main(writer: RunWriter) -> tuple[Done, Progress, float]:
        done, progress = await conduct_virtually(plan, make_job, profile, seed, writer, None, view, metrics=False)
        return done, progress, loop_now_ns() / 1e9

    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="agentperf-plan-") as folder:
        writer = RunWriter.create(Path(folder) / secrets.token_hex(4))
        writer.write_manifest({"schema_version": 1, "name": "plan", "simulated": True, "virtual": True, "slos": []})
        done, progress, virtual_s = anyio.run(main, writer, backend_options={"loop_factory": VirtualLoop})
        writer.finish()
    return _found(variant, done, progress, virtual_s, time.perf_counter() - began)


def _found(variant: Variant, done: Done, progress: Progress, virtual_s: float, wall_s: float) -> Found:
    answer = done.answers[0]
    at = [o.metrics for o in progress.history if o.level == answer.largest_pass]
    metrics = at[-1] if at else None
    return Found(
        variant=variant,
        capacity=answer.capacity,
        largest_pass=answer.largest_pass,
        smallest_fail=answer.smallest_fail,
        reason=answer.reason,
        confidence=answer.confidence,
        p25_speed=metrics.speed.p25 if metrics else None,
        p95_ttft=metrics.ttft.p95 if metrics else None,
        cached_share=metrics.cached_share if metrics else None,
        virtual_s=virtual_s,
        wall_s=wall_s,
        interrupted=progress.interrupts > 0,
    )
