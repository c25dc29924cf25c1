"""What was seen while a level was held against reference servers."""

from dataclasses import dataclass

from agentperf.measure.record import Record
from agentperf.yardstick.rows import Row


@dataclass(slots=True)
class Held:
    """A level that was held: the records of all of it, and what was seen in its window [open_ns, close_ns)."""

    level: int
    workers: int
    open_ns: int
    close_ns: int
    records: list[Record]
    rows: list[Row]
    cpu_s: float | None
    """CPU time of the load processes in the window."""
    cpu_share_max: float | None
    """The busiest load process: CPU time over wall time in the window."""
    lag_p99_s: float | None
    server_cpu_s: float
    """CPU time of the servers in the window."""
    server_tokens: int
    """Tokens that the servers sent in the window."""
    other_cores: float | None
    """Cores that other work on the machine used in the window."""
