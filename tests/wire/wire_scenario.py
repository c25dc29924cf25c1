"""Scenario files: a reply in byte-exact steps, and the outcome that every transport must make of it.

A step is a table: `text` (bytes as written), or shorthands that are spelled out here: `delta` (JSON of a chat delta),
`finish` (reason), `usage` (JSON, on a chunk with empty choices), `json` (any data line), `done`. `ms` waits before it,
`fault` (rst, close, silence) comes after it. `[expect]` names fields of the outcome; `first_visible_step` and the like
are indices of steps, compared with the server's own log.
"""

import json
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from scripted import Reply, Step

FOLDER = Path(__file__).parent / "scenarios"


@dataclass(frozen=True)
class Scenario:
    name: str
    reply: Reply
    expect: dict[str, Any] = field(hash=False)
    limits: dict[str, float] = field(hash=False)

    @property
    def body(self) -> bytes:
        return b"".join(step.data for step in self.reply.steps)

    @property
    def clean(self) -> bool:
        """True when the response ends as HTTP has it."""
        return not any(step.fault for step in self.reply.steps) and not self.reply.raw

    def __str__(self) -> str:
        return self.name


def sse(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta if delta is not None else {}, "finish_reason": finish}]
    return sse({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more})


def _step(table: dict[str, Any]) -> Step:
    data = b""
    if "text" in table:
        data += table["text"].encode()
    if "delta" in table:
        data += chunk(json.loads(table["delta"]), table.get("finish"))
    elif "finish" in table:
        data += chunk(None, table["finish"])
    if "json" in table:
        data += sse(json.loads(table["json"]))
    if "usage" in table:
        data += sse({"object": "chat.completion.chunk", "choices": [], "usage": json.loads(table["usage"])})
    if table.get("done"):
        data += b"data: [DONE]\n\n"
    return Step(data, table.get("ms", 0) / 1000, table.get("fault", ""))


@cache
def load_all() -> tuple[Scenario, ...]:
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        for name, table in tomllib.loads(path.read_text()).items():
            steps = [_step(step) for step in table["steps"] for _ in range(step.get("times", 1))]
            headers = table.get("headers", [["Content-Type", "text/event-stream"]])
            reply = Reply(
                steps,
                table.get("status", 200),
                [tuple(pair) for pair in headers],
                table.get("framing", "chunked"),
                table.get("raw", False),
                table.get("keep_alive", True),
            )
            found.append(Scenario(f"{path.stem}.{name}", reply, table["expect"], table.get("limits", {})))
    return tuple(found)
