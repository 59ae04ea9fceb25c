import heapq
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.indexing.block_range import (
    get_m_block_min_max,
    get_n_block_min_max,
    n_block_count,
    num_m_blocks,
)
from fa_numba.indexing.tile_scheduler import (
    BACKWARD_L2_BYTES,
    FORWARD_L2_BYTES,
    WorkTile,
    dynamic_persistent_params,
    fit_to_sequence,
    heads_in_l2,
    linear_params,
    linear_tile_of_index,
    next_tile_dynamic,
    next_tile_static,
    num_tiles,
    sectioned_params,
    sectioned_tile_of_index,
    single_tile_bwd_params,
)
from tests.indexing.brute import thorough

NOTHING = WorkTile(0, 0, 0, 0, False)
MIB = 2**20

counts = st.integers(0, 5)
problems = st.tuples(counts, counts, counts, st.integers(1, 3))  # blocks, heads, batch, splits


def every_tile(num_blocks, num_head, num_batch, num_splits):
    axes = (range(num_blocks), range(num_head), range(num_batch), range(num_splits))
    return sorted(WorkTile(*coord, True) for coord in itertools.product(*axes))


def run(tile_of_index, params, grid_size, dynamic):
    """Let each thread block in turn take a tile, until all are done; return the tiles taken."""
    taken = []
    ticket = 0
    current = list(range(grid_size))
    while current:
        still_running = []
        for tile_idx in current:
            work = tile_of_index(params, tile_idx)
            if not work.valid:
                assert work == NOTHING
                continue
            taken.append(work)
            if dynamic:
                still_running.append(next_tile_dynamic(ticket, grid_size))
                ticket += 1
            else:
                still_running.append(next_tile_static(tile_idx, grid_size))
        current = still_running
    return taken


@thorough
@given(problems, st.integers(1, 9), st.booleans())
def test_linear_covers_each_tile_once_for_any_grid(problem, grid_size, dynamic):
    params = linear_params(*problem)
    expected = every_tile(*problem)
    assert num_tiles(params) == len(expected)
    assert sorted(run(linear_tile_of_index, params, grid_size, dynamic)) == expected


@thorough
@given(problems, st.integers(1, 9), st.booleans(), st.booleans(), st.integers(1, 40))
def test_sections_cover_each_tile_once_for_any_grid(
    problem, grid_size, dynamic, last_block_first, heads_per_section
):
    params = sectioned_params(*problem, heads_per_section, last_block_first)
    expected = every_tile(*problem)
    assert num_tiles(params) == len(expected)
    assert sorted(run(sectioned_tile_of_index, params, grid_size, dynamic)) == expected


def test_linear_counts_blocks_then_splits_then_heads_then_batch():
    params = linear_params(3, 2, 2, 2)
    order = [linear_tile_of_index(params, t) for t in range(num_tiles(params))]
    assert order == sorted(order, key=lambda w: (w.batch, w.head, w.split_idx, w.block))
    assert order[:4] == [
        WorkTile(0, 0, 0, 0, True),
        WorkTile(1, 0, 0, 0, True),
        WorkTile(2, 0, 0, 0, True),
        WorkTile(0, 0, 0, 1, True),
    ]


@pytest.mark.parametrize("last_block_first", [False, True])
def test_sections_count_their_heads_then_splits_of_blocks(last_block_first):
    # 5 (batch, head) pairs in sections of 2: two whole ones and a tail of one.
    params = sectioned_params(3, 5, 1, 2, 2, last_block_first)
    order = [sectioned_tile_of_index(params, t) for t in range(num_tiles(params))]
    sign = -1 if last_block_first else 1
    expected = sorted(order, key=lambda w: (w.head // 2, w.split_idx, sign * w.block, w.head))
    assert order == expected
    first = 2 if last_block_first else 0
    assert order[:3] == [
        WorkTile(first, 0, 0, 0, True),
        WorkTile(first, 1, 0, 0, True),
        WorkTile(1, 0, 0, 0, True),
    ]


def test_a_section_may_span_batch_elements():
    params = sectioned_params(1, 2, 3, 1, 4, True)
    order = [sectioned_tile_of_index(params, t) for t in range(6)]
    assert [(w.batch, w.head) for w in order] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_section_larger_than_the_problem_is_the_problem():
    assert sectioned_params(3, 4, 2, 1, 2**30, True) == sectioned_params(3, 4, 2, 1, 8, True)
    assert sectioned_params(3, 1, 1, 1, 2**30, True) == sectioned_params(3, 1, 1, 1, 1, True)


def test_a_section_may_hold_a_single_tile():
    params = sectioned_params(1, 3, 1, 1, 1, True)
    assert [sectioned_tile_of_index(params, t).head for t in range(3)] == [0, 1, 2]


def test_numbers_stay_exact_far_beyond_a_small_problem():
    # batch 65537, and about 2**31 tiles in all.
    params = linear_params(1, 8, 65537, 1)
    assert linear_tile_of_index(params, 8 * 65537 - 1) == WorkTile(0, 7, 65536, 0, True)
    params = sectioned_params(1024, 32, 65535, 1, 8, True)
    assert num_tiles(params) == 2**31 - 32 * 1024
    last = num_tiles(params) - 1
    assert sectioned_tile_of_index(params, last) == WorkTile(0, 31, 65534, 0, True)
    assert sectioned_tile_of_index(params, last + 1) == NOTHING


@pytest.mark.parametrize(
    ("l2_bytes", "head_bytes", "heads"),
    [
        (32 * MIB, 4 * MIB, 8),
        (32 * MIB, 4 * MIB + 1, 4),
        (32 * MIB, 32 * MIB, 1),
        (32 * MIB, 16 * MIB, 2),
        (32 * MIB, 33 * MIB, 1),
        (32 * MIB, 5 * MIB, 4),
        (40 * MIB, 1, 2**25),
        (8, 0, 8),
    ],
)
def test_heads_in_l2_is_the_largest_power_of_two_that_fits(l2_bytes, head_bytes, heads):
    assert heads_in_l2(l2_bytes, head_bytes) == heads


def test_dynamic_persistent_sections_hold_k_and_v():
    # 8192 keys of (128 + 128) float16 are 4 MiB: 8 key/value heads, 32 query heads of groups of 4.
    params = dynamic_persistent_params(64, 64, 2, 1, 4, 8192, 128, 128, 2)
    assert params == sectioned_params(64, 64, 2, 1, 32, True)
    assert FORWARD_L2_BYTES == 32 * MIB
    # Packed, a "head" is a key/value head. Head dims may differ: (192 + 128) is 5 MiB.
    params = dynamic_persistent_params(64, 16, 2, 1, 1, 8192, 192, 128, 2)
    assert params == sectioned_params(64, 16, 2, 1, 4, True)


def test_backward_sections_hold_q_do_and_the_accumulator():
    # 4096 queries of (128 + 128) float16 and 128 float32 are 4 MiB: 8 of 10 heads.
    params = single_tile_bwd_params(32, 16, 2, 4096, 128, 128, 2, False)
    assert params == sectioned_params(32, 16, 2, 1, 8, False)
    assert BACKWARD_L2_BYTES == 40 * MIB
    # 4096 * (192 * 2 + 64 * 2 + 192 * 4) bytes are 5 MiB: 8 heads; one head dim more, 4.
    params = single_tile_bwd_params(32, 16, 2, 4096, 192, 64, 2, True)
    assert params == sectioned_params(32, 16, 2, 1, 8, True)
    params = single_tile_bwd_params(32, 16, 2, 4096, 192, 65, 2, True)
    assert params == sectioned_params(32, 16, 2, 1, 4, True)


def forward_cost(work, seqlen):
    return n_block_count(
        get_n_block_min_max(work.block, 128, 128, seqlen, seqlen, -1, 0, 0, 1, 0, 1)
    )


def backward_cost(work, seqlen):
    m_min, m_max = get_m_block_min_max(work.block, 128, 128, seqlen, seqlen, -1, 0, 0)
    return m_max - m_min


@pytest.mark.parametrize("seqlen", [1000, 1024, 1025])
def test_each_section_goes_from_the_longest_tile_to_the_shortest(seqlen):
    blocks = num_m_blocks(128, seqlen, 1)
    params = sectioned_params(blocks, 4, 1, 1, 2, True)
    section = [sectioned_tile_of_index(params, t) for t in range(2 * blocks)]
    costs = [forward_cost(work, seqlen) for work in section]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == blocks
    for shortest_first in (False, True):
        params = single_tile_bwd_params(blocks, 2, 1, seqlen, 128, 128, 2, shortest_first)
        section = [sectioned_tile_of_index(params, t) for t in range(2 * blocks)]
        costs = [backward_cost(work, seqlen) for work in section]
        assert costs == sorted(costs, reverse=not shortest_first)
        assert len(set(costs)) == blocks


def makespan(costs, workers):
    """Time until the last of some workers is done, who take the costs in order as they are free."""
    free_at = [0] * workers
    for cost in costs:
        heapq.heappush(free_at, heapq.heappop(free_at) + cost)
    return max(free_at)


def test_longest_first_shortens_a_causal_forward():
    blocks, workers = 16, 12
    spans = {}
    for last_block_first in (False, True):
        params = sectioned_params(blocks, 4, 1, 1, 4, last_block_first)
        tiles = [sectioned_tile_of_index(params, t) for t in range(num_tiles(params))]
        spans[last_block_first] = makespan([forward_cost(w, 2048) for w in tiles], workers)
    ideal = 4 * sum(range(1, blocks + 1)) / workers
    assert spans[True] <= 1.05 * ideal < 1.1 * ideal <= spans[False]


@thorough
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 3), st.booleans(),
    st.integers(1, 4),
)  # fmt: skip
def test_a_grid_for_the_longest_sequence_fits_the_others(
    blocks_of_batch, num_head, last_block_first, heads_per_section
):
    longest = max(blocks_of_batch)
    params = sectioned_params(
        longest, num_head, len(blocks_of_batch), 1, heads_per_section, last_block_first
    )
    taken = []
    for t in range(num_tiles(params) + 2):
        work = sectioned_tile_of_index(params, t)
        fitted = fit_to_sequence(work, longest, blocks_of_batch[work.batch], 1, last_block_first)
        if fitted.valid:
            taken.append(fitted)
            # The place in the order stays: the k-th block from the end, or from the start.
            if last_block_first:
                assert blocks_of_batch[work.batch] - fitted.block == longest - work.block
        else:
            assert fitted == NOTHING
    expected = [
        WorkTile(block, head, batch, 0, True)
        for batch, blocks in enumerate(blocks_of_batch)
        for head in range(num_head)
        for block in range(blocks)
    ]
    assert sorted(taken) == sorted(expected)


def test_fit_to_sequence_drops_splits_that_a_sequence_does_not_have():
    work = WorkTile(1, 2, 3, 1, True)
    assert fit_to_sequence(work, 4, 2, 2, False) == work
    assert fit_to_sequence(work, 4, 2, 1, False) == NOTHING
    assert fit_to_sequence(work, 4, 1, 2, False) == NOTHING
    assert fit_to_sequence(work, 4, 3, 2, True) == WorkTile(0, 2, 3, 1, True)
    assert fit_to_sequence(work, 4, 2, 2, True) == NOTHING
    assert fit_to_sequence(work._replace(valid=False), 4, 2, 2, False) == NOTHING
