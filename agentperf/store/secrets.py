"""Nothing secret reaches a file of a run directory: by the name of a field, by shape, and by the known values."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from agentperf.trace.redact import redact_text

REDACTED: Final = "***"
MIN_LITERAL: Final = 8
"""Shorter values (EMPTY, none, a route's name) are no secrets, and taking them out would maul every text."""

_SECRET_WORDS: Final = frozenset(
    {
        "apikey",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "key",
        "passphrase",
        "passwd",
        "password",
        "pwd",
        "secret",
        "sig",
        "signature",
        "token",
        "userinfo",
    }
)
_VALUES_ARE_SECRET: Final = frozenset({"headers", "cookies", "environ"})
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_USERINFO: Final = re.compile(r"(?<=://)[^\s/?#@\"'<>]+@")
_QUERY: Final = re.compile(r"([?&;])([\w.-]{1,64})=([^&;#\s\"'<>]+)")
_SCHEME: Final = re.compile(r"(?i)\b(bearer|basic)(\s+)(?=[^\s,;]*[\d_+/=-]|[^\s,;]{12})[^\s\"',;}\]]{4,}")
_NAMED: Final = re.compile(
    r"(?i)\b((?:proxy-)?authorization|x-api-key|api[_-]?key|set-cookie|cookie|password|passwd|access[_-]token)"
    r"([\"']?\s*[:=]\s*[\"']?)(?!\*\*\*)(?!(?:bearer|basic)\b)[^\s\"',;&}\]]+"
)


def is_secret_name(name: str) -> bool:
    """Whether a text field of this name holds a secret: its last word says so (`api_key`, `HF_TOKEN`, `Set-Cookie`).

    Plural and compound names that count or describe (`prompt_tokens`, `token_source`, `header_names`) do not.
    """
    words = [w.lower() for w in _WORD.findall(name)]
    return bool(words) and words[-1] in _SECRET_WORDS


def scrub(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A JSON value without secrets: names stay, values become `***`. `secrets` are known values, wherever they stand.

    Values below a secret name, of headers and cookies; in any text: URL userinfo and secret query values,
    `Bearer ...`, `api_key=...` and keys of a known shape (`agentperf.trace.redact`).
    """
    literals = known_literals(secrets)
    return _scrub(value, lambda text: _scrub_text(text, literals))


def scrub_text(text: str, secrets: Iterable[str] = ()) -> str:
    """`scrub` for one text."""
    return _scrub_text(text, known_literals(secrets))


def known_literals(secrets: Iterable[str]) -> tuple[str, ...]:
    """The values to look for, longest first: each secret, and of `Bearer abc` also `abc`."""
    found = {part for s in secrets for part in (s.strip(), s.strip().rpartition(" ")[2]) if len(part) >= MIN_LITERAL}
    return tuple(sorted(found, key=lambda s: (-len(s), s)))


def _scrub_text(text: str, literals: tuple[str, ...]) -> str:
    for literal in literals:
        text = text.replace(literal, REDACTED)
    if "://" in text:
        text = _USERINFO.sub(f"{REDACTED}@", text)
    if "=" in text:
        text = _QUERY.sub(_hide_query, text)
    text = _SCHEME.sub(rf"\1\2{REDACTED}", text)
    text = _NAMED.sub(rf"\1\2{REDACTED}", text)
    return redact_text(text)


def _hide_query(match: re.Match[str]) -> str:
    mark, name, value = match.groups()
    return f"{mark}{name}={REDACTED if is_secret_name(name) else value}"


def _hide(value: Any) -> Any:
    """The same shape with every text taken out."""
    if isinstance(value, str):
        return REDACTED if value else value
    if isinstance(value, dict):
        return {k: _hide(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_hide(v) for v in value]
    return value


def _scrub(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {_key(k, text): _field(k, v, text) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_scrub(v, text) for v in value]
    return value


def _key(name: Any, text: Callable[[str], str]) -> Any:
    return text(name) if isinstance(name, str) else name


def _field(name: Any, value: Any, text: Callable[[str], str]) -> Any:
    if not isinstance(name, str):
        return _scrub(value, text)
    if name.lower().rpartition("_")[2] in _VALUES_ARE_SECRET:
        return _headers(value)
    if is_secret_name(name):
        return _hide(value)
    return _scrub(value, text)


def _headers(value: Any) -> Any:
    """Headers as a mapping, as pairs or as `Name: value` lines: the names stay."""
    if isinstance(value, list | tuple):
        return [_header(item) for item in value]
    return _hide(value)


def _header(item: Any) -> Any:
    if isinstance(item, str):
        name, colon, _ = item.partition(":")
        return f"{name}: {REDACTED}" if colon else REDACTED
    if isinstance(item, list | tuple) and len(item) == 2:
        return [item[0], _hide(item[1])]
    return _hide(item)
