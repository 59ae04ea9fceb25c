"""Shared memory: poisoned bytes, bounds, alignment, uninitialised reads, races by line."""

import numpy as np
import pytest

from fa_numba.device.emulator import EmulationError
from fa_numba.device.emulator.machine import Machine
from fa_numba.device.emulator.shared import SHARED_BASE
from fa_numba.device.kernel import kernel
from fa_numba.device.types import int32, out_ptr
from tests.device.emulator_ops import (
    bar_sync,
    base,
    load,
    load4,
    machine_for,
    shuffle_xor,
    store,
    store4,
    store_global,
    sum_range,
    the_hazard,
    tid,
    warp_sync,
)

pytestmark = pytest.mark.emu


def test_values_go_through_shared_memory():
    @kernel(block=64, smem_bytes=256)
    def reverse(out: out_ptr):
        t = tid()
        store(base() + 4 * t, t)
        bar_sync(0, 64)
        store_global(out + 4 * t, load(base() + 4 * (63 - t)))

    out = np.empty(64, np.float32)
    machine = machine_for(reverse, args=(out,))
    assert machine.hazards == []
    np.testing.assert_array_equal(out, np.arange(63, -1, -1, np.float32))


def test_the_base_is_aligned_to_16_bytes_and_no_more():
    assert SHARED_BASE % 16 == 0
    assert SHARED_BASE % 32 != 0


def test_a_missing_barrier_after_the_load_is_a_race():
    @kernel(block=64, smem_bytes=256)
    def missing():
        t = tid()
        store(base() + 4 * t, t)
        load(base() + 4 * (63 - t))  # read

    machine = machine_for(missing)
    # Threads 0 to 31 run before their partner has written.
    where = {"block": (0, 0, 0), "thread": 32, "count": 32}
    hazard = the_hazard(machine, "race", missing, "read", "load", ["uninitialised"], **where)
    assert "written by thread 31" in hazard.message
    assert "store at test_emulator_shared.py:" in hazard.message


def test_an_unwritten_byte_is_uninitialised_and_holds_a_nan():
    @kernel(block=32, smem_bytes=256)
    def half_written(out: out_ptr):
        t = tid()
        store(base() + 4 * t, t)
        bar_sync(0, 32)
        store_global(out + 4 * t, load(base() + 8 * t))  # read

    out = np.empty(32, np.float32)
    machine = machine_for(half_written, args=(out,))
    # After a barrier the last to arrive runs first.
    where = {"thread": 31, "count": 16}
    hazard = the_hazard(machine, "uninitialised", half_written, "read", "load", **where)
    assert "offset 248" in hazard.message
    assert np.isnan(out[16:]).all()
    np.testing.assert_array_equal(out[:16], 2.0 * np.arange(16))


def test_a_composite_read_over_one_unwritten_byte():
    @kernel(block=32, smem_bytes=4096)
    def sums(count: int32):
        t = tid()
        for i in range(32):
            if 32 * i + t < count:
                store(base() + 4 * (32 * i + t), 1.0)
        bar_sync(0, 32)
        assert np.isnan(sum_range(base(), 1024)) == (count < 1024)  # read

    assert machine_for(sums, args=(1024,)).hazards == []
    machine = machine_for(sums, args=(1023,))
    hazard = the_hazard(machine, "uninitialised", sums, "read", "sum_range", count=32)
    assert "offset 4092" in hazard.message


def test_a_missing_barrier_before_the_overwrite_is_a_race():
    @kernel(block=64, smem_bytes=256)
    def overwrite(with_barrier: int32):
        t = tid()
        store(base() + 4 * t, t)
        bar_sync(0, 64)
        load(base() + 4 * (63 - t))
        if with_barrier:
            bar_sync(0, 64)
        store(base() + 4 * t, t)  # again

    assert machine_for(overwrite, args=(1,)).hazards == []
    machine = machine_for(overwrite, args=(0,))
    hazard = the_hazard(machine, "race", overwrite, "again", "store", thread=0)
    assert "read by thread 63" in hazard.message
    assert "load at" in hazard.message


def test_vectors_of_16_bytes_conflict_byte_by_byte():
    @kernel(block=64, smem_bytes=32)
    def vectors(shift: int32):
        t = tid()
        if t == 0:
            store4(base(), 1.0)
        bar_sync(0, 64)
        if t == 0:
            store(base() + shift, 0.0)
        elif t == 32:
            load4(base())  # read

    assert machine_for(vectors, args=(16,)).hazards == []
    hazard = the_hazard(machine_for(vectors, args=(12,)), "race", vectors, "read", "load4")
    assert "offset 12)" in hazard.message
    assert "written by thread 0" in hazard.message


def test_warp_sync_orders_the_memory_of_its_lanes_only():
    @kernel(block=64, smem_bytes=256)
    def neighbours(distance: int32):
        t = tid()
        store(base() + 4 * t, t)
        warp_sync(0xFFFFFFFF)
        load(base() + 4 * ((t + distance) % 64 if distance == 32 else t ^ distance))  # read

    assert machine_for(neighbours, args=(1,)).hazards == []
    assert machine_for(neighbours, args=(31,)).hazards == []
    machine = machine_for(neighbours, args=(32,))
    the_hazard(machine, "race", neighbours, "read", "load", ["uninitialised"])


def test_a_shuffle_orders_nothing():
    @kernel(block=32, smem_bytes=128)
    def shuffled(with_sync: int32):
        t = tid()
        store(base() + 4 * t, t)
        if with_sync:
            warp_sync(0xFFFFFFFF)
        else:
            shuffle_xor(1.0, 1)
        load(base() + 4 * (t ^ 1))  # read

    assert machine_for(shuffled, args=(1,)).hazards == []
    the_hazard(machine_for(shuffled, args=(0,)), "race", shuffled, "read", "load")


@pytest.mark.parametrize(("offset", "fits"), [(0, True), (252, True), (256, False), (-4, False)])
def test_a_write_outside_is_reported_and_dropped(offset, fits):
    @kernel(block=32, smem_bytes=256)
    def write(where: int32):
        if tid() == 7:
            store(base() + where, 1.0)  # write

    machine = machine_for(write, args=(offset,))
    if fits:
        assert machine.hazards == []
    else:
        hazard = the_hazard(machine, "out-of-bounds", write, "write", "store", thread=7)
        assert f"writes 4 bytes at {SHARED_BASE + offset:#x}" in hazard.message
        assert "256 bytes of shared memory" in hazard.message


def test_a_read_outside_ends_the_launch():
    @kernel(block=32, smem_bytes=256)
    def read():
        load(base() + 256 - 4 * (31 - tid()))  # read

    machine = Machine()
    with pytest.raises(EmulationError, match=r"out-of-bounds.*thread 31.*reads 4 bytes") as error:
        machine.launch(read, 1, ())
    the_hazard(machine, "out-of-bounds", read, "read", "load", ["uninitialised"], thread=31)
    assert "# read" in str(error.value)
    # The machine is usable after it.
    machine.launch(kernel(block=32, smem_bytes=512)(read.function), 1, ())


def test_a_range_outside_ends_the_launch():
    @kernel(block=32, smem_bytes=256)
    def read():
        sum_range(base() + 4, 64)  # read

    with pytest.raises(EmulationError, match="reads 256 bytes"):
        machine_for(read)


@pytest.mark.parametrize("offset", [0, 16, 4, 8])
def test_a_misaligned_vector_is_reported(offset):
    @kernel(block=32, smem_bytes=1024)
    def misaligned(offset: int32):
        if tid() == 3:
            store4(base() + offset, 1.0)  # write
            load4(base() + offset)  # read

    machine = machine_for(misaligned, args=(offset,))
    if offset % 16 == 0:
        assert machine.hazards == []
        return
    for mark, op in (("write", "store4"), ("read", "load4")):
        hazard = the_hazard(machine, "misaligned", misaligned, mark, op, thread=3)
        assert "no multiple of 16" in hazard.message


def test_a_barrier_settles_what_came_before_for_exited_threads_too():
    """A thread that has returned came to no barrier: what it wrote stays unordered."""

    @kernel(block=64, smem_bytes=256)
    def exits():
        t = tid()
        store(base() + 4 * t, t)
        if t < 32:
            return
        bar_sync(1, 32)
        load(base() + 4 * (t - 32))  # read

    hazard = the_hazard(machine_for(exits), "race", exits, "read", "load", count=32)
    assert "written by thread" in hazard.message
