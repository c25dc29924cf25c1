"""The reference server's log: one row a request, with the moments that a client's stamps are compared with."""

from msgspec import Struct


class Row(Struct, array_like=True, gc=False):
    """One request as the server saw it. Stamps are ns of `agentperf.clock`, 0 where a moment never came."""

    id: str
    """Its X-Request-Id."""
    outcome: str
    """ok | abort (the client left) | open (not ended when the log was taken)"""
    received_ns: int
    """The last byte of the request was read."""
    first_ns: int
    """Right before the send() that carried the first token."""
    last_ns: int
    """Right before the send() that carried the last token."""
    done_ns: int
    """The whole answer was handed to the socket."""
    first_due_ns: int
    """The deadline of the first token; what `first_ns` is beyond it is the server's own lateness."""
    last_due_ns: int
    """The deadline of the last token; 0 for the firehose, which has none."""
    tokens: int
    """Tokens that were sent."""
    blocked: int
    """How often the socket took no more, because the client did not read."""

    @property
    def speed_tps(self) -> float | None:
        """(tokens - 1) / (last - first) in tok/s; None for an answer that is not whole, or has one token."""
        if self.outcome != "ok" or self.tokens < 2 or self.last_ns <= self.first_ns:
            return None
        return (self.tokens - 1) * 1e9 / (self.last_ns - self.first_ns)

    @property
    def late_ns(self) -> int:
        """How late the server was with the first or the last token, whichever is worse."""
        last = self.last_ns - self.last_due_ns if self.last_due_ns else 0
        return max(0, self.first_ns - self.first_due_ns, last)


class Work(Struct, array_like=True, gc=False):
    """What the server has done since it started."""

    cpu_s: float
    """CPU time of its process."""
    tokens: int
    """Tokens sent."""
