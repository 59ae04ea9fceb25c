import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.indexing.block_range import (
    BlockRange,
    ceil_div,
    get_m_block_min_max,
    get_n_block_min_max,
    get_unmasked_m_block_min_max,
    get_unmasked_n_block_min_max,
    n_block_at,
    n_block_count,
    num_m_blocks,
    query_limits,
    split_range,
)
from tests.indexing.brute import (
    dense_mask,
    groups,
    lengths,
    sinks,
    thorough,
    tiles,
    tiles_of,
    whole_tiles,
    windows,
)


def visited(r):
    return [n_block_at(r, i) for i in range(n_block_count(r))]


@thorough
@given(lengths, lengths, tiles, tiles, windows, windows, sinks, groups, st.integers(1, 6))
def test_forward_visits_each_needed_tile_in_one_split_and_no_other(
    sq, sk, tile_m, tile_n, left, right, sink, g, num_splits
):
    mask = np.repeat(dense_mask(sq, sk, left, right, sink), g, axis=0)
    needed = tiles_of(mask, tile_m, tile_n, np.any)
    assert num_m_blocks(tile_m, sq, g) == len(needed)
    for m_block in range(len(needed)):
        geometry = (m_block, tile_m, tile_n, sq, sk, left, right, sink, g)
        expected = np.flatnonzero(needed[m_block]).tolist()
        assert visited(get_n_block_min_max(*geometry, 0, 1)) == expected[::-1]
        per_split = -(-len(expected) // num_splits)
        for split_idx in range(num_splits):
            r = get_n_block_min_max(*geometry, split_idx, num_splits)
            share = expected[split_idx * per_split : (split_idx + 1) * per_split]
            assert visited(r) == share[::-1]


@thorough
@given(lengths, lengths, tiles, tiles, windows, windows, sinks)
def test_forward_sink_and_window_parts_are_apart(sq, sk, tile_m, tile_n, left, right, sink):
    for m_block in range(num_m_blocks(tile_m, sq, 1)):
        r = get_n_block_min_max(m_block, tile_m, tile_n, sq, sk, left, right, sink, 1, 0, 1)
        no_sink = get_n_block_min_max(m_block, tile_m, tile_n, sq, sk, left, right, 0, 1, 0, 1)
        # The window part is the range without sinks, whatever the sinks are.
        assert r[2:] == no_sink[2:]
        assert no_sink.n_sink_min == no_sink.n_sink_max == 0
        assert 0 == r.n_sink_min <= r.n_sink_max <= r.n_block_min <= r.n_block_max
        assert r.n_sink_max * tile_n < sink + tile_n


@thorough
@given(lengths, lengths, tiles, tiles, windows, windows, sinks, groups, st.integers(1, 4))
def test_unmasked_tiles_of_the_forward_are_the_whole_ones(
    sq, sk, tile_m, tile_n, left, right, sink, g, num_splits
):
    mask = np.repeat(dense_mask(sq, sk, left, right, sink), g, axis=0)
    whole = whole_tiles(mask, tile_m, tile_n)
    for m_block in range(len(whole)):
        for split_idx in range(num_splits):
            geometry = (m_block, tile_m, tile_n, sq, sk, left, right, sink, g)
            r = get_n_block_min_max(*geometry, split_idx, num_splits)
            n_min, n_max = get_unmasked_n_block_min_max(*geometry, split_idx, num_splits)
            assert r.n_block_min <= n_min <= n_max <= r.n_block_max
            assert whole[m_block, n_min:n_max].all()
            # A whole tile may be left out only if it owes that to the sinks alone.
            for n_block in range(r.n_block_min, r.n_block_max):
                if whole[m_block, n_block] and not n_min <= n_block < n_max:
                    assert (n_block + 1) * tile_n <= sink


@thorough
@given(lengths, lengths, tiles, tiles, windows, windows, sinks)
def test_backward_visits_each_needed_tile_and_no_other(sq, sk, tile_m, tile_n, left, right, sink):
    mask = dense_mask(sq, sk, left, right, sink)
    needed = tiles_of(mask, tile_m, tile_n, np.any)
    whole = whole_tiles(mask, tile_m, tile_n)
    for n_block in range(needed.shape[1]):
        arguments = (n_block, tile_m, tile_n, sq, sk, left, right, sink)
        m_min, m_max = get_m_block_min_max(*arguments)
        assert list(range(m_min, m_max)) == np.flatnonzero(needed[:, n_block]).tolist()
        u_min, u_max = get_unmasked_m_block_min_max(*arguments)
        assert m_min <= u_min <= u_max <= m_max
        assert list(range(u_min, u_max)) == np.flatnonzero(whole[:, n_block]).tolist()


BOUNDARY_LENGTHS = (1, 127, 128, 129, 255, 257, 446)


@pytest.mark.parametrize("seqlen_q", BOUNDARY_LENGTHS)
@pytest.mark.parametrize("seqlen_k", BOUNDARY_LENGTHS)
def test_kernel_sized_tiles_at_their_boundaries(seqlen_q, seqlen_k):
    tile_m, tile_n = 128, 64
    for left, right, sink in ((-1, -1, 0), (-1, 0, 0), (127, 0, 0), (64, 63, 0), (100, 0, 4)):
        mask = dense_mask(seqlen_q, seqlen_k, left, right, sink)
        needed = tiles_of(mask, tile_m, tile_n, np.any)
        for m_block in range(needed.shape[0]):
            r = get_n_block_min_max(
                m_block, tile_m, tile_n, seqlen_q, seqlen_k, left, right, sink, 1, 0, 1
            )
            assert sorted(visited(r)) == np.flatnonzero(needed[m_block]).tolist()
        for n_block in range(needed.shape[1]):
            m_min, m_max = get_m_block_min_max(
                n_block, tile_m, tile_n, seqlen_q, seqlen_k, left, right, sink
            )
            assert list(range(m_min, m_max)) == np.flatnonzero(needed[:, n_block]).tolist()


def test_tiles_past_the_end_are_empty():
    for split_idx in range(2):
        assert get_n_block_min_max(3, 4, 4, 12, 12, -1, 0, 0, 1, split_idx, 2) == (0, 0, 0, 0)
        assert get_unmasked_n_block_min_max(3, 4, 4, 12, 12, -1, 0, 0, 1, split_idx, 2) == (0, 0)
    assert get_n_block_min_max(0, 4, 4, 0, 12, -1, -1, 2, 1, 0, 1) == (0, 0, 0, 0)
    assert get_n_block_min_max(0, 4, 4, 12, 0, -1, -1, 2, 1, 0, 1) == (0, 0, 0, 0)
    for right in (-1, 0):
        assert get_n_block_min_max(3, 4, 4, 12, 12, -1, right, 0, 1, 0, 1) == (0, 0, 0, 0)
        assert get_m_block_min_max(3, 4, 4, 12, 12, -1, right, 0) == (0, 0)
    assert get_m_block_min_max(0, 4, 4, 0, 12, -1, -1, 2) == (0, 0)
    assert get_unmasked_m_block_min_max(3, 4, 4, 12, 12, -1, 0, 0) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # (m_block, tile_m, tile_n, sq, sk, left, right, sink, g, split_idx, num_splits)
        ((0, 128, 128, 1024, 1024, -1, 0, 0, 1, 0, 1), (0, 0, 0, 1)),
        ((7, 128, 128, 1024, 1024, -1, 0, 0, 1, 0, 1), (0, 0, 0, 8)),
        ((7, 128, 128, 1024, 1024, 256, 0, 0, 1, 0, 1), (0, 0, 5, 8)),
        ((7, 128, 128, 1024, 1024, 256, 0, 4, 1, 0, 1), (0, 1, 5, 8)),
        ((7, 128, 128, 1024, 1024, 256, 0, 129, 1, 0, 1), (0, 2, 5, 8)),
        # The sinks reach into the window: one run.
        ((2, 128, 128, 1024, 1024, 256, 0, 129, 1, 0, 1), (0, 0, 0, 3)),
        # Four tiles for three splits: two, two, none.
        ((7, 128, 128, 1024, 1024, 256, 0, 4, 1, 0, 3), (0, 1, 5, 6)),
        ((7, 128, 128, 1024, 1024, 256, 0, 4, 1, 1, 3), (1, 1, 6, 8)),
        ((7, 128, 128, 1024, 1024, 256, 0, 4, 1, 2, 3), (1, 1, 8, 8)),
        # Eight heads of one decoded token are rows of the same query.
        ((0, 64, 128, 1, 1000, -1, 0, 0, 8, 0, 1), (0, 0, 0, 8)),
        # A last row tile with one row: the bound of a whole row tile would be one tile more.
        ((1, 64, 32, 65, 65, -1, 32, 0, 1, 0, 1), (0, 0, 0, 3)),
        ((0, 64, 32, 33, 97, -1, 0, 0, 1, 0, 1), (0, 0, 0, 4)),
        # The first 28 queries of 128 see nothing of 100 keys.
        ((0, 16, 32, 128, 100, -1, 0, 0, 1, 0, 1), (0, 0, 0, 0)),
        ((1, 16, 32, 128, 100, -1, 0, 0, 1, 0, 1), (0, 0, 0, 1)),
    ],
)
def test_forward_golden_values(arguments, expected):
    assert get_n_block_min_max(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, 128, 128, 1024, 1024, -1, 0, 0, 1, 0, 1), (0, 0)),
        ((7, 128, 128, 1024, 1024, -1, 0, 0, 1, 0, 1), (0, 7)),
        ((7, 128, 128, 1024, 1024, 256, 0, 0, 1, 0, 1), (6, 7)),
        ((7, 128, 128, 1000, 1000, -1, -1, 0, 1, 0, 1), (0, 7)),
        ((0, 128, 128, 1000, 1024, -1, -1, 0, 1, 1, 2), (4, 8)),
        # The last row's window starts at key 255: 255 sinks close the gap, 254 leave key 254 out.
        ((3, 128, 128, 1024, 1024, 256, 0, 255, 1, 0, 1), (1, 3)),
        ((3, 128, 128, 1024, 1024, 256, 0, 254, 1, 0, 1), (2, 3)),
    ],
)
def test_unmasked_golden_values(arguments, expected):
    assert get_unmasked_n_block_min_max(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "expected", "unmasked"),
    [
        # (n_block, tile_m, tile_n, sq, sk, left, right, sink)
        ((0, 128, 128, 1024, 1024, -1, 0, 0), (0, 8), (1, 8)),
        ((7, 128, 128, 1024, 1024, -1, 0, 0), (7, 8), (8, 8)),
        ((2, 128, 128, 1024, 1024, 256, 0, 0), (2, 5), (3, 4)),
        ((0, 128, 128, 1024, 1024, 256, 0, 4), (0, 8), (1, 2)),
        ((0, 128, 128, 1024, 1024, 256, 0, 128), (0, 8), (1, 8)),
        ((1, 128, 128, 1024, 1024, 256, 0, 128), (1, 4), (2, 3)),
        ((7, 128, 128, 1024, 1000, -1, -1, 0), (0, 8), (0, 0)),
        ((0, 128, 128, 1000, 1000, -1, -1, 0), (0, 8), (0, 8)),
    ],
)
def test_backward_golden_values(arguments, expected, unmasked):
    assert get_m_block_min_max(*arguments) == expected
    assert get_unmasked_m_block_min_max(*arguments) == unmasked


def test_query_limits_cut_the_last_tile_and_cover_split_heads():
    assert query_limits(0, 4, 10, 1) == (0, 4)
    assert query_limits(2, 4, 10, 1) == (8, 10)
    assert query_limits(3, 4, 10, 1) == (10, 10)
    # Three heads a query: rows 4 to 7 are queries 1 (heads 1, 2) and 2 (heads 0, 1).
    assert query_limits(1, 4, 10, 3) == (1, 3)


def test_split_range_is_a_slice_of_the_ascending_list():
    full = BlockRange(0, 3, 10, 14)
    assert [split_range(full, i, 3) for i in range(3)] == [
        (0, 3, 10, 10),
        (3, 3, 10, 13),
        (3, 3, 13, 14),
    ]
    # The share of a share: the sink part does not start at tile 0.
    share = BlockRange(1, 3, 10, 14)
    assert [split_range(share, i, 2) for i in range(2)] == [(1, 3, 10, 11), (3, 3, 11, 14)]
    # More splits than tiles: the rest is empty.
    assert [n_block_count(split_range(full, i, 9)) for i in range(9)] == [1] * 7 + [0] * 2
    assert n_block_count(split_range(BlockRange(0, 0, 0, 0), 1, 4)) == 0


def test_the_loop_goes_down_and_takes_sinks_last():
    assert visited(BlockRange(0, 2, 5, 8)) == [7, 6, 5, 1, 0]
    assert visited(BlockRange(1, 2, 5, 5)) == [1]
    assert visited(BlockRange(0, 0, 3, 4)) == [3]


def test_ceil_div_examples():
    assert [ceil_div(n, 4) for n in range(10)] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]
