"""Where requests go: base URL, headers with their secrets, TLS trust, and the limits of a request."""

import base64
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx

from agentperf.errors import UsageError

MIN_SECRET = 6
"""Characters below which a header value is not looked for in texts."""

_HEADER_NAME = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
_HOST = re.compile(rb"^[0-9A-Za-z._:-]+$")
_OWN_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "x-request-id"}
)
_API_SUFFIXES = ("/chat/completions", "/completions", "/models")


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of one request in seconds; None is no limit. There is no limit on the whole of it."""

    connect_s: float | None = 10.0
    """Name resolution, TCP and TLS together."""
    first_byte_s: float | None = 600.0
    """From having a connection to the first byte of the response *body* (early headers do not end the wait)."""
    stall_s: float | None = 300.0
    """Between reads once the body has begun. Any byte counts as progress, a keep-alive comment as well."""


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """An OpenAI-compatible base URL. Make it with `parse_endpoint`; header values never show in repr or `public`."""

    scheme: str
    host: str
    """As it is connected to: IDNA-encoded, IPv6 without brackets."""
    port: int
    base_path: str
    """Starts with a slash, ends without one: `/v1`."""
    query: str
    """Without the question mark; added to every URL."""
    headers: tuple[tuple[str, str], ...]
    auth: str
    """Where the Authorization header comes from: none, key, userinfo or header."""
    ca_file: str | None = None
    insecure: bool = False
    trust_env: bool = False

    @property
    def authority(self) -> str:
        """Host and port as in a Host header: the default port is left out, IPv6 is in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"

    @property
    def base_url(self) -> str:
        """Without query and without anything secret."""
        return f"{self.scheme}://{self.authority}{self.base_path}"

    def target(self, path: str) -> str:
        """Path and query of a request line, for a path below the base (`chat/completions`)."""
        return f"{self.base_path}/{path.lstrip('/')}" + (f"?{self.query}" if self.query else "")

    def url(self, path: str) -> str:
        """URL of a path below the base: `models` -> `http://host:8000/v1/models`."""
        return f"{self.scheme}://{self.authority}{self.target(path)}"

    def root_url(self, path: str) -> str:
        """URL of a path beside the API's `/v1`: /health, /metrics, /props."""
        root = self.base_path.removesuffix("/v1")
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.authority}{root}/{path.lstrip('/')}{query}"

    def ssl_context(self) -> ssl.SSLContext:
        """Trust for https: httpx's roots, or only `ca_file`, or anything (`insecure`). UsageError on a bad file."""
        context = httpx.create_ssl_context(verify=not self.insecure and self.ca_file is None, trust_env=self.trust_env)
        if self.ca_file is not None and not self.insecure:
            context.check_hostname = True
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(cafile=self.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(
                    f"the CA file {self.ca_file} cannot be used: {getattr(error, 'reason', None) or error}",
                    "it must be a PEM file of CA certificates",
                ) from error
        context.set_alpn_protocols(["http/1.1"])
        return context

    def mask(self, text: str) -> str:
        """`text` without the secrets of this endpoint: some servers repeat the key that they refuse."""
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return text

    def _secrets(self) -> list[str]:
        """Header values, the tokens in them, and query values; the longest first, and none that is short."""
        values = [value for _, value in self.headers] + [part.partition("=")[2] for part in self.query.split("&")]
        values += [token for value in values for token in value.split()]
        return sorted({value for value in values if len(value) >= MIN_SECRET}, key=len, reverse=True)

    def public(self) -> dict[str, Any]:
        """For manifests and logs: no userinfo, key, header value or query value."""
        names = [part.partition("=")[0] for part in self.query.split("&") if part]
        return {
            "url": self.base_url + ("?" + "&".join(f"{name}=***" for name in names) if names else ""),
            "auth": self.auth,
            "header_names": sorted(name.lower() for name, _ in self.headers),
            "tls": self.scheme == "https",
            "ca_file": self.ca_file is not None,
            "insecure": self.insecure,
            "trust_env": self.trust_env,
        }

    def __repr__(self) -> str:
        return f"Endpoint({self.public()['url']})"

    __str__ = __repr__


def parse_header(text: str) -> tuple[str, str]:
    """`Name: value` -> (name, value). UsageError, which never repeats the value, on anything else."""
    name, colon, value = text.partition(":")
    if not colon:
        raise UsageError("a header needs the form 'Name: value'", "for example --header 'X-Route: canary'")
    return _checked_header(name.strip(), value.strip())


def parse_endpoint(
    text: str,
    api_key: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
    ca_file: str | Path | None = None,
    insecure: bool = False,
    trust_env: bool = False,
) -> Endpoint:
    """An Endpoint from a base URL, with or without `/v1`; UsageError in one line on anything that is none.

    A URL without path gets `/v1`; any other path is kept, less a trailing slash and an API path such as
    `/chat/completions`. Credentials in the URL become a basic Authorization header. An explicit Authorization header
    wins over them, and they win over `api_key`.
    """
    text = text.strip()
    url = _parse_url(text)
    path = url.raw_path.decode("ascii").partition("?")[0].rstrip("/")
    for suffix in _API_SUFFIXES:
        if path.endswith(suffix):
            path = path.removesuffix(suffix)
            break
    checked = [_checked_header(name, value) for name, value in headers]
    auth, authorization = _authorization(url, api_key, checked)
    if authorization is not None:
        checked.append(("Authorization", authorization))
    if ca_file is not None and not Path(ca_file).is_file():
        raise UsageError(f"the CA file {ca_file} does not exist")
    return Endpoint(
        scheme=url.scheme,
        host=url.raw_host.decode("ascii"),
        port=url.port or (443 if url.scheme == "https" else 80),
        base_path=path or "/v1",
        query=url.query.decode("ascii"),
        headers=tuple(checked),
        auth=auth,
        ca_file=str(ca_file) if ca_file is not None else None,
        insecure=insecure,
        trust_env=trust_env,
    )


def _parse_url(text: str) -> httpx.URL:
    remedy = "use a base URL such as http://localhost:8000/v1"
    if "://" not in text:
        raise UsageError("the endpoint has no scheme", remedy)
    scheme = text.partition("://")[0].lower()
    if scheme not in ("http", "https"):
        raise UsageError(f"the endpoint's scheme {scheme[:20]!r} is not http or https", remedy)
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError, UnicodeError) as error:
        raise UsageError("the endpoint is no valid URL", remedy) from error
    if not url.host:
        raise UsageError("the endpoint has no host", remedy)
    if not _HOST.match(url.raw_host) or not 0 < (url.port or 1) < 65_536:
        raise UsageError("the endpoint's host or port is not valid", remedy)
    if url.fragment:
        raise UsageError("the endpoint has a fragment (#...), which no server sees", remedy)
    return url


def _authorization(url: httpx.URL, api_key: str | None, headers: list[tuple[str, str]]) -> tuple[str, str | None]:
    """(source, header value to add); the order is explicit header, userinfo, key."""
    if any(name.lower() == "authorization" for name, _ in headers):
        return "header", None
    if url.userinfo:
        user, _, password = url.userinfo.decode("ascii").partition(":")
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        return "userinfo", "Basic " + base64.b64encode(pair).decode("ascii")
    key = (api_key or "").strip()
    if not key:
        return "none", None
    if not key.isascii() or not key.isprintable():
        raise UsageError("the API key holds characters that a header cannot carry")
    return "key", f"Bearer {key}"


def _checked_header(name: str, value: str) -> tuple[str, str]:
    if not _HEADER_NAME.match(name):
        raise UsageError(f"{name[:40]!r} is no header name")
    if name.lower() in _OWN_HEADERS:
        raise UsageError(f"the header {name} is set by agentperf itself")
    if not value.isascii() or any(c < " " and c != "\t" for c in value):
        raise UsageError(f"the value of the header {name} holds characters that a header cannot carry")
    return name, value
