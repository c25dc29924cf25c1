"""Named SLOs: the files in slo_tiers/, and the one place where a name or an expression becomes an Slo."""

import re
import tomllib
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final

from agentperf.errors import SloError
from agentperf.paths import data_dir
from agentperf.slo.expression import parse
from agentperf.slo.model import Slo

_NAME: Final = re.compile(r"[a-z][a-z0-9._-]*(?:/[a-z0-9._-]*)+", re.ASCII)
_VERIFICATIONS: Final = ("primary", "secondary", "own")


@dataclass(frozen=True, slots=True)
class Tier:
    """A named SLO with where it comes from. `id` is `aa/deepseek-v4-pro/2`; `date` is ISO 8601."""

    id: str
    model: str
    effort: str
    publisher: str
    benchmark: str
    slo: Slo
    url: str
    date: str
    verification: str
    note: str


def load_tiers(folder: Path | None = None) -> dict[str, Tier]:
    """All tiers by id, in the order of files and numbers. Raises SloError naming the file that cannot be read."""
    tiers: dict[str, Tier] = {}
    for path in sorted((folder or data_dir("slo_tiers")).glob("*.toml")):
        for tier in _read(path):
            if tier.id in tiers:
                raise SloError(f"{path.name}: tier {tier.id} is defined twice", "give each tier one number in one file")
            tiers[tier.id] = tier
    return tiers


def resolve(text: str) -> Slo:
    """The SLO that `text` names (`aa/deepseek-v4-pro/2`) or spells out (`80tps`). Raises SloError."""
    name = text.strip().lower()
    if not _NAME.fullmatch(name):
        return parse(text)
    tiers = _bundled()
    if name in tiers:
        return tiers[name].slo
    models = (name.rstrip("/"), name.rpartition("/")[0])
    siblings = [known for known in tiers if known.rpartition("/")[0] in models]
    close = siblings or get_close_matches(name, tiers, 3, 0.6)
    remedy = f"did you mean {' or '.join(close)}?" if close else "`agentperf tiers` lists those there are"
    raise SloError(f"no tier is called {name}", remedy)


@cache
def _bundled() -> dict[str, Tier]:
    return load_tiers()


def _read(path: Path) -> list[Tier]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return [_tier(document, entry) for entry in document["tier"]]
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SloError(f"{path.name} cannot be read: {error}", "see slo_tiers/README.md") from error
    except KeyError as error:
        raise SloError(f"{path.name}: {error} is missing", "see slo_tiers/README.md") from error
    except (TypeError, ValueError) as error:
        raise SloError(f"{path.name}: {error}", "see slo_tiers/README.md") from error
    except SloError as error:
        raise SloError(f"{path.name}: {error.message}", error.remedy) from error


def _tier(document: dict[str, Any], entry: dict[str, Any]) -> Tier:
    number, verification, source = entry["number"], entry["verification"], document["source"]
    if not isinstance(number, int) or number < 1:
        raise ValueError(f"number = {number!r} must be a whole number from 1")
    if verification not in _VERIFICATIONS:
        raise ValueError(f"verification = {verification!r} must be one of {', '.join(_VERIFICATIONS)}")
    name = f"{document['id']}/{number}"
    if not _NAME.fullmatch(name):
        raise ValueError(f"id = {document['id']!r} must be lower case words joined by slashes")
    origin = f"{document['benchmark']} #{number}, {document['model']} ({document['effort']}), {source['date']}"
    return Tier(
        id=name,
        model=document["model"],
        effort=document["effort"],
        publisher=document["publisher"],
        benchmark=document["benchmark"],
        slo=replace(parse(entry["slo"]), name=name, source=f"{origin}, {verification}"),
        url=source["url"],
        date=str(source["date"]),
        verification=verification,
        note=entry["note"],
    )
