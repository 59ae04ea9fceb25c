"""Run a kernel in the emulator: check its result, count its bank conflicts, trace it.

No GPU is needed. The kernel transposes a matrix through a tile in shared memory. The tile's rows
are `pitch` numbers apart; with 32 of them the numbers of a column lie in one bank, with 33 in all
32 banks::

    python examples/emulate_a_kernel.py
    python examples/emulate_a_kernel.py --rows 100 --cols 70 --trace transpose.json

Open the trace at https://ui.perfetto.dev.
"""

import argparse
from functools import cache
from pathlib import Path

import numpy as np

import fa_numba
from fa_numba.device.emulator.machine import Machine
from fa_numba.device.kernel import Kernel, kernel
from fa_numba.device.launch import launch
from fa_numba.device.ops import (
    block_index_x,
    block_index_y,
    load_global_f32,
    load_shared_f32,
    shared_base,
    store_global_f32,
    store_shared_f32,
    syncthreads,
    thread_index_x,
    thread_index_y,
)
from fa_numba.device.types import int32, out_ptr, ptr

TILE = 32
ROWS_AT_A_TIME = 8


# [kernel]
@cache
def make_transpose(pitch: int) -> Kernel:
    """Return the kernel for ``out = x.T``, float32, x (rows, cols) and out contiguous.

    Parameters
    ----------
    pitch : int
        Numbers from one row of the tile in shared memory to the next, at least 32.

    Returns
    -------
    Kernel
        To be launched with a grid of (ceil(cols / 32), ceil(rows / 32)) blocks.
    """

    @kernel(
        block=(TILE, ROWS_AT_A_TIME), smem_bytes=4 * TILE * pitch, name="transpose", key=(pitch,)
    )
    def transpose(x: ptr, out: out_ptr, rows: int32, cols: int32):
        tx, ty = thread_index_x(), thread_index_y()
        first_row, first_col = TILE * block_index_y(), TILE * block_index_x()
        tile = shared_base()

        for i in range(ty, TILE, ROWS_AT_A_TIME):
            row, col = first_row + i, first_col + tx
            value = load_global_f32(x + 4 * (row * cols + col), row < rows and col < cols)
            store_shared_f32(tile + 4 * (i * pitch + tx), value)

        syncthreads()  # the tile is whole: it may be read by columns

        for i in range(ty, TILE, ROWS_AT_A_TIME):
            row, col = first_row + tx, first_col + i
            value = load_shared_f32(tile + 4 * (tx * pitch + i))
            store_global_f32(out + 4 * (col * rows + row), value, row < rows and col < cols)

    return transpose


# [run]
def transpose(x: np.ndarray, pitch: int, **options: object) -> tuple[np.ndarray, Machine]:
    """Transpose a matrix in the emulator.

    Parameters
    ----------
    x : ndarray
        (rows, cols) float32, contiguous.
    pitch : int
        See `make_transpose`.
    **options
        For `fa_numba.emulate`.

    Returns
    -------
    out : ndarray
        (cols, rows) float32.
    machine : Machine
        What the emulator found.
    """
    rows, cols = x.shape
    out = np.empty((cols, rows), np.float32)
    grid = (-(-cols // TILE), -(-rows // TILE))
    with fa_numba.emulate(**options) as machine:
        launch(make_transpose(pitch), grid, (x, out, rows, cols), target="emulator")
    return out, machine


# [gpu]
def transpose_on_gpu(x, pitch=TILE + 1, stream=None):
    """Transpose a matrix on the GPU.

    Parameters
    ----------
    x : cupy.ndarray
        (rows, cols) float32, contiguous.
    pitch : int
        See `make_transpose`.
    stream : object, optional
        Where to enqueue it; by default CuPy's current stream.

    Returns
    -------
    cupy.ndarray
        (cols, rows) float32. The call does not wait for it.
    """
    import cupy

    rows, cols = x.shape
    out = cupy.empty((cols, rows), np.float32)
    grid = (-(-cols // TILE), -(-rows // TILE))
    launch(make_transpose(pitch), grid, (x, out, rows, cols), stream=stream)
    return out


# [end]
def main() -> None:
    """Run the kernel with both pitches."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=45)
    parser.add_argument("--cols", type=int, default=70)
    parser.add_argument("--trace", type=Path, help="where to write the trace of the second run")
    options = parser.parse_args()
    x = np.random.default_rng(0).standard_normal((options.rows, options.cols), dtype=np.float32)
    for pitch in (TILE, TILE + 1):
        out, machine = transpose(x, pitch, schedule="time", trace=options.trace is not None)
        right = "right" if np.array_equal(out, x.T) else "wrong"
        print(f"pitch {pitch}: the result is {right}, {len(machine.hazards)} hazards")
        for count in machine.bank_conflicts:
            print(f"  {count}")
    if machine.trace is not None:
        machine.trace.save(options.trace)
        print(f"wrote {options.trace}; open it at https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
