"""Scenario files: a reply in byte-exact steps, and the outcome that every transport must make of it.

A step is a table: `text` (bytes as written) or `latin` (bytes 0 to 255 as characters), or shorthands that are spelled
out here: `delta` (JSON of a chat delta), `chars` (a delta of so many letters), `finish` (reason), `usage` (JSON, on a
chunk with empty choices), `json` (any data line), `done`. `ms` waits before it, `times` repeats it, `pieces` writes it
in so many writes, `fault` (rst, close, silence) comes after it. `coding` compresses the body, flushed at every step.

`cases` names the field cases that a scenario stands for. `[expect]` names fields of the outcome; `first_visible_step`
and the like are indices of steps, compared with the server's own log. `[record]` names what the record must hold.
`[httpx]` says, with `why`, where httpx's transport sees something else.
"""

import json
import tomllib
import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from scripted import Reply, Step

FOLDER = Path(__file__).parent / "scenarios"

STEP_KEYS = {"text", "latin", "delta", "chars", "finish", "usage", "json", "done", "ms", "times", "pieces", "fault"}
STAMPS = ("first_byte", "first_visible", "first_answer", "last_visible")
PLAIN = {"outcome", "error_class", "error", "status", "finish_reason", "notes", "visible_chars", "hidden_tokens"}
PLAIN |= {"prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"}
EXPECT_KEYS = PLAIN | {f"{name}_step" for name in STAMPS}
EXPECT_KEYS |= {"error_has", "visible", "content", "calls", "n1_share", "headers_lack"}
RECORD_KEYS = {"speed", "gap", "gaps", "token_source", "output_tokens", "first_event_tokens", "notes_have"}
TABLE_KEYS = {"cases", "status", "headers", "framing", "raw", "keep_alive", "trailers", "coding", "limits", "steps"}
TABLE_KEYS |= {"expect", "record", "httpx"}


@dataclass(frozen=True)
class Scenario:
    name: str
    reply: Reply
    cases: tuple[str, ...]
    expect: dict[str, Any] = field(hash=False)
    record: dict[str, Any] = field(hash=False)
    httpx: dict[str, Any] = field(hash=False)
    limits: dict[str, float] = field(hash=False)

    @property
    def body(self) -> bytes:
        return b"".join(step.data for step in self.reply.steps)

    @property
    def clean(self) -> bool:
        """True when the response ends as HTTP has it, and its steps are its body as it is."""
        headers = {name.lower() for name, _ in self.reply.headers}
        return (
            not any(step.fault for step in self.reply.steps)
            and not self.reply.raw
            and "content-encoding" not in headers
        )

    @property
    def duration_s(self) -> float:
        return sum(step.delay_s for step in self.reply.steps)

    def expected(self, transport: str) -> dict[str, Any]:
        """What this transport must come to."""
        return self.expect | (self.httpx if transport == "httpx" else {})

    def __str__(self) -> str:
        return self.name


def sse(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta if delta is not None else {}, "finish_reason": finish}]
    return sse({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more})


def _steps(table: dict[str, Any]) -> list[Step]:
    assert table.keys() <= STEP_KEYS, table.keys() - STEP_KEYS
    data = b""
    if "text" in table:
        data += table["text"].encode()
    if "latin" in table:
        data += table["latin"].encode("latin-1")
    if "delta" in table:
        data += chunk(json.loads(table["delta"]), table.get("finish"))
    elif "chars" in table:
        data += chunk({"content": "x" * table["chars"]}, table.get("finish"))
    elif "finish" in table:
        data += chunk(None, table["finish"])
    if "json" in table:
        data += sse(json.loads(table["json"]))
    if "usage" in table:
        data += sse({"object": "chat.completion.chunk", "choices": [], "usage": json.loads(table["usage"])})
    if table.get("done"):
        data += b"data: [DONE]\n\n"
    size = -(-len(data) // table.get("pieces", 1)) or 1
    parts = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    delays = [table.get("ms", 0) / 1000] + [0.0] * (len(parts) - 1)
    faults: list[Any] = [""] * (len(parts) - 1) + [table.get("fault", "")]
    steps = [Step(part, delay, fault) for part, delay, fault in zip(parts, delays, faults, strict=True)]
    return steps * table.get("times", 1)


WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15, "raw-deflate": -15}


def _compressed(steps: list[Step], coding: str) -> list[Step]:
    """Each step flushed, so that its end can be decoded when it is there; the last one ends the coding."""
    packer = zlib.compressobj(wbits=WBITS[coding])
    out = []
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        data = packer.compress(step.data) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        out.append(Step(data, step.delay_s, step.fault))
    return out


def _scenario(name: str, table: dict[str, Any]) -> Scenario:
    assert table.keys() <= TABLE_KEYS, (name, table.keys() - TABLE_KEYS)
    expect, record, httpx = table["expect"], table.get("record", {}), table.get("httpx", {})
    assert expect.keys() <= EXPECT_KEYS, (name, expect.keys() - EXPECT_KEYS)
    assert record.keys() <= RECORD_KEYS, (name, record.keys() - RECORD_KEYS)
    assert httpx.keys() <= EXPECT_KEYS | {"why", "skip"}, (name, httpx.keys())
    assert not httpx or httpx["why"], name
    steps = [step for each in table["steps"] for step in _steps(each)]
    headers = [tuple(pair) for pair in table.get("headers", [["Content-Type", "text/event-stream"]])]
    coding = table.get("coding")
    if coding is not None:
        steps = _compressed(steps, coding)
        headers.append(("Content-Encoding", coding.removeprefix("raw-")))
    reply = Reply(
        steps,
        table.get("status", 200),
        headers,
        table.get("framing", "chunked"),
        table.get("raw", False),
        table.get("keep_alive", True),
        trailers=table.get("trailers", "").encode(),
    )
    return Scenario(name, reply, tuple(table.get("cases", ())), expect, record, httpx, table.get("limits", {}))


@cache
def load_all() -> tuple[Scenario, ...]:
    return tuple(
        _scenario(f"{path.stem}.{name}", table)
        for path in sorted(FOLDER.glob("*.toml"))
        for name, table in tomllib.loads(path.read_text()).items()
    )
