"""Where the files that come with agentperf lie: beside the package in a checkout, inside it once installed."""

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """The folder `traces` or `slo_tiers` that belongs to this copy of agentperf."""
    packed = _HERE / "_data" / name
    return packed if packed.is_dir() else _HERE.parent / name
