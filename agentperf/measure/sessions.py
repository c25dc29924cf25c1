"""Whole sessions that agents have completed: protocols may ask for so many of them before a window ends."""

from collections.abc import Iterable

from agentperf.measure.record import Record


class SessionCount:
    """Counts replays of root sessions that were seen from their first turn to their last. Takes records as they end.

    An agent that entered its first session in its middle has not completed it; a play that was given up (the last turn
    never came) is not complete either.
    """

    def __init__(self) -> None:
        self._begun: set[tuple[int, str]] = set()
        self._ended: list[tuple[int, int]] = []

    def take(self, records: Iterable[Record]) -> None:
        """Records in any order within a play; subagents' sessions count for nothing."""
        for r in records:
            if r.session_id != r.root_session_id:
                continue
            play = (r.agent, r.play)
            if r.turn == 0:
                self._begun.add(play)
            if r.ends_session and r.outcome == "ok" and play in self._begun:
                self._ended.append((r.end_ns, r.agent))

    def completed(self, since_ns: int) -> dict[int, int]:
        """Sessions that ended at `since_ns` or later, by agent; agents with none are left out."""
        found: dict[int, int] = {}
        for end_ns, agent in self._ended:
            if end_ns >= since_ns:
                found[agent] = found.get(agent, 0) + 1
        return found
