"""The accuracy benchmark end to end with a tiny load, where the truth server's source and a C compiler are at hand."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy import Work, measure
from benchmarks.clients import client
from benchmarks.figures import figures, ttft_errors_ms
from benchmarks.truth import VARIABLE, build

SOURCE = Path(
    os.environ.get(VARIABLE) or Path(__file__).resolve().parents[2].parent / "shared" / "tools" / "truthserver.c"
)
WORK = Work(streams=8, tps=50, ttft_ms=100, tokens=25, seconds=1)

pytestmark = [
    pytest.mark.skipif(not SOURCE.is_file(), reason=f"the truth server is not at hand ({VARIABLE} is not set)"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(SOURCE, tmp_path_factory.mktemp("truth"))


@pytest.mark.parametrize("tokens_per_event", [1, 5])
@pytest.mark.parametrize("name", ["agentperf", "agentperf-2", "httpx", "transport", "bare"])
def test_what_a_client_says_agrees_with_the_servers_log(
    name: str, tokens_per_event: int, binary: Path, tmp_path: Path
) -> None:
    if tokens_per_event > 1 and name not in ("agentperf", "bare"):
        pytest.skip("one client of each kind will do")
    work = replace(WORK, tokens_per_event=tokens_per_event)
    run, log = measure(client(name), work, binary, tmp_path)
    assert {s.id for s in run.said} <= set(log), "a request that the server has never seen"
    assert all(s.ok for s in run.said)
    assert {row.tokens for row in log.values()} == {WORK.tokens}
    assert {row.first_tokens for row in log.values()} == {tokens_per_event}
    assert len({s.id for s in run.said}) == len(run.said) == len(log)
    found = figures(run, log)
    # Eight streams of 0.58 s, one after the other for 1 s; a busy machine may lose half of that.
    assert found.requests >= 6
    assert found.lost == found.unmatched == 0
    # The server stamps before it sends, by the same clock, so no client can have seen a token earlier.
    assert min(ttft_errors_ms([(s, log[s.id]) for s in run.said])) >= 0
    # Medians, so that another process that takes the core for a while breaks nothing.
    slack = 1 if name != "httpx" else 10
    assert found.ttft_ms[0] < 5 * slack
    # With few events of several tokens, what is left out for the first one is an estimate by its share of the text.
    assert found.speed[0] < (0.02 * slack if tokens_per_event == 1 else 0.1)
    assert found.in_flight > 0.8 * WORK.streams
    assert 0 < found.us_per_event < 20_000
