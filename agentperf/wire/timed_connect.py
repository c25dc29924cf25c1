"""Opening connections for the timed transport: cached name resolution, several addresses, TLS, and named failures."""

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from agentperf.wire import failures
from agentperf.wire.timed_connection import Connection

RESOLVE_AGAIN_S = 60.0
"""How long a resolved name is used: agents connect all the time, and the resolver is not what is measured."""

_ATTEMPT_DELAY_S = 0.25
"""Head start of one address before the next is tried as well (RFC 8305)."""

_LOCAL_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})

Address = tuple[int, str]
"""Family and numeric host."""


class FailedConnectError(Exception):
    """No connection; `error_class` is of `failures`, the text is one line."""

    def __init__(self, error_class: str, text: str) -> None:
        super().__init__(text)
        self.error_class = error_class
        self.text = text


class Target(NamedTuple):
    """Where to connect; `ssl_context` is None for plain http."""

    host: str
    port: int
    ssl_context: ssl.SSLContext | None


class Connector:
    """Opens connections. One name is resolved by one query at a time, and its answer is kept for a minute."""

    def __init__(self, connect_s: float | None) -> None:
        self._connect_s = connect_s
        self._known: dict[str, tuple[float, list[Address]]] = {}
        self._asking: dict[str, asyncio.Task[list[Address]]] = {}

    async def open(self, target: Target, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """A connected protocol of the factory. Raises FailedConnectError."""
        where = f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}"
        try:
            async with asyncio.timeout(self._connect_s):
                addresses = await self._resolve(target.host)
                return await self._open_any(target, addresses, factory)
        except TimeoutError:
            # The system's own ETIMEDOUT is a TimeoutError as well, and may come before the limit.
            limit = f" within {self._connect_s:g} s" if self._connect_s is not None else ""
            raise FailedConnectError(failures.CONNECT_TIMEOUT, f"no connection to {where}{limit}") from None
        except (OSError, ssl.CertificateError) as error:
            raise failure_of(error, where) from error

    async def _open_any(
        self, target: Target, addresses: list[Address], factory: Callable[[], asyncio.Protocol]
    ) -> asyncio.Protocol:
        """The first address that connects; each next one starts when the one before failed or had its head start."""
        if len(addresses) == 1:
            return await _open_one(target, addresses[0], factory)
        waiting = list(addresses)
        running: set[asyncio.Task[asyncio.Protocol]] = set()
        errors: list[BaseException] = []
        try:
            while waiting or running:
                if waiting:
                    running.add(asyncio.create_task(_open_one(target, waiting.pop(0), factory)))
                delay = _ATTEMPT_DELAY_S if waiting else None
                done, running = await asyncio.wait(running, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.exception() is None:
                        return task.result()
                    errors.append(_exception_of(task))
        finally:
            await _drop(running)
        raise errors[0]

    async def _resolve(self, host: str) -> list[Address]:
        if _is_numeric(host):
            return [(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]
        loop = asyncio.get_running_loop()
        known = self._known.get(host)
        if known is not None and loop.time() < known[0]:
            return known[1]
        task = self._asking.get(host)
        if task is None:
            task = self._asking[host] = asyncio.create_task(_ask(host))
            task.add_done_callback(lambda _: self._asking.pop(host, None))
        # Shielded: one caller that gives up must not take the answer away from the others.
        addresses = await asyncio.shield(task)
        self._known[host] = (loop.time() + RESOLVE_AGAIN_S, addresses)
        return addresses


async def _ask(host: str) -> list[Address]:
    """Addresses in the system's order, the two families alternating behind the first."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    unique = list(dict.fromkeys((int(family), str(address[0])) for family, _, _, _, address in found))
    first = [a for a in unique if a[0] == unique[0][0]]
    second = [a for a in unique if a[0] != unique[0][0]]
    mixed: list[Address] = []
    for index in range(max(len(first), len(second))):
        mixed += first[index : index + 1] + second[index : index + 1]
    return mixed


async def _open_one(target: Target, address: Address, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
    loop = asyncio.get_running_loop()
    context = target.ssl_context
    name = target.host if context is not None else None
    _, protocol = await loop.create_connection(
        factory, address[1], target.port, family=address[0], ssl=context, server_hostname=name
    )
    return protocol


async def _drop(tasks: set[asyncio.Task[asyncio.Protocol]]) -> None:
    """Give up the attempts that lost; one that connected meanwhile is closed."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Connection):
            result.abort()


def _exception_of(task: "asyncio.Task[asyncio.Protocol]") -> BaseException:
    error = task.exception()
    assert error is not None
    return error


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def failure_of(error: BaseException, where: str) -> FailedConnectError:
    """The named failure of an exception that a connection attempt raised."""
    if isinstance(error, FailedConnectError):
        return error
    if isinstance(error, ssl.SSLCertVerificationError):
        return FailedConnectError(failures.TLS, f"the certificate of {where} is not trusted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return FailedConnectError(failures.TLS, f"TLS with {where} failed: {error.reason or error}")
    if isinstance(error, socket.gaierror):
        return FailedConnectError(
            failures.DNS, f"the name {where.partition(':')[0]} does not resolve: {error.strerror}"
        )
    if isinstance(error, ConnectionRefusedError):
        return FailedConnectError(failures.CONNECT_REFUSED, f"nothing listens at {where} (connection refused)")
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if number else str(error) or type(error).__name__
    if number in _LOCAL_ERRNOS:
        return FailedConnectError(failures.CLIENT_ERROR, f"this machine cannot open a connection: {reason}")
    return FailedConnectError(failures.CONNECT_FAILED, f"no connection to {where}: {reason}")
