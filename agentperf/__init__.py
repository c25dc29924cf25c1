"""How many coding agents can an LLM serving deployment carry while each still gets the speed it was promised?"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("agentperf-harness")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
