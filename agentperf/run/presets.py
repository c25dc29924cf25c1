"""Protocols as data: named sets of knobs, read from `protocols/*.toml`, applied to what the command line left open.

A flag that is given replaces the preset's value, and the run is then labelled "not NAME" with what differs. Where a
public protocol is silent the file names the choice and its reason; both go into the manifest.
"""

from collections.abc import Collection, Mapping
from importlib import resources
from typing import Any, Literal

import msgspec
from msgspec import Struct

from agentperf.errors import UsageError

_PACKAGE = "agentperf.run"
_FOLDER = "protocols"


class Silent(Struct, frozen=True, forbid_unknown_fields=True):
    """A knob that the protocol's publications say nothing of, and what was chosen for it."""

    knob: str
    choice: str
    why: str


class Knobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What no flag sets."""

    phase_sessions: int = 0
    """Whole sessions that a window must have seen completed; 0: no such rule."""
    phase_sessions_per_agent: int = 0
    """The same for each agent."""
    decide: Literal["confidence", "point"] = "confidence"
    """confidence: by the interval of each term; point: the measured percentile against the limit."""
    speed: Literal["first_event", "n-1"] = "first_event"
    """Which tokens the output speed leaves out: those of the first event, or one."""
    output_cap: int = 16_384
    reprobes: int | None = None
    """Second looks that the search may take; None: the planner's default."""


class Preset(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One protocol."""

    about: str
    flags: dict[str, str | int | float]
    """By name of the option (dashes as underscores), as they would stand on the command line."""
    knobs: Knobs
    open: tuple[str, ...] = ()
    """Of these flags, those that may be given without departing from the protocol."""
    closed: tuple[str, ...] = ()
    """Further flags that depart from it when they are given at all."""
    silent: tuple[Silent, ...] = ()

    def sentences(self, name: str) -> list[str]:
        """What was chosen where the protocol is silent, for the manifest."""
        return [f"{name} is silent on {s.knob}: {s.choice} ({s.why})" for s in self.silent]


def preset_names() -> list[str]:
    """The protocols there are."""
    folder = resources.files(_PACKAGE) / _FOLDER
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def load_preset(name: str) -> Preset:
    """A protocol by name. UsageError when there is none."""
    if name not in preset_names():
        raise UsageError(f"--protocol {name!r} is unknown", f"it is one of: {', '.join(preset_names())}")
    data = (resources.files(_PACKAGE) / _FOLDER / f"{name}.toml").read_bytes()
    return msgspec.toml.decode(data, type=Preset)


def applied(given: Mapping[str, Any], said: Collection[str], preset: Preset) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The flags with the preset's values where none was said, and the flags that depart from it, as they were said."""
    merged = dict(given)
    departed: list[str] = []
    for name, value in preset.flags.items():
        if name not in said:
            merged[name] = value
        elif given[name] != value and name not in preset.open:
            departed.append(_as_said(name, given[name]))
    departed += [_as_said(name, given[name]) for name in preset.closed if name in said]
    return merged, tuple(departed)


def _as_said(name: str, value: Any) -> str:
    return f"--{name.replace('_', '-')} {value}"
