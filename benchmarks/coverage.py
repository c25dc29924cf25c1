"""Coverage of the statistics by simulation: is the stated confidence true? Prints the tables of docs/statistics.md.

    python -m benchmarks.coverage [--searches 1000] [--windows 1000] [--setting NAME ...] [--plot DIR]

Requests are drawn from a model of an endpoint whose capacity is known; no engine, no client, no clock. What judges them
is the real thing: the planner, the spending of the error, the rule of looks, the verdicts. Two questions:

- searches: how often does the bracket hold the capacity, and what did it cost?
- windows (A/A): at a level whose share is exactly the one that is allowed, watched to the end of the longest window,
  how often is there a verdict although there is none to give?
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from agentperf.measure.window import WindowSettings, look_at
from agentperf.search.model import Done, Point, ProbeResult, SearchSettings
from agentperf.search.planner import next_step
from agentperf.slo.expression import parse
from agentperf.slo.model import Slo
from agentperf.slo.verdict import Observations, Rules, Verdict, judge
from agentperf.stats import shares
from agentperf.stats.sequence import Counts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CYCLE_S = 12.0
"""Mean time from one request of an agent to its next."""
PLAY_TURNS = 15
"""Mean turns of a play; its length is geometric."""
SLO = parse("p25 speed >= 80 tok/s, p95 ttft <= 5 s, errors <= 1 %")
WINDOW = WindowSettings()
HOPELESS = 5.0
"""As run/probe.py: a level is left when that many of the longest windows would not decide it."""
WARMUP_S = 36.0
"""Time that a probe costs beside its window: warm-up and the way to the next level."""


@dataclass(frozen=True)
class Setting:
    """A model of log speed: steepness over the level, and the parts of its spread (standard deviations).

    `play` is shared by the requests of a play, `load` by all requests of a time (an AR(1) process with correlation time
    `load_s`), `rest` is each request's own. `cold` first turns of a play have half the speed. `burst_s` long stretches
    in which all requests have 0.6 of the speed take `burst_share` of the time.
    """

    name: str
    steepness: float = 1.0
    play: float = 0.0
    load: float = 0.05
    load_s: float = 3.0
    rest: float = 0.2
    cold: bool = False
    burst_s: float = 0.0
    burst_share: float = 0.0

    @property
    def icc(self) -> float:
        """Correlation of the log speeds of two requests of one play."""
        return self.play**2 / (self.play**2 + self.load**2 + self.rest**2)


def _icc(icc: float, total: float = 0.2) -> tuple[float, float]:
    return total * math.sqrt(icc), total * math.sqrt(1 - icc)


SETTINGS = (
    Setting("independent", load=0.0),
    Setting("sessions, icc 0.05", play=_icc(0.05)[0], rest=_icc(0.05)[1], load=0.0),
    Setting("sessions, icc 0.2", play=_icc(0.2)[0], rest=_icc(0.2)[1], load=0.0),
    Setting("sessions, icc 0.5", play=_icc(0.5)[0], rest=_icc(0.5)[1], load=0.0),
    Setting("load varies over 6 s", play=0.06, load=0.1, load_s=6.0, rest=0.17),
    Setting("speed drifts over 30 s", play=0.06, load=0.08, load_s=30.0, rest=0.17),
    Setting("cold and warm turns", play=0.08, load=0.05, load_s=5.0, rest=0.12, cold=True),
    Setting("noisy edge", steepness=0.4, play=0.12, load=0.12, load_s=4.0, rest=0.25),
    Setting("bursts of 10 s", play=0.06, load=0.04, rest=0.15, burst_s=10.0, burst_share=0.15),
)


class World:
    """An endpoint of known capacity: the share of slow requests is 25 % at `capacity` agents exactly."""

    def __init__(self, setting: Setting, capacity: float, rng: np.random.Generator) -> None:
        self.setting, self.capacity, self.rng = setting, capacity, rng
        self.edge = edge_of(setting)

    def requests(self, agents: int, seconds: float, at_edge: bool = False) -> Observations:
        """All requests that `agents` agents issue in a window of this length, in order."""
        s, rng = self.setting, self.rng
        start, agent = self._starts(agents, seconds)
        play, turn = _plays(agent, rng)
        n = start.size
        common = self._load(start, seconds)
        own = rng.normal(0, 1, n) * s.rest + rng.normal(0, 1, int(play.max()) + 1)[play] * s.play
        log_speed = own + common + (np.log(0.5) * (turn == 1) if s.cold else 0.0)
        level = 0.0 if at_edge else math.log(agents / self.capacity)
        speed = 80.0 * np.exp(log_speed - self.edge - s.steepness * level)
        # TTFT follows the load; its own limit is crossed a little above the capacity.
        ttft = 1.2 * np.exp(0.45 * rng.normal(0, 1, n) - 1.5 * common + 1.5 * s.steepness * level)
        failed = rng.random(n) < 0.0005
        speed, ttft = np.where(failed, 0.0, speed), np.where(failed, np.inf, ttft)
        return Observations(speed, ttft, ttft, ttft, speed, turn, play, failed, start)

    def _starts(self, agents: int, seconds: float) -> tuple[Floats, Ints]:
        """Each agent issues requests at gamma-distributed distances, from a random point on."""
        count = int(seconds / CYCLE_S * 2) + 8
        gaps = self.rng.gamma(4.0, CYCLE_S / 4, (agents, count))
        times = np.cumsum(gaps, axis=1) - self.rng.uniform(0, 1, (agents, 1)) * gaps[:, :1]
        keep = times < seconds
        agent = np.broadcast_to(np.arange(agents)[:, None], times.shape)[keep]
        order = np.argsort(times[keep], kind="stable")
        return times[keep][order], agent[order]

    def _load(self, start: Floats, seconds: float) -> Floats:
        """What all requests of a time share."""
        s, rng, step = self.setting, self.rng, 0.5
        ticks = int(seconds / step) + 2
        values = np.zeros(ticks)
        if s.load > 0:
            keep = math.exp(-step / s.load_s)
            noise = rng.normal(0, s.load, ticks)
            values[0] = noise[0]
            for i in range(1, ticks):
                values[i] = keep * values[i - 1] + math.sqrt(1 - keep * keep) * noise[i]
        if s.burst_s > 0:
            values += np.log(0.6) * _bursts(ticks, s.burst_s / step, s.burst_share, rng)
        found: Floats = values[(start / step).astype(int)]
        return found


def _bursts(ticks: int, length: float, share: float, rng: np.random.Generator) -> Floats:
    found, on, at = np.zeros(ticks), bool(rng.random() < share), 0
    while at < ticks:
        stay = int(rng.geometric(1 / max(1.0, length if on else length * (1 - share) / share)))
        found[at : at + stay] = on
        at, on = at + stay, not on
    return found


def _plays(agent: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Play and turn (from 1) of each request; agents start inside a play."""
    n, agents = agent.size, int(agent.max()) + 1
    order = np.argsort(agent, kind="stable")
    ends = rng.random(n) < 1 / PLAY_TURNS
    first = np.ones(n, dtype=bool)
    first[1:] = (agent[order][1:] != agent[order][:-1]) | ends[:-1]
    number = np.cumsum(first) - 1
    begin = np.flatnonzero(first)
    turn = np.arange(n) - begin[number] + 1
    entered = np.zeros(number[-1] + 1, dtype=np.int64)
    opens = np.ones(n, dtype=bool)
    opens[1:] = agent[order][1:] != agent[order][:-1]
    entered[number[opens]] = rng.geometric(1 / PLAY_TURNS, agents)[: int(opens.sum())] - 1
    turn = turn + entered[number]
    play, turns = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    play[order], turns[order] = number, turn
    return play, turns


_EDGES: dict[Setting, float] = {}


def edge_of(setting: Setting) -> float:
    """The 25th percentile of log speed at level 0 over all time, by a large sample of the parts."""
    if setting not in _EDGES:
        rng = np.random.default_rng(99)
        n = 4_000_000
        total = rng.normal(0, math.sqrt(setting.play**2 + setting.load**2 + setting.rest**2), n)
        if setting.cold:
            total += np.log(0.5) * (rng.random(n) < 1 / PLAY_TURNS)
        if setting.burst_s:
            total += np.log(0.6) * (rng.random(n) < setting.burst_share)
        _EDGES[setting] = float(np.quantile(total, 0.25))
    return _EDGES[setting]


def _until(obs: Observations, n: int) -> Observations:
    return Observations(*(getattr(obs, name)[:n] for name in Observations.__slots__))


def hold(
    world: World, agents: int, rules: Rules, slo: Slo, *, may_lean: bool, earlier: dict[str, Counts] | None
) -> tuple[Verdict, float]:
    """One probe by the real rule of looks: its verdict and the length of its window, in s."""
    obs = world.requests(agents, WINDOW.window_max_s)
    look, verdict = 0, None
    while True:
        n = look_at(look, agents, WINDOW)
        look += 1
        n = max(n, int(np.searchsorted(obs.start_s, WINDOW.window_min_s)))
        over = n >= len(obs)
        elapsed = WINDOW.window_max_s if over else float(obs.start_s[n - 1])
        verdict = judge(slo, obs if over else _until(obs, n), rules, earlier, n / elapsed)
        leans = may_lean and verdict.lean is not None
        hopeless = elapsed >= WINDOW.window_max_s / 3 and (
            verdict.more_minutes is None or verdict.more_minutes * 60 > HOPELESS * WINDOW.window_max_s
        )
        if over or verdict.status != "inconclusive" or leans or hopeless:
            return verdict, elapsed


@dataclass
class Found:
    """What one search came to."""

    low: int
    high: int | None
    estimate: float | None
    band: tuple[float | None, float | None]
    minutes: float
    probes: int
    right: bool
    reason: str


def search(world: World, setup: SearchSettings, slo: Slo = SLO) -> Found:
    """A whole search with the real planner."""
    history: list[ProbeResult] = []
    counts: dict[int, dict[str, Counts]] = {}
    seconds = 0.0
    while not isinstance(step := next_step(setup, history), Done):
        rules = Rules(min_requests=WINDOW.first_look, min_plays=min(5, step.level), alpha=step.alpha, agents=step.level)
        before = counts.setdefault(step.level, {})
        verdict, window_s = hold(world, step.level, rules, slo, may_lean=step.may_lean, earlier=before)
        seconds += window_s + WARMUP_S
        for t in verdict.terms:
            before[t.term] = before.get(t.term, Counts(0.0, 0.0)) + t.counts
        points = tuple(
            Point(term=t.term, share=t.share, n_eff=t.n_eff, allowed=t.allowed_share)
            for t in verdict.terms
            if t.share is not None
        )
        name = setup.slos[0]
        history.append(
            ProbeResult(
                level=step.level,
                statuses={name: verdict.status},
                lean={name: verdict.lean},
                points={name: points},
                hopeless={name: verdict.more_minutes is None or verdict.more_minutes * 60 > WINDOW.window_max_s},
            )
        )
    answer = step.answers[0]
    low, high, guess = answer.largest_pass or 0, answer.smallest_fail, answer.estimate
    right = low <= world.capacity and (high is None or high > world.capacity)
    return Found(
        low,
        high,
        None if guess is None else guess.agents,
        (None, None) if guess is None else (guess.low, guess.high),
        seconds / 60,
        len(history),
        right,
        answer.reason,
    )


def searches(setting: Setting, count: int, seed: int = 1) -> list[Found]:
    """`count` searches on endpoints whose capacities are spread evenly, on a log scale, from 6 to 100 agents."""
    rng = np.random.default_rng(seed)
    setup = SearchSettings(slos=("slo",), max_agents=512)
    return [
        search(World(setting, float(np.exp(rng.uniform(np.log(6), np.log(100)))), rng), setup) for _ in range(count)
    ]


def windows(setting: Setting, count: int, agents: int = 40, alpha: float = 0.025, seed: int = 2) -> tuple[int, int]:
    """A/A: (passes, fails) for the speed term alone at its very edge, looked at after every 5 % more requests."""
    rng = np.random.default_rng(seed)
    slo = replace(SLO, terms=SLO.terms[:1])
    rules = Rules(min_requests=WINDOW.first_look, min_plays=5, alpha=alpha, agents=agents)
    passes = fails = 0
    for _ in range(count):
        obs = World(setting, agents, rng).requests(agents, WINDOW.window_max_s, at_edge=True)
        n = look_at(0, agents, WINDOW)
        while n <= len(obs):
            status = judge(slo, _until(obs, n), rules).status
            if status != "inconclusive":
                passes, fails = passes + (status == "pass"), fails + (status == "fail")
                break
            n = max(n + 1, int(n * 1.05))
    return passes, fails


def binomial(k: int, n: int) -> tuple[float, float]:
    """Clopper-Pearson 95 % interval of a share."""
    low = float(stats.beta.ppf(0.025, k, n - k + 1)) if k else 0.0
    return low, float(stats.beta.ppf(0.975, k + 1, n - k)) if k < n else 1.0


def _show_searches(found: Sequence[Found], capacities_note: str) -> str:
    n, right = len(found), sum(f.right for f in found)
    low, high = binomial(right, n)
    closed = [f for f in found if f.low and f.high]
    width = float(np.median([f.high / f.low - 1 for f in closed if f.high])) if closed else math.nan
    share = {r: sum(f.reason == r for f in found) / n for r in ("found", "narrowed", "inconclusive")}
    return (
        f"| {capacities_note} | {n} | {right / n:.3f} [{low:.3f}, {high:.3f}] | {width:.0%} | "
        f"{np.median([f.minutes for f in found]):.0f} | {np.median([f.probes for f in found]):.0f} | "
        f"{share['found']:.0%} / {share['narrowed']:.0%} / {share['inconclusive']:.0%} |"
    )


def _each(settings: Sequence[Setting], title: Sequence[str], line: Callable[[Setting], str]) -> None:
    for text in title:
        print(text, flush=True)
    for setting in settings:
        print(line(setting), flush=True)
    print(flush=True)


def plot(rows: dict[str, tuple[float, float, float]], path: Path, label: str, bound: float) -> None:
    """One figure: a share with its interval for each setting, against the bound that is stated."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.45 * len(rows) + 1.2), constrained_layout=True)
    for i, (value, low, high) in enumerate(reversed(rows.values())):
        axes.errorbar(value, i, xerr=[[value - low], [high - value]], fmt="o", color="#1f5fa8", capsize=3)
    axes.set_yticks(range(len(rows)), list(reversed(rows)))
    axes.axvline(bound, color="#b03030", linestyle="--", linewidth=1)
    axes.set_xlabel(label)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=1000)
    parser.add_argument("--windows", type=int, default=1000)
    parser.add_argument("--setting", nargs="*", help="beginning of the names of settings")
    parser.add_argument("--plot", type=Path, help="folder for the figures")
    args = parser.parse_args()
    chosen = [s for s in SETTINGS if not args.setting or any(s.name.startswith(w) for w in args.setting)]
    began = time.monotonic()
    # Bounds are shown to people and decide nothing; without them a look costs a third.
    vars(shares)["bounds"] = lambda *_: (0.0, 1.0)
    aa: dict[str, tuple[float, float, float]] = {}
    right: dict[str, tuple[float, float, float]] = {}

    def window_line(setting: Setting) -> str:
        passes, fails = windows(setting, args.windows)
        low, high = binomial(passes + fails, args.windows)
        aa[setting.name] = (passes + fails) / args.windows, low, high
        rate = (passes + fails) / args.windows
        return f"| {setting.name} | {args.windows} | {rate:.3f} [{low:.3f}, {high:.3f}] | {passes} | {fails} |"

    def search_line(setting: Setting) -> str:
        found = searches(setting, args.searches)
        hits = sum(f.right for f in found)
        right[setting.name] = hits / len(found), *binomial(hits, len(found))
        return _show_searches(found, setting.name)

    if args.windows:
        title = ("| setting | windows | false verdicts [95 %] | passes | fails |", "|---|--:|---|--:|--:|")
        _each(chosen, title, window_line)
    if args.searches:
        title = (
            "| setting | searches | bracket right [95 %] | width | minutes | probes | found / narrowed / undecided |",
            "|---|--:|---|--:|--:|--:|---|",
        )
        _each(chosen, title, search_line)
    if args.plot:
        args.plot.mkdir(parents=True, exist_ok=True)
        if aa:
            plot(aa, args.plot / "statistics-windows.svg", "false verdicts at the edge", 0.05)
        if right:
            plot(right, args.plot / "statistics-searches.svg", "brackets that hold the capacity", 0.95)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
