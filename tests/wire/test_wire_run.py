"""Scenarios through all of `agentperf run`: what is in records.parquet against what the server wrote, and when."""

import json
import os
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import anyio
from playing import check_record, near
from scripted import Reply, Seen, json_reply, serve
from wire_scenario import load_all

from agentperf.measure.record import COLUMNS, Record
from agentperf.store.rundir import read_run
from agentperf.trace.io import write
from tests.trace.trace_builders import request, session, trace_set

BY_NAME = {scenario.name: scenario for scenario in load_all()}
CHOSEN = [
    "tokens.plain",
    "tokens.tool_call_only",
    "tokens.one_chunk_then_late_usage",
    "cases.reasoning_first_ttft_and_ttfo",
    "cases.reasoning_that_the_parser_swallows",
    "cases.no_usage_at_all",
    "cases.stall_in_the_middle",
    "coding.gzip",
    "shapes.buffered_into_bursts",
    "http.interim_response_with_a_length",
    "errors.error_object",
    "errors.status_429",
    "endings.rst_after_tokens",
    "endings.only_done",
    "coding.brotli",
    "endings.stall_after_tokens",
]
"""One at least of each kind of end, and of each way to count."""
STALL_S = 0.8
MODELS = json_reply(b'{"data":[{"id":"m","max_model_len":32768}]}')


REFUSED = {"max_tokens": "use max_completion_tokens instead of max_tokens", "ignore_eos": "unknown field: ignore_eos"}


def script(seen: Seen) -> Reply:
    """A server that refuses two of the usual fields."""
    if seen.method == "GET":
        return MODELS if seen.path.endswith("/models") else json_reply(b"{}", 404)
    return Reply(late=answer)


def answer(seen: Seen) -> Reply:
    """A turn's request id ends in the name of its scenario; the checks before the run get a plain reply."""
    body = json.loads(seen.body)
    for field, says in REFUSED.items():
        if field in body:
            return json_reply(json.dumps({"error": {"message": says}}).encode(), 400)
    name = next((n for n in CHOSEN if seen.headers["x-request-id"].endswith(f"-{n}-0")), "tokens.plain")
    return BY_NAME[name].reply


async def run(url: str, traces: Path, out: Path) -> tuple[int, str]:
    done = await anyio.run_process(
        [
            *(sys.executable, "-m", "agentperf", "run", "--endpoint", url, "--traces", str(traces)),
            *("--out", str(out), "--slo", "p95 ttft <= 5s, errors <= 1%", "--concurrency", "1"),
            *("--duration", "9s", "--warmup-max", "1s", "--stall-timeout", str(STALL_S), "--plain"),
        ],
        check=False,
        env={k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and k != "OPENAI_API_KEY"},
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, (done.stdout + done.stderr).decode()


def check_figures(record: Record, name: str, seen: Seen) -> None:
    """The same rules as for a scenario that is played by itself."""
    scenario = BY_NAME[name]
    wanted = dict(scenario.record)
    if wanted.get("token_source") == "estimate":
        # A run estimates by the characters per token that it measured before.
        assert record.token_source == "estimate" and record.output_tokens
        wanted = {"gaps": 1, "gap": [0, 1]}
    check_record(scenario.expect, wanted, record, seen.written_ns)
    if record.outcome == "ok":
        near(record.e2e_s, (seen.written_ns[-1] - record.t0_ns) / 1e9)
    if "n1_share" in scenario.expect and record.output_tokens is not None:
        assert record.first_event_tokens is not None


def check_facts(record: Record, name: str, seen: Seen) -> None:
    """What must be so in each of them, whatever else the machine was doing."""
    expect = BY_NAME[name].expect
    for field in ("outcome", "error_class", "finish_reason", "prompt_tokens", "cached_tokens", "reasoning_tokens"):
        if field in expect:
            assert getattr(record, field) == (None if expect[field] == "none" else expect[field]), (name, field)
    if expect["outcome"] == "ok":
        assert record.error_class is None and record.error is None
    if "visible" in expect:
        assert record.events == expect["visible"]
    stamps = {"first_byte": record.first_byte_ns, "first_visible": record.first_visible_ns}
    stamps |= {"first_answer": record.first_answer_ns, "last_visible": record.last_visible_ns}
    for stamp, value in stamps.items():
        step = expect.get(f"{stamp}_step")
        if isinstance(step, int):
            assert value is not None and value >= seen.written_ns[step]
    assert record.due_ns <= record.t0_ns <= (record.sent_ns or record.t0_ns) and record.t0_ns <= seen.received_ns
    assert record.body_bytes == len(seen.body)


def test_records_of_a_run(tmp_path: Path) -> None:
    traces = tmp_path / "wire.jsonl"
    write(trace_set(*(session(name, [request(name, 0)]) for name in CHOSEN)), traces)

    async def served() -> tuple[int, str, list[Seen]]:
        async with serve(script) as server:
            with anyio.fail_after(120):
                return *await run(server.base(), traces, tmp_path / "out"), server.seen

    code, said, all_seen = anyio.run(served)
    assert code in (1, 3), said
    (directory,) = (tmp_path / "out").iterdir()
    rows: list[dict[str, Any]] = read_run(directory).records().to_pylist()
    for row in rows:
        row["event_offsets_us"] = array("i", row["event_offsets_us"] or ()).tobytes()
    records = [Record(**{name: row[name] for name in COLUMNS}) for row in rows]
    requests = {seen.headers["x-request-id"]: seen for seen in all_seen if seen.method == "POST"}
    played: dict[str, list[tuple[Record, Seen]]] = {name: [] for name in CHOSEN}
    for record in records:
        name = record.session_id
        if record.outcome != "truncated":
            played[name].append((record, requests[record.request_id]))
    assert all(played.values()), {name for name, found in played.items() if not found}
    for name, found in played.items():
        problems = []
        for record, seen in found:
            check_facts(record, name, seen)
            try:
                check_figures(record, name, seen)
            except AssertionError as problem:
                problems.append(problem)
        # This machine may have been busy at one of them; a fault of the code would be in all.
        if len(problems) == len(found):
            raise problems[0]
    sent = [json.loads(seen.body) for seen in all_seen if seen.method == "POST"]
    assert not [body for body in sent[-len(records) :] if REFUSED.keys() & body.keys()]
    assert all(body["max_completion_tokens"] > 0 and body["stream_options"] for body in sent[-len(records) :])
    assert {record.outcome for record in records} >= {"ok", "failed"}
    classes = {record.error_class for record in records} - {None}
    assert classes >= {
        *("server_error_in_stream", "rate_limited", "truncated_stream", "empty_stream"),
        *("content_encoding", "stall_timeout"),
    }
