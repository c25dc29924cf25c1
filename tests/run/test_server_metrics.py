"""The server's own metrics in whole runs: against the simulator in virtual time, and over real sockets."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from agentperf.cli.options import read_metrics
from agentperf.clock import VirtualLoop, loop_now_ns
from agentperf.errors import UsageError
from agentperf.fleet.fleet import local_fleet
from agentperf.fleet.messages import Job
from agentperf.measure.window import WindowSettings
from agentperf.replay.settings import ReplaySettings
from agentperf.run.conductor import Progress, conduct
from agentperf.run.plan import Plan
from agentperf.server.columns import engines_of, offers_of
from agentperf.server.engines import wanted
from agentperf.server.fetch import Fetch
from agentperf.server.page import PageError, read_page
from agentperf.server.watch import ServerWatch
from agentperf.sim.page import source_of
from agentperf.sim.profile import load_profile
from agentperf.sim.virtual import VirtualEndpoint
from agentperf.slo.verdict import Rules
from agentperf.store.rundir import RunWriter, read_run
from agentperf.wire.chat import BodySettings
from agentperf.wire.exchange import Body, Caller, Exchange
from tests.replay.fakes import tree

TREES = [tree(f"s{i}", 5) for i in range(8)]


def sweep(*levels: int, duration_s: float = 40.0) -> Plan:
    window = WindowSettings(warmup_max_s=30, window_max_s=120, settle_s=20)
    rules = Rules(min_requests=window.first_look)
    return Plan(protocol="sweep", slos=(), window=window, rules=rules, levels=levels, duration_s=duration_s)


async def hang() -> bytes:
    await anyio.sleep_forever()
    return b""


async def broken() -> bytes:
    raise PageError("the page answers HTTP 500")


def far_away(caller: Caller) -> Caller:
    """The same server behind 100 ms of upload."""

    async def call(body: Body, request_id: str) -> Exchange:
        t0_ns = loop_now_ns()
        await anyio.sleep(0.1)
        exchange = await caller(body, request_id)
        exchange.t0_ns = t0_ns
        return exchange

    return call


def shared(caller: Caller) -> Caller:
    """The same server with somebody else's request beside each of ours."""

    async def call(body: Body, request_id: str) -> Exchange:
        async with anyio.create_task_group() as group:
            group.start_soon(caller, body, f"other-{request_id}")
            return await caller(body, request_id)

    return call


def run(
    plan: Plan, directory: Path, fetch: Fetch | None = None, way: Callable[[Caller], Caller] = lambda caller: caller
) -> Progress:
    """A run against the simulator in virtual time, with its page or another in its place, and some way to it."""
    writer = RunWriter.create(directory)
    writer.write_manifest({"schema_version": 1, "name": "t", "simulated": True, "slos": []})

    async def main() -> Progress:
        async with VirtualEndpoint(load_profile("demo")) as endpoint:
            source = source_of(endpoint)
            if fetch is not None:
                page = read_page(await source.fetch(), wanted())
                source = replace(source, fetch=fetch, offers=offers_of(page), engines=engines_of(page))
            body = BodySettings(model=endpoint.facts.model, output="exact")
            settings = ReplaySettings(body=body, seed=1, run_id="seed1")

            def job(worker: int, workers: int) -> Job:
                return Job(
                    worker=worker, workers=workers, target=None, settings=settings, trees=TREES, chars_per_token=4.0
                )

            async with local_fleet(job, way(endpoint.caller)) as fleet:
                server = ServerWatch([source], loop_now_ns, endpoint.facts.model)
                _, progress = await conduct(plan, fleet, writer, lambda _: None, server=server, handle_signals=False)
                return progress

    progress: Progress = anyio.run(main, backend_options={"loop_factory": VirtualLoop})
    writer.finish()
    return progress


def test_in_virtual_time_both_sides_agree_to_the_microsecond(tmp_path: Path) -> None:
    progress = run(sweep(2, 40, duration_s=25.0), tmp_path / "r")
    for outcome in progress.history:
        found = outcome.server
        assert found is not None
        assert found.reasons == {}
        assert found.engines == ["agentperf-sim"]
        assert found.ttft_n == found.client_ttft_n > 20
        assert found.ttft_difference_s == pytest.approx(0.0, abs=1e-6)
        assert found.scrapes >= 6
        assert found.running_mean is not None
        assert found.waiting_mean is not None
        assert 0 <= found.running_mean + found.waiting_mean <= outcome.level
        assert found.cache_difference == pytest.approx(0.0, abs=0.02)
        assert not [w for w in outcome.warnings if "first tokens" in w or "server's own" in w or "server metrics" in w]
    assert progress.history[1].server is not None
    assert progress.history[1].server.running_mean == pytest.approx(progress.history[1].metrics.in_flight, rel=0.9)
    rows = read_run(tmp_path / "r").summarised()["levels"]
    assert [row["server"]["ttft_n"] for row in rows] == [o.server.ttft_n for o in progress.history if o.server]


def test_what_lies_between_client_and_server_is_said(tmp_path: Path) -> None:
    outcome = run(sweep(4, duration_s=25.0), tmp_path / "r", way=far_away).history[0]
    assert outcome.server is not None
    assert outcome.server.ttft_difference_s == pytest.approx(0.1, abs=1e-6)
    (said,) = [w for w in outcome.warnings if "the server's own" in w]
    assert "100 ms above" in said
    assert "connection and upload alone took 100 ms" in said


def test_somebody_else_on_the_server_is_said(tmp_path: Path) -> None:
    outcome = run(sweep(4, duration_s=25.0), tmp_path / "r", way=shared).history[0]
    assert outcome.server is not None
    assert outcome.server.ttft_n == pytest.approx(2 * outcome.server.client_ttft_n, abs=2)
    assert outcome.server.ttft_difference_s is None
    (said,) = [w for w in outcome.warnings if "first tokens" in w]
    assert "something else uses this server" in said


@pytest.mark.parametrize("fetch", [hang, broken])
def test_a_page_that_fails_changes_nothing_of_a_level(tmp_path: Path, fetch: Fetch) -> None:
    with_page = run(sweep(4), tmp_path / "a").history[0]
    without = run(sweep(4), tmp_path / "b", fetch).history[0]
    assert (without.metrics, without.health.status) == (with_page.metrics, with_page.health.status)
    assert (without.open_ns, without.close_ns) == (with_page.open_ns, with_page.close_ns)
    assert without.server is not None
    assert without.server.ttft_mean_s is None
    assert without.server.reasons


def agentperf(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "agentperf", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_over_real_sockets_the_difference_is_that_of_http(tmp_path: Path) -> None:
    done = agentperf(
        *("run", "--endpoint", "sim:demo", "--concurrency", "3", "--duration", "4s", "--warmup-max", "3s"),
        *("--traces", "smoke", "--time-scale", "0.3", "--plain", "--json", "--out", str(tmp_path)),
    )
    assert done.returncode in (0, 3), done.stderr  # 3: something else had this machine meanwhile
    row = json.loads(done.stdout)["levels"][0]
    found = row["server"]
    assert found["engines"] == ["agentperf-sim"]
    assert found["client_n_range"][0] - 2 <= found["ttft_n"] <= found["client_n_range"][1] + 2
    assert found["ttft_n"] > 5
    assert found["client_ttft_mean_s"] >= found["client_send_mean_s"] > 0
    if row["health"] == "ok":  # on a machine that had time for both
        assert -0.005 < found["ttft_difference_s"] < 0.02
    (directory,) = tmp_path.iterdir()
    manifest = read_run(directory).manifest
    assert manifest["server_metrics"]["pages"][0]["engines"] == ["agentperf-sim"]
    assert "metrics   http://127.0.0.1" in done.stderr
    assert "server_ttft=0." in done.stderr
    assert "## Server" in (directory / "report.md").read_text()


def test_no_secret_of_a_page_reaches_the_run_directory(tmp_path: Path) -> None:
    """The page of the demo itself cannot be known beforehand, so these two answer nothing: a run goes on without."""
    pages = ("http://reader:hunter22secret@127.0.0.1:9/metrics", "http://127.0.0.1:9/m?who=canary-98765")
    done = agentperf(
        *("run", "--endpoint", "sim:demo", "--concurrency", "1", "--duration", "2s", "--warmup-max", "1s"),
        *("--traces", "smoke", "--time-scale", "0.1", "--plain", "--out", str(tmp_path)),
        *(part for page in pages for part in ("--metrics-url", page)),
    )
    assert done.returncode in (0, 3), done.stderr
    (directory,) = tmp_path.iterdir()
    written = b"".join(path.read_bytes() for path in directory.iterdir()) + (done.stdout + done.stderr).encode()
    assert b"hunter22secret" not in written
    assert b"canary-98765" not in written
    run = read_run(directory)
    assert run.manifest["invocation"]["metrics_url"] == ["***", "***"]
    assert [p["engines"] for p in run.manifest["server_metrics"]["pages"]] == [[], []]
    (row,) = run.summarised()["levels"]
    assert row["server"]["ttft_mean_s"] is None
    assert sum("server metrics: http://127.0.0.1:9/" in w for w in row["warnings"]) == 2


def test_a_virtual_endpoint_has_its_page(tmp_path: Path) -> None:
    done = agentperf(
        *("run", "--endpoint", "virtual:demo", "--concurrency", "3", "--duration", "60s", "--traces", "smoke"),
        *("--plain", "--json", "--out", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    assert "metrics   virtual:demo (agentperf-sim)" in done.stderr
    (row,) = json.loads(done.stdout)["levels"]
    assert row["server"]["ttft_n"] == row["server"]["client_ttft_n"] > 20
    assert row["server"]["ttft_difference_s"] == pytest.approx(0.0, abs=1e-6)


def test_no_metrics_as_asked() -> None:
    done = agentperf("run", "--endpoint", "sim:demo", "--slo", "80tps", "--no-metrics", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "metrics   none: not read, as asked (--no-metrics)" in done.stderr


@pytest.mark.parametrize(
    ("urls", "off", "needle"),
    [
        (["http://h/metrics"], True, "exclude each other"),
        (["h:9/metrics"], False, "the page of --metrics-url has no scheme"),
        (["http://u:***@h/metrics"], False, "held a secret"),
    ],
)
def test_wrong_flags(urls: list[str], off: bool, needle: str) -> None:
    given = {"metrics_url": urls, "no_metrics": off, "ca_file": None, "insecure": False, "trust_env": False}
    with pytest.raises(UsageError, match=needle):
        read_metrics(given)
    assert read_metrics({**given, "metrics_url": None}) == (None if off else ())
