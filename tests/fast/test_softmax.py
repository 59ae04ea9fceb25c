"""The online softmax on fragments is the online softmax on matrices."""

import numpy as np
import pytest

from fa_numba.device.emulator import emulate
from fa_numba.device.kernel import kernel
from fa_numba.device.launch import launch
from fa_numba.device.ops import lane, load_global_f32, store_global_f32, with_element, zeros
from fa_numba.device.types import float32, int32, out_ptr, ptr
from fa_numba.fast.softmax import LOG2_E, finalize, init_rows, row_shift, update
from fa_numba.indexing.fragment_layout import acc_coord
from fa_numba.reference.softmax import OnlineSoftmax
from tests.row_softmax import make_scores
from tests.tolerance import assert_lse, assert_out

pytestmark = pytest.mark.emu

COLS, SIZE = 16, 8
zero_8 = zeros(SIZE)


@kernel(block=32)
def one_warp(x: ptr, p: out_ptr, row_stats: out_ptr, tiles: int32, scale: float32):
    """x: (tiles, 16, 16) scores; p: the same; row_stats: (tiles, 4, 16), what a tile leaves."""
    maxima, sums = init_rows()
    for tile in range(tiles):
        scores = zero_8()
        for i in range(SIZE):
            row, col = acc_coord(lane(), i)
            place = x + 4 * ((tile * 16 + row) * COLS + col)
            scores = with_element(scores, i, load_global_f32(place, True))
        weights, maxima, sums, row_scale = update(scores, maxima, sums, scale)
        for i in range(SIZE):
            row, col = acc_coord(lane(), i)
            store_global_f32(p + 4 * ((tile * 16 + row) * COLS + col), weights[i], True)
        out_scale, lse = finalize(maxima, sums, scale)
        for half in range(2):
            row = lane() // 4 + 8 * half
            place = row_stats + 4 * (tile * 4 * 16 + row)
            first = lane() % 4 == 0
            store_global_f32(place, row_shift(maxima[half]), first)
            store_global_f32(place + 64, row_scale[half], first)
            store_global_f32(place + 128, out_scale[half], first)
            store_global_f32(place + 192, lse[half], first)


@pytest.mark.parametrize("softmax_scale", [1.0, 0.125])
def test_update_and_finalize_are_the_references(softmax_scale):
    tiles = 4
    x = make_scores(16, tiles * COLS, "float32")
    # Of huge scores p and the sum are uncertain by a common factor, which only cancels in p / sum.
    x[4::5] /= 100
    x = x.reshape(16, tiles, COLS).swapaxes(0, 1).copy()
    p, stats = np.full_like(x, np.nan), np.full((tiles, 4, 16), np.nan, np.float32)
    scale = np.float32(softmax_scale * LOG2_E)
    with emulate() as machine:
        launch(one_warp, 1, (x, p, stats, tiles, scale), target="emulator")
    assert machine.hazards == []

    told = OnlineSoftmax((16,), np.float64)
    low = OnlineSoftmax((16,), np.float32)
    for tile in range(tiles):
        with np.errstate(invalid="ignore"):
            ref, row_scale = told.update(x[tile].astype(np.float64) * scale)
            lowprec, low_scale = low.update(x[tile] * scale)
        out_scale, lse = told.finalize()
        low_out_scale, _ = low.finalize()
        shift = np.where(np.isneginf(told.row_max), 0, told.row_max / scale)[:, 0]
        assert_out(p[tile], ref, lowprec, "float32", name="p")
        np.testing.assert_array_equal(stats[tile, 0], shift.astype(np.float32))
        assert_out(stats[tile, 1], row_scale[:, 0], low_scale[:, 0], "float32", name="row_scale")
        assert_out(
            stats[tile, 2], out_scale[:, 0], low_out_scale[:, 0], "float32", name="out_scale"
        )
        assert_lse(stats[tile, 3], lse, "float32")


def test_a_row_that_has_seen_nothing_has_no_weight():
    (max_0, max_1), (sum_0, sum_1) = init_rows()
    assert max_0 == max_1 == -np.inf
    assert sum_0 == sum_1 == 0
    assert row_shift(max_0) == 0
    assert row_shift(np.float32(-3)) == -3
