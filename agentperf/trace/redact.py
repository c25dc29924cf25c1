"""Secrets in text: what they look like, and taking them out.

Used by the validator (a redistributable set must hold none) and by importers and the recorder. The patterns aim at
tokens with a fixed shape (vendor prefixes, PEM, JWT, AWS, bearer headers, credentials in a URL) and at long literals
assigned to a name such as `api_key`. A secret without any shape, such as a short password in prose, is not found: a
set is made public only after somebody has read it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Secret:
    """A stretch `text[start:end]` that looks like a secret of this kind."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """How one kind of secret looks. The group `s` is the secret itself, else the whole match is.

    `hints` are texts of which one must occur for the expression to be tried at all (a plain search is far cheaper).
    `accept` may refuse a match, as for placeholders in documentation.
    """

    kind: str
    hints: tuple[str, ...]
    regex: re.Pattern[str]
    accept: Callable[[str], bool] = lambda _: True


def _is_random(text: str) -> bool:
    """Whether a literal looks generated: digits and letters mixed, many different characters, no placeholder word."""
    lowered = text.lower()
    placeholder = any(w in lowered for w in ("example", "placeholder", "your", "changeme", "xxxx", "dummy", "redacted"))
    mixed = any(c.isdigit() for c in text) and any(c.isalpha() for c in text)
    return mixed and not placeholder and len(set(text)) >= 10


_RESERVED = re.compile(
    r"[@.](?:example\.(?:com|org|net|edu)|example|invalid|test|localhost|local)$"
    r"|^(?:git|noreply|no-reply)@|@users\.noreply\.github\.com$",
    re.IGNORECASE,
)


def _is_person(address: str) -> bool:
    """Whether an e-mail address may belong to somebody: not a reserved example domain, SSH user or no-reply box."""
    return not _RESERVED.search(address)


def _pattern(kind: str, hints: str, regex: str, accept: Callable[[str], bool] = lambda _: True) -> Pattern:
    return Pattern(kind, tuple(hints.split()), re.compile(regex), accept)


PATTERNS: tuple[Pattern, ...] = (
    _pattern(
        "private-key",
        "PRIVATE",
        # to the END line, or, when the text is cut before it, as far as the body reaches
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"
        r"(?:[\s\S]{0,16384}?-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|[A-Za-z0-9+/=\s\\]*)",
    ),
    _pattern("anthropic-key", "sk-ant-", r"\bsk-ant-[A-Za-z0-9_-]{16,}"),
    _pattern("openrouter-key", "sk-or-", r"\bsk-or-[A-Za-z0-9_-]{16,}"),
    _pattern("openai-key", "sk-", r"\bsk-(?:proj-|svcacct-|admin-)[A-Za-z0-9_-]{16,}|\bsk-[A-Za-z0-9]{20,}"),
    _pattern(
        "github-token", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{22,})"
    ),
    _pattern("gitlab-token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{18,}"),
    _pattern("slack-token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    _pattern("slack-webhook", "hooks.slack.com", r"hooks\.slack\.com/services/[A-Za-z0-9/]{20,}"),
    _pattern("google-key", "AIza", r"\bAIza[A-Za-z0-9_-]{35}"),
    _pattern("huggingface-token", "hf_", r"\bhf_[A-Za-z0-9]{30,}"),
    _pattern("stripe-key", "_live_ _test_", r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    _pattern("npm-token", "npm_", r"\bnpm_[A-Za-z0-9]{36}"),
    _pattern("pypi-token", "pypi-", r"\bpypi-[A-Za-z0-9_-]{50,}"),
    _pattern("aws-key-id", "AKIA ASIA", r"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b", lambda s: "EXAMPLE" not in s),
    _pattern(
        "aws-secret",
        "secret SECRET Secret",
        r"(?i:aws.{0,20}secret|secret_?access_?key).{0,24}?[\"'=:\s](?P<s>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
        _is_random,
    ),
    _pattern("jwt", "eyJ", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    _pattern(
        "bearer-token",
        "earer EARER asic ASIC oken OKEN",
        r"(?i:\bbearer\s+|\bauthorization[\"']?\s*[:=]\s*[\"']?(?:basic|token)\s+)(?P<s>[A-Za-z0-9._~+/=-]{16,})",
        _is_random,
    ),
    _pattern(
        "url-password", "://", r"\b[a-z][a-z0-9+.-]{1,15}://[^\s/:@\"'<>]{1,64}:(?P<s>[^\s/:@\"'<>{}$]{4,256})@[\w.-]"
    ),
    _pattern(
        "assigned-secret",
        "key Key KEY ecret ECRET oken OKEN assw ASSW",
        r"(?i:api[_-]?key|secret|token|passwd|password)[\"']?\s*[:=]\s*[\"'](?P<s>[A-Za-z0-9_+/=.~-]{20,512})[\"']",
        _is_random,
    ),
    _pattern(
        "email",
        "@",
        r"\b[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}\.){1,5}[A-Za-z]{2,24}\b",
        _is_person,
    ),
)
"""Tried in this order; an earlier kind wins where two match the same text."""

PERSONAL: frozenset[str] = frozenset({"email"})
"""Kinds that name a person and are no credential: the validator warns of them, a credential is an error."""


def find_secrets(text: str) -> list[Secret]:
    """What looks like a secret in the text, by position, never overlapping."""
    found: list[Secret] = []
    for pattern in PATTERNS:
        if not any(hint in text for hint in pattern.hints):
            continue
        named = "s" in pattern.regex.groupindex
        for match in pattern.regex.finditer(text):
            start, end = match.span("s" if named else 0)
            clear = not any(start < f.end and f.start < end for f in found)
            if clear and pattern.accept(text[start:end]):
                found.append(Secret(pattern.kind, start, end))
    return sorted(found, key=lambda f: f.start)


def redact_text(text: str) -> str:
    """The text with each secret replaced by `[REDACTED:kind]`; no pattern matches what comes out."""
    return _redact(text, None)


def _redact(text: str, counts: Counter[str] | None) -> str:
    while secrets := find_secrets(text):  # again, as what was taken out may have hidden a neighbour
        parts: list[str] = []
        at = 0
        for secret in secrets:
            parts += (text[at : secret.start], f"[REDACTED:{secret.kind}]")
            at = secret.end
        text = "".join([*parts, text[at:]])
        if counts is not None:
            counts.update(s.kind for s in secrets)
    return text


def redact_value(value: Any, counts: Counter[str] | None = None) -> Any:
    """A JSON value with every string redacted, names of fields included; `counts` takes the number found by kind."""
    if isinstance(value, str):
        return _redact(value, counts)
    if isinstance(value, dict):
        return {redact_value(k, counts): redact_value(v, counts) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [redact_value(v, counts) for v in value]
    return value


def strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(place, text) of every string in a JSON value, names of fields included."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}" if path else str(key)
            yield here, str(key)
            yield from strings(item, here)
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from strings(item, f"{path}[{i}]")
