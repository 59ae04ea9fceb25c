"""The gradient oracle against finite differences of the forward oracle, and its own promises."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from fa_numba.reference.attention import attention
from fa_numba.reference.attention_grad import attention_grad

MASKS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (1, 1)},
    "window_left": {"window_size": (0, -1)},
    "sink": {"window_size": (1, 0), "sink_token_length": 2},
}


def make_inputs(seed, batch, seqlen_q, seqlen_k, nheads, nheads_k, headdim, headdim_v):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((batch, seqlen_q, nheads, headdim))
    k = rng.standard_normal((batch, seqlen_k, nheads_k, headdim))
    v = rng.standard_normal((batch, seqlen_k, nheads_k, headdim_v))
    dout = rng.standard_normal((batch, seqlen_q, nheads, headdim_v))
    dlse = rng.standard_normal((batch, nheads, seqlen_q))
    return q, k, v, dout, dlse


def loss(q, k, v, dout, dlse, **flags):
    """Return the scalar whose gradient `attention_grad` claims to be."""
    out, lse = attention(q, k, v, **flags)
    total = (out * dout).sum()
    if dlse is not None:
        total += (dlse * np.where(np.isneginf(lse), 0.0, lse)).sum()
    return total


def directional(q, k, v, dout, dlse, step, directions, **flags):
    """Fourth-order central difference of the loss along `directions`."""

    def at(t):
        moved = (x + t * step * d for x, d in zip((q, k, v), directions, strict=True))
        return loss(*moved, dout, dlse, **flags)

    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("with_dlse", [False, True])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(4, 4), (2, 5), (5, 3)])
def test_directional_differences(mask, softcap, with_dlse, seqlen_q, seqlen_k):
    q, k, v, dout, dlse = make_inputs(11, 2, seqlen_q, seqlen_k, 4, 2, 3, 5)
    dlse = dlse if with_dlse else None
    flags = dict(MASKS[mask], softcap=softcap, softmax_scale=0.6)
    grads = attention_grad(dout, q, k, v, dlse=dlse, **flags)
    rng = np.random.default_rng(12)
    for moved in range(3):
        directions = [
            rng.standard_normal(x.shape) if i == moved else np.zeros_like(x)
            for i, x in enumerate((q, k, v))
        ]
        want = directional(q, k, v, dout, dlse, 1e-3, directions, **flags)
        got = (grads[moved] * directions[moved]).sum()
        assert got == pytest.approx(want, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "flags",
    [
        {"causal": True},
        {"window_size": (1, 0), "sink_token_length": 1, "softcap": 2.0},
        {"window_size": (0, 1), "softcap": 0.5, "softmax_scale": 1.3},
    ],
)
def test_elementwise_differences(flags):
    q, k, v, dout, dlse = make_inputs(13, 1, 4, 3, 2, 1, 2, 2)
    grads = attention_grad(dout, q, k, v, dlse=dlse, **flags)
    for moved, x in enumerate((q, k, v)):
        for index in itertools.product(*map(range, x.shape)):
            directions = [np.zeros_like(y) for y in (q, k, v)]
            directions[moved][index] = 1.0
            want = directional(q, k, v, dout, dlse, 1e-3, directions, **flags)
            assert grads[moved][index] == pytest.approx(want, rel=1e-8, abs=1e-9)


def test_default_scale_is_that_of_the_forward():
    q, k, v, dout, dlse = make_inputs(14, 1, 3, 3, 1, 1, 9, 4)
    want = attention_grad(dout, q, k, v, dlse=dlse, softmax_scale=1 / 3)
    got = attention_grad(dout, q, k, v, dlse=dlse)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-15)


def test_constant_added_to_a_row_changes_no_gradient():
    q, k, v, dout, _ = make_inputs(15, 1, 4, 4, 2, 2, 3, 3)
    shift = 20 * np.ones((1, 4, 2, 1))
    wide_q, wide_k = np.concatenate([q, shift], -1), np.concatenate([k, shift / 20], -1)
    want = attention_grad(dout, q, k, v, softmax_scale=1.0, causal=True)
    got = attention_grad(dout, wide_q, wide_k, v, softmax_scale=1.0, causal=True)
    np.testing.assert_allclose(got[0][..., :3], want[0], atol=1e-12)
    np.testing.assert_allclose(got[1][..., :3], want[1], atol=1e-12)
    np.testing.assert_allclose(got[2], want[2], atol=1e-12)


def test_empty_rows_contribute_nothing_whatever_they_hold():
    q, k, v, dout, dlse = make_inputs(16, 1, 5, 2, 2, 1, 3, 3)
    want = attention_grad(dout[:, 3:], q[:, 3:], k, v, dlse=dlse[..., 3:], causal=True)
    for x in (q, dout):
        x[:, :3] = np.nan
    dlse[..., :3] = np.inf
    dq, dk, dv = attention_grad(dout, q, k, v, dlse=dlse, causal=True)
    np.testing.assert_array_equal(dq[:, :3], 0)
    np.testing.assert_allclose(dq[:, 3:], want[0], rtol=1e-14)
    np.testing.assert_allclose(dk, want[1], rtol=1e-14)
    np.testing.assert_allclose(dv, want[2], rtol=1e-14)


def test_dead_keys_get_zero_whatever_they_hold():
    q, k, v, dout, dlse = make_inputs(17, 1, 2, 6, 2, 2, 3, 3)
    flags = {"window_size": (1, 0), "sink_token_length": 1}
    want = attention_grad(dout, q, k, v, dlse=dlse, **flags)
    dead = slice(1, 3)  # the first query sits on key 4 and looks back to key 3; key 0 is a sink
    k[:, dead], v[:, dead] = np.nan, np.inf
    got = attention_grad(dout, q, k, v, dlse=dlse, **flags)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_array_equal(x, y)
    assert not got[1][:, dead].any()
    assert not got[2][:, dead].any()
    assert got[1][:, 0].all()
    assert got[1][:, 3:].all()


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_dimensions(shape):
    q, k, v, dout, dlse = make_inputs(18, *shape, 2, 1, 4, 3)
    grads = attention_grad(dout, q, k, v, dlse=dlse)
    for grad, x in zip(grads, (q, k, v), strict=True):
        assert grad.shape == x.shape
        assert not grad.any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_round_to_rounds_each_stage(dtype):
    q, k, v, dout, _ = (x.astype(dtype) for x in make_inputs(19, 1, 6, 6, 4, 2, 8, 8))
    exact = attention_grad(dout, q, k, v, causal=True)
    low = attention_grad(dout, q, k, v, causal=True, compute_dtype=np.float32, round_to=dtype)
    eps = float(ml_dtypes.finfo(dtype).eps)
    for x, y in zip(low, exact, strict=True):
        assert x.dtype == np.float32
        np.testing.assert_array_equal(x, x.astype(dtype).astype(np.float32))
        assert eps / 16 < np.abs(x - y).max() < 8 * eps * np.abs(y).max()
