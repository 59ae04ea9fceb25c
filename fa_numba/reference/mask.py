"""The mask of a score tile.

A flash kernel needs a mask in few tiles only: those on the diagonal, those on the left edge of a
window, the sinks and the cut last tile. `fa_numba.indexing.block_range` says which; for them
`tile_mask` says which scores stay, `apply_mask` removes the others, and `zero_dead_rows` keeps what
must not count from counting.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["apply_mask", "tile_mask", "zero_dead_rows"]


def tile_mask(
    row_start: int,
    row_stop: int,
    col_start: int,
    col_stop: int,
    seqlen_q: int,
    seqlen_k: int,
    window_left: int,
    window_right: int,
    sink_token_length: int,
) -> NDArray[np.bool_]:
    """Tell which queries of a tile may attend which of its keys.

    The rule is that of `fa_numba.indexing.mask.is_allowed`, for a whole tile at once.

    Parameters
    ----------
    row_start, row_stop, col_start, col_stop : int
        Queries and keys of the tile. Positions past the sequences are allowed to be asked for.
    seqlen_q, seqlen_k : int
        Lengths; query ``i`` stands at key position ``i + seqlen_k - seqlen_q``.
    window_left, window_right : int
        Keys visible before and after a query's own position; -1 is unlimited, and causal attention
        is ``window_right = 0``.
    sink_token_length : int
        Leading keys that the left bound does not hide.

    Returns
    -------
    ndarray of bool, (row_stop - row_start, col_stop - col_start)
        True where attention is allowed; False outside the sequences.
    """
    row = np.arange(row_start, row_stop)[:, None]
    col = np.arange(col_start, col_stop)
    own_col = row + (seqlen_k - seqlen_q)
    allowed: NDArray[np.bool_] = (row < seqlen_q) & (col < seqlen_k)
    if window_right >= 0:
        allowed &= col <= own_col + window_right
    if window_left >= 0:
        allowed &= (col >= own_col - window_left) | (col < sink_token_length)
    return allowed


def apply_mask(scores: NDArray[Any], allowed: NDArray[np.bool_]) -> None:
    """Set the scores that do not count to -inf, in place.

    They are overwritten, not added to: a key that nobody may attend can hold NaN, and so can its
    scores.

    Parameters
    ----------
    scores : ndarray, (batch, nheads_k, qhead_per_khead * rows, cols)
        The query heads of a group lie one below the other.
    allowed : ndarray of bool, (rows, cols)
        From `tile_mask`.
    """
    batch, nheads_k, packed_rows, _ = scores.shape
    group = packed_rows // allowed.shape[0]
    per_head = scores.reshape(batch, nheads_k, group, *allowed.shape)
    np.copyto(per_head, scores.dtype.type(-np.inf), where=~allowed)


def zero_dead_rows(v_tile: NDArray[Any], allowed: NDArray[np.bool_]) -> NDArray[Any]:
    """Zero the values of keys that no query of the tile may attend.

    Their probabilities are 0, but 0 times infinity is NaN, so an unused cache slot would leak. The
    select costs little, and only masked tiles pay it.

    Parameters
    ----------
    v_tile : ndarray, (..., cols, headdim_v)
        Values of the tile.
    allowed : ndarray of bool, (rows, cols)
        From `tile_mask`.

    Returns
    -------
    ndarray
        `v_tile` itself if every key is attended, else a copy.
    """
    is_live: NDArray[np.bool_] = np.any(allowed, axis=0)
    if is_live.all():
        return v_tile
    return np.where(is_live[:, None], v_tile, v_tile.dtype.type(0))
