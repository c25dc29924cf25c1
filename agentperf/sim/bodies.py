"""What a body asks for, found without reading it again and again.

Recorded bodies come in parts: a head, a piece of the session's encoded messages that all its turns and plays share, the
play's salt, the rest of the piece, a tail. The messages are read once for each session; a request then costs a few
look-ups, however long its prompt. Sizes and hits are those of `prompt.read_prompt` on the whole body; names of blocks
are runs of chains (`runs.RunPool`): a chain is the prompt of a session, shared with other sessions as far as their
prompts are the same, and what lies behind the salt belongs to the play.
"""

from bisect import bisect_left
from hashlib import blake2b

import msgspec
from msgspec import Raw, Struct

from agentperf.sim.profile import Profile
from agentperf.sim.prompt import (
    HASH_BYTES,
    ChatBody,
    ChatMessage,
    block_bytes,
    hash_blocks,
    message_bytes,
    parse_body,
    prompt_bytes,
    prompt_tokens,
)
from agentperf.sim.runs import Run, clipped
from agentperf.wire.exchange import Body

_STREAM = b'"stream":'
_END_BYTES = 160
_MARKS = b"\x7f~^`|@#%"
_decode_messages = msgspec.json.Decoder(list[Raw]).decode
_decode_message = msgspec.json.Decoder(ChatMessage).decode


class KnownBody(Struct, frozen=True, gc=False):
    """A body as the engine needs it."""

    options: ChatBody
    """All of the request but its messages."""
    tokens: int
    runs: tuple[Run, ...]
    seed: bytes
    """Stands for the whole prompt: seeds what the model does with it."""


class _Tail(Struct, frozen=True):
    """What follows the messages, behind one head."""

    head: bytes
    text: bytes
    options: ChatBody
    tools: int
    """Number of the tool schema."""


class _Chain(Struct):
    """The messages of one buffer under one tool schema, with a mark in the place of the salt."""

    ends: list[int]
    """Offset in the buffer behind each message."""
    sizes: list[int]
    """Bytes of prompt up to there."""
    runs: list[Run]
    shared: int
    """Blocks before the salt."""
    digests: bytes
    """Hashes of all blocks, one behind the other."""


class BodyReader:
    """Knows the bodies of one profile's requests; `read` gives None for a body that has to be read as a whole."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._block = block_bytes(profile)
        self._buffers: dict[int, bytes] = {}
        """Kept, so that no other buffer can take the id of one that is known."""
        self._chains: dict[tuple[int, int, int, int], _Chain | None] = {}
        self._alike: dict[bytes, list[int]] = {}
        """Numbers of the chains that begin with the same block."""
        self._all: list[_Chain] = []
        self._tails: dict[tuple[int, bytes], list[_Tail]] = {}
        """By length and end: comparing two long tails costs less than the hash of one."""
        self._tools: dict[bytes, int] = {}

    def read(self, body: Body) -> KnownBody | None:
        """The body by its parts."""
        if isinstance(body, bytes) or len(body) not in (3, 5):
            return None
        head, view, tail = body[0], body[1], body[-1]
        if not (isinstance(view, memoryview) and isinstance(view.obj, bytes)):
            return None
        if not (isinstance(head, bytes) and isinstance(tail, bytes)):
            return None
        salt, salt_at, length = b"", -1, len(view)
        if len(body) == 5:
            after = body[3]
            if not (isinstance(body[2], bytes) and isinstance(after, memoryview) and after.obj is view.obj):
                return None
            salt, salt_at, length = body[2], len(view), len(view) + len(after)
        known = self._tail(head, tail)
        if known is None:
            return None
        chain = self._chain(view.obj, salt_at, len(salt), known)
        if chain is None:
            return None
        index = bisect_left(chain.ends, length)
        if index == len(chain.ends) or chain.ends[index] != length:
            return None
        size = chain.sizes[index] if index >= 0 else 0
        blocks = size // self._block
        runs = tuple(_owned(chain, blocks, salt))
        seed = blake2b(
            b"%b/%d/%b" % (salt, size, chain.digests[max(0, blocks - 1) * HASH_BYTES : blocks * HASH_BYTES]),
            digest_size=HASH_BYTES,
        ).digest()
        return KnownBody(known.options, prompt_tokens(size, self._profile), runs, seed)

    def _tail(self, head: bytes, tail: bytes) -> _Tail | None:
        alike = self._tails.setdefault((len(tail), tail[-_END_BYTES:]), [])
        for known in alike:
            if known.text == tail and known.head == head:
                return known
        found = self._read_tail(head, tail)
        if found is not None:
            alike.append(found)
        return found

    def _read_tail(self, head: bytes, tail: bytes) -> _Tail | None:
        """All fields of a body but its messages: the tool schema, if there is one, and what comes behind it."""
        at = tail.rfind(_STREAM)
        tools = _read_tools(tail[:at]) if at >= 0 else None
        if tools is None:
            return None
        try:
            options = parse_body(head + b"]," + tail[at:])
        except ValueError:
            return None
        if options.messages or options.tools_json:
            return None
        if tools:
            options.tools = Raw(tools)
        # What a choice of no tools leaves out is no part of the prompt.
        return _Tail(head, tail, options, self._tools.setdefault(options.tools_json, len(self._tools)))

    def _chain(self, buffer: bytes, salt_at: int, salt_bytes: int, tail: _Tail) -> _Chain | None:
        key = (id(buffer), salt_at, salt_bytes, tail.tools)
        if key not in self._chains:
            self._buffers[id(buffer)] = buffer
            self._chains[key] = self._read_chain(buffer, salt_at, salt_bytes, tail.options.tools_json)
        return self._chains[key]

    def _read_chain(self, buffer: bytes, salt_at: int, salt_bytes: int, tools: bytes) -> _Chain | None:
        mark = b""
        data = buffer
        if salt_at >= 0:
            mark = (_MARKS * (salt_bytes // len(_MARKS) + 1))[:salt_bytes]
            data = buffer[:salt_at] + mark + buffer[salt_at:]
        try:
            raws = _decode_messages(b"[" + data + b"]")
            messages = [_decode_message(raw) for raw in raws]
        except ValueError:
            return None
        overhead = round(self._profile.message_overhead_tokens * self._profile.bytes_per_token)
        ends, sizes = [], []
        at, size = -1, len(tools)
        for raw, message in zip(raws, messages, strict=True):
            at += 1 + len(bytes(raw))
            size += len(message_bytes(message, overhead))
            ends.append(at - salt_bytes if salt_at >= 0 and at > salt_at else at)
            sizes.append(size)
        prompt = prompt_bytes(messages, tools, self._profile)
        if at != len(data) or (mark and prompt.count(mark) != 1):
            return None  # there are blanks between the messages, or the mark of the salt is found elsewhere
        shared = prompt.find(mark) // self._block if mark else len(prompt) // self._block
        hashes, _ = hash_blocks(prompt, self._block)
        return self._place(_Chain(ends, sizes, [], shared, b"".join(hashes)))

    def _place(self, chain: _Chain) -> _Chain:
        """Name its blocks: as another chain does, as far as their prompts are the same, and then by its own number."""
        number = len(self._all)
        self._all.append(chain)
        blocks = len(chain.digests) // HASH_BYTES
        if not blocks:
            return chain
        alike = self._alike.setdefault(chain.digests[:HASH_BYTES], [])
        common, model = max(((_common(chain, self._all[other]), -other) for other in alike), default=(0, 0))
        chain.runs = clipped(self._all[-model].runs, 0, common) if common else []
        if common < blocks:
            chain.runs.append((number, common, blocks))
        alike.append(number)
        return chain


def _common(one: _Chain, other: _Chain) -> int:
    """How many first blocks are the same. A hash covers all before it, so equality at one block means all before."""
    low, high = 0, min(len(one.digests), len(other.digests)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        part = slice((middle - 1) * HASH_BYTES, middle * HASH_BYTES)
        if one.digests[part] == other.digests[part]:
            low = middle
        else:
            high = middle - 1
    return low


def _owned(chain: _Chain, blocks: int, salt: bytes) -> list[Run]:
    """Runs of the first `blocks` blocks, those behind the salt under the play's name."""
    runs: list[Run] = []
    for number, start, end in chain.runs:
        stop = min(end, blocks)
        if start >= stop:
            break
        border = max(start, min(stop, chain.shared))
        if start < border:
            runs.append((number, start, border))
        if border < stop:
            runs.append(((salt, number), border, stop))
    return runs


def _read_tools(before: bytes) -> bytes | None:
    """The tool schema between the messages and the other fields, empty for none; None for anything else."""
    if before == b"],":
        return b""
    opening = b'],"tools":'
    if not (before.startswith(opening) and before.endswith(b",")):
        return None
    tools = before[len(opening) : -1]
    try:
        msgspec.json.decode(tools)
    except ValueError:
        return None
    return tools
