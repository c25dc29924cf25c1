"""The conductor: takes the next level from the planner, has it measured, journals it, until the planner ends."""

import datetime as dt
import math
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec

from agentperf.errors import ClientError
from agentperf.fleet.fleet import Fleet
from agentperf.measure.health import PROCESS_LOST
from agentperf.run.plan import Plan
from agentperf.run.probe import ProbeOutcome, ProbeState, as_event, run_probe
from agentperf.run.resume import Past
from agentperf.search.model import Done, Point, Probe, ProbeResult
from agentperf.search.planner import next_step, sweep_step
from agentperf.server.watch import ServerWatch
from agentperf.slo.verdict import Verdict
from agentperf.stats.sequence import Counts
from agentperf.store.rundir import RunWriter


@dataclass(slots=True)
class Progress:
    """What a view may show: the probes so far and the one that runs."""

    plan: Plan
    history: list[ProbeOutcome] = field(default_factory=list)
    current: ProbeState | None = None
    before: int = 0
    """Probes begun before the run was taken up again that are not in the history: broken off."""
    interrupts: int = 0
    began_ns: int = 0
    note: str | None = None
    failure: ClientError | None = None
    """Why the run cannot go on although it is not at its end."""
    server: ServerWatch = field(default_factory=ServerWatch)
    """The endpoint's own metrics pages; without a page it is idle."""


OnProgress = Callable[[Progress], None]


def now_iso() -> str:
    """Wall-clock time for people; durations never come from it."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def as_result(outcome: ProbeOutcome, window_max_s: float = math.inf) -> ProbeResult:
    """The planner's view of a probe. A probe that was interrupted decides nothing."""
    void = f"{outcome.health.cause}: {outcome.void}" if outcome.void is not None else ""
    return ProbeResult(
        level=outcome.level,
        statuses={n: "inconclusive" if outcome.interrupted else v.status for n, v in outcome.verdicts.items()},
        close={n: v.close for n, v in outcome.verdicts.items()},
        note=void or next((v.reason for v in outcome.verdicts.values() if v.status == "invalid"), ""),
        lean={n: None if outcome.interrupted else v.lean for n, v in outcome.verdicts.items()},
        points={n: _points(v) for n, v in outcome.verdicts.items()},
        hopeless={
            n: v.status == "inconclusive" and not _in_reach(v, window_max_s) for n, v in outcome.verdicts.items()
        },
    )


def _in_reach(verdict: Verdict, window_max_s: float) -> bool:
    """Whether one more of the longest windows would decide it, if the shares stay what they are."""
    return verdict.more_minutes is not None and verdict.more_minutes * 60 <= window_max_s


def _points(verdict: Verdict) -> tuple[Point, ...]:
    return tuple(
        Point(term=t.term, share=t.share, n_eff=t.n_eff, allowed=t.allowed_share)
        for t in verdict.terms
        if t.share is not None
    )


def earlier_counts(history: Sequence[ProbeOutcome], level: int) -> dict[str, dict[str, Counts]]:
    """What sound probes of this level counted so far, by SLO and term: the next one goes on from there."""
    found: dict[str, dict[str, Counts]] = {}
    for outcome in history:
        if outcome.level != level or outcome.interrupted or outcome.void is not None:
            continue
        for name, verdict in outcome.verdicts.items():
            if verdict.status == "invalid":
                continue
            terms = found.setdefault(name, {})
            for term in verdict.terms:
                terms[term.term] = terms.get(term.term, Counts(0.0, 0.0)) + term.counts
    return found


def decide(plan: Plan, history: list[ProbeOutcome], stop: str | None) -> Probe | Done:
    """The next level, or the end. Pure: the same history gives the same step."""
    results = [as_result(o, plan.window.window_max_s) for o in history]
    if plan.search is not None:
        return next_step(plan.search, results, stop=stop)
    names = tuple(s.name for s in plan.slos)
    return sweep_step(plan.levels, results, slos=names, stop=stop, confidence=plan.rules.confidence)


@asynccontextmanager
async def _signals(progress: Progress) -> AsyncIterator[None]:
    """Count Ctrl-C: the first ends the run after this level, the second ends it now. SIGTERM counts as two."""
    async with anyio.create_task_group() as group:

        async def watch(task_status: anyio.abc.TaskStatus[None]) -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:
                task_status.started()
                async for number in received:
                    progress.interrupts += 2 if number == signal.SIGTERM else 1

        await group.start(watch)
        yield
        group.cancel_scope.cancel()


@asynccontextmanager
async def _no_signals(_: Progress) -> AsyncIterator[None]:
    yield


async def conduct(
    plan: Plan,
    fleet: Fleet,
    writer: RunWriter,
    on_progress: OnProgress,
    *,
    past: Past | None = None,
    server: ServerWatch | None = None,
    handle_signals: bool = True,
) -> tuple[Done, Progress]:
    """Run the plan to its end. Every probe is in the journal before the next one begins.

    With a `past` the search goes on where that one broke off; its probes count, and the time that it spent.
    """
    began_ns = fleet.now_ns()
    progress = Progress(plan, began_ns=began_ns, server=server or ServerWatch())
    spent_s = 0.0
    if past is not None:
        progress.history, progress.before, spent_s = list(past.outcomes), past.broken_off, past.spent_s
    deadline_ns = None if plan.budget_s is None else began_ns + round((plan.budget_s - spent_s) * 1e9)
    writer.journal({"event": "run_started" if past is None else "run_resumed", "at": now_iso()})
    async with (_signals if handle_signals else _no_signals)(progress):
        while True:
            over = deadline_ns is not None and fleet.now_ns() >= deadline_ns
            stop = "interrupted" if progress.interrupts else "the time budget is spent" if over else None
            step = decide(plan, progress.history, stop)
            if not isinstance(step, Done) and (failure := await _repair(fleet, writer, progress)) is not None:
                progress.failure = failure
                writer.journal({"event": "run_failed", "error": str(failure), "at": now_iso()})
                step = decide(plan, progress.history, failure.message)
            if isinstance(step, Done):
                break
            outcome = await _measure(plan, fleet, writer, progress, step, deadline_ns, on_progress)
            progress.history.append(outcome)
            progress.current = None
            writer.journal(as_event(outcome))
            on_progress(progress)
    writer.journal({"event": "run_finished", "reason": step.reason, "at": now_iso(), "answers": answers_of(step)})
    return step, progress


MAX_LOST_IN_A_ROW = 3


async def _repair(fleet: Fleet, writer: RunWriter, progress: Progress) -> ClientError | None:
    """Replace load processes that are gone; the error by which the run cannot go on."""
    lost = 0
    for outcome in reversed(progress.history):
        if outcome.health.cause != PROCESS_LOST or outcome.void is None:
            break
        lost += 1
    if lost >= MAX_LOST_IN_A_ROW:
        cause = str(progress.history[-1].void).partition(": level")[0]
        return ClientError(
            f"load processes were lost at {lost} probes in a row, at last: {cause}",
            "look for what ends them: memory (dmesg tells of the OOM killer), a limit of the container, or a person",
        )
    try:
        for worker, cause in await fleet.repair():
            writer.journal({"event": "load_process_replaced", "worker": worker, "cause": cause, "at": now_iso()})
    except ClientError as error:
        return error
    return None


def answers_of(done: Done) -> list[dict[str, Any]]:
    """The planner's answers as JSON."""
    return [msgspec.to_builtins(a) for a in done.answers]


async def _measure(
    plan: Plan,
    fleet: Fleet,
    writer: RunWriter,
    progress: Progress,
    step: Probe,
    deadline_ns: int | None,
    on_progress: OnProgress,
) -> ProbeOutcome:
    number = progress.before + len(progress.history) + 1
    began_ns = fleet.now_ns()
    state = ProbeState(plan, number, step.level, step.why, began_ns, deadline_ns)
    state.now_ns = began_ns
    state.alpha, state.waiting, state.may_lean = step.alpha, step.slos, step.may_lean
    state.earlier = earlier_counts(progress.history, step.level)
    progress.current = state
    writer.journal({"event": "probe_started", "probe": number, "level": step.level, "why": step.why, "at_ns": began_ns})

    on_progress(progress)
    async with progress.server.level() as watch:

        def on_batch(_: ProbeState) -> None:
            watch.see(state.open_ns, state.close_ns)
            writer.flush_if_due()
            on_progress(progress)

        outcome = await run_probe(
            fleet,
            state,
            take_records=writer.add,
            on_batch=on_batch,
            interrupts=lambda: progress.interrupts,
        )
        outcome.server, said = await watch.finish(state.records)
    outcome.warnings.extend(said)
    return outcome


def probe_estimate_s(plan: Plan) -> tuple[float, float]:
    """Shortest and longest time of one probe, in s, drain left out: what `--dry-run` prints."""
    settings = plan.window
    if plan.duration_s is not None:
        return settings.warmup_min_s + plan.duration_s, settings.warmup_max_s + plan.duration_s
    return settings.warmup_min_s + settings.window_min_s, settings.warmup_max_s + settings.window_max_s


def probe_count_bound(plan: Plan) -> int:
    """Most probes that the search needs on a well-behaved endpoint: doubling, bisection, and both ends again."""
    if plan.search is None:
        return len(plan.levels)
    return 2 * math.ceil(math.log2(max(2, plan.search.max_agents))) + 2
