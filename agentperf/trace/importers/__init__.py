"""One module for each foreign format that becomes a trace set.

Each has `detect(path) -> bool` and `read(paths, options) -> ImportResult`. `FORMATS` names them; they are imported when
they are used, so that listing them costs nothing.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from agentperf.errors import UsageError
from agentperf.trace.importers.result import ImportOptions, ImportReport, ImportResult

__all__ = ["FORMATS", "ImportOptions", "ImportReport", "ImportResult", "detect_format"]

FORMATS: dict[str, str] = {
    "claude-code": "agentperf.trace.importers.claude_code",
    "weka": "agentperf.trace.importers.weka",
}
"""Module by name of the format."""


def detect_format(paths: Sequence[Path]) -> str:
    """The one format that all the files and folders have. Raises UsageError when there is none, or several."""
    fits = [name for name, module in FORMATS.items() if all(import_module(module).detect(p) for p in paths)]
    if len(fits) != 1:
        what = f"could be any of {', '.join(fits)}" if fits else "not a recording in a known format"
        where = str(paths[0]) if paths else "nothing given"
        raise UsageError(f"{where}: {what}", f"name it with --format; known: {', '.join(FORMATS)}")
    return fits[0]
