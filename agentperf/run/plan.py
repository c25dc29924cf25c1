"""What a run is to do, as data: every knob that the manifest discloses."""

from typing import Any, Literal

from msgspec import Struct

from agentperf.measure.window import WindowSettings
from agentperf.search.model import SearchSettings
from agentperf.slo.model import Slo
from agentperf.slo.verdict import Rules

Protocol = Literal["quick", "sweep", "fixed"]


class Plan(Struct, frozen=True, kw_only=True):
    """A run: which SLOs, how levels are chosen, how each is measured, and for how long in all."""

    protocol: Protocol
    slos: tuple[Slo, ...]
    window: WindowSettings
    rules: Rules
    search: SearchSettings | None = None
    levels: tuple[int, ...] = ()
    duration_s: float | None = None
    """A fixed window for every level, for sweeps and fixed levels; None: a window ends when its verdict is decided."""
    spread_s: float = 5.0
    budget_s: float | None = None
    isolated: bool = True
    """Each play has its own cache salt, so a hit rate above what its session explains is a leak."""
    chars_per_token: float | None = None
    """By the endpoint's own count of the calibration's text: what its counts of output are checked against."""

    def knobs(self) -> dict[str, Any]:
        """The plan as JSON, for the manifest."""
        import msgspec

        data: dict[str, Any] = msgspec.to_builtins(self)
        data["slos"] = [{"name": s.name, "canonical": str(s), "source": s.source} for s in self.slos]
        return data
