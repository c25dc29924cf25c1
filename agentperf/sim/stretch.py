"""A stretch of engine steps between two changes of the batch: its time in closed form, and how it is cut short.

Step i (from 0) of k takes f + i g: each adds as many KV tokens as sequences decode. So i steps take
i f + g i (i - 1) / 2, times a factor that stands for the jitter of all of them.
"""

import math
import random

from msgspec import Struct


class Stretch(Struct):
    """Steps that differ only in the KV tokens they read. Times in seconds."""

    start_s: float
    steps: int
    first_s: float
    """f, without jitter."""
    growth_s: float
    """g"""
    jitter: float
    """Standard deviation of the logarithm of one step's time."""
    prefill_tokens: int
    factor: float = 1.0
    end_s: float = 0.0

    def time(self, steps: int) -> float:
        """What the first `steps` steps take, jitter left out."""
        return steps * self.first_s + self.growth_s * (steps * (steps - 1) // 2)

    def squares(self, steps: int) -> float:
        """Sum of the squares of their times, jitter left out."""
        f, g, k = self.first_s, self.growth_s, steps
        return k * f * f + f * g * k * (k - 1) + g * g * (k - 1) * k * (2 * k - 1) / 6

    def first_end(self, at_s: float, factor: float, deviation_s: float) -> int:
        """The smallest number of steps, at least 1, that end at `at_s` or later."""
        wanted = (at_s - self.start_s - deviation_s) / factor
        f, g = self.first_s, self.growth_s
        if g > 0:
            half = f - g / 2
            steps = math.ceil((math.sqrt(max(0.0, half * half + 2 * g * wanted)) - half) / g)
        else:
            steps = math.ceil(wanted / f)
        steps = max(1, steps)
        # The root is rounded: the sum itself decides.
        while self.start_s + deviation_s + factor * self.time(steps) < at_s:
            steps += 1
        while steps > 1 and self.start_s + deviation_s + factor * self.time(steps - 1) >= at_s:
            steps -= 1
        return steps

    def cut(self, at_s: float, generator: random.Random) -> None:
        """End with the first step that ends at `at_s` or later, if that is before its end.

        Given what the whole takes, its first i of k steps deviate from their share like a Brownian bridge; with that
        deviation drawn, they have the mean and variance of i steps, and what comes after is drawn anew.
        """
        if self.steps == 1 or at_s > self.end_s:
            return
        deviation_s = 0.0
        if self.jitter:
            guess = self.first_end(at_s, self.factor, 0.0)
            if guess >= self.steps:
                return
            share = guess / self.steps
            spread = math.sqrt(math.expm1(self.jitter**2) * self.squares(self.steps) * share * (1 - share))
            # Never so much that the first step would end before it began.
            deviation_s = max(generator.gauss(0.0, spread), -0.5 * self.factor * self.first_s)
        steps = self.first_end(at_s, self.factor, deviation_s)
        if steps < self.steps:
            self.steps = steps
            self.end_s = self.start_s + deviation_s + self.factor * self.time(steps)

    def over(self, now_s: float) -> int:
        """Steps that have ended by `now_s`; the last one has not."""
        steps = self.first_end(now_s, self.factor, 0.0)
        if self.start_s + self.factor * self.time(steps) > now_s:
            steps -= 1
        return min(steps, self.steps - 1)

    def leave(self, steps: int) -> float:
        """Take the first `steps` steps away; what they took, in s."""
        seconds = self.factor * self.time(steps)
        self.start_s += seconds
        self.first_s += steps * self.growth_s
        self.steps -= steps
        return seconds

    def keep_one(self) -> None:
        """Be the next step alone."""
        if self.steps > 1:
            self.steps = 1
            self.end_s = self.start_s + self.factor * self.first_s


def draw_factor(stretch: Stretch, generator: random.Random) -> None:
    """Draw the jitter of the whole: log-normal with mean 1 and the variance of the sum of its steps."""
    mean_s = stretch.time(stretch.steps)
    if stretch.jitter:
        variance = math.expm1(stretch.jitter**2) * stretch.squares(stretch.steps) / mean_s**2
        sigma = math.sqrt(math.log1p(variance))
        stretch.factor = math.exp(generator.gauss(0.0, sigma) - sigma * sigma / 2)
    stretch.end_s = stretch.start_s + stretch.factor * mean_s
