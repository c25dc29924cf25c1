"""The example in docs/trace-format.md is a good trace, as agentperf itself would write it."""

from pathlib import Path

import msgspec

from agentperf.trace import io, model
from agentperf.trace.stats import describe
from agentperf.trace.validate import validate

PAGE = Path(__file__).parents[2] / "docs" / "trace-format.md"


def example(tmp_path: Path) -> Path:
    text = PAGE.read_text(encoding="utf-8")
    block = text.split("<!-- example: a test reads and validates it -->\n```jsonl\n")[1].split("```")[0]
    path = tmp_path / "example.jsonl"
    path.write_text(block, encoding="utf-8")
    return path


def test_example_is_valid(tmp_path: Path) -> None:
    assert validate(example(tmp_path)) == []


def test_example_shows_every_mode_but_full_and_every_kind(tmp_path: Path) -> None:
    records = [r for _, r in io.iter_records(example(tmp_path))]
    assert {type(r) for r in records} == {model.Header, model.Blob, model.Session, model.Request}
    modes = {type(r.input).__name__ for r in records if isinstance(r, model.Request)}
    assert modes == {"Append", "Splice", "Shape"}


def test_example_survives_and_can_be_described(tmp_path: Path) -> None:
    read = io.load(example(tmp_path))
    io.write(read, tmp_path / "again.jsonl")
    assert io.load(tmp_path / "again.jsonl") == read
    stats = describe(read)
    assert (stats.sessions, stats.trees, stats.subagents, stats.requests) == (2, 1, 1, 5)
    # main: 0 of 180 (nothing before), 180 of 260, 180 of 200; helper: 0 of 1,545, 1,545 of 1,685
    assert stats.ideal_prefix_hit == (180 + 180 + 1545) / (180 + 260 + 200 + 1545 + 1685)


def test_the_page_names_every_field_of_the_types() -> None:
    text = PAGE.read_text(encoding="utf-8")
    nested = (model.Counts, model.Recorded, model.PrefixEvent, model.Dependency)  # said in words or by the example
    for name in vars(model):
        kind = getattr(model, name)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in nested:
            for field in msgspec.structs.fields(kind):
                if name not in ("SessionTrace", "TraceSet") and field.name not in ("extra", "value", "block"):
                    assert f"`{field.name}`" in text, f"{name}.{field.name}"
