"""One agent: a simulated user in closed loop. Issue a turn, drain it, wait the recorded time, issue the next.

A play replays one tree: its sessions run side by side, each turn starting when the turns that it depends on are
complete and its recorded wait is over. After the play the agent takes another.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import cast

import anyio
import anyio.lowlevel

from agentperf.clock import NowNs
from agentperf.replay.bodies import EncodedSession, EncodedTree, EncodedTurn, recorded_body
from agentperf.replay.deck import entry_turn, salt_text, start_share
from agentperf.replay.history import LiveHistory
from agentperf.replay.settings import ReplaySettings
from agentperf.replay.stop import StopSign
from agentperf.replay.turns import TurnResult
from agentperf.wire import chat, failures
from agentperf.wire.exchange import Caller, Exchange, size
from agentperf.wire.outcome import Outcome

ENDS_PLAY = frozenset({failures.CONTEXT_OVERFLOW})
"""After these the rest of the session cannot succeed either: the agent takes another one."""


@dataclass(slots=True)
class Level:
    """What the agents of one probe share. `on_turn` is called once a request, after its stream has closed."""

    probe: int
    caller: Caller
    settings: ReplaySettings
    trees: list[EncodedTree]
    deck: Iterator[int]
    now_ns: NowNs
    on_turn: Callable[[TurnResult], None]
    spread_s: float = 0.0
    stop: StopSign = field(default_factory=StopSign)
    open_since: dict[str, int] = field(default_factory=dict)
    """Requests that are open now, by id, with their t0."""
    waiting: int = 0
    """Agents (or subagents) in a recorded wait now."""

    async def wait_until(self, due_ns: int) -> bool:
        """Sleep until `due_ns`; False when the level was stopped meanwhile."""
        delay = (due_ns - self.now_ns()) / 1e9
        if delay > 0 and not self.stop.is_set():
            self.waiting += 1
            try:
                await self.stop.sleep(delay)
            finally:
                self.waiting -= 1
        return not self.stop.is_set()


class _Play:
    """The state of one play: which requests are complete, and when the last one was."""

    def __init__(self, level: Level, agent: int, name: str, tree: EncodedTree, start_turn: int) -> None:
        self.level = level
        self.agent = agent
        self.name = name
        self.tree = tree
        self.salt = salt_text(level.settings, level.probe, name)
        self.head = chat.body_head(level.settings.body)
        self.abandoned = False
        self.start_turn = start_turn
        self.began_ns = level.now_ns()
        self.known = frozenset(t.request_id for s in tree.sessions for t in s.turns)
        self.done_ns: dict[str, int] = {}
        self.completed: dict[str, anyio.Event] = {}
        """Of turns that somebody waits for."""
        self.skipped = self._skipped()
        self.pending = set(self.known - self.skipped)
        self.done_ns.update(dict.fromkeys(self.skipped, self.began_ns))

    def _skipped(self) -> set[str]:
        """Turns before the entry point, and the subagents that they had started."""
        skipped = {t.request_id for t in self.tree.sessions[0].turns[: self.start_turn]}
        for session in self.tree.sessions[1:]:
            if session.turns and any(d in skipped for d in session.turns[0].depends_on):
                skipped.update(t.request_id for t in session.turns)
        return skipped

    def _complete(self, request_id: str) -> None:
        # Of what was sent the end of its stream counts: decoding it and waking its agent is delay of our own making.
        self.done_ns.setdefault(request_id, self.level.now_ns())
        self.pending.discard(request_id)
        if request_id in self.completed:
            self.completed[request_id].set()

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            for session in self.tree.sessions[1:]:
                group.start_soon(self._session, session)
            await self._session(self.tree.sessions[0])

    async def _session(self, session: EncodedSession) -> None:
        live = LiveHistory(session, self.salt) if self.level.settings.history == "live" else None
        for position, turn in enumerate(session.turns):
            if turn.request_id in self.skipped:
                if live is not None:
                    live.add_turn(turn)
                continue
            due_ns = await self._ready(session, turn, position)
            if due_ns is None:
                break
            if live is not None:
                live.add_turn(turn)
            outcome = await self._send(session, turn, live, due_ns)
            if outcome.outcome != "ok":
                if outcome.error_class in ENDS_PLAY or live is not None:
                    self.abandoned = True
                    break
                pause_ns = round(self.level.settings.failure_pause_s * 1e9)
                if not await self.level.wait_until(self.level.now_ns() + pause_ns):
                    break
            self._complete(turn.request_id)
        for turn in session.turns:  # nobody may wait for ever for what will not come
            if turn.request_id in self.pending:
                self._complete(turn.request_id)

    async def _ready(self, session: EncodedSession, turn: EncodedTurn, position: int) -> int | None:
        """Wait for the turn's dependencies and its recorded delay; its due time, or None when it is not to be sent."""
        depends_on = turn.depends_on or ([session.turns[position - 1].request_id] if position else [])
        known = [d for d in depends_on if d in self.known]
        for dependency in known:
            if dependency in self.pending:
                await self.completed.setdefault(dependency, anyio.Event()).wait()
        if self.abandoned or self.level.stop.is_set():
            return None
        last_ns = max((self.done_ns[d] for d in known), default=self.began_ns)
        due_ns = last_ns + round(turn.delay_ms * 1e6 * self.level.settings.time_scale)
        return due_ns if await self.level.wait_until(due_ns) else None

    async def _send(self, session: EncodedSession, turn: EncodedTurn, live: LiveHistory | None, due_ns: int) -> Outcome:
        level = self.level
        tail = chat.body_tail(level.settings.body, session.tools, turn.output_tokens)
        parts = (self.head, tail)
        body = live.body(*parts) if live is not None else recorded_body(session, turn, self.salt, *parts)
        request_id = f"{level.settings.run_id}-{level.probe}-{self.name}-{turn.request_id}"
        level.open_since[request_id] = level.now_ns()
        try:
            exchange = await level.caller(body, request_id)
            outcome = await _decode(exchange)
        except anyio.get_cancelled_exc_class():
            exchange = Exchange(t0_ns=level.open_since[request_id], end_ns=level.now_ns())
            outcome = Outcome("truncated", error_class=failures.CUT, error="the level ended before the reply did")
            self._hand_on(request_id, session, turn, exchange, outcome, due_ns, size(body))
            raise
        finally:
            level.open_since.pop(request_id, None)
        if live is not None:
            live.answered(outcome.message)
        self._hand_on(request_id, session, turn, exchange, outcome, due_ns, size(body))
        if outcome.outcome == "ok":
            self.done_ns[turn.request_id] = exchange.end_ns
        return outcome

    def _expected_cached(self, session: EncodedSession, turn: EncodedTurn) -> int:
        """The ideal hit of this turn in this play: what the play sent before, and what all plays share.

        Where the agent entered the session in its middle, its first turn has none of the history that was recorded.
        """
        entered = session is self.tree.sessions[0] and turn.index == session.turns[self.start_turn].index
        own = 0 if entered else turn.cached_tokens
        return min(turn.input_tokens, max(own, session.shared_tokens))

    def _hand_on(
        self,
        request_id: str,
        session: EncodedSession,
        turn: EncodedTurn,
        exchange: Exchange,
        outcome: Outcome,
        due_ns: int,
        body_bytes: int,
    ) -> None:
        self.level.on_turn(
            TurnResult(
                request_id=request_id,
                agent=self.agent,
                play=self.name,
                session_id=session.session_id,
                root_session_id=session.root_session_id,
                turn=turn.index,
                due_ns=min(due_ns, exchange.t0_ns),
                exchange=exchange,
                outcome=outcome,
                body_bytes=body_bytes,
                expected_prompt_tokens=turn.input_tokens,
                expected_cached_tokens=self._expected_cached(session, turn),
                target_output_tokens=turn.output_tokens,
                ends_session=turn is session.turns[-1],
            )
        )


async def _decode(exchange: Exchange) -> Outcome:
    """Fold the reply, other streams being read between the steps; the end of the level does not cut it off."""
    steps = chat.fold_steps(exchange)
    outcome = _step(steps)
    if outcome is not None:
        return outcome
    with anyio.CancelScope(shield=True):
        while outcome is None:
            await anyio.lowlevel.checkpoint()
            outcome = _step(steps)
    assert outcome is not None
    return outcome


def _step(steps: Generator[None, None, Outcome]) -> Outcome | None:
    try:
        next(steps)
    except StopIteration as end:
        return cast("Outcome", end.value)
    return None


async def run_agent(level: Level, agent: int) -> None:
    """Play sessions until the level is stopped; an open request is always drained first."""
    due_ns = level.now_ns() + round(level.spread_s * start_share(level.settings.seed, level.probe, agent) * 1e9)
    if not await level.wait_until(due_ns):
        return
    number = 0
    while not level.stop.is_set():
        tree = level.trees[next(level.deck)]
        start = entry_turn(tree, level.settings.seed, level.probe, agent) if number == 0 else 0
        await _Play(level, agent, f"a{agent}p{number}", tree, start).run()
        number += 1
