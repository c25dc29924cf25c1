"""Messages of the Anthropic API as Claude Code stores them -> messages of the OpenAI chat API, and their sizes."""

import base64
import binascii
import hashlib
import struct
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

import msgspec

from agentperf.trace.importers.claude_code_lines import Line, Round, text_of, typed_blocks
from agentperf.trace.importers.result import ImportReport
from agentperf.trace.model import Message

CALL_TOKENS = 40
"""Tokens of a tool call beside its arguments (name, id, frame): 43 by regression of prompt growth on real sessions."""
MESSAGE_TOKENS = 4
"""Tokens that frame one message."""
IMAGE_TOKENS = 1600
"""An image whose size cannot be read; the most that Anthropic's API counts for one is about this."""
_PIXELS_PER_TOKEN = 750
"""Anthropic's published rule: tokens = width x height / 750."""
NO_RESULT = "[no result recorded]"

_REJECTED = ("The user doesn't want to proceed with this tool use", "The user doesn't want to take this action")
_INTERRUPTED = "[Request interrupted by user"
_ASKS_A_PERSON = frozenset({"AskUserQuestion", "ExitPlanMode"})

_CLASSES: dict[str, str] = {
    **dict.fromkeys(("Bash", "BashOutput", "KillShell", "KillBash", "TaskStop"), "shell"),
    **dict.fromkeys(("Read", "NotebookRead"), "read"),
    **dict.fromkeys(("Edit", "MultiEdit", "Write", "NotebookEdit"), "edit"),
    **dict.fromkeys(("Grep", "Glob", "LS", "ToolSearch"), "search"),
    **dict.fromkeys(("WebFetch", "WebSearch"), "web"),
    **dict.fromkeys(("Task", "Agent", "TaskOutput", "AgentOutputTool"), "agent"),
    **dict.fromkeys(("AskUserQuestion", "ExitPlanMode", "EnterPlanMode"), "user"),
}

_LANGUAGES: dict[str, str] = {
    **dict.fromkeys((".py", ".pyi", ".ipynb"), "python"),
    **dict.fromkeys((".ts", ".tsx", ".mts"), "typescript"),
    **dict.fromkeys((".js", ".jsx", ".mjs", ".cjs"), "javascript"),
    **dict.fromkeys((".ex", ".exs", ".heex"), "elixir"),
    **dict.fromkeys((".c", ".h"), "c"),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".hpp", ".hh"), "cpp"),
    **dict.fromkeys((".kt", ".kts"), "kotlin"),
    **dict.fromkeys((".sh", ".bash"), "shell"),
    ".go": "go",
    ".rs": "rust",
    ".java": "java",
    ".rb": "ruby",
    ".php": "php",
    ".cs": "csharp",
    ".swift": "swift",
    ".scala": "scala",
    ".lua": "lua",
    ".hs": "haskell",
    ".zig": "zig",
    ".dart": "dart",
}


def tool_class(name: str) -> str:
    """Kind of work that a tool does."""
    return _CLASSES.get(name, "mcp" if name.startswith("mcp__") else "other")


def language_of(rounds: Iterable[Round]) -> str | None:
    """The language of most files that the tools of a session touched."""
    votes: dict[str, int] = {}
    for one in rounds:
        for block, _ in one.tool_lines():
            given = block.get("input")
            path = text_of(given.get("file_path")) if isinstance(given, dict) else None
            language = _LANGUAGES.get(PurePosixPath(path.replace("\\", "/")).suffix.lower()) if path else None
            if language:
                votes[language] = votes.get(language, 0) + 1
    return max(votes, key=lambda name: votes[name]) if votes else None


def answer_message(one: Round, report: ImportReport) -> Message:
    """The answer of a round as an assistant message. Thinking is left out; blank text, which clients drop, too."""
    texts, calls = [], []
    for block in one.blocks:
        type_ = block.get("type")
        if type_ == "text":
            if (text := text_of(block.get("text"))) and text.strip():
                texts.append(text)
        elif type_ not in ("thinking", "redacted_thinking", "tool_use"):
            # calls that the provider ran itself: the client has no part in them, later prompts carry their text
            report.note(f"answer blocks of type {type_} kept as text")
            texts.append(_as_json(block))
    for block, _ in one.tool_lines():
        arguments = _as_json(block.get("input") if isinstance(block.get("input"), dict) else {})
        name = text_of(block.get("name")) or "unknown"
        calls.append({"id": block["id"], "type": "function", "function": {"name": name, "arguments": arguments}})
    message: Message = {"role": "assistant", "content": "\n".join(texts) if texts or not calls else None}
    if calls:
        message["tool_calls"] = calls
    return message


def reasoning_text(one: Round) -> tuple[str, int]:
    """(thinking that the file holds, number of thinking blocks without text)."""
    parts = [text_of(b.get("thinking")) for b in one.blocks if b.get("type") in ("thinking", "redacted_thinking")]
    return "\n".join(p for p in parts if p), sum(p is None for p in parts)


def user_messages(eaten: list[Line], calls: list[str], report: ImportReport) -> list[Message]:
    """What the client sent after an answer: a message for each of its tool `calls`, in their order, then the texts.

    A call without a result gets a stand-in, since chat APIs refuse a call that nothing answers; a result without its
    call becomes text of the user.
    """
    results: dict[str, Message] = {}
    rest: list[Message] = []
    for line in eaten:
        parts: list[dict[str, Any]] = []
        for block in line.blocks:
            if block.get("type") != "tool_result":
                parts.append(block)
                continue
            id_ = text_of(block.get("tool_use_id")) or ""
            content = _content(_result_blocks(block), report)
            if id_ in calls and id_ not in results:
                results[id_] = {"role": "tool", "tool_call_id": id_, "content": content}
            elif id_ in results:
                report.ignore("second results of one tool call")
            else:
                report.note("tool results without their call, sent as text")
                rest.append({"role": "user", "content": content})
        if parts:
            rest.append({"role": "user", "content": _content(parts, report)})
    out = []
    for id_ in calls:
        if id_ not in results:
            report.estimate("tool results that are not in the file: a stand-in is sent")
        out.append(results.get(id_) or {"role": "tool", "tool_call_id": id_, "content": NO_RESULT})
    return out + rest


def _result_blocks(block: dict[str, Any]) -> list[dict[str, Any]]:
    content = block.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return typed_blocks(content)


def _content(blocks: list[dict[str, Any]], report: ImportReport) -> str | list[dict[str, Any]]:
    """Plain text, or a list of parts when there is an image among them."""
    parts: list[dict[str, Any]] = []
    for block in blocks:
        type_ = block.get("type")
        if type_ == "image":
            report.estimate("images: a placeholder with size, token estimate and hash")
            parts.append(_image(block))
        elif type_ == "text":
            text = block.get("text")
            parts.append({"type": "text", "text": text if isinstance(text, str) else ""})
        else:
            report.note(f"blocks of type {type_} kept as text")
            parts.append({"type": "text", "text": _as_json(block)})
    if all(p["type"] == "text" for p in parts):
        return "\n".join(p["text"] for p in parts)
    return parts


def _image(block: dict[str, Any]) -> dict[str, Any]:
    """A placeholder `{type: image, w, h, tokens, sha256, media_type}`; the picture itself is not kept."""
    found = block.get("source")
    source: dict[str, Any] = found if isinstance(found, dict) else {}
    try:
        data = base64.b64decode(text_of(source.get("data")) or "")
    except (binascii.Error, ValueError):
        data = b""
    part: dict[str, Any] = {"type": "image", "tokens": IMAGE_TOKENS, "sha256": hashlib.sha256(data).hexdigest()}
    if media := text_of(source.get("media_type")):
        part["media_type"] = media
    if size := image_size(data):
        part |= {"w": size[0], "h": size[1], "tokens": min(IMAGE_TOKENS, -(-size[0] * size[1] // _PIXELS_PER_TOKEN))}
    return part


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG, GIF or JPEG file, from its header."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        w, h = struct.unpack(">II", data[16:24])
        return w, h
    if data[:4] == b"GIF8" and len(data) >= 10:
        w, h = struct.unpack("<HH", data[6:10])
        return w, h
    at = 2
    while data[:2] == b"\xff\xd8" and at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of frame; the others are tables
            h, w = struct.unpack(">HH", data[at + 5 : at + 9])
            return w, h
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _as_json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return "{}"


# -- sizes -----------------------------------------------------------------------------------------------------------


def message_tokens(message: Message, chars_per_token: float) -> int:
    """Estimated size of one message."""
    chars, tokens = 0, MESSAGE_TOKENS
    for part in _parts(message.get("content")):
        chars += len(part.get("text") or "")
        tokens += part.get("tokens") or 0
    for call in message.get("tool_calls") or ():
        chars += len(call["function"]["arguments"])
        tokens += CALL_TOKENS
    return tokens + round(chars / chars_per_token)


def _parts(content: Any) -> list[dict[str, Any]]:
    return content if isinstance(content, list) else [{"text": content or ""}]


def content_size(content: str | list[dict[str, Any]], chars_per_token: float) -> tuple[int, int]:
    """(estimated tokens, bytes) of the content of a message."""
    parts = _parts(content)
    text = "".join(p.get("text") or "" for p in parts)
    images = sum(p.get("tokens") or 0 for p in parts)
    return round(len(text) / chars_per_token) + images, len(text.encode(errors="replace"))


# -- who is waited for -----------------------------------------------------------------------------------------------


def asks_a_person(name: str) -> bool:
    """Whether the tool itself is a question to the user."""
    return name in _ASKS_A_PERSON


def rejected(result: dict[str, Any]) -> bool:
    """Whether a tool result says that the user refused: the wait was for a person."""
    return any(str(b.get("text")).startswith(_REJECTED) for b in _result_blocks(result))


def interrupted(line: Line) -> bool:
    """Whether the line is the client's mark that the user stopped something."""
    return any(str(b.get("text")).startswith(_INTERRUPTED) for b in line.blocks if b.get("type") == "text")


def typed_by_a_person(line: Line) -> bool:
    """Whether the line holds something that the user wrote, not a tool result or text that the client put in."""
    if line.kind != "user" or line.aux or line.flag("isMeta") or line.flag("isCompactSummary") or interrupted(line):
        return False
    texts = [str(b.get("text", "")).lstrip() for b in line.blocks if b.get("type") != "tool_result"]
    injected = ("<local-command-", "<task-notification>", "<system-reminder>", "<bash-stdout>", "<bash-stderr>")
    return any(text and not text.startswith(injected) for text in texts)
