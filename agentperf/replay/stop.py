"""The end of a level as its agents see it: an event that also ends their waits."""

import asyncio


class StopSign:
    """Set once. A wait of an agent is one timer of the loop, with no task or scope of its own."""

    __slots__ = ("_set", "_sleepers")

    def __init__(self) -> None:
        self._set = False
        self._sleepers: dict[asyncio.Future[None], None] = {}
        # In the order in which they began to wait, so that equal runs wake alike.

    def is_set(self) -> bool:
        """Whether the level is to end."""
        return self._set

    def set(self) -> None:
        """End the level: all who sleep wake up."""
        self._set = True
        for sleeper in list(self._sleepers):
            _wake(sleeper)

    async def sleep(self, delay_s: float) -> None:
        """Wait so long, or until the level is to end."""
        if self._set:
            return
        loop = asyncio.get_running_loop()
        sleeper = loop.create_future()
        timer = loop.call_later(delay_s, _wake, sleeper)
        self._sleepers[sleeper] = None
        try:
            await sleeper
        finally:
            timer.cancel()
            self._sleepers.pop(sleeper, None)


def _wake(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)
