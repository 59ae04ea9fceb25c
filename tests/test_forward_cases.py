"""Forward: every case of every family against the dense oracle, through the public functions."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import fa_numba
from fa_numba.reference.attention import attention
from tests.cases import (
    COMBINE_CASES,
    DENSE_CASES,
    FAMILIES,
    FP8,
    SERVES,
    VARLEN_CASES,
    DenseCase,
    parametrize,
)
from tests.inputs import check_refusal, make_inputs, score_norm
from tests.oracle import combine, varlen_attention
from tests.runs import assert_bit_equal, fingerprint, on_family, run_thrice
from tests.tolerance import DTYPES, assert_lse, assert_out, truth_and_lowprec

DENSE_FUNCTIONS = {
    "qkv": fa_numba.flash_attn_qkvpacked_func,
    "kv": fa_numba.flash_attn_kvpacked_func,
}
VARLEN_FUNCTIONS = {
    "qkv": fa_numba.flash_attn_varlen_qkvpacked_func,
    "kv": fa_numba.flash_attn_varlen_kvpacked_func,
}


def assert_result(out, lse, oracle, args, dtype, case, **kwargs):
    """Compare out and lse with an oracle, the positions of -inf first."""
    norm = score_norm(case, *args[:2])
    (ref, ref_lse), (low, _) = truth_and_lowprec(
        oracle, *args, dtype=dtype, **case.score_flags, **kwargs
    )
    assert out.dtype == DTYPES["bfloat16" if dtype in FP8 else dtype]
    assert lse.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert_lse(lse, ref_lse, dtype, score_norm=norm)
    assert_out(out, ref, low, dtype, softcap=case.softcap, score_norm=norm)


@parametrize(DENSE_CASES)
def test_dense(family, dtype, case):
    x = make_inputs(case, dtype)
    before = [fingerprint(array).copy() for array in (x.q, x.k, x.v)]
    call = functools.partial(
        on_family(family, DENSE_FUNCTIONS.get(case.layout, fa_numba.flash_attn_func)),
        *(x.packed or (x.q, x.k, x.v)),
        return_lse=True,
        **case.score_flags,
        **case.forward_flags,
        **x.descales,
    )
    try:
        out, lse = run_thrice(call)
    except ValueError as refusal:
        check_refusal(case, refusal)
        return
    assert_result(out, lse, attention, (x.q, x.k, x.v), dtype, case, **x.descales)
    for array, bytes_before in zip((x.q, x.k, x.v), before, strict=True):
        np.testing.assert_array_equal(fingerprint(array), bytes_before)


@parametrize(VARLEN_CASES)
def test_varlen(family, dtype, case):
    x = make_inputs(case, dtype)
    longest = case.extent[1:]
    lengths = {name: value for name, value in x.lengths.items() if value is not None}
    if case.packing == "qkv":
        args = (*x.packed, x.cu_seqlens_q, longest[0])
    else:
        args = (*(x.packed or (x.q, x.k, x.v)), x.cu_seqlens_q, x.cu_seqlens_k, *longest)
    call = functools.partial(
        on_family(family, VARLEN_FUNCTIONS.get(case.packing, fa_numba.flash_attn_varlen_func)),
        *args,
        return_lse=True,
        **lengths,
        **case.score_flags,
        **case.forward_flags,
        **x.descales,
    )
    out, lse = run_thrice(call)
    operands = (x.q, x.k, x.v, x.cu_seqlens_q, x.cu_seqlens_k)
    assert_result(out, lse, varlen_attention, operands, dtype, case, **x.lengths, **x.descales)


@parametrize(COMBINE_CASES)
def test_combine(family, dtype, case):
    x = make_inputs(case, dtype)
    call = functools.partial(fa_numba.flash_attn_combine, *x, out_dtype=DTYPES[dtype])
    out, lse = run_thrice(call, give_out=False)
    (ref, ref_lse), (low, _) = truth_and_lowprec(combine, *x, dtype=dtype)
    assert out.dtype == DTYPES[dtype]
    assert lse.dtype == np.float32
    assert_lse(lse, ref_lse, dtype)
    assert_out(out, ref, low, dtype)


@pytest.mark.parametrize("place", [0, 2, 5])
def test_empty_partial_is_neutral_bit_for_bit(place):
    case = next(case for case in COMBINE_CASES if case.id == "combine/5_some")
    out, lse = make_inputs(case, "float32")
    want = fa_numba.flash_attn_combine(out, lse)
    empty_out = np.full_like(out[0], np.nan)
    got = fa_numba.flash_attn_combine(
        np.insert(out, place, empty_out, axis=0), np.insert(lse, place, -np.inf, axis=0)
    )
    assert_bit_equal(got, want)


def served(*dtypes):
    """Parametrise over the families and those of `dtypes` they serve."""
    pairs = [(f, d) for f in FAMILIES for d in dtypes if d in SERVES[f]]
    return pytest.mark.parametrize(("family", "dtype"), pairs)


@served("float32", "float16", "bfloat16")
@pytest.mark.parametrize(
    "case", [c for c in DENSE_CASES if c.group == "softcap_saturated"], ids=lambda c: c.id
)
def test_saturated_first_row_is_the_first_value(family, dtype, case):
    x = make_inputs(case, dtype)
    out = on_family(family, fa_numba.flash_attn_func)(x.q, x.k, x.v, **case.score_flags)
    assert np.isfinite(out.astype(np.float32)).all()
    want = np.repeat(x.v[:, 0], case.nheads // case.nheads_k, axis=1)
    if dtype == "float32":
        np.testing.assert_array_max_ulp(out[:, 0], want, maxulp=4)
    else:
        assert_bit_equal(out[:, 0], want)


@served("float64", "float32", "float16", "bfloat16", *FP8)
def test_uniform_scores_give_the_logarithm_of_the_length(family, dtype):
    case = DenseCase(group="property", variant="log_length", fill="zero_q", nheads_k=2)
    x = make_inputs(case, dtype)
    for splits in (1, 3):
        _, lse = on_family(family, fa_numba.flash_attn_func)(
            x.q, x.k, x.v, num_splits=splits, return_lse=True
        )
        want = np.full(lse.shape, np.log(case.seqlen_k))
        assert_lse(lse, want, dtype)


@served("float32", "float16")
@pytest.mark.parametrize("num_splits", [2, 3, 7, 256])
def test_split_counts_agree_and_repeat(family, dtype, num_splits):
    case = DenseCase(group="property", variant="splits", seqlen_q=70, seqlen_k=300, causal=True)
    x = make_inputs(case, dtype)
    call = functools.partial(
        on_family(family, fa_numba.flash_attn_func), x.q, x.k, x.v, causal=True, return_lse=True
    )
    split = call(num_splits=num_splits)
    assert_bit_equal(call(num_splits=num_splits), split)
    assert_result(*split, attention, (x.q, x.k, x.v), dtype, case)
    assert_result(*call(), attention, (x.q, x.k, x.v), dtype, case)


@served("float64", "float32")
def test_constant_added_to_a_row_moves_only_lse(family, dtype):
    case = DenseCase(group="property", variant="shift", headdim=15, nheads_k=2, causal=True)
    x = make_inputs(case, dtype)
    shift = np.linspace(-8, 8, x.q[..., :1].size).reshape(x.q[..., :1].shape).astype(x.q.dtype)
    q, k = np.concatenate([x.q, shift], -1), np.concatenate([x.k, np.ones_like(x.k[..., :1])], -1)
    flags = {"softmax_scale": 1.0, "causal": True}
    out, lse = on_family(family, fa_numba.flash_attn_func)(q, k, x.v, return_lse=True, **flags)
    moved = lse.astype(np.float64) - shift[..., 0].swapaxes(1, 2)
    (ref, ref_lse), (low, _) = truth_and_lowprec(attention, x.q, x.k, x.v, dtype=dtype, **flags)
    assert_out(out, ref, low, dtype)
    assert_lse(moved, ref_lse, dtype)


@served(*FP8)
@pytest.mark.parametrize("out_dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("as_codes", [False, True])
def test_float8_output_dtypes_and_codes(family, dtype, out_dtype, as_codes):
    case = next(case for case in DENSE_CASES if case.id == "float8/descales")
    x = make_inputs(case, dtype)
    operands = [array.view(np.uint8) if as_codes else array for array in (x.q, x.k, x.v)]
    out, lse = on_family(family, fa_numba.flash_attn_func)(
        *operands,
        dtype=dtype if as_codes else None,
        out_dtype=out_dtype,
        return_lse=True,
        **x.descales,
    )
    (ref, ref_lse), (low, _) = truth_and_lowprec(
        attention, x.q, x.k, x.v, dtype=dtype, **x.descales
    )
    assert out.dtype == DTYPES[out_dtype]
    assert_lse(lse, ref_lse, dtype)
    assert_out(out, ref, low, dtype)


@served(*FP8)
def test_float8_nan_stays_nan(family, dtype):
    case = DenseCase(group="property", variant="nan_code", seqlen_q=4, seqlen_k=4, causal=True)
    x = make_inputs(case, dtype)
    v = x.v.copy()
    v[:, 2, 0, 5] = np.nan
    out = on_family(family, fa_numba.flash_attn_func)(x.q, x.k, v, causal=True)
    wide = out.astype(np.float32)
    assert np.isnan(wide[:, 2:, :, 5]).all()
    assert np.isfinite(np.delete(wide, 5, axis=-1)).all()


@served("float32", "bfloat16")
def test_out_may_be_a_strided_view(family, dtype):
    case = DenseCase(group="property", variant="strided_out")
    x = make_inputs(case, dtype)
    call = functools.partial(on_family(family, fa_numba.flash_attn_func), x.q, x.k, x.v)
    want = call()
    room = np.full((2, case.nheads, case.seqlen_q, case.headdim_v + 1), 7, want.dtype)
    view = room[..., :-1].swapaxes(1, 2)
    assert call(out=view) is view
    assert_bit_equal(view, want)
    assert (room[..., -1] == 7).all()
