"""Anytime-valid tests and confidence sequences for a share of requests.

Of n requests k lie beyond the limit. A fixed-size interval may be looked at once; what follows may be looked at after
every request, and stopped at any moment for any reason, without more error than stated.

For a hypothetical share p, the likelihood ratio of another share q against p, (q/p)^k ((1-q)/(1-p))^(n-k), is a
martingale with mean 1 when p is true, whatever q. So is its mean over any prior of q. By Ville's inequality it ever
reaches 1/alpha with probability at most alpha (Robbins, Ann. Math. Stat. 41, 1970, who mixes over a Beta prior; Howard,
Ramdas, McAuliffe & Sekhon, Ann. Stat. 49, 2021; Lindon & Malek, NeurIPS 2022, for counts; Waudby-Smith & Ramdas, JRSS B
86, 2024, who read it as the wealth of a gambler).

- One-sided: with the prior confined to q < p, the mean is a supermartingale under every share of at least p, so 1/alpha
  is evidence, at level alpha, that the share is less than p: `log_evidence(..., "below")`. The mirror image tells that
  it is more. Confining the prior saves the factor that a two-sided sequence spends on the side not asked for.
- The prior is half of Beta(m p0, m (1 - p0)) with `WIDE` m, which is quick where the share is far from the one that is
  allowed (an SLO missed by half of the requests, or by none), and half of the same with `NARROW` m, which is quick at
  the edge. Half costs log 2; the wrong prior would cost more.
- Requests that are not independent: k and n are divided by the design effect d, the number of requests that tell as
  much as one (Kish, Survey Sampling, 1965). That raises the likelihood ratio to the power 1/d. If d requests are copies
  of each other this is exact; and E^(1/d) of any e-value E is one (Jensen). `stats.clusters` estimates d.
- An estimated d is itself unsure. With an estimate that has f degrees of freedom, the chance that a ratio with the
  true d reaches exp(t) by the estimate is (1 + 2 t / f)^(-f/2), the Laplace transform of chi-squared; so the threshold
  is raised from log(1/alpha) to `threshold(alpha, f)` = f/2 (alpha^(-2/f) - 1), as Student's t raises the normal's.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
Side = Literal["below", "above"]

WIDE: Final = 1.0
"""Concentration m of the prior's wide half: the weight of one request."""
NARROW: Final = 40.0
"""Concentration of its narrow half: a share that 40 requests would show."""
_GRID: Final = 9
_ROUNDS: Final = 8
"""A bound is sought on a grid, eight times over: 8^-8 of the interval is exact enough for any share."""


@dataclass(frozen=True, slots=True)
class Counts:
    """`k` of `n` independent requests lie beyond the limit. Neither need be whole (n over a design effect)."""

    k: float
    n: float

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.n:
            raise ValueError("a count lies between 0 and the number of requests")

    def __add__(self, other: "Counts") -> "Counts":
        """Two measurements of the same share as one: the sequence goes on where it stopped."""
        return Counts(self.k + other.k, self.n + other.n)

    @property
    def share(self) -> float:
        """k / n; nan without requests."""
        return self.k / self.n if self.n > 0 else float("nan")


def threshold(alpha: float, freedom: float = float("inf")) -> float:
    """Log-evidence that decides with error `alpha` when the design effect has `freedom` degrees of freedom."""
    if not 0.0 < alpha < 1.0:
        raise ValueError("an error lies between 0 and 1")
    if np.isinf(freedom):
        return float(-np.log(alpha))
    return float(freedom / 2 * np.expm1(-2 * np.log(alpha) / freedom))


def log_evidence(counts: Counts, p: float, side: Side, centre: float | None = None) -> float:
    """Log of the mixture e-value against "the share is at least p" (side "below") or "at most p" (side "above").

    `centre` is the prior's centre p0, by default p. Without requests it is 0. At p = 0 or 1 one side is empty: nothing
    speaks for less than 0 (-inf), and one request beyond the limit refutes "at most 0" (inf).
    """
    k, n = counts.k, counts.n
    if side == "above":  # the same question about the requests within the limit
        k, p, centre = n - k, 1 - p, None if centre is None else 1 - centre
    if n <= 0:
        return 0.0
    if p <= 0.0:
        return float("-inf")
    if p >= 1.0:
        return float("inf") if k < n else 0.0
    return float(_below(k, n, np.array([p]), p if centre is None else centre)[0])


def _below(k: float, n: float, p: Floats, centre: float) -> Floats:
    """The evidence that the share is less than each p, 0 < p < 1."""
    against = k * np.log(p) + (n - k) * np.log1p(-p)
    middle = min(max(centre, 1e-6), 1 - 1e-6)
    wide, narrow = (_log_mean(k, n, p, m * middle, m * (1 - middle)) for m in (WIDE, NARROW))
    found: Floats = np.logaddexp(wide, narrow) - np.log(2) - against
    return found


def _log_mean(k: float, n: float, p: Floats, a: float, b: float) -> Floats:
    """Log of the mean of q^k (1-q)^(n-k) over Beta(a, b) confined to q < p; -inf where nothing is left below p."""
    confined, prior = special.betainc(a + k, b + n - k, p), special.betainc(a, b, p)
    whole = special.betaln(a + k, b + n - k) - special.betaln(a, b)
    found = np.full(p.shape, -np.inf)
    left = (confined > 0.0) & (prior > 0.0)
    found[left] = whole + np.log(confined[left]) - np.log(prior[left])
    return found


def bounds(counts: Counts, centre: float, low_bar: float, high_bar: float) -> tuple[float, float]:
    """The shares that are not refuted: from where "at most p" is refuted to where "at least p" is.

    `low_bar` and `high_bar` are the log-evidence that refutes (`threshold`). The interval holds the observed share.
    Without requests it is (0, 1).
    """
    k, n = counts.k, counts.n
    if n <= 0:
        return 0.0, 1.0
    high = _upper(k, n, centre, high_bar)
    return 1.0 - _upper(n - k, n, 1 - centre, low_bar), high


def _upper(k: float, n: float, centre: float, bar: float) -> float:
    """The largest share that is not refuted from above: a grid, then finer ones inside one of its cells."""
    low, high = k / n, 1.0
    for _ in range(_ROUNDS):
        if high - low <= 1e-12:
            break
        grid = np.linspace(low, high, _GRID)[1:-1]
        kept = np.flatnonzero(_below(k, n, grid, centre) < bar)
        last = int(kept[-1]) + 1 if kept.size else 0
        step = (high - low) / (_GRID - 1)
        low, high = low + last * step, min(high, low + (last + 1) * step)
    return high


def needed(counts: Counts, p: float, side: Side, bar: float, most: float = 1e7) -> float:
    """Independent requests, the ones in `counts` included, at which the evidence reaches `bar` if the share stays.

    Infinite when it lies on the other side of p, on it, or when more than `most` would be needed.
    """
    if counts.n <= 0:
        return float("inf")
    share = counts.share
    if (share >= p) if side == "below" else (share <= p):
        return float("inf")

    def reached(n: float) -> bool:
        return log_evidence(Counts(share * n, n), p, side) >= bar

    if reached(counts.n):
        return counts.n
    low, high = counts.n, 2 * counts.n
    while not reached(high):
        low, high = high, 2 * high
        if high > most:
            return float("inf")
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
