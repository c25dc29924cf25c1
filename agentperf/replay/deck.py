"""Which session an agent plays next, where it enters its first one, and the cache salt of a play. All seeded."""

import hashlib
import random
from collections.abc import Iterator

from agentperf.replay.bodies import EncodedTree
from agentperf.replay.settings import ReplaySettings

SALT_CHARS = 10
"""40 bits: two of ten thousand plays share a salt with a chance of 1 in 20,000. A character costs up to a token."""


def seeded(*parts: object) -> random.Random:
    """A generator that depends on the parts alone, the same in every process."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def deal(sessions: int, seed: int, probe: int, offset: int = 0, stride: int = 1) -> Iterator[int]:
    """An endless shuffle of the whole set, again and again; a worker of several takes every `stride`-th card."""
    generator = seeded("deck", seed, probe)
    position = 0
    while True:
        cards = list(range(sessions))
        generator.shuffle(cards)
        for card in cards:
            if position % stride == offset:
                yield card
            position += 1


def entry_turn(tree: EncodedTree, seed: int, probe: int, agent: int) -> int:
    """Turn of the root session at which an agent enters its first play, so that N agents do not start as one."""
    return seeded("entry", seed, probe, agent).randrange(len(tree.sessions[0].turns))


def start_share(seed: int, probe: int, agent: int) -> float:
    """Share [0, 1) of the spread that an agent waits before its first turn."""
    return seeded("start", seed, probe, agent).random()


def salt_text(settings: ReplaySettings, probe: int, play: str) -> bytes:
    """The salt of a play as JSON-safe ASCII, of one length in every play, so that prompt sizes do not vary with it."""
    scope = {"play": f"{probe}/{play}", "level": str(probe), "run": "", "none": None}[settings.salt]
    if scope is None:
        return b""
    digest = hashlib.sha256(f"{settings.run_id}|{settings.seed}|{scope}".encode()).hexdigest()
    return f"[{digest[:SALT_CHARS]}] ".encode()
