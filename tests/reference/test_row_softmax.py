"""Softmax by tiles equals softmax in one piece, whatever the tiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.reference.row_softmax import row_softmax
from tests.poison import FILLS, poisoned_allocations
from tests.row_softmax import assert_row_softmax, make_scores, place
from tests.tolerance import DTYPES

SIZES = st.integers(0, 20)
TILES = st.integers(1, 24)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@given(SIZES, SIZES, TILES, TILES, st.integers(0, 99))
def test_equals_the_dense_softmax(dtype, rows, cols, tile_m, tile_n, seed):
    x = make_scores(rows, cols, dtype, seed)
    assert_row_softmax(*row_softmax(x, tile_m=tile_m, tile_n=tile_n), x, dtype)


@pytest.mark.parametrize("kind", ["aligned", "shifted", "reversed"])
def test_takes_strided_matrices(kind):
    x = make_scores(7, 13, "float32")
    expected = row_softmax(x, tile_m=4, tile_n=5)
    found = row_softmax(place(x, "float32", kind), tile_m=4, tile_n=5)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_writes_everything_that_it_returns():
    x = make_scores(9, 11, "float16")
    results = []
    for byte in FILLS:
        with poisoned_allocations(byte):
            results.append(row_softmax(x, tile_m=4, tile_n=4))
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


def test_rows_without_columns_are_empty():
    out, lse = row_softmax(np.empty((3, 0), np.float32))
    assert out.shape == (3, 0)
    np.testing.assert_array_equal(lse, np.full(3, -np.inf, np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("col", [0, 9])
def test_what_is_no_score_spoils_its_row_and_no_other(bad, col):
    x = make_scores(6, 10, "float64")
    expected, expected_lse = row_softmax(x, tile_m=4, tile_n=4)
    x[3, col] = bad
    out, lse = row_softmax(x, tile_m=4, tile_n=4)
    others = np.arange(6) != 3
    assert np.isnan(out[3]).all()
    assert np.isnan(lse[3])
    np.testing.assert_array_equal(out[others], expected[others])
    np.testing.assert_array_equal(lse[others], expected_lse[others])


def test_lse_is_float64_for_float64_only():
    for dtype, expected in (("float64", np.float64), ("bfloat16", np.float32)):
        assert row_softmax(np.zeros((2, 2), DTYPES[dtype]))[1].dtype == expected
