"""Reads an SLO from text: `80tps`, or `p25 speed >= 80, p95 ttft@turn>=2 <= 2s, errors <= 1 %`.

    slo    = item { "," item }
    item   = rate                                     shorthand: 80tps
           | "errors" op number "%"
           | pXX metric [ "@turn" op n ] op number unit
    op     = ">=" | "<="
    unit   = "tok/s" | "tps"   (may be left out for rates)
           | "s" | "ms"        (never left out: 40 would be 40 s or 40 ms)

Spaces and case do not matter. What cannot be read raises SloError with a caret under the fault.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Final, NoReturn

from agentperf.errors import SloError
from agentperf.slo.model import METRICS, RATES, Metric, Op, Slo, Term, number

AA_CEILINGS: Final = ((180.0, 3.0, 3), (60.0, 5.0, 2), (20.0, 10.0, 1))
"""(floor in tok/s, p95 TTFT ceiling in s, number) of AA-AgentPerf's published tiers of DeepSeek V4 Pro, fastest first.

The same figures with their source are in slo_tiers/deepseek-v4-pro.toml; a test compares the two.
"""
DEFAULT_ERRORS: Final = 0.01

_MAX_LIMIT: Final = 1e9
_MIN_LIMIT: Final = 1e-9
_SNIPPET: Final = 96

_FLAGS: Final = re.ASCII | re.IGNORECASE
_NUMBER: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?![0-9.])", _FLAGS)
_WORD: Final = re.compile(r"[a-z_][a-z0-9_.]*(?:-[a-z0-9_]+)*", _FLAGS)
_PERCENTILE: Final = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,6})?)", _FLAGS)
_RATE_UNIT: Final = re.compile(r"(?:tok/s|tokens?/s|t/s|tps)(?![a-z0-9_])", _FLAGS)
_TIME_UNIT: Final = re.compile(r"(?:ms|s)(?![a-z0-9_])", _FLAGS)
_PER_CENT: Final = re.compile(r"%")
_COMPARISON: Final = re.compile(r"[<>=≤≥!~]+")
_INTEGER: Final = re.compile(r"[0-9]{1,6}(?![0-9.])", _FLAGS)
_SPACE: Final = re.compile(r"\s*")
_ANY: Final = re.compile(r"[^\s,]+|.", re.DOTALL)

_OPS: Final[dict[str, Op]] = {">=": ">=", "<=": "<=", "≥": ">=", "≤": "<="}
_ALIASES: Final = {
    "tps": "speed",
    "throughput": "speed",
    "tpot": "itl",
    "latency": "ttft",
    "e2e": "e2e_speed",
    "e2e_tps": "e2e_speed",
    "error_rate": "errors",
    "failures": "errors",
}


def parse(text: str) -> Slo:
    """The SLO that `text` asks for; `notes` say what was filled in. Raises SloError, nothing else."""
    return _Reader(text).slo()


@dataclass(frozen=True, slots=True)
class _Item:
    """A term, or a shorthand floor (`terms` of which the ceiling is still open), and where it stands in the text."""

    term: Term
    start: int
    end: int
    shorthand: bool = False


class _Reader:
    """Recursive descent over one text; `at` is the position of the next unread character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def slo(self) -> Slo:
        items: list[_Item] = []
        self._skip_space()
        if self.at == len(self.text):
            self._fail(0, 1, "the SLO is empty", "expected a speed such as 80tps, or terms such as p25 speed >= 80")
        while True:
            items.append(self._item())
            self._refuse_repeat(items)
            self._skip_space()
            if self.at == len(self.text):
                break
            if self.text[self.at] != ",":
                start, end = self._here()
                self._fail(start, end, f"{self.text[start:end]!r} follows a whole term", "expected a comma or the end")
            self.at += 1
        return _assemble(self.text, items)

    def _item(self) -> _Item:
        self._skip_space()
        start = self.at
        if _NUMBER.match(self.text, self.at):
            return self._shorthand(start)
        word = _WORD.match(self.text, self.at)
        if word is None:
            self._fail(*self._here(), "a term is missing", "expected a term such as p25 speed >= 80 or errors <= 1 %")
        if word[0].lower() == "errors":
            self.at = word.end()
            return self._errors(start)
        stat = self._percentile()
        metric = self._metric()
        low, high = self._turns()
        op = self._direction(metric)
        limit = self._rate() if metric in RATES else self._time()
        return _Item(Term(metric, stat, op, limit, low, high), start, self.at)

    def _shorthand(self, start: int) -> _Item:
        limit, end = self._number("a speed")
        self._skip_space()
        unit = _RATE_UNIT.match(self.text, self.at)
        if unit is None:
            self._fail(*self._here(end), "a bare number says no metric", "expected tps after it (80tps)")
        self.at = unit.end()
        return _Item(Term("speed", "p25", ">=", self._bounded(limit, start, end)), start, self.at, shorthand=True)

    def _errors(self, start: int) -> _Item:
        op = self._direction("errors")
        number_at = self._skip_space()
        value, end = self._number("a share")
        self._skip_space()
        sign = _PER_CENT.match(self.text, self.at)
        if sign:
            self.at = sign.end()
        elif value:
            self._fail(*self._here(end), "a share of errors without its unit", f"expected % ({number(value)} %)")
        share = float(value / 100)
        if share >= 1:
            self._fail(number_at, end, "a bound of 100 % or more promises nothing", "expected less than 100 %")
        if 0 < share < _MIN_LIMIT or (value and not share):
            self._fail(number_at, end, "the share is too small to be meant", "expected 0, or more than that")
        return _Item(Term("errors", "share", op, share), start, self.at)

    def _percentile(self) -> str:
        word = _WORD.match(self.text, self.at)
        assert word is not None
        found = _PERCENTILE.fullmatch(word[0])
        if found is None:
            self._no_percentile(word)
        percent = Decimal(found[1])
        if percent == 0:
            self._fail(*word.span(), "p0 is no percentile", "expected one above 0 and below 100, such as p25")
        self.at = word.end()
        return f"p{number(percent)}"

    def _no_percentile(self, word: re.Match[str]) -> NoReturn:
        name = word[0].lower()
        if name in METRICS:
            example = f"p25 {name}" if name in RATES else f"p95 {name}"
            self._fail(*word.span(), f"{name} without a percentile", f"expected one before it, such as {example}")
        if name in ("mean", "avg", "average", "max", "min", "median"):
            hint = (
                "expected a percentile such as p50: a mean or an extreme says nothing about the share of slow requests"
            )
            self._fail(*word.span(), f"{name} cannot be promised", hint)
        if re.fullmatch(r"p[0-9][0-9.]*", name):
            self._fail(*word.span(), f"{name} is no percentile", "expected one above p0 and below p100, such as p99.9")
        self._unknown(word, "expected a percentile such as p25, or errors")

    def _metric(self) -> Metric:
        self._skip_space()
        word = _WORD.match(self.text, self.at)
        if word is None:
            self._fail(*self._here(), "the metric is missing", f"expected one of {', '.join(METRICS[:-1])}")
        name = word[0].lower()
        metric = next((known for known in METRICS if known == name), None)
        if metric is None:
            self._unknown(word, f"expected one of {', '.join(METRICS[:-1])}")
        if metric == "errors":
            self._fail(*word.span(), "errors takes no percentile", "expected errors <= 1 %")
        self.at = word.end()
        return metric

    def _unknown(self, word: re.Match[str], expected: str) -> NoReturn:
        name = word[0].lower()
        close = [_ALIASES[name]] if name in _ALIASES else get_close_matches(name, METRICS, 1, 0.5)
        hint = f"{expected}; did you mean {close[0]}?" if close else expected
        self._fail(*word.span(), f"unknown word {word[0][:40]!r}", hint)

    def _turns(self) -> tuple[int | None, int | None]:
        """Bounds of `@turn>=2`, `@turn<=1`; both may be given, each once."""
        bounds: dict[Op, int] = {}
        first = self.at
        while self._skip_space() < len(self.text) and self.text[self.at] == "@":
            start = self.at
            self.at += 1
            self._skip_space()
            word = _WORD.match(self.text, self.at)
            if word is None or word[0].lower() != "turn":
                self._fail(*self._here(), "unknown condition after @", "expected turn, as in ttft@turn>=2")
            self.at = word.end()
            op = self._comparison()
            self._skip_space()
            turn = _INTEGER.match(self.text, self.at)
            if turn is None or int(turn[0]) < 1:
                self._fail(*self._here(), "no number of a turn", "expected a whole number from 1")
            if op in bounds:
                self._fail(start, turn.end(), f"two bounds with {op}", "expected one")
            bounds[op] = int(turn[0])
            self.at = turn.end()
        low, high = bounds.get(">="), bounds.get("<=")
        if low is not None and high is not None and low > high:
            self._fail(first, self.at, "no turn fits both bounds", "expected the lower bound to be the smaller one")
        return low, high

    def _direction(self, metric: Metric) -> Op:
        start = self._skip_space()
        op = self._comparison()
        right: Op = ">=" if metric in RATES else "<="
        if op != right:
            why = "a speed is promised from below" if metric in RATES else f"{metric} is promised from above"
            self._fail(start, self.at, f"{metric} {op} is no promise", f"{why}: expected {right}")
        return op

    def _comparison(self) -> Op:
        self._skip_space()
        found = _COMPARISON.match(self.text, self.at)
        if found is None:
            self._fail(*self._here(), "the comparison is missing", "expected >= or <=")
        op = _OPS.get(found[0])
        if op is None:
            sides = [c for c in (">=", "<=") if c[0] in found[0]]
            hint = f"; did you mean {sides[0]}?" if len(sides) == 1 else ""
            self._fail(*found.span(), f"unknown comparison {found[0][:8]}", f"expected >= or <={hint}")
        self.at = found.end()
        return op

    def _rate(self) -> float:
        start = self._skip_space()
        value, end = self._number("a speed")
        self._skip_space()
        unit = _RATE_UNIT.match(self.text, self.at)
        if unit is not None:
            self.at = unit.end()
        elif self.at < len(self.text) and self.text[self.at] != ",":
            self._fail(*self._here(), "this is no unit of a speed", "expected tok/s, tps or nothing")
        else:
            self.at = end
        return self._bounded(value, start, end)

    def _time(self) -> float:
        start = self._skip_space()
        value, end = self._number("a time")
        self._skip_space()
        unit = _TIME_UNIT.match(self.text, self.at)
        if unit is None:
            self._fail(*self._here(end), "a time without its unit", "expected s or ms")
        self.at = unit.end()
        return self._bounded(value / 1000 if unit[0].lower() == "ms" else value, start, end)

    def _number(self, what: str) -> tuple[Decimal, int]:
        self._skip_space()
        found = _NUMBER.match(self.text, self.at)
        if found is None or len(found[0]) > 40:
            self._fail(*self._here(), "this is no number", f"expected {what}, such as 80 or 2.5")
        self.at = found.end()
        return Decimal(found[0]), self.at

    def _bounded(self, value: Decimal, start: int, end: int) -> float:
        if not _MIN_LIMIT <= float(value) <= _MAX_LIMIT:
            self._fail(start, end, "the limit is out of range", "expected more than 0 and at most 1000000000")
        return float(value)

    def _refuse_repeat(self, items: list[_Item]) -> None:
        *before, last = items
        for item in before:
            if item.term.subject == last.term.subject:
                self._fail(last.start, last.end, f"{last.term.subject} is bounded twice", "expected it once")

    def _skip_space(self) -> int:
        space = _SPACE.match(self.text, self.at)
        assert space is not None
        self.at = space.end()
        return self.at

    def _here(self, otherwise: int | None = None) -> tuple[int, int]:
        """Span of what stands at the reading position; at the end of the text, or of an item, one place after it."""
        at = self.at if otherwise is None or self.at < len(self.text) else otherwise
        found = _ANY.match(self.text, at)
        return found.span() if found else (at, at + 1)

    def _fail(self, start: int, end: int, cause: str, expected: str) -> NoReturn:
        raise SloError(f"bad SLO: {cause}\n{_under(self.text, start, end)}\n{expected}")


def _under(text: str, start: int, end: int) -> str:
    """The text, and under it carets at [start, end); a long text is cut to the part around the fault."""
    first = max(0, min(start - _SNIPPET // 2, len(text) - _SNIPPET))
    last = min(len(text), first + _SNIPPET)
    shown = "".join(c if c.isprintable() else " " for c in text[first:last])
    before, after = "…" if first else "", "…" if last < len(text) else ""
    width = max(1, min(end, max(last, start + 1)) - start)
    return f"  {before}{shown}{after}\n  {' ' * (len(before) + start - first)}{'^' * width}"


def _assemble(text: str, items: list[_Item]) -> Slo:
    """Terms in the order given, with the ceiling of a shorthand beside it and the default for errors at the end."""
    terms: list[Term] = []
    notes: list[str] = []
    has_ttft = any(item.term.metric == "ttft" for item in items)
    for item in items:
        terms.append(item.term)
        notes += _oddities(item.term)
        if item.shorthand and not has_ttft:
            ceiling, note = _ceiling(item.term.limit)
            terms.append(ceiling)
            notes.append(note)
    if all(term.metric != "errors" for term in terms):
        terms.append(Term("errors", "share", "<=", DEFAULT_ERRORS))
        notes.append("errors <= 1 % added by default")
    expression = " ".join(text.split())
    return Slo(expression, tuple(terms), "expression", expression, tuple(notes))


def _ceiling(speed: float) -> tuple[Term, str]:
    """The p95 TTFT ceiling that goes with a speed, and the words for it."""
    for floor, seconds, tier in AA_CEILINGS:
        if speed >= floor:
            return Term("ttft", "p95", "<=", seconds), f"p95 ttft of tier aa/deepseek-v4-pro/{tier}"
    _, seconds, tier = AA_CEILINGS[-1]
    return Term("ttft", "p95", "<=", seconds), f"p95 ttft of tier aa/deepseek-v4-pro/{tier}, the slowest published"


def _oddities(term: Term) -> list[str]:
    """Legal, but probably the wrong end of the distribution."""
    if term.metric == "errors" or term.allowed_share <= 0.5:
        return []
    side = "slower" if term.metric in RATES else "later"
    other = f"p{number(100 - Decimal(term.stat[1:]))}"
    return [f"{term.subject} lets {number(Decimal(repr(term.allowed_share)) * 100)} % be {side}: was {other} meant?"]
