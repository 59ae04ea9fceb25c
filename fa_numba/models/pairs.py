"""How many (query, key) pairs and tiles a mask leaves: the integers under every cost."""

from __future__ import annotations

from fa_numba.indexing.block_range import (
    ceil_div,
    get_m_block_min_max,
    get_n_block_min_max,
    num_m_blocks,
)

__all__ = ["allowed_pairs", "key_rows_read", "query_rows_read"]


def allowed_pairs(
    seqlen_q: int,
    seqlen_k: int,
    *,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
) -> int:
    """Count the (query, key) pairs that the mask allows, in constant time.

    Parameters
    ----------
    seqlen_q, seqlen_k : int
        Number of queries and keys.
    window_left, window_right : int, default -1
        Keys allowed to the left and right of the diagonal, which is aligned to the bottom right
        corner; -1 is unlimited. Causal attention is ``window_right=0``.
    sink_token_length : int, default 0
        The first keys that the left bound does not hide.

    Returns
    -------
    int
        The number of ones in the mask.

    Notes
    -----
    Row i has ``right_i - left_i + min(sink, left_i)`` keys, where ``right_i`` and ``left_i`` are
    i plus a constant, clipped to [0, seqlen_k]. A clipped run of consecutive integers has a
    closed-form sum, so three such sums are the whole answer.

    Examples
    --------
    >>> allowed_pairs(4, 4, window_right=0)
    10
    >>> allowed_pairs(4, 6)
    24
    """
    offset = seqlen_k - seqlen_q
    if window_right < 0:
        pairs = seqlen_q * seqlen_k
    else:
        pairs = _clipped_run_sum(offset + window_right + 1, seqlen_q, seqlen_k)
    if window_left >= 0:
        first = offset - window_left
        pairs -= _clipped_run_sum(first, seqlen_q, seqlen_k)
        pairs += _clipped_run_sum(first, seqlen_q, sink_token_length)
    return pairs


def _clipped_run_sum(first: int, count: int, top: int) -> int:
    """Sum ``min(max(x, 0), top)`` over the `count` integers x that begin at `first`."""

    def sum_below(x: int) -> int:
        """Sum the clipped values of 0, 1, ..., x - 1."""
        x = max(x, 0)
        rising = min(x, top)
        return rising * (rising - 1) // 2 + (x - rising) * top

    return sum_below(first + count) - sum_below(first)


def key_rows_read(
    seqlen_q: int,
    seqlen_k: int,
    tile_m: int,
    tile_n: int,
    *,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
    qhead_per_khead_packed: int = 1,
) -> int:
    """Count the key rows one head reads when each query tile walks over its key tiles.

    This is the loop order of FlashAttention-2. Tiles that the mask hides are not read; a tail tile
    counts only the rows it has.

    Parameters
    ----------
    seqlen_q, seqlen_k : int
        Number of queries and keys.
    tile_m, tile_n : int
        Rows of a query tile and of a key tile.
    window_left, window_right, sink_token_length : int
        The mask, as in `allowed_pairs`.
    qhead_per_khead_packed : int, default 1
        Query heads packed into one query tile (PackGQA); 1 without packing.

    Returns
    -------
    int
        Key rows read, summed over the query tiles.
    """
    total = 0
    for m_block in range(num_m_blocks(tile_m, seqlen_q, qhead_per_khead_packed)):
        blocks = get_n_block_min_max(
            m_block,
            tile_m,
            tile_n,
            seqlen_q,
            seqlen_k,
            window_left,
            window_right,
            sink_token_length,
            qhead_per_khead_packed,
            0,
            1,
        )
        total += _rows_of_tiles(blocks.n_sink_min, blocks.n_sink_max, tile_n, seqlen_k)
        total += _rows_of_tiles(blocks.n_block_min, blocks.n_block_max, tile_n, seqlen_k)
    return total


def query_rows_read(
    seqlen_q: int,
    seqlen_k: int,
    tile_m: int,
    tile_n: int,
    *,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
) -> int:
    """Count the query rows one head reads when each key tile walks over its query tiles.

    This is the loop order of FlashAttention-1 and of every backward pass; the arguments are those
    of `key_rows_read`.
    """
    total = 0
    for n_block in range(ceil_div(seqlen_k, tile_n)):
        m_min, m_max = get_m_block_min_max(
            n_block,
            tile_m,
            tile_n,
            seqlen_q,
            seqlen_k,
            window_left,
            window_right,
            sink_token_length,
        )
        total += _rows_of_tiles(m_min, m_max, tile_m, seqlen_q)
    return total


def _rows_of_tiles(block_min: int, block_max: int, tile: int, seqlen: int) -> int:
    """Count the rows of tiles [block_min, block_max); the last one may be cut by `seqlen`."""
    if block_max <= block_min:
        return 0
    return min(block_max * tile, seqlen) - block_min * tile
