"""Every scenario over both transports, on both event loops: one and the same outcome, with stamps where they belong."""

import dataclasses
from typing import Any

import anyio
import pytest
from scripted import Seen, Server, serve
from wire_scenario import Scenario, load_all

from agentperf.wire import chat
from agentperf.wire.client import open_caller
from agentperf.wire.endpoint import Limits, parse_endpoint
from agentperf.wire.exchange import Exchange
from agentperf.wire.outcome import Outcome

SCENARIOS = load_all()
KINDS = ["timed", "timed-uvloop", "httpx"]

# httpx gives no response head when the connection breaks in the same read; and it names a broken head otherwise.
_BODY = b'{"model":"m","messages":[]}'


async def play(scenario: Scenario, transport: Any) -> tuple[Exchange, Outcome, Server, Seen]:
    async with serve(scenario.reply) as server:
        limits = dataclasses.replace(Limits(connect_s=5.0, first_byte_s=10.0, stall_s=10.0), **scenario.limits)
        endpoint = parse_endpoint(server.base())
        async with open_caller(endpoint, path=chat.PATH, limits=limits, transport=transport) as caller:
            with anyio.fail_after(20):
                exchange = await caller(_BODY, "req-1")
        assert len(server.seen) == 1
        return exchange, chat.fold(exchange), server, server.seen[0]


def check_stamps(expect: dict[str, Any], outcome: Outcome, exchange: Exchange, seen: Seen) -> None:
    """A stamp lies behind the write that it belongs to; and before the next one, where a pause kept them apart."""
    for name in ("first_byte", "first_visible", "first_answer", "last_visible"):
        step = expect.get(f"{name}_step")
        stamp = getattr(outcome, f"{name}_ns")
        if step == "none":
            assert stamp is None, name
        elif step is not None:
            assert stamp is not None, name
            assert stamp >= seen.written_ns[step], name
            later = [ns for ns in seen.written_ns[step + 1 :] if ns - seen.written_ns[step] > 5_000_000]
            if later:
                assert stamp < later[0], name
    assert list(exchange.stamps) == sorted(exchange.stamps)
    order = [exchange.t0_ns, exchange.connected_ns, exchange.sent_ns, outcome.first_byte_ns, exchange.end_ns]
    known = [ns for ns in order if ns is not None]
    assert known == sorted(known)


def check_outcome(expect: dict[str, Any], outcome: Outcome) -> None:
    plain = {"outcome", "error_class", "error", "status", "finish_reason", "notes", "visible_chars"}
    plain |= {"prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"}
    for name in plain & expect.keys():
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


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def anyio_backend(kind: str) -> Any:
    return ("asyncio", {"use_uvloop": kind.endswith("uvloop")})


@pytest.mark.anyio
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
async def test_scenario(scenario: Scenario, kind: str) -> None:
    exchange, outcome, _, seen = await play(scenario, kind.removesuffix("-uvloop"))
    expect = dict(scenario.expect)
    check_outcome(expect, outcome)
    check_stamps(expect, outcome, exchange, seen)
    names = {name for name, _ in exchange.headers}
    assert not names & set(expect.get("headers_lack", []))
    if "n1_share" in expect:
        # The share of the first stamp depends on how reads fall; it is pinned where a pause keeps the events apart.
        assert outcome.n1_share == pytest.approx(expect["n1_share"])
    assert exchange.new_connection and exchange.stale_retries == 0
    assert seen.headers["x-request-id"] == "req-1"
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.body == _BODY and seen.path == "/v1/chat/completions"
