"""How well a share of requests is known when the requests are not independent.

A percentile term is a statement about a share: `p25 speed >= 80` holds when at most 25 % of the requests are slower
than 80. Requests of one play resemble each other, and so do requests of one stretch of time (a long prefill slows
everybody), so the n requests of a window tell less than n independent ones would. How much less is estimated three
ways; the one that tells least counts:

- independent: variance p (1 - p) / n;
- by play: the cluster ("sandwich") variance of a ratio, G / (G - 1) * sum_g (sum_i in g (x_i - p))^2 / n^2
  (Liang & Zeger 1986; Cochran, Sampling Techniques, 3rd ed. 1977, section 6.4, for the ratio estimator);
- by time: the same over consecutive blocks of the window, which catches what plays share (batch means: Conway 1963).

Each variance becomes an effective sample size n_eff = p (1 - p) / variance, n over Kish's design effect (Kish, Survey
Sampling, 1965), reduced further because a variance from a few groups is itself uncertain: times (z / t_df)^2 (Korn &
Graubard, Survey Methodology 24, 1998). The degrees of freedom are G - 1, or fewer when a few groups carry most of the
variance: 2 G / (kurtosis - 1), which matches the variance of the estimate as Satterthwaite (Biometrics Bull. 2, 1946)
does. The interval is Wilson's (J. Am. Stat. Assoc. 22, 1927) with n_eff for n, which unlike p +- z s stays inside
[0, 1] and has a width where the observed share is 0 or 1 (Dean & Pagano, J. Surv. Stat. Methodol. 3, 2015, compare
such intervals).

Where requests beyond the limit are rare (or nearly all), their grouping cannot be seen: with one of them every variance
is the independent one, with none all are 0. Therefore a correlation `PRIOR_ICC` within plays is assumed. It gives way
to what is observed as the rarer kind turns up in more plays: weight `PRIOR_WEIGHT` / (`PRIOR_WEIGHT` + plays with it).

Coverage is tested by simulation (tests/stats). The limits of the method: dependence over stretches longer than about a
fiftieth of the window, or within-play correlation near 0.5 with a share of a few per cent, leave 95 % intervals with
80 to 93 % coverage.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PRIOR_ICC: Final = 0.2
"""Correlation of two requests of one play assumed until the data say more."""
PRIOR_WEIGHT: Final = 3.0
"""Number of plays with the rarer kind at which the assumption has half of its weight."""
TIME_BLOCKS: Final = 10


@dataclass(frozen=True, slots=True)
class ShareInterval:
    """A share with its two-sided interval. `n` observations are worth `n_eff` independent ones."""

    share: float
    low: float
    high: float
    n: int
    n_eff: float
    confidence: float

    @property
    def design_effect(self) -> float:
        """n / n_eff, at least 1."""
        return self.n / self.n_eff if self.n_eff > 0 else 1.0


def normal_quantile(confidence: float) -> float:
    """z of a two-sided interval: 1.96 for 0.95."""
    if not 0.0 < confidence < 1.0:
        raise ValueError("a confidence lies between 0 and 1")
    return float(special.ndtri(0.5 + confidence / 2))


def wilson(share: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's score interval for a share seen in `n` (not necessarily whole) independent trials: (low, high).

    The set of p with |share - p| <= z sqrt(p (1 - p) / n). Without trials it is (0, 1).
    """
    if n <= 0:
        return 0.0, 1.0
    centre = share + z * z / (2 * n)
    half = z * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    scale = 1 + z * z / n
    low = 0.0 if share <= 0 else max(0.0, (centre - half) / scale)
    high = 1.0 if share >= 1 else min(1.0, (centre + half) / scale)
    return low, high


def share_interval(
    beyond: Bools, plays: Ints | None = None, start_s: Floats | None = None, confidence: float = 0.95
) -> ShareInterval:
    """Interval for the share of True in `beyond`, a 1-d array of requests.

    `plays` are codes of equal length that say which requests belong together, `start_s` their times; either may be
    None, and then that kind of dependence is not looked for. Without observations the interval is (0, 1).
    """
    x = np.asarray(beyond, dtype=np.float64)
    z = normal_quantile(confidence)
    if x.size == 0:
        return ShareInterval(float("nan"), 0.0, 1.0, 0, 0.0, confidence)
    n_eff = effective_size(x, plays, start_s, confidence)
    share = float(x.mean())
    low, high = wilson(share, n_eff, z)
    return ShareInterval(share, low, high, int(x.size), n_eff, confidence)


def effective_size(x: Floats, plays: Ints | None, start_s: Floats | None, confidence: float) -> float:
    """Number of independent observations that tell as much about the mean of `x` (0 or 1 each) as these, at most n."""
    n = float(x.size)
    found = [n]
    if plays is not None:
        found += [_grouped_size(x, np.unique(plays, return_inverse=True)[1], confidence), _prior_size(x, plays)]
    if start_s is not None and x.size >= 2 * TIME_BLOCKS:
        found.append(_grouped_size(x, time_blocks(start_s, TIME_BLOCKS), confidence))
    return max(1.0, min(found))


def time_blocks(start_s: Floats, blocks: int) -> Ints:
    """Codes 0 .. blocks - 1 of consecutive stretches of time with (nearly) equal numbers of requests."""
    order = np.argsort(start_s, kind="stable")
    codes = np.empty(order.size, dtype=np.int64)
    codes[order] = np.arange(order.size) * blocks // max(1, order.size)
    return codes


def _grouped_size(x: Floats, codes: NDArray[Any], confidence: float) -> float:
    """n_eff from the variance between groups; one group tells as much as one observation."""
    n, p = float(x.size), float(x.mean())
    groups = int(codes.max()) + 1
    if groups < 2:
        return 1.0
    if p in (0.0, 1.0):
        return n
    squares = np.bincount(codes, weights=x - p, minlength=groups) ** 2
    variance = groups / (groups - 1) * float(squares.sum()) / (n * n)
    if variance <= 0.0:
        return n
    kurtosis = groups * float(squares @ squares) / float(squares.sum()) ** 2
    freedom = min(groups - 1.0, 2 * groups / (kurtosis - 1)) if kurtosis > 1 else groups - 1.0
    z = normal_quantile(confidence)
    t = float(special.stdtrit(freedom, 0.5 + confidence / 2))
    return p * (1 - p) / variance * (z / t) ** 2


def _prior_size(x: Floats, plays: Ints) -> float:
    """n_eff under the assumed correlation: deff = 1 + (m - 1) icc with Kish's m = sum m_g^2 / sum m_g."""
    n = float(x.size)
    sizes = np.unique(plays, return_counts=True)[1].astype(np.float64)
    mean_size = float(sizes @ sizes) / n
    rare = x == (1.0 if x.mean() <= 0.5 else 0.0)
    rarer = float(np.unique(plays[rare]).size)
    icc = PRIOR_ICC * PRIOR_WEIGHT / (PRIOR_WEIGHT + rarer)
    return n / (1 + (mean_size - 1) * icc)


def needed_size(share: float, allowed: float, confidence: float) -> float:
    """Independent observations with which a share of `share` is told from `allowed`; infinite when they are equal.

    Wilson's interval leaves out `allowed` exactly when n (share - allowed)^2 > z^2 allowed (1 - allowed).
    """
    if share == allowed:
        return float("inf")
    z = normal_quantile(confidence)
    return z * z * allowed * (1 - allowed) / (share - allowed) ** 2
