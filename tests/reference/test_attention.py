"""The forward oracle against scalar loops, known values and its own promises."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from fa_numba.reference.attention import (
    allowed_keys,
    attention,
    masked_softmax,
    round_through,
    sum_allowed,
)


def attention_by_loops(q, k, v, softmax_scale, window_left, window_right, sink, softcap):
    """One scalar at a time, with `math` only: nothing to vectorise wrongly."""
    batch, seqlen_q, nheads, headdim = q.shape
    seqlen_k, nheads_k, headdim_v = k.shape[1], k.shape[2], v.shape[3]
    out = np.zeros((batch, seqlen_q, nheads, headdim_v))
    lse = np.full((batch, nheads, seqlen_q), -math.inf)
    for b, h, i in itertools.product(range(batch), range(nheads), range(seqlen_q)):
        head_k = h * nheads_k // nheads
        weights = {}
        for j in range(seqlen_k):
            distance = j - (i + seqlen_k - seqlen_q)
            if window_right >= 0 and distance > window_right:
                continue
            if window_left >= 0 and -distance > window_left and j >= sink:
                continue
            score = softmax_scale * sum(
                float(q[b, i, h, d]) * float(k[b, j, head_k, d]) for d in range(headdim)
            )
            if softcap:
                score = softcap * math.tanh(score / softcap)
            weights[j] = math.exp(score)
        if weights:
            total = math.fsum(weights.values())
            lse[b, h, i] = math.log(total)
            for j, weight in weights.items():
                out[b, i, h] += weight / total * v[b, j, head_k].astype(float)
    return out, lse


@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(1, 1), (3, 5), (5, 3), (4, 4)])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (1, 0), (0, 2), (1, 1), (0, 0), (2, -1)])
@pytest.mark.parametrize(("sink", "softcap"), [(0, 0.0), (2, 0.7)])
def test_equals_scalar_loops(seqlen_q, seqlen_k, window, sink, softcap):
    rng = np.random.default_rng(7)
    q = rng.standard_normal((2, seqlen_q, 6, 3))
    k = rng.standard_normal((2, seqlen_k, 2, 3))
    v = rng.standard_normal((2, seqlen_k, 2, 5))
    out, lse = attention(
        q, k, v, softmax_scale=0.4, window_size=window, sink_token_length=sink, softcap=softcap
    )
    want_out, want_lse = attention_by_loops(q, k, v, 0.4, *window, sink, softcap)
    np.testing.assert_allclose(out, want_out, rtol=0, atol=1e-13)
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-13)


def test_causal_is_bottom_right_aligned():
    # The picture of the flash-attention README: 2 queries, 5 keys; and 5 queries, 2 keys.
    np.testing.assert_array_equal(
        allowed_keys(2, 5, True, (-1, -1), 0), [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    )
    np.testing.assert_array_equal(
        allowed_keys(5, 2, True, (-1, -1), 0), [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]
    )


def test_sink_relaxes_only_the_left_bound():
    np.testing.assert_array_equal(
        allowed_keys(3, 3, True, (0, 0), 1), [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    )


def test_none_and_negative_mean_no_bound():
    assert allowed_keys(3, 4, False, (None, None), 0).all()
    np.testing.assert_array_equal(
        allowed_keys(3, 4, False, (-5, 2**31 - 1), 0), np.ones((3, 4), bool)
    )


def test_default_scale_is_the_inverse_root_of_headdim():
    q = np.full((1, 1, 1, 16), 2.0)
    lse = attention(q, q, q)[1]
    assert lse.item() == pytest.approx(16 * 4 / 4)


def test_zero_query_averages_and_lse_is_log_of_length():
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 1, 9, 1, 4))
    out, lse = attention(np.zeros((1, 2, 1, 4)), k[None][0], v[None][0])
    np.testing.assert_allclose(lse, math.log(9), rtol=1e-15)
    np.testing.assert_allclose(out[0, 0, 0], v[0, :, 0].mean(axis=0), rtol=1e-14)


def test_empty_rows_are_zero_with_lse_minus_infinity():
    rng = np.random.default_rng(1)
    q = rng.standard_normal((1, 5, 1, 4))
    q[0, :3] = np.nan
    k = rng.standard_normal((1, 2, 1, 4))
    out, lse = attention(q, k, k, causal=True)
    np.testing.assert_array_equal(out[0, :3], 0)
    np.testing.assert_array_equal(lse[0, 0, :3], -np.inf)
    assert np.isfinite(out[0, 3:]).all()
    assert np.isfinite(lse[0, 0, 3:]).all()


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_dimensions(shape):
    batch, seqlen_q, seqlen_k = shape
    out, lse = attention(
        np.ones((batch, seqlen_q, 2, 4)),
        np.ones((batch, seqlen_k, 1, 4)),
        np.ones((batch, seqlen_k, 1, 3)),
    )
    assert out.shape == (batch, seqlen_q, 2, 3)
    assert not out.any()
    assert lse.shape == (batch, 2, seqlen_q)
    assert np.isneginf(lse).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_masked_poison_reaches_only_the_rows_that_may_attend_it(poison):
    rng = np.random.default_rng(2)
    q, k, v = rng.standard_normal((3, 1, 4, 2, 3))
    want, want_lse = attention(q, k, v, causal=True)
    k_bad, v_bad = k.copy(), v.copy()
    k_bad[0, 2], v_bad[0, 2, :, 1] = np.nan, poison
    out, lse = attention(q, k_bad, v_bad, causal=True)
    np.testing.assert_array_equal(out[:, :2], want[:, :2])
    np.testing.assert_array_equal(lse[..., :2], want_lse[..., :2])
    assert np.isnan(out[:, 2:]).all()
    assert np.isnan(lse[..., 2:]).all()


def test_infinite_value_spoils_only_its_column_and_its_readers():
    rng = np.random.default_rng(3)
    q, k, v = rng.standard_normal((3, 1, 4, 1, 3))
    v[0, 2, 0, 1] = np.inf
    out = attention(q, k, v, causal=True)[0][0, :, 0]
    assert np.isposinf(out[2:, 1]).all()
    assert np.isfinite(out[:2]).all()
    assert np.isfinite(out[:, [0, 2]]).all()


def test_heads_of_a_group_share_their_key_head():
    v = np.broadcast_to(np.arange(3.0)[:, None], (1, 5, 3, 2))
    q = np.random.default_rng(4).standard_normal((1, 2, 6, 2))
    out = attention(q, np.zeros((1, 5, 3, 2)), v)[0]
    np.testing.assert_allclose(out[0, :, :, 0], [[0, 0, 1, 1, 2, 2]] * 2)


def test_descales_equal_scaled_inputs():
    rng = np.random.default_rng(5)
    q = rng.standard_normal((2, 3, 4, 8)).astype(ml_dtypes.float8_e4m3fn)
    k, v = rng.standard_normal((2, 2, 5, 2, 8)).astype(ml_dtypes.float8_e4m3fn)
    dq, dk, dv = 2.0 ** rng.permutation(12).reshape(3, 2, 2).astype(np.float32) / 64
    spread = [x[:, None, :, None].astype(float) for x in (dq, dk, dv)]
    want = attention(
        q.astype(float) * np.repeat(spread[0], 2, axis=2),
        k.astype(float) * spread[1],
        v.astype(float) * spread[2],
        softcap=3.0,
    )
    got = attention(q, k, v, q_descale=dq, k_descale=dk, v_descale=dv, softcap=3.0)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-13)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-13)


def test_constant_added_to_a_row_moves_only_lse():
    rng = np.random.default_rng(6)
    q, k, v = rng.standard_normal((3, 1, 6, 2, 5))
    shift = rng.standard_normal((1, 6, 2, 1)) * 30
    plain = attention(q, k, v, softmax_scale=1.0, causal=True)
    moved = attention(
        np.concatenate([q, shift], -1),
        np.concatenate([k, np.ones((1, 6, 2, 1))], -1),
        v,
        softmax_scale=1.0,
        causal=True,
    )
    np.testing.assert_allclose(moved[0], plain[0], atol=1e-12)
    np.testing.assert_allclose(moved[1] - plain[1], shift[..., 0].swapaxes(1, 2), atol=1e-12)


def test_large_scores_do_not_overflow():
    q = np.full((1, 1, 1, 1), 1e4)
    out, lse = attention(q, np.array([1.0, 2.0]).reshape(1, 2, 1, 1), np.ones((1, 2, 1, 1)))
    assert out.item() == 1.0
    assert lse.item() == 2e4


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_round_to_rounds_each_stage(dtype):
    rng = np.random.default_rng(8)
    q, k, v = rng.standard_normal((3, 1, 7, 1, 4)).astype(dtype)
    wide = [x.astype(np.float32)[0, :, 0] for x in (q, k, v)]
    scores = round_through(wide[0] @ wide[1].T * np.float32(0.5), dtype)
    weight = np.exp(scores - scores.max(1, keepdims=True))
    prob = round_through(weight / weight.sum(1, keepdims=True), dtype)
    out = attention(q, k, v, compute_dtype=np.float32, round_to=dtype)[0]
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, round_through(out, dtype))
    np.testing.assert_allclose(
        out[0, :, 0], round_through(prob @ wide[2], dtype), rtol=2.0**-3, atol=2.0**-9
    )
    exact = attention(q, k, v)[0]
    assert 0 < np.abs(out - exact).max() < 0.3


def test_round_through_saturates_float8():
    e4m3 = ml_dtypes.float8_e4m3fn
    x = np.array([1e9, -1e9, np.inf, np.nan, 447.0, 0.3], dtype=np.float32)
    np.testing.assert_array_equal(round_through(x, e4m3), [448, -448, 448, np.nan, 448, 0.3125])
    assert round_through(x, None) is x


def test_masked_softmax_and_sum_agree_on_plain_input():
    rng = np.random.default_rng(9)
    scores, x = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 5))
    full = np.ones((3, 4), bool)
    prob, lse = masked_softmax(scores, full)
    np.testing.assert_allclose(prob, np.exp(scores - lse[..., None]), rtol=1e-14)
    np.testing.assert_array_equal(sum_allowed(prob, full, x), prob @ x)
