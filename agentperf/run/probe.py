"""One probe of one level: warm up, open the window, look, close it, let its requests end, drain.

`ProbeState` decides from batches and a clock and does no I/O; `run_probe` carries out what it decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from agentperf.fleet.child import TOO_BUSY
from agentperf.fleet.fleet import Fleet, ProcessLostError
from agentperf.fleet.machine import cores
from agentperf.fleet.messages import Batch
from agentperf.measure import health as client
from agentperf.measure.health import Health, MachineSample, WorkerSample
from agentperf.measure.judge import observe, ttft_limit, verdicts
from agentperf.measure.metrics import CUT_OFF, LevelMetrics, summarise
from agentperf.measure.quality import quality_warnings
from agentperf.measure.record import Record
from agentperf.measure.running import RunningLevel
from agentperf.measure.sessions import SessionCount
from agentperf.measure.steady import LadderPoint, drift_warnings, ladder_points
from agentperf.measure.window import WarmUp, look_at
from agentperf.run.plan import Plan
from agentperf.server.compare import ServerMetrics
from agentperf.slo.verdict import Rules, Verdict, undecided
from agentperf.stats.sequence import Counts
from agentperf.store.phases import INTERRUPTED, phase_of

HOPELESS = 5.0
"""Windows of the longest kind beyond which a level is left undecided."""
Phase = Literal["warmup", "window", "settling", "draining"]


@dataclass(slots=True)
class ProbeOutcome:
    """What one probe came to."""

    probe: int
    level: int
    why: str
    open_ns: int
    close_ns: int
    warmup_s: float
    drain_s: float
    metrics: LevelMetrics
    verdicts: dict[str, Verdict]
    health: Health
    warnings: list[str]
    interrupted: bool
    server: ServerMetrics | None = None
    """The endpoint's own figures, where it has a metrics page."""
    void: str | None = None
    """Why the level came to nothing: a load process was lost, or its records were not taken."""
    ladder: tuple[LadderPoint, ...] = ()
    """Shares of requests slower than the speeds of the SLO ladder."""


@dataclass(slots=True)
class ProbeState:
    """A probe in progress."""

    plan: Plan
    probe: int
    level: int
    why: str
    began_ns: int
    deadline_ns: int | None = None
    phase: Phase = "warmup"
    records: list[Record] = field(default_factory=list)
    samples: list[WorkerSample] = field(default_factory=list)
    latest: dict[int, Batch] = field(default_factory=dict)
    open_ns: int | None = None
    close_ns: int | None = None
    drain_ns: int | None = None
    look: int = 0
    now_ns: int = 0
    warnings: list[str] = field(default_factory=list)
    sessions: SessionCount = field(default_factory=SessionCount)
    """Whole sessions, where the plan's phase asks for them."""
    provisional: dict[str, Verdict] = field(default_factory=dict)
    interrupted: bool = False
    machine: list[MachineSample] = field(default_factory=list)
    void: tuple[str, str] | None = None
    """Cause and reason in words."""
    whole: bool = False
    """All requests of the window have ended and their records are here."""
    alpha: float | None = None
    """Chance at which the verdicts may be wrong; None: what the plan's confidence leaves."""
    waiting: tuple[str, ...] = ()
    """SLOs that the probe is for; empty: all."""
    may_lean: bool = False
    """Whether the window may close as soon as these point to one side plainly."""
    earlier: dict[str, dict[str, Counts]] = field(default_factory=dict)
    """What earlier probes of the level counted, by SLO and term."""
    running: RunningLevel = field(init=False)
    """Of the window once it is open, of the warm-up before: figures that grow with each batch."""
    warm_up: WarmUp = field(init=False)

    def __post_init__(self) -> None:
        self.running = RunningLevel(self.began_ns)
        self.warm_up = WarmUp(self.level)

    def take(self, batch: Batch) -> None:
        """Add what a load process reported."""
        self.records.extend(batch.records)
        self.running.take(batch.records)
        if self.phase == "warmup":
            self.warm_up.take(batch.records)
        if self.plan.phase is not None:
            self.sessions.take(batch.records)
        self.samples.append(batch.sample)
        self.latest[batch.worker] = batch
        self.now_ns = max(self.now_ns, batch.at_ns)

    def window_records(self) -> list[Record]:
        """Ended requests that were issued in the window so far; the list grows, and is not to be changed."""
        return [] if self.open_ns is None else self.running.records

    @property
    def rules(self) -> Rules:
        """The plan's rules; a level of few agents cannot be asked for more plays than it has agents."""
        rules = self.plan.rules
        alpha = rules.alpha if self.alpha is None else self.alpha
        return replace(rules, min_plays=min(rules.min_plays, self.level), alpha=alpha, agents=self.level)

    def _judge(self) -> dict[str, Verdict]:
        assert self.open_ns is not None
        rate = len(self.running) / max(1e-9, self._elapsed_s(self.open_ns))
        return verdicts(self.plan.slos, self.running.population, self.rules, None, self.earlier, rate)

    def _settled(self, found: dict[str, Verdict]) -> bool:
        """Whether what the probe is for is decided, or plain enough, or out of reach in the time that is left."""
        asked = [v for name, v in found.items() if not self.waiting or name in self.waiting]
        return all(
            v.status != "inconclusive" or (self.may_lean and v.lean is not None) or self._hopeless(v) for v in asked
        )

    def _hopeless(self, verdict: Verdict) -> bool:
        """Whether a third of the longest window has shown that many times the whole of it would not decide."""
        assert self.open_ns is not None
        longest = self.plan.window.window_max_s
        if self.plan.search is None or self._elapsed_s(self.open_ns) < longest / 3:
            return False
        return verdict.more_minutes is None or verdict.more_minutes * 60 > HOPELESS * longest

    def _past_deadline(self) -> bool:
        return self.deadline_ns is not None and self.now_ns >= self.deadline_ns

    def _elapsed_s(self, since_ns: int) -> float:
        return (self.now_ns - since_ns) / 1e9

    def step(self) -> float | None:
        """Move on as far as the latest batch allows; the grace in s for open requests once the level is to stop."""
        if self.phase == "warmup":
            self._warm_up()
        if self.phase == "window":
            self._look()
        if self.phase == "settling":
            return self._settle()
        return None

    def _warm_up(self) -> None:
        settings = self.plan.window
        elapsed = self._elapsed_s(self.began_ns)
        warm = self.warm_up.is_warm(elapsed, settings)
        if not warm and elapsed < settings.warmup_max_s and not self._past_deadline():
            return
        if not warm:
            self.warnings.append(
                f"warm-up did not settle within {elapsed:.0f} s; the window was opened all the same "
                "(a longer --warmup-max may help, or the level is beyond what the server can hold)"
            )
        self.open_ns = self.now_ns
        self.running = RunningLevel(self.open_ns, self.records)
        self.phase = "window"

    def _look(self) -> None:
        assert self.open_ns is not None
        settings = self.plan.window
        elapsed = self._elapsed_s(self.open_ns)
        if self.plan.duration_s is not None:
            over = elapsed >= self.plan.duration_s
        elif self.plan.phase is not None:
            over = (elapsed >= settings.window_min_s and self.phase_short() is None) or elapsed >= settings.window_max_s
        else:
            over = elapsed >= settings.window_max_s
            due = len(self.running) >= look_at(self.look, self.level, settings)
            if due and elapsed >= settings.window_min_s and not over:
                self.look += 1
                self.provisional = self._judge()
                over = self._settled(self.provisional)
        if over or self._past_deadline():
            self.close_ns = self.now_ns
            self.running.close(self.close_ns)
            self.phase = "settling"

    def _settle(self) -> float | None:
        """The load stays at N until every request of the window has ended, or has had its time."""
        assert self.open_ns is not None
        assert self.close_ns is not None
        oldest = [b.oldest_open_ns for b in self.latest.values() if b.oldest_open_ns is not None]
        waited = self._elapsed_s(self.close_ns)
        # What a load process sent before it was last heard of is unknown: it must have spoken since.
        unheard = any(b.at_ns < self.close_ns for b in self.latest.values())
        open_still = unheard or (bool(oldest) and min(oldest) < self.close_ns)
        if open_still and waited < self.plan.window.settle_s:
            return None
        if self._reopen():
            return None
        self.phase = "draining"
        self.drain_ns = self.now_ns
        self.whole = not open_still
        return 0.0 if open_still else self.plan.window.drain_s

    def _reopen(self) -> bool:
        """Go on measuring when the requests that ended last took the decision away again and time is left."""
        if self.plan.duration_s is not None or self.plan.phase is not None or self._past_deadline():
            return False
        assert self.open_ns is not None
        if self._elapsed_s(self.open_ns) >= self.plan.window.window_max_s:
            return False
        if self._settled(self._judge()):
            return False
        self.close_ns = None
        self.running.reopen()
        self.phase = "window"
        return True

    def phase_short(self) -> str | None:
        """What the plan's phase still lacks, in words; None when it is complete, or none is asked for."""
        phase = self.plan.phase
        if phase is None or self.open_ns is None:
            return None
        done = self.sessions.completed(self.open_ns)
        enough = sum(count >= phase.sessions_per_agent for count in done.values())
        if sum(done.values()) < phase.sessions:
            return f"{sum(done.values())} of {phase.sessions} sessions were completed"
        if phase.sessions_per_agent and enough < self.level:
            return f"{enough} of {self.level} agents have completed {phase.sessions_per_agent} sessions"
        return None

    def interrupt(self) -> None:
        """Stop now: what is open is cut off and belongs to no verdict."""
        self.interrupted = True
        if self.close_ns is None:
            self.close_ns = self.now_ns
            self.running.close(self.close_ns)
        self.phase = "draining"
        self.drain_ns = self.now_ns

    def lose(self, lost: Sequence[tuple[int, str]]) -> None:
        """Load processes are gone, with what they held: the level is void, unless its window was complete before."""
        for worker, cause in lost:
            if self.whole:
                self.warnings.append(f"load process {worker} {cause} while the level drained; its window is complete")
            elif self.void is None:
                kind = client.CLIENT_LIMITED if cause.startswith(TOO_BUSY) else client.PROCESS_LOST
                self.void = kind, f"load process {worker} {cause}: level {self.level} is void"
        self.phase = "draining"

    def overfill(self) -> None:
        """A load process holds more records than it may and issues no more turns: the level is void."""
        self.void = (
            client.COLLECTOR_LIMITED,
            f"records were made faster than this process took them: level {self.level} is void",
        )
        self.phase = "draining"
        self.drain_ns = self.now_ns

    def health(self, population: Sequence[Record], in_flight: float, wanted: float) -> Health:
        """Client health from the opening of the window (before it: from the start) until its last request ended."""
        since = self.open_ns if self.open_ns is not None else self.began_ns
        until = self.drain_ns if self.drain_ns is not None else self.now_ns
        return client.assess(
            [s for s in self.samples if since <= s.at_ns <= until],
            *client.delays_of(population),
            in_flight,
            wanted,
            ttft_limit(self.plan.slos),
            decode_s=client.decode_times(population),
            machine=[m for m in self.machine if since <= m.at_ns <= until],
            late_starts_s=[b.late_ns / 1e9 for b in self.latest.values()],
            cores=cores(),
        )

    def finish(self) -> ProbeOutcome:
        """The result, once all load processes have ended the level."""
        open_ns = self.open_ns if self.open_ns is not None else self.now_ns
        close_ns = max(self.close_ns if self.close_ns is not None else self.now_ns, open_ns + 1)
        for r in self.records:
            r.phase = phase_of(r.t0_ns, open_ns, close_ns)
            if (self.interrupted or self.void) and r.error_class == CUT_OFF:
                r.error_class = INTERRUPTED
        population = [r for r in self.records if r.phase == "window"]
        metrics = summarise(self.records, level=self.level, open_ns=open_ns, close_ns=close_ns)
        health = self.health(population, metrics.in_flight, metrics.wanted_in_flight)
        if self.void is not None:
            health = client.voided(health, *self.void)
        self.warnings.extend(
            quality_warnings(metrics, health, isolated=self.plan.isolated, chars_per_token=self.plan.chars_per_token)
        )
        seen = observe(population)
        self.warnings.extend(drift_warnings(seen))
        rate = len(population) / ((close_ns - open_ns) / 1e9)
        found = verdicts(self.plan.slos, population, self.rules, health, self.earlier, rate)
        if (short := self.phase_short()) is not None:
            self.warnings.append(f"the phase is not complete: {short} (a longer --window-max, or a longer --budget)")
            found = {name: undecided(v, f"the phase is not complete: {short}") for name, v in found.items()}
        if self.void is not None:  # what else is odd about half a level would only hide why
            self.warnings = [f"client: {self.void[1]}"]
        return ProbeOutcome(
            probe=self.probe,
            level=self.level,
            why=self.why,
            open_ns=open_ns,
            close_ns=close_ns,
            warmup_s=(open_ns - self.began_ns) / 1e9,
            drain_s=(self.now_ns - (self.drain_ns or self.now_ns)) / 1e9,
            metrics=metrics,
            verdicts=found,
            health=health,
            warnings=self.warnings,
            interrupted=self.interrupted,
            void=self.void[1] if self.void is not None else None,
            ladder=ladder_points(seen, self.level),
        )


async def run_probe(
    fleet: Fleet,
    state: ProbeState,
    *,
    take_records: Callable[[Sequence[Record]], None],
    on_batch: Callable[[ProbeState], None],
    interrupts: Callable[[], int],
) -> ProbeOutcome:
    """Hold the level until its state says that it is done. Records are handed on as they come."""
    await fleet.start_level(state.probe, state.level, state.plan.spread_s)
    try:
        async for batch in fleet.reports():
            state.take(batch)
            take_records(batch.records)
            if fleet.meter is not None and (sample := fleet.meter.sample()) is not None:
                state.machine.append(sample)
            if state.phase != "draining" and (grace_s := _next(state, batch, interrupts())) is not None:
                await fleet.stop_level(grace_s)
            on_batch(state)
    except ProcessLostError as error:
        state.lose(error.lost)
    return state.finish()


def _next(state: ProbeState, batch: Batch, interrupts: int) -> float | None:
    """What follows from a batch: None, or how long open requests may take now that the level is to end, in s."""
    if interrupts > 1:
        state.interrupt()
        return 0.0
    if batch.sample.overfull:
        state.overfill()
        return 0.0
    return state.step()


def as_event(outcome: ProbeOutcome) -> dict[str, object]:
    """The probe as a line of the journal."""
    return {
        "event": "probe_finished",
        "probe": outcome.probe,
        "level": outcome.level,
        "why": outcome.why,
        "window": {
            "open_ns": outcome.open_ns,
            "close_ns": outcome.close_ns,
            "warmup_s": outcome.warmup_s,
            "drain_s": outcome.drain_s,
        },
        "metrics": msgspec.to_builtins(outcome.metrics),
        "verdicts": {name: msgspec.to_builtins(v) for name, v in outcome.verdicts.items()},
        "health": msgspec.to_builtins(outcome.health),
        "warnings": outcome.warnings,
        "interrupted": outcome.interrupted,
        "ladder": msgspec.to_builtins(outcome.ladder),
        "void": outcome.void,
        "server": None if outcome.server is None else msgspec.to_builtins(outcome.server),
    }
