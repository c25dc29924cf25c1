"""What an SLO is: a set of terms, each a bound on a percentile over requests, or on the share of failed requests."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Literal

Metric = Literal["speed", "ttft", "ttfo", "itl", "e2e_speed", "errors"]
Op = Literal[">=", "<="]

RATES: Final[tuple[Metric, ...]] = ("speed", "e2e_speed")
"""Metrics in tok/s: more is better, so their terms are floors."""
TIMES: Final[tuple[Metric, ...]] = ("ttft", "ttfo", "itl")
"""Metrics in seconds: less is better, so their terms are ceilings."""
METRICS: Final[tuple[Metric, ...]] = ("speed", "ttft", "ttfo", "itl", "e2e_speed", "errors")


@dataclass(frozen=True, slots=True)
class Term:
    """One promise, e.g. `p25 speed >= 80 tok/s`.

    `limit` is in base units: tok/s, seconds, or a fraction for errors. `stat` is a percentile ("p25", "p99.9"), or
    "share" for errors. `min_turn` and `max_turn` (counted from 1, both inclusive) restrict the term to some turns of a
    session: `ttft@turn>=2`, `ttft@turn<=1`.
    """

    metric: Metric
    stat: str
    op: Op
    limit: float
    min_turn: int | None = None
    max_turn: int | None = None

    @property
    def percent(self) -> float:
        """The percentile, 0 < p < 100. A share has none."""
        if self.stat == "share":
            msg = "a share has no percentile"
            raise ValueError(msg)
        return float(self.stat[1:])

    @property
    def allowed_share(self) -> float:
        """Share of requests that may lie beyond the limit.

        `p25 speed >= 80` says that at most 25 % are slower than 80; `p95 ttft <= 2 s` that at most 5 % take longer.
        """
        if self.stat == "share":
            return self.limit
        percent = Decimal(self.stat[1:])
        return float((percent if self.op == ">=" else 100 - percent) / 100)

    @property
    def subject(self) -> str:
        """The left side: `p95 ttft@turn>=2`."""
        if self.metric == "errors":
            return "errors"
        text = f"{self.stat} {self.metric}"
        if self.min_turn is not None:
            text += f"@turn>={self.min_turn}"
        if self.max_turn is not None:
            text += f"@turn<={self.max_turn}"
        return text

    def __str__(self) -> str:
        return f"{self.subject} {self.op} {quantity(self.metric, self.limit)}"


@dataclass(frozen=True, slots=True)
class Slo:
    """Terms that must all hold. Two SLOs are equal when their terms are.

    `name` is what the user asked for (`80tps`, `aa/deepseek-v4-pro/2`), `expression` the text that was read, `source`
    where its figures come from, `notes` what was filled in or looks odd: to be said, never silent.
    """

    name: str = field(compare=False)
    terms: tuple[Term, ...]
    source: str = field(compare=False, default="")
    expression: str = field(compare=False, default="")
    notes: tuple[str, ...] = field(compare=False, default=())

    def __str__(self) -> str:
        return ", ".join(str(term) for term in self.terms)

    def echo(self) -> str:
        """One line that says what is promised and what of it was filled in."""
        text = str(self) if any(c in self.name for c in "<>≤≥") else f"{self.name} = {self}"
        return f"{text} ({'; '.join(self.notes)})" if self.notes else text


def number(value: float | Decimal) -> str:
    """The shortest decimal text that reads back as the same float, without an exponent."""
    exact = value if isinstance(value, Decimal) else Decimal(repr(value))
    text = format(exact, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def quantity(metric: Metric, value: float) -> str:
    """A value of a metric with its unit: `80 tok/s`, `40 ms`, `2 s`, `1 %`. The text reads back exactly."""
    if metric in RATES:
        return f"{number(value)} tok/s"
    exact = Decimal(repr(value))
    if metric == "errors":
        return f"{number(exact * 100)} %"
    return f"{number(exact)} s" if value >= 1 else f"{number(exact * 1000)} ms"
