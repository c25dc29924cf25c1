"""What stops a run before it starts: each is one line with cause and remedy, and its exit code, within its limit."""

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import trustme

from tests.wire.scripted import Reply, Seen, Step, json_reply, serve

pytestmark = pytest.mark.anyio

MODELS = b'{"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 32768}]}'
KEY = "sk-canary-0123456789abcdef"


async def agentperf(*arguments: str, key: str | None = None) -> tuple[int, str, str]:
    """Run the command; its code, stdout and stderr."""
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    environment.pop("OPENAI_API_KEY", None)
    if key is not None:
        environment["OPENAI_API_KEY"] = key
    done = await anyio.run_process(
        [sys.executable, "-m", "agentperf", *arguments], check=False, env=environment, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def run_arguments(url: str, *more: str) -> tuple[str, ...]:
    return ("run", "--endpoint", url, "--slo", "80tps", "--traces", "smoke", *more)


def one_error(code: int, stderr: str) -> str:
    """The error line; exit 4, no traceback, a remedy where there is one, and nothing secret."""
    assert code == 4, stderr
    assert "Traceback" not in stderr
    assert KEY not in stderr
    lines = [line for line in stderr.splitlines() if line.startswith("agentperf: error: ")]
    assert len(lines) == 1, stderr
    return lines[0]


@asynccontextmanager
async def answering(models: Reply, chat: Reply) -> AsyncIterator[str]:
    def reply(seen: Seen) -> Reply:
        return models if seen.path.endswith("/models") else chat

    async with serve(reply) as server:
        yield f"http://127.0.0.1:{server.port}/v1"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def test_refused() -> None:
    code, _, err = await agentperf(*run_arguments(f"http://127.0.0.1:{free_port()}/v1"))
    assert "refused" in one_error(code, err)


async def test_wrong_key() -> None:
    refusal = json_reply(b'{"error": {"message": "Incorrect API key provided: %s"}}' % KEY.encode(), status=401)
    async with answering(refusal, refusal) as url:
        code, _, err = await agentperf(*run_arguments(url), key=KEY)
    assert "401" in one_error(code, err) or "key" in one_error(code, err)
    assert "--api-key-env" in err or "OPENAI_API_KEY" in err


async def test_unknown_model() -> None:
    missing = json_reply(b'{"error": {"message": "The model `x` does not exist", "code": 404}}', status=404)
    async with answering(json_reply(MODELS), missing) as url:
        code, _, err = await agentperf(*run_arguments(url, "--model", "x"))
    assert "x" in one_error(code, err)


async def test_two_models_and_none_named() -> None:
    two = json_reply(b'{"data": [{"id": "m1"}, {"id": "m2"}]}')
    async with answering(two, two) as url:
        code, _, err = await agentperf(*run_arguments(url))
    one_error(code, err)
    assert "m1" in err
    assert "--model" in err


async def test_server_errors() -> None:
    broken = json_reply(b'{"error": {"message": "out of memory"}}', status=500)
    async with answering(json_reply(MODELS), broken) as url:
        code, _, err = await agentperf(*run_arguments(url))
    assert "500" in one_error(code, err)


async def test_no_openai_server() -> None:
    page = Reply([Step(b"<html><body>It works!</body></html>")], 200, [("Content-Type", "text/html")], "length")
    async with answering(page, page) as url:
        code, _, err = await agentperf(*run_arguments(url))
    one_error(code, err)


async def test_nothing_found() -> None:
    nothing = json_reply(b'{"detail": "Not Found"}', status=404)
    async with answering(nothing, nothing) as url:
        code, _, err = await agentperf(*run_arguments(url))
    one_error(code, err)


async def test_a_server_that_hangs_is_left_within_the_stated_limit() -> None:
    hang = Reply([Step(fault="silence")], raw=True)
    began = time.monotonic()
    async with answering(hang, hang) as url:
        code, _, err = await agentperf(*run_arguments(url))
    assert "10 s" in one_error(code, err)
    assert time.monotonic() - began < 40  # the limit is 10 s; the rest is for a busy machine


async def test_an_untrusted_certificate_is_named() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    def reply(_: Seen) -> Reply:
        return json_reply(MODELS)

    async with serve(reply, tls=context) as server:
        code, _, err = await agentperf(*run_arguments(f"https://127.0.0.1:{server.port}/v1"))
    assert "certificate" in one_error(code, err)
    assert "--ca-file" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "--endpoint", "http://h/v1"), "--slo"),
        (("run", "--endpoint", "ftp://h/v1", "--slo", "80tps"), "http"),
        (("run", "--endpoint", "http://h/v1", "--slo", "p25 sped >= 80"), "^"),
        (("run", "--endpoint", "http://h/v1", "--slo", "80tps", "--levels", "a"), "--levels"),
        (("run", "--endpoint", "http://h/v1", "--slo", "80tps", "--protocol", "agentx"), "--protocol"),
        (("run", "--endpoint", "http://h/v1", "--slo", "80tps", "--budget", "soon"), "--budget"),
        (("run", "--endpoint", "http://h/v1", "--slo", "80tps", "--resolution", "150%"), "--resolution"),
        (("run", "--endpoint", "http://h/v1", "--slo", "80tps", "--workers", "0"), "--workers"),
        (("run", "--endpoint", "http://h/v1", "--slo", "80tps", "--deployment", "/nowhere.toml"), "--deployment"),
        (("run", "--endpoint", "http://h/v1", "--slo", "80tps", "--header", "nonsense"), "header"),
        (("run", "--endpoint", "sim:no-such-profile", "--slo", "80tps"), "no-such-profile"),
        (("run", "--endpoint", "http://h/v1", "--slo", "80tps", "--time-scale", "nan"), "--time-scale"),
        (("run", "--endpoint", "http://h/v1", "--slo", "80tps", "--stall-timeout", "-1"), "--stall-timeout"),
        (("report", "/nowhere"), "/nowhere"),
        (("traces", "show", "/nowhere.jsonl"), "/nowhere.jsonl"),
    ],
)
async def test_wrong_usage_exits_2_with_one_line(arguments: tuple[str, ...], says: str) -> None:
    code, _, err = await agentperf(*arguments)
    assert code == 2, err
    assert "Traceback" not in err
    assert says in err


async def test_missing_trace_set_is_told_before_any_load() -> None:
    async with answering(json_reply(MODELS), json_reply(MODELS)) as url:
        code, _, err = await agentperf("run", "--endpoint", url, "--slo", "80tps", "--traces", "/nowhere.jsonl")
    assert code == 2
    assert "/nowhere.jsonl" in err


async def test_help_needs_nothing_and_names_every_flag_scripts_rely_on() -> None:
    code, out, _ = await agentperf("run", "--help")
    assert code == 0
    flags = (
        "--endpoint --model --slo --traces --protocol --levels --concurrency --duration --max-agents --resolution "
        "--workers --seed --out --budget --deployment --json"
    )
    assert all(flag in out for flag in flags.split())
