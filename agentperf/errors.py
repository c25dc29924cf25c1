"""Everything agentperf raises on purpose.

    AgentperfError                       exit
     ├── UsageError                      2      the command line or a file given on it is wrong
     │    ├── SloError                          an SLO expression or tier that cannot be read
     │    └── TraceError                        a trace set that cannot be read or breaks an invariant
     ├── EndpointError                   4      the endpoint cannot be measured
     │    ├── ConnectError                      refused, unresolvable, TLS
     │    ├── AuthError                         401 or 403
     │    ├── ModelError                        no such model, or several and none named
     │    └── ProtocolError                     it answers, but not as the API should
     └── ClientError                     3      this machine failed, not the endpoint

Each carries one line with the cause and, where one exists, a remedy. Verdicts are not errors: an SLO that is missed
exits 1 and an inconclusive or invalid answer exits 3 without an exception.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells its caller."""

    OK = 0
    MISSED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    ENDPOINT = 4
    INTERRUPTED = 130


class AgentperfError(Exception):
    """Base of the tree: `message` is the cause in one line, `remedy` what to do about it."""

    exit_code: ExitCode = ExitCode.INCONCLUSIVE

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class UsageError(AgentperfError):
    """The command line, or a file named on it, is wrong."""

    exit_code = ExitCode.USAGE


class SloError(UsageError):
    """An SLO expression or tier cannot be read."""


class TraceError(UsageError):
    """A trace set cannot be read, or breaks an invariant of the format."""


class EndpointError(AgentperfError):
    """The endpoint cannot be measured."""

    exit_code = ExitCode.ENDPOINT


class ConnectError(EndpointError):
    """No connection: refused, name not resolved, TLS handshake failed, no answer in time."""


class AuthError(EndpointError):
    """The endpoint refuses the key."""


class ModelError(EndpointError):
    """The model is unknown, or several are served and none was named."""


class ProtocolError(EndpointError):
    """Something answers, but not as the API should."""


class ClientError(AgentperfError):
    """The measuring side itself failed (a load process died, files cannot be written)."""

    exit_code = ExitCode.INCONCLUSIVE


@contextmanager
def plain_errors() -> Iterator[None]:
    """Task groups wrap what their body raises; let an error of ours out as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours = _first(group)
        if ours is None:
            raise
        raise ours from group


def _first(group: BaseExceptionGroup[BaseException]) -> AgentperfError | None:
    for error in group.exceptions:
        found = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, AgentperfError):
            return found
    return None
