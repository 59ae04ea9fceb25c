import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.indexing.tile_scheduler import WorkTile
from fa_numba.indexing.varlen_scheduler import (
    VARLEN_L2_BYTES,
    VarlenCursor,
    VarlenParams,
    varlen_block_coord,
    varlen_nheads_in_l2,
    varlen_num_tiles,
    varlen_params,
    varlen_seek,
    varlen_sort_key,
    varlen_tile_at,
    varlen_tile_of_index,
)
from tests.indexing.brute import thorough

NOTHING = WorkTile(0, 0, 0, 0, False)


@st.composite
def batches(draw):
    num_batch = draw(st.integers(0, 6))
    lists = st.lists(st.integers(0, 5), min_size=num_batch, max_size=num_batch)
    splits = st.lists(st.integers(1, 3), min_size=num_batch, max_size=num_batch)
    kv_heads, group = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    return varlen_params(
        draw(lists), draw(lists), draw(splits), kv_heads * group, group, 128, 64,
        draw(st.integers(0, 40)), draw(st.booleans()), draw(st.booleans()), draw(st.booleans()),
    )  # fmt: skip


def every_tile(params):
    return sorted(
        WorkTile(block, head, params.batch_order[b], split_idx, True)
        for b in range(len(params.batch_order))
        for block in range(params.num_m_blocks[b])
        for head in range(params.num_head)
        for split_idx in range(params.num_splits[b])
    )


@thorough
@given(batches())
def test_covers_each_tile_once(params):
    expected = every_tile(params)
    total = varlen_num_tiles(params)
    assert total == len(expected)
    tiles = [varlen_tile_of_index(params, t) for t in range(total)]
    assert sorted(tiles) == expected
    # Sequence after sequence, in the order of the visit.
    visit = [params.batch_order.index(w.batch) for w in tiles]
    assert visit == sorted(visit)
    assert varlen_tile_of_index(params, total) == NOTHING
    assert varlen_tile_of_index(params, total + 7) == NOTHING


@thorough
@given(batches(), st.integers(1, 7))
def test_a_cursor_that_goes_on_finds_what_a_search_from_the_start_finds(params, grid_size):
    for first in range(grid_size):
        cursor = VarlenCursor(0, 0)
        for t in range(first, varlen_num_tiles(params) + 2 * grid_size, grid_size):
            cursor = varlen_seek(params, cursor, t)
            assert varlen_tile_at(params, cursor, t) == varlen_tile_of_index(params, t)
            assert cursor.start_tile <= t or cursor.position == len(params.num_m_blocks)


def test_seek_skips_empty_sequences_and_stops_past_the_last():
    params = VarlenParams(2, False, (3, 0, 0, 1), (1, 1, 4, 2), (1,) * 4, (0, 1, 2, 3))
    assert varlen_num_tiles(params) == 10
    assert varlen_seek(params, VarlenCursor(0, 0), 5) == VarlenCursor(0, 0)
    assert varlen_seek(params, VarlenCursor(0, 0), 6) == VarlenCursor(3, 6)
    assert varlen_seek(params, VarlenCursor(3, 6), 9) == VarlenCursor(3, 6)
    assert varlen_seek(params, VarlenCursor(3, 6), 10) == VarlenCursor(4, 10)


def test_batch_order_names_the_batch_element():
    params = VarlenParams(1, False, (1, 1), (1, 1), (1, 1), (7, 4))
    assert [varlen_tile_of_index(params, t).batch for t in range(2)] == [7, 4]


def test_longest_first_groups_heads_and_starts_with_the_last_row_block():
    # 3 row blocks, 5 heads in groups of 2: (2, 2, 1).
    order = [varlen_block_coord(t, 3, 1, 5, 2, True) for t in range(15)]
    expected = [(m, h, 0) for heads in ((0, 1), (2, 3), (4,)) for m in (2, 1, 0) for h in heads]
    assert order == expected


def test_the_whole_batch_is_numbered_longest_first_or_not():
    for longest_first, blocks in ((True, [1, 1, 0, 0]), (False, [0, 1, 0, 1])):
        params = VarlenParams(2, longest_first, (2,), (1,), (2,), (0,))
        assert [varlen_tile_of_index(params, t).block for t in range(4)] == blocks


def test_splits_count_between_row_blocks_and_heads():
    order = [varlen_block_coord(t, 2, 3, 2, 2, False) for t in range(12)]
    assert order == [(m, h, s) for h in range(2) for s in range(3) for m in range(2)]
    order = [varlen_block_coord(t, 2, 3, 2, 2, True) for t in range(12)]
    assert order == [(m, h, s) for h in range(2) for s in range(3) for m in (1, 0)]
    order = [varlen_block_coord(t, 2, 1, 3, 2, False) for t in range(6)]
    assert order == [(m, h, 0) for h in range(3) for m in range(2)]


@pytest.mark.parametrize(
    ("num_n_blocks", "group", "num_head", "expected"),
    [
        # 64 column blocks fit: 128 keys of (128 + 128) float16 are 64 KiB, in half of 8 MiB.
        (4, 1, 32, 16),
        (5, 1, 32, 8),
        (8, 1, 32, 8),
        (9, 1, 32, 4),
        (16, 1, 32, 4),
        (32, 1, 32, 2),
        (33, 1, 32, 1),
        (64, 1, 32, 1),
        (65, 1, 32, 1),
        (9, 4, 32, 16),
        (4, 4, 32, 32),
        (4, 1, 5, 5),
        (0, 1, 32, 16),
    ],
)
def test_nheads_in_l2_golden_values(num_n_blocks, group, num_head, expected):
    got = varlen_nheads_in_l2(num_n_blocks, 64, group, num_head)
    assert got == expected
    assert type(got) is int


def test_nothing_fits_but_one_head_still_goes():
    assert varlen_nheads_in_l2(0, 0, 1, 8) == 1
    assert varlen_nheads_in_l2(1, 15, 1, 64) == 8
    assert VARLEN_L2_BYTES == 8 * 2**20


def test_sort_key_counts_columns_and_under_a_causal_mask_those_of_the_first_row():
    assert varlen_sort_key(3, 10, 128, 64, False) == 10
    assert varlen_sort_key(3, 10, 128, 64, True) == 640 - 384


def test_params_put_the_costliest_sequence_first_and_keep_ties_in_order():
    arguments = ((2, 5, 1, 2), (4, 9, 3, 4), (1, 2, 1, 1), 8, 2, 64, 64, 20)
    params = varlen_params(*arguments, False, True, True)
    # Column blocks of one split: 4, 5, 3, 4.
    assert params.batch_order == (1, 0, 3, 2)
    assert params.num_m_blocks == (5, 2, 2, 1)
    assert params.num_splits == (2, 1, 1, 1)
    assert params.nheads_in_l2 == (8, 8, 8, 8)
    assert (params.num_head, params.longest_first) == (8, True)
    # Causal: columns of the first row, 2, 0, 2, 2 tiles.
    assert varlen_params(*arguments, True, True, True).batch_order == (0, 2, 3, 1)
    unsorted = varlen_params(*arguments, False, False, False)
    assert unsorted.batch_order == (0, 1, 2, 3)
    assert unsorted.num_m_blocks == (2, 5, 1, 2)
    assert not unsorted.longest_first


def test_params_group_heads_by_the_blocks_of_one_split():
    # 8 column blocks in 2 splits are 4 for each: 16 blocks hold 4 key/value heads.
    params = varlen_params((1, 1), (8, 8), (2, 1), 32, 2, 64, 64, 16, False, True, False)
    assert params.nheads_in_l2 == (8, 4)
    # The larger of the two splits counts: 9 blocks in 2 splits are 5, of which 19 hold 3, so 2.
    params = varlen_params((1,), (9,), (2,), 32, 1, 64, 64, 19, False, True, False)
    assert params.nheads_in_l2 == (2,)
    with pytest.raises(ValueError, match="zip"):
        varlen_params((1,), (8,), (2, 1), 32, 2, 64, 64, 16, False, True, False)
