"""The end of a row block: normalise the accumulator and store it.

FlashAttention-2 divides by the row sum once, here, where FlashAttention-1 did it after every tile
(arXiv 2307.08691, section 3.1.1).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fa_numba.reference.softmax import OnlineSoftmax

__all__ = ["store_rows"]


def store_rows(
    acc_o: NDArray[Any], softmax: OnlineSoftmax, out: NDArray[Any], lse: NDArray[Any]
) -> None:
    """Write the results of a tile of queries.

    Parameters
    ----------
    acc_o : ndarray, (batch, nheads_k, qhead_per_khead * rows, headdim_v)
        Sum of P·V, not normalised. Overwritten.
    softmax : OnlineSoftmax
        Statistics of the same rows, after the last tile.
    out : ndarray, (batch, rows, nheads, headdim_v)
        Where the output goes, rounded to its dtype; 0 for empty rows.
    lse : ndarray, (batch, nheads, rows)
        Where the natural-log softmax denominators go; -inf for empty rows.
    """
    batch, rows, nheads, headdim_v = out.shape
    out_scale, row_lse = softmax.finalize()
    acc_o *= out_scale
    is_empty = out_scale == 0
    if is_empty.any():
        # By select: where other rows of the tile attend an infinite value, 0·inf made NaN here.
        np.copyto(acc_o, 0, where=is_empty)
    out[...] = acc_o.reshape(batch, nheads, rows, headdim_v).transpose(0, 2, 1, 3)
    lse[...] = row_lse.reshape(batch, nheads, rows)
