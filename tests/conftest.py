"""Shared fixtures: no ambient proxy or key may reach a test."""

import hypothesis
import pytest

# The same examples in every run: a failure is a fault of the code, never of the day.
# Nor is it of a busy machine: that making an example takes long is no fault at all.
hypothesis.settings.register_profile(
    "agentperf", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("agentperf")

_AMBIENT = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "OPENAI_API_KEY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _AMBIENT:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
