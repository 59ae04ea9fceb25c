"""The case list and its inputs keep their own promises."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from tests.cases import (
    ALL_CASES,
    CACHE_CASES,
    DENSE_CASES,
    FAMILIES,
    SERVES,
    VARLEN_CASES,
    CombineCase,
    DenseCase,
)
from tests.inputs import LAYOUTS, make_inputs
from tests.oracle import kvcache_attention, varlen_attention
from tests.poison import poison, poisoned_allocations
from tests.tolerance import DTYPES

GROUPS = {
    *("empty_front_rows", "masked_first_tile", "lengths", "window_offsets", "window_tiles"),
    *("window_spelling", "sink", "gqa", "headdim", "nothing", "splits", "scale", "zero_query"),
    *("softcap", "softcap_saturated", "large_scores", "layout", "dead_keys", "float8"),
    *("batch_65537", "long", "varlen", "varlen_empty_front_rows", "varlen_paged", "cache"),
    *("cache_batch_idx", "cache_leftpad", "cache_float8", "cache_paged", "cache_rotary", "combine"),
}


def test_ids_are_unique_and_no_group_is_lost():
    counts = collections.Counter(case.id for case in ALL_CASES)
    assert [name for name, count in counts.items() if count > 1] == []
    assert {case.group for case in ALL_CASES} == GROUPS


def test_every_family_serves_known_dtypes():
    assert set(SERVES) == set(FAMILIES)
    for dtypes in (*SERVES.values(), *(case.dtypes for case in ALL_CASES)):
        assert set(dtypes) <= set(DTYPES)


def test_seeds_and_inputs_are_stable():
    case = DenseCase(group="a", variant="b")
    assert case.seed == 133447708
    first, again = make_inputs(case, "float32"), make_inputs(case, "float32")
    np.testing.assert_array_equal(first.q, again.q)
    other = make_inputs(case, "float32", np.random.default_rng(0))
    assert (first.q != other.q).any()


def test_sizes_split_the_list():
    small = [case for case in ALL_CASES if case.size == "small"]
    assert len(small) > 0.9 * len(ALL_CASES)
    assert {case.group for case in ALL_CASES if case.size == "large"} >= {"batch_65537", "long"}
    assert {case.group for case in small} >= GROUPS - {"batch_65537", "long"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_keep_the_values(layout):
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 4))
    view = LAYOUTS[layout](x)
    want = np.broadcast_to(x[:1], x.shape) if layout == "expanded" else x
    np.testing.assert_array_equal(view, want)
    plain = view.flags.c_contiguous and view.flags.writeable and view.flags.aligned
    assert plain == (layout == "contiguous")


def test_garbage_is_there_and_no_oracle_sees_it():
    for case in VARLEN_CASES:
        if case.garbage and "float32" in case.dtypes:
            x = make_inputs(case, "float32")
            args = (x.q, x.k, x.v, x.cu_seqlens_q, x.cu_seqlens_k)
            out, _ = varlen_attention(*args, **x.lengths, **case.score_flags)
            assert np.isfinite(out).all(), case.id
    for case in CACHE_CASES:
        if "float32" in case.dtypes:
            call, _ = make_inputs(case, "float32")
            out, _ = kvcache_attention(call, **case.score_flags)
            assert np.isfinite(out).all(), case.id
            if case.cache_seqlens is not None:
                assert np.isnan(call.k_cache).any(), case.id


def test_dead_table_entries_are_wild():
    for case in (*VARLEN_CASES, *CACHE_CASES):
        if case.page_size and getattr(case, "cache_seqlens", ()) is not None:
            x = make_inputs(case, case.dtypes[0])
            table = getattr(x, "call", x).block_table
            pages = len(x.call.k_cache if hasattr(x, "call") else x.k)
            assert ((table < 0) | (table >= pages)).any(), case.id


def test_descales_are_distinct_powers_of_two():
    for case in ALL_CASES:
        if case.descales:
            for descale in make_inputs(case, "float8_e4m3fn").descales.values():
                mantissa, _ = np.frexp(descale)
                assert (mantissa == 0.5).all()
                assert np.unique(descale).size == descale.size > 1


def test_all_codes_are_in_every_column():
    case = next(case for case in DENSE_CASES if case.id == "float8/all_codes")
    x = make_inputs(case, "float8_e4m3fn")
    for array in (x.k, x.v):
        codes = np.sort(array.view(np.uint8)[0, :, 0, 5])
        np.testing.assert_array_equal(codes, [c for c in range(256) if c & 0x7F != 0x7F])


def test_poison_fills_fresh_memory_and_nothing_else():
    for byte in (0xFF, 0x00):
        with poisoned_allocations(byte):
            fresh = [np.empty((3, 5), np.float32), np.empty_like(np.ones((4, 3)).T)]
            objects = np.empty(2, object)
        assert all((x.tobytes() == bytes([byte]) * x.nbytes) for x in fresh)
        assert objects.tolist() == [None, None]
    assert np.isnan(poison(np.ones(3, DTYPES["bfloat16"]), 0xFF).astype(float)).all()
    with poisoned_allocations(0xFF):
        assert np.zeros(3).tolist() == [0, 0, 0]


def test_no_inputs_for_an_unknown_kind():
    class Other(CombineCase):
        pass

    assert make_inputs(Other(group="a", variant="b", splits=2), "float32").out_partial.size
    with pytest.raises(TypeError, match="no inputs for object"):
        make_inputs(object(), "float32")
