"""The KV pools against a slow model, and the pool of runs against the pool of blocks."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentperf.sim.kv import Holding, KvPool, Pool
from agentperf.sim.runs import Run, RunPool


def runs(*names: str) -> list[Run]:
    """`a0 a1 b2` as runs."""
    found: list[Run] = []
    for name in names:
        chain, at = name[0], int(name[1:])
        if found and found[-1][0] == chain and found[-1][2] == at:
            found[-1] = (chain, found[-1][1], at + 1)
        else:
            found.append((chain, at, at + 1))
    return found


def named(pool: Pool, *names: str) -> Any:
    return list(names) if isinstance(pool, KvPool) else runs(*names)


def match(pool: Any, *names: str) -> int:
    return int(pool.match(named(pool, *names), len(names)))


def use(pool: Pool, *names: str) -> Holding:
    """Take blocks and name them all."""
    holding = pool.admit(named(pool, *names), len(names), len(names))
    assert holding is not None
    pool.publish(holding, named(pool, *names), 0, len(names))
    return holding


POOLS = pytest.mark.parametrize("make", [KvPool, RunPool])


@POOLS
def test_evicts_the_least_recently_released_and_tails_first(make: Any) -> None:
    pool = make(4)
    pool.release(use(pool, "a0", "a1"), 0)
    pool.release(use(pool, "b0", "b1"), 0)
    assert (pool.resident, pool.in_use) == (4, 0)
    assert pool.allocate(1)
    assert match(pool, "a0", "a1") == 1  # the tail of the older one went
    assert match(pool, "b0", "b1") == 2
    assert pool.allocate(1)
    assert match(pool, "a0", "a1") == 0
    assert not pool.allocate(3)
    assert pool.resident == 4


@POOLS
def test_a_use_makes_a_block_recent(make: Any) -> None:
    pool = make(2)
    pool.release(use(pool, "a0"), 0)
    pool.release(use(pool, "b0"), 0)
    pool.release(use(pool, "a0"), 0)
    pool.allocate(1)
    assert match(pool, "a0") == 1
    assert match(pool, "b0") == 0


@POOLS
def test_pinned_blocks_stay(make: Any) -> None:
    pool = make(2)
    first, second = use(pool, "a0"), use(pool, "a0")
    pool.release(first, 0)
    assert pool.allocate(1)
    assert not pool.allocate(1)
    assert match(pool, "a0") == 1
    pool.release(second, 1)
    assert (pool.in_use, pool.resident) == (0, 1)


@POOLS
def test_publish_of_a_taken_name_stays_private(make: Any) -> None:
    pool = make(4)
    names = named(pool, "a0", "a1")
    one, two = (pool.admit(names, 2, 2) for _ in range(2))
    pool.publish(one, names, 0, 1)
    pool.publish(two, names, 0, 2)
    assert (one.count, two.count) == (1, 1)
    assert (pool.private, pool.in_use) == (2, 4)
    pool.release(two, 1)
    pool.release(one, 1)
    assert (pool.private, pool.in_use, pool.resident) == (0, 0, 2)


@POOLS
def test_pinning_idle_blocks_takes_of_what_is_free(make: Any) -> None:
    pool = make(4)
    pool.release(use(pool, "a0", "a1"), 0)
    use(pool, "b0", "b1")
    assert pool.admit(named(pool, "a0", "a1"), 2, 3) is None
    assert pool.admit(named(pool, "a0", "a1"), 2, 2) is not None


_sequences = st.lists(
    st.tuples(
        st.sampled_from(["admit", "publish", "grow", "release"]),
        st.integers(0, 3),  # which sequence
        st.integers(0, 2),  # which chain follows the shared one
        st.integers(0, 4),  # where it branches off
        st.integers(1, 9),  # how many blocks
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(capacity=st.integers(4, 24), actions=_sequences)
def test_both_pools_agree_at_every_moment(capacity: int, actions: list[tuple[str, int, int, int, int]]) -> None:
    pools: tuple[KvPool, RunPool] = (KvPool(capacity), RunPool(capacity))
    every = [f"s{i}" for i in range(5)] + [f"{c}{i}" for c in "xyz" for i in range(10)]
    live: dict[int, tuple[list[str], list[Holding], int, int]] = {}
    for action, slot, chain, branch, size in actions:
        if action == "admit" and slot not in live:
            names = [f"s{i}" if i < branch else f"{'xyz'[chain]}{i}" for i in range(size)]
            holdings = [p.admit(named(p, *names), size - 1, size) for p in pools]
            assert (holdings[0] is None) == (holdings[1] is None)
            if holdings[0] is not None and holdings[1] is not None:
                live[slot] = (names, [holdings[0], holdings[1]], size, holdings[0].count)
        elif slot in live:
            names, held, blocks, done = live[slot]
            if action == "publish":
                for pool, holding in zip(pools, held, strict=True):
                    pool.publish(holding, named(pool, *names), done, min(done + size, len(names)))
                live[slot] = (names, held, blocks, min(done + size, len(names)))
            elif action == "grow":
                fits = [pool.allocate(size) for pool in pools]
                assert fits[0] is fits[1]
                live[slot] = (names, held, blocks + size * fits[0], done)
            elif action == "release":
                for pool, holding in zip(pools, held, strict=True):
                    pool.release(holding, blocks - holding.count)
                del live[slot]
        for _, (one, other), _, _ in live.values():
            assert one.count == other.count
        assert pools[0].private == pools[1].private
        assert pools[0].in_use == pools[1].in_use
        assert pools[0].resident == pools[1].resident <= capacity
        here = [{name for name in every if _resident(p, name)} for p in pools]
        assert here[0] == here[1]
    for _, held, blocks, _ in live.values():
        for pool, holding in zip(pools, held, strict=True):
            pool.release(holding, blocks - holding.count)
    assert [p.in_use for p in pools] == [0, 0]


def _resident(pool: KvPool | RunPool, name: str) -> bool:
    if isinstance(pool, KvPool):
        return name in pool._pinned or name in pool._idle
    at = int(name[1:])
    return any(p.start <= at < p.end for p in pool._chains.get(name[0], ()))


_single = st.lists(st.tuples(st.sampled_from("apru"), st.integers(0, 5), st.integers(1, 3)), max_size=80)


@settings(max_examples=150, deadline=None)
@given(capacity=st.integers(1, 6), actions=_single)
def test_the_block_pool_agrees_with_a_plain_model(capacity: int, actions: list[tuple[str, int, int]]) -> None:
    pool = KvPool(capacity)
    private, pins, idle = 0, dict[int, int](), list[int]()
    held: dict[int, list[Holding]] = {}
    for action, name, count in actions:
        if action == "a":  # allocate
            fits = private + len(pins) + count <= capacity
            assert pool.allocate(count) is fits
            if fits:
                private += count
                while private + len(pins) + len(idle) > capacity:
                    idle.pop(0)
        elif action == "p" and private:  # publish
            holding = Holding()
            pool.publish(holding, [name], 0, 1)
            free = name not in pins and name not in idle
            assert holding.count == int(free)
            if free:
                held.setdefault(name, []).append(holding)
                private -= 1
                pins[name] = 1
        elif action == "u" and (name in pins or name in idle):  # use
            fits = name in pins or private + len(pins) < capacity
            taken = pool.admit([name], 1, 1)
            assert (taken is not None) is fits
            if taken is not None:
                held.setdefault(name, []).append(taken)
                if name in idle:
                    idle.remove(name)
                pins[name] = pins.get(name, 0) + 1
        elif action == "r" and name in pins:  # release
            pool.release(held[name].pop(), 0)
            pins[name] -= 1
            if not pins[name]:
                del pins[name]
                idle.append(name)
        assert pool.in_use == private + len(pins)
        assert pool.resident == private + len(pins) + len(idle) <= capacity
        assert all((pool.match([n], 1) == 1) == (n in pins or n in idle) for n in range(6))
