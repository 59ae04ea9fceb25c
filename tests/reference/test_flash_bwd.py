"""The tiled backward: against the dense gradients, finite differences, and its own promises."""

import itertools
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_numba.reference.attention import allowed_keys, attention
from fa_numba.reference.attention_grad import attention_grad
from fa_numba.reference.flash_bwd import flash_bwd, flash_bwd_postprocess, flash_bwd_preprocess
from fa_numba.reference.flash_fwd import HbmCounter
from tests.poison import FILLS, poisoned_allocations
from tests.tolerance import DTYPES, assert_grads, truth_and_lowprec

MASKS = {
    "full": {},
    "causal": {"window_size": (-1, 0)},
    "window": {"window_size": (5, 3)},
    "left": {"window_size": (0, -1)},
    "sink": {"window_size": (2, 0), "sink_token_length": 3},
    "long sink": {"window_size": (1, 2), "sink_token_length": 20},
    "diagonal": {"window_size": (0, 0)},
}


def make_inputs(
    rng, *, batch=2, seqlen_q=13, seqlen_k=17, nheads_k=2, group=1, headdim=5, headdim_v=5,
    dtype=np.float64,
):  # fmt: skip
    """Return dout, q, k, v, dlse."""
    nheads = nheads_k * group
    shapes = [
        (batch, seqlen_q, nheads, headdim_v),
        (batch, seqlen_q, nheads, headdim),
        (batch, seqlen_k, nheads_k, headdim),
        (batch, seqlen_k, nheads_k, headdim_v),
    ]
    dlse = rng.standard_normal((batch, nheads, seqlen_q))
    return *(rng.standard_normal(shape).astype(dtype) for shape in shapes), dlse


def run(
    dout, q, k, v, *, dlse=None, out=None, lse=None, tile_m=None, tile_n=None, counter=None, **flags
):
    """Call `flash_bwd` with the oracle's flags and, unless given, the oracle's out and lse."""
    flags = {"softmax_scale": q.shape[3] ** -0.5, **flags}
    if out is None:
        out, lse = attention(q, k, v, **flags)
        out = out.astype(q.dtype)
        lse = lse.astype(np.float64 if q.dtype == np.float64 else np.float32)
    window_left, window_right = flags.pop("window_size", (-1, -1))
    return flash_bwd(
        dout, q, k, v, out, lse, dlse=dlse, tile_m=tile_m, tile_n=tile_n,
        window_left=window_left, window_right=window_right, counter=counter, **flags,
    )  # fmt: skip


def check(grads, dout, q, k, v, dlse=None, **flags):
    """Compare with the dense gradients under the project's tolerance."""
    tag = next(name for name, dtype in DTYPES.items() if dtype == q.dtype)
    refs, lowprecs = truth_and_lowprec(attention_grad, dout, q, k, v, dtype=tag, dlse=dlse, **flags)
    assert [g.dtype for g in grads] == [q.dtype, k.dtype, v.dtype]
    assert_grads(grads, refs, lowprecs, tag)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.integers(1, 40),
    st.tuples(st.integers(-1, 45), st.integers(-1, 45)),
    st.integers(0, 45),
    st.sampled_from([0.0, 1.5, 30.0]),
    st.tuples(st.integers(1, 16), st.integers(1, 16)),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_equals_dense_gradients(
    seed, seqlen_q, seqlen_k, window, sink, softcap, tiles, group, with_dlse
):
    rng = np.random.default_rng(seed)
    dout, q, k, v, dlse = make_inputs(
        rng, seqlen_q=seqlen_q, seqlen_k=seqlen_k, group=group, headdim=3, headdim_v=6
    )
    dlse = dlse if with_dlse else None
    flags = {
        "softmax_scale": 0.8,
        "window_size": window,
        "sink_token_length": sink,
        "softcap": softcap,
    }
    grads = run(dout, q, k, v, dlse=dlse, tile_m=tiles[0], tile_n=tiles[1], **flags)
    check(grads, dout, q, k, v, dlse, **flags)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("mask", ["causal", "sink"])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_lower_precision(dtype, mask, softcap):
    rng = np.random.default_rng(0)
    dout, q, k, v, _ = make_inputs(
        rng, seqlen_q=150, seqlen_k=200, group=2, headdim=24, headdim_v=40, dtype=dtype
    )
    flags = {**MASKS[mask], "softcap": softcap}
    grads = run(dout, q, k, v, **flags)
    check(grads, dout, q, k, v, **flags)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("softcap", [0.0, 1.2])
def test_finite_differences(mask, softcap):
    rng = np.random.default_rng(1)
    dout, q, k, v, dlse = make_inputs(rng, seqlen_q=5, seqlen_k=4, group=2, headdim=3, headdim_v=2)
    flags = {**MASKS[mask], "softcap": softcap}
    grads = run(dout, q, k, v, dlse=dlse, tile_m=2, tile_n=3, **flags)

    def loss(*operands):
        out, lse = attention(*operands, **flags)
        return (out * dout).sum() + (dlse * np.where(np.isneginf(lse), 0, lse)).sum()

    step = 1e-3
    for index, grad in enumerate(grads):
        direction = rng.standard_normal(grad.shape)

        def at(t, index=index, direction=direction):
            operands = [q, k, v]
            operands[index] = operands[index] + t * step * direction
            return loss(*operands)

        slope = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)
        assert slope == pytest.approx((grad * direction).sum(), rel=1e-7, abs=1e-8)


def test_default_tiles_and_more_than_one_chunk_of_the_batch():
    rng = np.random.default_rng(2)
    shape = {"batch": 3, "seqlen_q": 300, "seqlen_k": 259, "nheads_k": 5, "group": 2}
    dout, q, k, v, dlse = make_inputs(rng, **shape)
    for mask in ("causal", "window"):
        grads = run(dout, q, k, v, dlse=dlse, **MASKS[mask])
        check(grads, dout, q, k, v, dlse, **MASKS[mask])


def test_group_is_summed_over():
    rng = np.random.default_rng(3)
    dout, q, k, v, _ = make_inputs(rng, nheads_k=1, group=3)
    _, dk, dv = run(dout, q, k, v)
    one_by_one = [run(dout[:, :, [h]], q[:, :, [h]], k, v) for h in range(3)]
    np.testing.assert_allclose(dk, sum(g[1] for g in one_by_one), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(dv, sum(g[2] for g in one_by_one), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("excess", [1, 3, 4, 5, 11])
def test_empty_rows_contribute_nothing_whatever_they_hold(group, excess):
    rng = np.random.default_rng(4)
    seqlen_k = 6
    dout, q, k, v, dlse = make_inputs(
        rng, seqlen_q=seqlen_k + excess, seqlen_k=seqlen_k, group=group
    )
    causal = MASKS["causal"]
    out, lse = attention(q, k, v, **causal)
    assert np.isneginf(lse[:, :, :excess]).all()
    expected = attention_grad(
        dout[:, excess:], q[:, excess:], k, v, dlse=dlse[:, :, excess:], **causal
    )
    for x in (q, dout):
        x[:, :excess] = np.nan
    dlse[:, :, :excess] = np.nan

    dq, dk, dv = run(dout, q, k, v, dlse=dlse, out=out, lse=lse, tile_m=4, tile_n=4, **causal)

    assert not dq[:, :excess].any()
    for got, want in zip((dq[:, excess:], dk, dv), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tile_n", [3, 7, 64])
def test_dead_keys_may_hold_anything(garbage, tile_n):
    rng = np.random.default_rng(5)
    mask = {"window_size": (4, 2), "sink_token_length": 2}
    # Two queries of a long sequence, moved left by keys that are right of every bound.
    dout, q, k, v, _ = make_inputs(rng, seqlen_q=2, seqlen_k=30)
    is_dead = ~allowed_keys(2, 30, False, *mask.values()).any(axis=0)
    assert 0 < is_dead.sum() < 30
    expected = attention_grad(dout, q, k, v, **mask)
    out, lse = attention(q, k, v, **mask)
    k[:, is_dead] = v[:, is_dead] = garbage

    grads = run(dout, q, k, v, out=out, lse=lse, tile_m=8, tile_n=tile_n, **mask)

    for got, want in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    assert not grads[1][:, is_dead].any()
    assert not grads[2][:, is_dead].any()


@pytest.mark.parametrize(
    "shape", [{"batch": 0}, {"seqlen_q": 0}, {"seqlen_k": 0}, {"seqlen_q": 0, "seqlen_k": 0}]
)
def test_nothing_to_do(shape):
    dout, q, k, v, dlse = make_inputs(np.random.default_rng(6), **shape)
    grads = run(dout, q, k, v, dlse=dlse)
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]
    assert not any(g.any() for g in grads)


def test_strided_inputs():
    rng = np.random.default_rng(7)
    qkv = rng.standard_normal((2, 20, 3, 4, 6))
    dout = rng.standard_normal((20, 2, 8, 6)).transpose(1, 0, 2, 3)[:, :, ::2]
    q, k, v = (qkv[:, :, i] for i in range(3))
    dense = [np.ascontiguousarray(x) for x in (dout, q, k, v)]
    for got, want in zip(
        run(dout, q, k, v, **MASKS["causal"]), run(*dense, **MASKS["causal"]), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)


def test_inputs_are_left_alone_and_memory_is_never_zero_by_luck():
    rng = np.random.default_rng(8)
    inputs = make_inputs(rng, seqlen_q=9, seqlen_k=6)
    dout, q, k, v, dlse = inputs
    out, lse = attention(q, k, v, **MASKS["causal"])
    before = [x.copy() for x in (*inputs, out, lse)]
    results = []
    for byte in FILLS:
        with poisoned_allocations(byte):
            grads = run(
                dout, q, k, v, dlse=dlse, out=out, lse=lse, tile_m=4, tile_n=4, **MASKS["causal"]
            )
        results.append([g.tobytes() for g in grads])
    assert results[0] == results[1]
    assert all(np.array_equal(a, b) for a, b in zip((*inputs, out, lse), before, strict=True))


def test_constant_row_shift_of_lse_gradient():
    """With dout = 0 and dlse = 1, dq is the gradient of lse: σ times the mean key under P."""
    rng = np.random.default_rng(9)
    dout, q, k, v, _ = make_inputs(rng, nheads_k=1)
    dq, dk, dv = run(0 * dout, q, k, v, dlse=np.ones((2, 1, 13)))
    p = np.exp(q[:, :, 0] @ k[:, :, 0].swapaxes(1, 2) * 5**-0.5)
    p /= p.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(dq[:, :, 0], 5**-0.5 * p @ k[:, :, 0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        dk[:, :, 0], 5**-0.5 * p.swapaxes(1, 2) @ q[:, :, 0], rtol=1e-12, atol=1e-13
    )
    assert not dv.any()


# ----------------------------------------------------------------------------- pre- and postprocess


def test_preprocess():
    rng = np.random.default_rng(10)
    dout, out = rng.standard_normal((2, 2, 3, 4, 5))
    lse, dlse = rng.standard_normal((2, 2, 4, 3))
    lse[0, 1, 2], dlse[0, 1, 2], dout[0, 2, 1, 0] = -np.inf, np.nan, np.nan
    delta, lse_log2 = flash_bwd_preprocess(dout, out, lse, dlse=dlse)
    expected = (dout * out).sum(axis=-1).transpose(0, 2, 1) - dlse
    expected[0, 1, 2] = 0
    np.testing.assert_allclose(delta, expected, rtol=1e-12, atol=1e-13)
    expected = lse / np.log(2)
    expected[0, 1, 2] = 0
    np.testing.assert_allclose(lse_log2, expected, rtol=1e-14)
    without, _ = flash_bwd_preprocess(dout, out, lse)
    np.testing.assert_allclose((without - delta)[1], dlse[1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_preprocess_sums_in_float32(dtype):
    # 2048 ones and one more: a float16 accumulator would stop at 2048.
    ones = np.ones((1, 1, 1, 2049), dtype)
    delta, lse_log2 = flash_bwd_preprocess(ones, ones, np.zeros((1, 1, 1), np.float32))
    assert delta.dtype == lse_log2.dtype == np.float32
    assert delta.item() == 2049


def test_postprocess():
    acc = np.random.default_rng(11).standard_normal((2, 3, 4, 5)).astype(np.float32)
    dq = flash_bwd_postprocess(acc, 0.3, np.float16)
    expected = (np.float32(0.3) * acc).transpose(0, 2, 1, 3).astype(np.float16)
    assert dq.dtype == np.float16
    assert np.array_equal(dq, expected)


# ---------------------------------------------------------------------------------- traffic, memory


@pytest.mark.parametrize("mask", ["full", "causal", "window"])
def test_traffic(mask):
    """Each key tile is read once; each visited pair of tiles reads q and dout, and updates dq."""
    rng = np.random.default_rng(12)
    batch, seqlen, heads, headdim, tile = 2, 40, 2, 4, 8
    dout, q, k, v, dlse = make_inputs(
        rng, batch=batch, seqlen_q=seqlen, seqlen_k=seqlen, nheads_k=heads,
        headdim=headdim, headdim_v=headdim, dtype=np.float32,
    )  # fmt: skip
    counter = HbmCounter()
    run(dout, q, k, v, dlse=dlse, tile_m=tile, tile_n=tile, counter=counter, **MASKS[mask])

    left, right = MASKS[mask].get("window_size", (-1, -1))
    allowed = allowed_keys(seqlen, seqlen, False, (left, right), 0)
    blocks = range(seqlen // tile)
    visits = sum(
        allowed[m * tile : (m + 1) * tile, n * tile : (n + 1) * tile].any()
        for m, n in itertools.product(blocks, blocks)
    )
    rows, bytes_per_row = batch * heads * seqlen, 4 * headdim
    visited_rows = batch * heads * tile * visits
    assert counter.reads == {
        "q": visited_rows * bytes_per_row,
        "k": rows * bytes_per_row,
        "v": rows * bytes_per_row,
        "out": rows * bytes_per_row,
        "dout": (rows + visited_rows) * bytes_per_row,
        "lse": rows * 4,
        "dlse": rows * 8,
        "lse_log2": visited_rows * 4,
        "delta": visited_rows * 4,
        "dq_accum": (rows + visited_rows) * bytes_per_row,
    }
    assert counter.writes == {
        "delta": rows * 4,
        "lse_log2": rows * 4,
        "dq_accum": (rows + visited_rows) * bytes_per_row,
        "dq": rows * bytes_per_row,
        "dk": rows * bytes_per_row,
        "dv": rows * bytes_per_row,
    }


def test_memory_grows_linearly():
    def peak(seqlen, batch=1):
        x = np.ones((batch, seqlen, 2, 8), np.float32)
        lse = np.zeros((batch, 2, seqlen), np.float32)
        tracemalloc.start()
        run(x, x, x, x, out=x, lse=lse, window_size=(64, 0))
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    assert peak(8192) < 2.2 * peak(4096)
    # A large batch is worked on in pieces: 64 score tiles of all sequences would be 8 MiB each.
    assert peak(128, batch=64) < 8 * 2**20
