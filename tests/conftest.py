"""Shared fixtures: no ambient proxy or key may reach a test."""

from pathlib import Path

import hypothesis
import pytest

# The same examples in every run: a failure is a fault of the code, never of the day.
# Nor is it of a busy machine: that making an example takes long is no fault at all.
hypothesis.settings.register_profile(
    "agentperf", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("agentperf")

_AMBIENT = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "OPENAI_API_KEY", "SSL_CERT_FILE", "SSL_CERT_DIR")


# Real processes, real waiting, or times of the wire beside a server's log: these have the machine to themselves.
_REAL_TIME = (
    "benchmarks/",
    "cli/test_cli_calibrate.py",
    "cli/test_cli_interrupt.py",
    "cli/test_cli_lost_process.py",
    "cli/test_cli_preflight.py",
    "cli/test_cli_sim.py",
    "fleet/",
    "real/",
    "run/test_server_metrics.py",
    "run/test_virtual_agrees.py",
    "server/test_server_fetch.py",
    "sim/test_sim_http.py",
    "sim/test_sim_replicas.py",
    "wire/test_wire_check.py",
    "wire/test_wire_run.py",
    "wire/test_wire_scenarios.py",
    "wire/test_wire_transport.py",
    "yardstick/",
)
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(_HERE).as_posix().startswith(_REAL_TIME):
            item.add_marker(pytest.mark.real_time)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _AMBIENT:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
