"""The append into a cache, against a dictionary of slots; refusals write nothing."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_numba.reference.append_kv import append_kv
from fa_numba.reference.rotary import apply_rotary
from tests.reference.test_rotary import make_tables

NHEADS_K, HEADDIM, HEADDIM_V = 2, 4, 3


def make_new(rng, batch, seqlen_new, dtype=np.float32):
    k = rng.standard_normal((batch, seqlen_new, NHEADS_K, HEADDIM)).astype(dtype)
    v = rng.standard_normal((batch, seqlen_new, NHEADS_K, HEADDIM_V)).astype(dtype)
    return k, v


def make_cache(rng, rows, length, dtype=np.float32):
    return make_new(rng, rows, length, dtype)


def expect_append(cache, new, lengths, locate):
    """Write token by token; `locate(b, slot)` gives the pair of leading cache indices."""
    cache = cache.copy()
    for b in range(new.shape[0]):
        for t in range(new.shape[1]):
            cache[locate(b, int(lengths[b]) + t)] = new[b, t]
    return cache


@given(st.integers(0, 2**32 - 1), st.integers(0, 4), st.integers(0, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_contiguous(seed, batch, seqlen_new, with_batch_idx):
    rng = np.random.default_rng(seed)
    seqlen_cache, batch_cache = seqlen_new + 3, batch + 2
    k_cache, v_cache = make_cache(rng, batch_cache, seqlen_cache)
    k, v = make_new(rng, batch, seqlen_new)
    lengths = rng.integers(0, 4, batch).astype(np.int32)
    idx = rng.permutation(batch_cache)[:batch].astype(np.int32) if with_batch_idx else None
    rows = np.arange(batch) if idx is None else idx
    expected_k = expect_append(k_cache, k, lengths, lambda b, s: (rows[b], s))
    expected_v = expect_append(v_cache, v, lengths, lambda b, s: (rows[b], s))

    append_kv(k_cache, v_cache, k, v, cache_seqlens=lengths, cache_batch_idx=idx)

    assert np.array_equal(k_cache, expected_k)
    assert np.array_equal(v_cache, expected_v)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 4, 16, 100]), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_paged_across_pages(seed, page_size, seqlen_new):
    rng = np.random.default_rng(seed)
    batch, max_blocks = 3, -(-12 // page_size)
    k_cache, v_cache = make_cache(rng, batch * max_blocks + 2, page_size)
    pages = rng.permutation(batch * max_blocks + 2)[: batch * max_blocks]
    block_table = pages.reshape(batch, max_blocks).astype(np.int32)
    lengths = rng.integers(0, 12 - seqlen_new + 1, batch).astype(np.int32)
    k, v = make_new(rng, batch, seqlen_new)

    def locate(b, slot):
        return pages.reshape(batch, max_blocks)[b, slot // page_size], slot % page_size

    expected_k = expect_append(k_cache, k, lengths, locate)
    expected_v = expect_append(v_cache, v, lengths, locate)
    # Entries of pages that receive nothing may hold anything.
    for b in range(batch):
        first, last = lengths[b] // page_size, (lengths[b] + seqlen_new - 1) // page_size
        block_table[b, :first] = -(2**31)
        block_table[b, last + 1 :] = 2**31 - 1

    append_kv(k_cache, v_cache, k, v, cache_seqlens=lengths, block_table=block_table)

    assert np.array_equal(k_cache, expected_k)
    assert np.array_equal(v_cache, expected_v)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.uint64])
def test_lengths_of_any_integer_dtype(dtype):
    rng = np.random.default_rng(8)
    k_cache, v_cache = make_cache(rng, 2, 6)
    k, v = make_new(rng, 2, 2)
    append_kv(k_cache, v_cache, k, v, cache_seqlens=np.array([4, 1], dtype))
    assert np.array_equal(k_cache[0, 4:], k[0])
    assert np.array_equal(v_cache[1, 1:3], v[1])


def test_int_length_is_every_sequence_s_length():
    rng = np.random.default_rng(0)
    k_cache, v_cache = make_cache(rng, 3, 6)
    k, v = make_new(rng, 3, 2)
    append_kv(k_cache, v_cache, k, v, cache_seqlens=4)
    assert np.array_equal(k_cache[:, 4:], k)
    assert np.array_equal(v_cache[:, 4:], v)


def test_strided_cache_is_written_through():
    rng = np.random.default_rng(1)
    base_k = rng.standard_normal((8, 2, NHEADS_K, 3, HEADDIM))
    base_v = rng.standard_normal((2, 8, 2 * NHEADS_K, HEADDIM_V))
    before_k, before_v = base_k.copy(), base_v.copy()
    # One of three interleaved tensors with the sequence first, and every second head.
    k_cache, v_cache = base_k[:, :, :, 1].transpose(1, 0, 2, 3), base_v[:, :, ::2]
    k, v = make_new(rng, 2, 3, np.float64)

    append_kv(k_cache, v_cache, k, v, cache_seqlens=np.array([5, 0]))

    before_k[5:8, 0, :, 1], before_k[0:3, 1, :, 1] = k[0], k[1]
    before_v[0, 5:8, ::2], before_v[1, 0:3, ::2] = v[0], v[1]
    assert np.array_equal(base_k, before_k)
    assert np.array_equal(base_v, before_v)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("paged", [True, False])
def test_keys_are_rotated_by_slot_number(interleaved, paged):
    rng = np.random.default_rng(2)
    lengths = np.array([3, 0], np.int32)
    cos, sin = make_tables(8, HEADDIM, np.float32)
    k, v = make_new(rng, 2, 4)
    expected = apply_rotary(k, cos, sin, lengths[:, None] + np.arange(4), interleaved=interleaved)
    rotary = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved}
    if paged:
        k_cache, v_cache = make_cache(rng, 4, 4)
        table = np.array([[2, 0], [3, 1]], np.int32)
        append_kv(k_cache, v_cache, k, v, cache_seqlens=lengths, block_table=table, **rotary)
        k_cache, v_cache = (c[table].reshape(2, 8, *c.shape[2:]) for c in (k_cache, v_cache))
    else:
        k_cache, v_cache = make_cache(rng, 2, 8)
        append_kv(k_cache, v_cache, k, v, cache_seqlens=lengths, **rotary)
    for b, length in enumerate(lengths):
        assert np.array_equal(k_cache[b, length : length + 4], expected[b])
        assert np.array_equal(v_cache[b, length : length + 4], v[b])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_rotation_is_rounded_once(dtype):
    rng = np.random.default_rng(3)
    cos, sin = make_tables(40, HEADDIM, dtype)
    k, v = make_new(rng, 1, 40, dtype)
    k_cache, v_cache = make_cache(rng, 1, 40, dtype)
    append_kv(k_cache, v_cache, k, v, cache_seqlens=0, rotary_cos=cos, rotary_sin=sin)
    c, s = (x.astype(np.float32)[None, :, None, :] for x in (cos, sin))
    even, odd = k[..., 0::2].astype(np.float32), k[..., 1::2].astype(np.float32)
    assert np.array_equal(k_cache[..., 0::2], (even * c - odd * s).astype(dtype))
    assert np.array_equal(k_cache[..., 1::2], (even * s + odd * c).astype(dtype))


def test_e4m3_cache_saturates_after_the_rotation():
    k = np.full((1, 1, 1, 2), 448, ml_dtypes.float8_e4m3fn)
    k_cache, v_cache = np.zeros_like(k), np.zeros_like(k)
    cos = sin = np.full((1, 1), np.sqrt(0.5), np.float32)
    append_kv(k_cache, v_cache, k, k, cache_seqlens=0, rotary_cos=cos, rotary_sin=sin)
    assert k_cache.astype(np.float32).ravel().tolist() == [0.0, 448.0]
    assert v_cache.astype(np.float32).ravel().tolist() == [448.0, 448.0]


def paged_args(rng):
    k_cache, v_cache = make_cache(rng, 4, 3)
    return k_cache, v_cache, {"block_table": np.array([[0, 1], [2, 3]], np.int32)}


def contiguous_args(rng):
    return *make_cache(rng, 2, 6), {}


REFUSALS = [
    ("overflow", contiguous_args, {"cache_seqlens": np.array([0, 5])}, r"cache_seqlens\[1\] = 5"),
    ("overflow paged", paged_args, {"cache_seqlens": np.array([5, 0])}, r"cache_seqlens\[0\] = 5"),
    ("overflow of int32", contiguous_args, {"cache_seqlens": np.int32(2**31 - 1)}, "no room"),
    ("negative length", contiguous_args, {"cache_seqlens": np.array([0, -1])}, "holds -1"),
    ("lengths shape", contiguous_args, {"cache_seqlens": np.array([0, 0, 0])}, r"shape \(3,\)"),
    (
        "row beyond the cache",
        contiguous_args,
        {"cache_seqlens": 0, "cache_batch_idx": np.array([0, 2])},
        "cache_batch_idx asks for cache rows 0 to 2; k_cache has 2",
    ),
    (
        "negative row",
        contiguous_args,
        {"cache_seqlens": 0, "cache_batch_idx": np.array([-1, 0])},
        "cache rows -1 to 0",
    ),
    (
        "shared row",
        contiguous_args,
        {"cache_seqlens": np.array([1, 2]), "cache_batch_idx": np.array([1, 1])},
        "two new tokens to one cache slot",
    ),
    (
        "page beyond the pool",
        paged_args,
        {"cache_seqlens": 2, "block_table": np.array([[0, 1], [2, 4]])},
        r"block_table\[1, 1\] is 4; k_cache has 4 pages",
    ),
    (
        "negative page",
        paged_args,
        {"cache_seqlens": 2, "block_table": np.array([[-1, 1], [2, 3]])},
        r"block_table\[0, 0\] is -1",
    ),
    (
        "shared page",
        paged_args,
        {"cache_seqlens": 0, "block_table": np.array([[0, 1], [0, 2]])},
        "two new tokens to one cache slot",
    ),
    (
        "short rotary table",
        contiguous_args,
        {
            "cache_seqlens": np.array([0, 2]),
            **dict.fromkeys(("rotary_cos", "rotary_sin"), np.ones((3, 1))),
        },
        "positions 0 to 3 are needed",
    ),
]


@pytest.mark.parametrize(
    ("make_args", "changes", "message"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_refusals_write_nothing(make_args, changes, message):
    rng = np.random.default_rng(4)
    k_cache, v_cache, keywords = make_args(rng)
    before = k_cache.copy(), v_cache.copy()
    k, v = make_new(rng, 2, 2)
    with pytest.raises(ValueError, match=message):
        append_kv(k_cache, v_cache, k, v, **(keywords | changes))
    assert np.array_equal(k_cache, before[0])
    assert np.array_equal(v_cache, before[1])


def test_batch_above_the_cache_s_is_refused():
    rng = np.random.default_rng(5)
    k_cache, v_cache = make_cache(rng, 1, 4)
    with pytest.raises(ValueError, match="the batch of k asks for cache rows 0 to 1"):
        append_kv(k_cache, v_cache, *make_new(rng, 2, 1), cache_seqlens=0)


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_read_only_cache_is_refused(name):
    rng = np.random.default_rng(6)
    k_cache, v_cache = make_cache(rng, 1, 4)
    before = k_cache.copy(), v_cache.copy()
    {"k_cache": k_cache, "v_cache": v_cache}[name].flags.writeable = False
    with pytest.raises(ValueError, match=f"{name} is read-only"):
        append_kv(k_cache, v_cache, *make_new(rng, 1, 1), cache_seqlens=0)
    assert np.array_equal(k_cache, before[0])
    assert np.array_equal(v_cache, before[1])


@pytest.mark.parametrize(("batch", "seqlen_new"), [(0, 2), (2, 0)])
@pytest.mark.parametrize("paged", [True, False])
def test_nothing_to_append(batch, seqlen_new, paged):
    rng = np.random.default_rng(7)
    k_cache, v_cache = make_cache(rng, 4, 3)
    before = k_cache.copy(), v_cache.copy()
    table = np.full((batch, 2), -1, np.int32) if paged else None
    append_kv(
        k_cache, v_cache, *make_new(rng, batch, seqlen_new), cache_seqlens=3, block_table=table
    )
    assert np.array_equal(k_cache, before[0])
    assert np.array_equal(v_cache, before[1])
