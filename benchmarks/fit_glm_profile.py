"""Fit the step time of the profile `glm-5.3-8xh200` to a published concurrency-scaling table and print both.

    python -m benchmarks.fit_glm_profile

The table (autumn 2026, GLM-5.3 on one server with eight H200 SXM) gives system tokens per second at 1 to 128 agents.
Step time is a + b n + c (1 - (1 - p)^n) seconds, output n / step time; the fit minimises the largest relative error.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares, minimize

from agentperf.sim.profile import load_profile

LEVELS = (1, 2, 4, 8, 16, 32, 64, 128)
DECODE = (252.90, 375.57, 665.87, 1043.85, 1662.93, 2452.36, 3193.16, 3785.19)
"""Published decode column, tok/s."""
PREFILL = (5506.49, 5553.50, 5578.19, 5581.76, 5605.31, 5817.33, 5858.66, 5875.43)
"""Published prefill column, tok/s."""

_SCALE = np.array([1e-3, 1e-4, 1e-3, 0.1])


def decode_rate(parameters: Sequence[float] | np.ndarray, levels: Sequence[int] = LEVELS) -> np.ndarray:
    """Output in tok/s at each level for (a, b, c, p)."""
    a, b, c, p = parameters
    n = np.asarray(levels, dtype=float)
    return np.asarray(n / (a + b * n + c * (1 - (1 - p) ** n)))


def fit() -> tuple[np.ndarray, float]:
    """((a, b, c, p), largest relative error): least squares of the logarithm first, then minimax from there."""
    published = np.asarray(DECODE)

    def residuals(scaled: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(decode_rate(scaled * _SCALE) / published))

    def worst(scaled: np.ndarray) -> float:
        made = np.clip(scaled, 0, [np.inf, np.inf, np.inf, 9.99]) * _SCALE
        return float(np.max(np.abs(decode_rate(made) / published - 1)))

    start = min(
        (
            least_squares(residuals, [2.0, 2.0, 4.0, p], bounds=([0, 0, 0, 0], [1e3, 1e3, 1e3, 9.99]))
            for p in (0.1, 0.5, 1.0, 3.0, 6.0)
        ),
        key=lambda found: float(found.cost),
    )
    best = minimize(worst, start.x, method="Nelder-Mead", options={"maxiter": 20_000, "xatol": 1e-9, "fatol": 1e-9})
    return np.clip(best.x, 0, [np.inf, np.inf, np.inf, 9.99]) * _SCALE, float(best.fun)


def prefill_rate(max_step_tokens: int, step_fixed_s: float) -> float:
    """Rate whose full chunks, fixed part of the step included, lie in the middle of the published prefill column."""
    middle = (min(PREFILL) + max(PREFILL)) / 2
    return max_step_tokens / (max_step_tokens / middle - step_fixed_s)


def main() -> None:
    """Print the fit, the profile's own figures and the published ones."""
    parameters, error = fit()
    profile = load_profile("glm-5.3-8xh200")
    print("fitted   a={:.4g} s  b={:.4g} s  c={:.4g} s  p={:.4g}".format(*parameters), f" worst {error:.1%}")
    print(f"         prefill {prefill_rate(profile.max_step_tokens, parameters[0]):.0f} tok/s")
    print(
        f"profile  a={profile.step_fixed_s:.4g} s  b={profile.step_per_sequence_s:.4g} s"
        f"  c={profile.step_experts_s:.4g} s  p={profile.expert_share:.4g}  prefill {profile.prefill_tokens_per_s:.0f}"
    )
    print(f"\n{'agents':>6} {'published':>10} {'fitted':>10} {'profile':>10} {'error':>7}")
    for level, published, made in zip(LEVELS, DECODE, decode_rate(parameters), strict=True):
        own = profile.decode_tokens_per_s(level)
        print(f"{level:>6} {published:>10.2f} {made:>10.2f} {own:>10.2f} {own / published - 1:>+7.1%}")


if __name__ == "__main__":
    main()
