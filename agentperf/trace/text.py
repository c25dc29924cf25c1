"""Filler text: looks like what a coding agent reads and writes, and is the same in any process.

`filler(kind, seed, chars)` gives exactly `chars` ASCII characters. Kinds are `prose` (instructions, talk), `log` (test
runs, compilers), `listing` (files, search hits), `diff`, `json`, `args` (arguments of short tool calls), and
`code:<language>`. Each kind has a pool of blocks made once from the templates in `filler/`. A text goes round the
templates of its kind, takes one of the blocks of each, and puts a fresh identifier into it: equal passages stay a few
lines long, and any stretch of a round or more has nearly the same characters per token, which is what makes sizing by
a short calibration text good to 2 %.

Only `random.Random.random()` is used of the standard generator: its sequence is guaranteed between Python versions.
"""

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

LANGUAGES = (
    "python",
    "typescript",
    "go",
    "rust",
    "java",
    "javascript",
    "cpp",
    "c",
    "csharp",
    "ruby",
    "php",
    "kotlin",
    "swift",
    "scala",
    "shell",
    "sql",
)
KINDS = ("prose", "log", "listing", "diff", "json", "args", *(f"code:{name}" for name in LANGUAGES))

EXTENSIONS = dict(
    zip(
        LANGUAGES,
        ("py", "ts", "go", "rs", "java", "js", "cpp", "c", "cs", "rb", "php", "kt", "swift", "scala", "sh", "sql"),
        strict=True,
    )
)
_ALIASES = {
    "py": "python",
    "ts": "typescript",
    "tsx": "typescript",
    "golang": "go",
    "rs": "rust",
    "js": "javascript",
    "jsx": "javascript",
    "c++": "cpp",
    "c#": "csharp",
    "cs": "csharp",
    "rb": "ruby",
    "kt": "kotlin",
    "sh": "shell",
    "bash": "shell",
}
_SNAKE = frozenset({"python", "rust", "c", "ruby", "shell", "sql", "log", "listing", "diff", "json", "args", "prose"})
_PARAGRAPHS = "\n\n"
_VARIANTS = 24  # blocks made of each template
_NAMES = 4096  # fresh identifiers of each style
_FRESH, _FRESH_PASCAL = "\x02", "\x03"
_SLOT = re.compile("«([a-zA-Z])([0-9]?)»")
_FILES = Path(__file__).with_name("filler")


def language_of(name: str | None) -> str:
    """The language whose filler stands for `name`: itself, by another of its names, or python when unknown or None."""
    lower = (name or "").lower()
    lower = _ALIASES.get(lower, lower)
    return lower if lower in LANGUAGES else "python"


def seed_of(*parts: object) -> int:
    """A 64-bit seed made of anything that prints the same in every process."""
    return int.from_bytes(hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest())


def filler(kind: str, seed: int, chars: int) -> str:
    """`chars` characters of text of this kind. KeyError for an unknown kind.

    It begins and ends with a visible character wherever a template allows, so that chat templates which trim messages
    do not change its size.
    """
    if chars <= 0:
        return ""
    pool = _pool(kind)
    rng = random.Random(seed).random
    parts: list[str] = []
    length = 0
    while length < chars:
        for variants in _round(pool.blocks, rng):
            name = int(rng() * _NAMES)
            text = variants[int(rng() * _VARIANTS)]
            text = text.replace(_FRESH, pool.names[name]).replace(_FRESH_PASCAL, pool.pascal[name])
            parts.append(text if parts else text.lstrip())
            length += len(parts[-1])
            if length >= chars:
                break
    text = "".join(parts)[:chars]
    return text if not text[-1].isspace() else text[:-1] + ";"


def round_chars(kind: str) -> int:
    """Mean length of a text that uses every template of the kind once."""
    return round(sum(len(variant) for variants in _pool(kind).blocks for variant in variants) / _VARIANTS)


def _round(blocks: tuple[tuple[str, ...], ...], rng: Callable[[], float]) -> Iterator[tuple[str, ...]]:
    """Every template once: the first two at random, the others as they follow."""
    n = len(blocks)
    at = int(rng() * n)
    yield blocks[at]
    order = [i for i in range(n) if i != at]
    turn = int(rng() * len(order))
    for i in order[turn:] + order[:turn]:
        yield blocks[i]


class _Pool:
    """Blocks by template, and identifiers to put into them."""

    def __init__(self, blocks: tuple[tuple[str, ...], ...], names: list[str], pascal: list[str]) -> None:
        self.blocks = blocks
        self.names = names
        self.pascal = pascal


@cache
def words() -> dict[str, list[str]]:
    """Word lists by name."""
    lists = {}
    for line in (_FILES / "words.txt").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(": ")
        lists[name] = rest.split(" | ") if " | " in rest else rest.split()
    return lists


@cache
def _names(style: str) -> list[str]:
    rng = random.Random(seed_of("names")).random  # the same words in every style
    lists = words()
    return [
        _styled([_pick(lists["verbs"], rng), _pick(lists["adjectives"], rng), _pick(lists["nouns"], rng)], style)
        if rng() < 0.4
        else _styled([_pick(lists["verbs"], rng), _pick(lists["nouns"], rng)], style)
        for _ in range(_NAMES)
    ]


@cache
def _pool(kind: str) -> _Pool:
    name = kind.removeprefix("code:")
    if kind not in KINDS:
        raise KeyError(f"no filler of kind {kind!r}")
    templates = [t.strip("\n") for t in (_FILES / f"{name}.txt").read_text(encoding="utf-8").split("---\n")]
    style = "snake" if name in _SNAKE else "camel"
    end = _PARAGRAPHS if kind == "prose" or kind.startswith("code:") else "\n"
    rng = random.Random(seed_of("pool", kind)).random
    extension = EXTENSIONS.get(name)
    blocks = tuple(tuple(_filled(t, style, extension, rng) + end for _ in range(_VARIANTS)) for t in templates)
    return _Pool(blocks, _names(style), _names("pascal"))


def _filled(template: str, style: str, extension: str | None, rng: Callable[[], float]) -> str:
    """The template with one word for each of its slots, the same one wherever a slot returns."""
    chosen: dict[str, str] = {"f": _FRESH, "F": _FRESH_PASCAL}

    def put(match: re.Match[str]) -> str:
        slot, number = match.groups()
        key = slot.lower() + number if slot in "VWXKB" else slot + number
        if key not in chosen:
            chosen[key] = _word(slot, number, style, extension, rng)
        word = chosen[key]
        if slot in "VWX":
            return word.upper()
        return word[0].upper() + word[1:] if slot in "KB" else word

    return _SLOT.sub(put, template)


def _word(slot: str, number: str, style: str, extension: str | None, rng: Callable[[], float]) -> str:
    lists = words()
    if slot in "vwxVWXkK":
        two = [_pick(lists["adjectives" if slot in "kK" else "nouns"], rng), _pick(lists["nouns"], rng)]
        return _styled(two if rng() < 0.5 else two[1:], style)
    if slot in "TU":
        return _styled([_pick(lists["nouns"], rng), _pick(lists["nouns"], rng)][int(rng() * 2) :], "pascal")
    if slot in "pr":
        folder = _pick(lists["folders"], rng)
        if slot == "r":
            return folder
        file = _styled([_pick(lists["nouns"], rng), _pick(lists["nouns"], rng)], style)
        return f"{folder}/{_pick(lists['nouns'], rng)}/{file}.{extension or _pick(list(EXTENSIONS.values()), rng)}"
    if slot == "d" and number:
        return str(1 + int(rng() * 9))
    if slot in "nN":
        return str(int(10 + rng() * 490)) if slot == "n" else str(int(1000 + rng() * 90000))
    if slot == "h":
        return f"{int(rng() * 0xFFFFFFF):07x}"
    source = {"o": "nouns", "q": "nouns", "a": "adjectives", "b": "verbs", "B": "verbs"}.get(slot)
    return _pick(lists[source or {"s": "phrases", "d": "sentences", "e": "extensions"}[slot]], rng)


def _pick(items: list[str], rng: Callable[[], float]) -> str:
    return items[int(rng() * len(items))]


def _styled(parts: list[str], style: str) -> str:
    if style == "snake":
        return "_".join(parts)
    joined = "".join(p[0].upper() + p[1:] for p in parts)
    return joined if style == "pascal" else joined[0].lower() + joined[1:]
