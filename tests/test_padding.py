"""Padded batches to packed ones and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fa_numba as fa


@given(
    batch=st.integers(0, 5),
    seqlen=st.integers(0, 9),
    seed=st.integers(0, 99),
    density=st.floats(0, 1),
)
def test_round_trip(batch, seqlen, seed, density):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, seqlen, 2, 3))
    mask = rng.random((batch, seqlen)) < density
    packed, indices, cu_seqlens, max_seqlen = fa.unpad_input(x, mask)
    rows = [x[b, s] for b in range(batch) for s in range(seqlen) if mask[b, s]]
    np.testing.assert_array_equal(packed, np.array(rows).reshape(-1, 2, 3))
    lengths = mask.sum(axis=1)
    np.testing.assert_array_equal(np.diff(cu_seqlens), lengths)
    assert cu_seqlens[0] == 0
    assert cu_seqlens.dtype == np.int32
    assert max_seqlen == max(lengths.tolist(), default=0)
    padded = fa.pad_input(packed, indices, batch, seqlen)
    np.testing.assert_array_equal(padded, np.where(mask[..., None, None], x, 0))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, bool])
@pytest.mark.parametrize("real", [1, 2, 255])
def test_masks_of_integers(dtype, real):
    x = np.arange(6.0).reshape(2, 3)
    mask = np.array([[real, 0, 1], [0, real, 0]], dtype)
    packed, indices, cu_seqlens, max_seqlen = fa.unpad_input(x, mask)
    np.testing.assert_array_equal(packed, [0, 2, 4])
    np.testing.assert_array_equal(indices, [0, 2, 4])
    np.testing.assert_array_equal(cu_seqlens, [0, 2, 3])
    assert max_seqlen == 2
