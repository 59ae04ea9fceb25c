"""What the public functions add to the tiled loops: layouts, outputs, splits, caches in place.

Right results on all shapes and flags are the business of the case tests.
"""

import ml_dtypes
import numpy as np
import pytest

import fa_numba as fa


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def randn(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def i32(*values):
    return np.array(values, np.int32)


def test_packed_layouts_are_views_of_the_same_call(rng):
    qkv = randn(rng, 2, 9, 3, 4, 8)
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    flags = {"causal": True, "softcap": 5.0, "return_lse": True}
    plain = fa.flash_attn_func(q, k, v, **flags)
    for packed in (
        fa.flash_attn_qkvpacked_func(qkv, **flags),
        fa.flash_attn_kvpacked_func(q, qkv[:, :, 1:], **flags),
    ):
        for got, expected in zip(packed, plain, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_packed_varlen_layouts_are_views_of_the_same_call(rng):
    qkv = randn(rng, 11, 3, 4, 8)
    cu_seqlens = i32(0, 4, 4, 11)
    q, k, v = qkv[:, 0], qkv[:, 1], qkv[:, 2]
    plain = fa.flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, 7, 7, window_size=(2, 1))
    whole = fa.flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, 7, window_size=(2, 1))
    half = fa.flash_attn_varlen_kvpacked_func(
        q, qkv[:, 1:], cu_seqlens, cu_seqlens, 7, 7, window_size=(2, 1)
    )
    np.testing.assert_array_equal(whole, plain)
    np.testing.assert_array_equal(half, plain)


@pytest.mark.parametrize("flags", [{}, {"num_splits": 3}, {"causal": True}])
def test_varlen_is_dense_sequence_by_sequence(rng, flags):
    lengths_q, lengths_k = [3, 0, 8, 1], [5, 4, 0, 300]
    cu_q, cu_k = (i32(0, *np.cumsum(lengths)) for lengths in (lengths_q, lengths_k))
    q, k, v = randn(rng, 14, 4, 8), randn(rng, 311, 2, 8), randn(rng, 311, 2, 6)
    out, lse = fa.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 8, 300, return_lse=True, **flags)
    for b in range(4):
        rows, keys = slice(*cu_q[b : b + 2]), slice(*cu_k[b : b + 2])
        expected, expected_lse = fa.flash_attn_func(
            q[None, rows], k[None, keys], v[None, keys], return_lse=True, **flags
        )
        np.testing.assert_array_equal(out[rows], expected[0])
        np.testing.assert_array_equal(lse[:, rows], expected_lse[0])
    # Two rows of q lie past the last sequence.
    assert not out[12:].any()
    assert (lse[:, 12:] == -np.inf).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_results_come_in_the_dtype_of_q(rng, dtype):
    q, k, v = (randn(rng, 1, 6, 2, 8, dtype=dtype) for _ in range(3))
    out, lse = fa.flash_attn_func(q, k, v, return_lse=True)
    assert out.dtype == dtype
    assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    grads = fa.flash_attn_backward(out, q, k, v, out, lse)
    assert [g.dtype for g in grads] == [np.dtype(dtype)] * 3


@pytest.mark.parametrize("out_dtype", [None, np.float16, np.float32])
def test_fp8_codes_may_come_as_uint8(rng, out_dtype):
    q, k, v = (randn(rng, 2, 6, 2, 8, dtype=ml_dtypes.float8_e4m3fn) for _ in range(3))
    descales = {name: randn(rng, 2, 2) ** 2 for name in ("q_descale", "k_descale", "v_descale")}
    out = fa.flash_attn_func(q, k, v, out_dtype=out_dtype, **descales)
    assert out.dtype == (out_dtype or ml_dtypes.bfloat16)
    codes = [x.view(np.uint8) for x in (q, k, v)]
    same = fa.flash_attn_func(*codes, dtype="float8_e4m3fn", out_dtype=out_dtype, **descales)
    np.testing.assert_array_equal(same, out)


def test_small_probabilities_survive_fp8():
    """e^-7.5 is 0 in E4M3, and is not once the loop has scaled P by 2^8."""
    e4m3 = ml_dtypes.float8_e4m3fn
    q, k, v = (np.zeros((1, seqlen, 1, 8), e4m3) for seqlen in (1, 256, 256))
    q[..., 0], k[:, 1:, :, 0], v[:, 1:] = 1, -7.5, 1
    assert e4m3(np.exp(-7.5)) == 0
    for num_splits in (1, 2):
        out = fa.flash_attn_func(
            q, k, v, softmax_scale=1.0, out_dtype="float32", num_splits=num_splits
        )
        weight = 255 * np.exp(-7.5)
        # E4M3 is off by at most 1/16 of P.
        assert (np.abs(out * (1 + weight) - weight) <= weight / 16).all()


def test_out_is_written_and_returned(rng):
    q, k, v = (randn(rng, 2, 5, 4, 8) for _ in range(3))
    expected = fa.flash_attn_func(q, k, v)
    buffer = np.full((2, 4, 5, 8), np.nan, np.float32)
    out = buffer.swapaxes(1, 2)
    got = fa.flash_attn_func(q, k, v, out=out)
    assert got is out
    np.testing.assert_array_equal(buffer.swapaxes(1, 2), expected)
    # The output may even overwrite q.
    assert fa.flash_attn_func(q, k, v, out=q) is q
    np.testing.assert_array_equal(q, expected)


def test_inputs_are_not_written(rng):
    q, k, v, dout = (randn(rng, 1, 5, 2, 8) for _ in range(4))
    for x in (q, k, v, dout):
        x.flags.writeable = False
    out, lse = fa.flash_attn_func(q, k, v, causal=True, softcap=2.0, return_lse=True)
    fa.flash_attn_backward(dout, q, k, v, out, lse, causal=True, softcap=2.0)


def test_gradients_of_broadcast_operands(rng):
    """A zero stride in an input must not become shared memory in its gradient."""
    q, dout = randn(rng, 3, 5, 2, 8), randn(rng, 3, 5, 2, 8)
    k, v = (np.broadcast_to(randn(rng, 1, 6, 2, 8), (3, 6, 2, 8)) for _ in range(2))
    out, lse = fa.flash_attn_func(q, k, v, return_lse=True)
    grads = fa.flash_attn_backward(dout, q, k, v, out, lse)
    copied = fa.flash_attn_backward(dout, q, k.copy(), v.copy(), out, lse)
    for grad, expected in zip(grads, copied, strict=True):
        np.testing.assert_array_equal(grad, expected)


def test_varlen_gradients_are_dense_sequence_by_sequence(rng):
    cu_q, cu_k = i32(0, 4, 4, 9), i32(0, 6, 8, 15)
    seqused_q, seqused_k = i32(3, 0, 5), i32(6, 2, 5)
    q, dout, k, v = (randn(rng, n, 2, 8) for n in (10, 10, 16, 16))
    dlse = randn(rng, 2, 10)
    flags = {"causal": True, "softcap": 3.0}
    used = {"seqused_q": seqused_q, "seqused_k": seqused_k}
    out, lse = fa.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, 5, 7, return_lse=True, **used, **flags
    )
    dq, dk, dv = fa.flash_attn_varlen_backward(
        dout, q, k, v, out, lse, cu_q, cu_k, 5, 7, dlse=dlse, **used, **flags
    )
    expected = [np.zeros_like(x) for x in (q, k, v)]
    for b in range(3):
        rows = slice(cu_q[b], cu_q[b] + seqused_q[b])
        keys = slice(cu_k[b], cu_k[b] + seqused_k[b])
        one = fa.flash_attn_backward(
            dout[None, rows], q[None, rows], k[None, keys], v[None, keys], out[None, rows],
            lse[None, :, rows], dlse=dlse[None, :, rows], **flags,
        )  # fmt: skip
        for whole, span, grad in zip(expected, (rows, keys, keys), one, strict=True):
            whole[span] = grad[0]
    for got, want in zip((dq, dk, dv), expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("num_splits", [2, 3, 7, 256])
def test_splits_agree_and_repeat(rng, num_splits):
    q, k, v = randn(rng, 2, 4, 4, 16), randn(rng, 2, 5000, 2, 16), randn(rng, 2, 5000, 2, 16)
    flags = {"causal": True, "return_lse": True}
    out, lse = fa.flash_attn_func(q, k, v, **flags)
    split = fa.flash_attn_func(q, k, v, num_splits=num_splits, **flags)
    np.testing.assert_allclose(split[0], out, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(split[1], lse, rtol=1e-6)
    again = fa.flash_attn_func(q, k, v, num_splits=num_splits, **flags)
    for first, second in zip(split, again, strict=True):
        np.testing.assert_array_equal(first, second)


def test_combine_merges_calls_over_parts_of_the_keys(rng):
    q, k, v = randn(rng, 2, 3, 4, 16), randn(rng, 2, 90, 4, 16), randn(rng, 2, 90, 4, 16)
    parts = [
        fa.flash_attn_func(q, k[:, part], v[:, part], return_lse=True)
        for part in (slice(0, 20), slice(20, 20), slice(20, 90))
    ]
    partials, lses = (np.stack(x) for x in zip(*parts, strict=True))
    out, lse = fa.flash_attn_combine(partials, lses)
    expected, expected_lse = fa.flash_attn_func(q, k, v, return_lse=True)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-6)
    assert fa.flash_attn_combine(partials, lses, out_dtype="float16")[0].dtype == np.float16


def caches(rng, rows=3, slots=12):
    return randn(rng, rows, slots, 2, 8), randn(rng, rows, slots, 2, 6)


def test_kvcache_appends_into_the_callers_array(rng):
    k_cache, v_cache = caches(rng)
    k, v, q = randn(rng, 3, 2, 2, 8), randn(rng, 3, 2, 2, 6), randn(rng, 3, 2, 4, 8)
    before = k_cache.copy()
    cache_seqlens = i32(0, 7, 10)
    out = fa.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, causal=True
    )
    for b, start in enumerate(cache_seqlens):
        new = slice(start, start + 2)
        np.testing.assert_array_equal(k_cache[b, new], k[b])
        np.testing.assert_array_equal(v_cache[b, new], v[b])
        before[b, new] = k[b]
        expected = fa.flash_attn_func(
            q[b : b + 1], k_cache[b : b + 1, : new.stop], v_cache[b : b + 1, : new.stop],
            causal=True,
        )  # fmt: skip
        np.testing.assert_array_equal(out[b : b + 1], expected)
    np.testing.assert_array_equal(k_cache, before)
    assert cache_seqlens.tolist() == [0, 7, 10]


def test_kvcache_lengths_as_int_as_array_and_as_the_whole_cache(rng):
    k_cache, v_cache = caches(rng)
    q = randn(rng, 3, 2, 4, 8)
    by_int = fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=9)
    by_array = fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=i32(9, 9, 9))
    np.testing.assert_array_equal(by_int, by_array)
    np.testing.assert_array_equal(by_int, fa.flash_attn_func(q, k_cache[:, :9], v_cache[:, :9]))
    whole = fa.flash_attn_with_kvcache(q, k_cache, v_cache)
    np.testing.assert_array_equal(whole, fa.flash_attn_func(q, k_cache, v_cache))


@pytest.mark.parametrize("window", [{}, {"causal": True}, {"window_size": (4, 0)}])
def test_kvcache_rows_leftpad_and_packed_queries(rng, window):
    k_cache, v_cache = caches(rng, rows=4)
    q = randn(rng, 8, 4, 8)
    cu_q, rows, leftpad, lengths = i32(1, 3, 3, 7), i32(2, 0, 3), i32(0, 5, 4), i32(6, 9, 12)
    flags = {"return_lse": True, **window}
    out, lse = fa.flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=lengths, cache_batch_idx=rows, cache_leftpad=leftpad,
        cu_seqlens_q=cu_q, max_seqlen_q=4, **flags,
    )  # fmt: skip
    for b in range(3):
        queries, slots = slice(*cu_q[b : b + 2]), slice(leftpad[b], lengths[b])
        expected, expected_lse = fa.flash_attn_func(
            q[None, queries], k_cache[None, rows[b], slots], v_cache[None, rows[b], slots], **flags
        )
        np.testing.assert_array_equal(out[queries], expected[0])
        np.testing.assert_array_equal(lse[:, queries], expected_lse[0])
    # Rows of q before the first sequence and after the last one.
    assert not out[[0, 7]].any()
    assert (lse[:, [0, 7]] == -np.inf).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_queries_are_rotated_by_their_slots(rng, masked, packed):
    """Masked: row i by cache_seqlens + i; unmasked: every row by cache_seqlens."""
    angles = rng.uniform(0, 6, (20, 3))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    k_cache, v_cache = caches(rng, rows=2)
    q, k, v = randn(rng, 2, 3, 2, 8), randn(rng, 2, 3, 2, 8), randn(rng, 2, 3, 2, 6)
    lengths = i32(2, 5)

    def rotated(x, position):
        first, second = x[..., :6:2], x[..., 1:6:2]
        c, s = cos[position], sin[position]
        turned = x.copy()
        turned[..., :6:2] = first * c - second * s
        turned[..., 1:6:2] = first * s + second * c
        return turned

    expected = []
    for b, length in enumerate(lengths):
        keys, values = k_cache[b, : length + 3].copy(), v_cache[b, : length + 3].copy()
        for t in range(3):
            keys[length + t], values[length + t] = rotated(k[b, t], length + t), v[b, t]
        turned = np.stack([rotated(q[b, i], length + i * masked) for i in range(3)])
        expected.append(fa.flash_attn_func(turned[None], keys[None], values[None], causal=masked))
    extra = {}
    queries = q
    if packed:
        # One row of q belongs to no sequence.
        queries = np.concatenate([q.reshape(6, 2, 8), q[0, :1]])
        extra = {"cu_seqlens_q": i32(0, 3, 6), "max_seqlen_q": 3}
    out = fa.flash_attn_with_kvcache(
        queries, k_cache, v_cache, k, v, cache_seqlens=lengths, rotary_cos=cos, rotary_sin=sin,
        causal=masked, **extra,
    )  # fmt: skip
    if packed:
        assert not out[6].any()
        out = out[:6].reshape(2, 3, 2, 6)
    np.testing.assert_allclose(out, np.concatenate(expected), rtol=1e-5, atol=1e-6)


def test_quantize_gives_what_attention_takes(rng):
    q, k, v = randn(rng, 2, 40, 6, 16), randn(rng, 2, 40, 2, 16), randn(rng, 2, 40, 2, 16)
    codes, descales = {}, {}
    for name, x in (("q", q), ("k", k), ("v", v)):
        codes[name], descales[f"{name}_descale"] = fa.quantize(
            x, nheads_k=2, rotate=name in ("q", "k")
        )
    out = fa.flash_attn_func(**codes, **descales, out_dtype="float32")
    exact = fa.flash_attn_func(q, k, v)
    error = np.sqrt(np.mean((out - exact) ** 2) / np.mean(exact**2))
    assert 1e-3 < error < 0.1


def test_check_errors_has_nothing_to_raise_for_numpy_calls(rng):
    q = randn(rng, 1, 3, 1, 8)
    fa.flash_attn_func(q, q, q)
    assert fa.check_errors() is None


def test_the_callers_floating_point_settings_do_not_matter(rng):
    """Exponentials underflow, NaN and infinities pass; neither raises nor warns."""
    q, k, v, dout = (30 * randn(rng, 2, 6, 2, 8) for _ in range(4))
    v[0, 3, 0, 0] = np.inf

    def everything():
        out, lse = fa.flash_attn_func(q, k, v, causal=True, softcap=40.0, return_lse=True)
        split = fa.flash_attn_func(q, k, v, causal=True, num_splits=2)
        into = fa.flash_attn_func(q, k, v, out=np.empty_like(out))
        grads = fa.flash_attn_backward(dout, q, k, v, out, lse, causal=True, softcap=40.0)
        merged = fa.flash_attn_combine(
            np.stack([1e9 * dout, dout]), np.stack([lse, lse - 200]), out_dtype="float16"
        )
        return out, lse, split, into, *grads, *merged, *fa.quantize(1e-30 * v, rotate=True)

    quiet = everything()
    with np.errstate(all="raise"):
        strict = everything()
    for got, expected in zip(strict, quiet, strict=True):
        np.testing.assert_array_equal(got, expected)
    lse = np.full((2, 1, 2, 5), np.nan, np.float32)  # of a forward that met a NaN
    assert np.isnan(fa.flash_attn_combine(randn(rng, 2, 1, 5, 2, 8), lse)[0]).all()
