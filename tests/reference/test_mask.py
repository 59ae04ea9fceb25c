"""The tile mask is the integer rule for every element, and masking overwrites instead of adding."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.indexing.mask import is_allowed
from fa_numba.reference.mask import apply_mask, tile_mask, zero_dead_rows

BOUND = st.integers(-1, 12)


@given(
    st.tuples(st.integers(0, 14), st.integers(0, 9)),
    st.tuples(st.integers(0, 14), st.integers(0, 9)),
    st.integers(0, 12),
    st.integers(0, 12),
    BOUND,
    BOUND,
    st.integers(0, 6),
)
def test_tile_mask_is_is_allowed_of_every_element(
    rows, cols, seqlen_q, seqlen_k, window_left, window_right, sink_token_length
):
    """Tiles may hang over the ends of both sequences, or lie past them altogether."""
    (row, num_rows), (col, num_cols) = rows, cols
    geometry = (seqlen_q, seqlen_k, window_left, window_right, sink_token_length)
    mask = tile_mask(row, row + num_rows, col, col + num_cols, *geometry)
    expected = [
        [is_allowed(i, j, *geometry) for j in range(col, col + num_cols)]
        for i in range(row, row + num_rows)
    ]
    assert mask.dtype == np.bool_
    np.testing.assert_array_equal(mask, np.reshape(expected, (num_rows, num_cols)))


def test_apply_mask_overwrites_whatever_is_there_in_every_head_of_a_group():
    rng = np.random.default_rng(0)
    allowed = rng.random((3, 5)) < 0.5
    scores = rng.standard_normal((2, 2, 4, 3, 5)).astype(np.float32)
    scores[0, 0, 1][~allowed] = np.nan
    scores[1, 1, 3][~allowed] = np.inf
    expected = np.where(allowed, scores, np.float32(-np.inf))

    packed = scores.reshape(2, 2, 12, 5)
    apply_mask(packed, allowed)

    np.testing.assert_array_equal(packed.reshape(scores.shape), expected)


def test_zero_dead_rows_keeps_every_value_that_some_query_attends():
    allowed = np.array([[True, False, False, True], [False, False, True, False]])
    v = np.arange(2 * 4 * 3, dtype=np.float32).reshape(2, 4, 3) + 1
    v[:, 1] = np.inf
    v[0, 1, 1] = np.nan
    v[0, 2, 0] = np.inf
    before = v.copy()

    zeroed = zero_dead_rows(v, allowed)

    np.testing.assert_array_equal(zeroed[:, 1], 0)
    np.testing.assert_array_equal(zeroed[:, [0, 2, 3]], before[:, [0, 2, 3]])
    np.testing.assert_array_equal(v, before, "the operand itself must not change")
    assert zeroed.dtype == v.dtype


def test_zero_dead_rows_copies_nothing_where_all_keys_are_attended():
    v = np.ones((1, 2, 3))
    assert zero_dead_rows(v, np.eye(2, dtype=np.bool_)) is v
