"""The verdict of a window: pass, fail or inconclusive for each term, and for the SLO. In words: docs/deciding.md.

A percentile term is decided as a statement about a share of requests (see `stats.shares`): `p25 speed >= 80` passes
when the share of requests slower than 80 is certainly at most 25 %. Failed requests have speed 0 and infinite times,
so they are beyond every limit.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from agentperf.slo.model import RATES, Slo, Term, quantity
from agentperf.stats.quantile import quantile
from agentperf.stats.shares import ShareInterval, needed_size, share_interval, wilson

Status = Literal["pass", "fail", "inconclusive", "invalid"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MANY: Final = 1_000_000
"""Above this, "how many more requests" is no longer an answer."""


@dataclass(frozen=True, slots=True)
class Observations:
    """The requests of a window, one element each, all arrays of equal length.

    Rates in tok/s (a failed request: 0), times in s (a failed request: inf); nan where a request has no such measure,
    as the speed of a reply of one event. `turn` counts from 1 in a session, `play` is any integer that tells plays
    apart, `start_s` the time a request was issued, from any zero. Raises ValueError when lengths differ.
    """

    speed: Floats
    ttft: Floats
    ttfo: Floats
    itl: Floats
    e2e_speed: Floats
    turn: Ints
    play: Ints
    failed: Bools
    start_s: Floats

    def __post_init__(self) -> None:
        if len({len(getattr(self, name)) for name in self.__slots__}) > 1:
            raise ValueError("all arrays of the observations must have one length")

    def __len__(self) -> int:
        return len(self.failed)

    def values(self, term: Term) -> Floats:
        """The measure of a percentile term."""
        measures = {
            "speed": self.speed,
            "ttft": self.ttft,
            "ttfo": self.ttfo,
            "itl": self.itl,
            "e2e_speed": self.e2e_speed,
        }
        return measures[term.metric]

    def of_turns(self, low: int | None, high: int | None) -> Bools:
        """Which requests are in the turns [low, high]."""
        keep = np.ones(len(self), dtype=np.bool_)
        if low is not None:
            keep &= self.turn >= low
        if high is not None:
            keep &= self.turn <= high
        return keep


@dataclass(frozen=True, slots=True)
class Rules:
    """When a term may be decided.

    `min_requests` and `min_plays` count what a term can use. `looks` is the number of times a window is judged: the
    error 1 - confidence is split evenly over them (Bonferroni). A term is clear when its percentile is better or worse
    than the limit by `clear_speed` (a fraction of the limit, for rates) or by the factor `clear_latency` (for times).
    """

    min_requests: int = 100
    min_plays: int = 5
    confidence: float = 0.95
    looks: int = 1
    clear_speed: float = 0.15
    clear_latency: float = 2.0

    @property
    def confidence_per_look(self) -> float:
        """Two-sided confidence at which one look decides."""
        return 1 - (1 - self.confidence) / max(1, self.looks)


class TermVerdict(Struct, frozen=True, kw_only=True):
    """One term. Values are in base units; None where nothing was measured.

    `value` is the percentile over all requests with the failed ones at their worst; when it falls among failed requests
    of a time metric it is infinite, which is `beyond_all` with `value` None. `value_ok` is the plain percentile of the
    successful ones. For `errors` both are the share of failed requests. `margin` is how far inside (positive) or
    outside the limit `value` lies, as a fraction of the limit (None at infinity, and for a limit of 0).
    """

    term: str
    status: Status
    value: float | None
    value_ok: float | None
    beyond_all: bool
    margin: float | None
    share: float | None
    share_low: float
    share_high: float
    allowed_share: float
    n: int
    n_excluded: int
    n_eff: float
    plays: int
    clear: bool
    reason: str
    more_requests: int | None = None


class Verdict(Struct, frozen=True, kw_only=True):
    """The SLO on one window. `close` is true unless the terms that decided it were clear of their limits."""

    slo: str
    status: Status
    close: bool
    reason: str
    terms: tuple[TermVerdict, ...]
    n: int
    plays: int
    confidence: float
    more_requests: int | None = None


def judge(slo: Slo, obs: Observations, rules: Rules = Rules()) -> Verdict:
    """The verdict of one window: fails when a term fails, passes when all pass, else inconclusive."""
    terms = tuple(_judge_errors(t, obs, rules) if t.metric == "errors" else _judge(t, obs, rules) for t in slo.terms)
    status: Status = "inconclusive"
    deciding = [t for t in terms if t.status == "fail"]
    if deciding:
        status, close = "fail", not any(t.clear for t in deciding)
    elif all(t.status == "pass" for t in terms):
        deciding = [min(terms, key=lambda t: float("inf") if t.margin is None else t.margin)]
        status, close = "pass", not all(t.clear for t in terms)
    else:
        deciding, close = [t for t in terms if t.status == "inconclusive"], True
    more = [t.more_requests for t in deciding] if status == "inconclusive" else [None]
    return Verdict(
        slo=slo.name,
        status=status,
        close=close,
        reason="; ".join(t.reason for t in deciding),
        terms=terms,
        n=len(obs),
        plays=int(np.unique(obs.play).size),
        confidence=rules.confidence,
        more_requests=None if None in more else max(m for m in more if m is not None),
    )


def invalidate(verdict: Verdict, reason: str) -> Verdict:
    """The same figures as a verdict that must not be trusted: `reason` names the cause (client_limited: ...)."""
    return structs.replace(verdict, status="invalid", reason=reason, more_requests=None)


class _Data(NamedTuple):
    """What a term can use of a window, and the share of it that is beyond the limit."""

    values: Floats
    failed: Bools
    interval: ShareInterval
    plays: int
    excluded: int


def _judge(term: Term, obs: Observations, rules: Rules) -> TermVerdict:
    data = _data(term, obs, rules)
    value = quantile(data.values, term.percent / 100)
    clear = _clear(term, value, data.interval, rules)
    status, why = _decide(term, data, clear, rules)
    shown = f"{term.subject} = {_figure(term, value)}"
    return TermVerdict(
        term=str(term),
        status=status,
        value=float(value) if np.isfinite(value) else None,
        value_ok=_finite(quantile(data.values[~data.failed], term.percent / 100)),
        beyond_all=bool(np.isinf(value)),
        margin=_finite(_margin(term, value)),
        share=_finite(data.interval.share),
        share_low=data.interval.low,
        share_high=data.interval.high,
        allowed_share=term.allowed_share,
        n=data.interval.n,
        n_excluded=data.excluded,
        n_eff=data.interval.n_eff,
        plays=data.plays,
        clear=clear and status != "inconclusive",
        reason=f"{shown}, {why}",
        more_requests=_more(term.allowed_share, data, rules) if status == "inconclusive" else None,
    )


def _data(term: Term, obs: Observations, rules: Rules) -> _Data:
    scope = obs.of_turns(term.min_turn, term.max_turn)
    values = obs.values(term)
    keep = scope & ~np.isnan(values)
    used = values[keep]
    beyond = used < term.limit if term.op == ">=" else used > term.limit
    interval = share_interval(beyond, obs.play[keep], obs.start_s[keep], rules.confidence_per_look)
    plays = int(np.unique(obs.play[keep]).size)
    return _Data(used, obs.failed[keep], interval, plays, int(scope.sum() - keep.sum()))


def _clear(term: Term, value: float, interval: ShareInterval, rules: Rules) -> bool:
    """Whether the percentile is far from the limit, and the share of requests a standard error away on the same side.

    The second guards against few requests: two failures in 30 put a p95 at infinity, and mean little. Where not one
    request is beyond the limit and the percentile is far inside, there is nothing to guard against.
    """
    if interval.n == 0:
        return False
    if term.metric in RATES:
        better, worse = term.limit * (1 + rules.clear_speed), term.limit * (1 - rules.clear_speed)
        far_inside, far_outside = value >= better, value <= worse
    else:
        better, worse = term.limit / rules.clear_latency, term.limit * rules.clear_latency
        far_inside, far_outside = value <= better, value >= worse
    low, high = wilson(interval.share, interval.n_eff, 1.0)
    allowed = term.allowed_share
    untouched = interval.share == 0.0
    return bool((far_inside and (untouched or high <= allowed)) or (far_outside and low > allowed))


def _decide(term: Term, data: _Data, clear: bool, rules: Rules) -> tuple[Status, str]:
    """Status and the words for it."""
    limit, interval, allowed = quantity(term.metric, term.limit), data.interval, term.allowed_share
    side = "slower" if term.metric in RATES else "later"
    if interval.n < rules.min_requests:
        left_out = f" ({data.excluded} not measurable)" if data.excluded else ""
        return "inconclusive", f"from {interval.n} of at least {rules.min_requests} requests{left_out}"
    if data.plays < rules.min_plays:
        return "inconclusive", f"from {data.plays} of at least {rules.min_plays} plays"
    if clear:
        inside = interval.share <= allowed
        return ("pass", f"clear of {limit}") if inside else ("fail", f"far from {limit}")
    span = f"{_per_cent(interval.share)} [{_per_cent(interval.low)}, {_per_cent(interval.high)}] {side} than {limit}"
    if interval.high <= allowed:
        return "pass", f"{span}, {_per_cent(allowed)} allowed"
    if interval.low > allowed:
        return "fail", f"{span}, {_per_cent(allowed)} allowed"
    return "inconclusive", f"{span}, {_per_cent(allowed)} allowed"


def _judge_errors(term: Term, obs: Observations, rules: Rules) -> TermVerdict:
    """Errors are counted, not estimated: more of them than the limit fail the window as observed."""
    interval = share_interval(obs.failed, obs.play, obs.start_s, rules.confidence_per_look)
    n, plays = len(obs), int(np.unique(obs.play).size)
    share = interval.share
    status: Status = "pass" if share <= term.limit else "fail"
    why = f"errors = {_per_cent(share)} ({int(obs.failed.sum())} of {n}), limit {quantity('errors', term.limit)}"
    more = None
    if n < rules.min_requests or plays < rules.min_plays:
        status = "inconclusive"
        why = f"errors: from {n} of at least {rules.min_requests} requests, {plays} of at least {rules.min_plays} plays"
        more = _missing(n, plays, rules)
    no_doubt = share == 0.0 if status == "pass" else interval.low > term.limit
    return TermVerdict(
        term=str(term),
        status=status,
        value=_finite(share),
        value_ok=_finite(share),
        beyond_all=False,
        margin=_finite(1 - share / term.limit) if term.limit else None,
        share=_finite(share),
        share_low=interval.low,
        share_high=interval.high,
        allowed_share=term.limit,
        n=n,
        n_excluded=0,
        n_eff=interval.n_eff,
        plays=plays,
        clear=bool(no_doubt) and status != "inconclusive",
        reason=why,
        more_requests=more,
    )


def _more(allowed: float, data: _Data, rules: Rules) -> int | None:
    """How many more requests would decide, if the share stays what it is; None when no sensible number would."""
    missing = _missing(data.interval.n, data.plays, rules)
    if data.interval.n == 0:
        return missing
    needed = needed_size(data.interval.share, allowed, rules.confidence_per_look) * data.interval.design_effect
    if needed - data.interval.n > _MANY:
        return None
    return max(missing, int(np.ceil(needed)) - data.interval.n, 1)


def _missing(n: int, plays: int, rules: Rules) -> int:
    """Requests short of the minimum; a missing play counts as many requests as the plays so far have had."""
    per_play = n / plays if plays else 1.0
    return max(0, rules.min_requests - n, int(np.ceil((rules.min_plays - plays) * per_play)))


def _margin(term: Term, value: float) -> float:
    change = value / term.limit - 1
    return change if term.metric in RATES else -change


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _per_cent(share: float) -> str:
    return f"{share * 100:.3g} %"


def _figure(term: Term, value: float) -> str:
    """A measured percentile, rounded for reading."""
    if np.isnan(value):
        return "not measured"
    if np.isinf(value):
        return "never (failed requests)"
    if term.metric in RATES:
        return f"{value:.1f} tok/s"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"
