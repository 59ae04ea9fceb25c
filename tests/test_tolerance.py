"""The tolerance must refuse planted errors and accept honest arithmetic; else it tests nothing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fa_numba.reference.attention import attention, round_through
from fa_numba.reference.attention_grad import attention_grad
from tests.tolerance import (
    DTYPES,
    allowed_error,
    assert_appended,
    assert_grads,
    assert_lse,
    assert_out,
    truth_and_lowprec,
)

FLOATS = ("float64", "float32", "float16", "bfloat16")
ALL = (*FLOATS, "float8_e4m3fn")


def make_inputs(dtype, seqlen_q=40, seqlen_k=56):
    rng = np.random.default_rng(3)
    shapes = ((2, seqlen_q, 4, 32), (2, seqlen_k, 2, 32), (2, seqlen_k, 2, 32))
    return tuple(rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes)


def rescaled_tiles(q, k, v, *, rescale=True, tile=16):
    """Causal online softmax in float32 on one head after the other, as a kernel would do it."""
    scale, group = np.float32(q.shape[3] ** -0.5), q.shape[2] // k.shape[2]
    rows, cols = q.shape[1], k.shape[1]
    query = np.moveaxis(q.astype(np.float32), 2, 1)
    key, value = (np.repeat(np.moveaxis(x.astype(np.float32), 2, 1), group, 1) for x in (k, v))
    acc = np.zeros((*query.shape[:3], v.shape[3]), np.float32)
    row_max = np.full(query.shape[:3], -np.inf, np.float32)
    row_sum = np.zeros_like(row_max)
    for start in range(0, cols, tile):
        s = query @ key[:, :, start : start + tile].swapaxes(-1, -2) * scale
        seen = np.arange(start, start + s.shape[-1]) <= np.arange(rows)[:, None] + cols - rows
        s = np.where(seen, s, np.float32(-np.inf))
        new_max = np.maximum(row_max, s.max(-1))
        factor = np.exp(row_max - new_max)
        p = np.exp(s - new_max[..., None])
        row_sum = row_sum * factor + p.sum(-1)
        acc = acc * factor[..., None] if rescale else acc
        acc = acc + round_through(p, q.dtype) @ value[:, :, start : start + tile]
        row_max = new_max
    out = np.moveaxis(acc / row_sum[..., None], 1, 2).astype(q.dtype)
    return out, row_max + np.log(row_sum)


def expect_refusal(check, *args, **kwargs):
    with pytest.raises(AssertionError):
        check(*args, **kwargs)


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_accepts_an_honest_tile_loop_and_refuses_one_without_rescale(dtype):
    q, k, v = make_inputs(dtype)
    (ref, ref_lse), (low, _) = truth_and_lowprec(attention, q, k, v, dtype=dtype, causal=True)
    out, lse = rescaled_tiles(q, k, v)
    assert_out(out, ref, low, dtype)
    assert_lse(lse, ref_lse, dtype)
    expect_refusal(assert_out, rescaled_tiles(q, k, v, rescale=False)[0], ref, low, dtype)


@pytest.mark.parametrize("dtype", ALL)
def test_accepts_the_comparator_itself(dtype):
    q, k, v = make_inputs(dtype)
    (ref, _), (low, _) = truth_and_lowprec(attention, q, k, v, dtype=dtype, softcap=2.0)
    assert_out(low, ref, low, dtype, softcap=2.0)
    if dtype != "float8_e4m3fn":
        refs, lows = truth_and_lowprec(attention_grad, q * 2, q, k, v, dtype=dtype)
        assert_grads(lows, refs, lows, dtype)


def wrong_head_map(q, k, v):
    order = [0, 1, 0, 1]
    return attention(q, k[:, :, order], v[:, :, order], causal=True)


def mask_off_by_one(q, k, v):
    return attention(q, k, v, window_size=(-1, 1))


def top_left_mask(q, k, v):
    return attention(q, k[:, : q.shape[1]], v[:, : q.shape[1]], causal=True)


def scale_of_the_padded_headdim(q, k, v):
    return attention(q, k, v, causal=True, softmax_scale=40**-0.5)


def last_key_of_last_row_forgotten(q, k, v):
    return attention(q, k[:, :-1], v[:, :-1], window_size=(-1, 1))


PLANTED = [
    wrong_head_map,
    mask_off_by_one,
    top_left_mask,
    scale_of_the_padded_headdim,
    last_key_of_last_row_forgotten,
]

# One key of 56 in one row, or a scale off by a tenth, is less than these dtypes can tell in `out`:
# lse is the judge.
HIDDEN_BY_ROUNDING = [
    ("bfloat16", last_key_of_last_row_forgotten),
    ("float8_e4m3fn", last_key_of_last_row_forgotten),
    ("float8_e4m3fn", scale_of_the_padded_headdim),
]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("wrong", PLANTED, ids=lambda f: f.__name__)
def test_refuses_planted_errors(dtype, wrong):
    q, k, v = make_inputs(dtype)
    (ref, ref_lse), (low, _) = truth_and_lowprec(attention, q, k, v, dtype=dtype, causal=True)
    out, lse = wrong(q, k, v)
    expect_refusal(assert_lse, lse, ref_lse, dtype)
    if (dtype, wrong) not in HIDDEN_BY_ROUNDING:
        expect_refusal(assert_out, out, ref, low, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_refuses_planted_gradient_errors(dtype):
    q, k, v = make_inputs(dtype)
    dout = make_inputs(dtype)[0][..., ::-1]
    dlse = np.linspace(-1, 1, q[..., 0].size).reshape(2, 4, -1)
    flags = {"softcap": 1.0, "causal": True}
    refs, lows = truth_and_lowprec(attention_grad, dout, q, k, v, dtype=dtype, dlse=dlse, **flags)
    assert_grads([x.astype(DTYPES[dtype]) for x in refs], refs, lows, dtype)
    planted = {
        "dlse dropped": attention_grad(dout, q, k, v, **flags),
        "softcap's slope dropped": attention_grad(dout, q, k, v, dlse=dlse, causal=True),
        "mask off by one": attention_grad(
            dout, q, k, v, dlse=dlse, softcap=1.0, window_size=(-1, 1)
        ),
        "one head of the group": [refs[0], refs[1] / 2, refs[2]],
        "no scale": [refs[0] * 32**0.5, refs[1], refs[2]],
        "dv of one query lost": [refs[0], refs[1], refs[2] - attention_grad(
            dout[:, -1:], q[:, -1:], k, v)[2]],
    }  # fmt: skip
    for grads in planted.values():
        expect_refusal(assert_grads, grads, refs, lows, dtype)


def test_refuses_nan_shape_and_stray_elements():
    q, k, v = make_inputs("float32")
    (ref, ref_lse), (low, _) = truth_and_lowprec(attention, q, k, v, dtype="float32")
    good = ref.astype(np.float32)
    assert_out(good, ref, low, "float32")
    for value in (np.nan, np.inf, good[0, 0, 0, 0] + 1e-4):
        bad = good.copy()
        bad[0, 0, 0, 0] = value
        expect_refusal(assert_out, bad, ref, low, "float32")
    expect_refusal(assert_out, good[:1], ref, low, "float32")
    expect_refusal(assert_out, good[:, :, :1], ref, low, "float32")
    expect_refusal(assert_lse, ref_lse[..., None], ref_lse, "float32")


@pytest.mark.parametrize("dtype", ALL)
def test_lse_is_natural_and_infinities_are_compared_first(dtype):
    q, k, v = make_inputs(dtype, seqlen_q=56, seqlen_k=40)
    lse = attention(q, k, v, causal=True)[1]
    assert_lse(lse.astype(np.float32) if dtype != "float64" else lse, lse, dtype)
    expect_refusal(assert_lse, lse / np.log(2), lse, dtype)
    for other in (np.inf, 0.0, np.nan, -3e38):
        expect_refusal(assert_lse, np.where(np.isneginf(lse), other, lse), lse, dtype)
    finite = np.where(lse == lse[0, 0, -1], -np.inf, lse)
    with pytest.raises(AssertionError, match="rows where lse is -inf"):
        assert_lse(finite, lse, dtype)


def test_empty_rows_must_be_zero_not_the_mean():
    q, k, v = make_inputs("bfloat16", seqlen_q=56, seqlen_k=40)
    (ref, _), (low, _) = truth_and_lowprec(attention, q, k, v, dtype="bfloat16", causal=True)
    mean = np.where(
        (ref == 0).all(-1, keepdims=True), v.astype(float).mean((1, 2))[:, None, None], ref
    )
    expect_refusal(assert_out, mean, ref, low, "bfloat16")


def test_rule_is_that_of_the_contract():
    # By hand: one element, ref 1, lowprec off by 2^-6; bfloat16 steps by 2^-8 below 1 and the sum
    # 1 + 0.3 is rounded to steps of 2^-7.
    ref, low = np.array([1.0]), np.array([1.0 + 2.0**-6])
    shift = float(ml_dtypes.bfloat16(0.3))
    step = abs(float(ml_dtypes.bfloat16(float(ml_dtypes.bfloat16(1 + shift)) - shift)) - 1)
    assert allowed_error(ref, low, "bfloat16") == 2 * 2.0**-6 + 2 * step
    assert allowed_error(ref, low, "bfloat16", loose=True) == 3 * 2.0**-6 + 2 * step
    float32_step = abs(float(np.float32(1) + np.float32(0.3) - np.float32(0.3)) - 1)
    got = allowed_error(ref, low, "float32")
    assert got == pytest.approx(8 * 2.0**-6 + 2 * float32_step + 1e-6, rel=1e-12)
    assert allowed_error(np.array([5.0]), low, "float64") == 5e-12
    assert allowed_error(np.zeros((0, 2)), np.zeros((0, 2)), "float16") == 0
    large = allowed_error(ref, low, "float32", score_norm=1000.0)
    assert large - got == pytest.approx(1000 * 2.0**-23)
    assert_lse(np.array([3.0 + 5e-5]), np.array([3.0]), "float32", score_norm=1000.0)
    expect_refusal(assert_lse, np.array([3.0 + 5e-5]), np.array([3.0]), "float32")


def test_appended_cache_is_compared_byte_for_byte():
    cache = np.array([1.0, np.nan, -0.0, np.inf], np.float32)
    assert_appended(cache.copy(), cache, "float32", rotary=False)
    for index, value in ((0, 1 + 2.0**-23), (2, 0.0), (3, np.nan)):
        bad = cache.copy()
        bad[index] = value
        expect_refusal(assert_appended, bad, cache, "float32", rotary=False)
    near = cache.copy()
    near[0] = np.nextafter(np.float32(1), np.float32(2))
    assert_appended(near, cache, "float32", rotary=True)
    near[0] = 1 + 1e-5
    expect_refusal(assert_appended, near, cache, "float32", rotary=True)
    sixteen = cache.astype(np.float16)
    near = sixteen.copy()
    near[0] = np.nextafter(np.float16(1), np.float16(2))
    expect_refusal(assert_appended, near, sixteen, "float16", rotary=True)
