"""What ops see of the thread that runs them."""

import numpy as np
import pytest

from fa_numba.device.emulator import state
from fa_numba.device.kernel import kernel
from fa_numba.device.ops.declare import instruction
from tests.device.emulator_ops import bar_sync, base, machine_for, op, store, sum_range, tid

pytestmark = pytest.mark.emu


def test_warps_and_lanes():
    seen = []

    @op("void()")
    def look(thread):
        warp = thread.block.warps[thread.warp]
        seen.append((thread.tid, thread.warp, thread.lane, warp.threads[thread.lane] is thread))

    @kernel(block=(10, 7))
    def looks():
        look()

    machine_for(looks)
    assert seen == [(i, i // 32, i % 32, True) for i in range(70)]


def test_the_current_thread_is_the_one_that_runs():
    @op("void()")
    def check(thread):
        assert state.current is thread

    @kernel(block=64)
    def checks():
        check()
        bar_sync(0, 64)
        check()

    for schedule in ("round_robin", "random", "time"):
        machine_for(checks, schedule=schedule)
        assert state.current is None


def test_pure_ops_get_their_values_alone():
    @instruction("", "f32(f32, f32)", since=(5, 0), section="toy")
    def add(x, y):
        return x + y

    seen = []

    @kernel(block=2)
    def adds():
        seen.append(add(tid(), 2))

    for options in ({}, {"schedule": "random"}, {"trace": True}, {"strict": True}):
        machine_for(adds, **options)
    assert seen == [2, 3] * 4 or sorted(seen) == [2] * 4 + [3] * 4
    assert {type(x) for x in seen} == {np.float32}


def test_an_op_that_calls_ops_is_the_op_again_afterwards():
    names = []

    @op("void()")
    def inner(thread):
        names.append(thread.op.name)

    @op("void()")
    def outer(thread):
        names.append(thread.op.name)
        inner()
        names.append(thread.op.name)

    @kernel(block=1)
    def calls():
        outer()

    for options in ({}, {"schedule": "random"}):
        machine_for(calls, **options)
    assert names == ["outer", "inner", "outer"] * 2


def test_what_is_read_is_a_copy():
    @op("void(u32)")
    def changes(thread, address):
        thread.shared_read(address, 4)[:] = 0
        assert thread.shared_read(address, 4).any()

    @kernel(block=1, smem_bytes=16)
    def reads():
        store(base(), 1.0)
        changes(base())
        assert sum_range(base(), 1) == 1.0

    assert machine_for(reads).hazards == []


def test_the_virtual_clock_follows_issue_and_waiting():
    times = {}

    @op("void()", cycles=7)
    def look(thread):
        times.setdefault(thread.tid, []).append(thread.time)

    @kernel(block=64)
    def works():
        if tid() >= 32:
            look()
        bar_sync(0, 64)
        look()

    machine_for(works, trace=True)
    # tid, look, bar_sync, look for the second warp: 1 + 7 + 1 + 7.
    assert times[40] == [8, 16]
    assert times[0] == [16]
