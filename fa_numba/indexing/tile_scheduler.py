"""Which tile a thread block works on next.

A call of attention is a set of tiles, one for each block of rows (of columns, in the backward
pass), head, batch element and split. A scheduler numbers the tiles and says how a thread block gets
from one number to the next. The numbering decides what lies in the L2 cache together and whether
the long tiles start early; the rule for the next number decides how well the load is balanced.

    ========================  ==========================  ======================================
    scheduler                 numbering                   next tile of a thread block
    ========================  ==========================  ======================================
    SingleTile                linear                      none: one thread block for each tile
    StaticPersistent          linear                      `next_tile_static`
    DynamicPersistent         L2 sections, longest first  `next_tile_dynamic`
    SingleTileBwdLPT          L2 sections                 none: one thread block for each tile
    VarlenDynamicPersistent   by batch                    `next_tile_dynamic`
    ========================  ==========================  ======================================

The first tile of a thread block is its index in the grid, always. The last row of the table has a
module of its own, `varlen_scheduler`.

**Linear** numbering counts blocks fastest, then splits, heads and batch elements. It suits tiles of
equal cost.

**L2 sections** take as many heads as have their keys and values in the L2 cache at the same time.
Within a section the head counts fastest, so that all its heads advance through their row blocks
together, and what one thread block has loaded, its neighbours find in L2.

**Longest processing time first (LPT)**: under a causal mask the last row block has the most column
tiles, so the blocks are numbered from last to first; whoever finishes early takes a short tile, and
the makespan stays close to the mean. In the backward pass the thread blocks own *column* blocks, of
which the first is the longest, so LPT is the natural order. **Shortest first (SPT)** is for its
deterministic mode, where the thread blocks add to the gradient of the queries in a fixed order and
wait for their turn: it lets those finish first whose turn comes first.

After ``hopper/tile_scheduler.hpp`` in Dao-AILab/flash-attention (commit 0251105a). All numbers of
tiles must stay below ``2**31``, the range of `fast_divmod`.
"""

from typing import NamedTuple

from fa_numba.indexing.fast_divmod import FastDivmod, fast_divmod, make_fast_divmod

FORWARD_L2_BYTES = 32 * 2**20
"""L2 bytes granted to K and V. H100 has 50 MiB; the other tensors pass through it as well."""

BACKWARD_L2_BYTES = 40 * 2**20
"""L2 bytes granted to Q, dO and the float32 accumulator of dQ."""


class WorkTile(NamedTuple):
    """One tile of work.

    Attributes
    ----------
    block : int
        Row block (`m_block`), or column block (`n_block`) in the backward pass.
    head : int
        Query head, or key/value head with PackGQA.
    batch : int
        Batch element.
    split_idx : int
        Split, 0 without split-KV.
    valid : bool
        False if there is no such tile: the thread block is done. The other fields are then 0.
    """

    block: int
    head: int
    batch: int
    split_idx: int
    valid: bool


class LinearParams(NamedTuple):
    """Parameters of the linear numbering.

    Attributes
    ----------
    total_tiles : int
        Number of tiles.
    block_divmod, split_divmod, head_divmod : FastDivmod
        Extents of the three faster axes.
    """

    total_tiles: int
    block_divmod: FastDivmod
    split_divmod: FastDivmod
    head_divmod: FastDivmod


class SectionedParams(NamedTuple):
    """Parameters of the numbering by L2 sections.

    Attributes
    ----------
    total_tiles : int
        Number of tiles.
    block_divmod, head_divmod : FastDivmod
        Blocks of one (batch, head, split); heads.
    section_divmod : FastDivmod
        Tiles of a whole section.
    minor_divmod, minor_tail_divmod : FastDivmod
        (Batch, head) pairs of a whole section, and of the last one, which may be smaller.
    num_whole_sections : int
        Number of whole sections.
    last_block_first : bool
        Whether blocks are numbered from last to first.
    """

    total_tiles: int
    block_divmod: FastDivmod
    head_divmod: FastDivmod
    section_divmod: FastDivmod
    minor_divmod: FastDivmod
    minor_tail_divmod: FastDivmod
    num_whole_sections: int
    last_block_first: bool


def num_tiles(params: LinearParams | SectionedParams) -> int:
    """Return the number of tiles: valid tile numbers are ``0 <= t < num_tiles(params)``.

    Parameters
    ----------
    params : LinearParams or SectionedParams
        The numbering.

    Returns
    -------
    int
    """
    return params.total_tiles


def next_tile_static(tile_idx: int, grid_size: int) -> int:
    """Return the next tile number of a thread block that strides through the tiles.

    Parameters
    ----------
    tile_idx : int
        Its current tile number; the first is its index in the grid.
    grid_size : int
        Number of thread blocks.

    Returns
    -------
    int
        Possibly past the last tile: then the thread block is done.
    """
    return tile_idx + grid_size


def next_tile_dynamic(ticket: int, grid_size: int) -> int:
    """Return the next tile number of a thread block that has drawn a ticket.

    The first ``grid_size`` tiles are taken without a ticket.

    Parameters
    ----------
    ticket : int
        What an atomic increment of the shared counter returned; the counter starts at 0.
    grid_size : int
        Number of thread blocks.

    Returns
    -------
    int
        Possibly past the last tile: then the thread block is done.
    """
    return ticket + grid_size


def linear_params(num_blocks: int, num_head: int, num_batch: int, num_splits: int) -> LinearParams:
    """Prepare the linear numbering, of SingleTile and StaticPersistent.

    Parameters
    ----------
    num_blocks : int
        Row blocks of the longest sequence.
    num_head : int
        Query heads, or key/value heads with PackGQA.
    num_batch : int
        Batch elements.
    num_splits : int
        Splits, 1 without split-KV.

    Returns
    -------
    LinearParams
    """
    return LinearParams(
        num_blocks * num_head * num_batch * num_splits,
        make_fast_divmod(max(num_blocks, 1)),
        make_fast_divmod(max(num_splits, 1)),
        make_fast_divmod(max(num_head, 1)),
    )


def linear_tile_of_index(params: LinearParams, tile_idx: int) -> WorkTile:
    """Return the tile with a given number, blocks fastest, then splits, heads, batch.

    Parameters
    ----------
    params : LinearParams
        The numbering.
    tile_idx : int
        Tile number, not negative.

    Returns
    -------
    WorkTile
    """
    if tile_idx >= params.total_tiles:
        return WorkTile(0, 0, 0, 0, False)
    rest, block = fast_divmod(tile_idx, params.block_divmod)
    rest, split_idx = fast_divmod(rest, params.split_divmod)
    batch, head = fast_divmod(rest, params.head_divmod)
    return WorkTile(block, head, batch, split_idx, True)


def heads_in_l2(l2_bytes: int, head_bytes: int) -> int:
    """Return how many heads share a section: the largest power of two that fits, at least 1.

    Parameters
    ----------
    l2_bytes : int
        Cache granted to the tensors that the thread blocks of a head share.
    head_bytes : int
        Size of these tensors for one head.

    Returns
    -------
    int
    """
    heads = 1
    while 2 * heads * max(head_bytes, 1) <= l2_bytes:
        heads *= 2
    return heads


def sectioned_params(
    num_blocks: int,
    num_head: int,
    num_batch: int,
    num_splits: int,
    heads_per_section: int,
    last_block_first: bool,
) -> SectionedParams:
    """Prepare the numbering by L2 sections.

    Parameters
    ----------
    num_blocks, num_head, num_batch, num_splits : int
        As for `linear_params`.
    heads_per_section : int
        (Batch, head) pairs that a section holds, at least 1.
    last_block_first : bool
        Whether blocks are numbered from last to first.

    Returns
    -------
    SectionedParams
    """
    num_pairs = num_head * num_batch
    num_split_blocks = num_blocks * num_splits
    # A section larger than the problem numbers the tiles as one that just holds it, but its
    # product with the blocks could leave the range of fast_divmod.
    per_section = min(heads_per_section, max(num_pairs, 1))
    return SectionedParams(
        num_pairs * num_split_blocks,
        make_fast_divmod(max(num_blocks, 1)),
        make_fast_divmod(max(num_head, 1)),
        make_fast_divmod(max(per_section * num_split_blocks, 1)),
        make_fast_divmod(per_section),
        make_fast_divmod(max(num_pairs % per_section, 1)),
        num_pairs // per_section,
        last_block_first,
    )


def dynamic_persistent_params(
    num_blocks: int,
    num_head: int,
    num_batch: int,
    num_splits: int,
    qhead_per_khead: int,
    seqlen_k: int,
    headdim: int,
    headdim_v: int,
    element_size: int,
) -> SectionedParams:
    """Prepare DynamicPersistent: longest first within sections whose K and V fit into L2.

    Parameters
    ----------
    num_blocks, num_head, num_batch, num_splits : int
        As for `linear_params`.
    qhead_per_khead : int
        Query heads that share a key/value head *and* are counted by `num_head`; 1 with PackGQA.
    seqlen_k, headdim, headdim_v : int
        Shape of K and V.
    element_size : int
        Bytes of an element.

    Returns
    -------
    SectionedParams
    """
    head_bytes = seqlen_k * (headdim + headdim_v) * element_size
    heads = heads_in_l2(FORWARD_L2_BYTES, head_bytes) * qhead_per_khead
    return sectioned_params(num_blocks, num_head, num_batch, num_splits, heads, True)


def single_tile_bwd_params(
    num_n_blocks: int,
    num_head: int,
    num_batch: int,
    seqlen_q: int,
    headdim: int,
    headdim_v: int,
    element_size: int,
    shortest_first: bool,
) -> SectionedParams:
    """Prepare SingleTileBwdLPT: sections whose Q, dO and accumulator of dQ fit into L2.

    Parameters
    ----------
    num_n_blocks : int
        Column blocks of the longest sequence.
    num_head, num_batch : int
        Query heads and batch elements.
    seqlen_q, headdim, headdim_v : int
        Shape of Q and dO.
    element_size : int
        Bytes of an element of Q and dO; the accumulator is float32.
    shortest_first : bool
        True for SPT (causal and deterministic), false for LPT.

    Returns
    -------
    SectionedParams
    """
    head_bytes = seqlen_q * ((headdim + headdim_v) * element_size + headdim * 4)
    heads = heads_in_l2(BACKWARD_L2_BYTES, head_bytes)
    return sectioned_params(num_n_blocks, num_head, num_batch, 1, heads, shortest_first)


def sectioned_tile_of_index(params: SectionedParams, tile_idx: int) -> WorkTile:
    """Return the tile with a given number: heads of a section fastest, then blocks, splits.

    Parameters
    ----------
    params : SectionedParams
        The numbering.
    tile_idx : int
        Tile number, not negative.

    Returns
    -------
    WorkTile
    """
    if tile_idx >= params.total_tiles:
        return WorkTile(0, 0, 0, 0, False)
    section, rest = fast_divmod(tile_idx, params.section_divmod)
    if section < params.num_whole_sections:
        rest, pair_in_section = fast_divmod(rest, params.minor_divmod)
    else:
        rest, pair_in_section = fast_divmod(rest, params.minor_tail_divmod)
    pair = section * params.minor_divmod.divisor + pair_in_section
    batch, head = fast_divmod(pair, params.head_divmod)
    split_idx, block = fast_divmod(rest, params.block_divmod)
    if params.last_block_first:
        block = params.block_divmod.divisor - 1 - block
    return WorkTile(block, head, batch, split_idx, True)


def fit_to_sequence(
    work: WorkTile, max_blocks: int, num_blocks: int, num_splits: int, last_block_first: bool
) -> WorkTile:
    """Fit a tile of the longest sequence's grid to a batch element that has fewer blocks.

    With varying lengths, SingleTile and SingleTileBwdLPT launch a grid for the longest sequence and
    drop what a shorter one does not have. Where blocks are numbered from last to first, the shorter
    sequence starts with *its* last block, at the same place in the order.

    Parameters
    ----------
    work : WorkTile
        A tile of the grid.
    max_blocks : int
        Blocks of the longest sequence.
    num_blocks, num_splits : int
        Blocks and splits of this batch element.
    last_block_first : bool
        Whether the grid numbers blocks from last to first.

    Returns
    -------
    WorkTile
    """
    # One exit with scalars set before: Numba widens integers where branches meet, but not tuples.
    block, head, batch, split_idx = 0, 0, 0, 0
    fitted = work.block - (max_blocks - num_blocks) if last_block_first else work.block
    valid = work.valid and 0 <= fitted < num_blocks and work.split_idx < num_splits
    if valid:
        block, head, batch, split_idx = fitted, work.head, work.batch, work.split_idx
    return WorkTile(block, head, batch, split_idx, valid)
