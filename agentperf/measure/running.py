"""A level while it is held: figures that grow with each batch, by work that the batch alone sets.

The view of a running level and its verdicts read from here; after the last batch the figures are those of
`metrics.summarise`, for the same definitions stand behind both.
"""

import math
from collections.abc import Iterable

from agentperf.measure.metrics import counts_for_slo, speed_for_verdict
from agentperf.measure.population import Population
from agentperf.measure.record import Record
from agentperf.stats.running import RunningValues
from agentperf.wire import failures


class RunningLevel:
    """Ended requests that were issued from `open_ns` on and, once that is set, before `close_ns`."""

    __slots__ = (
        "_before",
        "_cached",
        "_cached_known",
        "_later",
        "_newest_ns",
        "_prompt",
        "_sent_ns",
        "_since_close",
        "_sums_at_close",
        "_wanted_ns",
        "close_ns",
        "decode_s",
        "estimates",
        "failed",
        "in_band_errors",
        "largest_gap_ns",
        "largest_gap_request",
        "new_connections",
        "open_delay_s",
        "open_ns",
        "population",
        "records",
        "send_delay_s",
        "speed",
        "stale_retries",
        "ttft_s",
    )

    def __init__(self, open_ns: int, records: Iterable[Record] = ()) -> None:
        self.open_ns = open_ns
        self.close_ns: int | None = None
        self.records: list[Record] = []
        """In the order of their coming."""
        self.population = Population()
        self.speed = RunningValues()
        """Failures as 0."""
        self.ttft_s = RunningValues()
        """Failures as infinite."""
        self.send_delay_s = RunningValues()
        self.open_delay_s = RunningValues()
        self.decode_s = RunningValues()
        self.failed = 0
        self.estimates = 0
        self.in_band_errors = 0
        self.new_connections = 0
        self.stale_retries = 0
        self.largest_gap_ns = 0
        self.largest_gap_request: str | None = None
        self._prompt = self._cached = 0
        self._cached_known = True
        self._sent_ns = self._wanted_ns = 0
        self._newest_ns = open_ns
        self._before: list[Record] = []
        self._later: list[Record] = []
        self._since_close: list[Record] = []
        self._sums_at_close = (0, 0)
        self.take(records)

    def take(self, records: Iterable[Record]) -> None:
        """Add requests that have ended; each is looked at once."""
        for r in records:
            self._overlap(r)
            self._newest_ns = max(self._newest_ns, r.end_ns, r.t0_ns)
            if self.close_ns is not None:
                self._since_close.append(r)
                if r.t0_ns >= self.close_ns:
                    self._later.append(r)
                    continue
            if r.t0_ns >= self.open_ns:
                self._add(r)
            elif r.end_ns > self.open_ns:
                self._before.append(r)  # issued in the warm-up, and open in the window: one an agent or so

    def close(self, close_ns: int) -> None:
        """Leave out what is issued from now on. Nothing that was taken so far may have happened later."""
        if self._newest_ns > close_ns:
            self._rebuild(close_ns)
            return
        self.close_ns = close_ns
        self._sums_at_close = (self._sent_ns, self._wanted_ns)

    def reopen(self) -> None:
        """Go on as if it had not been closed: what was left out since comes in."""
        since, later = self._since_close, self._later
        self.close_ns = None
        self._since_close, self._later = [], []
        self._sent_ns, self._wanted_ns = self._sums_at_close
        for r in since:
            self._overlap(r)
        for r in later:
            self._add(r)

    def _rebuild(self, close_ns: int) -> None:
        """A record of a load process whose clock is ahead: start anew with the close known."""
        fresh = RunningLevel(self.open_ns)
        fresh.close_ns = close_ns
        fresh.take([*self._before, *self.records])
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))

    def _overlap(self, r: Record) -> None:
        end = r.end_ns if self.close_ns is None else min(r.end_ns, self.close_ns)
        sent = r.t0_ns if r.sent_ns is None else r.sent_ns
        self._sent_ns += max(0, end - max(sent, self.open_ns))
        self._wanted_ns += max(0, end - max(r.due_ns, self.open_ns))

    def _add(self, r: Record) -> None:
        self.records.append(r)
        self.population.add(r)
        self.send_delay_s.add((r.t0_ns - r.due_ns) / 1e9)
        self.open_delay_s.add(((r.sent_ns or r.t0_ns) - r.due_ns) / 1e9)
        self.new_connections += r.new_connection
        self.stale_retries += r.stale_retries
        self.in_band_errors += r.error_class == failures.SERVER_ERROR_IN_STREAM
        if (r.max_gap_ns or 0) > self.largest_gap_ns:
            self.largest_gap_ns, self.largest_gap_request = r.max_gap_ns or 0, r.request_id
        if not counts_for_slo(r):
            return
        self.failed += r.outcome != "ok"
        speed = speed_for_verdict(r)
        if speed is not None:
            self.speed.add(speed)
        self.ttft_s.add(math.inf if r.outcome == "failed" or r.ttft_s is None else r.ttft_s)
        if r.outcome == "ok":
            self._add_success(r)

    def _add_success(self, r: Record) -> None:
        self.estimates += r.token_source == "estimate"  # noqa: S105
        if r.speed_tps is not None and r.first_visible_ns is not None and r.last_visible_ns is not None:
            self.decode_s.add((r.last_visible_ns - r.first_visible_ns) / 1e9)
        if r.prompt_tokens is not None:
            self._prompt += r.prompt_tokens
            self._cached += r.cached_tokens or 0
            self._cached_known = self._cached_known and r.cached_tokens is not None

    def __len__(self) -> int:
        """Requests, also those that count for nothing."""
        return len(self.records)

    @property
    def cached_share(self) -> float | None:
        """Cached of all prompt tokens; None where a reply left it out."""
        return self._cached / self._prompt if self._prompt and self._cached_known else None

    @property
    def in_flight(self) -> float:
        """Seconds of requests open inside the window, of those that have ended."""
        return self._sent_ns / 1e9

    @property
    def wanted(self) -> float:
        """The same from due on: what a perfect client would have had open."""
        return self._wanted_ns / 1e9
