"""The KV pool against a slow model of itself."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agentperf.sim.kv import KvPool


def test_evicts_the_least_recently_released_and_tails_first() -> None:
    pool = KvPool(4)
    assert pool.allocate(2)
    assert pool.publish("a1")
    assert pool.publish("a2")
    pool.release(["a1", "a2"], 0)
    assert pool.allocate(2)
    pool.publish("b1")
    pool.publish("b2")
    pool.release(["b1", "b2"], 0)
    assert pool.resident == 4
    assert pool.in_use == 0
    assert pool.allocate(1)
    assert pool.match(["a1", "a2"], 2) == 1  # the tail of the older one went
    assert pool.match(["b1", "b2"], 2) == 2
    assert pool.allocate(1)
    assert pool.match(["a1", "a2"], 2) == 0
    assert not pool.allocate(3)
    assert pool.resident == 4


def test_a_use_makes_a_block_recent() -> None:
    pool = KvPool(2)
    pool.allocate(2)
    pool.publish("a")
    pool.publish("b")
    pool.release(["a"], 0)
    pool.release(["b"], 0)
    pool.pin(["a"])
    pool.release(["a"], 0)
    pool.allocate(1)
    assert pool.match(["a"], 1) == 1
    assert pool.match(["b"], 1) == 0


def test_pinned_blocks_stay() -> None:
    pool = KvPool(2)
    pool.allocate(2)
    pool.publish("a")
    pool.pin(["a"])
    pool.release(["a"], 0)
    assert not pool.allocate(1)
    assert pool.match(["a"], 1) == 1
    pool.release(["a"], 1)
    assert pool.in_use == 0
    assert pool.resident == 1


def test_publish_of_a_taken_hash_stays_private() -> None:
    pool = KvPool(3)
    pool.allocate(2)
    assert pool.publish("a")
    assert not pool.publish("a")
    assert (pool.private, pool.in_use) == (1, 2)


_actions = st.lists(st.tuples(st.sampled_from("apru"), st.integers(0, 5), st.integers(1, 3)), max_size=80)


@settings(max_examples=150, deadline=None)
@given(capacity=st.integers(1, 6), actions=_actions)
def test_agrees_with_a_plain_model(capacity: int, actions: list[tuple[str, int, int]]) -> None:
    pool = KvPool(capacity)
    private, pins, idle = 0, dict[int, int](), list[int]()
    for action, name, count in actions:
        if action == "a":  # allocate
            fits = private + len(pins) + count <= capacity
            assert pool.allocate(count) is fits
            if fits:
                private += count
                while private + len(pins) + len(idle) > capacity:
                    idle.pop(0)
        elif action == "p" and private:  # publish
            free = name not in pins and name not in idle
            assert pool.publish(name) is free
            if free:
                private -= 1
                pins[name] = 1
        elif action == "u" and (name in pins or name in idle):  # use
            pool.pin([name])
            if name in idle:
                idle.remove(name)
            pins[name] = pins.get(name, 0) + 1
        elif action == "r" and name in pins:  # release
            pool.release([name], 0)
            pins[name] -= 1
            if not pins[name]:
                del pins[name]
                idle.append(name)
        assert pool.in_use == private + len(pins)
        assert pool.resident == private + len(pins) + len(idle) <= capacity
        assert all((pool.match([n], 1) == 1) == (n in pins or n in idle) for n in range(6))
