"""What a run is to do, as data: every knob that the manifest discloses."""

from typing import Any, Literal

from msgspec import Struct

from agentperf.measure.window import WindowSettings
from agentperf.search.model import SearchSettings
from agentperf.slo.model import Slo
from agentperf.slo.verdict import Rules

Protocol = Literal["quick", "sweep", "fixed"]
"""How levels are chosen: by search, from a list, or the one that is given."""


class Phase(Struct, frozen=True):
    """What a window must have seen before it may close, as some protocols ask."""

    sessions: int
    """Whole sessions completed, by all agents together."""
    sessions_per_agent: int


class Plan(Struct, frozen=True, kw_only=True):
    """A run: which SLOs, how levels are chosen, how each is measured, and for how long in all."""

    protocol: Protocol
    preset: str = "quick"
    """The named protocol whose knobs these are."""
    departures: tuple[str, ...] = ()
    """Flags by which the run departs from it: it is then not that protocol."""
    phase: Phase | None = None
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

    @property
    def label(self) -> str:
        """The protocol by its name; "not NAME" when a flag departs from it."""
        return f"not {self.preset}: {', '.join(self.departures)}" if self.departures else self.preset

    def knobs(self) -> dict[str, Any]:
        """The plan as JSON, for the manifest."""
        import msgspec

        data: dict[str, Any] = msgspec.to_builtins(self)
        data["label"] = self.label
        data["slos"] = [{"name": s.name, "canonical": str(s), "source": s.source} for s in self.slos]
        return data
