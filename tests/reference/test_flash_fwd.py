"""The tiled forward against the dense oracle: all flags, tiles, splits and both loop orders."""

import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from fa_numba.indexing.block_range import get_n_block_min_max, n_block_count
from fa_numba.reference.attention import attention
from fa_numba.reference.exp2 import exp2_poly
from fa_numba.reference.flash_fwd import (
    HbmCounter,
    PagedTensor,
    _head_groups,
    default_tiles,
    flash_fwd,
    flash_fwd_fa1,
    flash_fwd_split,
)
from fa_numba.reference.flash_fwd_combine import flash_fwd_combine
from fa_numba.reference.quant import quantize
from fa_numba.reference.tile_io import load_tile
from fa_numba.reference.workers import _blas_controller
from tests.poison import FILLS, poisoned_allocations
from tests.tolerance import assert_lse, assert_out, truth_and_lowprec

SCALE = 0.7
BOUND = st.sampled_from([-1, -1, 0, 1, 3, 10, 40])
TILE = st.sampled_from([1, 2, 7, 16, 33, 64])
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def operands(rng, batch, lengths, heads, dims, dtype=np.float64):
    (seqlen_q, seqlen_k), (nheads, nheads_k), (headdim, headdim_v) = lengths, heads, dims
    shapes = (
        (batch, seqlen_q, nheads, headdim),
        (batch, seqlen_k, nheads_k, headdim),
        (batch, seqlen_k, nheads_k, headdim_v),
    )
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


@st.composite
def problems(draw):
    """Return (q, k, v), the oracle's flags, the loop's flags."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nheads_k, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    lengths = draw(st.tuples(st.integers(0, 70), st.integers(0, 70)))
    dims = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    qkv = operands(rng, draw(st.integers(0, 2)), lengths, (nheads_k * group, nheads_k), dims)
    left, right = draw(BOUND), draw(BOUND)
    shared = {
        "softmax_scale": draw(st.sampled_from([SCALE, 0.0, 20.0])),
        "sink_token_length": draw(st.sampled_from([0, 1, 5, 20, 80])),
        "softcap": draw(st.sampled_from([0.0, 0.0, 2.0])),
    }
    oracle = {"window_size": (left, right), **shared}
    return qkv, oracle, {"window_left": left, "window_right": right, **shared}


def assert_equals_dense(result, qkv, flags):
    truth = attention(*qkv, **flags)
    for got, ref, check in zip(result, truth, (assert_out, assert_lse), strict=True):
        arguments = (ref, ref, "float64") if check is assert_out else (ref, "float64")
        check(got, *arguments)


@given(problems(), TILE, TILE)
@settings(max_examples=150)
def test_equals_dense_attention(problem, tile_m, tile_n):
    qkv, oracle_flags, flags = problem
    result = flash_fwd(*qkv, tile_m=tile_m, tile_n=tile_n, **flags)
    assert_equals_dense(result, qkv, oracle_flags)


@given(problems(), TILE, TILE)
@settings(max_examples=60)
def test_both_loop_orders_agree(problem, tile_m, tile_n):
    qkv, oracle_flags, flags = problem
    result = flash_fwd_fa1(*qkv, tile_m=tile_m, tile_n=tile_n, **flags)
    assert_equals_dense(result, qkv, oracle_flags)


@given(problems(), TILE, TILE, st.integers(1, 6))
@settings(max_examples=80)
def test_splits_merge_to_the_whole(problem, tile_m, tile_n, num_splits):
    qkv, oracle_flags, flags = problem
    tiles = {"tile_m": tile_m, "tile_n": tile_n}
    partials = flash_fwd_split(*qkv, num_splits=num_splits, **tiles, **flags)
    assert partials[0].shape[0] == partials[1].shape[0] == num_splits
    assert_equals_dense(flash_fwd_combine(*partials), qkv, oracle_flags)


def test_each_split_sees_its_own_run_of_keys():
    """10 tiles over 4 splits: 3, 3, 3 and 1, from the left, and a fifth split would be empty."""
    qkv = operands(np.random.default_rng(0), 1, (3, 37), (2, 2), (4, 5))
    out, lse = flash_fwd_split(*qkv, num_splits=4, softmax_scale=SCALE, tile_n=4)
    for split, (start, stop) in enumerate([(0, 12), (12, 24), (24, 36), (36, 37)]):
        q, k, v = qkv
        expected = attention(q, k[:, start:stop], v[:, start:stop], softmax_scale=SCALE)
        np.testing.assert_allclose(out[split], expected[0], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(lse[split], expected[1], rtol=1e-12, atol=1e-12)


@given(problems(), TILE, TILE, st.sampled_from([1.0, 8.0]), st.sampled_from([0, 8]))
@settings(max_examples=60)
def test_lazy_rescale_and_offset_change_nothing(problem, tile_m, tile_n, threshold, offset):
    qkv, oracle_flags, flags = problem
    lazy = {"rescale_threshold": threshold, "max_offset": offset}
    result = flash_fwd(*qkv, tile_m=tile_m, tile_n=tile_n, **lazy, **flags)
    assert_equals_dense(result, qkv, oracle_flags)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (50, 0)])
def test_lower_precision(dtype, softcap, window):
    rng = np.random.default_rng(0)
    qkv = operands(rng, 2, (150, 201), (4, 2), (40, 24), dtype)
    flags = {"softmax_scale": 40**-0.5, "softcap": softcap, "sink_token_length": 3}
    (ref, ref_lse), (lowprec, _) = truth_and_lowprec(
        attention, *qkv, dtype=dtype, window_size=window, **flags
    )
    out = np.empty(ref.shape, dtype)
    left, right = window
    same, lse = flash_fwd(
        *qkv, out=out, tile_m=64, tile_n=32, window_left=left, window_right=right, **flags
    )
    assert same is out
    assert lse.dtype == np.float32
    assert_out(out, ref, lowprec, dtype, softcap=softcap)
    assert_lse(lse, ref_lse, dtype)


def test_new_output_has_the_compute_dtype():
    rng = np.random.default_rng(0)
    for dtype, expected in (("float16", np.float32), ("float64", np.float64)):
        out, lse = flash_fwd(*operands(rng, 1, (3, 4), (1, 1), (2, 2), dtype), softmax_scale=1.0)
        assert out.dtype == lse.dtype == expected


@pytest.mark.parametrize("lengths", [(70, 90), (1, 90), (0, 5)])
def test_workers_give_what_one_thread_gives(monkeypatch, lengths):
    qkv = operands(np.random.default_rng(0), 2, lengths, (6, 3), (8, 8))
    flags = {"softmax_scale": SCALE, "window_right": 0, "tile_m": 16, "tile_n": 16}
    alone = flash_fwd(*qkv, **flags)
    threads = set()

    def load(*args, **kwargs):
        threads.add(threading.get_ident())
        return load_tile(*args, **kwargs)

    monkeypatch.setattr("fa_numba.reference.flash_fwd.load_tile", load)
    monkeypatch.setattr("fa_numba.reference.flash_fwd._MIN_SHARED_WORK", 0)
    # Not bit for bit: shared work comes in smaller groups of heads.
    with threadpool_limits(3, user_api="blas"):
        shared = flash_fwd(*qkv, **flags)
    for got, expected in zip(shared, alone, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-13)
    if _blas_controller() is not None:
        assert threading.get_ident() not in threads
    assert lengths[0] == 0 or threads

    # A counter is no place for several threads.
    threads.clear()
    with threadpool_limits(3, user_api="blas"):
        flash_fwd(*qkv, counter=HbmCounter(), **flags)
    assert threads <= {threading.get_ident()}


def test_many_heads_and_sequences_are_cut_into_groups(monkeypatch):
    """Groups of a part of the heads, of one sequence, and of some sequences, none of them even."""
    rng = np.random.default_rng(0)
    qkv = operands(rng, 5, (9, 13), (6, 3), (4, 4))
    whole = flash_fwd(*qkv, softmax_scale=SCALE, window_right=0)
    for max_scores in (1, 2 * 9 * 13 * 2, 2 * 9 * 13 * 3, 2 * 9 * 13 * 7):
        monkeypatch.setattr("fa_numba.reference.flash_fwd._MAX_SCORES", max_scores)
        parts = flash_fwd(*qkv, softmax_scale=SCALE, window_right=0)
        for part, expected in zip(parts, whole, strict=True):
            np.testing.assert_allclose(part, expected, rtol=1e-13, atol=1e-13)


@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 2**19), st.integers(0, 9))
def test_groups_cover_every_head_once_and_no_more_at_once_than_fit(
    batch, nheads_k, scores, min_groups
):
    groups = list(_head_groups(batch, nheads_k, scores, min_groups))
    assert len(groups) >= min(min_groups, batch * nheads_k)
    seen = np.zeros((batch, nheads_k), int)
    for b, h in groups:
        seen[b, h] += 1
        size = (b.stop - b.start) * (h.stop - h.start)
        assert size == 1 or size * scores <= 512 * 512
    np.testing.assert_array_equal(seen, 1)


@pytest.mark.parametrize("forward", [flash_fwd, flash_fwd_fa1])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_dead_keys_may_hold_anything(forward, garbage):
    """Key 0..2 left of the first query's window, 24 and on right of the last query's bound."""
    rng = np.random.default_rng(0)
    q, k, v = operands(rng, 1, (20, 30), (2, 1), (4, 4))
    flags = {"softmax_scale": SCALE, "tile_m": 8, "tile_n": 8}
    mask = {"window_left": 7, "window_right": -1}
    clean = forward(q, k, v, **mask, **flags)
    k[:, :3], v[:, :3] = garbage, garbage
    for got, expected in zip(forward(q, k, v, **mask, **flags), clean, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_nan_in_a_key_stays_with_the_queries_that_attend_it():
    rng = np.random.default_rng(0)
    q, k, v = operands(rng, 1, (16, 16), (1, 1), (4, 4))
    flags = {"softmax_scale": SCALE, "window_right": 0, "tile_m": 8, "tile_n": 8}
    clean, clean_lse = flash_fwd(q, k, v, **flags)
    k[0, 5] = np.nan
    out, lse = flash_fwd(q, k, v, **flags)
    np.testing.assert_array_equal(out[0, :5], clean[0, :5])
    np.testing.assert_array_equal(lse[..., :5], clean_lse[..., :5])
    assert np.isnan(out[0, 5:]).all()
    assert np.isnan(lse[..., 5:]).all()


def test_an_empty_row_is_0_even_beside_an_infinite_value():
    rng = np.random.default_rng(0)
    q, k, v = operands(rng, 1, (6, 4), (1, 1), (4, 4))
    v[0, 0] = np.inf
    out, lse = flash_fwd(q, k, v, softmax_scale=SCALE, window_right=0)
    np.testing.assert_array_equal(out[0, :2], 0)
    np.testing.assert_array_equal(np.isneginf(lse[0, 0]), [True, True, False, False, False, False])


@pytest.mark.parametrize("forward", [flash_fwd, flash_fwd_fa1])
def test_pages_and_dense_keys_agree_bit_for_bit(forward):
    rng = np.random.default_rng(0)
    q, k, v = operands(rng, 1, (5, 45), (4, 2), (8, 6), np.float32)
    page_size, row = 7, rng.permutation(9).astype(np.int32)
    pages = []
    for x in (k, v):
        pool = np.full((9, page_size, *x.shape[2:]), np.nan, np.float32)
        for slot in range(45):
            pool[row[slot // page_size], slot % page_size] = x[0, slot]
        pages.append(PagedTensor(pool, row, 45))
    flags = {"softmax_scale": SCALE, "window_right": 0, "tile_m": 4, "tile_n": 16}
    for got, expected in zip(forward(q, *pages, **flags), forward(q, k, v, **flags), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_block_table_of_dead_pages_may_hold_anything():
    rng = np.random.default_rng(0)
    q, k, v = operands(rng, 1, (2, 40), (2, 2), (8, 6), np.float32)
    flags = {"softmax_scale": SCALE, "window_left": 5, "window_right": 0, "tile_n": 16}
    # The first query stands at 38 and sees keys from 33 on: pages 0 to 7 of 4 keys are dead.
    table = np.array([-5, 2**31 - 1, 10, -1, 99, 77, -(2**31), 50, 8, 9], np.int32)
    paged = (PagedTensor(x[0].reshape(10, 4, *x.shape[2:]), table, 40) for x in (k, v))
    for got, expected in zip(
        flash_fwd(q, *paged, **flags), flash_fwd(q, k, v, **flags), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("granularity", ["head", "block"])
def test_descales_undo_a_quantisation(granularity):
    """The result is that of the dequantised operands; tiles that straddle blocks included."""
    rng = np.random.default_rng(0)
    q, k, v = operands(rng, 2, (37, 50), (4, 2), (16, 8), np.float32)
    options = {"granularity": granularity, "nheads_k": 2, "block": 16}
    quantized = [quantize(x, **options) for x in (q, k, v)]
    dequantized = []
    for x, descale in quantized:
        if granularity == "block":
            factor = np.repeat(descale, 16, axis=2)[:, :, : x.shape[1]].transpose(0, 2, 1)
        else:
            factor = descale[:, None]
        factor = np.repeat(factor, x.shape[2] // 2, axis=2)[..., None]
        dequantized.append(x.astype(np.float64) * factor)
    ref, ref_lse = attention(*dequantized, softmax_scale=0.25, window_size=(-1, 0))

    codes, descales = zip(*quantized, strict=True)
    names = ("q_descale", "k_descale", "v_descale")
    out, lse = flash_fwd(
        *codes, softmax_scale=0.25, window_right=0, tile_m=12, tile_n=20, descale_block=16,
        **dict(zip(names, descales, strict=True)),
    )  # fmt: skip
    np.testing.assert_allclose(out, ref, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lse, ref_lse, rtol=1e-5)


def test_p_is_rounded_after_the_offset_and_its_sum_is_not():
    """One query, four keys, values the unit vectors: the output is the row of P over its sum."""
    scores = np.array([0.0, -0.3, -2.1, -11.0])
    q = np.ones((1, 1, 1, 1), np.float32)
    k = scores.astype(np.float32).reshape(1, 4, 1, 1)
    v = np.eye(4, dtype=np.float32).reshape(1, 4, 1, 4)
    exact = np.exp(scores)
    for offset in (0, 8):
        out, lse = flash_fwd(q, k, v, softmax_scale=1.0, p_dtype=E4M3, max_offset=offset)
        rounded = (exact * 2.0**offset).astype(np.float32).astype(E4M3).astype(np.float64)
        np.testing.assert_allclose(
            out[0, 0, 0], rounded / 2.0**offset / exact.sum(), rtol=1e-6, atol=1e-9
        )
        np.testing.assert_allclose(lse[0, 0, 0], np.log(exact.sum()), rtol=1e-6)
        # Without the offset the smallest probability is lost.
        assert (out[0, 0, 0, 3] == 0) == (offset == 0)


@pytest.mark.parametrize(
    ("p_dtype", "threshold", "offset"), [(E4M3, 1.0, 8), (E4M3, 0.0, 9), (np.float16, 8.0, 8)]
)
def test_a_p_that_could_overflow_is_refused(p_dtype, threshold, offset):
    qkv = operands(np.random.default_rng(0), 1, (2, 2), (1, 1), (2, 2), np.float32)
    options = {"rescale_threshold": threshold, "max_offset": offset}
    with pytest.raises(ValueError, match=f"max_offset is {offset} and rescale_threshold"):
        flash_fwd(*qkv, softmax_scale=1.0, p_dtype=p_dtype, **options)
    flash_fwd(*qkv, softmax_scale=1.0, **options)


def test_the_largest_p_that_is_accepted_fits():
    qkv = operands(np.random.default_rng(0), 1, (9, 40), (1, 1), (4, 4), np.float32)
    lazy = {"rescale_threshold": 0.8, "max_offset": 8, "p_dtype": E4M3}
    out, _ = flash_fwd(*qkv, softmax_scale=3.0, tile_n=4, **lazy)
    assert np.isfinite(out).all()


def test_exp2_hook_reaches_p():
    qkv = operands(np.random.default_rng(0), 1, (9, 40), (2, 2), (8, 8), np.float32)
    exact, _ = flash_fwd(*qkv, softmax_scale=SCALE)
    errors = [
        np.abs(
            flash_fwd(*qkv, softmax_scale=SCALE, exp2=lambda x, d=degree: exp2_poly(x, d))[0]
            - exact
        ).max()
        for degree in (1, 3, 5)
    ]
    assert errors[0] > 10 * errors[1] > 100 * errors[2] > 0


@pytest.mark.parametrize("forward", [flash_fwd, flash_fwd_fa1])
def test_fresh_memory_is_never_read(forward):
    qkv = operands(np.random.default_rng(0), 2, (21, 34), (4, 2), (8, 6), np.float32)
    flags = {"softmax_scale": SCALE, "window_left": 9, "window_right": 2, "sink_token_length": 2}
    results = []
    for fill in FILLS:
        with poisoned_allocations(fill):
            results.append(forward(*qkv, tile_m=8, tile_n=8, **flags))
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_output_may_be_a_strided_view():
    qkv = operands(np.random.default_rng(0), 2, (21, 34), (4, 2), (8, 6))
    expected, _ = flash_fwd(*qkv, softmax_scale=SCALE)
    memory = np.full((2, 4, 42, 8), np.nan)
    out = memory[:, :, ::2, 1:7].transpose(0, 2, 1, 3)
    flash_fwd(*qkv, softmax_scale=SCALE, out=out, tile_m=8)
    np.testing.assert_allclose(out, expected, rtol=1e-13)
    assert np.isnan(memory[:, :, 1::2]).all()


# ------------------------------------------------------------------------------------------ traffic


def traffic(forward, tile_m, tile_n, lengths=(96, 80), **flags):
    """Bytes of a call with 2 sequences, 3 heads, headdim 4, headdim_v 5, in float32."""
    qkv = operands(np.random.default_rng(0), 2, lengths, (3, 3), (4, 5), np.float32)
    counter = HbmCounter()
    forward(*qkv, softmax_scale=1.0, tile_m=tile_m, tile_n=tile_n, counter=counter, **flags)
    return counter


def test_fa2_moves_q_and_out_once_and_the_keys_once_per_row_block():
    """FlashAttention-2, algorithm 1, with N = 96 queries, 80 keys and 96/32 row blocks."""
    counter = traffic(flash_fwd, 32, 16)
    heads = 2 * 3 * 4
    assert counter.reads == {
        "q": heads * 96 * 4, "k": heads * 3 * 80 * 4, "v": heads * 3 * 80 * 5,
    }  # fmt: skip
    assert counter.writes == {"out": heads * 96 * 5, "lse": heads * 96}


def test_fa1_moves_the_keys_once_and_q_out_and_statistics_once_per_key_block():
    """FlashAttention, algorithm 1 and theorem 2: 80/16 passes over Q, O, m and ℓ."""
    counter = traffic(flash_fwd_fa1, 32, 16)
    heads = 2 * 3 * 4
    state = {"out": heads * 96 * 5, "row_max": heads * 96, "row_sum": heads * 96}
    assert counter.reads == {
        "q": heads * 5 * 96 * 4, "k": heads * 80 * 4, "v": heads * 80 * 5,
        **{name: 5 * nbytes for name, nbytes in state.items()},
    }  # fmt: skip
    # One more pass writes the initial values.
    assert counter.writes == {name: 6 * nbytes for name, nbytes in state.items()}


def test_tiles_that_the_mask_hides_are_not_read():
    full, causal = (traffic(flash_fwd, 16, 16, (64, 64), window_right=r) for r in (-1, 0))
    assert causal.reads["k"] * 16 == full.reads["k"] * 10
    assert causal.reads["q"] == full.reads["q"]


def test_query_heads_of_a_group_share_the_reads_of_their_key_head():
    rng = np.random.default_rng(0)
    counts = []
    for heads in ((6, 2), (2, 2)):
        counter = HbmCounter()
        qkv = operands(rng, 1, (32, 32), heads, (4, 4), np.float32)
        flash_fwd(*qkv, softmax_scale=1.0, tile_m=8, tile_n=8, counter=counter)
        counts.append(counter.reads["k"])
    assert counts[0] == counts[1]


# -------------------------------------------------------------------------------------------- tiles


@given(
    st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 128), st.integers(-1, 5000),
    st.integers(-1, 5000),
)  # fmt: skip
def test_default_tiles_are_positive_and_fit(seqlen_q, seqlen_k, group, left, right):
    tile_m, tile_n = default_tiles(seqlen_q, seqlen_k, group, left, right)
    assert 1 <= tile_m <= max(1, seqlen_q)
    assert 1 <= tile_n <= max(1, seqlen_k)
    assert tile_m * group * tile_n <= 512 * 512


@pytest.mark.parametrize("group", [1, 4])
def test_default_tiles_of_a_window_visit_little_more_than_the_window(group):
    tile_m, tile_n = default_tiles(4096, 4096, group, 256, 0)
    geometry = (tile_m, tile_n, 4096, 4096, 256, 0, 0, 1, 0, 1)
    visited = sum(
        n_block_count(get_n_block_min_max(m, *geometry)) for m in range(-(-4096 // tile_m))
    )
    assert visited * tile_m * tile_n <= 1.6 * 4096 * 257


def test_default_tiles_of_a_decoding_step_are_wide():
    assert default_tiles(1, 4096, 4, -1, 0)[1] > default_tiles(4096, 4096, 4, -1, 0)[1]
