"""Dense attention: the oracle every other path is measured against.

The formulas of the documentation, written once and without tiles. It materialises the whole
score matrix, imports nothing of this package, and shares no code with the tiled versions, so an
error common to both is unlikely. Use it on small problems: memory grows with
``batch * nheads * seqlen_q * seqlen_k``.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Window = tuple[int | None, int | None]

E4M3_MAX = 448.0


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    sink_token_length: int = 0,
    softcap: float = 0.0,
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    compute_dtype: DTypeLike = np.float64,
    round_to: DTypeLike | None = None,
) -> tuple[Array, Array]:
    """Attention of whole matrices: ``softmax(scores) @ v``.

    Parameters
    ----------
    q : array, (batch, seqlen_q, nheads, headdim)
    k : array, (batch, seqlen_k, nheads_k, headdim)
    v : array, (batch, seqlen_k, nheads_k, headdim_v)
        Any floating dtype, `ml_dtypes` types included. Query head ``h`` reads key head
        ``h // (nheads / nheads_k)``.
    softmax_scale : float, optional
        Factor on ``q . k``; ``headdim ** -0.5`` if None.
    causal, window_size, sink_token_length
        The mask, see `allowed_keys`.
    softcap : float
        If positive, scores become ``softcap * tanh(score / softcap)`` before the mask.
    q_descale, k_descale, v_descale : array (batch, nheads_k), optional
        Factors that undo an FP8 quantisation; all three are per key head.
    compute_dtype : dtype
        float64 for the truth, float32 for the comparator of the tolerance rule.
    round_to : dtype, optional
        Round ``softmax_scale * q @ k.T``, the normalised probabilities and the output to this
        dtype. It models an honest low-precision implementation.

    Returns
    -------
    out : array of `compute_dtype`, (batch, seqlen_q, nheads, headdim_v)
        Rows that may attend no key are 0.
    lse : array of `compute_dtype`, (batch, nheads, seqlen_q)
        Natural logarithm of the sum of the exponentials of the scores; -inf for empty rows.

    Notes
    -----
    A masked element never takes part, whatever it holds: NaN or infinity in a key or value
    reaches only the rows that may attend it.
    """
    nheads = q.shape[2]
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(q.shape[3])
    allowed = allowed_keys(q.shape[1], k.shape[1], causal, window_size, sink_token_length)
    query = heads_first(q, nheads, compute_dtype)
    key = heads_first(k, nheads, compute_dtype)
    value = heads_first(v, nheads, compute_dtype)

    with np.errstate(invalid="ignore", over="ignore"):
        scores = (query @ key.swapaxes(-1, -2)) * softmax_scale
        for descale in (q_descale, k_descale):
            if descale is not None:
                scores = scores * _per_head(descale, nheads, compute_dtype)
        scores = round_through(scores, round_to)
        if softcap > 0:
            scores = softcap * np.tanh(scores / softcap)
        prob, lse = masked_softmax(scores, allowed)
        out = sum_allowed(round_through(prob, round_to), allowed, value)
        if v_descale is not None:
            out = out * _per_head(v_descale, nheads, compute_dtype)
    return round_through(out, round_to).swapaxes(1, 2), lse


def allowed_keys(
    seqlen_q: int, seqlen_k: int, causal: bool, window_size: Window, sink_token_length: int
) -> NDArray[np.bool_]:
    """Tell which keys each query may attend.

    Parameters
    ----------
    seqlen_q, seqlen_k : int
        Lengths; the mask is aligned to the bottom right corner.
    causal : bool
        A right bound of 0.
    window_size : pair of int or None
        ``(left, right)``: key ``j`` must satisfy ``i + off - left <= j <= i + off + right`` with
        ``off = seqlen_k - seqlen_q``. None or a negative number means no bound.
    sink_token_length : int
        The first keys are exempt from the left bound, never from the right one.

    Returns
    -------
    array of bool, (seqlen_q, seqlen_k)
        True where attention is allowed.
    """
    left, right = (-1 if bound is None else bound for bound in window_size)
    if causal:
        right = 0
    diagonal = np.arange(seqlen_q)[:, None] + (seqlen_k - seqlen_q)
    column = np.arange(seqlen_k)[None, :]
    allowed = np.ones((seqlen_q, seqlen_k), dtype=np.bool_)
    if right >= 0:
        allowed &= column <= diagonal + right
    if left >= 0:
        allowed &= (column >= diagonal - left) | (column < sink_token_length)
    return allowed


def masked_softmax(scores: Array, allowed: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Softmax over the allowed keys.

    Parameters
    ----------
    scores : array, (..., seqlen_q, seqlen_k)
    allowed : array of bool, (seqlen_q, seqlen_k)

    Returns
    -------
    prob : array, (..., seqlen_q, seqlen_k)
        Rows sum to 1, or are 0 where no key is allowed.
    lse : array, (..., seqlen_q)
        Natural log of the sum of exponentials; -inf where no key is allowed.
    """
    nonempty = allowed.any(axis=-1)
    row_max = np.max(np.where(allowed, scores, -np.inf), axis=-1, initial=-np.inf)
    row_max = np.where(nonempty, row_max, 0.0).astype(scores.dtype)
    weight = np.where(allowed, np.exp(np.where(allowed, scores - row_max[..., None], 0.0)), 0.0)
    weight = weight.astype(scores.dtype)
    row_sum = np.where(nonempty, weight.sum(axis=-1), 1.0).astype(scores.dtype)
    lse = np.where(nonempty, row_max + np.log(row_sum), -np.inf).astype(scores.dtype)
    return weight / row_sum[..., None], lse


def sum_allowed(weight: Array, allowed: NDArray[np.bool_], x: Array) -> Array:
    """Sum ``weight[..., i, j] * x[..., j, :]`` over the allowed ``j`` only.

    It differs from ``weight @ x`` where `x` holds NaN or infinity: such a row of `x` reaches only
    the rows ``i`` with ``allowed[i, j]``, since ``0 * NaN`` is never formed.

    Parameters
    ----------
    weight : array, (..., rows, cols)
        0 where not allowed.
    allowed : array of bool, (rows, cols)
    x : array, (..., cols, dim)

    Returns
    -------
    array, (..., rows, dim)
    """
    finite = np.isfinite(x)
    total: Array = weight @ np.where(finite, x, x.dtype.type(0))
    other_axes = (*range(x.ndim - 2), x.ndim - 1)
    bad_columns = np.flatnonzero(~finite.all(axis=other_axes))
    for j in bad_columns:
        spoiled = np.where(finite[..., j, :], x.dtype.type(0), x[..., j, :])
        product = weight[..., j, None] * spoiled[..., None, :]
        touched = allowed[:, j, None] & ~finite[..., j, None, :]
        total = total + np.where(touched, product, x.dtype.type(0))
    return total


def heads_first(x: Array, nheads: int, compute_dtype: DTypeLike) -> Array:
    """Bring (batch, seqlen, heads, dim) to (batch, nheads, seqlen, dim), heads repeated for GQA."""
    wide = x.astype(compute_dtype).swapaxes(1, 2)
    return np.repeat(wide, nheads // x.shape[2], axis=1) if x.shape[2] != nheads else wide


def round_through(x: Array, dtype: DTypeLike | None) -> Array:
    """Round `x` to `dtype` and return it in its own dtype; float8_e4m3fn saturates at 448."""
    if dtype is None:
        return x
    if np.dtype(dtype) == np.dtype(ml_dtypes.float8_e4m3fn):
        x = np.clip(x, -E4M3_MAX, E4M3_MAX)
    return x.astype(dtype).astype(x.dtype)


def _per_head(descale: Array, nheads: int, compute_dtype: DTypeLike) -> Array:
    """Spread a (batch, nheads_k) factor to (batch, nheads, 1, 1)."""
    factor = np.asarray(descale).astype(compute_dtype)
    return np.repeat(factor, nheads // factor.shape[1], axis=1)[:, :, None, None]
