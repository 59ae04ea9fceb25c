"""The epilogue: normalisation, empty rows, head order, rounding."""

import ml_dtypes
import numpy as np
import pytest

from fa_numba.reference.epilogue import store_rows
from fa_numba.reference.softmax import OnlineSoftmax

BATCH, NHEADS_K, GROUP, ROWS, HEADDIM_V = 2, 3, 2, 4, 5
PACKED = (BATCH, NHEADS_K, GROUP * ROWS)


def finished(dtype=np.float64):
    """Accumulator and statistics with a sum of 1, 2, 3, … in every row."""
    softmax = OnlineSoftmax(PACKED, dtype)
    count = np.prod(PACKED)
    softmax.row_sum = np.arange(1, count + 1, dtype=dtype).reshape(*PACKED, 1)
    softmax.row_max = np.linspace(-3, 3, count, dtype=dtype).reshape(*PACKED, 1)
    rng = np.random.default_rng(0)
    return rng.standard_normal((*PACKED, HEADDIM_V)).astype(dtype), softmax


def poisoned(dtype):
    out = np.full((BATCH, ROWS, NHEADS_K * GROUP, HEADDIM_V), np.nan, dtype)
    return out, np.full((BATCH, NHEADS_K * GROUP, ROWS), np.nan, np.float64)


def test_every_row_is_divided_by_its_sum_and_lands_at_its_head():
    acc_o, softmax = finished()
    out, lse = poisoned(np.float64)
    store_rows(acc_o.copy(), softmax, out, lse)
    for head in range(NHEADS_K * GROUP):
        for row in range(ROWS):
            place = (slice(None), head // GROUP, head % GROUP * ROWS + row)
            row_sum, row_max = softmax.row_sum[place], softmax.row_max[place]
            np.testing.assert_allclose(out[:, row, head], acc_o[place] / row_sum, rtol=1e-14)
            expected = np.log(row_sum * 2**row_max)[:, 0]
            np.testing.assert_allclose(lse[:, head, row], expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("garbage", [0.0, np.nan, np.inf])
def test_an_empty_row_is_0_and_minus_infinity_whatever_was_accumulated(garbage):
    acc_o, softmax = finished()
    softmax.row_sum[1, 2, 3] = 0
    softmax.row_max[1, 2, 3] = -np.inf
    acc_o[1, 2, 3] = garbage
    out, lse = poisoned(np.float64)
    with np.errstate(invalid="ignore"):
        store_rows(acc_o, softmax, out, lse)
    np.testing.assert_array_equal(out[1, 3, 4], 0)
    assert lse[1, 4, 3] == -np.inf
    assert np.isfinite(lse).sum() == lse.size - 1
    assert np.isfinite(out).all()


def test_a_nan_row_is_not_taken_for_an_empty_one():
    acc_o, softmax = finished()
    softmax.row_sum[0, 0, 0] = np.nan
    out, lse = poisoned(np.float64)
    store_rows(acc_o, softmax, out, lse)
    assert np.isnan(out[0, 0, 0]).all()
    assert np.isnan(lse[0, 0, 0])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_output_is_rounded_once(dtype):
    acc_o, softmax = finished(np.float32)
    out, lse = poisoned(dtype)
    exact, _ = poisoned(np.float32)
    store_rows(acc_o.copy(), softmax, exact, lse)
    store_rows(acc_o.copy(), softmax, out, lse)
    np.testing.assert_array_equal(out.astype(np.float32), exact.astype(dtype).astype(np.float32))
