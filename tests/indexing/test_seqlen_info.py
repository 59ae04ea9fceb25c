import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.indexing.seqlen_info import (
    SeqlenInfo,
    cache_seqlen_info,
    clamp_span,
    dense_seqlen_info,
    key_slot,
    padded_offset,
    varlen_seqlen_info,
)
from tests.indexing.brute import thorough

anything = st.integers(-(2**31), 2**31 - 1)


def test_dense():
    assert dense_seqlen_info(5, 9) == SeqlenInfo(
        offset_q=0, seqlen_q=5, offset_k=0, seqlen_k=9, leftpad_k=0
    )


def test_varlen_takes_spans_and_used_lengths():
    # Sequence 1 of cu_seqlens_q = (0, 3, 7), cu_seqlens_k = (0, 4, 10), all used.
    assert varlen_seqlen_info(3, 7, -1, 7, 4, 10, -1, 10) == SeqlenInfo(3, 4, 4, 6, 0)
    # The same with seqused_q = 2 and seqused_k = 0: zero is a length, not "not given".
    assert varlen_seqlen_info(3, 7, 2, 7, 4, 10, 0, 10) == SeqlenInfo(3, 2, 4, 0, 0)
    # A used length cannot exceed the span.
    assert varlen_seqlen_info(3, 7, 9, 7, 4, 10, 6, 10) == SeqlenInfo(3, 4, 4, 6, 0)


@thorough
@given(anything, anything, anything, st.integers(0, 2**31 - 1))
def test_clamp_span_stays_inside_whatever_it_reads(start, stop, seqused, total):
    offset, seqlen = clamp_span(start, stop, seqused, total)
    assert 0 <= offset <= offset + seqlen <= total
    if 0 <= start <= stop <= total:
        assert offset == start
        assert seqlen == (min(seqused, stop - start) if seqused >= 0 else stop - start)


def test_clamp_span_examples():
    assert clamp_span(-4, 3, -1, 10) == (0, 3)
    assert clamp_span(4, 13, -1, 10) == (4, 6)
    assert clamp_span(7, 5, -1, 10) == (7, 0)
    assert clamp_span(12, 15, -1, 10) == (10, 0)
    assert clamp_span(2, 5, 1, 10) == (2, 1)


def test_cache_counts_the_append_and_not_the_padding():
    # 10 slots filled, 3 of them padding, 2 tokens appended, in a row of 16 slots.
    info = cache_seqlen_info(5, 2, 10, 2, 3, 16)
    assert info == SeqlenInfo(offset_q=5, seqlen_q=2, offset_k=0, seqlen_k=9, leftpad_k=3)
    assert key_slot(info, 0) == 3
    assert key_slot(info, 8) == 11  # the second appended token, slot cache_seqlen + 1


def test_cache_keeps_to_its_capacity():
    assert cache_seqlen_info(0, 1, 15, 4, 0, 16).seqlen_k == 16
    assert cache_seqlen_info(0, 1, -5, 4, 0, 16).seqlen_k == 4
    assert cache_seqlen_info(0, 1, 6, 0, -2, 16) == SeqlenInfo(0, 1, 0, 6, 0)
    # Padding beyond what is filled leaves no key.
    assert cache_seqlen_info(0, 1, 6, 0, 9, 16) == SeqlenInfo(0, 1, 0, 0, 6)


@thorough
@given(anything, st.integers(0, 2**20), anything, st.integers(0, 2**31 - 1))
def test_cache_slots_are_in_bounds_whatever_it_reads(cache_seqlen, new, leftpad, capacity):
    info = cache_seqlen_info(0, 1, cache_seqlen, new, leftpad, capacity)
    assert info.seqlen_k >= 0
    assert info.leftpad_k >= 0
    assert key_slot(info, info.seqlen_k) <= capacity


def test_key_slot_adds_offset_and_padding():
    assert key_slot(SeqlenInfo(1, 2, 30, 4, 500), 7) == 537


@thorough
@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 9))
def test_padded_spans_are_aligned_and_hold_whole_tiles(seqlens, tile):
    cu_seqlens = np.concatenate([[0], np.cumsum(seqlens)]).tolist()
    starts = [padded_offset(offset, b, tile) for b, offset in enumerate(cu_seqlens)]
    for b, seqlen in enumerate(seqlens):
        assert starts[b] % tile == 0
        assert starts[b] + -(-seqlen // tile) * tile <= starts[b + 1]
    # The workspace is at most one tile for each sequence larger than the data.
    assert starts[-1] <= cu_seqlens[-1] + len(seqlens) * tile


def test_padded_offset_examples():
    assert [padded_offset(*pair, 64) for pair in ((0, 0), (10, 1), (70, 2), (64, 1))] == [
        0,
        64,
        192,
        128,
    ]
