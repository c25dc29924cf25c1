"""docs/run-directory.md names what is there."""

import re
from pathlib import Path

from run_journals import answer, finished, manifest, search_journal

from agentperf.store.schema import SCHEMA, unit_of
from agentperf.store.summary import summarise_run

DOC = (Path(__file__).parents[2] / "docs" / "run-directory.md").read_text()
TYPES = {"int64": "int", "string": "text", "double": "float", "bool": "bool"}


def test_every_column_with_type_unit_and_null() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| ([\w/]*) \| (yes)? ?\| \S", DOC, re.MULTILINE)
    assert [(name, kind, unit, bool(null)) for name, kind, unit, null in rows] == [
        (f.name, TYPES.get(str(f.type), "list of int32"), unit_of(f.name), f.nullable) for f in SCHEMA
    ]


def test_every_field_of_the_summary() -> None:
    events, _ = search_journal(levels=(1, 2))
    summary = summarise_run(manifest(["80tps"]), [*events, finished([answer("80tps", 1, 2)])])
    names = {*summary, *summary["levels"][0], *summary["answers"][0]}
    missing = {n for n in names - {"slo"} if f"`{n}`" not in DOC}
    assert not missing
