"""Small rendered sessions for the tests of the simulator."""

import random
from typing import Any

from agentperf.trace.render import RenderedSession, RenderedTree, RenderedTurn

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command. " * 20,
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    },
)


def text(generator: random.Random, tokens: int) -> str:
    """ASCII text of four characters a token."""
    return "".join(generator.choice("abcdefgh ") for _ in range(4 * tokens))


def session(name: str, seed: int, *, turns: int | None = None, output: tuple[int, int] = (20, 80)) -> RenderedTree:
    """Like one of the smoke set: 4-8 turns, prompts of 1k-8k tokens, waits of 0.05-0.4 s."""
    generator = random.Random(seed)
    system = "You are a careful coding agent. " * 60
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system},
        {"role": "user", "content": text(generator, generator.randrange(400, 1800))},
    ]
    made: list[RenderedTurn] = []
    size = 0
    for index in range(turns or generator.randrange(4, 9)):
        new = tuple(messages)
        size += sum(len(str(m["content"])) // 4 + 4 for m in new)
        made.append(
            RenderedTurn(
                request_id=f"{name}-{index}",
                index=index,
                keep_messages=0 if index == 0 else made[-1].keep_messages + len(made[-1].new_messages),
                new_messages=new,
                depends_on=(),
                delay_ms=0.0 if index == 0 else 1000 * generator.uniform(0.05, 0.4),
                input_tokens=size,
                cached_tokens=0,
                output_tokens=generator.randint(*output),
                trigger="user" if index == 0 else "tool",
            )
        )
        messages = [
            {"role": "assistant", "content": text(generator, 50)},
            {"role": "user", "content": text(generator, generator.randrange(100, 900))},
        ]
    return RenderedTree((RenderedSession(name, name, TOOLS, tuple(made), 1),))


def smoke_like(sessions: int = 12) -> list[RenderedTree]:
    """A dozen of them."""
    return [session(f"s{i}", i) for i in range(sessions)]
