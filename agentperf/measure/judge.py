"""From the requests of a window to the verdict of each SLO: the client's own health first, then the streams'.

A level is suspect when 5 % of the replies that can tell came out of a buffer. Its verdict then is what both the best
and the worst that the server can have done agree on, and invalid where they do not.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from agentperf.measure.health import Health
from agentperf.measure.population import Population, population_of
from agentperf.measure.record import Record
from agentperf.slo.model import Slo
from agentperf.slo.verdict import Earlier, Observations, Rules, Verdict, invalidate, judge
from agentperf.wire import failures

RATE_LIMITED = failures.RATE_LIMITED
LIMITED_SHARE = 0.01
"""From this share of 429 answers on, what a level fails by is the key's limit, not the server's."""
BUFFERED = "buffered"
NO_SPEED = "no_speed"
MAJORITY = 0.5
"""Above this share of replies without a speed, the others do not stand for them."""
UNBUFFER = "turn buffering off (nginx: proxy_buffering off, or the header X-Accel-Buffering: no), or measure behind it"

_OF_SPEED = ("speed", "itl")
_OF_STAMPS = ("speed", "itl", "ttft", "ttfo")
"""Metrics that rest on stamps inside a stream; end-to-end speed and errors do not."""


def observe(records: Sequence[Record]) -> Observations:
    """The population of a window as arrays: failures at speed 0 and infinitely late, what was not measurable as nan."""
    return Population(records).observations()


def ttft_limit(slos: Sequence[Slo]) -> float | None:
    """The strictest TTFT ceiling in s, against which the client's own lateness is held."""
    return min((t.limit for s in slos for t in s.terms if t.metric == "ttft"), default=None)


def verdicts(
    slos: Sequence[Slo],
    records: Sequence[Record] | Population,
    rules: Rules,
    health: Health | None,
    earlier: Mapping[str, Earlier] | None = None,
    rate_per_s: float | None = None,
) -> dict[str, Verdict]:
    """One verdict an SLO. A late client voids them all; a rate limiter, or a buffer, voids what it may have caused.

    `earlier` are the counts of earlier probes of the level by SLO, `rate_per_s` the rate of its requests (see `judge`).

    `health` is None while the window is open: what further requests may still settle is then inconclusive.
    """
    population = population_of(records)
    seen = population.observations()
    views = (population.observations("best"), population.observations("worst")) if population.suspect else None
    result: dict[str, Verdict] = {}
    for slo in slos:
        before = (earlier or {}).get(slo.name)
        verdict = judge(slo, seen, rules, before, rate_per_s)
        if views is not None:
            verdict = _between(slo, verdict, views, rules, population, before, final=health is not None)
        if health is not None and health.status == "invalid":
            verdict = invalidate(verdict, f"{health.cause}: {'; '.join(health.reasons)}; {health.remedy}")
        elif verdict.status != "pass" and _limited(population):
            reason = f"{population.rate_limited} of {population.records} requests were refused with 429"
            verdict = invalidate(verdict, f"{RATE_LIMITED}: {reason}; lift the limit of this key")
        else:
            verdict = _with_speeds(slo, verdict, population)
        result[slo.name] = verdict
    return result


def _limited(population: Population) -> bool:
    return population.rate_limited > 0 and population.rate_limited >= LIMITED_SHARE * population.records


def _rests_on(slo: Slo, metrics: Sequence[str]) -> bool:
    return any(term.metric in metrics for term in slo.terms)


def _fails_by_others(slo: Slo, verdict: Verdict, metrics: Sequence[str]) -> bool:
    """Whether a term of another kind fails by itself."""
    pairs = zip(slo.terms, verdict.terms, strict=True)
    return any(found.status == "fail" and term.metric not in metrics for term, found in pairs)


def _between(
    slo: Slo,
    verdict: Verdict,
    views: tuple[Observations, Observations],
    rules: Rules,
    population: Population,
    earlier: Earlier | None,
    *,
    final: bool,
) -> Verdict:
    """The verdict of a suspect level: what its best and its worst case agree on."""
    if not _rests_on(slo, _OF_STAMPS):
        return verdict
    best, worst = (judge(slo, view, rules, earlier) for view in views)
    if best.status == worst.status:
        kept = worst if worst.status == "pass" else best
        case = {"pass": "also at the slowest", "fail": "also at the fastest"}.get(kept.status, "as at the slowest")
        return structs.replace(kept, reason=f"{kept.reason} ({case} that the bursts allow)")
    if not final and "inconclusive" in (best.status, worst.status):
        return structs.replace(verdict, status="inconclusive", close=True)
    share = f"{population.buffered} of {population.tellable} replies came in bursts"
    at_best, at_worst = (f"{case} {v.status}" for case, v in (("best", best), ("worst", worst)))
    return invalidate(
        verdict, f"{BUFFERED}: {share}, and what the server did is unknown ({at_best}, {at_worst}); {UNBUFFER}"
    )


def _with_speeds(slo: Slo, verdict: Verdict, population: Population) -> Verdict:
    """Void what would be judged from a minority: most replies came at one moment and have no speed."""
    if verdict.status == "invalid" or not _rests_on(slo, _OF_SPEED) or population.at_once == 0:
        return verdict
    if population.at_once <= MAJORITY * population.succeeded or _fails_by_others(slo, verdict, _OF_SPEED):
        return verdict
    share = f"{population.at_once} of {population.succeeded} replies came at one moment and have no speed"
    return invalidate(
        verdict, f"{NO_SPEED}: {share}; have the server stream its replies, or ask for ttft and e2e_speed"
    )
