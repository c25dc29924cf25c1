"""Why a request failed: one name a class, and what each means. The names are written into records and never change."""

CONNECT_REFUSED = "connect_refused"
CONNECT_TIMEOUT = "connect_timeout"
CONNECT_FAILED = "connect_failed"
DNS = "dns"
TLS = "tls"
CONNECTION_RESET = "connection_reset"
FIRST_BYTE_TIMEOUT = "first_byte_timeout"
STALL_TIMEOUT = "stall_timeout"
TRUNCATED_STREAM = "truncated_stream"
EMPTY_STREAM = "empty_stream"
SERVER_ERROR_IN_STREAM = "server_error_in_stream"
BAD_EVENT = "bad_event"
PROTOCOL_ERROR = "protocol_error"
CONTENT_ENCODING = "content_encoding"
AUTH = "auth"
NOT_FOUND = "not_found"
RATE_LIMITED = "rate_limited"
CONTEXT_OVERFLOW = "context_overflow"
OVERLOADED = "overloaded"
GATEWAY = "gateway"
HTTP_3XX = "http_3xx"
HTTP_4XX = "http_4xx"
HTTP_5XX = "http_5xx"
CLIENT_ERROR = "client_error"
CUT = "cut_off"

MEANINGS: dict[str, str] = {
    CONNECT_REFUSED: "nothing listens at the address",
    CONNECT_TIMEOUT: "no connection (name, TCP and TLS together) within the connect limit",
    CONNECT_FAILED: "the network says that the address cannot be reached",
    DNS: "the host name does not resolve",
    TLS: "the TLS handshake failed, most often because the certificate is not trusted",
    CONNECTION_RESET: "the connection broke or was closed before the response began",
    FIRST_BYTE_TIMEOUT: "no byte of the response body within the first-byte limit",
    STALL_TIMEOUT: "the response began and then nothing came for the stall limit",
    TRUNCATED_STREAM: "the stream ended without finish_reason and without [DONE]",
    EMPTY_STREAM: "a success status, and no output in the stream",
    SERVER_ERROR_IN_STREAM: "a success status, and an error inside the stream",
    BAD_EVENT: "an event of the stream cannot be decoded",
    PROTOCOL_ERROR: "the answer is not what HTTP or the API prescribe",
    CONTENT_ENCODING: "the response is compressed, though we ask for no compression, in a way that is not understood",
    AUTH: "401 or 403: the key is missing or refused",
    NOT_FOUND: "404: no such model or no such path",
    RATE_LIMITED: "429: the server limits the rate (a Retry-After is recorded, not obeyed)",
    CONTEXT_OVERFLOW: "prompt and output do not fit the served context",
    OVERLOADED: "503 or 529: the server says that it is overloaded or not ready",
    GATEWAY: "502, 504 or 52x: a proxy in front of the server failed or lost patience",
    HTTP_3XX: "a redirect, which is not followed",
    HTTP_4XX: "another 4xx status: the request was refused",
    HTTP_5XX: "another 5xx status: the server failed",
    CLIENT_ERROR: "this machine failed (for instance no file descriptors left), not the server",
    CUT: "stopped by agentperf itself, at the end of a window or of the run",
}
"""Each class with its meaning in one line."""

CONNECT_CLASSES = frozenset({CONNECT_REFUSED, CONNECT_TIMEOUT, CONNECT_FAILED, DNS, TLS})
"""Failures before any byte of the request was written."""
