"""Tool calls whose arguments fit the tool's own JSON schema, and the results that answer them."""

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentperf.trace.model import Tool
from agentperf.trace.render_pieces import Frame, chars_of, known_tools
from agentperf.trace.text import EXTENSIONS, filler, language_of, seed_of, words

Rng = Callable[[], float]

_LONG = ("content", "new", "old", "replacement", "code", "patch", "text", "body", "prompt", "instructions", "diff")
_CAMEL_LONG = ("newstring", "oldstring", "newtext", "oldtext")
_PROSE = ("prompt", "instructions")
_SEVERAL = 2  # items made for a list without bounds
_LEAST = 12  # characters of a long text

# What a tool of a class gives back; a name that has no class is looked up by what it contains.
_RESULTS = {
    "read": "code",
    "view": "code",
    "open": "code",
    "cat": "code",
    "write": "prose",
    "create": "prose",
    "edit": "diff",
    "patch": "diff",
    "replace": "diff",
    "grep": "listing",
    "search": "listing",
    "glob": "listing",
    "find": "listing",
    "ls": "listing",
    "list": "listing",
    "fetch": "prose",
    "task": "prose",
    "todo": "prose",
    "plan": "prose",
    "test": "log",
    "bash": "log",
    "shell": "log",
    "run": "log",
}


@dataclass(slots=True)
class Call:
    """A call under construction: `long` names the arguments that may take text of any length."""

    id: str
    name: str
    arguments: dict[str, Any]
    long: list[str] = field(default_factory=list)
    kind: str = "prose"

    def fill(self, chars: int, seed: int) -> None:
        """Give the long arguments this many characters in all."""
        rest = chars
        for left, name in zip(range(len(self.long), 0, -1), self.long, strict=True):
            size = max(_LEAST, rest // left)
            rest -= size
            self.arguments[name] = filler(self.kind, seed_of(seed, name), size)

    def encoded(self) -> dict[str, Any]:
        """As it stands in an assistant message."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": json.dumps(self.arguments)},
        }

    def tokens(self, frame: Frame) -> float:
        """Predicted tokens."""
        sizes = frame.sizes
        texts = [self.arguments[name] for name in self.long]
        short = len(json.dumps(self.arguments)) - sum(len(json.dumps(t)) for t in texts)
        long = sum(sizes.text(self.kind, len(t)) for t in texts) * sizes.args_factor
        return sizes.call_overhead + sizes.short_args(short) + long


def start_call(call_id: str, name: str, frame: Frame, seed: int) -> Call:
    """A call of a tool with short arguments; `fill` makes its long ones longer."""
    rng = random.Random(seed).random
    schema = known_tools(frame.tools, name)
    if schema is None:
        arguments: dict[str, Any] = {"input": _path(frame, rng)}
    else:
        arguments = _object(schema, frame, rng)
    properties: Mapping[str, Any] = (schema or {}).get("properties") or {}
    # one that the schema leaves open in length; the order is that of the schema
    long = [k for k, v in arguments.items() if isinstance(v, str) and _is_long(k, properties.get(k) or {})]
    kind = "prose" if any(word in k.lower() for k in long for word in _PROSE) else frame.code
    call = Call(call_id, name, arguments, long, kind)
    call.fill(0, seed)
    return call


def _is_long(name: str, schema: Mapping[str, Any]) -> bool:
    if schema.get("type") != "string" or "enum" in schema or "maxLength" in schema or "path" in name.lower():
        return False
    lower = name.lower()
    return lower in _LONG or lower.startswith(tuple(w + "_" for w in _LONG)) or lower in _CAMEL_LONG


def _object(schema: Mapping[str, Any], frame: Frame, rng: Rng) -> dict[str, Any]:
    required = schema.get("required") or ()
    properties: Mapping[str, Any] = schema.get("properties") or {}
    wanted = [k for k in properties if k in required or rng() < 0.3]
    return {k: _value(k, properties[k], frame, rng) for k in wanted}


def _value(name: str, schema: Mapping[str, Any], frame: Frame, rng: Rng) -> Any:
    """A value that the schema allows. Types beyond JSON Schema's simple ones become a string."""
    if "enum" in schema:
        return schema["enum"][int(rng() * len(schema["enum"]))]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((k for k in kind if k != "null"), "null")
    if kind == "boolean":
        return rng() < 0.5
    if kind in ("integer", "number"):
        return _number(schema, kind == "integer", rng)
    if kind == "array":
        n = max(int(schema.get("minItems", 0)), min(_SEVERAL, int(schema.get("maxItems", _SEVERAL))))
        return [_value(name, schema.get("items") or {"type": "string"}, frame, rng) for _ in range(n)]
    if kind == "object":
        return _object(schema, frame, rng)
    if kind == "null":
        return None
    text = _string(name, str(schema.get("description", "")).lower(), frame, rng)
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    return (text + "x" * (least - len(text)))[: int(most) if most is not None else None]


def _number(schema: Mapping[str, Any], whole: bool, rng: Rng) -> float | int:
    low = float(schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1))
    high = float(schema.get("maximum", schema.get("exclusiveMaximum", low + 401) - 1))
    value = low + rng() * max(0.0, high - low)
    return max(math.ceil(low), int(value)) if whole else value


def _string(name: str, description: str, frame: Frame, rng: Rng) -> str:
    lower = name.lower()
    noun, verb = _pick("nouns", rng), _pick("verbs", rng)
    if "url" in lower:
        return f"https://docs.example.org/{noun}/{verb}-{_pick('nouns', rng)}"
    if "path" in lower or "file" in lower or "dir" in lower:
        folder = any(word in lower + description for word in ("dir", "folder"))
        return f"/work/repo/{_pick('folders', rng)}/{noun}" if folder else _path(frame, rng)
    if "ignore" in lower or "exclude" in lower:
        return f"{noun}/**"
    if "command" in lower or lower in ("cmd", "script"):
        return _command(frame, rng)
    if "glob" in lower or "include" in lower:
        return f"**/*{noun}*.{_extension(frame)}"
    if "pattern" in lower or "regex" in lower or "query" in lower:
        return f"{verb}_{noun}"
    if "desc" in lower or "title" in lower or "summary" in lower:
        return f"{verb.capitalize()} the {_pick('adjectives', rng)} {noun}"
    if "id" in lower.split("_") or lower.endswith("id"):
        return f"{noun}-{int(rng() * 90) + 10}"
    return f"{verb} the {noun} of the {_pick('adjectives', rng)} {_pick('nouns', rng)}"


def _pick(name: str, rng: Rng) -> str:
    items = words()[name]
    return items[int(rng() * len(items))]


def _extension(frame: Frame) -> str:
    return EXTENSIONS[language_of(frame.language)]


def _path(frame: Frame, rng: Rng) -> str:
    folder, noun, file = _pick("folders", rng), _pick("nouns", rng), _pick("nouns", rng)
    return f"/work/repo/{folder}/{noun}/{file}_{_pick('nouns', rng)}.{_extension(frame)}"


def _command(frame: Frame, rng: Rng) -> str:
    noun, verb, folder = _pick("nouns", rng), _pick("verbs", rng), _pick("folders", rng)
    commands = (
        f"make test TARGET={folder}/{noun}",
        f"grep -rn {verb}_{noun} {folder} | head -{10 + int(rng() * 40)}",
        f"git diff --stat HEAD~{1 + int(rng() * 8)} -- {folder}/{noun}",
        f"ls -la {folder}/{noun} && wc -l {folder}/{noun}/*.{_extension(frame)}",
        f"./scripts/check.sh --only {noun} --{verb}",
    )
    return commands[int(rng() * len(commands))]


def result_kind(tool: str | None, info: Tool | None, frame: Frame) -> str:
    """Kind of text that a tool gives back."""
    if info is not None and info.is_error:
        return "log"
    for name in (info.tool_class if info else None, tool, info.name if info else None):
        lower = (name or "").lower()
        kind = _RESULTS.get(lower) or next((kind for word, kind in _RESULTS.items() if word in lower), None)
        if lower and kind:
            return frame.code if kind == "code" else kind
    return "log"


def result_text(
    tool: str | None, info: Tool | None, frame: Frame, tokens: float, seed: int, least: int
) -> tuple[str, float]:
    """The text of a tool result and its predicted tokens."""
    kind = result_kind(tool, info, frame)
    chars = chars_of(tokens, kind, frame.sizes, least)
    text = filler(kind, seed, chars)
    if info is not None and info.is_error:
        phrases = words()["phrases"]
        lead = f"Error: {phrases[seed % len(phrases)]}\n"
        text = (lead + text)[:chars]
        text = text if not text[-1].isspace() else text[:-1] + "."
    return text, frame.sizes.text(kind, len(text))
