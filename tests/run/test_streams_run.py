"""Whole runs in virtual time against a server whose replies come through a buffer, lack counts, or hold errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentperf.clock import VirtualLoop, loop_now_ns
from agentperf.measure.window import WindowSettings
from agentperf.report.write import write_report
from agentperf.run.conductor import Progress
from agentperf.run.plan import Plan
from agentperf.search.model import Done
from agentperf.slo.tiers import resolve
from agentperf.slo.verdict import Rules
from agentperf.store.rundir import RunWriter, read_run
from agentperf.wire.exchange import Body, Exchange
from agentperf.wire.exchange import whole as whole_body
from tests.measure.streams import Times, timer, whole
from tests.replay.fakes import sse, tree
from tests.run.virtually import run_with

TREES = [tree(f"s{i}", 4) for i in range(6)]
EVENTS = 120
RATE = 60.0


class Streaming:
    """120 tokens at 60 tok/s after half a second, one an event, read as `through` lets them be."""

    def __init__(self, through: Callable[[Times], Times] = lambda t: t, *, usage: int | None = EVENTS) -> None:
        self.through = through
        self.usage = usage
        self.broken = False
        self.counts_prompts = True

    async def __call__(self, body: Body, request_id: str) -> Exchange:
        x = Exchange(t0_ns=loop_now_ns(), status=200, new_connection=False)
        x.connected_ns = x.sent_ns = x.t0_ns
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"content": "word"}}]} for _ in range(EVENTS)
        ]
        chunks[-1]["choices"][0]["finish_reason"] = "stop"
        if self.usage is not None:
            messages = json.loads(whole_body(body))["messages"]  # each turn has two more, and 100 tokens
            prompt = 100 * (len(messages) // 2) if self.counts_prompts else 100
            count = {"prompt_tokens": prompt, "completion_tokens": self.usage}
            chunks.append({"choices": [], "usage": count})
        if self.broken:
            chunks = [*chunks[:3], {"error": {"message": "out of memory", "code": 500}}]
        parts = sse(*chunks)
        made = [0.5 + i / RATE for i in range(EVENTS)]
        made += [made[-1]] * (len(parts) - len(made))
        read = self.through(made[: len(parts)])
        for at, part in zip(read, parts, strict=True):
            stamp = x.t0_ns + round(at * 1e9)
            if x.stamps and x.stamps[-1] == stamp:
                x.chunks[-1] += part
            else:
                x.chunks.append(part)
                x.stamps.append(stamp)
        await anyio.sleep(read[-1] + 0.001)
        x.end_ns = loop_now_ns()
        return x


def hold(server: Streaming, directory: Path, slo: str, seconds: float = 30.0, **changes: Any) -> tuple[Done, Progress]:
    window = WindowSettings(warmup_max_s=60, window_max_s=600, settle_s=20)
    plan = Plan(
        protocol="sweep",
        slos=(resolve(slo),),
        window=window,
        rules=Rules(min_requests=window.first_look),
        levels=(4,),
        duration_s=seconds,
        **changes,
    )
    writer = RunWriter.create(directory)
    slos = [{"name": s.name, "canonical": str(s)} for s in plan.slos]
    writer.write_manifest({"schema_version": 1, "name": "t", "simulated": True, "slos": slos})
    result: tuple[Done, Progress] = anyio.run(
        lambda: run_with(plan, TREES, server, writer), backend_options={"loop_factory": VirtualLoop}
    )
    writer.finish()
    return result


def told(directory: Path) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The journal's metrics of the level, its row of the summary, and the report."""
    run = read_run(directory)
    (event,) = [e for e in run.events if e["event"] == "probe_finished"]
    text = write_report(directory, figures=False)[0].read_text()
    return event["metrics"], run.summarised()["levels"][0], text


def test_an_honest_server_is_judged_plainly(tmp_path: Path) -> None:
    _, progress = hold(Streaming(), tmp_path / "r", "p25 speed >= 55, p75 ttft <= 1 s", 240.0)
    metrics, row, text = told(tmp_path / "r")
    assert progress.history[0].verdicts["p25 speed >= 55, p75 ttft <= 1 s"].status == "pass"
    assert metrics["streams"]["buffered"] == 0
    assert metrics["streams"]["tellable"] == metrics["ok"] > 20
    assert row["streams"]["suspect"] is False
    assert "## Streams" in text
    assert "≈" not in text.replace("≥", "")
    assert not progress.history[0].warnings


@pytest.mark.parametrize("through", [lambda t: timer(t, 0.25, 0.1), whole])
def test_through_a_buffer_the_run_says_so_everywhere(tmp_path: Path, through: Callable[[Times], Times]) -> None:
    """60 tok/s, and 48 at the least by the time of the whole request: 55 is in doubt."""
    done, progress = hold(Streaming(through), tmp_path / "r", "p25 speed >= 55", 240.0)
    metrics, row, text = told(tmp_path / "r")
    outcome = progress.history[0]
    verdict = outcome.verdicts["p25 speed >= 55"]
    assert verdict.status == "invalid"
    assert verdict.reason.startswith("buffered: ")
    assert (done.reason, done.answers[0].capacity) == ("unmeasurable", None)
    assert metrics["streams"]["buffered"] == metrics["ok"]
    assert row["streams"]["suspect"] is True
    assert row["status"] == {"p25 speed >= 55": "invalid"}
    assert any("this level is suspect" in w for w in outcome.warnings)
    assert "no level was decided, the streams above cannot be judged" in text
    assert "X-Accel-Buffering" in text
    assert "| ! invalid |" in text


def test_with_much_to_spare_it_passes_through_a_buffer(tmp_path: Path) -> None:
    done, _ = hold(Streaming(lambda t: timer(t, 0.25, 0.1)), tmp_path / "r", "p25 speed >= 30, p75 ttft <= 5 s", 240.0)
    metrics, row, text = told(tmp_path / "r")
    assert done.answers[0].capacity == 4
    assert metrics["streams"]["hold_s"] == pytest.approx(0.25, abs=0.01)
    assert row["streams"]["suspect"] is True
    assert "also at the slowest that the bursts allow" in text
    assert "streams in bursts" in text, "the evidence of the answer says what it rests on"


def test_without_usage_every_figure_of_tokens_is_marked(tmp_path: Path) -> None:
    hold(Streaming(usage=None), tmp_path / "r", "p25 speed >= 40", 240.0)
    metrics, row, text = told(tmp_path / "r")
    assert metrics["streams"]["token_sources"] == {"estimate": metrics["ok"]}
    assert row["streams"]["estimated"] is True
    assert "| ~60.0 |" in text
    assert "token counts estimated" in text


def test_a_count_that_is_wrong_by_a_factor(tmp_path: Path) -> None:
    """4 characters a token: the server says 10 times as many."""
    _, progress = hold(Streaming(usage=10 * EVENTS), tmp_path / "r", "p25 speed >= 40")
    assert any("one output token for 0.40 characters" in w for w in progress.history[0].warnings)
    _, progress = hold(Streaming(usage=4 * EVENTS), tmp_path / "s", "p25 speed >= 40", chars_per_token=3.6)
    assert any("one output token for 1.00 characters" in w for w in progress.history[0].warnings)


def test_a_prompt_count_that_never_grows(tmp_path: Path) -> None:
    server = Streaming()
    server.counts_prompts = False
    _, progress = hold(server, tmp_path / "r", "p25 speed >= 40")
    assert any("the server counted every prompt the same" in w for w in progress.history[0].warnings)


def test_errors_inside_streams(tmp_path: Path) -> None:
    server = Streaming()
    server.broken = True
    hold(server, tmp_path / "r", "p25 speed >= 40")
    metrics, row, text = told(tmp_path / "r")
    assert metrics["ok"] == 0
    assert metrics["streams"]["in_band_errors"] == metrics["failed"] == row["streams"]["in_band_errors"] > 0
    assert "began with status 200 and then carried an error" in text
