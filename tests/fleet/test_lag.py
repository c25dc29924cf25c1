"""Lateness on a fixed grid: a pause weighs as long as it lasts."""

import time
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentperf.clock import VirtualLoop, loop_now_ns, monotonic_ns
from agentperf.fleet import lag
from agentperf.fleet.lag import LagWatch, latenesses


def test_a_pause_counts_for_every_time_of_the_grid_in_it() -> None:
    late, due = latenesses(1_000, 1_000 + 100, tick_ns=20)
    assert late == pytest.approx([100e-9, 80e-9, 60e-9, 40e-9, 20e-9, 0.0])
    assert due == 1_120


def test_before_its_time_nothing_is_late() -> None:
    assert latenesses(1_000, 999, tick_ns=20) == ([], 1_000)


@given(st.integers(0, 10**12), st.integers(0, 10**11), st.integers(1, 10**8))
def test_the_grid_goes_on_behind_now(due: int, pause: int, tick: int) -> None:
    late, following = latenesses(due, due + pause, tick)
    assert due + pause < following <= due + pause + tick
    assert (following - due) % tick == 0
    assert len(late) == min(lag.MOST_AT_ONCE, pause // tick + 1)
    assert all(x >= 0 for x in late)
    assert late[0] == pytest.approx(pause / 1e9)


async def _blocked_for(seconds: float) -> list[float]:
    ended = anyio.Event()
    watch = LagWatch(monotonic_ns)
    found: list[float] = []
    async with anyio.create_task_group() as group:
        group.start_soon(watch.watch, ended)
        await anyio.sleep(0.2)
        found += watch.taken()
        time.sleep(seconds)  # noqa: ASYNC251 - the fault that is to be seen
        await anyio.sleep(0.1)
        found += watch.taken()
        ended.set()
    return found


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel timer", "timer of the loop"])
@pytest.mark.parametrize("uvloop", [True, False])
def test_a_blocked_loop_is_seen(monkeypatch: pytest.MonkeyPatch, *, kernel: bool, uvloop: bool) -> None:
    if not kernel:
        monkeypatch.setattr(lag, "_make_timer", lambda _: None)
    found = anyio.run(_blocked_for, 0.3, backend_options={"use_uvloop": uvloop})
    # 0.3 s are 15 times of the grid, late by 0.3, 0.28, 0.26 ... s
    assert sum(x > 0.015 for x in found) >= 13
    assert max(found) > 0.27
    assert len(found) >= 25


def test_no_descriptor_is_left_open() -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    anyio.run(_blocked_for, 0.0)
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_virtual_time_is_never_late() -> None:
    async def main() -> list[float]:
        ended = anyio.Event()
        watch = LagWatch(loop_now_ns)
        async with anyio.create_task_group() as group:
            group.start_soon(watch.watch, ended)
            await anyio.sleep(10)
            ended.set()
        return watch.taken()

    found = anyio.run(main, backend_options={"loop_factory": VirtualLoop})
    assert len(found) in (500, 501)
    assert max(found) < 1e-6
