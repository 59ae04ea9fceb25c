"""Tiles come from dense arrays, from scaled FP8 and from pages alike, and are paid for once."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.reference.tile_io import (
    HbmCounter,
    PagedTensor,
    TileBuffers,
    compute_dtype,
    load_tile,
)

INT32 = np.iinfo(np.int32)


def operand(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float64, np.float64),
        (np.float32, np.float32),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (ml_dtypes.float8_e4m3fn, np.float32),
    ],
)
def test_compute_dtype_and_widening(dtype, expected):
    x = operand(2, 6, 3, 4, dtype=dtype)
    tile = load_tile(x, 1, 4)
    assert compute_dtype(dtype) == expected
    assert tile.dtype == expected
    np.testing.assert_array_equal(tile, x[:, 1:4].transpose(0, 2, 1, 3).astype(expected))


def test_a_tile_is_heads_first_and_cut_in_every_axis():
    x = operand(3, 6, 4, 2)
    tile = load_tile(x, 2, 5, batch=slice(1, 3), heads=slice(1, 4))
    assert tile.shape == (2, 3, 3, 2)
    np.testing.assert_array_equal(tile[1, 2], x[2, 2:5, 3])


def test_a_tile_of_the_compute_dtype_is_not_copied():
    x = operand(1, 6, 2, 2)
    assert np.shares_memory(load_tile(x, 0, 3), x)


def test_a_descale_of_a_head_multiplies_its_rows():
    x, descale = operand(2, 6, 3, 2), operand(2, 3, seed=1)
    tile = load_tile(x, 1, 5, batch=slice(1, 2), heads=slice(1, 3), descale=descale)
    expected = x[1:, 1:5, 1:].transpose(0, 2, 1, 3) * descale[1:, 1:, None, None]
    np.testing.assert_array_equal(tile, expected)


def test_a_block_descale_changes_within_a_tile():
    x, descale = operand(1, 11, 2, 2, dtype=np.float64), operand(1, 2, 3, seed=1)
    tile = load_tile(x, 2, 11, descale=descale, descale_block=4)
    assert tile.dtype == np.float64
    for row in range(2, 11):
        expected = x[0, row] * descale[0, :, row // 4, None].astype(np.float64)
        np.testing.assert_array_equal(tile[0, :, row - 2], expected)


@given(
    st.integers(1, 9),
    st.integers(1, 40),
    st.data(),
)
def test_pages_stand_for_the_dense_array(page_size, seqlen, data):
    num_pages = -(-seqlen // page_size)
    rng = np.random.default_rng(page_size * 100 + seqlen)
    dense = rng.standard_normal((1, seqlen, 3, 2)).astype(np.float32)
    num_blocks = num_pages + 3
    pages = np.full((num_blocks, page_size, 3, 2), np.nan, np.float32)
    row = rng.permutation(num_blocks)[:num_pages].astype(np.int32)
    for slot in range(seqlen):
        pages[row[slot // page_size], slot % page_size] = dense[0, slot]
    start = data.draw(st.integers(0, seqlen - 1))
    stop = data.draw(st.integers(start + 1, seqlen))
    # What lies outside the tile's own pages is never looked at.
    table = np.full(num_pages + 2, INT32.max, np.int32)
    needed = slice(start // page_size, (stop - 1) // page_size + 1)
    table[needed] = row[needed]

    paged = PagedTensor(pages, table, seqlen)

    assert paged.shape == dense.shape
    assert paged.dtype == dense.dtype
    for heads in (slice(None), slice(1, 3)):
        np.testing.assert_array_equal(
            load_tile(paged, start, stop, heads=heads), load_tile(dense, start, stop, heads=heads)
        )


@pytest.mark.parametrize("entry", [INT32.min, -1, 2, INT32.max])
def test_a_page_that_does_not_exist_reads_one_that_does(entry):
    pages = operand(2, 4, 1, 1)
    paged = PagedTensor(pages, np.array([1, entry], np.int32), 8)
    tile = load_tile(paged, 0, 8)
    np.testing.assert_array_equal(tile[0, 0, :4], pages[1, :, 0])
    np.testing.assert_array_equal(tile[0, 0, 4:], pages[0 if entry < 0 else 1, :, 0])


def test_the_counter_counts_bytes_of_the_storage_by_name():
    counter = HbmCounter()
    x = operand(2, 6, 3, 4, dtype=np.float16)
    load_tile(x, 0, 2, counter=counter, name="k")
    load_tile(x, 2, 6, batch=slice(0, 1), heads=slice(0, 2), counter=counter, name="k")
    load_tile(x, 0, 6, counter=counter, name="v")
    counter.write("out", 5)
    counter.write("out", 6)
    assert counter.reads == {"k": (2 * 2 * 3 + 4 * 2) * 4 * 2, "v": 2 * 6 * 3 * 4 * 2}
    assert counter.writes == {"out": 11}
    assert counter.total == sum(counter.reads.values()) + 11


def test_buffers_are_contiguous_named_and_reused():
    buffers = TileBuffers(np.float32)
    a, b = buffers.take("a", (2, 3)), buffers.take("b", (2, 3))
    assert not np.shares_memory(a, b)
    smaller = buffers.take("a", (5,))
    assert np.shares_memory(smaller, a)
    assert smaller.flags.c_contiguous
    assert smaller.dtype == np.float32
    assert buffers.take("a", (4, 5)).shape == (4, 5)
