"""The verdict of a window: pass, fail or inconclusive for each term, and for the SLO. In words: docs/deciding.md.

A percentile term is decided as a statement about a share of requests (see `stats.shares`): `p25 speed >= 80` passes
when the share of requests slower than 80 is certainly at most 25 %. Failed requests have speed 0 and infinite times,
so they are beyond every limit. A window may be judged after every request: what was decided at any moment is wrong
with no more than the stated error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from agentperf.slo.model import RATES, Slo, Term, quantity
from agentperf.stats.quantile import quantile
from agentperf.stats.sequence import Counts, needed
from agentperf.stats.shares import ShareSequence, share_sequence

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

    `min_requests` and `min_plays` count what a term can use. `confidence` is that of the whole answer; `alpha` is the
    part of its error that this probe may use (None: all of it). A level either meets the SLO or not, so that it can be
    judged wrongly in one way only, and each way may use `alpha` in full. `agents` is the number of requests that may
    run at once (None: the number of plays).

    A term leans when its percentile is better or worse than the limit by `clear_speed` (a fraction of the limit, for
    rates) or by the factor `clear_latency` (for times). That only tells a search where to look next.
    """

    min_requests: int = 100
    min_plays: int = 5
    confidence: float = 0.95
    alpha: float | None = None
    agents: int | None = None
    clear_speed: float = 0.15
    clear_latency: float = 2.0
    decide: Literal["confidence", "point"] = "confidence"
    """point: the measured percentile against the limit, as public protocols have it, and without a confidence."""

    @property
    def error(self) -> float:
        """Chance at which this probe may be wrong."""
        return 1 - self.confidence if self.alpha is None else self.alpha


Lean = Literal["pass", "fail"]
Earlier = Mapping[str, Counts]
"""By term: what earlier probes of the level counted, in independent requests."""


class TermVerdict(Struct, frozen=True, kw_only=True):
    """One term. Values are in base units; None where nothing was measured.

    `value` is the percentile over all requests with the failed ones at their worst; when it falls among failed requests
    of a time metric it is infinite, which is `beyond_all` with `value` None. `value_ok` is the plain percentile of the
    successful ones. For `errors` both are the share of failed requests. `margin` is how far inside (positive) or
    outside the limit `value` lies, as a fraction of the limit (None at infinity, and for a limit of 0).

    `share` and `n_eff` (independent requests that tell as much as the `n`) are of this window. `pooled_share` and
    `pooled_n_eff` count earlier probes of the level too, and `share_low` and `share_high` bound their share at every
    moment. `design_time` and `design_play` are the two parts of n / n_eff.
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
    lean: Lean | None = None
    pooled_share: float | None = None
    pooled_n_eff: float = 0.0
    design_time: float = 1.0
    design_play: float = 1.0

    @property
    def counts(self) -> Counts:
        """The independent requests of this window, for a later probe of the level."""
        return Counts(0.0, 0.0) if self.share is None else Counts(min(1.0, self.share) * self.n_eff, self.n_eff)


class Verdict(Struct, frozen=True, kw_only=True):
    """The SLO on one window. `close` is true unless the percentiles that decided it were far from their limits.

    `confidence` is that of the whole answer (None where measured percentiles decide), `alpha` the error that this
    verdict may use of it. An inconclusive one may `lean`: a hint of where to look, without any confidence.
    `more_requests` and `more_minutes` are what would decide it if the shares stay what they are, None where no sensible
    number would.
    """

    slo: str
    status: Status
    close: bool
    reason: str
    terms: tuple[TermVerdict, ...]
    n: int
    plays: int
    confidence: float | None
    more_requests: int | None = None
    more_minutes: float | None = None
    lean: Lean | None = None
    alpha: float | None = None


def judge(
    slo: Slo,
    obs: Observations,
    rules: Rules = Rules(),
    earlier: Earlier | None = None,
    rate_per_s: float | None = None,
) -> Verdict:
    """The verdict of one window: fails when a term fails, passes when all pass, else inconclusive.

    All terms must be wrong for a wrong pass, so each may use the whole error (an intersection-union test: Berger,
    Technometrics 24, 1982); one is enough for a wrong fail, so that they share it. `rate_per_s` is the rate at which
    the level issues requests and gives `more_minutes`.
    """
    decided_by_share = [t for t in slo.terms if t.metric != "errors"]
    made = tuple(
        _judge_errors(t, obs, rules, earlier or {}, len(slo.terms), alone=not decided_by_share)
        if t.metric == "errors"
        else _judge(t, obs, rules, earlier or {}, len(slo.terms))
        for t in slo.terms
    )
    status: Status = "inconclusive"
    deciding = [t for t in made if t.status == "fail"]
    if deciding:
        status, close = "fail", not any(t.clear for t in deciding)
    elif all(t.status == "pass" for t in made):
        deciding = [min(made, key=lambda t: float("inf") if t.margin is None else t.margin)]
        status, close = "pass", not all(t.clear for t in made)
    else:
        deciding, close = [t for t in made if t.status == "inconclusive"], True
    if rules.decide == "point":
        close = status == "inconclusive"
    more = _most([t.more_requests for t in deciding]) if status == "inconclusive" else None
    minutes = more / rate_per_s / 60 if more is not None and rate_per_s else None
    reason = "; ".join(t.reason for t in deciding)
    return Verdict(
        slo=slo.name,
        status=status,
        close=close,
        reason=reason + _cost(more, minutes),
        terms=made,
        n=len(obs),
        plays=int(np.unique(obs.play).size),
        confidence=rules.confidence if rules.decide == "confidence" else None,
        more_requests=more,
        more_minutes=minutes,
        lean=_lean(made) if status == "inconclusive" else None,
        alpha=rules.error,
    )


def _most(needs: list[int | None]) -> int | None:
    known = [n for n in needs if n is not None]
    return max(known) if known and len(known) == len(needs) else None


def _cost(more: int | None, minutes: float | None) -> str:
    """What would decide, in words; nothing where that is not known."""
    if more is None:
        return ""
    return f"; about {more:,} more requests would decide" + (f" ({minutes:.1f} min)" if minutes is not None else "")


def _lean(terms: tuple[TermVerdict, ...]) -> Lean | None:
    """Where the undecided terms point: to a fail when one does, to a pass when all do."""
    leans = [t.lean if t.status == "inconclusive" else t.status for t in terms]
    if "fail" in leans:
        return "fail"
    return "pass" if all(lean == "pass" for lean in leans) else None


def invalidate(verdict: Verdict, reason: str) -> Verdict:
    """The same figures as a verdict that must not be trusted: `reason` names the cause (client_limited: ...)."""
    return structs.replace(verdict, status="invalid", reason=reason, more_requests=None)


def undecided(verdict: Verdict, reason: str) -> Verdict:
    """The same figures as one that decides nothing; what is invalid stays so."""
    if verdict.status == "invalid":
        return verdict
    return structs.replace(verdict, status="inconclusive", close=True, lean=None, reason=f"{reason}; {verdict.reason}")


class _Data(NamedTuple):
    """What a term can use of a window, and what is known of the share of it that is beyond the limit."""

    values: Floats
    failed: Bools
    known: ShareSequence
    plays: int
    excluded: int


def _judge(term: Term, obs: Observations, rules: Rules, earlier: Earlier, terms: int) -> TermVerdict:
    scope = obs.of_turns(term.min_turn, term.max_turn)
    values = obs.values(term)
    keep = scope & ~np.isnan(values)
    used = values[keep]
    beyond = used < term.limit if term.op == ">=" else used > term.limit
    known = _known(term, beyond, obs.play[keep], obs.start_s[keep], rules, earlier, terms)
    data = _Data(used, obs.failed[keep], known, int(np.unique(obs.play[keep]).size), int(scope.sum() - keep.sum()))
    value = quantile(used, term.percent / 100)
    far = _far(term, value, rules)
    status, why = _decide(term, data, value, rules)
    return _term_verdict(
        term,
        data,
        status,
        value=float(value) if np.isfinite(value) else None,
        value_ok=_finite(quantile(used[~data.failed], term.percent / 100)),
        beyond_all=bool(np.isinf(value)),
        margin=_finite(_margin(term, value)),
        far=far,
        reason=f"{term.subject} = {_figure(term, value)}, {why}",
        more=_more(data, rules) if status == "inconclusive" else None,
    )


def _known(
    term: Term, beyond: Bools, play: Ints, start_s: Floats, rules: Rules, earlier: Earlier, terms: int
) -> ShareSequence:
    return share_sequence(
        beyond,
        play,
        start_s,
        allowed=term.allowed_share,
        alpha_below=rules.error,
        alpha_above=rules.error / terms,
        agents=rules.agents,
        before=earlier.get(str(term)),
    )


def _term_verdict(
    term: Term,
    data: _Data,
    status: Status,
    *,
    value: float | None,
    value_ok: float | None,
    beyond_all: bool,
    margin: float | None,
    far: Lean | None,
    reason: str,
    more: int | None,
) -> TermVerdict:
    known = data.known
    return TermVerdict(
        term=str(term),
        status=status,
        value=value,
        value_ok=value_ok,
        beyond_all=beyond_all,
        margin=margin,
        share=_finite(known.share),
        share_low=known.low,
        share_high=known.high,
        allowed_share=term.allowed_share,
        n=known.n,
        n_excluded=data.excluded,
        n_eff=known.own.n,
        plays=data.plays,
        clear=far == status,
        reason=reason,
        more_requests=more,
        lean=_leaning(far, known) if status == "inconclusive" else None,
        pooled_share=_finite(known.counts.share),
        pooled_n_eff=known.counts.n,
        design_time=known.design.time,
        design_play=known.design.play,
    )


def _far(term: Term, value: float, rules: Rules) -> Lean | None:
    """On which side of the limit the percentile lies, if it is far from it."""
    if np.isnan(value):
        return None
    if term.metric in RATES:
        better, worse = value >= term.limit * (1 + rules.clear_speed), value <= term.limit * (1 - rules.clear_speed)
    else:
        better, worse = value <= term.limit / rules.clear_latency, value >= term.limit * rules.clear_latency
    return "pass" if better else "fail" if worse else None


def _leaning(far: Lean | None, known: ShareSequence) -> Lean | None:
    """The side of the percentile, unless the evidence about the share speaks for the other one."""
    if far is None or known.counts.n <= 0:
        return None
    inside = known.counts.share <= known.allowed
    return far if inside == (far == "pass") else None


def _too_little(n: int, plays: int, excluded: int, rules: Rules) -> str | None:
    """Why nothing may be decided yet."""
    if n < rules.min_requests:
        left_out = f" ({excluded} not measurable)" if excluded else ""
        return f"from {n} of at least {rules.min_requests} requests{left_out}"
    if plays < rules.min_plays:
        return f"from {plays} of at least {rules.min_plays} plays"
    return None


def _decide(term: Term, data: _Data, value: float, rules: Rules) -> tuple[Status, str]:
    """Status and the words for it."""
    known = data.known
    if (why := _too_little(known.n, data.plays, data.excluded, rules)) is not None:
        return "inconclusive", why
    if rules.decide == "point":
        met = value >= term.limit if term.op == ">=" else value <= term.limit
        return ("pass" if met else "fail"), f"limit {quantity(term.metric, term.limit)}"
    side = "slower" if term.metric in RATES else "later"
    span = f"{_per_cent(known.counts.share)} [{_per_cent(known.low)}, {_per_cent(known.high)}]"
    words = f"{span} {side} than {quantity(term.metric, term.limit)}, {_per_cent(known.allowed)} allowed"
    return ("pass" if known.is_below else "fail" if known.is_above else "inconclusive"), words


def _judge_errors(
    term: Term, obs: Observations, rules: Rules, earlier: Earlier, terms: int, *, alone: bool
) -> TermVerdict:
    """Failed requests: a fail is certain, a pass is as counted, with the bounds of the share beside.

    To be certain that at most 1 % fail takes hundreds of requests without one failure. A failed request is beyond every
    other limit too, so that the strictest of those bounds the share of failures with confidence, and the count decides
    below that. An SLO without any other term has no such bound: there a pass is certain too.
    """
    known = _known(term, obs.failed, obs.play, obs.start_s, rules, earlier, terms)
    n, plays = len(obs), int(np.unique(obs.play).size)
    failures, share = int(np.count_nonzero(obs.failed)), known.counts.share
    data = _Data(np.empty(0), obs.failed, known, plays, 0)
    certain_no = known.is_above if term.limit > 0 else failures > 0
    certain_yes = known.is_below or (term.limit <= 0 and failures == 0)
    status: Status = "inconclusive"
    if (short := _too_little(n, plays, 0, rules)) is not None:
        why = f"errors: {short}"
    elif rules.decide == "point":
        status = "pass" if known.share <= term.limit else "fail"
        why = f"errors = {_per_cent(known.share)} ({failures} of {n}), limit {quantity('errors', term.limit)}"
    else:
        status = "fail" if certain_no else "pass" if certain_yes or (share <= term.limit and not alone) else status
        span = f"({failures} of {n}) [{_per_cent(known.low)}, {_per_cent(known.high)}]"
        why = f"errors = {_per_cent(known.share)} {span}, limit {quantity('errors', term.limit)}"
    no_doubt: Lean | None = "fail" if certain_no else "pass" if failures == 0 and n else None
    return _term_verdict(
        term,
        data,
        status,
        value=_finite(known.share),
        value_ok=_finite(known.share),
        beyond_all=False,
        margin=_finite(1 - known.share / term.limit) if term.limit else None,
        far=no_doubt,
        reason=why,
        more=_more(data, rules) if status == "inconclusive" else None,
    )


def _more(data: _Data, rules: Rules) -> int | None:
    """How many more requests would decide, if the share stays what it is; None when no sensible number would."""
    known = data.known
    missing = _missing(known.n, data.plays, rules)
    if known.n == 0:
        return missing
    if known.is_below or known.is_above:
        return max(missing, 1)
    if known.counts.share < known.allowed:
        wanted = needed(known.counts, known.allowed, "below", known.bar_below)
    else:
        wanted = needed(known.counts, known.allowed, "above", known.bar_above)
    wanted -= known.counts.n
    requests = wanted * known.design.total
    return None if requests > _MANY else max(missing, int(np.ceil(requests)), 1)


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
