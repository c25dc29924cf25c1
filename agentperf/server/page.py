"""A metrics page as samples: prometheus-client's parser, kept from what a huge or hostile page could do to it.

Only lines of wanted names reach the parser, and only so many and so long ones: its cost is then bounded however large
the page is. TYPE and HELP lines are left out, which keeps every name as it stands on the page (the parser renames
counters by their type); what a metric is, `engines.toml` says.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

MAX_BYTES: Final = 8 * 1024 * 1024
"""Of a page; vLLM's have some 100 KB."""
MAX_LINES: Final = 20_000
"""Lines of wanted names; hundreds of engines have so many."""
MAX_LINE: Final = 2048
"""Bytes in one of them; an engine's have 100 to 200."""
MAX_PARSED: Final = 2 * 1024 * 1024
"""Bytes of all of them: the parser takes up to half a microsecond for each, and the run's other work waits for it."""

Labels = tuple[tuple[str, str], ...]
"""Sorted by name."""
Series = Mapping[Labels, float]
"""Value by labels, of one metric."""

_NAME: Final = re.compile(rb"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)")


class PageError(Exception):
    """A page that cannot be used; the text says why, in a few words, and goes into results."""


class Page(Struct, frozen=True):
    """The wanted samples of one page at one moment; finite and not negative."""

    samples: dict[str, dict[Labels, float]]

    def series(self, name: str) -> Series:
        """All series of a sample name; none is an empty mapping."""
        return self.samples.get(name, {})


def read_page(data: bytes, wanted: frozenset[str]) -> Page:
    """The wanted samples of a page in Prometheus text format. PageError when it is not one, or out of bounds."""
    if len(data) > MAX_BYTES:
        raise PageError(f"the page is larger than {MAX_BYTES >> 20} MiB")
    start = data[:64].lstrip()[:1]
    if start in (b"{", b"[", b"<"):
        raise PageError(f"the page is {'HTML' if start == b'<' else 'JSON'}, not Prometheus text")
    lines = list(_wanted_lines(data, wanted))
    samples: dict[str, dict[Labels, float]] = {}
    for name, labels, value in _parse("\n".join(lines)):
        if not (math.isfinite(value) and value >= 0):
            continue
        series = samples.setdefault(name, {})
        if labels in series:
            raise PageError(f"the page has two values of one series of {name}")
        series[labels] = value
    return Page(samples)


def _wanted_lines(data: bytes, wanted: frozenset[str]) -> Iterator[str]:
    count = size = 0
    for line in data.split(b"\n"):
        found = _NAME.match(line)
        if found is None or found[1].decode("ascii") not in wanted:
            continue
        count += 1
        size += len(line)
        if count > MAX_LINES or size > MAX_PARSED:
            raise PageError(f"the page has more than {MAX_LINES:,} lines, or 2 MiB, of the metrics that are read")
        if len(line) > MAX_LINE:
            raise PageError(f"the page has a line of more than {MAX_LINE:,} bytes")
        yield line.decode("utf-8", "replace")


def _parse(text: str) -> Iterator[tuple[str, Labels, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield sample.name, tuple(sorted(sample.labels.items())), float(sample.value)
    except (ValueError, IndexError, KeyError, OverflowError, RecursionError) as error:
        said = " ".join(str(error).split())[:80] or type(error).__name__
        raise PageError(f"the page cannot be parsed: {said}") from error
