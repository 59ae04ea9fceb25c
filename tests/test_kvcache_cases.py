"""KV cache: every case of every family against the oracle, and the cache's bytes after the call."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import fa_numba
from fa_numba.reference.attention import attention
from tests.cases import CACHE_CASES, FAMILIES, FP8, parametrize
from tests.inputs import make_inputs
from tests.oracle import appended_caches, kvcache_attention
from tests.runs import assert_bit_equal, on_family, run_thrice
from tests.tolerance import DTYPES, assert_appended, assert_lse, assert_out, truth_and_lowprec


def run_on_fresh_cache(family, call, flags):
    """Return a function that runs the call on copies of the caches, and keeps the last copies."""
    last = {}
    given = {name: value for name, value in call._asdict().items() if value is not None}

    def run(**kwargs):
        last["k_cache"], last["v_cache"] = call.k_cache.copy(), call.v_cache.copy()
        result = on_family(family, fa_numba.flash_attn_with_kvcache)(
            **{**given, **last}, return_lse=True, **flags, **kwargs
        )
        return *result, last["k_cache"], last["v_cache"]

    return run


@parametrize(CACHE_CASES)
def test_kvcache(family, dtype, case):
    call, descales = make_inputs(case, dtype)
    flags = {**case.score_flags, **case.forward_flags, **descales}
    out, lse, k_cache, v_cache = run_thrice(run_on_fresh_cache(family, call, flags))

    k_want, v_want = appended_caches(call)
    assert_appended(k_cache, k_want, dtype, rotary=bool(case.rotary))
    assert_appended(v_cache, v_want, dtype, rotary=False)
    (ref, ref_lse), (low, _) = truth_and_lowprec(
        kvcache_attention, call, dtype=dtype, **case.score_flags, **descales
    )
    assert out.dtype == DTYPES["bfloat16" if dtype in FP8 else dtype]
    assert_lse(lse, ref_lse, dtype)
    assert_out(out, ref, low, dtype, softcap=case.softcap)


def case_named(name):
    return next(case for case in CACHE_CASES if case.id == name)


@pytest.mark.parametrize("family", FAMILIES)
def test_page_order_changes_no_bit(family):
    case = case_named("cache_paged/16_append")
    call, _ = make_inputs(case, "float32")
    want = run_on_fresh_cache(family, call, case.score_flags)()
    order = np.random.default_rng(0).permutation(len(call.k_cache))
    place = np.argsort(order).astype(np.int32)
    known = (call.block_table >= 0) & (call.block_table < len(order))
    table = np.where(known, place[np.where(known, call.block_table, 0)], call.block_table)
    moved = call._replace(
        k_cache=call.k_cache[order], v_cache=call.v_cache[order], block_table=table
    )
    got = run_on_fresh_cache(family, moved, case.score_flags)()
    assert_bit_equal(got[:2], want[:2])
    assert_bit_equal(got[2][place], want[2])


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_one_by_one_equal_tokens_at_once(family):
    # Decoding is the causal forward, row by row: what a user of a cache relies on.
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, 9, heads, 16)).astype(np.float32) for heads in (4, 2, 2))
    caches = [np.full((2, 12, 2, 16), np.nan, np.float32) for _ in range(2)]
    decode = functools.partial(on_family(family, fa_numba.flash_attn_with_kvcache), causal=True)
    rows = [
        decode(
            q[:, [t]],
            *caches,
            k[:, [t]],
            v[:, [t]],
            cache_seqlens=t,
        )
        for t in range(9)
    ]
    got = np.concatenate(rows, axis=1)
    (ref, _), (low, _) = truth_and_lowprec(attention, q, k, v, dtype="float32", causal=True)
    assert_out(got, ref, low, "float32")
    np.testing.assert_array_equal(caches[0][:, :9], k)
    assert np.isnan(caches[1][:, 9:]).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_strided_cache_is_written_in_place(family):
    case = case_named("cache/append_16_q3_causal")
    call, _ = make_inputs(case, "float32")
    want = run_on_fresh_cache(family, call, case.score_flags)()
    # (batch, heads, slots, dim) storage, as many serving stacks keep it
    caches = [
        np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (call.k_cache, call.v_cache)
    ]
    result = on_family(family, fa_numba.flash_attn_with_kvcache)(
        call.q,
        *caches,
        call.k,
        call.v,
        cache_seqlens=call.cache_seqlens,
        return_lse=True,
        **case.score_flags,
    )
    assert_bit_equal((*result, *caches), want)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("page_size", [0, 16])
def test_overflowing_append_writes_nothing(family, page_size):
    name = "cache_paged/16_append" if page_size else "cache/append_16_q3_causal"
    case = case_named(name)
    call, _ = make_inputs(case, "float32")
    slots = call.block_table.shape[1] * page_size if page_size else call.k_cache.shape[1]
    lengths = np.array([0, 1, slots - call.k.shape[1] + 1], np.int32)
    if page_size:
        call = call._replace(block_table=np.zeros_like(call.block_table))
    k_cache, v_cache = call.k_cache.copy(), call.v_cache.copy()
    given = call._replace(cache_seqlens=lengths)._asdict()
    with pytest.raises(ValueError, match="cache_seqlens"):
        on_family(family, fa_numba.flash_attn_with_kvcache)(
            **{name: value for name, value in given.items() if value is not None}
        )
    assert_bit_equal((call.k_cache, call.v_cache), (k_cache, v_cache))
