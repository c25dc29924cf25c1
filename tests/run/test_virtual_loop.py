"""The loop of virtual time: order, cancelled timers, signals and threads."""

import asyncio
import os
import signal
import threading
import time
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agentperf.clock import VirtualLoop, loop_now_ns


def run(main: Any) -> Any:
    return anyio.run(main, backend_options={"loop_factory": VirtualLoop})


def test_timers_fire_in_order_of_due_time_then_of_setting() -> None:
    async def main() -> list[tuple[str, float]]:
        loop, fired = asyncio.get_running_loop(), list[tuple[str, float]]()

        def note(name: str) -> None:
            fired.append((name, loop.time()))

        loop.call_later(2.0, note, "later")
        for name in "abc":
            loop.call_at(1.0, note, name)
        loop.call_later(3.0, note, "cancelled").cancel()
        loop.call_soon(note, "now")
        await anyio.sleep(5)
        return fired

    assert run(main) == [("now", 0.0), ("a", 1.0), ("b", 1.0), ("c", 1.0), ("later", 2.0)]


def test_a_timer_in_the_past_does_not_turn_the_clock_back() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        await anyio.sleep(3)
        done = loop.create_future()
        loop.call_at(1.0, done.set_result, None)
        await done
        return loop.time()

    assert run(main) == 3.0


def test_deadlines_that_were_not_needed_do_not_pile_up() -> None:
    async def main() -> int:
        for _ in range(5000):
            with anyio.move_on_after(1e6):
                await anyio.sleep(0.001)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return len(loop._timers)

    assert run(main) < 1000


def test_time_is_exact_over_many_sleeps() -> None:
    async def main() -> int:
        for _ in range(1000):
            await anyio.sleep(0.25)
        return loop_now_ns()

    assert run(main) == 250_000_000_000


@pytest.mark.parametrize("busy", [True, False])
def test_a_signal_is_heard_while_it_runs_and_while_it_waits(busy: bool) -> None:
    async def main() -> str:
        heard = anyio.Event()

        async def listen(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            with anyio.open_signal_receiver(signal.SIGUSR1) as signals:
                task_status.started()
                async for _ in signals:
                    heard.set()
                    return

        async with anyio.create_task_group() as group:
            await group.start(listen)
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            while busy and not heard.is_set():  # noqa: ASYNC110 - the loop is to be busy
                await anyio.sleep(1.0)
            await heard.wait()
        return "heard"

    assert run(main) == "heard"


def test_a_thread_can_be_waited_for() -> None:
    async def main() -> int:
        return await anyio.to_thread.run_sync(lambda: (time.sleep(0.05), 7)[1])

    assert run(main) == 7


def test_errors_of_callbacks_reach_the_handler() -> None:
    async def main() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _, context: seen.append(str(context["exception"])))
        loop.call_soon(lambda: 1 // 0)
        await anyio.sleep(1)
        return seen

    assert run(main) == ["integer division or modulo by zero"]
