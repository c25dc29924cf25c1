"""The real server, for every test of this folder."""

from tests.real.llama import llama

__all__ = ["llama"]
