"""The design effect: how many requests tell as much as one independent request.

Requests resemble each other in two ways. Those of one play share a prompt that grows; those of one stretch of time
share the load of the endpoint. On the bundled profiles (docs/statistics.md) the second matters most by far: plays alone
give 0.7 to 4, stretches of time 3 to 45. So the unit is the stretch of time first and the play beside it, and the two
are added as in two-way clustering (Cameron, Gelbach & Miller, J. Bus. Econ. Stat. 29, 2011):

    d = max(floor, time) + max(assumed, play) - 1

- time: the variance of the means of consecutive blocks with equal numbers of requests, over the variance of independent
  ones (batch means: Conway, Manag. Sci. 10, 1963). Where blocks that follow each other are alike (bursts longer than a
  block), it is raised by (1 + r) / (1 - r), r being their correlation (that of an AR(1) process), with the bias 1/B of
  so few blocks made good.
- floor: requests that run at the same time are taken to correlate by rho, whatever the data show, for a window hides
  what happens more rarely than it is long. A round (one request of each of N agents) is then worth at most about
  1 / rho independent requests. rho is `TIME_RHO` for a share of 20 to 80 % and falls in proportion to the share
  towards the ends: what happens seldom to anybody seldom happens to two at once.
- play: the cluster ("sandwich") variance of a ratio, G / (G - 1) * sum_g (sum_i in g (x_i - p))^2 / n^2 (Liang & Zeger,
  Biometrika 73, 1986; Cochran, Sampling Techniques, 1977, section 6.4), over that of independent requests.
- assumed: with hardly any request beyond the limit their grouping cannot be seen. Kish's 1 + (m - 1) icc (Survey
  Sampling, 1965) with m = sum m_g^2 / sum m_g and an icc of `PLAY_ICC`, which falls as rho does, counts until such
  requests have turned up in more plays: weight w / (w + plays with the rarer kind), w = `PLAY_WEIGHT`.

An estimated variance is unsure, so that each is raised by `threshold(alpha, f) / log(1 / alpha)` of `stats.sequence`
with its degrees of freedom f: those of G groups (plays, or blocks) are G - 1, or 2 G / (kurtosis - 1) when a few
carry most of it, which matches the variance of the estimate as Satterthwaite (Biometrics Bull. 2, 1946) does.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agentperf.stats.sequence import threshold

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TIME_RHO: Final = 0.20
"""Correlation of two requests of one round that is always assumed. Windows of the bundled profiles need 0.15."""
PLAY_ICC: Final = 0.10
"""Correlation of two requests of one play assumed until the data say more."""
COMMON: Final = 0.2
"""Share from which on both hold in full."""
PLAY_WEIGHT: Final = 3.0
"""Number of plays with the rarer kind at which the assumption has half of its weight."""
BLOCKS: Final = 16
"""Number of blocks that a window is cut into."""
PER_BLOCK: Final = 3
"""Least requests that a block must hold for blocks to be looked at."""
MOST_ALIKE: Final = 0.8
"""Largest correlation of neighbouring blocks that is made good; beyond it the window is too short to tell."""


@dataclass(frozen=True, slots=True)
class DesignEffect:
    """`total` and what it is made of, each at least 1: requests that tell as much as one."""

    total: float
    time: float
    play: float

    def of(self, n: float) -> float:
        """Independent requests that tell as much as n of these."""
        return n / self.total


def design_effect(
    beyond: Bools,
    plays: Ints | None,
    start_s: Floats | None,
    *,
    allowed: float = 0.25,
    agents: int | None = None,
    alpha: float = 0.05,
) -> DesignEffect:
    """The design effect of the share of True in `beyond`, for a test of `allowed` with error `alpha`.

    `plays` are codes that say which requests belong together, `start_s` their times; without them that kind of
    dependence is neither looked for nor assumed. `agents` is the number of requests that may run at once, by default
    the number of plays.
    """
    x = np.asarray(beyond, dtype=np.float64)
    if x.size == 0:
        return DesignEffect(1.0, 1.0, 1.0)
    scale = min(1.0, allowed / COMMON, (1 - allowed) / COMMON)
    time = play = 1.0
    if start_s is not None:
        at_once = agents if agents is not None else x.size if plays is None else np.unique(plays).size
        time = 1 + TIME_RHO * scale * (min(at_once, x.size) - 1)
        time = max(time, time_part(x, start_s, alpha))
    if plays is not None:
        play = max(play_part(x, plays, alpha), _assumed(x, plays, PLAY_ICC * scale))
    return DesignEffect(min(float(x.size), time + play - 1), time, play)


def time_part(x: Floats, start_s: Floats, alpha: float) -> float:
    """The part of time alone, at least 1; 1 where x does not vary or is too short for blocks."""
    n, p = x.size, float(x.mean())
    if p in (0.0, 1.0):
        return 1.0
    if n < PER_BLOCK * BLOCKS:
        return 1.0
    ordered = (x - p)[np.argsort(start_s, kind="stable")]
    sums = np.bincount(np.arange(n) * BLOCKS // n, weights=ordered, minlength=BLOCKS)
    squares = float(sums @ sums)
    if squares <= 0.0:
        return 1.0
    ratio = BLOCKS / (BLOCKS - 1) * squares / (n * p * (1 - p))
    alike = min(MOST_ALIKE, max(0.0, float(sums[1:] @ sums[:-1]) / squares + 1 / BLOCKS))
    return max(1.0, ratio * (1 + alike) / (1 - alike) * _unsure(_freedom(sums**2), alpha))


def _freedom(squares: NDArray[Any]) -> float:
    """Degrees of freedom of a variance that is the sum of these: groups less one, fewer where a few carry it."""
    groups = squares.size
    kurtosis = groups * float(squares @ squares) / float(squares.sum()) ** 2
    return max(1.0, min(groups - 1.0, 2 * groups / (kurtosis - 1)) if kurtosis > 1 else groups - 1.0)


def play_part(x: Floats, plays: Ints, alpha: float) -> float:
    """The part of plays alone, at least 1. One play tells as much as one request; 1 where x does not vary."""
    n, p = float(x.size), float(x.mean())
    codes = np.unique(plays, return_inverse=True)[1]
    groups = int(codes.max()) + 1
    if groups < 2:
        return n
    if p in (0.0, 1.0):
        return 1.0
    squares = np.bincount(codes, weights=x - p, minlength=groups) ** 2
    total = float(squares.sum())
    ratio = groups / (groups - 1) * total / (n * p * (1 - p))
    if ratio <= 1.0:
        return 1.0
    return ratio * _unsure(_freedom(squares), alpha)


def _unsure(freedom: float, alpha: float) -> float:
    """How much a variance with these degrees of freedom is raised."""
    return threshold(alpha, freedom) / threshold(alpha)


def _assumed(x: Floats, plays: Ints, icc: float) -> float:
    """Kish's design effect under the assumed correlation."""
    sizes = np.unique(plays, return_counts=True)[1].astype(np.float64)
    rare = x == (1.0 if x.mean() <= 0.5 else 0.0)
    seen = float(np.unique(plays[rare]).size)
    return 1 + (float(sizes @ sizes) / x.size - 1) * icc * PLAY_WEIGHT / (PLAY_WEIGHT + seen)
