"""Trees and a caller for tests of the replay: no network, virtual time."""

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

import anyio

from agentperf.clock import loop_now_ns
from agentperf.replay.bodies import EncodedTree, encode_tree
from agentperf.trace.model import Dependency
from agentperf.trace.render import RenderedSession, RenderedTree, RenderedTurn
from agentperf.wire.exchange import Body, Exchange, whole


def turn(index: int, name: str, messages: list[dict[str, Any]], **changes: Any) -> RenderedTurn:
    fields: dict[str, Any] = {
        "request_id": f"{name}-{index}",
        "index": index,
        "keep_messages": 0,
        "new_messages": tuple(messages),
        "depends_on": (),
        "delay_ms": 1000.0,
        "input_tokens": 100 * (index + 1),
        "cached_tokens": 100 * index,
        "output_tokens": 10,
        "trigger": "tool",
    }
    return RenderedTurn(**{**fields, **changes})


def session(name: str, turns: int, root: str | None = None, **first: Any) -> RenderedSession:
    """System and user message, then in each turn an assistant message and a tool result."""
    made = []
    kept = 0
    for i in range(turns):
        if i == 0:
            new = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": f"Task of {name}"}]
        else:
            call = {"id": f"c{i}", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
            new = [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{i}", "content": f"result {i} of {name}"},
            ]
        made.append(turn(i, name, new, keep_messages=kept, **(first if i == 0 else {})))
        kept += len(new)
    return RenderedSession(session_id=name, root_session_id=root or name, tools=(), turns=tuple(made), salt_message=1)


def tree(name: str, turns: int, *, live: bool = False) -> EncodedTree:
    return encode_tree(RenderedTree((session(name, turns),)), live=live)


def tree_with_subagent(*, live: bool = False) -> EncodedTree:
    """Root turn 1 starts a subagent of two turns; root turn 2 waits for its end."""
    root = session("root", 4)
    child = session("child", 2, root="root", depends_on=(Dependency(request_id="root-1", type="spawn"),), delay_ms=500)
    turns = list(root.turns)
    joined = (Dependency(request_id="root-1"), Dependency(request_id="child-1", type="join"))
    turns[2] = turn(
        2, "root", list(turns[2].new_messages), keep_messages=turns[2].keep_messages, depends_on=joined, delay_ms=0.0
    )
    root = RenderedSession("root", "root", (), tuple(turns), 1)
    return encode_tree(RenderedTree((root, child)), live=live)


def sse(*chunks: dict[str, Any]) -> list[bytes]:
    return [b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks] + [b"data: [DONE]\n\n"]


def reply(text: str = "fine", tokens: int = 10) -> list[dict[str, Any]]:
    """Two visible events and a usage chunk."""
    half = len(text) // 2
    return [
        {"choices": [{"index": 0, "delta": {"content": text[:half]}}]},
        {"choices": [{"index": 0, "delta": {"content": text[half:]}, "finish_reason": "stop"}]},
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": tokens,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        },
    ]


@dataclass
class FakeServer:
    """Answers each request after `ttft_s` with `reply`, the second event `decode_s` later; keeps what it was sent."""

    ttft_s: float = 0.5
    decode_s: float = 1.0
    status: int = 200
    fail_ids: tuple[str, ...] = ()
    hang_ids: tuple[str, ...] = ()
    sent: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    open: int = 0
    peak: int = 0

    async def __call__(self, body: Body, request_id: str) -> Exchange:
        exchange = Exchange(t0_ns=loop_now_ns(), status=200)
        exchange.connected_ns = exchange.sent_ns = exchange.t0_ns
        self.sent.append((exchange.t0_ns, request_id, json.loads(whole(body))))
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            if request_id.endswith(self.hang_ids) and self.hang_ids:
                await anyio.sleep_forever()
            await anyio.sleep(self.ttft_s)
            if request_id.endswith(self.fail_ids) and self.fail_ids:
                exchange.status = 500
                exchange.chunks = [b'{"error": {"message": "broken"}}']
                exchange.stamps = array("q", [loop_now_ns()])
            else:
                parts = sse(*reply())
                exchange.chunks = [parts[0]]
                exchange.stamps = array("q", [loop_now_ns()])
                await anyio.sleep(self.decode_s)
                exchange.chunks.append(b"".join(parts[1:]))
                exchange.stamps.append(loop_now_ns())
        finally:
            self.open -= 1
        exchange.end_ns = loop_now_ns()
        return exchange
