"""Which tile a thread block works on next, if every sequence has its own length.

VarlenDynamicPersistent numbers the tiles sequence after sequence, without a gap for what a shorter
sequence does not have. Finding tile ``t`` then means to find the sequence whose share of the
numbers contains it: a search in the running sum of tiles per sequence. A thread block's tile
numbers only grow, so it keeps a cursor and goes on from where it was; in a kernel the 32 lanes of a
warp look at as many sequences at a time, with a prefix sum by shuffles.

Within a sequence:

- without splits and longest first (causal or windowed), the heads go in groups whose keys and
  values fit into L2 together, as in the sections of `tile_scheduler`, row blocks from last to
  first;
- otherwise the row blocks count fastest, then the splits, then the heads.

Sequences may be visited in another order than they lie in memory, costliest first: that is LPT
across the batch. The lists in `VarlenParams` are in the order of the visit, and `batch_order` leads
back. They may be tuples, or arrays in the memory of the host or the device.

After ``VarlenDynamicPersistentTileScheduler`` in ``hopper/tile_scheduler.hpp`` and after
``hopper/flash_prepare_scheduler.cu`` in Dao-AILab/flash-attention (commit 0251105a).
"""

from collections.abc import Sequence
from typing import NamedTuple

from fa_numba.indexing.tile_scheduler import WorkTile

VARLEN_L2_BYTES = 8 * 2**20
"""L2 bytes granted to K and V of one group; small, since sequences overlap in time."""


class VarlenParams(NamedTuple):
    """Tiles of a batch of sequences, in the order of the visit.

    Attributes
    ----------
    num_head : int
        Query heads, or key/value heads with PackGQA.
    longest_first : bool
        Whether row blocks go from last to first, with heads grouped by L2.
    num_m_blocks, num_splits, nheads_in_l2 : sequence of int
        Row blocks, splits (at least 1) and heads in a group (at least 1) of each sequence.
    batch_order : sequence of int
        Batch element of each sequence.
    """

    num_head: int
    longest_first: bool
    num_m_blocks: Sequence[int]
    num_splits: Sequence[int]
    nheads_in_l2: Sequence[int]
    batch_order: Sequence[int]


class VarlenCursor(NamedTuple):
    """A place in the search.

    Attributes
    ----------
    position : int
        A sequence, counted in the order of the visit.
    start_tile : int
        Its first tile number.
    """

    position: int
    start_tile: int


def varlen_nheads_in_l2(
    num_n_blocks: int, max_kvblocks_in_l2: int, qhead_per_khead: int, num_head: int
) -> int:
    """Return how many heads of one sequence go in a group.

    Parameters
    ----------
    num_n_blocks : int
        Column blocks of the sequence (of one split).
    max_kvblocks_in_l2 : int
        Column blocks of one head that fit: ``VARLEN_L2_BYTES // (tile_n * (headdim + headdim_v) *
        element_size)``.
    qhead_per_khead : int
        Query heads that share a key/value head *and* are counted by `num_head`; 1 with PackGQA.
    num_head : int
        Query heads, or key/value heads with PackGQA.

    Returns
    -------
    int
        At most 16 key/value heads, a power of two of them, clipped to `num_head`.
    """
    kv_heads = 16
    while kv_heads > 1 and max(num_n_blocks, 1) * kv_heads > max_kvblocks_in_l2:
        kv_heads //= 2
    return min(kv_heads * qhead_per_khead, num_head)


def varlen_sort_key(
    num_m_blocks: int, num_n_blocks: int, tile_m: int, tile_n: int, causal: bool
) -> int:
    """Return the cost by which sequences are visited, largest first.

    Parameters
    ----------
    num_m_blocks, num_n_blocks : int
        Row blocks of the sequence, and column blocks of one of its splits.
    tile_m, tile_n : int
        Rows and columns of a tile.
    causal : bool
        Under a causal mask the row blocks of a sequence differ. What counts then is its shortest
        one, which sees ``seqlen_k - seqlen_q`` columns.

    Returns
    -------
    int
    """
    if causal:
        return num_n_blocks * tile_n - num_m_blocks * tile_m
    return num_n_blocks


def varlen_params(
    num_m_blocks: Sequence[int],
    num_n_blocks: Sequence[int],
    num_splits: Sequence[int],
    num_head: int,
    qhead_per_khead: int,
    tile_m: int,
    tile_n: int,
    max_kvblocks_in_l2: int,
    causal: bool,
    longest_first: bool,
    sort: bool,
) -> VarlenParams:
    """Prepare VarlenDynamicPersistent from lengths known on the host.

    Parameters
    ----------
    num_m_blocks, num_n_blocks, num_splits : sequence of int
        Row blocks, column blocks and splits of each batch element.
    num_head, qhead_per_khead, max_kvblocks_in_l2 : int
        As for `varlen_nheads_in_l2`.
    tile_m, tile_n : int
        Rows and columns of a tile.
    causal : bool
        As for `varlen_sort_key`.
    longest_first : bool
        As in `VarlenParams`.
    sort : bool
        Whether to visit the costliest sequences first rather than in their order in memory.

    Returns
    -------
    VarlenParams
    """
    per_split = [-(-n // splits) for n, splits in zip(num_n_blocks, num_splits, strict=True)]
    order = list(range(len(num_m_blocks)))
    if sort:
        order.sort(
            key=lambda b: -varlen_sort_key(num_m_blocks[b], per_split[b], tile_m, tile_n, causal)
        )
    return VarlenParams(
        num_head,
        longest_first,
        tuple(num_m_blocks[b] for b in order),
        tuple(num_splits[b] for b in order),
        tuple(
            varlen_nheads_in_l2(per_split[b], max_kvblocks_in_l2, qhead_per_khead, num_head)
            for b in order
        ),
        tuple(order),
    )


def varlen_seek(params: VarlenParams, cursor: VarlenCursor, tile_idx: int) -> VarlenCursor:
    """Move a cursor to the sequence that holds a tile number.

    Parameters
    ----------
    params : VarlenParams
        The batch.
    cursor : VarlenCursor
        A sequence at or before the wanted one; ``VarlenCursor(0, 0)`` always is.
    tile_idx : int
        Tile number, not below the cursor's.

    Returns
    -------
    VarlenCursor
        Past the last sequence if there is no such tile.
    """
    position = cursor.position
    start = cursor.start_tile
    while position < len(params.num_m_blocks):
        count = params.num_m_blocks[position] * params.num_splits[position] * params.num_head
        if tile_idx < start + count:
            break
        start += count
        position += 1
    return VarlenCursor(position, start)


def varlen_num_tiles(params: VarlenParams) -> int:
    """Return the number of tiles of the whole batch.

    Parameters
    ----------
    params : VarlenParams
        The batch.

    Returns
    -------
    int
    """
    total = 0
    for position in range(len(params.num_m_blocks)):
        total += params.num_m_blocks[position] * params.num_splits[position] * params.num_head
    return total


def varlen_block_coord(
    tile_in_sequence: int,
    num_m_blocks: int,
    num_splits: int,
    num_head: int,
    nheads_in_l2: int,
    longest_first: bool,
) -> tuple[int, int, int]:
    """Return the row block, head and split of a tile within its sequence.

    Parameters
    ----------
    tile_in_sequence : int
        Tile number, counted from the sequence's first tile.
    num_m_blocks, num_splits, num_head, nheads_in_l2 : int
        As in `VarlenParams`, for this sequence; `num_m_blocks` is positive.
    longest_first : bool
        As in `VarlenParams`.

    Returns
    -------
    m_block, head, split_idx : int
    """
    if longest_first and num_splits == 1:
        section = tile_in_sequence // (nheads_in_l2 * num_m_blocks)
        first_head = section * nheads_in_l2
        heads = min(nheads_in_l2, num_head - first_head)
        in_section = tile_in_sequence - first_head * num_m_blocks
        block = in_section // heads
        return num_m_blocks - 1 - block, first_head + in_section - block * heads, 0
    head_and_split = tile_in_sequence // num_m_blocks
    block = tile_in_sequence - head_and_split * num_m_blocks
    head = head_and_split // num_splits
    if longest_first:
        block = num_m_blocks - 1 - block
    return block, head, head_and_split - head * num_splits


def varlen_tile_at(params: VarlenParams, cursor: VarlenCursor, tile_idx: int) -> WorkTile:
    """Return a tile of the sequence that `varlen_seek` has found for it.

    Parameters
    ----------
    params : VarlenParams
        The batch.
    cursor : VarlenCursor
        What `varlen_seek` returned for this tile number.
    tile_idx : int
        Tile number.

    Returns
    -------
    WorkTile
    """
    # One exit with scalars set before: Numba widens integers where branches meet, but not tuples.
    block, head, batch, split_idx = 0, 0, 0, 0
    valid = cursor.position < len(params.num_m_blocks)
    if valid:
        block, head, split_idx = varlen_block_coord(
            tile_idx - cursor.start_tile,
            params.num_m_blocks[cursor.position],
            params.num_splits[cursor.position],
            params.num_head,
            params.nheads_in_l2[cursor.position],
            params.longest_first,
        )
        batch = params.batch_order[cursor.position]
    return WorkTile(block, head, batch, split_idx, valid)


def varlen_tile_of_index(params: VarlenParams, tile_idx: int) -> WorkTile:
    """Return the tile with a given number, searching from the first sequence.

    Parameters
    ----------
    params : VarlenParams
        The batch.
    tile_idx : int
        Tile number, not negative.

    Returns
    -------
    WorkTile
    """
    return varlen_tile_at(params, varlen_seek(params, VarlenCursor(0, 0), tile_idx), tile_idx)
