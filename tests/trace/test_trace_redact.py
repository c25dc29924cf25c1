from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentperf.trace.redact import PATTERNS, find_secrets, redact_text, redact_value, strings

# Made up, and put together here so that no scanner takes this file for a leak.
RANDOM = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0"
SECRETS = {
    "anthropic-key": ["sk-" + "ant-api03-" + RANDOM],
    "openrouter-key": ["sk-" + "or-v1-" + RANDOM],
    "openai-key": ["sk-" + RANDOM, "sk-" + "proj-" + RANDOM],
    "github-token": ["gh" + "p_" + RANDOM[:36], "github" + "_pat_" + RANDOM],
    "gitlab-token": ["gl" + "pat-" + RANDOM[:20]],
    "slack-token": ["xox" + "b-" + RANDOM[:24]],
    "slack-webhook": ["hooks.slack.com/" + "services/T00000000/B00000000/" + RANDOM[:24]],
    "google-key": ["AI" + "za" + RANDOM[:35]],
    "huggingface-token": ["h" + "f_" + RANDOM[:34]],
    "stripe-key": ["sk" + "_live_" + RANDOM[:24]],
    "npm-token": ["n" + "pm_" + RANDOM[:36]],
    "pypi-token": ["py" + "pi-" + RANDOM + RANDOM],
    "aws-key-id": ["AK" + "IA" + "Q3EGRZ7XK2WTNB5M"],
    "jwt": ["ey" + "J" + RANDOM[:20] + ".ey" + "J" + RANDOM + "." + RANDOM],
    "email": ["jane.doe+ci@corp.co.uk"],
}
CONTEXTS = {
    "aws-secret": ["aws_secret_access_key = {}", 'AWS_SECRET_ACCESS_KEY="{}"', '"SecretAccessKey": "{}"'],
    "bearer-token": ["Authorization: Bearer {}", "authorization: Basic {}", '"authorization": "token {}"'],
    "url-password": ["postgres://app:{}@db.internal:5432/x"],
    "assigned-secret": ["API_KEY = '{}'", '"client_secret": "{}"', 'my-service-token: "{}"', "password='{}'"],
}


@pytest.mark.parametrize("kind", SECRETS)
def test_tokens_with_a_shape_are_found_anywhere(kind: str) -> None:
    for secret in SECRETS[kind]:
        for text in (secret, f"use {secret}, please", f'"{secret}"', f"\n{secret}\n", f"x={secret};"):
            (found,) = find_secrets(text)
            assert found.kind == kind
            assert text[found.start : found.end] == secret
            assert redact_text(text) == text.replace(secret, f"[REDACTED:{kind}]")


@pytest.mark.parametrize("kind", CONTEXTS)
def test_tokens_told_by_what_is_around_them(kind: str) -> None:
    for context in CONTEXTS[kind]:
        assert redact_text(context.format(RANDOM)) == context.format(f"[REDACTED:{kind}]"), context


def test_private_keys_go_whole_also_when_cut_off() -> None:
    begin, end = "-----BEGIN RSA " + "PRIVATE KEY-----", "-----END RSA " + "PRIVATE KEY-----"
    body = "\n".join([RANDOM] * 5)
    assert redact_text(f"a\n{begin}\n{body}\n{end}\nb") == "a\n[REDACTED:private-key]\nb"
    assert redact_text(f"{begin}\\n{RANDOM}\\n") == "[REDACTED:private-key]"
    assert RANDOM not in redact_text(f"{begin}\n{body}")


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn and task-force-delta-0123456789",
        "token = get_token_from_request(request)",
        'password = os.environ["DATABASE_PASSWORD"]',
        'api_key = "your-api-key-goes-here-1234"',
        'token: "aaaaaaaaaaaaaaaaaaaaaaaa1"',
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "Authorization: Bearer $TOKEN",
        "Authorization: Bearer <your token here>",
        "the bearer of this letter is authorised",
        "AKIAIOSFODNN7EXAMPLE",
        "git@github.com:org/repo.git",
        "noreply@anthropic.com, 1+x@users.noreply.github.com",
        "a@example.com b@sub.example.org c@host.test d@x.local",
        "decorators such as @app.route and user@host",
        "http://localhost:8000/v1 and https://host:443/path@2",
        "uuid 123e4567-e89b-12d3-a456-426614174000",
        "-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----",
        "[REDACTED:openai-key]",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert find_secrets(text) == []
    assert redact_text(text) == text


def test_kinds_are_tested() -> None:
    assert {p.kind for p in PATTERNS} == set(SECRETS) | set(CONTEXTS) | {"private-key"}


def test_values() -> None:
    key = SECRETS["openai-key"][0]
    counts: Counter[str] = Counter()
    value = {"a": [key, 1, None, True], key: {"b": f"{key} {key}"}, "c": 0.5}
    mark = "[REDACTED:openai-key]"
    assert redact_value(value, counts) == {"a": [mark, 1, None, True], mark: {"b": f"{mark} {mark}"}, "c": 0.5}
    assert counts == {"openai-key": 4}
    assert list(strings({"a": ["x", {"b": "y"}], "c": 1})) == [
        ("a", "a"),
        ("a[0]", "x"),
        ("a[1].b", "b"),
        ("a[1].b", "y"),
        ("c", "c"),
    ]


PIECES = st.sampled_from(
    [s for group in SECRETS.values() for s in group] + [" ", "@", ".", ":", "'", "x", "Bearer ", "secret='", "://u:"]
)


@given(st.lists(PIECES | st.text(max_size=5), max_size=8).map("".join))
@example("a@b.cd" + SECRETS["openai-key"][0])
def test_nothing_is_found_in_what_was_redacted(text: str) -> None:
    done = redact_text(text)
    assert find_secrets(done) == []
    assert redact_text(done) == done


@given(st.text(max_size=200))
def test_found_stretches_are_in_order_and_apart(text: str) -> None:
    found = find_secrets(text)
    assert all(a.end <= b.start for a, b in pairwise(found))
    assert all(0 <= f.start < f.end <= len(text) for f in found)


def test_long_hostile_text_takes_no_time_worth_speaking_of() -> None:
    # each would take minutes if an expression backtracked over the whole text; all together take well under a second
    for text in ("a." * 100_000, "@" * 200_000, "Bearer" + " " * 200_000, "-----BEGIN PRIVATE KEY-----" * 4_000):
        redact_text(text)
    redact_text("secret_key_" * 20_000 + "a@" * 50_000 + "x://" * 20_000)
