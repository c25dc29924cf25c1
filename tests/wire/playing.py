"""Playing scenarios over a transport, several at a time, and comparing what came out with the server's own log."""

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
from scripted import Seen, serve
from wire_scenario import PLAIN, STAMPS, Scenario

from agentperf.measure.derive import make_record
from agentperf.measure.record import Record
from agentperf.replay.turns import TurnResult
from agentperf.wire import chat
from agentperf.wire.client import open_caller
from agentperf.wire.endpoint import Limits, parse_endpoint
from agentperf.wire.exchange import Exchange
from agentperf.wire.outcome import Outcome

KINDS = ("timed", "timed-uvloop", "httpx")
BODY = b'{"model":"m","messages":[]}'
AT_ONCE = 8


@dataclass
class Played:
    exchange: Exchange
    outcome: Outcome
    seen: Seen

    @property
    def record(self) -> Record:
        return record_of(self.exchange, self.outcome)


def record_of(exchange: Exchange, outcome: Outcome) -> Record:
    result = TurnResult(
        request_id="r",
        agent=0,
        play="a0p0",
        session_id="s",
        root_session_id="s",
        turn=0,
        due_ns=exchange.t0_ns,
        exchange=exchange,
        outcome=outcome,
        body_bytes=len(BODY),
        expected_prompt_tokens=1,
        expected_cached_tokens=0,
        target_output_tokens=1,
    )
    return make_record(result, probe=0, level=1, worker=0)


async def play(scenario: Scenario, kind: str) -> Played:
    transport: Any = kind.removesuffix("-uvloop")
    async with serve(scenario.reply) as server:
        limits = dataclasses.replace(Limits(connect_s=5.0, first_byte_s=10.0, stall_s=10.0), **scenario.limits)
        endpoint = parse_endpoint(server.base())
        async with open_caller(endpoint, path=chat.PATH, limits=limits, transport=transport) as caller:
            with anyio.fail_after(20):
                exchange = await caller(BODY, "req-1")
        assert len(server.seen) == 1
        return Played(exchange, chat.fold(exchange), server.seen[0])


def play_all(scenarios: Iterable[Scenario], kind: str, at_once: int = AT_ONCE) -> "dict[str, Played | Exception]":
    """Play each once; a failure is kept for the test that asks for it."""
    played: dict[str, Played | Exception] = {}

    async def one(scenario: Scenario, limiter: asyncio.Semaphore) -> None:
        async with limiter:
            try:
                played[scenario.name] = await play(scenario, kind)
            except Exception as error:  # noqa: BLE001 - raised by the test that asks for it
                played[scenario.name] = error

    async def everything() -> None:
        limiter = asyncio.Semaphore(at_once)
        async with anyio.create_task_group() as group:
            for scenario in sorted(scenarios, key=lambda s: -s.duration_s):
                group.start_soon(one, scenario, limiter)

    anyio.run(everything, backend_options={"use_uvloop": kind.endswith("uvloop")})
    return played


# -- what must hold


def check_outcome(expect: dict[str, Any], outcome: Outcome) -> None:
    """Everything that needs no clock."""
    for name in PLAIN & expect.keys():
        wanted = None if expect[name] == "none" else expect[name]
        assert getattr(outcome, name) == wanted, (name, outcome)
    if expect["outcome"] == "ok":
        assert outcome.error_class is None and outcome.error is None
    else:
        assert outcome.error and "\n" not in outcome.error
    if "error_has" in expect:
        assert expect["error_has"] in (outcome.error or "")
    if "visible" in expect:
        assert len(outcome.visible_ns) == expect["visible"]
    message = outcome.message or {}
    if "content" in expect:
        assert message.get("content") == (None if expect["content"] == "none" else expect["content"])
    if "calls" in expect:
        calls = [[c["id"], c["function"]["name"], c["function"]["arguments"]] for c in message["tool_calls"]]
        assert calls == expect["calls"]


def check_stamps(expect: dict[str, Any], played: Played) -> None:
    """A stamp lies behind the write that it belongs to; and before the next one, where a pause kept them apart."""
    outcome, exchange, written = played.outcome, played.exchange, played.seen.written_ns
    for name in STAMPS:
        step = expect.get(f"{name}_step")
        stamp = getattr(outcome, f"{name}_ns")
        if step == "none":
            assert stamp is None, name
        elif step is not None:
            assert stamp is not None, name
            assert stamp >= written[step], name
            later = [ns for ns in written[step + 1 :] if ns - written[step] > 5_000_000]
            if later:
                assert stamp < later[0], name
    assert list(exchange.stamps) == sorted(exchange.stamps)
    order = [exchange.t0_ns, exchange.connected_ns, exchange.sent_ns, outcome.first_byte_ns, exchange.end_ns]
    known = [ns for ns in order if ns is not None]
    assert known == sorted(known)
    if "n1_share" in expect:
        # The share of the first stamp depends on how reads fall; it is pinned where a pause keeps the events apart.
        assert outcome.n1_share is not None and abs(outcome.n1_share - expect["n1_share"]) < 1e-9


def near(value: float | None, truth: float) -> None:
    """Within 10 ms and 2 %, both ways."""
    assert value is not None
    assert abs(value - truth) <= 0.010 + 0.02 * abs(truth), (value, truth)


def check_record(expect: dict[str, Any], wanted: dict[str, Any], record: Record, written: Sequence[int]) -> None:
    """The figures of the record against what the server wrote and when."""
    times = (record.ttft_s, record.ttfo_s, record.speed_tps, record.e2e_s, record.e2e_tps, record.itl_s)
    assert all(value is None or value > 0 for value in times), "never 0 for what was not measured"
    if record.outcome != "ok":
        assert set(times) == {None}
        assert not wanted.keys() - {"token_source", "output_tokens", "notes_have"}
    else:
        assert record.ttft_s is not None and record.e2e_s is not None and record.e2e_s >= record.ttft_s
        for name, step in (("ttft_s", "first_visible_step"), ("ttfo_s", "first_answer_step")):
            if isinstance(expect.get(step), int):
                near(getattr(record, name), (written[expect[step]] - record.t0_ns) / 1e9)
            elif expect.get(step) == "none":
                assert getattr(record, name) is None
    _check_speed(wanted.get("speed"), record, written)
    if "gap" in wanted:
        first, last = wanted["gap"]
        assert record.max_gap_ns is not None
        near(record.max_gap_ns / 1e9, (written[last] - written[first]) / 1e9)
    if "gaps" in wanted:
        offsets = len(record.event_offsets_us or b"") // 4
        assert offsets - 1 == wanted["gaps"] == record.events - 1
    for name in ("token_source", "output_tokens", "first_event_tokens"):
        if name in wanted:
            assert getattr(record, name) == (None if wanted[name] == "none" else wanted[name]), name
    for note in wanted.get("notes_have", []):
        assert note in (record.notes or "")


def _check_speed(speed: Any, record: Record, written: Sequence[int]) -> None:
    """`speed = { tokens, from, to }`: so many tokens between two writes; "none" where there is no speed."""
    if speed is None:
        return
    if speed == "none":
        assert record.speed_tps is None and record.itl_s is None
        return
    assert record.speed_tps is not None
    near(speed["tokens"] / record.speed_tps, (written[speed["to"]] - written[speed["from"]]) / 1e9)
