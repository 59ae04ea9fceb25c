"""Softmax and lse of every row of a matrix, tile by tile.

The loop of attention without the matrix products: what the kernel of the same name does, in two
passes over the columns. The first keeps the running maximum and sum of each row
(`fa_numba.reference.softmax`), the second normalises. Neither holds more than one tile.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fa_numba.reference.softmax import LOG2_E, OnlineSoftmax
from fa_numba.reference.tile_io import compute_dtype

__all__ = ["row_softmax"]


def row_softmax(
    x: NDArray[Any], *, tile_m: int = 64, tile_n: int = 64
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Compute the softmax and the log-sum-exp of every row.

    Parameters
    ----------
    x : ndarray, (rows, cols)
        Scores in natural units, any strides. -inf removes an element.
    tile_m, tile_n : int
        Rows and columns of a tile; the result does not depend on them but for rounding.

    Returns
    -------
    out : ndarray, (rows, cols)
        The softmax, in the dtype of x; 0 in rows that are -inf throughout.
    lse : ndarray, (rows,)
        Natural logarithm of the sum of exponentials, float64 for float64, else float32; -inf for
        rows that are -inf throughout or have no columns.

    Notes
    -----
    A row with a NaN or +inf becomes NaN throughout, and so does its lse.
    """
    rows, cols = x.shape
    dtype = compute_dtype(x.dtype)
    out = np.empty((rows, cols), x.dtype)
    lse = np.empty(rows, dtype)

    # -inf - (-inf), in rows without any score so far.
    with np.errstate(invalid="ignore"):
        for row_start in range(0, rows, tile_m):
            block = slice(row_start, min(row_start + tile_m, rows))
            softmax = OnlineSoftmax((block.stop - row_start,), dtype)
            for col_start in range(0, cols, tile_n):
                softmax.update(_load_scores(x, block, slice(col_start, col_start + tile_n)))
            out_scale, lse[block] = softmax.finalize()

            shift = np.where(softmax.row_max == -np.inf, 0, softmax.row_max)
            for col_start in range(0, cols, tile_n):
                tile = slice(col_start, col_start + tile_n)
                out[block, tile] = np.exp2(_load_scores(x, block, tile) - shift) * out_scale
    return out, lse


def _load_scores(x: NDArray[Any], block: slice, tile: slice) -> NDArray[Any]:
    """Return a copy of a tile in the compute dtype and in units of log 2."""
    scores: NDArray[Any] = x[block, tile].astype(compute_dtype(x.dtype))
    scores *= LOG2_E
    return scores
