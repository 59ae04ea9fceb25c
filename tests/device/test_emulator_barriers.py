"""Named barriers and warp meetings: who waits, what is ordered, what is divergent."""

import numpy as np
import pytest

from fa_numba.device.emulator import Deadlock, EmulationError
from fa_numba.device.emulator.machine import Machine
from fa_numba.device.kernel import kernel
from fa_numba.device.types import int32, out_ptr
from tests.device.emulator_ops import (
    bar_arrive,
    bar_sync,
    base,
    exchange,
    line_of,
    load,
    machine_for,
    shuffle_xor,
    store,
    store_global,
    the_hazard,
    tid,
    warp_sync,
)

pytestmark = pytest.mark.emu


def test_named_barriers_are_apart():
    """Two halves of a block meet at different barriers, often, and never wait for each other."""

    @kernel(block=128, smem_bytes=512)
    def halves():
        t = tid()
        half = t // 64
        for _ in range(3 + 4 * half):
            store(base() + 4 * t, t)
            bar_sync(1 + half, 64)
            load(base() + 4 * (64 * half + (t + 1) % 64))
            bar_sync(1 + half, 64)

    assert machine_for(halves).hazards == []
    assert machine_for(halves, schedule="random", seed=3).hazards == []


def test_a_barrier_orders_those_who_come_to_it_only():
    @kernel(block=128, smem_bytes=512)
    def halves():
        t = tid()
        store(base() + 4 * t, t)
        bar_sync(1 + t // 64, 64)
        if t == 0:
            load(base() + 4 * 63)
            load(base() + 4 * 64)  # read

    machine = machine_for(halves, schedule="random", seed=1)
    the_hazard(machine, "race", halves, "read", "load", ["uninitialised"], thread=0)


def test_arrive_releases_and_does_not_wait():
    """Producer and consumer: each arrives at the other's barrier (a ping-pong of two warps)."""

    @kernel(block=64, smem_bytes=128)
    def ping_pong(out: out_ptr, producer_waits: int32):
        t = tid()
        for i in range(4):
            if t < 32:
                if i > 0 and producer_waits:
                    bar_sync(2, 64)
                store(base() + 4 * t, 10 * i + t)  # write
                bar_arrive(1, 64)
            else:
                bar_sync(1, 64)
                store_global(out + 4 * (32 * i + t - 32), load(base() + 4 * (t - 32)))
                if i < 3:
                    bar_arrive(2, 64)

    for schedule in ("round_robin", "random", "time"):
        out = np.zeros((4, 32), np.float32)
        machine = machine_for(ping_pong, args=(out, 1), schedule=schedule)
        assert machine.hazards == []
        expected = 10.0 * np.arange(4)[:, None] + np.arange(32)
        np.testing.assert_array_equal(out, expected.astype(np.float32))

    with pytest.raises(Deadlock):
        # Without the wait the producer arrives twice where the consumer has not been.
        machine_for(ping_pong, args=(np.zeros((4, 32), np.float32), 0))


def test_an_arrival_does_not_acquire():
    @kernel(block=64, smem_bytes=128)
    def one_way():
        t = tid()
        if t >= 32:
            store(base() + 4 * (t - 32), t)
            bar_sync(1, 64)
        else:
            bar_arrive(1, 64)
            load(base() + 4 * t)  # read

    machine = machine_for(one_way)
    reports = {(h.kind, h.line) for h in machine.hazards}
    # The reader runs first here, so the writer's side is reported.
    assert {kind for kind, _ in reports} == {"uninitialised", "race"}


def test_an_arrive_too_few_is_a_deadlock_that_says_who_waits_where():
    @kernel(block=128, smem_bytes=16)
    def too_few():
        t = tid()
        if t < 32:
            bar_arrive(1, 128)
        elif t >= 64:
            bar_sync(1, 128)  # wait

    with pytest.raises(Deadlock) as error:
        machine_for(too_few)
    report = str(error.value)
    assert "deadlock in kernel too_few" in report
    assert "block (0, 0, 0), threads 64-127 (64) wait at barrier" in report
    assert "barrier 1, 96 of 128 threads arrived" in report
    assert f"test_emulator_barriers.py:{line_of(too_few, 'wait')}: bar_sync(1, 128)" in report
    assert "threads 0-63 (64) have finished" in report


def test_a_barrier_in_a_divergent_branch_is_a_deadlock():
    @kernel(block=64)
    def divergent():
        if tid() % 2:
            bar_sync(0, 64)  # wait

    with pytest.raises(Deadlock, match=r"32 of 64 threads arrived"):
        machine_for(divergent)


def test_a_barrier_in_both_branches_is_divergent():
    @kernel(block=64)
    def divergent():
        if tid() % 2:
            bar_sync(0, 64)  # odd
        else:
            bar_sync(0, 64)  # even

    machine = machine_for(divergent)
    hazard = the_hazard(machine, "divergent-barrier", divergent, "odd", "bar_sync", thread=1)
    assert f":{line_of(divergent, 'even')}:" in hazard.message
    assert "another lane of warp 0" in hazard.message


def test_different_warps_may_come_from_different_places():
    @kernel(block=64)
    def by_warp():
        if tid() < 32:
            bar_sync(0, 64)
        else:
            bar_sync(0, 64)

    assert machine_for(by_warp).hazards == []


def test_a_barrier_that_half_a_warp_completes_is_divergent():
    @kernel(block=64)
    def halves(both: int32):
        t = tid()
        if t % 32 < 16 or both:
            bar_sync(1, 32 * (1 + both))  # sync

    assert machine_for(halves, args=(1,)).hazards == []
    machine = machine_for(halves, args=(0,))
    hazard = the_hazard(machine, "divergent-barrier", halves, "sync", "bar_sync", count=2)
    assert "16 of the 32 lanes of warp 0" in hazard.message


@pytest.mark.parametrize(("number", "count"), [(16, 32), (0, 33), (0, 0), (0, 1056)])
def test_a_barrier_that_does_not_exist(number, count):
    @kernel(block=64)
    def wrong(number: int32, count: int32):
        bar_sync(number, count)  # sync

    machine = Machine()
    with pytest.raises(EmulationError, match="barriers 0 to 15"):
        machine.launch(wrong, 1, (number, count))
    the_hazard(machine, "barrier", wrong, "sync", "bar_sync")


def test_a_barrier_with_two_counts():
    @kernel(block=64)
    def counts():
        bar_sync(0, 64 if tid() < 32 else 32)  # sync

    machine = machine_for(counts)
    hazard = the_hazard(machine, "barrier", counts, "sync", "bar_sync", thread=32)
    assert "for 32 threads, after others came to it for 64" in hazard.message


def test_a_whole_block_that_is_no_multiple_of_a_warp_can_meet():
    @kernel(block=48, smem_bytes=192)
    def meets(out: out_ptr):
        t = tid()
        store(base() + 4 * t, t)
        bar_sync(0, 48)
        store_global(out + 4 * t, shuffle_xor(load(base() + 4 * (47 - t)), 1))

    out = np.zeros(48, np.float32)
    assert machine_for(meets, args=(out,)).hazards == []
    np.testing.assert_array_equal(out, 47 - (np.arange(48) ^ 1))


def test_lanes_exchange_values():
    @kernel(block=64)
    def quad_sum(out: out_ptr):
        t = tid()
        x = shuffle_xor(float(t), 1) + t
        x = shuffle_xor(x, 2) + x
        store_global(out + 4 * t, x)

    for options in ({}, {"schedule": "random", "seed": 5}, {"schedule": "time"}):
        out = np.zeros(64, np.float32)
        assert machine_for(quad_sum, args=(out,), **options).hazards == []
        quads = np.arange(64).reshape(16, 4).sum(axis=1)
        np.testing.assert_array_equal(out, np.repeat(quads, 4))


def test_a_shuffle_in_a_branch_is_a_deadlock():
    @kernel(block=32)
    def branch():
        if tid() < 16:
            shuffle_xor(1.0, 1)  # shuffle
        bar_sync(0, 32)

    with pytest.raises(Deadlock) as error:
        machine_for(branch)
    assert "threads 0-15 (16) wait at warp: 16 of 32 lanes arrived" in str(error.value)
    assert f":{line_of(branch, 'shuffle')}:" in str(error.value)


def test_a_shuffle_in_both_branches_is_divergent():
    @kernel(block=32)
    def branches():
        if tid() < 16:
            shuffle_xor(1.0, 1)
        else:
            shuffle_xor(1.0, 1)  # second

    machine = machine_for(branches)
    the_hazard(machine, "divergent-barrier", branches, "second", "shuffle_xor", thread=16)


def test_a_shuffle_waits_for_no_lane_that_has_returned():
    @kernel(block=32)
    def leaves(out: out_ptr):
        t = tid()
        if t >= 16:
            return
        store_global(out + 4 * t, shuffle_xor(float(t), 1))

    for schedule in ("round_robin", "random"):
        out = np.zeros(16, np.float32)
        assert machine_for(leaves, args=(out,), schedule=schedule).hazards == []
        np.testing.assert_array_equal(out, np.arange(16) ^ 1)


def test_disjoint_masks_meet_apart():
    @kernel(block=32)
    def halves(out: out_ptr):
        t = tid()
        mask = 0xFFFF if t < 16 else 0xFFFF0000
        store_global(out + 4 * t, exchange(float(t), mask))
        warp_sync(mask)

    out = np.zeros(32, np.float32)
    assert machine_for(halves, args=(out,)).hazards == []
    np.testing.assert_array_equal(out, np.repeat([0 + 120, 16 * 16 + 120], 16))


def test_a_mask_without_the_calling_lane():
    @kernel(block=32)
    def wrong():
        exchange(1.0, 0xFFFF)  # shuffle

    machine = Machine()
    with pytest.raises(EmulationError, match="leaves out the calling lane 16"):
        machine.launch(wrong, 1, ())
    the_hazard(machine, "shuffle-lane", wrong, "shuffle", "exchange", thread=16)
