"""Endpoints: what is accepted, where it leads, and that no secret shows."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.errors import UsageError
from agentperf.wire.endpoint import Endpoint, parse_endpoint, parse_header


@pytest.mark.parametrize(
    ("text", "models", "health"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1/models", "http://localhost:8000/health"),
        ("http://localhost:8000/", "http://localhost:8000/v1/models", "http://localhost:8000/health"),
        ("http://localhost:8000/v1", "http://localhost:8000/v1/models", "http://localhost:8000/health"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1/models", "http://localhost:8000/health"),
        ("HTTP://LOCALHOST:8000/v1///", "http://localhost:8000/v1/models", "http://localhost:8000/health"),
        ("http://h/v1/chat/completions", "http://h/v1/models", "http://h/health"),
        ("https://h/api/llm/v1", "https://h/api/llm/v1/models", "https://h/api/llm/health"),
        ("https://h/api/v3", "https://h/api/v3/models", "https://h/api/v3/health"),
        ("https://h:443/v1", "https://h/v1/models", "https://h/health"),
        ("https://h:80", "https://h:80/v1/models", "https://h:80/health"),
        ("http://[::1]:8000", "http://[::1]:8000/v1/models", "http://[::1]:8000/health"),
        ("http://[2001:db8::2]", "http://[2001:db8::2]/v1/models", "http://[2001:db8::2]/health"),
        ("http://u:p@h/v1", "http://h/v1/models", "http://h/health"),
        ("https://h/v1?api-version=3", "https://h/v1/models?api-version=3", "https://h/health?api-version=3"),
        ("https://bücher.example", "https://xn--bcher-kva.example/v1/models", "https://xn--bcher-kva.example/health"),
        ("  http://h  ", "http://h/v1/models", "http://h/health"),
    ],
)
def test_urls(text: str, models: str, health: str) -> None:
    endpoint = parse_endpoint(text)
    assert endpoint.url("models") == models
    assert endpoint.url("/models") == models
    assert endpoint.root_url("health") == health


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:8000",
        "h",
        "ftp://h",
        "file:///etc/passwd",
        "sim:x",
        "http://",
        "http:///v1",
        "http://h:99999",
        "http://h:port",
        "http://[::1",
        "http://h/v1#part",
        "http://ho st/v1",
        "http://h\n/v1",
    ],
)
def test_rejected_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoint(text)
    assert "\n" not in str(caught.value)
    assert "http://localhost:8000/v1" in str(caught.value) or "fragment" in str(caught.value)


def auth_of(endpoint: Endpoint) -> str | None:
    return {n.lower(): v for n, v in endpoint.headers}.get("authorization")


def test_authorization_order() -> None:
    assert auth_of(parse_endpoint("http://h")) is None
    assert auth_of(parse_endpoint("http://h", "")) is None
    assert auth_of(parse_endpoint("http://h", " key \n")) == "Bearer key"
    assert auth_of(parse_endpoint("http://u:p%40s@h", "key")) == "Basic dTpwQHM="
    own = parse_endpoint("http://u:p@h", "key", [("authorization", "Custom x")])
    assert auth_of(own) == "Custom x" and own.auth == "header"
    assert sum(name.lower() == "authorization" for name, _ in own.headers) == 1


CANARY = "s3cr3t-canary"


def test_no_secret_shows() -> None:
    for endpoint in (
        parse_endpoint(f"http://user:{CANARY}@h/v1?key={CANARY}", headers=[("X-Key", CANARY)]),
        parse_endpoint("http://h", CANARY),
    ):
        shown = repr(endpoint) + str(endpoint) + f"{endpoint}" + repr(endpoint.public()) + endpoint.base_url
        assert CANARY not in shown
        assert "user" not in endpoint.public()["url"]
        assert pickle.loads(pickle.dumps(endpoint)) == endpoint
    assert parse_endpoint(f"http://h/v1?key={CANARY}&b=1").public()["url"] == "http://h/v1?key=***&b=***"
    for bad in (f"x {CANARY}", f"Bad\nName: {CANARY}", f"X-A: {CANARY}\x00", f"Host: {CANARY}"):
        with pytest.raises(UsageError) as caught:
            parse_header(bad)
        assert CANARY not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        parse_endpoint("http://h", CANARY + "\u20ac")
    assert CANARY not in str(caught.value)


def test_headers() -> None:
    assert parse_header("X-Route:  canary ") == ("X-Route", "canary")
    assert parse_header("X-Url: http://a:b") == ("X-Url", "http://a:b")
    with pytest.raises(UsageError, match="set by agentperf itself"):
        parse_endpoint("http://h", headers=[("Content-Length", "3")])


def test_ca_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        parse_endpoint("https://h", ca_file=tmp_path / "no.pem")
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    with pytest.raises(UsageError, match="cannot be used"):
        parse_endpoint("https://h", ca_file=bad).ssl_context()


@given(st.text(max_size=40))
def test_any_text_is_an_endpoint_or_one_line(text: str) -> None:
    for candidate in (text, "http://" + text):
        try:
            endpoint = parse_endpoint(candidate)
        except UsageError as error:
            assert "\n" not in str(error)
        else:
            assert endpoint.url("models").startswith(("http://", "https://"))
            assert endpoint.url("models").isascii() and " " not in endpoint.url("models")
