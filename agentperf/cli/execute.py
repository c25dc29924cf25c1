"""Carry out `agentperf run`: check the endpoint, prepare the workload, conduct, report."""

import json
import pickle
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
from rich.console import Console

from agentperf.cli import console
from agentperf.cli.live import LiveView, PlainView, View
from agentperf.cli.options import RunOptions
from agentperf.cli.resume import MASK
from agentperf.cli.virtual import VIRTUAL_PREFIX, capabilities, conduct_virtually, open_virtual
from agentperf.clock import VirtualLoop
from agentperf.errors import AgentperfError, ExitCode, plain_errors
from agentperf.fleet import preflight
from agentperf.fleet.fleet import open_fleet
from agentperf.fleet.messages import Job, Target
from agentperf.replay.bodies import EncodedTree
from agentperf.replay.settings import ReplaySettings
from agentperf.run.calibrate import calibrate
from agentperf.run.choices import Choices, choose
from agentperf.run.conductor import Progress, conduct, probe_count_bound, probe_estimate_s
from agentperf.run.manifest import make_manifest
from agentperf.run.plan import Plan
from agentperf.run.probe import ProbeOutcome
from agentperf.run.resume import Past, check_same, past_of
from agentperf.run.workload import Workload, encode, load_workload, render
from agentperf.search.model import Done
from agentperf.server.fetch import Discovery, discover, open_sources
from agentperf.server.watch import ServerWatch
from agentperf.sim.profile import Profile, load_profile
from agentperf.store.rundir import RunWriter, check_writable, default_directory, read_run
from agentperf.trace.io import resolve
from agentperf.trace.sizing import DEFAULT_SIZES, TokenSizes, calibration_prompts_for
from agentperf.wire import chat
from agentperf.wire.check import Capabilities, check
from agentperf.wire.client import open_caller
from agentperf.wire.endpoint import Endpoint, parse_endpoint
from agentperf.wire.exchange import Caller
from agentperf.yardstick.quote import Quote, quote_kept

SIM_PREFIX = "sim:"
SIM_ENGINE = "agentperf-sim"
NO_METRICS = Discovery((), "not read, as asked (--no-metrics)")


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is settled before the first agent starts."""

    endpoint: Endpoint | None
    """None for a virtual one."""
    shown: dict[str, Any]
    found: Capabilities
    choices: Choices
    workload: Workload
    trees: list[EncodedTree]
    sizes: TokenSizes
    replay: ReplaySettings
    simulated: bool
    metrics: Discovery
    profile: Profile | None = None
    """Of a virtual endpoint."""

    @property
    def label(self) -> str:
        """What every view says of a result that no real endpoint gave."""
        return "virtual" if self.profile is not None else "simulated" if self.simulated else ""


@contextmanager
def _endpoint(options: RunOptions) -> Iterator[tuple[Endpoint, dict[str, Any], bool]]:
    """The endpoint, what may be shown of it, and whether it is simulated; a `sim:` one lives as long as the context."""
    if not options.endpoint.startswith(SIM_PREFIX):
        endpoint = parse_endpoint(
            options.endpoint,
            options.api_key,
            options.headers,
            options.ca_file,
            options.insecure,
            options.trust_env,
        )
        yield endpoint, endpoint.public(), False
        return
    from agentperf.sim.process import SimProcess

    profile = options.endpoint.removeprefix(SIM_PREFIX)
    with SimProcess(profile, seed=options.seed) as process:
        yield parse_endpoint(process.url), {"url": options.endpoint, "simulated": True}, True


def _traces_of(options: RunOptions, *, simulated: bool) -> str:
    """The set to replay: what was asked for, else the small one for the demo and the standard one elsewhere."""
    if options.traces is not None:
        return options.traces
    return "smoke" if simulated and options.endpoint in ("sim:demo", "virtual:demo") else "coding-v1"


async def _prepare(
    options: RunOptions, endpoint: Endpoint, shown: dict[str, Any], out: Console, *, simulated: bool
) -> Prepared:
    def step(text: str) -> None:
        if not options.json:
            out.print(f"checking the endpoint: {text}", style="dim", markup=False)

    found = await check(
        endpoint,
        model=options.model,
        wait_s=options.wait_s,
        transport=options.transport,
        on_step=step if sys.stderr.isatty() else lambda _: None,
    )
    metrics = await _metrics(options, endpoint)

    def opened() -> AbstractAsyncContextManager[Caller]:
        return open_caller(endpoint, path=chat.PATH, limits=options.limits, transport=options.transport)

    settled = await _settle(options, found, opened, out, simulated=simulated or found.engine == SIM_ENGINE)
    return Prepared(endpoint, shown, found, *settled, simulated or found.engine == SIM_ENGINE, metrics)


async def _prepare_virtual(options: RunOptions, profile: Profile, out: Console) -> Prepared:
    """The same for a virtual endpoint, of which everything is known; under a VirtualLoop."""
    found = capabilities(profile)
    shown = {
        "url": options.endpoint,
        "simulated": True,
        "virtual": True,
        "profile": msgspec.to_builtins(profile),
    }

    def opened() -> AbstractAsyncContextManager[Caller]:
        return open_virtual(profile, options.seed)

    settled = await _settle(options, found, opened, out, simulated=True)
    metrics = NO_METRICS if options.metrics is None else Discovery((), inside=options.endpoint)
    return Prepared(None, shown, found, *settled, True, metrics, profile)


async def _settle(
    options: RunOptions,
    found: Capabilities,
    opened: Callable[[], AbstractAsyncContextManager[Caller]],
    out: Console,
    *,
    simulated: bool,
) -> tuple[Choices, Workload, list[EncodedTree], TokenSizes, ReplaySettings]:
    """What follows from what the endpoint can do: choices, and the workload at its token size."""
    virtual = options.endpoint.startswith(VIRTUAL_PREFIX)
    choices = choose(
        found,
        output=options.output_length,
        context=options.context,
        extra_body=options.extra_body,
        trust_env=options.trust_env,
        cap=options.preset.knobs.output_cap,
    )
    workload = load_workload(_traces_of(options, simulated=simulated), choices.context_tokens, options.context_rule)
    sizes = DEFAULT_SIZES
    if found.usage:
        async with opened() as caller:
            prompts = calibration_prompts_for(workload.trees, workload.trace_set.blobs)
            out.print(f"sizing text by the server's own token count ({len(prompts)} small requests)", style="dim")
            sizes = await calibrate(caller, choices.body, prompts)
    with out.status(f"making the text of {workload.tree_count} sessions"):
        rendered = render(workload, sizes)
        trees = encode(rendered, live=options.history == "live")
    replay = ReplaySettings(
        body=choices.body,
        history=options.history,
        time_scale=options.time_scale,
        speed=options.preset.knobs.speed,
        salt=options.cache_salt,
        seed=options.seed,
        # Salts of two runs may be the same where nothing outlives a run, and equal seeds shall give equal runs.
        run_id=f"virtual-{options.seed}" if virtual else secrets.token_hex(6),
    )
    return choices, workload, trees, sizes, replay


async def _metrics(options: RunOptions, endpoint: Endpoint) -> Discovery:
    """The server's metrics pages, or why there are none."""
    if options.metrics is None:
        return NO_METRICS
    return await discover(endpoint, options.metrics)


def _say_plan(options: RunOptions, prepared: Prepared, out: Console) -> None:
    facts = prepared.workload.facts()
    label = f" ({prepared.label})" if prepared.label else ""
    out.print(f"endpoint  {prepared.shown['url']}{label}, model {prepared.found.model}", markup=False)
    for slo in options.plan.slos:
        out.print(f"slo       {slo.echo()}", markup=False)
    context = prepared.workload.context
    cut = f"; context filter: {context.line()}" if context.changed else ""
    out.print(f"traces    {facts['id']}: {facts['trees']} sessions, {facts['requests']} turns{cut}", markup=False)
    if options.plan.label != "quick":
        out.print(f"protocol  {options.plan.label}", markup=False)
    if silent := options.preset.silent:
        text = f"{options.plan.preset} is silent on {len(silent)} knobs; what was chosen for them is in the manifest"
        out.print(f"note      {text}", style="dim", markup=False)
    for sentence in prepared.choices.sentences:
        out.print(f"note      {sentence}", style="dim", markup=False)
    out.print(f"metrics   {prepared.metrics.line}", style="dim", markup=False)


def _preflight(options: RunOptions, prepared: Prepared, out: Console) -> None:
    """Whether this machine can hold the largest level: said in a dry run, refused where it cannot (UsageError)."""
    plan = options.plan
    top = max(plan.levels, default=plan.search.max_agents if plan.search is not None else 1)
    findings = preflight.check(preflight.look(), preflight.demand_of(prepared.trees, top, options.workers))
    for finding in findings:
        if options.dry_run or finding.status == "warn":
            remedy = f" ({finding.remedy})" if finding.remedy else ""
            text = f"preflight {finding.status}, {finding.name} at {top:,} agents: {finding.text}{remedy}"
            out.print(text, style="yellow" if finding.status in ("warn", "refuse") else "dim", markup=False)
    preflight.require(findings)


def _say_estimate(options: RunOptions, prepared: Prepared, out: Console) -> None:
    low, high = probe_estimate_s(options.plan)
    probes = probe_count_bound(options.plan)
    levels = ", ".join(map(str, options.plan.levels))
    what = f"levels {levels}" if levels else f"at most about {probes} probes, doubling from {options.plan.search.start}"  # type: ignore[union-attr]
    out.print(f"plan      {what}; {low:.0f} s to {high:.0f} s a probe, {probes * low / 60:.0f} min or more in all")
    if prepared.profile is not None:
        out.print("time      virtual: hours of it pass in minutes, on one core", markup=False)
        return
    out.print(f"workers   {options.workers} load process{'es' if options.workers > 1 else ''}")
    quote = _client_quote(options)
    out.print(f"client    {quote.sentence}", style="yellow" if quote.state == "exceeded" else None, markup=False)
    if quote.remedy:
        out.print(f"          {quote.remedy}", style="dim", markup=False)


def _client_quote(options: RunOptions) -> Quote:
    """What the kept calibration says of the plan's largest level."""
    plan = options.plan
    largest = max(plan.levels, default=plan.search.max_agents if plan.search else 1)
    return quote_kept(plan.slos, largest, options.workers)


def _view(options: RunOptions, prepared: Prepared, out: Console) -> View:
    if sys.stdout.isatty() and not options.plain and not options.json:
        label = f"  [{prepared.label}]" if prepared.label else ""
        return LiveView(console.stdout(), f"agentperf  {prepared.shown['url']}  {prepared.found.model}{label}")
    return PlainView(out)


def _plan(options: RunOptions, prepared: Prepared) -> Plan:
    sizes = prepared.sizes
    counted = sizes.mean_chars_per_token if sizes.source == "calibrated" else None
    return msgspec.structs.replace(options.plan, chars_per_token=counted)


def _jobs(prepared: Prepared, target: Target | None) -> Callable[[int, int], Job]:
    def make_job(worker: int, workers: int) -> Job:
        return Job(
            worker=worker,
            workers=workers,
            target=target,
            settings=prepared.replay,
            trees=prepared.trees,
            chars_per_token=prepared.sizes.mean_chars_per_token,
        )

    return make_job


async def _conduct(
    options: RunOptions, prepared: Prepared, writer: RunWriter, past: Past | None, view: View
) -> tuple[Done, Progress]:
    plan = _plan(options, prepared)
    secret = pickle.dumps((prepared.endpoint, options.limits))
    make_job = _jobs(prepared, Target(endpoint=secret, transport=prepared.found.transport))
    with plain_errors(), view:
        async with open_sources(prepared.metrics.places) as sources, open_fleet(make_job, options.workers) as fleet:
            server = ServerWatch(sources, fleet.now_ns, prepared.found.model)
            return await conduct(plan, fleet, writer, view.update, past=past, server=server)


def _judged(progress: Progress) -> list[ProbeOutcome]:
    """The probes that count: not those that were lost with a load process and measured again."""
    measured = {o.level for o in progress.history if o.void is None}
    return [o for o in progress.history if o.void is None or o.level not in measured]


def exit_code(done: Done, progress: Progress) -> ExitCode:
    """0 when every SLO has a capacity, 1 when one is missed, 3 when one could not be decided, 130 when interrupted."""
    if progress.interrupts:
        return ExitCode.INTERRUPTED
    if progress.failure is not None:
        return progress.failure.exit_code
    if not progress.plan.slos:
        return ExitCode.OK if all(o.health.status != "invalid" for o in _judged(progress)) else ExitCode.INCONCLUSIVE
    if progress.plan.search is None:
        statuses = {v.status for o in _judged(progress) for v in o.verdicts.values()}
        if "fail" in statuses:
            return ExitCode.MISSED
        return ExitCode.OK if statuses == {"pass"} else ExitCode.INCONCLUSIVE
    if any(not a.capacity and a.smallest_fail is not None for a in done.answers):
        return ExitCode.MISSED
    return ExitCode.OK if all(a.capacity for a in done.answers) else ExitCode.INCONCLUSIVE


def _run_name(options: RunOptions, prepared: Prepared) -> str:
    return options.name or f"{prepared.found.model}-{options.plan.slos[0].name if options.plan.slos else 'levels'}"


def _kept_endpoint(prepared: Prepared) -> str:
    """The endpoint for the manifest; masked when its address holds a secret, so that --resume asks for it."""
    shown: str = prepared.shown["url"]
    return MASK if MASK in shown or prepared.shown.get("auth") == "userinfo" else shown


def _kept_page(page: Endpoint) -> str:
    """A page of --metrics-url for the manifest, masked as the endpoint is."""
    shown: str = page.public()["url"]
    return MASK if MASK in shown or page.auth == "userinfo" else shown


def _run(
    options: RunOptions, prepared: Prepared, writer: RunWriter, past: Past | None, view: View
) -> tuple[Done, Progress]:
    if prepared.profile is None:
        return anyio.run(_conduct, options, prepared, writer, past, view, backend_options={"use_uvloop": True})
    return anyio.run(
        conduct_virtually,
        _plan(options, prepared),
        _jobs(prepared, None),
        prepared.profile,
        options.seed,
        writer,
        past,
        view,
        options.metrics is not None,
        backend_options={"loop_factory": VirtualLoop},
    )


def _measure(options: RunOptions, prepared: Prepared, out: Console) -> tuple[Path, ExitCode]:
    name = _run_name(options, prepared)
    headers = prepared.endpoint.headers if prepared.endpoint is not None else ()
    secrets = [*(v for _, v in headers), *prepared.metrics.secrets]
    manifest = make_manifest(
        name=name,
        plan=options.plan,
        replay=prepared.replay,
        workload=prepared.workload,
        endpoint=prepared.shown,
        capabilities=msgspec.to_builtins(prepared.found),
        simulated=prepared.simulated,
        workers=options.workers if prepared.profile is None else 1,
        deployment=options.deployment,
        choices=[*prepared.choices.sentences, *options.preset.sentences(options.plan.preset)],
        client_calibration=_client_quote(options).facts() if prepared.profile is None else None,
        server_metrics=prepared.metrics.facts,
        invocation={
            **options.invocation,
            "endpoint": _kept_endpoint(prepared),
            "metrics_url": [_kept_page(page) for page in options.metrics or ()] or None,
        },
    )
    manifest["virtual"] = prepared.profile is not None
    past = None
    if options.resume is not None:
        writer = RunWriter.reopen(options.resume, secrets=secrets)
        run = read_run(options.resume)
        check_same(run.manifest, writer.as_written(manifest))
        past = past_of(run.events)
        out.print(f"taking up {len(past.outcomes)} probes of {options.resume}", style="dim", markup=False)
    else:
        writer = RunWriter.create(default_directory(options.out, name), secrets=secrets)
        writer.write_manifest(manifest)
    out.print(f"writing   {writer.directory}", style="dim", markup=False)
    try:
        done, progress = _run(options, prepared, writer, past, _view(options, prepared, out))
    except AgentperfError as error:
        writer.journal({"event": "run_failed", "error": str(error)})
        raise
    finally:
        writer.finish()
    if progress.failure is not None:
        out.print(f"agentperf: error: {progress.failure}", style="bold red", markup=False)
    return writer.directory, exit_code(done, progress)


def _prepared(options: RunOptions, stack: ExitStack, out: Console) -> Prepared:
    if options.endpoint.startswith(VIRTUAL_PREFIX):
        profile = load_profile(options.endpoint.removeprefix(VIRTUAL_PREFIX))
        return anyio.run(_prepare_virtual, options, profile, out, backend_options={"loop_factory": VirtualLoop})
    endpoint, shown, simulated = stack.enter_context(_endpoint(options))

    async def prepare() -> Prepared:
        with plain_errors():
            return await _prepare(options, endpoint, shown, out, simulated=simulated)

    return anyio.run(prepare)


def execute(options: RunOptions) -> ExitCode:
    """The whole command. Returns the exit code; raises AgentperfError for what ends it early."""
    out = console.stderr()
    if options.insecure:
        out.print("warning: TLS certificates are not verified (--insecure)", style="bold yellow")
    with ExitStack() as stack:
        if not options.dry_run and options.resume is None:
            check_writable(options.out)  # before minutes are spent on the endpoint
        if options.traces is not None:
            resolve(options.traces)  # a mistyped name is told before the endpoint is asked anything
        prepared = _prepared(options, stack, out)
        _say_plan(options, prepared, out)
        if options.dry_run:
            _say_estimate(options, prepared, out)
        if prepared.profile is None:
            _preflight(options, prepared, out)
        if options.dry_run:
            return ExitCode.OK
        directory, code = _measure(options, prepared, out)
    _show(directory, options)
    return code


def _show(directory: Path, options: RunOptions) -> None:
    from agentperf.report.write import show_run, write_report

    run = read_run(directory)
    written = write_report(directory)
    if options.json:
        console.stdout().print(json.dumps(run.summary, allow_nan=False), markup=False, soft_wrap=True)
        return
    show_run(run, console.stdout())
    for path in written:
        console.stdout().print(f"wrote {path}", style="dim", markup=False)
