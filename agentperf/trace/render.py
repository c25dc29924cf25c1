"""Sessions made ready to send: messages with text, in the shape of the OpenAI chat API (dialects translate from it).

Recorded messages are passed on untouched. Where a file holds sizes only, text is made for them: see `render_shape.py`
(segments) and `render_blocks.py` (hashes of blocks). The same tree and sizes give the same text in any process, and
the messages of a turn are a prefix of the next one's wherever the recording kept its prefix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentperf.errors import TraceError
from agentperf.trace.model import (
    Append,
    Dependency,
    Header,
    Message,
    Request,
    Session,
    SessionTrace,
    Shape,
    Splice,
)
from agentperf.trace.render_blocks import Blocks, BlockText, block_pieces, blocks_of, covering
from agentperf.trace.render_pieces import Frame, Piece, common_start, measured, total
from agentperf.trace.render_shape import keep_pieces, shape_pieces, system_piece
from agentperf.trace.sizing import TokenSizes

__all__ = ["RenderedSession", "RenderedTree", "RenderedTurn", "render_tree"]


@dataclass(frozen=True, slots=True)
class RenderedTurn:
    """One model call. Its prompt is the first `keep_messages` of the previous turn's prompt, then `new_messages`."""

    request_id: str
    index: int
    keep_messages: int
    new_messages: tuple[Message, ...]
    depends_on: tuple[Dependency, ...]
    delay_ms: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    trigger: str


@dataclass(frozen=True, slots=True)
class RenderedSession:
    """One session of a tree; `salt_message` is the index of the message that takes the cache salt (first user one)."""

    session_id: str
    root_session_id: str
    tools: tuple[dict[str, Any], ...]
    turns: tuple[RenderedTurn, ...]
    salt_message: int
    shared_tokens: int = 0
    """Predicted tokens before the salt, the system prompt and tools: what plays of one product have in common."""


@dataclass(frozen=True, slots=True)
class RenderedTree:
    """What one play replays: the root session first, then its subagents."""

    sessions: tuple[RenderedSession, ...]

    @property
    def root_session_id(self) -> str:
        """Name of the tree."""
        return self.sessions[0].root_session_id


@dataclass(slots=True)
class _Prompt:
    """A prompt as the next ones need it."""

    pieces: list[Piece]
    blocks: Blocks | None = None
    head: int = 0
    """Messages in front that the recording's own message counts leave out: the session's system prompt."""


def render_tree(
    tree: Sequence[SessionTrace], blobs: Mapping[str, Any], sizes: TokenSizes, header: Header
) -> RenderedTree:
    """All sessions of a tree with their text, sized for the endpoint that `sizes` were measured on.

    `RenderedTurn.input_tokens` is what the prompt is predicted to cost there: for shapes the recorded size, for
    recorded messages an estimate from their characters. Raises TraceError when a blob that is named is missing.
    """
    forks = {s.session.spawn.by_request_id for s in tree if s.session.spawn and s.session.spawn.kind == "fork"}
    forked: dict[str, _Prompt] = {}
    sessions = []
    for item in tree:
        spawn = item.session.spawn
        parent = forked.get(spawn.by_request_id) if spawn and spawn.kind == "fork" else None
        sessions.append(_Renderer(item, blobs, sizes, header, parent).render(forks, forked))
    return RenderedTree(tuple(sessions))


class _Renderer:
    """Renders one session, request by request."""

    def __init__(
        self,
        item: SessionTrace,
        blobs: Mapping[str, Any],
        sizes: TokenSizes,
        header: Header,
        parent: _Prompt | None,
    ) -> None:
        session = item.session
        self.session = session
        self.requests = item.requests
        self.frame = _frame(session, blobs, sizes, header)
        self.system = _system(session, blobs, self.frame)
        self.before = parent or _Prompt([])
        self.prompts = blocks_of(item.requests, self.before.blocks)
        self.block_size = header.block_size or 1
        scope = {"session": session.root_session_id, "global": "global"}.get(
            header.hash_scope or "", f"file {header.trace_set_id}"
        )
        self.text = BlockText(scope, self.block_size, self.frame)

    def render(self, forks: set[str], forked: dict[str, _Prompt]) -> RenderedSession:
        turns: list[RenderedTurn] = []
        unfit: set[int] = set()
        first: list[Piece] = []
        for at, request in enumerate(self.requests):
            prompt, keep = self._prompt(at, request)
            # the first turn of a fork sends what it inherited, but no earlier turn of its session did
            sent = keep if at else 0
            turns.append(self._turn(at, request, prompt, keep, sent))
            first = first or prompt.pieces
            unfit |= _cannot_be_salted(prompt.pieces)
            if request.request_id in forks:
                forked[request.request_id] = prompt
            self.before = prompt
        salt_message = _salt_message(turns, unfit)
        return RenderedSession(
            session_id=self.session.session_id,
            root_session_id=self.session.root_session_id,
            tools=self.frame.tools,
            turns=tuple(turns),
            salt_message=salt_message,
            shared_tokens=round(total(self.frame, first[:salt_message])) if salt_message > 0 else 0,
        )

    def _turn(self, at: int, request: Request, prompt: _Prompt, keep: int, sent: int) -> RenderedTurn:
        tokens = round(total(self.frame, prompt.pieces))
        return RenderedTurn(
            request_id=request.request_id,
            index=request.index,
            keep_messages=sent,
            new_messages=tuple(p.message for p in prompt.pieces[sent:]),
            depends_on=_dependencies(self.session, self.requests, at),
            delay_ms=request.delay_ms,
            input_tokens=tokens,
            cached_tokens=min(tokens, self._cached(request, prompt, keep)),
            output_tokens=request.output_tokens,
            trigger=request.trigger,
        )

    def _cached(self, request: Request, prompt: _Prompt, keep: int) -> int:
        """The ideal prefix hit: as given for shapes; for recorded text, whose sizes are this endpoint's, as kept."""
        if request.prefix_tokens_ideal is not None and isinstance(request.input, Shape):
            return request.prefix_tokens_ideal
        return round(total(self.frame, prompt.pieces[:keep])) if keep else 0

    def _prompt(self, at: int, request: Request) -> tuple[_Prompt, int]:
        """The prompt of a request, and how many messages it shares with the one before (or the fork's origin)."""
        given = request.input
        if not isinstance(given, Shape):
            return self._recorded(request)
        if given.segments:
            pieces = keep_pieces(self.before.pieces, given.keep_segments) if given.keep_segments else []
            if not pieces and given.segments[0].role != "system":
                pieces = self._head(request)
            pieces = [*pieces, *shape_pieces(request, given.segments, pieces, self.system, self.frame)]
            prompt = _Prompt(pieces, self.prompts[at])
            return prompt, common_start(pieces, self.before.pieces)
        if self.prompts[at] is not None:
            return self._hashed(at, request)
        pieces = list(self.before.pieces[: given.keep_segments or 0])  # a size and nothing else
        return _Prompt([*pieces, *shape_pieces(request, [], pieces, self.system, self.frame)]), len(pieces)

    def _head(self, request: Request) -> list[Piece]:
        """The system prompt that stands before the recorded messages. Helper calls go without it."""
        if request.trigger == "side":
            return []
        if self.system is not None:
            return [self.system]
        tokens = (self.session.system_tokens or 0) + (self.session.tools_tokens or 0)
        fits = request.trigger != "compaction" or tokens < request.input_tokens
        return [system_piece(self.frame, tokens)] if self.session.system_tokens and fits else []

    def _recorded(self, request: Request) -> tuple[_Prompt, int]:
        given = request.input
        assert not isinstance(given, Shape)
        before, head = self.before.pieces, self.before.head
        if isinstance(given, Append) and before:
            start = before
        elif isinstance(given, Splice) and before:
            start = before[: head + given.keep_messages]
        else:
            own = bool(given.messages) and given.messages[0].get("role") in ("system", "developer")
            start = [] if own else self._head(request)
            head = len(start)
        pieces = list(start)
        for message in given.messages:
            pieces.append(measured(message, self.frame, first=not pieces))
        return _Prompt(pieces, head=head), common_start(pieces, before)

    def _hashed(self, at: int, request: Request) -> tuple[_Prompt, int]:
        blocks = self.prompts[at]
        assert blocks is not None
        before = self.before.blocks
        common = 0
        if before is not None:
            same = common_blocks(before, blocks)
            whole = same == len(before.hashes) and blocks.tokens >= before.tokens
            common = before.tokens if whole else same * self.block_size
        kept, new = block_pieces(
            covering(self.prompts, at, self.block_size),
            request.input_tokens,
            common,
            self.requests[at - 1].output_tokens if at else 0,
            self.before.pieces if before is not None else [],
            (self.session.system_tokens or 0) + (self.session.tools_tokens or 0),
            self.frame,
            self.text,
        )
        return _Prompt([*self.before.pieces[:kept], *new], blocks), kept


def common_blocks(a: Blocks, b: Blocks) -> int:
    """Leading whole blocks that two prompts share."""
    return next(
        (i for i, (x, y) in enumerate(zip(a.hashes, b.hashes, strict=False)) if x != y),
        min(len(a.hashes), len(b.hashes)),
    )


def _frame(session: Session, blobs: Mapping[str, Any], sizes: TokenSizes, header: Header) -> Frame:
    tools = tuple(_blob(blobs, session.tools_ref, session)) if session.tools_ref is not None else ()
    return Frame(
        sizes=sizes,
        language=session.language or "",
        tools=tools,
        tools_ref=session.tools_ref,
        shared=f"product {session.product}" if session.product else f"session {session.session_id}",
        seed=f"{header.trace_set_id} {session.session_id} {session.seed}",
    )


def _system(session: Session, blobs: Mapping[str, Any], frame: Frame) -> Piece | None:
    if session.system_ref is None:
        return None
    text = _blob(blobs, session.system_ref, session)
    return measured({"role": "system", "content": text}, frame, first=True)


def _blob(blobs: Mapping[str, Any], ref: str, session: Session) -> Any:
    try:
        return blobs[ref]
    except KeyError:
        raise TraceError(f"session {session.session_id}: blob {ref} is not in the trace set") from None


def _dependencies(session: Session, requests: Sequence[Request], at: int) -> tuple[Dependency, ...]:
    """What the request waits for, the defaults of the format put in."""
    given = requests[at].depends_on
    if given is not None:
        return tuple(given)
    if at:
        return (Dependency(request_id=requests[at - 1].request_id),)
    return (Dependency(request_id=session.spawn.by_request_id, type="spawn"),) if session.spawn else ()


def _cannot_be_salted(pieces: Sequence[Piece]) -> set[int]:
    """Messages without text, at the start of which no salt can be put."""
    return {i for i, p in enumerate(pieces) if not isinstance(p.message.get("content"), str | list)}


def _salt_message(turns: Sequence[RenderedTurn], unfit: set[int]) -> int:
    """The first user message of the first turn; -1 when there is nothing that can take a salt in every prompt.

    A later prompt of the session that begins otherwise takes the salt at the same place. Where some prompt has no text
    there, the next place is taken, or at last one before it. One too short to have the place at all (a helper call
    that makes a title) is sent without a salt.
    """
    messages = turns[0].new_messages if turns else ()
    first = next((i for i, m in enumerate(messages) if m.get("role") == "user"), 0)
    places = [*range(first, len(messages)), *range(first - 1, -1, -1)]
    return next((i for i in places if i not in unfit), -1)
