"""What an agent does in a synthetic session: a list of steps, one between each request and the next.

The order follows what coding agents do: look around, read, change, run the tests, and go back when they fail.
Everything is drawn from `rng`, a function that gives numbers in [0, 1).
"""

from collections.abc import Callable
from dataclasses import dataclass

Rng = Callable[[], float]

_SECOND = {"read": 0.25, "grep": 0.25, "glob": 0.2, "ls": 0.2, "bash": 0.1, "edit": 0.1, "fetch": 0.1}
"""How often a call of this class has company in its turn."""
_FAILS = 0.13  # of the edits
_TESTED = 0.6  # of the changes
_RED = 0.4  # of the test runs
_AFTER = {
    "read": 0.3,
    "edit": 0.27,
    "bash": 0.12,
    "grep": 0.12,
    "write": 0.05,
    "todo": 0.04,
    "user": 0.05,
    "glob": 0.03,
    "fetch": 0.02,
}
"""What comes next, by share."""


@dataclass(slots=True)
class Step:
    """The calls of one turn by class, or none when the user speaks. `failed` marks the first call."""

    calls: list[str]
    failed: bool = False


def script(steps: int, classes: frozenset[str], rng: Rng) -> list[Step]:
    """The steps of a session. Only classes of tools that the product has are used."""
    made: list[Step] = []
    for kind in ("ls", "grep", "read")[: max(1, steps // 4)]:
        _look(made, kind, classes, rng)
    while len(made) < steps:
        kind = _drawn(rng)
        if kind == "user":
            # nobody speaks twice in a row, nor right after the start
            if made[-1].calls and len(made) > 2:
                made.append(Step([]))
        elif kind in ("edit", "write"):
            _change(made, kind, classes, rng)
        else:
            _look(made, kind, classes, rng)
    return made[:steps]


def _drawn(rng: Rng) -> str:
    at = rng() * sum(_AFTER.values())
    for kind, share in _AFTER.items():
        at -= share
        if at < 0:
            return kind
    return "read"


def _look(made: list[Step], kind: str, classes: frozenset[str], rng: Rng) -> None:
    """One turn of one class, sometimes with several calls."""
    kind = kind if kind in classes else "read"
    calls = [kind]
    while len(calls) < 4 and rng() < _SECOND.get(kind, 0.0) * (1 if len(calls) == 1 else 1.4):
        calls.append(kind if rng() < 0.7 or "grep" not in classes else "grep")
    made.append(Step(calls))


def _change(made: list[Step], kind: str, classes: frozenset[str], rng: Rng) -> None:
    """A change: a failed edit is retried after another look, and tests run until they pass or patience ends."""
    if kind not in classes:
        _look(made, "read", classes, rng)
        return
    if kind == "edit" and rng() < _FAILS:
        made.append(Step(["edit"], failed=True))
        if rng() < 0.7:
            made.append(Step(["read"]))
    _look(made, kind, classes, rng)
    patience = 3
    while rng() < _TESTED and patience:
        patience -= 1
        made.append(Step(["test"]))
        if rng() >= _RED:
            return
        if rng() < 0.6:
            _look(made, "grep" if rng() < 0.4 else "read", classes, rng)
        _look(made, "edit", classes, rng)
