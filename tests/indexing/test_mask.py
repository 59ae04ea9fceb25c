import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.indexing.mask import col_limits, is_allowed, normalize_window, row_limits
from tests.indexing.brute import dense_mask, lengths, sinks, thorough, windows


@thorough
@given(lengths, lengths, windows, windows, sinks)
def test_col_limits_describe_every_row_of_the_dense_mask(sq, sk, left, right, sink):
    mask = dense_mask(sq, sk, left, right, sink)
    cols = np.arange(sk)
    for row in range(sq):
        col_left, col_right = col_limits(row, sq, sk, left, right)
        assert 0 <= col_left <= col_right <= sk
        allowed = (cols < col_right) & ((cols >= col_left) | (cols < sink))
        assert np.array_equal(allowed, mask[row])


@thorough
@given(lengths, lengths, windows, windows, sinks)
def test_row_limits_describe_every_column_of_the_dense_mask(sq, sk, left, right, sink):
    mask = dense_mask(sq, sk, left, right, sink)
    rows = np.arange(sq)
    for col in range(sk):
        row_min, row_max = row_limits(col, sq, sk, left, right, sink)
        assert 0 <= row_min <= row_max <= sq
        assert np.array_equal((rows >= row_min) & (rows < row_max), mask[:, col])


@thorough
@given(lengths, lengths, windows, windows, sinks)
def test_is_allowed_equals_the_dense_mask_and_refuses_padding(sq, sk, left, right, sink):
    mask = np.zeros((sq + 4, sk + 4), bool)
    mask[2 : sq + 2, 2 : sk + 2] = dense_mask(sq, sk, left, right, sink)
    got = [
        [is_allowed(row, col, sq, sk, left, right, sink) for col in range(-2, sk + 2)]
        for row in range(-2, sq + 2)
    ]
    assert np.array_equal(np.array(got, bool), mask)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # (row, seqlen_q, seqlen_k, window_left, window_right)
        ((0, 4, 6, -1, -1), (0, 6)),
        ((0, 4, 6, -1, 0), (0, 3)),
        ((3, 4, 6, -1, 0), (0, 6)),
        ((0, 6, 4, -1, 0), (0, 0)),
        ((2, 6, 4, -1, 0), (0, 1)),
        ((5, 8, 8, 2, 1), (3, 7)),
        ((0, 1, 100, 0, 0), (99, 100)),
        ((7, 8, 0, 3, 0), (0, 0)),
    ],
)
def test_col_limits_examples(arguments, expected):
    assert col_limits(*arguments) == expected


def test_a_sink_relaxes_the_window_but_not_causality():
    # Row 9 of 10, window (2, 0), two sinks: keys 0, 1 and 7, 8, 9.
    assert [j for j in range(10) if is_allowed(9, j, 10, 10, 2, 0, 2)] == [0, 1, 7, 8, 9]
    assert [j for j in range(10) if is_allowed(0, j, 10, 10, 2, 0, 2)] == [0]


huge = st.one_of(st.integers(-5, 30), st.integers(2**31 - 3, 2**31 + 3), st.integers(-(2**31), -1))


@thorough
@given(st.booleans(), huge, huge, lengths, lengths, sinks)
def test_normalize_window_changes_no_mask_and_stays_small(causal, left, right, sq, sk, sink):
    new_left, new_right = normalize_window(causal, left, right, sq, sk)
    assert -1 <= new_left <= max(sq, sk)
    assert -1 <= new_right <= max(sq, sk)
    expected = dense_mask(sq, sk, left, 0 if causal else right, sink)
    assert np.array_equal(dense_mask(sq, sk, new_left, new_right, sink), expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((False, -1, -1, 5, 9), (-1, -1)),
        ((True, -1, -1, 5, 9), (-1, 0)),
        ((True, 3, 7, 5, 9), (3, 0)),
        ((False, 2**31 - 1, 2**31 - 1, 5, 9), (9, 9)),
        ((False, 2**31 - 1, 2**31 - 1, 9, 5), (9, 9)),
        ((False, -7, -2, 5, 9), (-1, -1)),
        ((False, 0, 0, 5, 9), (0, 0)),
        ((True, 4, 4, 0, 0), (0, 0)),
    ],
)
def test_normalize_window_examples(arguments, expected):
    assert normalize_window(*arguments) == expected
