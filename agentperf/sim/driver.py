"""Runs an engine on the running event loop, real or virtual: one timer for the whole batch, one firing a step."""

import asyncio
from collections.abc import Callable

from agentperf.sim.engine import Emission, Engine, Job, SimRequest

Sink = Callable[[Emission, float], None]
"""Takes each emission of a job with the engine's time of it (s); must not block or raise."""

STEPS_AT_ONCE = 64
"""After so many overdue steps the loop gets its turn."""

REAL_SLACK_S = 0.0006
"""uvloop's timers count whole milliseconds, so a firing may come up to half of one early; it is taken as due."""

VIRTUAL_SLACK_S = 1e-9


class EngineDriver:
    """Owns the timer. Step ends lie on the engine's own time axis, so lateness of the loop never adds up."""

    def __init__(self, engine: Engine, now_s: Callable[[], float], slack_s: float) -> None:
        self.engine = engine
        self._now_s = now_s
        self._slack_s = slack_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._armed_s: float | None = None

    def submit(self, request: SimRequest, sink: Sink) -> Job:
        """Hand a request to the engine; `sink` gets what it writes."""
        job = self.engine.submit(request, self._now_s(), sink)
        self._arm()
        return job

    def abort(self, job: Job) -> None:
        """The client of a job has gone."""
        self.engine.abort(job, self._now_s())
        self._arm()

    def close(self) -> None:
        """Stop; jobs that have not ended never will."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._armed_s = None

    def _arm(self) -> None:
        at_s = self.engine.next_s()
        if at_s == self._armed_s and self._timer is not None:
            return
        self.close()
        if at_s is not None:
            self._armed_s = at_s
            self._timer = self._loop.call_later(max(0.0, at_s - self._now_s()), self._fire)

    def _fire(self) -> None:
        self._timer = self._armed_s = None
        engine = self.engine
        due_s = self._now_s() + self._slack_s
        for _ in range(STEPS_AT_ONCE):
            at_s = engine.next_s()
            if at_s is None or at_s > due_s:
                break
            result = engine.advance()
            if result is not None:
                for emission in result.emissions:
                    emission.job.sink(emission, result.end_s)
        self._arm()
