"""`agentperf sim`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from agentperf.cli.sim import app
from agentperf.errors import ClientError, UsageError


def test_profiles_table_and_json() -> None:
    runner = CliRunner()
    table = runner.invoke(app, ["profiles"])
    assert table.exit_code == 0
    assert "glm-5.3-8xh200" in table.output
    rows = json.loads(runner.invoke(app, ["profiles", "--json"]).output)
    glm = next(row for row in rows if row["name"] == "glm-5.3-8xh200")
    assert glm["decode_tokens_per_s"]["1"] == pytest.approx(252.9, rel=0.06)
    assert glm["decode_tokens_per_s"]["128"] == pytest.approx(29.6, rel=0.06)


@pytest.mark.parametrize(
    ("arguments", "kind", "needle"),
    [
        (["--profile", "no-such"], UsageError, "no-such"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], UsageError, "NO_SUCH_VARIABLE"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], kind: type[Exception], needle: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert isinstance(result.exception, kind)
    assert needle in str(result.exception)


def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(app, ["serve", "--port", str(taken.getsockname()[1])])
    assert isinstance(result.exception, ClientError)
    assert "--port" in str(result.exception)


def test_serve_answers_until_interrupted() -> None:
    command = [sys.executable, "-c", "from agentperf.cli.sim import app; app()", "serve", "--port", "0"]
    environment = {**os.environ, "SIM_KEY": "sesame", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([*command, "--api-key-env", "SIM_KEY"], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        match = re.search(r"(http://127\.0\.0\.1:\d+/v1)  model demo-coder", line)
        assert match, line
        with httpx.Client(trust_env=False, timeout=20) as client:
            assert client.get(f"{match[1]}/models").status_code == 401
            answer = client.get(f"{match[1]}/models", headers={"authorization": "Bearer sesame"})
        assert answer.json()["data"][0]["id"] == "demo-coder"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130, -signal.SIGINT)
