"""Waits of agents: they end in time, or at once when the level does, and a cancelled one leaves nothing behind."""

import anyio
import pytest

from agentperf.clock import VirtualLoop
from agentperf.replay.stop import StopSign


def run(main: object) -> object:
    return anyio.run(main, backend_options={"loop_factory": VirtualLoop})  # type: ignore[arg-type]


def test_a_wait_takes_its_time_and_the_end_of_the_level_cuts_it_short() -> None:
    async def main() -> list[tuple[str, float]]:
        stop, woke = StopSign(), list[tuple[str, float]]()

        async def sleeper(name: str, delay_s: float) -> None:
            await stop.sleep(delay_s)
            woke.append((name, anyio.current_time()))

        async with anyio.create_task_group() as group:
            for name, delay_s in (("short", 1.0), ("long", 100.0), ("longer", 1000.0)):
                group.start_soon(sleeper, name, delay_s)
            await anyio.sleep(10)
            assert not stop.is_set()
            stop.set()
        assert stop.is_set()
        await stop.sleep(50)
        assert anyio.current_time() == 10.0
        assert not stop._sleepers
        return woke

    assert run(main) == [("short", 1.0), ("long", 10.0), ("longer", 10.0)]


def test_a_cancelled_wait_is_forgotten() -> None:
    async def main() -> None:
        stop = StopSign()
        with anyio.move_on_after(2):
            await stop.sleep(100)
            pytest.fail("it was cancelled")
        assert not stop._sleepers
        stop.set()
        assert anyio.current_time() == 2.0

    run(main)
