"""Kernels with one fault each, and what the emulator says about them.

All are variations of `reverse`, which is right: it turns 64 numbers around through shared memory.
`report` runs one of them and returns the emulator's text::

    python examples/broken_kernels.py                    # every fault with its report
    python examples/broken_kernels.py missing_barrier    # one of them

The page "The emulator" of the documentation explains the reports.
"""

import argparse

import numpy as np

import fa_numba
from fa_numba.device.emulator import Deadlock, EmulationError
from fa_numba.device.kernel import Kernel, kernel
from fa_numba.device.launch import launch
from fa_numba.device.ops import (
    bar_arrive,
    bar_sync,
    bar_warp_sync,
    lane,
    load_global_f32,
    load_global_u32x2,
    load_shared_f32,
    quad_max,
    shared_base,
    store_global_f32,
    store_shared_f32,
    store_shared_u32x2,
    syncthreads,
    thread_index_x,
)
from fa_numba.device.types import float32, out_ptr, ptr

THREADS = 64


@kernel(block=THREADS, smem_bytes=256)
def reverse(x: ptr, out: out_ptr):
    """Write x backwards. Nothing is wrong here."""
    i = thread_index_x()
    tile = shared_base()
    store_shared_f32(tile + 4 * i, load_global_f32(x + 4 * i, True))
    syncthreads()  # all 64 numbers are in the tile: any of them may be read
    store_global_f32(out + 4 * i, load_shared_f32(tile + 4 * (63 - i)), True)


@kernel(block=THREADS, smem_bytes=256)
def missing_barrier(x: ptr, out: out_ptr):
    """Read what another thread writes, without waiting for it."""
    i = thread_index_x()
    tile = shared_base()
    store_shared_f32(tile + 4 * i, load_global_f32(x + 4 * i, True))
    store_global_f32(out + 4 * i, load_shared_f32(tile + 4 * (63 - i)), True)


@kernel(block=THREADS, smem_bytes=256)
def early_overwrite(x: ptr, out: out_ptr):
    """Fill the tile a second time while others may still read it."""
    i = thread_index_x()
    tile = shared_base()
    for _ in range(2):
        store_shared_f32(tile + 4 * i, load_global_f32(x + 4 * i, True))
        syncthreads()
        value = load_shared_f32(tile + 4 * (63 - i))
    store_global_f32(out + 4 * i, value, True)


@kernel(block=THREADS)
def two_writers(x: ptr, out: out_ptr):
    """Let two threads write each of the first 32 results."""
    i = thread_index_x()
    store_global_f32(out + 4 * (i // 2), load_global_f32(x + 4 * i, True), True)
    store_global_f32(out + 4 * (i // 2 + 32), float32(0), i % 2 == 0)


@kernel(block=THREADS, smem_bytes=256)
def tail_not_filled(x: ptr, out: out_ptr):
    """Read a slot that nobody fills."""
    i = thread_index_x()
    tile = shared_base()
    if i < 63:
        store_shared_f32(tile + 4 * i, load_global_f32(x + 4 * i, True))
    syncthreads()
    store_global_f32(out + 4 * i, load_shared_f32(tile + 4 * (63 - i)), True)


@kernel(block=THREADS)
def row_too_far(x: ptr, out: out_ptr):
    """Write one element further than the array goes."""
    i = thread_index_x()
    store_global_f32(out + 4 * (i + 1), load_global_f32(x + 4 * i, True), True)
    store_global_f32(out, float32(0), i == 0)


@kernel(block=THREADS, smem_bytes=256)
def past_the_tile(x: ptr, out: out_ptr):
    """Read shared memory that the block did not ask for."""
    i = thread_index_x()
    tile = shared_base()
    store_shared_f32(tile + 4 * i, load_global_f32(x + 4 * i, True))
    syncthreads()
    store_global_f32(out + 4 * i, load_shared_f32(tile + 4 * (64 - i)), True)


@kernel(block=THREADS, smem_bytes=512)
def misaligned_vector(x: ptr, out: out_ptr):
    """Load 8 bytes from an address that 8 does not divide."""
    i = thread_index_x()
    tile = shared_base()
    store_shared_u32x2(tile + 8 * i, load_global_u32x2(x + 4 * i, i < 63))
    store_global_f32(out + 4 * i, load_shared_f32(tile + 8 * i), True)


@kernel(block=THREADS)
def writes_its_input(x: ptr, out: out_ptr):
    """Write to an array that was passed as input."""
    i = thread_index_x()
    value = load_global_f32(x + 4 * i, True)
    store_global_f32(x + 4 * i, float32(0), True)
    store_global_f32(out + 4 * i, value, True)


@kernel(block=THREADS)
def row_left_out(x: ptr, out: out_ptr):
    """Leave the last two results as they were."""
    i = thread_index_x()
    store_global_f32(out + 4 * i, load_global_f32(x + 4 * i, True), i < 62)


@kernel(block=THREADS)
def half_a_warp(x: ptr, out: out_ptr):
    """Send 16 lanes of each warp to a barrier for 32 threads."""
    i = thread_index_x()
    if lane() < 16:
        bar_sync(1, 32)
    store_global_f32(out + 4 * i, load_global_f32(x + 4 * i, True), True)


@kernel(block=THREADS)
def two_counts(x: ptr, out: out_ptr):
    """Come to one barrier with two ideas of how many threads meet there."""
    i = thread_index_x()
    bar_sync(1, 64 if i < 32 else 32)
    store_global_f32(out + 4 * i, load_global_f32(x + 4 * i, True), True)


@kernel(block=THREADS)
def mask_without_me(x: ptr, out: out_ptr):
    """Wait for the lower half of the warp, in the upper half too."""
    i = thread_index_x()
    bar_warp_sync(0xFFFF)
    store_global_f32(out + 4 * i, load_global_f32(x + 4 * i, True), True)


@kernel(block=THREADS)
def barrier_in_a_branch(x: ptr, out: out_ptr):
    """Let one warp wait for a block that does not come."""
    i = thread_index_x()
    if i < 32:
        syncthreads()
    store_global_f32(out + 4 * i, load_global_f32(x + 4 * i, True), True)


@kernel(block=THREADS)
def shuffle_in_a_branch(x: ptr, out: out_ptr):
    """Reduce over quads in the first half of each warp only."""
    i = thread_index_x()
    value = load_global_f32(x + 4 * i, True)
    if lane() < 16:
        value = quad_max(value)
    syncthreads()
    store_global_f32(out + 4 * i, value, True)


@kernel(block=THREADS)
def an_arrival_too_few(x: ptr, out: out_ptr):
    """Hand over from one warp to the other, and count 96 threads where there are 64."""
    i = thread_index_x()
    if i < 32:
        bar_arrive(1, 96)
    else:
        bar_sync(1, 96)
    store_global_f32(out + 4 * i, load_global_f32(x + 4 * i, True), True)


@kernel(block=THREADS)
def integer_times_float(x: ptr, out: out_ptr):
    """Multiply an integer with a float32: Numba makes float64 of it."""
    i = thread_index_x()
    value = load_global_f32(x + 4 * i, True)
    store_global_f32(out + 4 * i, float32(value * i), True)


BROKEN = {
    found.name: found
    for found in list(globals().values())
    if isinstance(found, Kernel) and found is not reverse
}


def report(broken: Kernel, **options: object) -> str:
    """Run a kernel in the emulator and return all that it has to say.

    Parameters
    ----------
    broken : Kernel
        One of this file's.
    **options
        For `fa_numba.emulate`.

    Returns
    -------
    str
        The hazards in the order found, or the report of the deadlock; ``""`` for a right kernel.
    """
    x = np.arange(THREADS, dtype=np.float32)
    out = np.zeros(THREADS, np.float32)
    said = []
    with fa_numba.emulate(**options) as machine:
        try:
            launch(broken, 1, (x, out), target="emulator")
        except Deadlock as error:
            return str(error)
        except EmulationError:
            said.append("the kernel could not go on")
    return "\n".join([*map(str, machine.hazards), *said])


def main() -> None:
    """Print the reports."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="*", help=f"one of {', '.join(BROKEN)}; default: all")
    names = parser.parse_args().name or list(BROKEN)
    for name in names:
        print(f"{name}: {BROKEN[name].function.__doc__}")
        print(report(BROKEN[name], strict=name == "integer_times_float"), end="\n\n")


if __name__ == "__main__":
    main()
