"""The table of failure classes in the documentation is the one of the code."""

import re
from pathlib import Path

from agentperf.wire.failures import MEANINGS

PAGE = Path(__file__).parents[2] / "docs" / "replies.md"


def test_every_class_is_told() -> None:
    table = PAGE.read_text().partition("## Classes of failure")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE)
    assert dict(rows) == MEANINGS and len(rows) == len(MEANINGS)
