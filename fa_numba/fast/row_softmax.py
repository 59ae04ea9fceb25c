"""Softmax and lse of every row of a matrix: the smallest kernel that has all of a flash kernel.

A block takes `tile_m` rows and walks over their columns in tiles, through shared memory: once for
the maximum and the sum of each row, which the online softmax keeps up to date, and once more to
normalise. The rows of a block may have any length, and nothing of it but one tile is ever held.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from fa_numba.device.kernel import Kernel, kernel
from fa_numba.device.launch import launch
from fa_numba.device.ops import (
    block_index_x,
    exp2_rows,
    lane,
    mask_columns,
    scale_rows,
    shared_base,
    store_global_f32,
    syncthreads,
    thread_index_x,
)
from fa_numba.device.types import int32, int64, out_ptr, ptr, uint64
from fa_numba.fast.softmax import LOG2_E, finalize, init_rows, row_shift, update
from fa_numba.fast.tile_io import ITEMSIZE, make_tile_io
from fa_numba.indexing.fragment_layout import warpgroup_acc_coord

__all__ = ["RowSoftmaxConfig", "make_row_softmax", "run_row_softmax"]

_MINUS_INF = float("-inf")


@dataclass(frozen=True)
class RowSoftmaxConfig:
    """What a `row_softmax` kernel is made for.

    Attributes
    ----------
    dtype : {"float32", "float16", "bfloat16"}
        Of the matrix and the result. Computed in float32.
    tile_m, tile_n : int
        Rows of a block, 16 for each warp; columns that are in shared memory at a time.
    vector_bytes : int
        See `fa_numba.fast.tile_io.make_tile_io`.
    """

    dtype: str
    tile_m: int = 64
    tile_n: int = 64
    vector_bytes: int = 16

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return 2 * self.tile_m

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block: one tile."""
        return self.tile_m * self.tile_n * ITEMSIZE[self.dtype]


@cache
def make_row_softmax(config: RowSoftmaxConfig) -> Kernel:
    """Make the kernel of a configuration.

    Parameters
    ----------
    config : RowSoftmaxConfig
        What for.

    Returns
    -------
    Kernel
        Takes ``(x, out, lse, rows, cols, x_row_stride, out_row_stride)``: two matrices with
        contiguous rows, their row strides in elements, of either sign; lse is (rows,) float32,
        contiguous. The grid is ``ceil(rows / tile_m)``.

    Raises
    ------
    ValueError
        If the configuration is not accepted.
    """
    tile_m, tile_n = config.tile_m, config.tile_n
    load_tile, read_fragment, write_fragment, store_tile = make_tile_io(
        config.dtype, tile_m, tile_n, config.vector_bytes
    )

    @kernel(block=config.num_threads, smem_bytes=config.smem_bytes, key=config)
    def row_softmax(
        x: ptr,
        out: out_ptr,
        lse: out_ptr,
        rows: int32,
        cols: int32,
        x_row_stride: int64,
        out_row_stride: int64,
    ):
        row_start = block_index_x() * tile_m
        row, col = warpgroup_acc_coord(thread_index_x(), 0)
        n_block_max = (cols + tile_n - 1) // tile_n
        tile = shared_base()

        row_max, row_sum = init_rows()
        for n_block in range(n_block_max):
            col_start = n_block * tile_n
            load_tile(tile, x, x_row_stride, row_start, col_start, rows, cols)
            # The tile is whole: each warp may read what the others have loaded.
            syncthreads()
            scores = read_fragment(tile, row, col)
            # All have read: the next tile, of this pass or the next, may overwrite this one.
            syncthreads()
            if n_block == n_block_max - 1:
                # Only the last tile can reach past the row; there it holds zeros.
                scores = mask_columns(scores, col_start + col, 0, cols, 0, cols, _MINUS_INF)
            _, row_max, row_sum, _ = update(scores, row_max, row_sum, LOG2_E)
        out_scale, row_lse = finalize(row_max, row_sum, LOG2_E)
        if lane() % 4 == 0:
            row_lse_0, row_lse_1 = row_lse
            place = lse + uint64((row_start + row) * 4)
            store_global_f32(place, row_lse_0, row_start + row < rows)
            store_global_f32(place + 32, row_lse_1, row_start + row + 8 < rows)

        shift_0, shift_1 = row_shift(row_max[0]), row_shift(row_max[1])
        for n_block in range(n_block_max):
            col_start = n_block * tile_n
            load_tile(tile, x, x_row_stride, row_start, col_start, rows, cols)
            # The tile is whole, as above.
            syncthreads()
            scores = read_fragment(tile, row, col)
            p = exp2_rows(scores, LOG2_E, shift_0, shift_1)
            # No barrier between: a thread overwrites the elements that it alone has read.
            write_fragment(tile, row, col, scale_rows(p, out_scale[0], out_scale[1]))
            # The tile is whole again, now of probabilities, and may be stored by other threads.
            syncthreads()
            store_tile(tile, out, out_row_stride, row_start, col_start, rows, cols)
            # No barrier after: a thread loads into the chunks that it alone has stored.

    return row_softmax


def run_row_softmax(
    x: Any,
    out: Any,
    lse: Any,
    *,
    tile_m: int = 64,
    tile_n: int = 64,
    stream: Any = None,
    target: str = "gpu",
) -> None:
    """Compute the softmax and the lse of every row of a matrix.

    Parameters
    ----------
    x : array, (rows, cols)
        float32, float16 or bfloat16; rows contiguous, any stride from one to the next. An array of
        CuPy on the GPU, of NumPy in the emulator.
    out : array, (rows, cols)
        Where the softmax goes; dtype of x. 0 in rows that are -inf throughout. It may be x.
    lse : array of float32, (rows,)
        Where the natural logarithms of the sums of exponentials go; -inf for rows that are -inf
        throughout. Contiguous.
    tile_m, tile_n : int
        See `RowSoftmaxConfig`.
    stream, target
        See `fa_numba.device.launch.launch`.

    Raises
    ------
    TypeError
        If a dtype is not accepted.
    ValueError
        If a shape or a stride is not accepted.

    Notes
    -----
    A row with a NaN or +inf becomes NaN throughout, and so does its lse.
    """
    dtype = x.dtype.name
    if dtype not in ITEMSIZE:
        raise TypeError(f"x has dtype {dtype}; accepted are {', '.join(ITEMSIZE)}")
    itemsize = ITEMSIZE[dtype]
    if x.ndim != 2:
        raise ValueError(f"x has shape {x.shape}; accepted is (rows, cols)")
    rows, cols = x.shape
    expected = (
        ("x", x, (rows, cols), dtype),
        ("out", out, (rows, cols), dtype),
        ("lse", lse, (rows,), "float32"),
    )
    for name, array, shape, kind in expected:
        if array.dtype.name != kind:
            raise TypeError(f"{name} has dtype {array.dtype}; accepted is {kind}")
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}; accepted is {shape}")
        if array.shape[-1] > 1 and array.strides[-1] != array.itemsize:
            raise ValueError(
                f"{name} has strides {array.strides}; accepted are contiguous rows, where the last "
                f"is {array.itemsize}"
            )
    # Strides of an axis with one row are arbitrary, and not used.
    row_bytes = [array.strides[0] if rows > 1 else 0 for array in (x, out)]
    places = [_address(x), _address(out), *row_bytes]
    is_aligned = all(place % 16 == 0 for place in places)
    config = RowSoftmaxConfig(dtype, tile_m, tile_n, 16 if is_aligned else itemsize)
    strides = [nbytes // itemsize for nbytes in row_bytes]
    grid = -(-rows // tile_m)
    args = (x, out, lse, rows, cols, *strides)
    launch(make_row_softmax(config), grid, args, stream=stream, target=target)


def _address(array: Any) -> int:
    """Return where an array's element (0, 0) is."""
    if hasattr(array, "__array_interface__"):
        address: int = array.__array_interface__["data"][0]
        return address
    # Without asking CuPy for its whole interface, which has no name for bfloat16.
    return int(array.data.ptr)
