"""The workload of a run: a trace set cut to the served context, its text made at the endpoint's token size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from agentperf.errors import UsageError
from agentperf.replay.bodies import EncodedTree, encode_tree
from agentperf.trace.context import ContextReport, fit_context
from agentperf.trace.io import load
from agentperf.trace.model import SessionTrace, TraceSet
from agentperf.trace.render import RenderedTree, render_tree
from agentperf.trace.sizing import TokenSizes

OnStep = Callable[[int, int], None]


@dataclass(slots=True)
class Workload:
    """What agents will replay, and what was done to it before the run."""

    name: str
    trace_set: TraceSet
    trees: list[list[SessionTrace]]
    context_limit: int | None
    context_rule: Literal["cut", "drop"]
    context: ContextReport
    sizes: TokenSizes | None = None
    rendered: list[RenderedTree] | None = None

    @property
    def digest(self) -> str:
        """The trace set's content digest."""
        return self.trace_set.digest

    @property
    def tree_count(self) -> int:
        """Trees left after the context filter."""
        return len(self.trees)

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        header = self.trace_set.header
        return {
            "id": header.trace_set_id,
            "name": self.name,
            "digest": self.digest,
            "license": header.license,
            "content": header.content,
            "sessions": sum(len(t) for t in self.trees),
            "trees": len(self.trees),
            "requests": sum(len(s.requests) for t in self.trees for s in t),
            "context": msgspec.to_builtins(self.context),
            "context_limit": self.context_limit,
            "sizes": msgspec.to_builtins(self.sizes) if self.sizes is not None else None,
        }


def load_workload(source: str, context_limit: int | None, rule: Literal["cut", "drop"] = "cut") -> Workload:
    """Read a trace set and fit it to the served context. UsageError when nothing is left."""
    trace_set = load(source)
    trees, report = fit_context(trace_set.trees(), context_limit, rule)
    if not trees:
        raise UsageError(
            f"no session of {source} fits a context of {context_limit} tokens",
            "serve a longer context, or choose another --traces",
        )
    return Workload(source, trace_set, trees, context_limit, rule, report)


def render(workload: Workload, sizes: TokenSizes, on_step: OnStep = lambda _done, _of: None) -> list[RenderedTree]:
    """Make the text of every session."""
    workload.sizes = sizes
    rendered: list[RenderedTree] = []
    for number, tree in enumerate(workload.trees):
        on_step(number, len(workload.trees))
        rendered.append(render_tree(tree, workload.trace_set.blobs, sizes, workload.trace_set.header))
    on_step(len(workload.trees), len(workload.trees))
    workload.rendered = rendered
    return rendered


def encode(rendered: list[RenderedTree], *, live: bool) -> list[EncodedTree]:
    """Encode every body ahead of time."""
    return [encode_tree(tree, live=live) for tree in rendered]
