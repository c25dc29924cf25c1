"""From a failed request to the one-line error, with its remedy, that ends a command with exit code 4."""

from agentperf.errors import AuthError, ConnectError, EndpointError, ModelError, ProtocolError
from agentperf.wire import failures
from agentperf.wire.endpoint import Endpoint
from agentperf.wire.outcome import Outcome

_REMEDIES = {
    failures.CONNECT_REFUSED: "is the server running, and is the port right? --wait SECONDS waits for it",
    failures.CONNECT_TIMEOUT: "check host, port and firewall",
    failures.CONNECT_FAILED: "check host, port and network",
    failures.DNS: "check the host name",
    failures.TLS: "give its CA with --ca-file FILE, or use --insecure to skip the check",
    failures.CLIENT_ERROR: "raise the limit of open files (ulimit -n) or close other programs",
}
COMPRESSION_REMEDY = "turn compression off in the server, or in the proxy before it"
LOG_REMEDY = "look at the server's log"
PATH_REMEDY = "check the path of --endpoint: for most servers it ends in /v1"


def connect_error(error_class: str, text: str) -> EndpointError:
    """For failures before anything was sent."""
    return ConnectError(text, _REMEDIES.get(error_class))


def not_the_api(endpoint: Endpoint, what: str) -> ProtocolError:
    """Something answers, but it is not the API."""
    return ProtocolError(f"{endpoint.base_url} is no OpenAI-compatible server: {what}", PATH_REMEDY)


def auth_error(endpoint: Endpoint, text: str) -> AuthError:
    """401 or 403; the remedy depends on whether a key was sent."""
    sent = {
        "none": "no key was sent: set OPENAI_API_KEY, or name a variable that holds it with --api-key-env",
        "key": "check the key in OPENAI_API_KEY or the variable named with --api-key-env",
        "userinfo": "check user and password in the URL",
        "header": "check the Authorization header given with --header",
    }
    return AuthError(f"the endpoint refuses access: {text}", sent[endpoint.auth])


def refusal(outcome: Outcome, endpoint: Endpoint, model: str, known_models: list[str]) -> EndpointError:
    """The error that a failed chat request means for a whole run."""
    kind, text = outcome.error_class or failures.PROTOCOL_ERROR, outcome.error or "no reason given"
    if kind in failures.CONNECT_CLASSES or kind == failures.CLIENT_ERROR:
        return connect_error(kind, text)
    if kind == failures.AUTH:
        return auth_error(endpoint, text)
    if kind in (failures.NOT_FOUND, failures.HTTP_4XX) and "model" in text.lower():
        return model_error(f"the endpoint does not serve the model {model!r}: {text}", known_models)
    if kind in (failures.NOT_FOUND, failures.PROTOCOL_ERROR, failures.BAD_EVENT, failures.HTTP_3XX):
        return not_the_api(endpoint, text)
    if kind == failures.HTTP_4XX and outcome.status in (405, 501):
        return not_the_api(endpoint, text)
    if kind == failures.CONTENT_ENCODING:
        return ProtocolError(f"the endpoint's answers cannot be read: {text.partition(';')[0]}", COMPRESSION_REMEDY)
    if kind == failures.FIRST_BYTE_TIMEOUT:
        return EndpointError(f"the endpoint hangs: {text} of a short chat request", LOG_REMEDY)
    if kind == failures.RATE_LIMITED:
        return EndpointError(f"the endpoint limits the rate: {text}", "a rate limit cannot be measured around: lift it")
    return EndpointError(f"a short chat request failed ({kind}): {text}", LOG_REMEDY)


def model_error(text: str, known_models: list[str]) -> ModelError:
    """No such model, with those that there are."""
    if not known_models:
        return ModelError(text, "name a served model with --model")
    shown = ", ".join(known_models[:10]) + (f" and {len(known_models) - 10} more" if len(known_models) > 10 else "")
    return ModelError(text, f"choose one with --model: {shown}")
