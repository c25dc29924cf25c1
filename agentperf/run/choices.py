"""What is decided for the user from what the endpoint can do; each choice is a sentence for the manifest."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from agentperf.wire.chat import BodySettings, OutputMode
from agentperf.wire.check import Capabilities

OutputLength = Literal["auto", "natural", "exact", "max"]


@dataclass(frozen=True, slots=True)
class Choices:
    """Body settings and context limit of a run, with the reasons."""

    body: BodySettings
    context_tokens: int | None
    sentences: tuple[str, ...]


def choose(
    found: Capabilities,
    *,
    output: OutputLength,
    context: int | None,
    extra_body: dict[str, Any],
    trust_env: bool,
    cap: int = 16_384,
) -> Choices:
    """Settle what was left open. An explicit wish always wins, and where it is doubtful that is said."""
    said: list[str] = list(found.notes)
    mode: OutputMode
    if output == "auto":
        mode = found.best_output
        why = {
            "honoured": "the server honours ignore_eos",
            "ignored": "the server does not honour ignore_eos",
            "refused": "the server refuses ignore_eos",
            "unknown": "it could not be told whether the server honours ignore_eos",
        }[found.ignore_eos]
        said.append(f"output length: {mode}, since {why}")
    else:
        mode = output
        said.append(f"output length: {mode}, as asked")
        if mode == "exact" and found.ignore_eos != "honoured":
            said.append("ignore_eos is not known to be honoured here: replies may be shorter than recorded")
    if context is not None:
        said.append(f"context: {context} tokens, as asked")
        if found.context_tokens is not None and context > found.context_tokens:
            said.append(f"the server says that it serves {found.context_tokens} tokens only")
    elif found.context_tokens is not None:
        said.append(f"context: {found.context_tokens} tokens, as the server says")
    else:
        said.append("context: the server does not tell it, so no session is cut (give --context to cut them)")
    said.append("proxy variables are obeyed (--trust-env)" if trust_env else "proxy variables are ignored")
    body = found.settings(mode, cap)
    return Choices(
        body=replace(body, extra=extra_body) if extra_body else body,
        context_tokens=context if context is not None else found.context_tokens,
        sentences=tuple(said),
    )
