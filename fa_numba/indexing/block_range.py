"""Which key tiles a query tile must visit, and which of them need no mask.

A kernel cuts the score matrix into tiles of `tile_m` rows and `tile_n` columns. For a block of rows
(`m_block`) the functions here name the column tiles (`n_block`) that hold at least one allowed
score, and no others. They do it with two evaluations of `mask.col_limits`, because both limits grow
with the row:

- the *window* part is every column from the left limit of the tile's first row to the right limit
  of its last row. Neighbouring rows' windows overlap or touch, so there are no holes;
- the *sink* part is every column below ``sink_token_length``, up to that same right limit;
- a tile needs no mask if it lies right of the left limit of the *last* row and left of the right
  limit of the *first* one.

Three details make the ranges exactly tight, that is, no visited tile is wholly masked: the last row
tile is cut at the true last row, the last column tile at the true last key, and a row tile without
any allowed key gives an empty range.

With PackGQA the rows of a tile are (query, head of the group) pairs, row ``query * g + head``, so
that a short query sequence still fills a tile; only the query index matters to the mask. With
split-KV, the tiles of one row block are shared out among `num_splits` thread blocks.

The window part follows ``hopper/block.h`` in Dao-AILab/flash-attention (commit 0251105a), with its
last row cut as said. The sink part is ours: there, sinks were part of the mask but never of the
forward's range.
"""

from typing import NamedTuple

from fa_numba.indexing.mask import col_limits, row_limits


class BlockRange(NamedTuple):
    """Two disjoint runs of column tiles, the sink's left of the window's; either may be empty.

    Attributes
    ----------
    n_sink_min, n_sink_max : int
        Tiles ``[n_sink_min, n_sink_max)`` hold sinks and nothing of the window.
    n_block_min, n_block_max : int
        Tiles ``[n_block_min, n_block_max)`` hold the window (and the sinks that it reaches).
    """

    n_sink_min: int
    n_sink_max: int
    n_block_min: int
    n_block_max: int


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the quotient rounded up, for ``numerator >= 0`` and ``denominator > 0``.

    Parameters
    ----------
    numerator, denominator : int
        The operands.

    Returns
    -------
    int
    """
    return (numerator + denominator - 1) // denominator


def num_m_blocks(tile_m: int, seqlen_q: int, qhead_per_khead_packed: int) -> int:
    """Return the number of row tiles of one sequence and one (packed) head.

    Parameters
    ----------
    tile_m : int
        Rows of a tile.
    seqlen_q : int
        Number of queries.
    qhead_per_khead_packed : int
        Heads packed into the rows, 1 without PackGQA.

    Returns
    -------
    int
    """
    return ceil_div(seqlen_q * qhead_per_khead_packed, tile_m)


def query_limits(
    m_block: int, tile_m: int, seqlen_q: int, qhead_per_khead_packed: int
) -> tuple[int, int]:
    """Return the queries ``[row_min, row_max)`` that a row tile holds, cut at the true last one.

    Parameters
    ----------
    m_block : int
        Index of the row tile.
    tile_m, seqlen_q, qhead_per_khead_packed : int
        As for `num_m_blocks`.

    Returns
    -------
    row_min, row_max : int
        Equal for a tile past the end.
    """
    row_min = min(m_block * tile_m // qhead_per_khead_packed, seqlen_q)
    row_max = min(ceil_div((m_block + 1) * tile_m, qhead_per_khead_packed), seqlen_q)
    return row_min, row_max


def split_range(r: BlockRange, split_idx: int, num_splits: int) -> BlockRange:
    """Return the share of one split: a slice of the tiles in ascending order.

    Every split takes ``ceil(count / num_splits)`` tiles, so the last ones may get fewer or none.

    Parameters
    ----------
    r : BlockRange
        All tiles of the row block.
    split_idx : int
        Which split, ``0 <= split_idx < num_splits``.
    num_splits : int
        Number of splits, at least 1.

    Returns
    -------
    BlockRange
    """
    num_sink = r.n_sink_max - r.n_sink_min
    per_split = ceil_div(n_block_count(r), num_splits)
    start = split_idx * per_split
    stop = start + per_split
    return BlockRange(
        min(r.n_sink_min + start, r.n_sink_max),
        min(r.n_sink_min + stop, r.n_sink_max),
        min(r.n_block_min + max(start - num_sink, 0), r.n_block_max),
        min(r.n_block_min + max(stop - num_sink, 0), r.n_block_max),
    )


def get_n_block_min_max(
    m_block: int,
    tile_m: int,
    tile_n: int,
    seqlen_q: int,
    seqlen_k: int,
    window_left: int,
    window_right: int,
    sink_token_length: int,
    qhead_per_khead_packed: int,
    split_idx: int,
    num_splits: int,
) -> BlockRange:
    """Return the column tiles that a row tile must visit: all that are needed, none that is not.

    Parameters
    ----------
    m_block : int
        Index of the row tile.
    tile_m, tile_n : int
        Rows and columns of a tile.
    seqlen_q, seqlen_k : int
        Sequence lengths; 0 is allowed.
    window_left, window_right : int
        Window bounds, -1 for unlimited; causality is ``window_right = 0``.
    sink_token_length : int
        Number of leading keys exempt from the left bound.
    qhead_per_khead_packed : int
        Heads packed into the rows, 1 without PackGQA.
    split_idx, num_splits : int
        Which split of how many; ``0, 1`` without split-KV.

    Returns
    -------
    BlockRange
    """
    row_min, row_max = query_limits(m_block, tile_m, seqlen_q, qhead_per_khead_packed)
    if row_min >= row_max:
        return BlockRange(0, 0, 0, 0)
    col_left, _ = col_limits(row_min, seqlen_q, seqlen_k, window_left, window_right)
    _, col_right = col_limits(row_max - 1, seqlen_q, seqlen_k, window_left, window_right)
    # Where nothing is attended, both limits are 0 (get_m_block_min_max says why): empty runs.
    n_block_min = col_left // tile_n
    n_sink_max = min(ceil_div(min(sink_token_length, col_right), tile_n), n_block_min)
    full = BlockRange(0, n_sink_max, n_block_min, ceil_div(col_right, tile_n))
    return split_range(full, split_idx, num_splits)


def get_unmasked_n_block_min_max(
    m_block: int,
    tile_m: int,
    tile_n: int,
    seqlen_q: int,
    seqlen_k: int,
    window_left: int,
    window_right: int,
    sink_token_length: int,
    qhead_per_khead_packed: int,
    split_idx: int,
    num_splits: int,
) -> tuple[int, int]:
    """Return the run of column tiles in which every row attends every column.

    The kernel's loop goes down through the window part in three phases: masked tiles from
    ``n_block_max - 1`` to ``n_max``, unmasked ones to ``n_min``, masked ones to ``n_block_min``.
    Tiles of the sink part are few and always masked. Rows past ``seqlen_q`` do not count, their
    results are never stored; columns past ``seqlen_k`` do.

    Parameters
    ----------
    m_block, tile_m, tile_n, seqlen_q, seqlen_k, window_left, window_right : int
        As for `get_n_block_min_max`.
    sink_token_length, qhead_per_khead_packed, split_idx, num_splits : int
        As for `get_n_block_min_max`.

    Returns
    -------
    n_min, n_max : int
        ``n_block_min <= n_min <= n_max <= n_block_max`` of this split's window part.
    """
    r = get_n_block_min_max(
        m_block,
        tile_m,
        tile_n,
        seqlen_q,
        seqlen_k,
        window_left,
        window_right,
        sink_token_length,
        qhead_per_khead_packed,
        split_idx,
        num_splits,
    )
    row_min, row_max = query_limits(m_block, tile_m, seqlen_q, qhead_per_khead_packed)
    _, col_right = col_limits(row_min, seqlen_q, seqlen_k, window_left, window_right)
    col_left, _ = col_limits(row_max - 1, seqlen_q, seqlen_k, window_left, window_right)
    # Sinks that reach the window leave no gap for the left bound to mask.
    if sink_token_length >= col_left:
        col_left = 0
    n_max = max(min(col_right // tile_n, r.n_block_max), r.n_block_min)
    n_min = min(max(ceil_div(col_left, tile_n), r.n_block_min), n_max)
    return n_min, n_max


def n_block_count(r: BlockRange) -> int:
    """Return the number of tiles in a range.

    Parameters
    ----------
    r : BlockRange
        The range.

    Returns
    -------
    int
    """
    return r.n_sink_max - r.n_sink_min + r.n_block_max - r.n_block_min


def n_block_at(r: BlockRange, i: int) -> int:
    """Return the `i`-th tile in the order of the kernel's loop.

    The loop runs from right to left: the right-most tile first, since under a causal mask it is the
    one that surely holds the diagonal and hence a finite row maximum, and the sink tiles last.

    Parameters
    ----------
    r : BlockRange
        The range.
    i : int
        Position in the loop, ``0 <= i < n_block_count(r)``.

    Returns
    -------
    int
        An `n_block`.
    """
    num_window = r.n_block_max - r.n_block_min
    if i < num_window:
        return r.n_block_max - 1 - i
    return r.n_sink_max - 1 - (i - num_window)


def get_m_block_min_max(
    n_block: int,
    tile_m: int,
    tile_n: int,
    seqlen_q: int,
    seqlen_k: int,
    window_left: int,
    window_right: int,
    sink_token_length: int,
) -> tuple[int, int]:
    """Return the row tiles ``[m_min, m_max)`` that a column tile must visit in the backward pass.

    Parameters
    ----------
    n_block : int
        Index of the column tile.
    tile_m, tile_n, seqlen_q, seqlen_k, window_left, window_right, sink_token_length : int
        As for `get_n_block_min_max`.

    Returns
    -------
    m_min, m_max : int
        ``(0, 0)`` if no query attends the tile, or if there is no such tile.

    Notes
    -----
    No test for an empty interval is needed. The last query sees the last key, whatever the window,
    so a key without queries lies before the first query's window: both its limits are 0.
    """
    col_min = n_block * tile_n
    col_max = min(col_min + tile_n, seqlen_k)
    if col_min >= col_max:
        return 0, 0
    row_min, row_max = row_limits(
        col_min, seqlen_q, seqlen_k, window_left, window_right, sink_token_length
    )
    # The last query of a tile comes with its last key, or with its first one if that is a sink.
    if col_min >= sink_token_length:
        _, row_max = row_limits(
            col_max - 1, seqlen_q, seqlen_k, window_left, window_right, sink_token_length
        )
    return row_min // tile_m, ceil_div(row_max, tile_m)


def get_unmasked_m_block_min_max(
    n_block: int,
    tile_m: int,
    tile_n: int,
    seqlen_q: int,
    seqlen_k: int,
    window_left: int,
    window_right: int,
    sink_token_length: int,
) -> tuple[int, int]:
    """Return the run of row tiles in which every query attends every key of a column tile.

    A tile with columns past ``seqlen_k`` is never in it. Rows past ``seqlen_q`` do not count: the
    backward pass gives them no weight by ``lse = +inf``.

    Parameters
    ----------
    n_block, tile_m, tile_n, seqlen_q, seqlen_k, window_left, window_right : int
        As for `get_m_block_min_max`.
    sink_token_length : int
        As for `get_m_block_min_max`.

    Returns
    -------
    m_min, m_max : int
        ``m_block_min <= m_min <= m_max <= m_block_max`` of `get_m_block_min_max`.
    """
    m_block_min, m_block_max = get_m_block_min_max(
        n_block, tile_m, tile_n, seqlen_q, seqlen_k, window_left, window_right, sink_token_length
    )
    col_min = n_block * tile_n
    if col_min + tile_n > seqlen_k:
        return m_block_min, m_block_min
    # The right bound bites most at the last key, the left bound at the first that is not a sink.
    row_min, row_max = row_limits(
        col_min + tile_n - 1, seqlen_q, seqlen_k, window_left, window_right, sink_token_length
    )
    first_window_col = max(col_min, sink_token_length)
    if first_window_col < col_min + tile_n:
        _, row_max = row_limits(
            first_window_col, seqlen_q, seqlen_k, window_left, window_right, sink_token_length
        )
    # The last row tile is whole if all its existing rows are in.
    m_max = ceil_div(row_max, tile_m) if row_max == seqlen_q else row_max // tile_m
    m_max = max(min(m_max, m_block_max), m_block_min)
    m_min = min(max(ceil_div(row_min, tile_m), m_block_min), m_max)
    return m_min, m_max
