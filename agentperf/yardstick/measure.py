"""Carries out a calibration: for each number of load processes and each rate, a search for the largest level."""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from agentperf import __version__
from agentperf.errors import ClientError, plain_errors
from agentperf.fleet.machine import raise_open_files
from agentperf.yardstick.calibration import Bounds, Calibration, Firehose, RateResult, sort_results
from agentperf.yardstick.cores import split_cores, usable_cores
from agentperf.yardstick.figures import Figures, figures
from agentperf.yardstick.load import SETTLE_S, Rig, lifetime_s, open_rig
from agentperf.yardstick.machine import this_machine
from agentperf.yardstick.reply import Pace
from agentperf.yardstick.search import Stopped, Verdict, answer, next_level

FIRST_EVENTS_PER_S = 12_800
"""Of one load process: what the first search begins with. Later ones begin at half of what was just found."""
ATTEMPTS, ATTEMPTS_DISTURBED = 2, 3
"""At a level that does not pass: a burst of other work of some milliseconds may be at fault, and does not show in a
mean. More when other work is seen."""
OVERHEAD_S = 1.0
"""Of a probe, beyond its streams and window: reports come in steps, the last stream has to end."""
SPARE_FILES = 128
"""Open files of a process that are no streams."""
PORTS = 20_000
"""Connections from one address to one port that are taken for safe: less than the ephemeral ports of Linux."""
HOSE_STREAMS, HOSE_TOKENS, HOSE_TTFT_MS, HOSE_WINDOW_S = 8, 2000, 50.0, 1.5

Step = Callable[[Figures], None]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is calibrated, and how carefully."""

    rates: tuple[float, ...] = (20.0, 50.0, 80.0, 200.0)
    workers: tuple[int, ...] = (1,)
    window_s: float = 3.0
    ttft_ms: float = 200.0
    decode_s: float = 2.0
    max_streams: int = 8192
    resolution: float = 0.1
    """Width of the bracket at which a search ends, as a share of the level."""
    budget_s: float = 360.0

    def pace(self, tps: float) -> Pace:
        """Of the reference server at one rate: two tokens at least."""
        return Pace(tps, self.ttft_ms, max(2, round(self.decode_s * tps) + 1))


@dataclass(slots=True)
class Progress:
    """What has been found so far; it is whole also when the calibration is interrupted."""

    began: float = field(default_factory=time.monotonic)
    results: list[RateResult] = field(default_factory=list)
    firehose: list[Firehose] = field(default_factory=list)


def now_iso() -> str:
    """UTC, in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def document(settings: Settings, progress: Progress) -> Calibration:
    """What has been found, as a document."""
    return Calibration(
        agentperf_version=__version__,
        measured_at=now_iso(),
        seconds=round(time.monotonic() - progress.began, 1),
        machine=this_machine(),
        bounds=Bounds(),
        window_s=settings.window_s,
        ttft_ms=settings.ttft_ms,
        decode_s=settings.decode_s,
        results=sort_results(progress.results),
        firehose=list(progress.firehose),
    )


async def calibrate(settings: Settings, progress: Progress, on_step: Step = lambda _: None) -> None:
    """Search for each number of load processes and each rate, in order; what is found is added to `progress`.

    The time that is left is shared between the searches that are left. ClientError when the machine cannot start them.
    """
    searches = [(workers, tps) for workers in settings.workers for tps in settings.rates]
    end = progress.began + settings.budget_s
    for number, (workers, tps) in enumerate(searches):
        now = time.monotonic()
        share_s = (end - now) / (len(searches) - number)
        before = [r for r in progress.results if r.streams]
        last = before[-1] if before else None
        per_worker = last.streams * last.tps / last.workers / 2 if last else FIRST_EVENTS_PER_S
        search = _Search(settings, workers, tps, max(1, int(per_worker * workers / tps)), now + share_s, on_step)
        with plain_errors():
            await search.run(progress)
    for workers in settings.workers:
        with plain_errors():
            progress.firehose.append(await firehose(workers))


class _Search:
    """One search: levels of one rate with one number of load processes."""

    def __init__(
        self, settings: Settings, workers: int, tps: float, start: int, deadline: float, on_step: Step
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._tps = tps
        self._start = start
        self._deadline = deadline
        self._on_step = on_step
        self._tried: dict[int, list[Figures]] = {}
        self._error: tuple[int, str] | None = None

    async def run(self, progress: Progress) -> None:
        """Search, and leave what was found in `progress`, also when cut short."""
        stopped: Stopped = "interrupted"
        try:
            pace = self._settings.pace(self._tps)
            life_s = lifetime_s(pace, 64, self._settings.window_s)
            async with open_rig(pace, self._workers, life_s) as rig:
                while (level := self._next()) is not None:
                    if self._tried and not self._time_for(pace):
                        break
                    if not await self._level(rig, level):
                        break
            stopped = "budget" if self._error is None else "error"
        finally:
            if self._tried:
                progress.results.append(self._result(stopped))

    def _verdicts(self) -> dict[int, Verdict]:
        """Of each level: pass when one attempt passed, else that of the attempt with least other work."""
        found: dict[int, Verdict] = {}
        for level, attempts in self._tried.items():
            passed = any(f.verdict == "pass" for f in attempts)
            found[level] = "pass" if passed else quietest(attempts).verdict
        if self._error is not None:
            found[self._error[0]] = "fail"
        return found

    def _next(self) -> int | None:
        s = self._settings
        return next_level(self._verdicts(), self._start, s.max_streams, s.resolution)

    def _time_for(self, pace: Pace) -> bool:
        return time.monotonic() + probe_s(pace, self._settings.window_s) <= self._deadline

    async def _level(self, rig: Rig, level: int) -> bool:
        """Probe a level until it passes or is beyond doubt; False when the load processes failed under it."""
        attempts: list[Figures] = []
        while True:
            try:
                found = figures(await rig.hold(level, self._settings.window_s), self._tps)
            except ClientError as error:
                if not self._tried:
                    raise
                self._error = (level, str(error))
                return False
            attempts.append(found)
            self._tried[level] = attempts
            self._on_step(found)
            most = ATTEMPTS_DISTURBED if quietest(attempts).disturbed else ATTEMPTS
            if found.verdict == "pass" or len(attempts) >= most or not self._time_for(rig.servers[0].pace):
                return True

    def _result(self, stopped: Stopped) -> RateResult:
        verdicts = self._verdicts()
        found = answer(verdicts, stopped=stopped, resolved=self._next() is None)
        missed = self._tried.get(found.smallest_miss or 0)
        disturbed = missed is not None and quietest(missed).disturbed
        return RateResult(
            tps=self._tps,
            workers=self._workers,
            measured_at=now_iso(),
            streams=found.streams,
            at_least=found.at_least or disturbed,
            limit=found.limit,
            smallest_miss=found.smallest_miss,
            disturbed=disturbed,
            pinned=split_cores(usable_cores(), self._workers) is not None,
            error=self._error[1] if self._error else None,
            probes=[f for attempts in self._tried.values() for f in attempts],
        )


def quietest(attempts: list[Figures]) -> Figures:
    """The attempt during which other work used least: chosen by what disturbs, never by the errors."""
    return min(attempts, key=lambda f: f.other_cores or 0.0)


def probe_s(pace: Pace, window_s: float) -> float:
    """How long a probe takes: the spread of the starts, the window, the last streams' end."""
    return 2 * pace.stream_s + SETTLE_S + window_s + OVERHEAD_S


async def firehose(workers: int) -> Firehose:
    """What the client decodes per second when events come as fast as it reads them."""
    pace = Pace(0, HOSE_TTFT_MS, HOSE_TOKENS)
    async with open_rig(pace, workers, lifetime_s(pace, 1, HOSE_WINDOW_S)) as rig:
        found = figures(await rig.hold(HOSE_STREAMS * workers, HOSE_WINDOW_S), 0.0)
    return Firehose(
        workers=workers,
        streams=HOSE_STREAMS * workers,
        events_per_s=found.events_per_s,
        us_per_event=found.us_per_event,
    )


def most_streams(wanted: int, workers: int) -> int:
    """`wanted`, or as many as this system allows: open files of one process, whose limit is raised, and ports."""
    soft, _hard = raise_open_files()
    files = wanted if soft == resource.RLIM_INFINITY else max(1, soft - SPARE_FILES) * workers
    return max(1, min(wanted, files, PORTS * workers))
