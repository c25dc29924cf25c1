"""The two consoles of the command line, and how an error ends a command: one line with cause and remedy."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentperf.errors import AgentperfError, ExitCode

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> "Console":
    """For results."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> "Console":
    """For progress, warnings and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


_STATE = {"verbose": False}


def set_verbose(*, verbose: bool) -> None:
    """`-v`: errors show their traceback."""
    _STATE["verbose"] = verbose


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what agentperf raises on purpose into one line on stderr and its exit code."""
    try:
        yield
    except AgentperfError as error:
        if _STATE["verbose"]:
            traceback.print_exc()
        sys.stderr.write(f"agentperf: error: {error.message}\n")
        if error.remedy:
            sys.stderr.write(f"  remedy: {error.remedy}\n")
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.stderr.write("agentperf: interrupted\n")
        sys.exit(int(ExitCode.INTERRUPTED))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(int(ExitCode.OK))
    except Exception:  # noqa: BLE001 - a fault of agentperf must not look like a missed SLO, which exits 1
        traceback.print_exc()
        sys.stderr.write(
            "agentperf: error: this is a fault of agentperf itself\n  remedy: report it with the lines above\n"
        )
        sys.exit(int(ExitCode.INCONCLUSIVE))
