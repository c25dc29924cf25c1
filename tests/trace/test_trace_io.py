import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builders import any_trace_set, request, session, trace_set

from agentperf.errors import ExitCode, TraceError
from agentperf.trace import io
from agentperf.trace.codec import decode_record, encode_record
from agentperf.trace.model import Append, Blob, Header, Request, Session, Shape, TraceSet

SUFFIXES = [".jsonl", ".jsonl.gz", ".jsonl.zst"]
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"b": 1, "a": 2}}}]
HEADER = {"kind": "header", "format": "agentperf-trace", "version": 1, "trace_set_id": "t"}
SESSION = {"kind": "session", "session_id": "s", "root_session_id": "s"}
REQUEST = {
    "kind": "request",
    "request_id": "s-0",
    "session_id": "s",
    "index": 0,
    "input": {"mode": "append", "messages": [{"role": "user", "content": "hi"}]},
    "input_tokens": 5,
    "input_tokens_source": "provider",
    "output_tokens": 2,
    "output_tokens_source": "provider",
}


def example() -> TraceSet:
    tools = io.blob_id("tools", TOOLS)
    return trace_set(
        session("s", [request("s", 0), request("s", 1, extra={"x_note": "kept"})], tools_ref=tools, extra={"x_a": [1]}),
        session("u", [request("u", 0)]),
        blobs={tools: TOOLS},
        license="CC0-1.0",
    )


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


def put(path: Path, *records: dict[str, Any]) -> Path:
    path.write_bytes(lines(*records))
    return path


def error_of(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        io.load(path)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), path.name)


# -- round trips -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(any_trace_set(), st.sampled_from(SUFFIXES))
def test_any_set_survives_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, made: TraceSet, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("round") / f"set{suffix}"
    written = io.write(made, path)
    read = io.load(path)
    assert read == written
    assert read.sessions == made.sessions
    assert read.blobs == made.blobs
    assert [s.session.extra for s in read.sessions] == [s.session.extra for s in made.sessions]
    before = path.read_bytes()
    io.write(read, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_digest_is_of_the_text_whatever_the_compression(tmp_path: Path, suffix: str) -> None:
    plain_file, other = tmp_path / "a.jsonl", tmp_path / f"b{suffix}"
    digest = io.write(example(), plain_file).digest
    assert digest == hashlib.sha256(plain_file.read_bytes()).hexdigest()
    assert io.write(example(), other).digest == digest
    assert io.load(other).digest == digest == io.sealed(example()).digest


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_same_bytes_in_another_process_with_another_hash_seed(tmp_path: Path, suffix: str) -> None:
    here, there = tmp_path / f"here{suffix}", tmp_path / f"there{suffix}"
    io.write(example(), here)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_trace_io import example\nfrom agentperf.trace import io\nio.write(example(), sys.argv[2])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent), str(there)], check=True, env=environment)
    assert here.read_bytes() == there.read_bytes()


def test_gz_and_zst_are_what_they_say(tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        io.write(example(), tmp_path / f"a{suffix}")
    text = (tmp_path / "a.jsonl").read_bytes()
    packed = (tmp_path / "a.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == text
    assert packed[4:8] == b"\0\0\0\0"  # no time in it
    raw = (tmp_path / "a.jsonl.zst").read_bytes()
    assert raw[:4] == b"\x28\xb5\x2f\xfd"
    assert pa.CompressedInputStream(pa.BufferReader(raw), "zstd").read() == text


def test_reading_goes_by_content_not_by_suffix(tmp_path: Path) -> None:
    io.write(example(), tmp_path / "a.jsonl.zst")
    (tmp_path / "a.jsonl.zst").rename(tmp_path / "a.jsonl")
    assert len(io.load(tmp_path / "a.jsonl").sessions) == 2


def test_lines_of_many_megabytes_and_several_frames(tmp_path: Path) -> None:
    # content that hardly compresses, so that frames of the writer and buffers of the reader are crossed for real
    noise = "".join(hashlib.sha256(str(i).encode()).hexdigest() for i in range(100_000))
    big = [request("s", i, input=Append(messages=[{"role": "user", "content": noise[i:]}])) for i in range(2)]
    for suffix in SUFFIXES:
        path = tmp_path / f"big{suffix}"
        written = io.write(trace_set(session("s", big)), path)
        assert io.load(path) == written


def test_header_counts_are_filled_in(tmp_path: Path) -> None:
    counts = io.write(example(), tmp_path / "a.jsonl").header.counts
    assert (counts.sessions, counts.requests, counts.input_tokens, counts.output_tokens) == (2, 3, 400, 30)
    first = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    assert first["counts"]["requests"] == 3
    assert first["format"] == "agentperf-trace"
    assert first["version"] == 1


def test_iter_records_gives_line_numbers_and_skips_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + lines(HEADER) + b"\n  \r\n" + lines(SESSION)[:-1] + b"\r\n" + lines(REQUEST)[:-1]
    )
    found = [(n, type(r)) for n, r in io.iter_records(path)]
    assert found == [(1, Header), (4, Session), (5, Request)]


def test_key_order_of_a_tool_schema_is_content(tmp_path: Path) -> None:
    turned = [{"type": "function", "function": {"name": "read", "parameters": {"a": 2, "b": 1}}}]
    assert turned == TOOLS
    assert io.blob_id("tools", turned) != io.blob_id("tools", TOOLS)
    io.write(example(), tmp_path / "a.jsonl")
    (value,) = io.load(tmp_path / "a.jsonl").blobs.values()
    assert list(value[0]["function"]["parameters"]) == ["b", "a"]


def test_blob_id_is_the_hash_of_type_and_value() -> None:
    assert io.blob_id("text", "é") == "sha256:" + hashlib.sha256('["text","é"]'.encode()).hexdigest()
    assert io.blob_id("text", "a") != io.blob_id("system", "a")


def test_unknown_fields_survive_at_the_top_level(tmp_path: Path) -> None:
    blob = {"kind": "blob", "id": io.blob_id("text", "v"), "type": "text", "value": "v", "x_b": 1}
    odd = {**SESSION, "x_mine": {"a": [1, None]}, "new_field": 2, "extra": {"x": 1}}
    read = io.load(put(tmp_path / "a.jsonl", HEADER, blob, odd, REQUEST))
    assert read.sessions[0].session.extra == {"x_mine": {"a": [1, None]}, "new_field": 2, "extra": {"x": 1}}
    io.write(read, tmp_path / "b.jsonl")
    again = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert again[1] == blob
    assert again[2] == odd


# -- Writer ----------------------------------------------------------------------------------------------------------


def test_writer_streams_the_same_file(tmp_path: Path) -> None:
    made = example()
    for suffix in SUFFIXES:
        whole = io.write(made, tmp_path / f"whole{suffix}")
        with io.Writer(tmp_path / f"stream{suffix}", made.header) as writer:
            assert writer.add_blob("tools", TOOLS) == writer.add_blob("tools", TOOLS)
            for item in made.sessions:
                writer.add(item.session)
                for r in item.requests:
                    writer.add(r)
        assert writer.digest == whole.digest
        assert writer.counts == whole.header.counts
        assert (tmp_path / f"stream{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("old")
    with pytest.raises(RuntimeError), io.Writer(path, Header(trace_set_id="t")) as writer:
        writer.add(Session(session_id="s", root_session_id="s"))
        raise RuntimeError
    dangling = trace_set(session("s", [request("s", 0)], tools_ref="sha256:none"))
    with pytest.raises(TraceError, match="tools_ref: no blob"):
        io.write(dangling, path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ({"input_tokens": 1.5}, r"request 's-0' cannot be written: input_tokens: Expected `int`, got `float`"),
        ({"output_tokens": "9"}, "output_tokens: Expected `int`, got `str`"),
        ({"delay_ms": float("nan")}, "delay_ms"),
        ({"sampling": {"temperature": float("inf")}}, "sampling.temperature: not a finite number"),
        ({"output": {"text": "\ud800"}}, "surrogates not allowed"),
        ({"trigger": "whim"}, "trigger: Invalid enum value 'whim'"),
        ({"extra": {"index": 3}}, "extra.index: is the name of a known field"),
        ({"output": {"text": object()}}, "cannot be written as JSON"),
        ({"index": 7}, "index: expected 0, got 7"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(tmp_path: Path, bad: dict[str, Any], what: str) -> None:
    with pytest.raises(TraceError, match=what):
        io.write(trace_set(session("s", [msgspec.structs.replace(request("s", 0), **bad)])), tmp_path / "a.jsonl")
    assert not list(tmp_path.iterdir())


def test_writer_refuses_what_the_reader_would(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="unknown kind of file"):
        io.write(example(), tmp_path / "a.json")
    with pytest.raises(TraceError, match="cannot be written"):
        io.write(example(), Path("/proc/no/such/a.jsonl"))
    with pytest.raises(TraceError, match="another SHA-256"):
        io.write(trace_set(blobs={"sha256:0": 1}), tmp_path / "a.jsonl")
    with io.Writer(tmp_path / "a.jsonl", Header(trace_set_id="t")) as writer:
        with pytest.raises(TraceError, match="no session"):
            writer.add(request("s", 0))
        writer.add(Session(session_id="s", root_session_id="s"))
        with pytest.raises(TraceError, match="already taken"):
            writer.add(Session(session_id="s", root_session_id="s"))
        with pytest.raises(TraceError, match="another address"):
            writer.add(Blob(id="sha256:1", type="text", value="a"))
    assert len(io.load(tmp_path / "a.jsonl").sessions) == 1


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([SESSION], "a.jsonl:1: kind: no agentperf trace: the first line is not a header"),
        ([{**HEADER, "version": 2}], "a.jsonl:1: version: this agentperf reads version 1, the file has 2"),
        ([{**HEADER, "version": True}], "a.jsonl:1: version: this agentperf reads version 1, the file has True"),
        (
            [{**HEADER, "format": "other"}],
            "a.jsonl:1: format: no agentperf trace: expected 'agentperf-trace', got 'other'",
        ),
        ([HEADER, HEADER], "a.jsonl:2: kind: a second header"),
        ([HEADER, {**SESSION, "kind": "sesion"}], "a.jsonl:2: kind: Invalid value 'sesion'"),
        ([HEADER, SESSION, SESSION], "a.jsonl:3: session_id: 's' is already taken at a.jsonl:2"),
        (
            [HEADER, SESSION, REQUEST, {**REQUEST, "index": 1}],
            "a.jsonl:4: request_id: 's-0' is already taken at a.jsonl:3",
        ),
        ([HEADER, REQUEST], "a.jsonl:2: session_id: no session 's' on an earlier line"),
        ([HEADER, SESSION, {**REQUEST, "index": 1}], "a.jsonl:3: index: expected 0, got 1"),
        ([HEADER, SESSION, {**REQUEST, "input_tokens": "9"}], "a.jsonl:3: input_tokens: Expected `int`, got `str`"),
        (
            [HEADER, SESSION, {**REQUEST, "input": {"mode": "append", "messages": [1]}}],
            "a.jsonl:3: input.messages[0]: Expected `object`, got `int`",
        ),
        (
            [HEADER, SESSION, {**REQUEST, "depends_on": [{"request_id": "gone"}]}],
            "a.jsonl:3: depends_on[0].request_id: no request 'gone'",
        ),
        ([HEADER, {**SESSION, "parent_session_id": "p"}], "a.jsonl:2: parent_session_id: no session 'p'"),
        ([HEADER, {**SESSION, "system_ref": "sha256:1"}], "a.jsonl:2: system_ref: no blob 'sha256:1'"),
        (
            [HEADER, {"kind": "blob", "id": "sha256:1", "type": "text", "value": "a"}],
            "a.jsonl:2: id: the content has another address: sha256:",
        ),
        (
            [{**HEADER, "counts": {"sessions": 2}}, SESSION],
            "a.jsonl:1: counts.sessions: the header announces 2, the file holds 1",
        ),
    ],
)
def test_one_line_with_place_and_fault(tmp_path: Path, records: list[dict[str, Any]], expected: str) -> None:
    path = put(tmp_path / "a.jsonl", *records)
    assert error_of(path).replace(str(tmp_path) + os.sep, "").startswith(expected)


def test_damaged_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = lines(HEADER, SESSION, REQUEST)
    for size in (len(good) - 2, len(good) - 40):
        path.write_bytes(good[:size])
        assert error_of(path) == "a.jsonl:3: the last line is cut off in the middle of a record"
    path.write_bytes(good.replace(b'"hi"', b'"\xff"'))
    assert "a.jsonl:3: not UTF-8 at byte" in error_of(path)
    path.write_bytes(good.replace(b'"hi"', b'"hi'))
    assert "a.jsonl:3: not valid JSON" in error_of(path)
    path.write_bytes(lines(HEADER) + b"[1]\n")
    assert "a.jsonl:2: not a JSON object" in error_of(path)
    path.write_bytes(lines(HEADER) + b'{"x_deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
    assert "a.jsonl:2: not valid JSON" in error_of(path)
    path.write_bytes(b"")
    assert "a.jsonl:1: the file is empty" in error_of(path)
    path.write_bytes(b"not a trace\n")
    assert "agentperf traces import" in error_of(path)


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_damaged_compression(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    many = [request("s", i, output={"text": hashlib.sha256(str(i).encode()).hexdigest()}) for i in range(300)]
    io.write(trace_set(session("s", many)), path)
    data = path.read_bytes()
    for cut in (1, 7, len(data) // 2, len(data) - 6):
        path.write_bytes(data[:-cut])
        assert "damaged or cut off" in error_of(path)
    path.write_bytes(data[: len(data) // 2] + b"\0" * 64 + data[len(data) // 2 + 64 :])
    assert error_of(path)
    path.write_bytes(data + b"more")
    assert error_of(path)


def test_overlong_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "MAX_LINE", 1 << 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(HEADER) + b"x" * (2 << 20))
    assert "a.jsonl:2: line longer than 1 MiB" in error_of(path)


def test_missing_files(tmp_path: Path) -> None:
    assert "no such trace set" in error_of(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="no trace file in this folder"):
        io.load(tmp_path)
    with pytest.raises(TraceError, match="no such trace set"):
        io.load("no-such-name")


FRAGMENTS = st.sampled_from(
    [
        lines(HEADER),
        lines(SESSION),
        lines(REQUEST),
        lines({**REQUEST, "request_id": "s-1", "index": 1}),
        b'{"kind":"request"',
        b"\n",
        b"\xff",
        b"\x1f\x8b",
        b"\x28\xb5\x2f\xfd",
        b"[" * 3000,
        b'"\\ud800"',
        b"1e999",
        b"null",
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.lists(FRAGMENTS | st.binary(max_size=8), max_size=8).map(b"".join))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(data)
    try:
        assert isinstance(io.load(path), TraceSet)
    except TraceError as e:
        assert str(path) in str(e)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_edit_of_a_good_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    good = bytearray(lines(HEADER, SESSION, REQUEST))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(good)))
        good[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.getbasetemp() / "edit.jsonl"
    path.write_bytes(bytes(good))
    try:
        read = io.load(path)
    except TraceError:
        return
    io.write(read, path)  # what is read can be written


def test_a_default_that_is_spelled_out_is_the_same_record() -> None:
    said = {**REQUEST, "trigger": "tool", "endpoint": "chat", "delay_source": "missing", "delay_ms": 0, "stream": True}
    more = {"depends_on": None, "tools_before": [], "recorded": None}
    assert encode_record(decode_record(lines({**said, **more}))) == encode_record(decode_record(lines(REQUEST)))
    built = msgspec.structs.replace(decode_record(lines(REQUEST)), trigger="".join(["to", "ol"]), delay_ms=0)
    assert encode_record(built) == encode_record(decode_record(lines(REQUEST)))


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_a_record_that_decodes_encodes_to_itself(line: bytes) -> None:
    whole = lines({**REQUEST, "x_text": line.decode("latin-1")})
    record = decode_record(whole)
    assert decode_record(encode_record(record)) == record


# -- folders and names -----------------------------------------------------------------------------------------------


def test_a_folder_is_one_set(tmp_path: Path) -> None:
    tools = io.blob_id("tools", TOOLS)
    first = trace_set(
        session("a", [request("a", 0)], tools_ref=tools), blobs={tools: TOOLS}, license="MIT", attribution="A"
    )
    second = trace_set(
        session("b", [request("b", 0)], tools_ref=tools),
        blobs={tools: TOOLS},
        license="CC-BY-4.0",
        redistributable=True,
        extra={"x_q": 1},
    )
    io.write(second, tmp_path / "2.jsonl.gz")
    io.write(first, tmp_path / "1.jsonl.zst")
    (tmp_path / "README.md").write_text("not a trace")
    read = io.load(tmp_path)
    assert [s.session.session_id for s in read.sessions] == ["a", "b"]
    assert read.header.trace_set_id == tmp_path.name
    assert read.header.license == "CC-BY-4.0 AND MIT"
    assert read.header.attribution == "A"
    assert read.header.redistributable is False
    assert (read.header.counts.sessions, read.header.counts.requests) == (2, 2)
    assert [f["file"] for f in read.header.source["files"]] == ["1.jsonl.zst", "2.jsonl.gz"]
    assert read.header.source["files"][1]["x_q"] == 1
    assert [type(r).__name__ for _, r in io.iter_records(tmp_path)].count("Header") == 2
    io.write(read, tmp_path / "whole.jsonl")
    assert io.load(tmp_path / "whole.jsonl") == read


def test_a_file_without_a_licence_leaves_the_folder_without(tmp_path: Path) -> None:
    io.write(trace_set(license="MIT"), tmp_path / "1.jsonl")
    io.write(trace_set(), tmp_path / "2.jsonl")
    assert io.load(tmp_path).header.license is None


def test_ids_are_unique_over_a_folder(tmp_path: Path) -> None:
    for name in ("1.jsonl", "2.jsonl"):
        io.write(trace_set(session("a")), tmp_path / name)
    with pytest.raises(TraceError, match=r"2.jsonl:2: session_id: 'a' is already taken at .*1.jsonl:2"):
        io.load(tmp_path)


@pytest.mark.parametrize("scope", ["file", None])
def test_file_scoped_hashes_of_two_files_are_kept_apart(tmp_path: Path, scope: str | None) -> None:
    for name in ("a", "b"):
        shape = Shape(block_hashes=[1, 2])
        made = trace_set(
            session(name, [request(name, 0, input=shape)]), block_size=16, hash_scope=scope, content="shape"
        )
        io.write(made, tmp_path / f"{name}.jsonl")
    a, b = (s.requests[0].input for s in io.load(tmp_path).sessions)
    assert isinstance(a, Shape)
    assert isinstance(b, Shape)
    assert not set(a.block_hashes) & set(b.block_hashes)
    io.write(trace_set(session("c"), block_size=64, hash_scope=scope), tmp_path / "c.jsonl")
    with pytest.raises(TraceError, match=r"c.jsonl:1: block_size: 64, but .*a.jsonl has 16"):
        io.load(tmp_path)


@pytest.mark.parametrize("scope", ["session", "global"])
def test_other_hashes_are_left_as_they_are(tmp_path: Path, scope: str) -> None:
    for name in ("a", "b"):
        item = session(name, [request(name, 0, input=Shape(block_hashes=[1, "f0"]))])
        io.write(trace_set(item, block_size=16, hash_scope=scope), tmp_path / f"{name}.jsonl")
    inputs = [s.requests[0].input for s in io.load(tmp_path).sessions]
    assert inputs == [Shape(block_hashes=[1, "f0"])] * 2


def test_bundled_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io, "data_dir", lambda name: tmp_path / name)
    io.write(example(), tmp_path / "traces" / "mine.jsonl.zst")
    assert io.bundled_names() == ["mine"]
    assert len(io.load("mine").sessions) == 2
    with pytest.raises(TraceError, match="one of: mine"):
        io.load("other")


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    io.write(trace_set(session("s", [request("s", i) for i in range(600)])), path)
    calls: list[tuple[int, int]] = []
    io.load(path, lambda done, total: calls.append((done, total)))
    assert calls[-1] == (path.stat().st_size,) * 2
    assert len(calls) == 3
    assert calls == sorted(calls)


def test_trees_put_the_root_first(tmp_path: Path) -> None:
    child = session("kid", root_session_id="main", parent_session_id="main")
    made = trace_set(child, session("main", [request("main", 0)]), session("lone"))
    io.write(made, tmp_path / "a.jsonl")
    ids = [[s.session.session_id for s in tree] for tree in io.load(tmp_path / "a.jsonl").trees()]
    assert ids == [["main", "kid"], ["lone"]]


def test_structs_are_not_changed_by_writing(tmp_path: Path) -> None:
    made = example()
    before = msgspec.json.encode(made)
    io.write(made, tmp_path / "a.jsonl")
    assert msgspec.json.encode(made) == before
