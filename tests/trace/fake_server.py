"""Tokenizers and chat templates of made-up servers, unlike each other in every respect that sizing must cope with."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class FakeServer:
    """Counts the tokens of a prompt."""

    pattern: str
    frame: str = "<|start|>{role}\n{text}<|end|>\n"
    open_answer: str = "<|start|>assistant\n"
    tools: Literal["system", "dropped", "wordy"] = "system"
    calls: Literal["json", "spaced", "dropped", "escaped"] = "json"
    results: Literal["own", "user"] = "own"
    trims: bool = False
    special: int = 2
    """Tokens at the start of every prompt."""

    def text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        parts = []
        for at, message in enumerate(messages):
            content = message["content"]
            if self.trims:
                content = content.strip()
            if at == 0 and tools:
                content += self._tools(tools)
            for call in message.get("tool_calls", ()):
                content += self._call(call["function"])
            role = message["role"]
            if role == "tool" and self.results == "user":
                role, content = "user", f"<result>\n{content}\n</result>"
            parts.append(self.frame.format(role=role, text=content))
        return "".join(parts) + self.open_answer

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        if self.tools == "dropped":
            return ""
        if self.tools == "wordy":
            return "\n# Functions\n" + json.dumps(tools, indent=4)
        return "\nTools:\n" + "\n".join(json.dumps(t) for t in tools)

    def _call(self, function: Mapping[str, Any]) -> str:
        arguments = function["arguments"]
        if self.calls == "dropped":
            return ""
        if self.calls == "spaced":
            arguments = json.dumps(json.loads(arguments), indent=1)
        if self.calls == "escaped":
            arguments = json.dumps(arguments)
        return f'\n<call>{{"name": "{function["name"]}", "arguments": {arguments}}}</call>'

    def count(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> int:
        text = self.text(messages, tools)
        specials = len(re.findall(r"<\|\w+\|>", text))
        rest = re.sub(r"<\|\w+\|>", "\n", text)
        return self.special + specials + len(re.findall(self.pattern, rest))


WORDS = r" ?[A-Z]?[a-z]+| ?[A-Z]+|\d{1,3}| ?[^\sA-Za-z\d]+|\s*\n+| +(?= )| "
SHORT = r" ?[A-Za-z]{1,4}|\d|[^\sA-Za-z\d]|\n| "
SYLLABLES = r" ?[^aeiouy\W\d_]*[aeiouy]+[^aeiouy\W\d_]?| ?[A-Za-z]|\d\d?|_|[^\w\s]{1,2}|\n\s*|\s+"
BYTES = r"[\s\S]"

SERVERS = {
    "words": FakeServer(WORDS),
    "words, tools wordy, arguments spaced": FakeServer(WORDS, tools="wordy", calls="spaced"),
    "short pieces, tools dropped": FakeServer(SHORT, tools="dropped", results="user"),
    "short pieces, everything dropped": FakeServer(SHORT, tools="dropped", calls="dropped", trims=True),
    "syllables, long frames": FakeServer(
        SYLLABLES,
        frame="<|begin|><|of|><|header|>{role}<|end|>\n\n{text}<|eot|><|pad|>",
        open_answer="<|begin|>assistant<|end|>\n\n<think>\n",
        special=40,
    ),
    "syllables, arguments escaped": FakeServer(SYLLABLES, calls="escaped", results="user", trims=True),
    "bytes": FakeServer(BYTES),
}
