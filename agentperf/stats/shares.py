"""What is known of a share of requests at any moment: the confidence sequence of a window.

A percentile term is a statement about a share: `p25 speed >= 80` holds when at most 25 % of the requests are slower
than 80. `stats.sequence` has the tests, `stats.clusters` the design effect; here they meet.
"""

from dataclasses import dataclass

import numpy as np

from agentperf.stats.clusters import Bools, DesignEffect, Floats, Ints, design_effect
from agentperf.stats.sequence import Counts, bounds, log_evidence, threshold


@dataclass(frozen=True, slots=True)
class ShareSequence:
    """A share of `n` requests, and what it says about the share that is allowed.

    `own` are the effective counts of this window, `counts` the same with those of earlier measurements of the level.
    `below` and `above` are the logs of the evidence that the share is less, or more, than `allowed`; to decide they
    must reach `bar_below` and `bar_above`. `low` and `high` bound the shares that are not refuted at these bars.
    """

    n: int
    own: Counts
    counts: Counts
    design: DesignEffect
    allowed: float
    below: float
    above: float
    bar_below: float
    bar_above: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """Of this window; nan without requests."""
        return self.own.share

    @property
    def is_below(self) -> bool:
        """Whether the share is certainly at most what is allowed."""
        return self.below >= self.bar_below

    @property
    def is_above(self) -> bool:
        """Whether it is certainly more."""
        return self.above >= self.bar_above


def share_sequence(
    beyond: Bools,
    plays: Ints | None = None,
    start_s: Floats | None = None,
    *,
    allowed: float,
    alpha_below: float = 0.025,
    alpha_above: float = 0.025,
    agents: int | None = None,
    before: Counts | None = None,
) -> ShareSequence:
    """Judge the share of True in `beyond`, one element a request; it may be asked again after every further request.

    `alpha_below` is the chance that a share of at least `allowed` is ever said to be less, `alpha_above` the mirror
    image. `plays`, `start_s` and `agents` as in `design_effect`. `before` are the own counts of earlier measurements.
    """
    n, k = int(beyond.size), int(np.count_nonzero(beyond))
    alpha = min(alpha_below, alpha_above)
    design = design_effect(beyond, plays, start_s, allowed=allowed, agents=agents, alpha=alpha)
    own = Counts(k / design.total, n / design.total)
    counts = own if before is None else own + before
    bar_below, bar_above = threshold(alpha_below), threshold(alpha_above)
    low, high = bounds(counts, allowed, bar_above, bar_below)
    return ShareSequence(
        n=n,
        own=own,
        counts=counts,
        design=design,
        allowed=allowed,
        below=log_evidence(counts, allowed, "below"),
        above=log_evidence(counts, allowed, "above"),
        bar_below=bar_below,
        bar_above=bar_above,
        low=low,
        high=high,
    )
