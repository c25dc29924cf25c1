"""Claude Code transcripts written by hand, a line at a time."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 3, 1, 9, 0, 0, tzinfo=UTC)


def stamp(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Talk:
    """Lines of one file. Each method appends one line and gives its uuid; `parent` defaults to the line before."""

    def __init__(self, session: str = "s1", agent: str | None = None) -> None:
        self.session, self.agent = session, agent
        self.lines: list[dict[str, Any]] = []
        self.last: str | None = None

    def add(self, type_: str, at: float | None, **fields: Any) -> str:
        uuid = fields.pop("uuid", f"{self.session}-{self.agent or 'm'}-{len(self.lines)}")
        parent = fields.pop("parent", self.last)
        line = {"parentUuid": parent, "isSidechain": self.agent is not None, "sessionId": self.session}
        line |= {"version": "2.1.99", "type": type_, "uuid": uuid} | fields
        if self.agent:
            line["agentId"] = self.agent
        if at is not None:
            line["timestamp"] = stamp(at)
        self.lines.append(line)
        self.last = uuid
        return uuid

    def user(self, at: float | None, content: Any, **fields: Any) -> str:
        return self.add("user", at, message={"role": "user", "content": content}, **fields)

    def result(self, at: float | None, call: str, content: Any = "ok", *, error: bool = False, **fields: Any) -> str:
        block = {"type": "tool_result", "tool_use_id": call, "content": content}
        if error:
            block["is_error"] = True
        return self.user(at, [block], **fields)

    def answer(
        self,
        at: float | None,
        id_: str | None,
        *blocks: dict[str, Any],
        prompt: tuple[int, int, int] = (3, 100, 20_000),
        out: int = 50,
        stop: str | None = None,
        model: str = "claude-x",
        **fields: Any,
    ) -> str:
        usage = {"input_tokens": prompt[0], "cache_creation_input_tokens": prompt[1]}
        usage |= {"cache_read_input_tokens": prompt[2], "output_tokens": out}
        message = {"role": "assistant", "model": model, "content": list(blocks), "stop_reason": stop, "usage": usage}
        if id_ is not None:
            message["id"] = id_
            fields.setdefault("requestId", f"req_{id_}")
        return self.add("assistant", at, message=message, **fields)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self.lines))
        return path


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def think(words: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": "c2ln"}


def use(id_: str, name: str = "Bash", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": given}
