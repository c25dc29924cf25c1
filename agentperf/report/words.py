"""What the summary says, in words and figures that table, Markdown and plot titles share. A dash is not measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentperf.errors import SloError
from agentperf.slo.expression import parse
from agentperf.slo.model import Term

Json = Mapping[str, Any]

DASH: Final = "–"
MARKS: Final = {"pass": "✓", "fail": "✗", "inconclusive": "?", "invalid": "!"}
SIMULATED: Final = "simulated"
VIRTUAL: Final = "virtual"
ESTIMATED: Final = "~"
SUSPECT: Final = "≈"


def number(value: float | None, digits: int = 1) -> str:
    """`2,452.4`."""
    return DASH if value is None else f"{value:,.{digits}f}"


def rate(value: float | None) -> str:
    """Tokens per second of a whole system: two decimals below 10, one below 1,000, none above."""
    return number(value, 0 if value is not None and value >= 1000 else 1 if value is not None and value >= 10 else 2)


def duration(value: float | None) -> str:
    """`640 ms`, `1.25 s`, `83 s`."""
    if value is None:
        return DASH
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 99.995 else f"{value:,.0f} s"


def share(value: float | None) -> str:
    """`78.5 %`."""
    return DASH if value is None else f"{value * 100:.1f} %"


def count(value: int | None) -> str:
    """`1,234`."""
    return DASH if value is None else f"{value:,}"


def agents(value: int | None) -> str:
    """`1 agent`, `16 agents`."""
    return f"{count(value)} agent{'' if value == 1 else 's'}"


def doubt(row: Json, of: str) -> str:
    """The mark before a figure that is to be taken with care, of its "tokens" or "stamps"; empty where it is not."""
    facts = row.get("streams") or {}
    if of == "tokens":
        return ESTIMATED if facts.get("estimated") else ""
    return SUSPECT if facts.get("suspect") else ""


def marked(mark: str, text: str) -> str:
    """A figure behind its marks; what was not measured needs none."""
    return f"{mark}{text}" if mark and any(c.isdigit() for c in text) else text


_ODDITIES: Final = (
    ("suspect", "bursts"),
    ("without_speed", "at once"),
    ("estimated", "estimated"),
    ("hidden_reasoning", "hidden reasoning"),
    ("stalled", "stalls"),
    ("in_band_errors", "errors inside"),
)


def stream_word(row: Json) -> str:
    """A level's streams in a word or two: `ok`, or what is odd about them."""
    facts = row.get("streams")
    if not facts:
        return DASH
    return ", ".join(word for key, word in _ODDITIES if facts.get(key)) or "ok"


def stream_style(row: Json) -> str:
    """Its colour on the screen."""
    facts = row.get("streams") or {}
    return "red" if facts.get("suspect") else "green" if stream_word(row) == "ok" else "yellow" if facts else ""


def terms_of(slo: Json) -> tuple[Term, ...]:
    """The terms of an SLO of the manifest; none when a later version wrote what this one cannot read."""
    try:
        return parse(str(slo.get("canonical") or slo.get("expression") or slo["name"])).terms
    except (SloError, KeyError):
        return ()


def limit_of(slo: Json, metric: str, stat: str) -> float | None:
    """The limit on one percentile over all turns, if the SLO has one."""
    for term in terms_of(slo):
        if term.metric == metric and term.stat == stat and term.min_turn is None and term.max_turn is None:
            return term.limit
    return None


def label_of(summary: Json) -> str:
    """The label of a run against a model of a server: behind HTTP, or in virtual time; empty for a real endpoint."""
    if summary.get("virtual"):
        return VIRTUAL
    return SIMULATED if summary["simulated"] else ""


@dataclass(frozen=True, slots=True)
class Sentence:
    """The answer for one SLO. `status` is one of the verdicts and gives mark and colour."""

    status: str
    headline: str
    remark: str
    """Why the headline is to be taken with care, or empty."""
    label: str
    """What no real endpoint gave is marked with it: simulated, virtual, or empty."""
    bracket: str
    slo: str
    """The SLO, spelled out."""
    evidence: tuple[str, ...]

    @property
    def mark(self) -> str:
        """One sign."""
        return MARKS[self.status]

    @property
    def text(self) -> str:
        """The whole sentence."""
        label = f" ({self.label})" if self.label else ""
        return self.headline + label + (f": {self.remark}" if self.remark else "")


def slo_named(summary: Json, name: str) -> Json:
    """The SLO's entry of the manifest, or one made of its name."""
    found: Json = next((s for s in summary["slos"] if s["name"] == name), {"name": name, "canonical": name})
    return found


def spelled_out(slo: Json) -> str:
    """`80tps = p25 speed >= 80 tok/s, ...`; an SLO that was given spelled out is not said twice."""
    name, canonical = str(slo["name"]), str(slo.get("canonical") or slo["name"])
    return canonical if any(c in name for c in "<>≤≥") or name == canonical else f"{name} = {canonical}"


def short_name(slo: Json) -> str:
    """Its name, or its first term where it was spelled out."""
    name = str(slo["name"])
    return name.split(",", maxsplit=1)[0].strip() + (" …" if "," in name else "")


def answer_sentence(answer: Json, summary: Json) -> Sentence:
    """Mark, sentence, bracket and evidence of one answer."""
    slo = slo_named(summary, answer["slo"])
    status, headline, remark = _said(answer, short_name(slo))
    return Sentence(status, headline, remark, label_of(summary), bracket(answer), spelled_out(slo), evidence(answer))


def bracket(answer: Json) -> str:
    """`passes at 16, fails at 20`."""
    low, high = answer["largest_pass"], answer["smallest_fail"]
    passes = f"passes at {low}" if low is not None else "no level passed"
    fails = f"fails at {high}" if high is not None else "no level failed"
    return f"{passes}, {fails}"


_LIMITED: Final = ("client_limited", "rate_limited", "unmeasurable")


def _said(answer: Json, slo: str) -> tuple[str, str, str]:
    """Status, headline, remark. Without doubt is only a closed bracket, or a list of levels measured to its end."""
    low, high, reason = answer["largest_pass"], answer["smallest_fail"], answer["reason"]
    doubt = "invalid" if reason in _LIMITED else "inconclusive"
    why = reason_words(reason)
    if low is None and high is None:
        return doubt, f"no answer for {slo}", f"no level was decided, {why}"
    if low is None:
        if high == 1:
            return "fail", f"not even 1 agent at {slo}", ""
        status = "fail" if reason in ("none_pass", "swept") else doubt
        return status, f"fewer than {agents(high)} at {slo}", "no level below passed, " + why
    if high is None:
        status = "pass" if reason in ("all_pass", "swept") else doubt
        return status, f"at least {agents(low)} at {slo}", why
    if reason in ("found", "narrowed", "swept"):
        return "pass", f"{agents(low)} at {slo}", ""
    return doubt, f"{agents(low)} at {slo}", f"not settled, {why}"


def reason_words(reason: str | None) -> str:
    """Why a search ended."""
    words = {
        "found": "the bracket is closed",
        "narrowed": "what lies between is too near the limit to be told in the time allowed",
        "all_pass": "every level passed, the limit lies higher",
        "none_pass": "no level passed",
        "not_monotone": "a higher level passed where a lower one failed",
        "client_limited": "this machine, not the endpoint, was the limit above",
        "rate_limited": "a rate limiter, not the speed of the endpoint, was the limit above",
        "unmeasurable": "the streams above cannot be judged, see the verdicts",
        "inconclusive": "levels stayed inconclusive",
        "budget": "the search was ended before its bracket closed",
        "swept": "all levels of the list were measured",
        "interrupted": "the run was interrupted or goes on",
        "failed": "the run failed",
    }
    return words.get(str(reason), str(reason))


def evidence(answer: Json) -> tuple[str, ...]:
    """What stands behind each end of the bracket."""
    parts = []
    for word, key in (("pass", "pass_end"), ("fail", "fail_end")):
        end = answer.get(key)
        if not end:
            continue
        probes = f"{end['probes']} probe{'' if end['probes'] == 1 else 's'}"
        split = "" if end["passed"] in (0, end["probes"]) else f" ({end['passed']} passed)"
        sure = "" if end.get("confidence") is None else f", {end['confidence'] * 100:.3g} % confidence"
        close = ", close to the limit" if end.get("close") else ""
        counts = ", token counts estimated" if end.get("estimated") else ""
        bursts = ", streams in bursts" if end.get("suspect") else ""
        sizes = f"{count(end['requests'])} requests, {count(end['plays'])} plays"
        parts.append(f"{word} at {end['level']}: {probes}{split}, {sizes}{sure}{close}{counts}{bursts}")
    return tuple(parts)


def source_line(summary: Json) -> str:
    """Endpoint, model and trace set, with the simulated label."""
    endpoint = summary["endpoint"]
    if endpoint and label_of(summary):
        endpoint = f"{endpoint} ({label_of(summary)})"
    traces = f"trace set {summary['trace_set']}" if summary["trace_set"] else None
    return " · ".join(str(part) for part in (endpoint, summary["model"], traces) if part)
