"""The shares behind the SLO ladder, and the words about drift."""

import numpy as np
import pytest

from agentperf.measure.steady import LADDER_TPS, drift_warnings, ladder_points
from agentperf.slo.verdict import Observations
from agentperf.stats.clusters import design_effect


def window(speed, ttft=None):
    speed = np.asarray(speed, dtype=float)
    n = speed.size
    ttft = np.full(n, 1.0) if ttft is None else ttft
    return Observations(
        speed, ttft, ttft, ttft, speed, np.ones(n, dtype=int), np.arange(n) % 20, speed == 0, np.arange(n) * 0.5
    )


def test_ladder_points_are_shares_with_their_weight():
    speed = np.random.default_rng(0).uniform(10, 110, 400)
    speed[:10] = np.nan
    speed[10:20] = 0.0
    found = ladder_points(window(speed), agents=20)
    assert [p.tps for p in found] == list(LADDER_TPS)
    known = speed[10:]
    for point in found:
        assert point.share == pytest.approx((known < point.tps).mean())
        effect = design_effect(
            known < point.tps, np.arange(10, 400) % 20, np.arange(10, 400) * 0.5, allowed=0.25, agents=20
        )
        assert point.n_eff == pytest.approx(390 / effect.total)
    assert ladder_points(window(np.full(3, np.nan)), agents=2) == ()


def test_a_drift_is_said_with_its_size_and_steadiness_is_not():
    rng = np.random.default_rng(1)
    noise = rng.lognormal(0, 0.1, 400)
    assert drift_warnings(window(80 * noise)) == []
    (said,) = drift_warnings(window(80 * noise * np.linspace(1.2, 0.8, 400)))
    assert said.startswith("speed drifted by -4")
    assert "longer warm-up" in said
    (late,) = drift_warnings(window(80 * noise, np.linspace(1, 3, 400) * noise))
    assert late.startswith("TTFT drifted by +")
    tiny = 80 * np.linspace(1.0, 1.05, 400) * rng.lognormal(0, 0.001, 400)
    assert drift_warnings(window(tiny)) == [], "sure, but too small to matter"
