"""The replicas of a profile: so many engines behind one address, each with a clock of its own on the running loop."""

from collections.abc import Callable, Hashable, Iterable

from agentperf.sim.driver import EngineDriver
from agentperf.sim.engine import Engine
from agentperf.sim.kv import Pool
from agentperf.sim.metrics import Counters, Gauges, summed
from agentperf.sim.profile import Profile
from agentperf.sim.router import Router

_SEED_STEP = 7919


class Replicas:
    """Engines, and who gets which request. They start with `start`, on the loop that runs then."""

    def __init__(self, profile: Profile, seed: int, pool: Callable[[int], Pool], *, each_token: bool) -> None:
        blocks = profile.kv_pool_tokens // profile.block_tokens
        self.engines = [
            Engine(profile, seed + _SEED_STEP * i, each_token=each_token, pool=pool(blocks))
            for i in range(profile.replicas)
        ]
        self._router = Router(profile.replicas)
        self._drivers: list[EngineDriver] = []
        self._now_s: Callable[[], float] | None = None

    @property
    def running(self) -> bool:
        """Whether they have been started and not stopped."""
        return bool(self._drivers)

    def start(self, now_s: Callable[[], float], slack_s: float) -> None:
        """Begin to take requests."""
        self._now_s = now_s
        self._drivers = [EngineDriver(engine, now_s, slack_s) for engine in self.engines]

    def stop(self) -> None:
        """Jobs that have not ended never will."""
        for driver in self._drivers:
            driver.close()
        self._drivers = []

    def choose(self, names: Iterable[Hashable]) -> EngineDriver:
        """The replica for a prompt, by the names of its blocks, last one first."""
        return self._drivers[self._router.choose(names, self._load)]

    def _load(self, replica: int) -> int:
        return self.engines[replica].load

    def totals(self) -> tuple[Counters, Gauges]:
        """What all of them have counted up to now, and their state; KV use is that of all pools together."""
        now_s = self._now_s() if self._now_s is not None else 0.0
        return summed([engine.seen(now_s) for engine in self.engines])
