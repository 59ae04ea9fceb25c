"""Tiles arrive as they left, in every layout, and nothing else is touched."""

import numpy as np
import pytest

from fa_numba.device.emulator import emulate
from fa_numba.device.kernel import kernel
from fa_numba.device.launch import launch
from fa_numba.device.ops import (
    fragment_bits,
    shared_base,
    store_global_u32,
    syncthreads,
    thread_index_x,
)
from fa_numba.device.types import int32, int64, out_ptr, ptr, uint64
from fa_numba.fast.tile_io import ITEMSIZE, make_tile_io
from fa_numba.indexing.fragment_layout import warpgroup_acc_coord
from fa_numba.reference.tile_io import load_tile as reference_load_tile
from tests.row_softmax import layout, place
from tests.tolerance import DTYPES

pytestmark = pytest.mark.emu


def make_copy(dtype, tile_m, tile_n, vector_bytes, half):
    """A kernel that carries one tile of x through registers into out."""
    load_tile, read_fragment, write_fragment, store_tile = make_tile_io(
        dtype, tile_m, tile_n, vector_bytes
    )
    smem_bytes = tile_m * tile_n * ITEMSIZE[dtype]

    @kernel(block=2 * tile_m, smem_bytes=smem_bytes, key=(dtype, tile_m, tile_n, vector_bytes))
    def copy(
        x: ptr,
        out: out_ptr,
        fragments: out_ptr,
        row_stride: int64,
        row_start: int32,
        col_start: int32,
        rows: int32,
        cols: int32,
    ):
        tile = shared_base()
        row, col = warpgroup_acc_coord(thread_index_x(), 0)
        load_tile(tile, x, row_stride, row_start, col_start, rows, cols)
        syncthreads()
        fragment = read_fragment(tile, row, col)
        write_fragment(tile, row, col, fragment)
        syncthreads()
        store_tile(tile, out, row_stride, row_start, col_start, rows, cols)
        bits = fragment_bits(fragment)
        for i in range(half):
            store_global_u32(fragments + uint64(4 * (thread_index_x() * half + i)), bits[i], True)

    return copy


@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("kind", ["aligned", "shifted", "reversed"])
@pytest.mark.parametrize(("tile_m", "tile_n"), [(16, 64), (32, 128)])
@pytest.mark.parametrize(("n_block", "cut"), [(0, 3), (1, 0), (1, 13)])
def test_a_tile_is_the_references(dtype, kind, tile_m, tile_n, n_block, cut):
    """`cut` columns of the tile and three of its rows do not exist."""
    rows, cols = 2 * tile_m - 3, (n_block + 1) * tile_n - cut
    numbers = np.arange(rows * cols, dtype=np.float32).reshape(rows, cols) % 251 - 125
    x = place(numbers, dtype, kind)
    out = layout(rows, cols, dtype, kind)
    out[...] = -1
    row_start, col_start = tile_m, n_block * tile_n
    fragments = np.zeros((2 * tile_m, tile_n // 2), np.float32)
    vector_bytes = ITEMSIZE[dtype] if kind == "shifted" else 16
    copy = make_copy(dtype, tile_m, tile_n, vector_bytes, tile_n // 2)
    row_stride = x.strides[0] // x.itemsize
    sizes = (row_stride, row_start, col_start, rows, cols)
    written = np.zeros(out.shape, bool)
    written[row_start:, col_start:] = True
    with emulate() as machine:
        launch(copy, 1, (x, out, fragments, *sizes), target="emulator")
    # The kernel writes one tile of out: the rest stays, and the emulator says so.
    assert {h.kind for h in machine.hazards} <= {"unwritten"}
    np.testing.assert_array_equal(out, np.where(written, x, DTYPES[dtype].type(-1)))

    matrix = x[None, :, None, :]
    told = np.zeros((tile_m, tile_n), np.float32)
    here = reference_load_tile(matrix, row_start, rows)[0, 0, :, col_start:]
    told[: here.shape[0], : here.shape[1]] = here
    for thread in range(2 * tile_m):
        coords = [warpgroup_acc_coord(thread, i) for i in range(tile_n // 2)]
        np.testing.assert_array_equal(fragments[thread], [told[row, col] for row, col in coords])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("float64", 16, 64, 16), "dtype is 'float64'; accepted are float32, float16, bfloat16"),
        (("float32", 24, 64, 16), "tile_m is 24; accepted are multiples of 16"),
        (("float32", 0, 64, 16), "tile_m is 0; accepted are multiples of 16"),
        (("float32", 16, 32, 16), "tile_n is 32; accepted are powers of two from 64 on"),
        (("float32", 16, 96, 16), "tile_n is 96; accepted are powers of two from 64 on"),
        (("float32", 16, 64, 8), "vector_bytes is 8; accepted are 4 and 16"),
        (("float16", 16, 64, 4), "vector_bytes is 4; accepted are 2 and 16"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_tile_io(*arguments)
