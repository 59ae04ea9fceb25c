"""Schedules: every thread runs, in the order asked for, the same again for the same seed."""

import sys

import numpy as np
import pytest

from fa_numba.device.emulator import Deadlock, state
from fa_numba.device.emulator.executor import SCHEDULES
from fa_numba.device.emulator.machine import Machine
from fa_numba.device.kernel import kernel
from fa_numba.device.types import out_ptr
from tests.device.emulator_ops import (
    bar_sync,
    base,
    load,
    machine_for,
    op,
    shuffle_xor,
    store,
    store_global,
    tid,
    warp_sync,
)

pytestmark = pytest.mark.emu


def recorded(num_ops, **options):
    """Return which thread executed each op of a kernel of 4 threads, in order."""
    order = []

    @op("void()")
    def step(thread):
        order.append(thread.tid)

    @op("void()", cycles=10)
    def slow_step(thread):
        order.append(thread.tid)

    @kernel(block=4)
    def steps():
        for _ in range(num_ops):
            slow_step() if tid() == 0 else step()

    assert machine_for(steps, **options).hazards == []
    return order


def test_round_robin_runs_a_thread_until_it_must_wait():
    assert recorded(3) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_random_interrupts_and_depends_on_the_seed_alone():
    orders = [recorded(20, schedule="random", seed=seed) for seed in range(6)]
    assert all(sorted(order) == [0] * 20 + [1] * 20 + [2] * 20 + [3] * 20 for order in orders)
    assert len({tuple(order) for order in orders}) == 6
    # Somebody is interrupted in the middle.
    assert any(order != sorted(order, key=order.index) for order in orders)
    assert recorded(20, schedule="random", seed=3) == orders[3]


def test_time_runs_who_is_behind():
    order = recorded(10, schedule="time")
    # A turn of thread 0 takes 11 cycles, index and step; one of the others 2.
    first = order.index(0)
    second = order.index(0, first + 1)
    others = [order[first:second].count(t) for t in (1, 2, 3)]
    assert all(5 <= count <= 6 for count in others), order


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_same_result_under_every_schedule(schedule):
    @kernel(block=96, smem_bytes=384)
    def mixed(out: out_ptr):
        t = tid()
        total = float(t)
        for i in range(1, 4):
            store(base() + 4 * t, total)
            bar_sync(0, 96)
            total += load(base() + 4 * ((t + 7 * i) % 96))
            total += shuffle_xor(total, i)
            bar_sync(0, 96)
        store_global(out + 4 * t, total)

    results = []
    for seed in range(4):
        out = np.zeros(96, np.float32)
        assert machine_for(mixed, args=(out,), schedule=schedule, seed=seed).hazards == []
        results.append(out)
    expected = np.arange(96, dtype=np.float32)
    for i in range(1, 4):
        expected = expected + np.roll(expected, -7 * i)
        expected = expected + expected[np.arange(96) ^ i]
    for out in results:
        np.testing.assert_array_equal(out, expected)


def test_no_false_alarm_in_100_seeds():
    """Everything that orders memory, used rightly, under random interruption."""

    @kernel(block=64, smem_bytes=512)
    def clean(out: out_ptr):
        t = tid()
        for i in range(3):
            store(base() + 4 * t, t + i)
            warp_sync(0xFFFFFFFF)
            value = load(base() + 4 * (t ^ 5))
            bar_sync(1 + t // 32, 32)
            store(base() + 256 + 4 * t, value)
            bar_sync(0, 64)
            value = shuffle_xor(load(base() + 256 + 4 * (63 - t)), 3)
            bar_sync(0, 64)
        store_global(out + 4 * t, value)

    expected = ((63 - np.arange(64)) ^ 5 ^ 3) + 2
    for seed in range(100):
        out = np.zeros(64, np.float32)
        assert machine_for(clean, args=(out,), schedule="random", seed=seed).hazards == []
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_kernel_that_raises_ends_the_launch(schedule):
    @kernel(block=64)
    def fails():
        bar_sync(0, 64)
        if tid() == 5:
            raise KeyError("oops")
        bar_sync(0, 64)

    machine = Machine(schedule=schedule)
    with pytest.raises(KeyError, match="oops") as error:
        machine.launch(fails, 1, ())
    assert error.value.__notes__ == ["in kernel fails, block (0, 0, 0), thread 5"]
    assert state.current is None
    # The threads left behind are gone, and the machine is usable.
    machine.launch(kernel(block=64)(lambda: bar_sync(0, 64)), 1, ())


def test_after_a_deadlock_the_machine_is_usable():
    @kernel(block=64)
    def stuck():
        if tid() < 32:
            bar_sync(0, 64)

    cleaned = []

    @kernel(block=32)
    def cleans():
        try:
            if tid() == 0:
                bar_sync(0, 32)
        finally:
            cleaned.append(tid.name)

    machine = Machine()
    for broken in (stuck, cleans):
        with pytest.raises(Deadlock):
            machine.launch(broken, 1, ())
    assert len(cleaned) == 32
    machine.launch(kernel(block=64)(lambda: bar_sync(0, 64)), 1, ())
    assert machine.hazards == []


def test_numpy_does_not_warn_in_kernels():
    @kernel(block=2)
    def overflow(out: out_ptr):
        x = np.float32(3e38) * np.float32(10)
        bar_sync(0, 2)
        store_global(out + 4 * tid(), (x - x) / np.float32(0))

    out = np.zeros(2, np.float32)
    machine_for(overflow, args=(out,))
    assert np.isnan(out).all()


def test_many_threads_and_many_waits_need_no_stack():
    """Threads hand over to each other: depth must not grow with their number."""

    @kernel(block=1024)
    def waits():
        for _ in range(3):
            bar_sync(0, 1024)

    assert sys.getrecursionlimit() <= 3000
    assert machine_for(waits).hazards == []
    assert machine_for(waits, schedule="random").hazards == []


def test_greenlet_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "greenlet", None)
    with pytest.raises(ImportError, match=r"pip install .fa_numba\[emulator\]"):
        Machine()
