"""Every scenario over both transports, on both event loops: one and the same outcome, with stamps where they belong.

The scenarios of a transport are played several at a time; one whose times were off is played again alone, because this
machine may have been busy. What needs no clock gets one try.
"""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from direct import response_bytes, split_at
from playing import BODY, KINDS, Played, check_outcome, check_record, check_stamps, play_all
from scripted import Step
from wire_scenario import Scenario, load_all

SCENARIOS = load_all()
TRIES = 3

FIELD_CASES = [f"T{number}" for number in (1, 2, 3, 4, 5, 6, 7, 9, 11, 15, 16, 17, 18, 19, 20, 22, 23)]
FIELD_CASES += [f"S{number}" for number in (1, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 18, 20, 21, 23)]
"""What users of other tools met with; each is a scenario or a test of this folder."""


@cache
def _first_pass(kind: str) -> "dict[str, Played | Exception]":
    return play_all([s for s in SCENARIOS if kind != "httpx" or "skip" not in s.httpx], kind)


def check_once(scenario: Scenario, kind: str, played: Played) -> None:
    expect = scenario.expected(kind)
    check_outcome(expect, played.outcome)
    exchange, seen = played.exchange, played.seen
    assert not {name for name, _ in exchange.headers} & set(expect.get("headers_lack", []))
    assert exchange.new_connection and exchange.stale_retries == 0
    assert len(exchange.stamps) == len(exchange.chunks)
    assert seen.headers["x-request-id"] == "req-1"
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.body == BODY and seen.path == "/v1/chat/completions"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_scenario(scenario: Scenario, kind: str) -> None:
    if kind == "httpx" and "skip" in scenario.httpx:
        pytest.skip(scenario.httpx["why"])
    played = _first_pass(kind)[scenario.name]
    for attempt in range(TRIES):
        if attempt:
            played = play_all([scenario], kind)[scenario.name]
        if isinstance(played, Exception):
            raise played
        check_once(scenario, kind, played)
        expect = scenario.expected(kind)
        try:
            check_stamps(expect, played)
            check_record(expect, scenario.record, played.record, played.seen.written_ns)
            return
        except AssertionError:
            if attempt == TRIES - 1:
                raise


SPLIT = [s for s in SCENARIOS if len(s.body) < 5000 and s.duration_s < 0.3 and not s.limits]


@pytest.mark.parametrize("kind", KINDS)
def test_random_writes_over_real_sockets(kind: str) -> None:
    """The whole response in pieces of any size, each a write of its own: the same outcome."""
    random = Random(7)
    chosen, again = random.sample([s for s in SPLIT if kind != "httpx" or not s.httpx], 40), []
    for scenario in chosen:
        data = response_bytes(scenario.reply)
        pieces = split_at(data, (random.randrange(10**6) for _ in range(random.randrange(1, 30))))
        fault = next((step.fault for step in scenario.reply.steps if step.fault), "close")
        steps = [Step(piece, random.choice([0.0, 0.001])) for piece in pieces] + [Step(b"", 0.02, fault)]
        again.append(replace(scenario, reply=replace(scenario.reply, steps=steps, raw=True)))
    for scenario, played in play_all(again, kind).items():
        if isinstance(played, Exception):
            raise played
        expect = next(s for s in chosen if s.name == scenario).expected(kind)
        check_outcome(expect, played.outcome)


def test_every_case_has_a_scenario() -> None:
    """A case that is a stream of bytes names its scenarios in `cases`; any other has its id in the name of a test."""
    named = {case for scenario in SCENARIOS for case in scenario.cases}
    sources = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    tested = {case.upper() for case in re.findall(r"^(?:async )?def test_([ts]\d+)_", sources, re.MULTILINE)}
    assert named | tested == set(FIELD_CASES)
    streams = set(FIELD_CASES) - {"T15", "S12", "S13", "S16", "S21"}
    assert streams <= named
