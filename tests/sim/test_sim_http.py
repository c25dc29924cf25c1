"""The simulator over real sockets, in its own process."""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from sim_profiles import plain
from sim_trees import TOOLS
from test_sim_virtual import call_all

from agentperf.clock import monotonic_ns
from agentperf.errors import ClientError
from agentperf.sim.process import SimProcess
from agentperf.wire.chat import fold
from agentperf.wire.exchange import Exchange

PROFILE = plain(model="test-model", ttft_overhead_s=0.005)
MARK = "x-agentperf-simulated"


@pytest.fixture(scope="module")
def server() -> Iterator[SimProcess]:
    with SimProcess(PROFILE, seed=3) as process:
        yield process


def request(text: str = "hello", output: int = 5, **fields: Any) -> dict[str, Any]:
    base = {
        "model": "test-model",
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": output,
        "ignore_eos": True,
    }
    return {**base, **fields}


def post(server: SimProcess, document: Any, **options: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=30) as client:
        if isinstance(document, bytes):
            return client.post(f"{server.url}/chat/completions", content=document, **options)
        return client.post(f"{server.url}/chat/completions", json=document, **options)


def get(server: SimProcess, path: str, **options: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=30) as client:
        return client.get(server.url.removesuffix("/v1") + path, **options)


async def stream(client: httpx.AsyncClient, url: str, document: dict[str, Any]) -> Exchange:
    """An exchange as a plain client sees it."""
    exchange = Exchange(t0_ns=monotonic_ns())
    async with client.stream("POST", f"{url}/chat/completions", json=document) as response:
        exchange.status = response.status_code
        async for data in response.aiter_raw():
            exchange.stamps.append(monotonic_ns())
            exchange.chunks.append(data)
    exchange.end_ns = monotonic_ns()
    return exchange


def gauge(server: SimProcess, name: str) -> float:
    line = next(x for x in get(server, "/metrics").text.splitlines() if x.startswith(f"vllm:{name}{{"))
    return float(line.rsplit(" ", 1)[1])


def test_stream_is_read_by_the_wire(server: SimProcess) -> None:
    async def main() -> Exchange:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await stream(client, server.url, request("x" * 1144, 12, tools=list(TOOLS)))

    outcome = fold(anyio.run(main))
    assert outcome.outcome == "ok"
    assert outcome.output_tokens == 12
    assert len(outcome.visible_ns) == 12
    tools_tokens = -(-len(httpx.Request("POST", "http://x", json=list(TOOLS)).content) // 4)
    assert outcome.prompt_tokens == pytest.approx(286 + 8 + tools_tokens, abs=1)
    assert outcome.cached_tokens == 0


def test_response_headers_and_not_streamed(server: SimProcess) -> None:
    response = post(server, request(stream=False), headers={"x-request-id": "abc"})
    assert response.status_code == 200
    assert (response.headers[MARK], response.headers["x-request-id"]) == ("1", "abc")
    document = response.json()
    assert document["usage"]["completion_tokens"] == 5
    assert len(document["choices"][0]["message"]["content"]) == 20
    streamed = post(server, request())
    assert streamed.headers[MARK] == "1"
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert '"usage"' in streamed.text
    assert '"usage"' not in post(server, request(stream_options=None)).text


def test_cache_over_http(server: SimProcess) -> None:
    def cached(salt: str, turns: int) -> int:
        messages = [{"role": "system", "content": "s" * 640}, {"role": "user", "content": salt + "x" * 1600}]
        messages += [{"role": "user", "content": "y" * 400}] * (turns - 1)
        usage = post(server, request(messages=messages, stream=False)).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached("a" * 24, 1) == 0
    assert cached("a" * 24, 2) == (160 + 4 + 406 + 4) // 16 * 16
    assert cached("b" * 24, 2) == (160 + 4 + 4) // 16 * 16


@pytest.mark.parametrize(
    ("document", "status", "kind", "needle"),
    [
        (request(model="gpt"), 404, "NotFoundError", "`gpt` does not exist"),
        (request("x" * 20_000), 400, "BadRequestError", "maximum context length is 4096"),
        (request(output=4090), 400, "BadRequestError", "maximum context length is 4096"),
        (request(output=0), 400, "BadRequestError", "at least 1"),
        (request(messages=[]), 400, "BadRequestError", "at least one message"),
        (request(messages=3), 400, "BadRequestError", "messages"),
        (b"\xff{", 400, "BadRequestError", ""),
        (b"", 400, "BadRequestError", ""),
    ],
)
def test_refusals(server: SimProcess, document: Any, status: int, kind: str, needle: str) -> None:
    response = post(server, document)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, status, kind)
    assert needle in error["message"]
    assert response.headers[MARK] == "1"


def test_the_wire_knows_an_overflow(server: SimProcess) -> None:
    response = post(server, request("x" * 20_000))
    exchange = Exchange(t0_ns=0, end_ns=1, status=response.status_code, chunks=[response.content])
    exchange.stamps.append(1)
    assert fold(exchange).error_class == "context_overflow"


def test_other_pages(server: SimProcess) -> None:
    (model,) = get(server, "/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"], model["owned_by"]) == ("test-model", 4096, "agentperf-sim")
    assert get(server, "/health").status_code == 200
    metrics = get(server, "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "vllm:time_to_first_token_seconds_bucket" in metrics.text
    for response, status in (
        (get(server, "/nothing"), 404),
        (get(server, "/v1/chat/completions"), 405),
    ):
        assert response.status_code == status
        assert response.json()["error"]["code"] == status
    for path in ("/v1/models", "/health", "/metrics", "/version", "/nothing"):
        assert get(server, path).headers[MARK] == "1"


def test_a_client_that_leaves_frees_its_sequence(server: SimProcess) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            with anyio.move_on_after(0.4):
                await stream(client, server.url, request(output=3000))

    anyio.run(main)
    limit = time.monotonic() + 10
    while gauge(server, "num_requests_running") and time.monotonic() < limit:
        time.sleep(0.05)
    assert gauge(server, "num_requests_running") == 0
    assert gauge(server, "kv_cache_usage_perc") == 0


def test_speed_agrees_with_virtual_time(server: SimProcess) -> None:
    """Eight streams of 80 tokens, by HTTP and by the virtual endpoint: medians within a few per cent."""
    documents = [request(f"{i} agree " + "x" * 800, 80) for i in range(8)]

    async def main() -> list[Exchange]:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await asyncio.gather(*(stream(client, server.url, d) for d in documents))

    def median_speed(exchanges: list[Exchange]) -> float:
        outcomes = [fold(e) for e in exchanges]
        assert all(o.outcome == "ok" and o.output_tokens == 80 for o in outcomes)
        return statistics.median(79e9 / ((o.last_visible_ns or 0) - (o.first_visible_ns or 0)) for o in outcomes)

    virtual = median_speed(call_all(PROFILE, [(0.0, json.dumps(d).encode()) for d in documents]))
    assert virtual == pytest.approx(1 / 0.018, rel=0.05)
    # A busy machine can only make one try worse; the best of three must agree.
    ratios = [abs(median_speed(anyio.run(main)) / virtual - 1) for _ in range(3)]
    assert min(ratios) < 0.04


def test_api_key() -> None:
    with SimProcess(PROFILE, api_key="sesame") as server:
        assert post(server, request()).status_code == 401
        assert post(server, request(), headers={"authorization": "Bearer wrong"}).status_code == 401
        assert post(server, request(), headers={"authorization": "Bearer sesame"}).status_code == 200
        refused = get(server, "/v1/models")
        assert (refused.status_code, refused.headers[MARK]) == (401, "1")
        assert get(server, "/v1/models", headers={"authorization": "Bearer sesame"}).status_code == 200
        assert get(server, "/health").status_code == 200
        command = Path(f"/proc/{server.pid}/cmdline").read_text() if sys.platform == "linux" else ""
        assert "sesame" not in command


def test_stop_ends_the_process_and_can_be_repeated() -> None:
    server = SimProcess(PROFILE).start()
    pid = server.pid
    os.kill(pid, 0)
    server.stop()
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(RuntimeError):
        _ = server.pid
    with pytest.raises(httpx.ConnectError):
        get(server, "/health")


def test_a_server_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ClientError, match="did not start: exit code 1"):
        SimProcess(PROFILE).start()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_server_dies_with_its_parent() -> None:
    code = (
        "import sys, time; from agentperf.sim.process import SimProcess\n"
        "s = SimProcess('demo').start(); print(s.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert Path(f"/proc/{child}").exists()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    limit = time.monotonic() + 20
    while _alive(child) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    """A zombie that nobody has reaped yet counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
