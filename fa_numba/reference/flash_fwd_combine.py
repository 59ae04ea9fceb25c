"""Merge the partial results of a split key sequence: the second pass of split-KV attention.

Each split has seen some of the keys and left a normalised output and the logarithm of its softmax
denominator. The denominators say how much of the whole a split is, so a weighted mean of the
outputs is the output over all keys, to rounding. The same rule merges any two attentions over
disjoint keys (cascades, a cached prefix, a ring of devices).

Sources: Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023), Dao-AILab/flash-attention
``hopper/flash_fwd_combine_kernel.h``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["flash_fwd_combine"]


def flash_fwd_combine(
    out_partial: NDArray[Any], lse_partial: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Merge attention outputs over disjoint sets of keys.

    With ``m = max_p lse_p`` and ``w_p = exp(lse_p - m)``::

        out = Σ w_p out_p / Σ w_p        lse = m + ln Σ w_p

    where both sums run over ``w_p > 0`` only. An empty partial (``lse_p = -inf``) is neutral bit
    for bit, whatever its ``out_p`` holds, uninitialised memory included. A NaN in ``lse_partial``
    is no empty partial: it reaches the result.

    Parameters
    ----------
    out_partial : ndarray, (num_splits, batch, seqlen_q, nheads, headdim_v)
        Normalised outputs. float64 is merged in float64, everything else in float32.
    lse_partial : ndarray, (num_splits, batch, nheads, seqlen_q)
        Natural-log softmax denominators; -inf where a split held no allowed key.

    Returns
    -------
    out : ndarray, (batch, seqlen_q, nheads, headdim_v)
        float32 or float64; 0 where every partial is empty.
    lse : ndarray, (batch, nheads, seqlen_q)
        Same dtype; -inf where every partial is empty.
    """
    dtype = np.float64 if out_partial.dtype == np.float64 else np.float32
    lse_partial = lse_partial.astype(dtype, copy=False)
    row_max = np.max(lse_partial, axis=0, initial=-np.inf)
    is_empty = row_max == -np.inf
    weights = np.exp(lse_partial - np.where(is_empty, 0, row_max))

    num_splits, batch, seqlen_q, nheads, headdim_v = out_partial.shape
    # -0 and not 0 is the neutral element of IEEE addition: a lone partial keeps its signed zeros.
    acc_o = np.full((batch, seqlen_q, nheads, headdim_v), -0.0, dtype)
    row_sum = np.zeros((batch, nheads, seqlen_q), dtype)
    # One split after the other: np.sum may pair its operands, and then one more empty split
    # would change the order of the additions.
    for split_idx in range(num_splits):
        w = weights[split_idx]
        row_sum += w
        w = w.transpose(0, 2, 1)[..., None]
        out_p = np.where(w > 0, out_partial[split_idx].astype(dtype, copy=False), dtype(-0.0))
        acc_o += w * out_p

    with np.errstate(divide="ignore"):
        lse = row_max + np.log(row_sum)
    is_empty_out = is_empty.transpose(0, 2, 1)[..., None]
    row_sum = np.where(is_empty, 1, row_sum)
    out = np.where(is_empty_out, 0, acc_o / row_sum.transpose(0, 2, 1)[..., None])
    return out.astype(dtype, copy=False), lse
