"""`agentperf sim`: the simulated inference server on a port, and the profiles that it knows."""

import json as jsonlib
import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from agentperf.errors import ClientError, UsageError

if TYPE_CHECKING:
    from agentperf.sim.profile import Profile

app = typer.Typer(no_args_is_help=True, help="The simulated inference server.")

_LEVELS = (1, 8, 32, 128)


@app.command()
def serve(
    *,
    profile: Annotated[str, typer.Option(help="A bundled profile, or a TOML file.")] = "demo",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 lets the system choose.")] = 8000,
    seed: Annotated[int, typer.Option(min=0, help="Of the step times and replies.")] = 0,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with a key that clients must send.", show_default=False)
    ] = None,
) -> None:
    """Serve a profile over HTTP until Ctrl-C: streamed chat completions, models, health, metrics in vLLM's names."""
    from agentperf.sim.process import serve as serve_on
    from agentperf.sim.profile import load_profile

    loaded = load_profile(profile)
    key = _key(api_key_env)
    with _listen(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}/v1"
        typer.echo(f"simulated endpoint {url}  model {loaded.model}  profile {loaded.name}")
        serve_on(loaded, listener, seed, key)


@app.command()
def profiles(
    *, json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False
) -> None:
    """List the bundled profiles with the speed that one of N always-decoding agents gets."""
    from agentperf.sim.profile import bundled_profiles, load_profile

    loaded = [load_profile(name) for name in bundled_profiles()]
    if json:
        import msgspec

        rows = [{**msgspec.to_builtins(p), "decode_tokens_per_s": _decode(p)} for p in loaded]
        typer.echo(jsonlib.dumps(rows, indent=2))
    else:
        _show(loaded)


def _decode(profile: "Profile") -> dict[str, float]:
    """Output of one of N agents by N, tok/s."""
    return {str(n): round(profile.decode_tokens_per_s(n) / n, 2) for n in _LEVELS}


def _show(loaded: "list[Profile]") -> None:
    from rich.table import Table

    from agentperf.cli import console

    table = Table(box=None, pad_edge=False, title="tok/s of each of N agents that always decode", title_justify="left")
    table.add_column("profile", no_wrap=True)
    table.add_column("model", no_wrap=True)
    for level in _LEVELS:
        table.add_column(f"@{level}", justify="right", no_wrap=True)
    table.add_column("prefill tok/s", justify="right", no_wrap=True)
    table.add_column("KV tokens", justify="right", no_wrap=True)
    for profile in loaded:
        speeds = [f"{speed:.1f}" for speed in _decode(profile).values()]
        prefill, pool = f"{profile.prefill_tokens_per_s:,.0f}", f"{profile.kv_pool_tokens:,}"
        table.add_row(profile.name, profile.model, *speeds, prefill, pool)
    out = console.stdout()
    out.print(table)
    for profile in loaded:
        out.print(f"{profile.name}: {profile.description}", style="dim")


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"the environment variable {variable} holds no key", "set it, or leave out --api-key-env")
    return key


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ClientError(
            f"cannot listen on {host} port {port}: {reason}", "choose another --port or --host"
        ) from error
