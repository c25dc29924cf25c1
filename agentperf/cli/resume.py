"""`agentperf run --resume DIR`: the flags of the run that is taken up, from its manifest."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from agentperf.errors import UsageError
from agentperf.store.rundir import read_run

FREE = frozenset(
    {"resume", "endpoint", "header", "api_key_env", "wait", "budget", "plain", "json", "dry_run", "metrics_url"}
)
"""What may be said anew: secrets that no file keeps, how to wait, for how long to go on, and what to show."""

_NOT_KEPT = frozenset({"context_of_call", "resume", "header", "api_key_env", "wait", "plain", "json", "dry_run"})
MASK = "***"


def invocation(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flags as they go into the manifest: without header values, paths as text."""
    kept = {name: value for name, value in given.items() if name not in _NOT_KEPT}
    return {name: str(value) if isinstance(value, Path) else value for name, value in kept.items()}


def taken_up(given: Mapping[str, Any], said: Collection[str], directory: Path) -> tuple[dict[str, Any], set[str]]:
    """The flags of the old run with what may be said anew, and which of them were said, then or now.

    UsageError for a flag that would change the measurement.
    """
    old = read_run(directory).manifest.get("invocation")
    if not isinstance(old, Mapping):
        raise UsageError(f"{directory} does not say how it was started", "start a new run, without --resume")
    for name in sorted(set(said) - FREE):
        if name in old and invocation({name: given[name]})[name] != old[name]:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} differs from that of the run in {directory}", "leave it out, or start a new run")
    merged = {name: _typed(name, old[name]) if name in old else given[name] for name in given}
    for name in FREE.intersection(said):
        merged[name] = given[name]
    if isinstance(merged["endpoint"], str) and MASK in merged["endpoint"]:
        raise UsageError("the endpoint's address held a secret that no file keeps", "give --endpoint again")
    return merged, {*old.get("said", ()), *FREE.intersection(said)}


_PATHS = frozenset({"out", "ca_file", "deployment"})


def _typed(name: str, value: Any) -> Any:
    """A value of the manifest as the command line would give it."""
    return Path(value) if name in _PATHS and value is not None else value
