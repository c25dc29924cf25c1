"""The run directory: what goes in comes out, also after kill -9 at any moment."""

import datetime as dt
import json
import math
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_journals import NOW, answer, finished, manifest, record, search_journal

from agentperf.errors import ClientError, UsageError
from agentperf.measure.record import COLUMNS, Record
from agentperf.store import stream as stream_module
from agentperf.store.rundir import FLUSH_ROWS, RunWriter, check_writable, default_directory, read_run
from agentperf.store.schema import SCHEMA, SCHEMA_VERSION, to_batch, to_records, unit_of
from agentperf.store.stream import encode_batch, read_batches

ANY_INT = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def _field(name: str, hint: object) -> st.SearchStrategy[object]:
    if name == "event_offsets_us":
        return st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=8).map(
            lambda v: np.array(v, dtype="<i4").tobytes()
        )
    if name == "phase":
        return st.sampled_from(["warmup", "window", "cooldown"])
    base = {int: ANY_INT, str: TEXT, bool: st.booleans(), float: st.floats(allow_nan=False)}
    parts = getattr(hint, "__args__", (hint,))
    options = [base[p] if p is not type(None) else st.none() for p in parts]
    return st.one_of(*options)


RECORDS = st.builds(Record, **{name: _field(name, hint) for name, hint in Record.__annotations__.items()})


@given(st.lists(RECORDS, max_size=12))
@settings(max_examples=60, deadline=None)
def test_records_survive_the_schema(records: list[Record]) -> None:
    batch = to_batch(records)
    assert batch.schema == SCHEMA
    assert to_records(pa.Table.from_batches([batch])) == records


def test_the_schema_follows_the_struct() -> None:
    assert tuple(SCHEMA.names) == COLUMNS
    assert SCHEMA.metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()
    assert SCHEMA.field("speed_tps").metadata == {b"unit": b"tok/s"}
    assert SCHEMA.field("t0_ns").type == pa.int64()
    assert not SCHEMA.field("t0_ns").nullable
    assert SCHEMA.field("sent_ns").nullable
    assert SCHEMA.field("event_offsets_us").type.value_type == pa.int32()
    assert unit_of("ttft_s") == "s"
    assert unit_of("first_event_tokens") == "tokens"
    assert unit_of("error_class") == ""


def test_what_a_server_invents_does_not_lose_a_record() -> None:
    odd = record(1, prompt_tokens=2**63, error="lone \ud800 surrogate", cached_tokens=2**63 - 1)
    (back,) = to_records(pa.Table.from_batches([to_batch([odd])]))
    assert back.prompt_tokens is None
    assert back.cached_tokens == 2**63 - 1
    assert back.error == "lone \\ud800 surrogate"
    assert back.request_id == odd.request_id


def test_a_file_without_newer_columns_is_read() -> None:
    table = pa.Table.from_batches([to_batch([record(1)])]).drop_columns(["event_offsets_us", "notes"])
    (back,) = to_records(table)
    assert back == msgspec.structs.replace(record(1), event_offsets_us=None)


def _write(directory: Path, *, finish: bool = True) -> tuple[RunWriter, list[Record]]:
    events, records = search_journal()
    writer = RunWriter.create(directory)
    writer.write_manifest(manifest(["80tps"]))
    for row in records:
        writer.add([row])
    for event in events:
        writer.journal(event)
    if finish:
        writer.journal(finished([answer("80tps", 16, 20)]))
        writer.finish()
    return writer, records


def test_a_whole_run(tmp_path: Path) -> None:
    directory = default_directory(tmp_path, "GLM 5.3 / 80tps", NOW)
    assert directory.name == "20261201T093000Z-GLM-5.3-80tps"
    _, records = _write(directory)
    assert sorted(p.name for p in directory.iterdir()) == [
        "events.jsonl",
        "manifest.json",
        "records.parquet",
        "summary.json",
    ]
    run = read_run(directory)
    assert run.complete
    assert run.manifest["model"] == "glm-5.3"
    assert run.summary == run.summarised()
    assert run.events[-1]["event"] == "run_finished"
    assert to_records(run.records()) == records
    assert run.records(["level"]).column_names == ["level"]
    metadata = pq.read_metadata(directory / "records.parquet")
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    old = os.umask(0o000)
    try:
        _write(tmp_path / "run")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in (tmp_path / "run").iterdir())


def test_a_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o755)
    RunWriter.create(tmp_path / "empty")
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o700
    with pytest.raises(UsageError, match="not empty"):
        RunWriter.create(tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot make"):
        RunWriter.create(tmp_path / "file" / "run")


def test_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    first = default_directory(tmp_path, "x", NOW)
    first.mkdir()
    assert default_directory(tmp_path, "x", NOW).name == f"{first.name}-2"
    berlin = NOW.astimezone(dt.timezone(dt.timedelta(hours=1)))
    assert default_directory(tmp_path, "///", berlin).name == "20261201T093000Z-run"
    assert default_directory(tmp_path, "größe 模型/80tps", berlin).name == "20261201T093000Z-größe-模型-80tps"
    assert len(default_directory(tmp_path, "模" * 300, berlin).name.encode()) <= 255


def test_where_nothing_can_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="not a directory"):
        check_writable(tmp_path / "file" / "runs")


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def test_flushed_after_a_second_or_enough_rows(tmp_path: Path) -> None:
    clock = Clock()
    writer = RunWriter.create(tmp_path / "run", clock=clock)
    run = read_run(tmp_path / "run")
    writer.add([record(1)])
    assert run.records().num_rows == 0
    clock.now = 999_999_999
    writer.add([record(2)])
    writer.flush_if_due()
    assert run.records().num_rows == 0
    clock.now = 1_000_000_000
    writer.flush_if_due()
    assert run.records().num_rows == 2
    writer.add([record(i) for i in range(FLUSH_ROWS - 1)])
    assert run.records().num_rows == 2
    writer.add([record(0)])
    assert run.records().num_rows == 2 + FLUSH_ROWS
    writer.add([record(3)])
    writer.journal({"event": "probe_finished", "probe": 1, "level": 4, "window": {"open_ns": 0, "close_ns": 2**62}})
    assert run.records().num_rows == 3 + FLUSH_ROWS, "the records an event speaks of are written before it"


def test_a_stream_cut_anywhere_gives_every_complete_batch(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run")
    path = tmp_path / "run" / "records.arrows"
    sizes, ends, number = (1, 3, 0, 7), [path.stat().st_size], 0
    for size in sizes:
        writer.add([record(number + i) for i in range(size)])
        number += size
        writer.flush()
        if size:
            ends.append(path.stat().st_size)
    data = path.read_bytes()
    rows_at = dict(zip(ends, (0, 1, 4, 11), strict=True))
    cut = tmp_path / "cut.arrows"
    near = {end + d for end in ends for d in range(-17, 18)}
    offsets = sorted({n for n in near | set(range(0, len(data), 61)) if 0 <= n <= len(data)})
    for offset in offsets:
        cut.write_bytes(data[:offset])
        rows = sum(b.num_rows for b in read_batches(cut))
        assert rows == max((n for end, n in rows_at.items() if end <= offset), default=0), offset
    cut.write_bytes(data + b"\0" * 4096)
    assert sum(b.num_rows for b in read_batches(cut)) == 11, "a tail of zeros, as after a power cut"


def test_a_torn_last_line_is_no_event(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run")
    writer.journal({"event": "run_started", "at": "x"})
    path = tmp_path / "run" / "events.jsonl"
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole + whole[:cut])
        run = read_run(tmp_path / "run")
        assert (len(run.events), run.unreadable_events) == (1, 0)
    path.write_bytes(b"{ torn }\n" + whole + b"[1]\n")
    run = read_run(tmp_path / "run")
    assert (len(run.events), run.unreadable_events) == (1, 2)


WRITER = """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from run_journals import manifest, record
    from agentperf.store.rundir import RunWriter
    writer = RunWriter.create(Path(sys.argv[1]))
    writer.write_manifest(manifest(["80tps"]))
    writer.journal({"event": "run_started", "at": "x"})
    for i in range(3000):
        writer.add([record(10 * i + k) for k in range(10)])
        writer.flush()
        print(i, flush=True)
    sys.stdin.readline()
"""


def test_kill_9_keeps_what_was_flushed(tmp_path: Path) -> None:
    script = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path / "run"), str(Path(__file__).parents[1])]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "40\n":  # killed while it goes on writing, at whatever byte it is
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    run = read_run(tmp_path / "run")
    assert run.summary is None
    assert not run.complete
    ids = run.records(["request_id"]).column("request_id").to_pylist()
    assert len(ids) >= 410
    assert len(ids) % 10 == 0, "whole batches"
    assert ids == [f"r{i}" for i in range(len(ids))]
    assert run.summarised()["reason"] == "interrupted"


def test_killed_between_parquet_and_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    writer, records = _write(tmp_path / "run", finish=False)
    monkeypatch.setattr(Path, "unlink", die)
    with pytest.raises(KeyboardInterrupt):
        writer.finish()
    run = read_run(tmp_path / "run")
    assert {"records.arrows", "records.parquet"} <= {p.name for p in run.directory.iterdir()}
    assert not run.complete
    assert to_records(run.records()) == records


def test_a_parquet_that_fails_leaves_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    writer, records = _write(tmp_path / "run", finish=False)
    monkeypatch.setattr(stream_module.pq, "ParquetWriter", full)
    with pytest.raises(ClientError, match="No space left"):
        writer.finish()
    run = read_run(tmp_path / "run")
    assert run.summary is None
    assert to_records(run.records()) == records


def test_a_full_disk_tears_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter.create(tmp_path / "run")
    writer.add([record(1)])
    writer.flush()
    real = stream_module.write_all

    def half(fd: int, data: bytes) -> None:
        real(fd, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stream_module, "write_all", half)
    writer.add([record(2)])
    with pytest.raises(ClientError, match="No space left"):
        writer.flush()
    monkeypatch.undo()
    writer.add([record(3)])
    writer.flush()
    ids = read_run(tmp_path / "run").records(["request_id"]).column("request_id").to_pylist()
    assert ids == ["r1", "r2", "r3"]


def test_json_is_strict(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run")
    odd = {"nan": math.nan, "inf": [math.inf, -math.inf], "np": np.float64("inf"), "n": np.int64(3), 7: "\ud800≥"}
    writer.write_manifest({**manifest(["80tps"]), "odd": odd})
    writer.journal({"event": "x", "value": math.inf, "struct": record(1, ttft_s=math.inf)})
    writer.finish({"complete": True, "value": np.array([1.0, math.nan])})

    def refuse(text: str) -> None:
        raise AssertionError(text)

    run_dir = tmp_path / "run"
    for text in (run_dir.joinpath("manifest.json").read_text(), run_dir.joinpath("summary.json").read_text()):
        json.loads(text, parse_constant=refuse)
    for line in run_dir.joinpath("events.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    run = read_run(run_dir)
    assert run.manifest["odd"] == {"nan": None, "inf": [None, None], "np": None, "n": 3, "7": "\ud800≥"}
    assert run.summary == {"complete": True, "value": [1.0, None]}


def test_finish_twice_changes_nothing(tmp_path: Path) -> None:
    writer, _ = _write(tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    writer.finish()
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        read_run(tmp_path)
    with pytest.raises(UsageError, match="no directory"):
        read_run(tmp_path / "none")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        _ = read_run(tmp_path).manifest
    (tmp_path / "records.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(UsageError, match="cannot be read"):
        read_run(tmp_path).records()


def test_an_empty_run_has_the_columns(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "run").finish()
    table = read_run(tmp_path / "run").records()
    assert (table.num_rows, tuple(table.column_names)) == (0, COLUMNS)


def test_many_records_in_groups(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run")
    batch = [record(i) for i in range(5_000)]
    data = encode_batch(to_batch(batch))
    with (tmp_path / "run" / "records.arrows").open("ab") as file:
        for _ in range(40):
            file.write(data)
    writer.journal({"event": "probe_finished", "probe": 1, "level": 4, "window": {"open_ns": 0, "close_ns": 10**10}})
    writer.finish()
    metadata = pq.read_metadata(tmp_path / "run" / "records.parquet")
    assert metadata.num_rows == 200_000
    assert max(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)) == stream_module.GROUP_ROWS
    table = read_run(tmp_path / "run").records(["phase", "speed_tps"])
    counts = {d["values"]: d["counts"] for d in table.column("phase").value_counts().to_pylist()}
    assert counts == {"window": 100 * 40, "cooldown": (5_000 - 100) * 40}


def test_one_call_writes_so_much_and_no_more(tmp_path: Path) -> None:
    """A flood of records is written a step a call, in order; the loop of a running level goes on in between."""
    writer = RunWriter.create(tmp_path / "run")
    flood = [record(i) for i in range(3 * FLUSH_ROWS + 7)]
    writer.add(flood)
    seen = []
    for _ in range(4):
        seen.append(read_run(tmp_path / "run").records(["request_id"]).num_rows)
        writer.flush_if_due()
    assert seen == [FLUSH_ROWS, 2 * FLUSH_ROWS, 3 * FLUSH_ROWS, 3 * FLUSH_ROWS]
    writer.finish()
    assert read_run(tmp_path / "run").records(["t0_ns"]).column("t0_ns").to_pylist() == [r.t0_ns for r in flood]
