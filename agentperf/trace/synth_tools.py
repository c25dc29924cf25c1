"""The products of the synthetic trace sets: each has its own system prompt size and tool schemas.

All products can do the same kinds of thing (`CLASSES`); names and parameters differ, as they do between real agents, so
that no two products share a prefix. Schemas are in the shape of the OpenAI chat API.
"""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from agentperf.trace.text import EXTENSIONS

CLASSES = ("bash", "test", "read", "write", "edit", "grep", "glob", "ls", "todo", "fetch", "task")
"""What a tool call does. `test` is a run of tests by the tool for commands."""

Schema = dict[str, Any]


@cache
def specs() -> dict[str, Any]:
    """What tools of each class say and take: `{class: {description, properties, required}}`."""
    return dict(msgspec.json.decode(Path(__file__).with_name("filler").joinpath("tools.json").read_bytes()))


@dataclass(frozen=True, slots=True)
class Product:
    """A coding agent: names of its tools by class, and sizes of what it sends with every request."""

    name: str
    system_tokens: int
    tools_tokens: int
    names: dict[str, str]
    renamed: dict[str, str] = field(default_factory=dict)
    """Parameters that this product calls otherwise."""
    brief: bool = False
    """Descriptions of one sentence, none for parameters, no optional parameters."""

    def tools(self) -> list[Schema]:
        """Its tool schemas."""
        return [self._tool(kind, name) for kind, name in self.names.items() if kind != "test"]

    def _tool(self, kind: str, name: str) -> Schema:
        spec = specs()[kind]
        text, properties, required = spec["description"], spec["properties"], spec["required"]
        if self.brief:
            text = text.partition(". ")[0].rstrip(".") + "."
            properties = {k: _bare(v) for k, v in properties.items() if k in required}
        parameters = {
            "type": "object",
            "properties": {self.renamed.get(k, k): v for k, v in properties.items()},
            "required": [self.renamed.get(k, k) for k in required],
            "additionalProperties": False,
        }
        return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}


def _bare(schema: Schema) -> Schema:
    return {k: v for k, v in schema.items() if k != "description"}


def _named(**names: str) -> dict[str, str]:
    """Names by class, the run of tests under that of the tool for commands."""
    return {**names, "test": names["bash"]} if "bash" in names else names


_PLAIN = _named(
    bash="bash",
    read="read",
    write="write",
    edit="edit",
    grep="grep",
    glob="glob",
    ls="ls",
    todo="todo",
    fetch="webfetch",
    task="task",
)
_LONG = _named(
    bash="run_command",
    read="view_file",
    write="create_file",
    edit="replace_in_file",
    grep="search_text",
    glob="find_files",
    ls="list_directory",
    todo="update_plan",
    fetch="read_page",
    task="delegate",
)
_TITLE = _named(
    bash="Shell",
    read="Read",
    write="Write",
    edit="Patch",
    grep="Grep",
    glob="Glob",
    ls="List",
    todo="Todos",
    fetch="WebFetch",
    task="Agent",
)
_CAMEL = {
    "path": "filePath",
    "old_string": "oldString",
    "new_string": "newString",
    "timeout_ms": "timeoutMs",
    "replace_all": "replaceAll",
    "max_chars": "maxChars",
}


def _without(names: dict[str, str], *kinds: str) -> dict[str, str]:
    return {k: v for k, v in names.items() if k not in kinds}


FERN = Product("fern", 3350, 1750, _PLAIN)
QUILL = Product("quill", 4450, 1800, _LONG, {"path": "file_path"})
HARBOR = Product("harbor", 5650, 1800, _TITLE, _CAMEL)
PRODUCTS = (FERN, QUILL, HARBOR)
POCKET = Product("pocket", 320, 480, _without(_PLAIN, "todo", "fetch", "glob"), brief=True)


def helper_of(product: Product) -> Product:
    """The subagent of a product: a prompt of its own, and no tools that change files or start further helpers."""
    small = product.brief
    return Product(
        name=f"{product.name}-helper",
        system_tokens=480 if small else 3950,
        tools_tokens=260 if small else 1050,
        names=_without(product.names, "task", "write", "edit", "todo"),
        renamed=product.renamed,
        brief=small,
    )


LANGUAGE_WEIGHTS = {
    "python": 28,
    "typescript": 16,
    "go": 12,
    "rust": 7,
    "java": 7,
    "javascript": 6,
    "cpp": 5,
    "c": 4,
    "csharp": 4,
    "ruby": 3,
    "php": 3,
    "kotlin": 3,
    "swift": 2,
    "scala": 2,
    "shell": 1,
    "sql": 1,
}
"""Shares of sessions: Python most, then TypeScript and Go, as in the published workload; the rest is ours."""

assert LANGUAGE_WEIGHTS.keys() == EXTENSIONS.keys()
