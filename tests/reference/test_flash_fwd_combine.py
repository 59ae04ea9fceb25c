"""The merge of partial attentions: exact neutral elements, order, and equality with the whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_numba.reference.attention import attention
from fa_numba.reference.flash_fwd_combine import flash_fwd_combine

EXACT = 1e-12  # float64 paths


def make_partials(rng, num_splits, batch=2, seqlen_q=3, nheads=2, headdim_v=4, dtype=np.float64):
    out = rng.standard_normal((num_splits, batch, seqlen_q, nheads, headdim_v)).astype(dtype)
    lse = (5 * rng.standard_normal((num_splits, batch, nheads, seqlen_q))).astype(dtype)
    return out, lse


def split_attention(q, k, v, cuts, **flags):
    """Attend each piece of the keys on its own; without a mask the pieces are independent."""
    parts = [
        attention(q, k[:, a:b], v[:, a:b], **flags)
        for a, b in zip([0, *cuts], [*cuts, k.shape[1]], strict=True)
    ]
    return np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts])


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 12),
    st.lists(st.integers(0, 12), max_size=5),
    st.sampled_from([0.0, 2.0]),
)
@settings(max_examples=60, deadline=None)
def test_equals_attention_over_all_keys(seed, seqlen_k, cuts, softcap):
    rng = np.random.default_rng(seed)
    q = 3 * rng.standard_normal((2, 3, 4, 5))
    k = rng.standard_normal((2, seqlen_k, 2, 5))
    v = rng.standard_normal((2, seqlen_k, 2, 6))
    cuts = sorted(min(c, seqlen_k) for c in cuts)

    out, lse = flash_fwd_combine(*split_attention(q, k, v, cuts, softcap=softcap))

    expected_out, expected_lse = attention(q, k, v, softcap=softcap)
    np.testing.assert_allclose(out, expected_out, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(lse, expected_lse, rtol=EXACT, atol=EXACT)


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(0, 20), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_empty_partials_are_neutral_bit_for_bit(dtype, seed, num_splits, where, num_empty):
    rng = np.random.default_rng(seed)
    # One row only: the shape in which np.sum would pair the splits.
    out, lse = make_partials(rng, num_splits, 1, 1, 1, 1, dtype)
    where = min(where, num_splits)
    garbage = rng.choice(np.array([np.nan, np.inf, -np.inf, 3e38], dtype), (num_empty, 1, 1, 1, 1))
    empty_lse = np.full((num_empty, 1, 1, 1), -np.inf, dtype)

    expected = flash_fwd_combine(out, lse)
    got = flash_fwd_combine(
        np.concatenate((out[:where], garbage, out[where:])),
        np.concatenate((lse[:where], empty_lse, lse[where:])),
    )

    assert same_bits(got[0], expected[0])
    assert same_bits(got[1], expected[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lone_partial_is_returned_bit_for_bit(dtype):
    out, lse = make_partials(np.random.default_rng(0), 1, dtype=dtype)
    out[0, 0, 0, 0, 0] = -0.0
    got_out, got_lse = flash_fwd_combine(out, lse)
    assert same_bits(got_out, out[0])
    assert same_bits(got_lse, lse[0])
    # Nor does an empty partial, before it or after it, turn its -0 into 0.
    empty = np.full_like(out, np.nan), np.full_like(lse, -np.inf)
    for pair in (((out, lse), empty), (empty, (out, lse))):
        got_out, got_lse = flash_fwd_combine(*map(np.concatenate, zip(*pair, strict=True)))
        assert same_bits(got_out, out[0])
        assert same_bits(got_lse, lse[0])


@pytest.mark.parametrize("num_splits", [0, 1, 3])
def test_all_empty_gives_zero_and_minus_infinity(num_splits):
    out = np.full((num_splits, 1, 2, 3, 4), np.nan, np.float32)
    lse = np.full((num_splits, 1, 3, 2), -np.inf, np.float32)
    got_out, got_lse = flash_fwd_combine(out, lse)
    assert same_bits(got_out, np.zeros((1, 2, 3, 4), np.float32))
    assert same_bits(got_lse, np.full((1, 3, 2), -np.inf, np.float32))


def test_rows_and_heads_are_merged_apart():
    out, lse = make_partials(np.random.default_rng(1), 2)
    lse[0, 0, 1, 2] = lse[1, 1, 0, 0] = -np.inf
    got_out, got_lse = flash_fwd_combine(out, lse)
    # Where one split is empty the other one is the result; lse has the head before the row.
    assert same_bits(got_out[0, 2, 1], out[1, 0, 2, 1])
    assert same_bits(got_out[1, 0, 0], out[0, 1, 0, 0])
    assert got_lse[0, 1, 2] == lse[1, 0, 1, 2]
    assert not np.array_equal(got_out[0, 2, 0], out[1, 0, 2, 0])


def test_vanishing_weight_does_not_meet_its_output():
    out = np.array([1.0, np.inf]).reshape(2, 1, 1, 1, 1)
    lse = np.array([0.0, -1e4]).reshape(2, 1, 1, 1)
    got_out, got_lse = flash_fwd_combine(out, lse)
    assert got_out.item() == 1.0
    assert got_lse.item() == 0.0


def test_large_lse_does_not_overflow():
    out, lse = make_partials(np.random.default_rng(2), 3, dtype=np.float32)
    got_out, got_lse = flash_fwd_combine(out, lse + np.float32(1024))
    expected_out, expected_lse = flash_fwd_combine(out.astype(np.float64), lse.astype(np.float64))
    # The float32 lse near 1024 itself carries 2^-14 of rounding.
    np.testing.assert_allclose(got_out, expected_out, atol=5e-4)
    np.testing.assert_allclose(got_lse, expected_lse + 1024, rtol=1e-6)


def test_nan_is_not_mistaken_for_empty():
    out, lse = make_partials(np.random.default_rng(3), 2)
    lse[0, 0, 0, 0] = np.nan
    got_out, got_lse = flash_fwd_combine(out, lse)
    assert np.isnan(got_out[0, 0, 0]).all()
    assert np.isnan(got_lse[0, 0, 0])
    assert np.isnan(got_out).sum() == out.shape[-1]


def test_sixteen_bit_partials_are_merged_in_float32():
    out, lse = make_partials(np.random.default_rng(4), 2, dtype=np.float32)
    got_out, got_lse = flash_fwd_combine(out.astype(np.float16), lse.astype(np.float16))
    expected = flash_fwd_combine(
        out.astype(np.float16).astype(np.float32), lse.astype(np.float16).astype(np.float32)
    )
    assert same_bits(got_out, expected[0])
    assert same_bits(got_lse, expected[1])


def test_inputs_are_left_alone():
    out, lse = make_partials(np.random.default_rng(5), 3)
    before = out.copy(), lse.copy()
    flash_fwd_combine(out, lse)
    assert same_bits(out, before[0])
    assert same_bits(lse, before[1])
