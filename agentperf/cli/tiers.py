"""`agentperf tiers`: the named SLOs."""

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agentperf.slo.tiers import Tier


def tiers(
    name: Annotated[str | None, typer.Argument(help="Only tiers whose id contains this.", show_default=False)] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """List the named SLOs that --slo takes: what they promise, and where their figures come from."""
    from agentperf.errors import SloError
    from agentperf.slo.tiers import load_tiers

    found = [tier for tier in load_tiers().values() if name is None or name.lower() in tier.id]
    if not found:
        raise SloError(f"no tier has {name!r} in its id", "`agentperf tiers` lists all")
    if json:
        typer.echo(jsonlib.dumps([_as_json(tier) for tier in found], indent=2, ensure_ascii=False))
    else:
        _show(found)


def _as_json(tier: "Tier") -> dict[str, Any]:
    from dataclasses import asdict

    fields = asdict(tier)
    return {**fields, "slo": str(tier.slo), "terms": fields["slo"]["terms"], "added": list(tier.slo.notes)}


def _show(found: "list[Tier]") -> None:
    from itertools import groupby

    from rich.console import Console
    from rich.table import Table

    console = Console()
    for _, group in groupby(found, key=lambda tier: tier.id.rpartition("/")[0]):
        members = list(group)
        first = members[0]
        console.print(f"[bold]{first.model}[/bold] ({first.effort}) · {first.benchmark}, {first.date} · {first.url}")
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for tier in members:
            table.add_row(tier.id, str(tier.slo), tier.verification)
        console.print(table)
    for note in sorted({note for tier in found for note in tier.slo.notes}):
        console.print(f"{note}; the other terms are as published", style="dim")
    console.print("primary: read in a first-hand text; secondary: in summaries by others", style="dim")
