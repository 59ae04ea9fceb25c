"""Global memory: addresses of arrays, bounds, strided views, outputs, writers of one byte."""

import numpy as np
import pytest

from fa_numba.device.emulator import EmulationError
from fa_numba.device.emulator.machine import Machine
from fa_numba.device.kernel import kernel
from fa_numba.device.types import inout_ptr, int32, int64, out_ptr, ptr
from tests.device.emulator_ops import (
    bar_sync,
    block_x,
    load_global,
    load_global4,
    machine_for,
    store_global,
    the_hazard,
    tid,
)

pytestmark = pytest.mark.emu


@kernel(block=32)
def copy_rows(x: ptr, out: out_ptr, cols: int32, x_stride: int64, out_stride: int64):
    """Copy a row a block."""
    for i in range(tid(), cols, 32):
        value = load_global(x + block_x() * x_stride + 4 * i)
        store_global(out + block_x() * out_stride + 4 * i, value)  # write


def copy_args(x, out):
    return (x, out, x.shape[1], x.strides[0], out.strides[0])


def filled(rows, cols):
    return np.arange(rows * cols, dtype=np.float32).reshape(rows, cols)


def test_blocks_write_an_output():
    x, out = filled(5, 40), np.zeros((5, 40), np.float32)
    machine = machine_for(copy_rows, 5, copy_args(x, out))
    assert machine.hazards == []
    np.testing.assert_array_equal(out, x)


def test_addresses_are_64_bits_and_apart():
    seen = []

    @kernel(block=1)
    def addresses(a: ptr, b: ptr, c: ptr):
        seen.extend([a, b, c])

    a, b = np.zeros(64, np.float32), np.zeros(3, np.uint8)
    machine_for(addresses, args=(a, b, a[5:]))
    assert min(seen) > 1 << 40
    assert len({address >> 20 for address in seen}) == 3
    # What is aligned in NumPy is aligned in the emulator.
    for address, array in zip(seen, (a, b, a[5:]), strict=True):
        assert address % 256 == array.ctypes.data % 256


def test_strided_views_have_gaps():
    whole_x, whole_out = filled(5, 60), np.zeros((5, 50), np.float32)
    x, out = whole_x[:, 7:47], whole_out[:, 3:43]
    machine = machine_for(copy_rows, 5, copy_args(x, out))
    assert machine.hazards == []
    np.testing.assert_array_equal(out, x)
    assert (whole_out[:, :3] == 0).all()

    # One column more than the view has.
    args = (x, out, 41, x.strides[0], out.strides[0])
    machine = Machine()
    with pytest.raises(
        EmulationError, match=r"out-of-bounds.*byte 160 of argument 'x', which lies"
    ):
        machine.launch(copy_rows, 5, args)


def test_views_with_negative_and_zero_strides():
    seen = []

    @kernel(block=1)
    def corners(x: ptr, row: int64, col: int64):
        seen.append([load_global(x + i * row + j * col) for i in (0, 3) for j in (0, 4)])

    base = filled(4, 5)
    for view in (base, base[::-1], base[:, ::-1], base[::-1, ::-1], base.T.copy().T):
        machine_for(corners, args=(view, *view.strides))
        assert seen.pop() == [view[0, 0], view[0, 4], view[3, 0], view[3, 4]]
    wide = np.broadcast_to(base[:1], (4, 5))
    machine_for(corners, args=(wide, *wide.strides))
    assert seen.pop() == [wide[0, 0], wide[0, 4], wide[0, 0], wide[0, 4]]


@pytest.mark.parametrize("offset", [-40, 160, 4 << 20, -(1 << 40)])
def test_a_read_outside_ends_the_launch(offset):
    @kernel(block=32)
    def read(x: ptr, offset: int64):
        load_global(x + 4 * tid() + (offset if tid() == 9 else 0))  # read

    x = filled(1, 32)
    machine = Machine()
    with pytest.raises(EmulationError, match=r"out-of-bounds.*thread 9: reads 4 bytes"):
        machine.launch(read, 1, (x, offset))
    hazard = the_hazard(machine, "out-of-bounds", read, "read", "load_global", thread=9)
    if offset == -40:
        assert "4 bytes before 'x'" in hazard.message
    if offset == 160:
        assert f"{160 + 36} bytes into 'x', which has 128" in hazard.message


def test_a_row_too_far_is_reported_and_dropped():
    x, whole = filled(6, 32), np.zeros((6, 32), np.float32)
    out = whole[:5]
    machine = machine_for(copy_rows, 6, copy_args(x, out))
    where = {"block": (5, 0, 0), "count": 32}
    op = "store_global"
    hazard = the_hazard(machine, "out-of-bounds", copy_rows, "write", op, **where)
    assert "640 bytes into 'out', which has 640" in hazard.message
    assert (whole[5] == 0).all()


def test_a_32_bit_offset_lands_nowhere():
    """An offset that wraps at 32 bits points below the array."""

    @kernel(block=32)
    def offset(x: ptr, out: out_ptr, row: int32, stride: int32):
        store_global(out + 4 * tid(), load_global(x + int32(row * stride) + 4 * tid()))  # read

    machine = Machine()
    args = (filled(4, 32), np.zeros(32, np.float32), 3, 1 << 30)
    with pytest.raises(EmulationError, match=r"reads 4 bytes at 0x.*outside every argument"):
        machine.launch(offset, 1, args)


def test_misaligned_vectors():
    @kernel(block=4)
    def vectors(x: ptr, offset: int32):
        load_global4(x + offset + 16 * tid())  # read

    x = np.zeros(64, np.float32)
    x = x[-x.ctypes.data % 16 // 4 :]
    assert machine_for(vectors, args=(x, 16)).hazards == []
    machine = machine_for(vectors, args=(x, 8))
    hazard = the_hazard(machine, "misaligned", vectors, "read", "load_global4", thread=0, count=4)
    assert "byte 8 of argument 'x'" in hazard.message
    # An array that itself lies askew.
    machine = machine_for(vectors, args=(x[1:], 0))
    the_hazard(machine, "misaligned", vectors, "read", "load_global4", count=4)


def test_an_unwritten_row():
    x, out = filled(5, 40), np.zeros((5, 40), np.float32)
    machine = machine_for(copy_rows, 4, copy_args(x, out))
    (hazard,) = machine.hazards
    assert hazard.kind == "unwritten"
    assert "40 of 200 elements of output 'out' were not written; the first is [4, 0]" in str(hazard)
    assert (hazard.block, hazard.thread) == (None, None)
    assert hazard.line == copy_rows.function.__code__.co_firstlineno


def test_unwritten_elements_of_a_strided_view():
    x = filled(5, 40)
    out = np.zeros((5, 50), np.float32)[::-1, 4:44]
    machine = machine_for(copy_rows, 5, (x, out, 39, x.strides[0], out.strides[0]))
    (hazard,) = machine.hazards
    assert "5 of 200 elements" in hazard.message
    assert "the first is [0, 39]" in hazard.message
    assert machine_for(copy_rows, 5, copy_args(x, out)).hazards == []


def test_half_an_element_is_not_written():
    @kernel(block=1)
    def half(out: out_ptr):
        store_global(out, 1.0)

    machine = machine_for(half, args=(np.zeros(1, np.float64),))
    assert "1 of 1 elements" in machine.hazards[0].message


def test_empty_outputs_are_written():
    @kernel(block=1)
    def nothing(out: out_ptr, x: ptr, y: inout_ptr):
        pass

    empty = np.zeros((0, 4), np.float32)
    assert machine_for(nothing, args=(empty, empty, empty)).hazards == []


def test_two_writers_of_one_byte_in_a_block():
    @kernel(block=64)
    def twice(out: out_ptr, ordered: int32):
        t = tid()
        store_global(out + 4 * t, 1.0)
        if ordered:
            bar_sync(0, 64)
        store_global(out + 4 * (63 - t), 2.0)  # again

    assert machine_for(twice, args=(np.zeros(64, np.float32), 1)).hazards == []
    machine = machine_for(twice, args=(np.zeros(64, np.float32), 0))
    also = ["double-write"]
    hazard = the_hazard(machine, "double-write", twice, "again", "store_global", also, thread=32)
    assert "byte 124 of argument 'out', written by thread 31 (store_global at" in hazard.message


def test_two_writers_of_one_byte_in_two_blocks():
    @kernel(block=32)
    def overlap(out: out_ptr, rows: int32):
        store_global(out + 4 * (rows * block_x() + tid()), 1.0)  # write

    assert machine_for(overlap, 3, (np.zeros(96, np.float32), 32)).hazards == []
    machine = machine_for(overlap, 3, (np.zeros(95 - 1, np.float32), 31))
    where = {"block": (1, 0, 0), "thread": 0, "count": 2}
    hazard = the_hazard(machine, "double-write", overlap, "write", "store_global", **where)
    assert "written by thread 31 of block (0, 0, 0)" in hazard.message


def test_a_thread_may_write_its_own_byte_twice():
    @kernel(block=32)
    def twice(out: out_ptr):
        store_global(out + 4 * tid(), 1.0)
        store_global(out + 4 * tid(), load_global(out + 4 * tid()) + 1.0)

    out = np.zeros(32, np.float32)
    assert machine_for(twice, args=(out,)).hazards == []
    assert (out == 2).all()


def test_reading_what_another_thread_writes():
    @kernel(block=64)
    def neighbours(x: inout_ptr, ordered: int32):
        t = tid()
        store_global(x + 4 * t, 1.0)
        if ordered:
            bar_sync(0, 64)
        load_global(x + 4 * (63 - t))  # read

    assert machine_for(neighbours, args=(np.zeros(64, np.float32), 1)).hazards == []
    machine = machine_for(neighbours, args=(np.zeros(64, np.float32), 0))
    hazard = the_hazard(machine, "race", neighbours, "read", "load_global", ["race"], thread=32)
    assert "written by thread 31" in hazard.message


def test_in_place_on_what_the_host_wrote():
    @kernel(block=32)
    def double(x: inout_ptr):
        at = x + 4 * (32 * block_x() + tid())
        store_global(at, 2 * load_global(at))

    x = filled(3, 32)
    assert machine_for(double, 3, (x,)).hazards == []
    np.testing.assert_array_equal(x, 2 * filled(3, 32))


def test_a_thread_is_not_that_of_another_block_with_its_number():
    @kernel(block=32)
    def shifted(x: inout_ptr, shift: int32):
        load_global(x + 4 * (tid() + 32 * block_x()))
        store_global(x + 4 * (tid() + 32 * (block_x() - shift)), 1.0)  # write

    assert machine_for(shifted, 1, (np.zeros(32, np.float32), 0)).hazards == []
    x = np.zeros(96, np.float32)
    assert machine_for(shifted, 3, (x, 0)).hazards == []
    machine = machine_for(shifted, 3, (np.zeros(128, np.float32)[32:], 1))
    hazard = next(h for h in machine.hazards if h.kind == "race")
    assert (hazard.block, hazard.thread, hazard.count) == ((1, 0, 0), 0, 64)
    assert "read by thread 0 of block (0, 0, 0)" in hazard.message


def test_an_output_is_not_to_be_read_before_it_is_written():
    @kernel(block=32)
    def accumulate(out: out_ptr):
        at = out + 4 * tid()
        store_global(at, 1 + load_global(at))  # read

    machine = machine_for(accumulate, args=(np.zeros(32, np.float32),))
    hazard = the_hazard(machine, "uninitialised", accumulate, "read", "load_global", thread=0)
    assert "byte 0 of argument 'out'" in hazard.message


def test_an_input_is_not_written():
    @kernel(block=32)
    def clobber(x: ptr):
        store_global(x + 4 * tid(), 1.0)  # write

    x = np.zeros(32, np.float32)
    machine = machine_for(clobber, args=(x,))
    hazard = the_hazard(machine, "read-only", clobber, "write", "store_global", count=32)
    assert "byte 0 of argument 'x', which was passed as input" in hazard.message
    assert (x == 0).all()


def test_two_views_of_one_memory_are_one():
    """Writing through one and reading through the other is a race all the same."""

    @kernel(block=64)
    def aliased(x: ptr, out: out_ptr):
        t = tid()
        store_global(out + 4 * t, 1.0)
        load_global(x + 4 * (63 - t))  # read

    memory = np.zeros(100, np.float32)
    assert machine_for(aliased, args=(memory.copy()[:64], memory[:64])).hazards == []
    machine = machine_for(aliased, args=(memory[:64], memory[:64]))
    the_hazard(machine, "race", aliased, "read", "load_global", ["race"], thread=32)
    # Shifted: byte 0 of `out` is byte 40 of `x`.
    machine = machine_for(aliased, args=(memory[:64], memory[10:74]))
    hazard = next(h for h in machine.hazards if h.op == "load_global")
    assert "argument 'x'" in hazard.message


def test_packed_views_are_apart():
    """The gaps of one view are the elements of the other: neither touches the other's."""

    @kernel(block=4)
    def both(a: out_ptr, b: out_ptr, stride: int64):
        for i in range(8):
            store_global(a + i * stride + 4 * tid(), 1.0)
            store_global(b + i * stride + 4 * tid(), 2.0)

    packed = np.zeros((8, 2, 4), np.float32)
    machine = machine_for(both, args=(packed[:, 0], packed[:, 1], packed.strides[0]))
    assert machine.hazards == []
    assert (packed[:, 0] == 1).all()
    assert (packed[:, 1] == 2).all()
    # Four rows of one view are one row too many for the other's columns.
    machine = machine_for(both, args=(packed[:, 0], packed[:, 1], 4 * 4))
    assert {h.kind for h in machine.hazards} == {"out-of-bounds", "unwritten"}


def test_a_read_only_array_is_no_output():
    @kernel(block=1)
    def nothing(out: out_ptr):
        pass

    out = np.zeros(4)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"out is read-only; the kernel writes to it"):
        machine_for(nothing, args=(out,))


def test_numbers_without_a_buffer_protocol():
    """bfloat16 arrays cannot be viewed as bytes by every way that NumPy has."""
    import ml_dtypes

    @kernel(block=8)
    def copy(x: ptr, out: out_ptr):
        store_global(out + 4 * tid(), load_global(x + 4 * tid()))

    x = np.arange(32, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(2, 16)
    out = np.zeros_like(x)[:, ::1]
    assert machine_for(copy, args=(x[1:], out[:1])).hazards == []
    np.testing.assert_array_equal(out[0].astype(np.float32), x[1].astype(np.float32))
