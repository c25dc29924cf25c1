"""Nothing below agentperf may block the event loop."""

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture(autouse=True)
def _no_blocking_calls() -> Iterator[None]:
    with blockbuster_ctx("agentperf") as watch:
        # Reading the CA file belongs to the set-up, before anything is measured.
        watch.functions["os.stat"].can_block_in("agentperf/wire/endpoint.py", "parse_endpoint")
        yield
