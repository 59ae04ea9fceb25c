"""An asynchronous instruction of your own: declared once, emulated and compiled.

``cp.async`` starts a copy from global to shared memory and goes on; the bytes arrive later, and may
be read after a wait. The declaration says what the hardware guarantees, and the emulator's engine
decides when the bytes arrive, as late or as early as that allows::

    python examples/asynchronous_copy.py

This is the pattern by which the asynchronous instructions of Ampere and Hopper enter the emulator.
"""

import numpy as np

import fa_numba
from fa_numba.device.emulator.machine import Machine
from fa_numba.device.kernel import Kernel, kernel
from fa_numba.device.launch import launch
from fa_numba.device.ops import (
    load_shared_f32,
    shared_base,
    store_global_f32,
    syncthreads,
    thread_index_x,
)
from fa_numba.device.ops.declare import instruction
from fa_numba.device.types import out_ptr, ptr

# What each emulated thread has started and not yet waited for.
_started = {}


# [ops]
@instruction(
    "cp.async.ca.shared.global [$0], [$1], 4;",
    "void(u32, u64)",
    since=(8, 0),
    section="cp.async",
    side_effect=True,
)
def copy_async(thread, address, pointer):
    """Start to copy 4 bytes.

    Since sm_80. `copy_wait` waits for it.

    Parameters
    ----------
    address : uint32
        Where to, in shared memory.
    pointer : uint64
        Where from, in global memory.
    """
    shared, window = thread.block.shared, thread.machine.memory.window_of(pointer)

    def arrive():
        data = window.bytes[pointer - window.start :][:4]
        shared.bytes[address - shared.base :][:4] = data

    engine = thread.machine.engine("cp.async")
    operation = engine.submit(
        thread,
        "copy",
        actions=[arrive],
        reads=[(window, pointer, pointer + 4)],
        writes=[(shared, address, address + 4)],
        cycles=4,
    )
    _started.setdefault(thread, []).append(operation)


@instruction(
    "cp.async.wait_all;", "void()", since=(8, 0), section="cp.async.wait_all", side_effect=True
)
def copy_wait(thread):
    """Wait until the copies that this thread has started have arrived.

    Since sm_80. Other threads may read the bytes after a barrier.
    """
    for operation in _started.pop(thread, []):
        while not operation.done:
            thread.wait(operation, "copy_wait")
        operation.acquire(thread)


# [kernels]
@kernel(block=32, smem_bytes=128)
def reverse_async(x: ptr, out: out_ptr):
    """Write x backwards."""
    i = thread_index_x()
    tile = shared_base()
    copy_async(tile + 4 * i, x + 4 * i)
    copy_wait()  # what this thread has copied is there
    syncthreads()  # what the others have copied is there too
    store_global_f32(out + 4 * i, load_shared_f32(tile + 4 * (31 - i)), True)


@kernel(block=32, smem_bytes=128)
def without_wait(x: ptr, out: out_ptr):
    """Do the same, but read what may not have arrived."""
    i = thread_index_x()
    tile = shared_base()
    copy_async(tile + 4 * i, x + 4 * i)
    syncthreads()
    store_global_f32(out + 4 * i, load_shared_f32(tile + 4 * (31 - i)), True)


# [run]
def run(program: Kernel, **options: object) -> tuple[np.ndarray, Machine]:
    """Run one of the kernels in the emulator.

    Parameters
    ----------
    program : Kernel
        Which.
    **options
        For `fa_numba.emulate`.

    Returns
    -------
    out : ndarray
        (32,) float32.
    machine : Machine
        What the emulator found.
    """
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    with fa_numba.emulate(**options) as machine:
        launch(program, 1, (x, out), target="emulator")
    _started.clear()
    return out, machine


# [end]
def main() -> None:
    """Run both kernels, with copies that arrive late and early."""
    for program in (reverse_async, without_wait):
        for policy in ("late", "early"):
            out, machine = run(program, policy=policy)
            print(f"{program.name}, copies arrive {policy}: {out[:3]} ...")
            for hazard in machine.hazards:
                print(f"  {hazard}")


if __name__ == "__main__":
    main()
