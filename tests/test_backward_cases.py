"""Backward: every case of every family against the gradient oracle, by the public functions."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import fa_numba
from fa_numba.reference.attention import attention
from fa_numba.reference.attention_grad import attention_grad
from tests.cases import DENSE_CASES, FAMILIES, VARLEN_CASES, DenseCase, parametrize
from tests.inputs import check_refusal, make_inputs, score_norm
from tests.oracle import varlen_attention_grad
from tests.runs import on_family, run_thrice
from tests.tolerance import DTYPES, assert_grads, truth_and_lowprec


def assert_gradients(grads, oracle, args, dtype, case, **kwargs):
    """Compare dq, dk, dv with an oracle."""
    refs, lowprecs = truth_and_lowprec(oracle, *args, dtype=dtype, **case.score_flags, **kwargs)
    assert all(grad.dtype == DTYPES[dtype] for grad in grads)
    assert_grads(grads, refs, lowprecs, dtype, score_norm=score_norm(case, *args[1:3]))


@parametrize(DENSE_CASES, backward=True)
def test_dense_backward(family, dtype, case):
    x = make_inputs(case, dtype)
    try:
        out, lse = on_family(family, fa_numba.flash_attn_func)(
            x.q, x.k, x.v, return_lse=True, **case.score_flags
        )
        call = functools.partial(
            on_family(family, fa_numba.flash_attn_backward),
            *(x.dout, x.q, x.k, x.v, out, lse),
            dlse=x.dlse,
            **case.score_flags,
        )
        grads = call()
    except ValueError as refusal:
        check_refusal(case, refusal)
        return
    operands = (x.dout, x.q, x.k, x.v)
    assert_gradients(grads, attention_grad, operands, dtype, case, dlse=x.dlse)
    repeated = run_thrice(functools.partial(call, deterministic=True), give_out=False)
    assert_gradients(repeated, attention_grad, operands, dtype, case, dlse=x.dlse)


@parametrize(VARLEN_CASES, backward=True)
def test_varlen_backward(family, dtype, case):
    x = make_inputs(case, dtype)
    lengths = {"seqused_q": x.seqused_q, "seqused_k": x.seqused_k}
    layout = (x.cu_seqlens_q, x.cu_seqlens_k, *case.extent[1:])
    out, lse = on_family(family, fa_numba.flash_attn_varlen_func)(
        x.q, x.k, x.v, *layout, return_lse=True, **lengths, **case.score_flags
    )
    call = functools.partial(
        on_family(family, fa_numba.flash_attn_varlen_backward),
        *(x.dout, x.q, x.k, x.v, out, lse, *layout),
        dlse=x.dlse,
        **lengths,
        **case.score_flags,
    )
    operands = (x.dout, x.q, x.k, x.v, x.cu_seqlens_q, x.cu_seqlens_k)
    kwargs = {"dlse": x.dlse, **lengths}
    assert_gradients(call(), varlen_attention_grad, operands, dtype, case, **kwargs)
    repeated = run_thrice(functools.partial(call, deterministic=True), give_out=False)
    assert_gradients(repeated, varlen_attention_grad, operands, dtype, case, **kwargs)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_arriving_only_at_lse(family):
    case = DenseCase(group="property", variant="only_dlse", causal=True, dlse=True)
    x = make_inputs(case, "float32")
    dout = np.zeros_like(x.dout)
    out, lse = on_family(family, fa_numba.flash_attn_func)(
        x.q, x.k, x.v, causal=True, return_lse=True
    )
    grads = on_family(family, fa_numba.flash_attn_backward)(
        dout, x.q, x.k, x.v, out, lse, dlse=x.dlse, causal=True
    )
    operands = (dout, x.q, x.k, x.v)
    assert_gradients(grads, attention_grad, operands, "float32", case, dlse=x.dlse)
    assert grads[0].any()
    assert not grads[2].any()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_saturated_softcap_gradient_is_finite(family, dtype):
    for case in (case for case in DENSE_CASES if case.group == "softcap_saturated"):
        x = make_inputs(case, dtype)
        out, lse = on_family(family, fa_numba.flash_attn_func)(
            x.q, x.k, x.v, return_lse=True, **case.score_flags
        )
        grads = on_family(family, fa_numba.flash_attn_backward)(
            x.dout, x.q, x.k, x.v, out, lse, **case.score_flags
        )
        assert all(np.isfinite(grad.astype(np.float32)).all() for grad in grads)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_gradient_step_lowers_the_loss(family):
    # The whole loop a user runs, with no oracle: forward, backward, step, forward.
    case = DenseCase(group="property", variant="step", causal=True, softcap=4.0)
    x = make_inputs(case, "float64")
    target = x.dout
    forward = functools.partial(on_family(family, fa_numba.flash_attn_func), **case.score_flags)
    out, lse = forward(x.q, x.k, x.v, return_lse=True)
    grads = on_family(family, fa_numba.flash_attn_backward)(
        out - target, x.q, x.k, x.v, out, lse, **case.score_flags
    )
    rate = 1e-4
    moved = [y - rate * grad for y, grad in zip((x.q, x.k, x.v), grads, strict=True)]
    drop = 0.5 * ((out - target) ** 2).sum() - 0.5 * ((forward(*moved) - target) ** 2).sum()
    predicted = rate * sum((grad**2).sum() for grad in grads)
    assert drop == pytest.approx(predicted, rel=1e-2)
    np.testing.assert_array_equal(out, forward(x.q, x.k, x.v))
    np.testing.assert_allclose(out, attention(x.q, x.k, x.v, **case.score_flags)[0], atol=1e-12)
