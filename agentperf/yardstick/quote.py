"""What a kept calibration says of a run that is planned."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from agentperf import __version__
from agentperf.slo.model import RATES, Slo
from agentperf.yardstick.calibration import Calibration, RateResult, load
from agentperf.yardstick.machine import Machine, cache_file, this_machine

USUAL_TPS = 50.0
"""The rate that is quoted where no SLO names one."""

State = Literal["within", "exceeded", "unknown", "stale", "never"]


class Quote(Struct, kw_only=True, frozen=True):
    """One sentence for the plan, and what to do about it where something is to be done."""

    state: State
    """within | exceeded | unknown (not at this rate) | stale (another machine or version) | never."""
    sentence: str
    remedy: str | None = None
    measured_at: str | None = None
    streams: int | None = None
    tps: float | None = None
    workers: int | None = None
    """Load processes that the quoted figure was measured with; a run with more of them drives more."""

    def facts(self) -> dict[str, Any]:
        """For the manifest of a run."""
        names = ("state", "measured_at", "streams", "tps", "workers", "sentence")
        return {name: getattr(self, name) for name in names}


def speed_target(slos: Sequence[Slo]) -> float | None:
    """The highest speed in tok/s that an SLO promises; None where none does."""
    return max((t.limit for slo in slos for t in slo.terms if t.metric in RATES), default=None)


def day(iso: str) -> str:
    """`2026-12-01T04:30:52Z` -> `1 Dec 2026`; the text itself where it is no date."""
    try:
        when = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{when.day} {when:%b} {when.year}"


def quote(
    calibration: Calibration | None,
    machine: Machine,
    version: str,
    *,
    level: int,
    workers: int,
    tps: float | None,
) -> Quote:
    """What the calibration says of `level` agents at `tps` (None: no SLO names a speed) with so many load processes.

    The figure is of the largest calibrated number of load processes that is not larger, and of the smallest calibrated
    rate that is not smaller.
    """
    if calibration is None:
        return Quote(
            state="never",
            sentence="this machine's client was never calibrated",
            remedy="agentperf calibrate measures how many streams it can drive (a few minutes)",
        )
    stale = _stale(calibration, machine, version)
    if stale is not None:
        return stale
    result, top = _pick(calibration.results, workers, USUAL_TPS if tps is None else tps)
    if result is None:
        what = f"up to {top:g} tok/s" if top else f"with {_processes(workers)}"
        known = f"only {what}" if top else f"not {what}"
        return Quote(
            state="unknown",
            sentence=f"this machine's client is calibrated {known}, the plan is for {tps or USUAL_TPS:g} tok/s",
            remedy=f"agentperf calibrate --rates {tps or USUAL_TPS:g} --workers {workers}",
            measured_at=calibration.measured_at,
        )
    return _compare(result, level, workers)


def quote_kept(slos: Sequence[Slo], level: int, workers: int) -> Quote:
    """`quote` by the calibration that is kept on this machine."""
    calibration = load(cache_file())
    return quote(calibration, this_machine(), __version__, level=level, workers=workers, tps=speed_target(slos))


def _stale(calibration: Calibration, machine: Machine, version: str) -> Quote | None:
    if calibration.machine != machine:
        what = f"is of another machine ({calibration.machine.line})"
    elif calibration.agentperf_version != version:
        what = f"is of agentperf {calibration.agentperf_version}, this is {version}"
    else:
        return None
    return Quote(
        state="stale",
        sentence=f"the client's calibration of {day(calibration.measured_at)} {what}",
        remedy="agentperf calibrate measures anew (a few minutes)",
        measured_at=calibration.measured_at,
    )


def _pick(results: Sequence[RateResult], workers: int, tps: float) -> tuple[RateResult | None, float | None]:
    """(the result to quote, the highest rate that is calibrated with that many load processes)."""
    fitting = [r for r in results if r.workers <= workers]
    most = max((r.workers for r in fitting), default=0)
    own = sorted((r for r in fitting if r.workers == most), key=lambda r: r.tps)
    return next((r for r in own if r.tps >= tps), None), own[-1].tps if own else None


def _compare(result: RateResult, level: int, workers: int) -> Quote:
    least = "at least " if result.at_least else ""
    measured = (
        f"this machine's client, measured {day(result.measured_at)}: {least}{result.streams:,} streams at"
        f" {result.tps:g} tok/s with {_processes(result.workers)}"
    )
    plan = f"the plan's largest level of {level:,} agents"
    common = {
        "measured_at": result.measured_at,
        "streams": result.streams,
        "tps": result.tps,
        "workers": result.workers,
    }
    if level <= result.streams:
        return Quote(state="within", sentence=f"{measured}; {plan} is within it", **common)  # type: ignore[arg-type]
    if result.workers < workers:
        remedy = f"agentperf calibrate --workers {workers} measures the {_processes(workers)} of this run"
    else:
        remedy = (
            "more --workers where cores are free, or another machine; a level that it cannot drive comes out invalid"
        )
    return Quote(
        state="exceeded",
        sentence=f"{measured}; {plan} {'may exceed' if result.at_least else 'exceeds'} it",
        remedy=remedy,
        **common,  # type: ignore[arg-type]
    )


def _processes(workers: int) -> str:
    return f"{workers} load process{'es' if workers != 1 else ''}"
