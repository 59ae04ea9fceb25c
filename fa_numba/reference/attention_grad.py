"""Gradients of dense attention: the oracle of every backward path.

Differentiates `fa_numba.reference.attention` by the chain rule on whole matrices. Like it, it
imports nothing else of this package.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import DTypeLike

from fa_numba.reference.attention import (
    Array,
    Window,
    allowed_keys,
    heads_first,
    masked_softmax,
    round_through,
    sum_allowed,
)


def attention_grad(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    *,
    dlse: Array | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    sink_token_length: int = 0,
    softcap: float = 0.0,
    compute_dtype: DTypeLike = np.float64,
    round_to: DTypeLike | None = None,
) -> tuple[Array, Array, Array]:
    """Gradient of ``sum(dout * out) + sum(dlse * lse)`` in q, k and v.

    Parameters
    ----------
    dout : array, (batch, seqlen_q, nheads, headdim_v)
        Gradient arriving at the output.
    q, k, v : arrays
        As in `fa_numba.reference.attention.attention`.
    dlse : array, (batch, nheads, seqlen_q), optional
        Gradient arriving at the log-sum-exp; ignored at empty rows, where lse is -inf.
    softmax_scale, causal, window_size, sink_token_length, softcap
        The forward's flags.
    compute_dtype : dtype
        float64 for the truth, float32 for the comparator of the tolerance rule.
    round_to : dtype, optional
        Round the probabilities, the output, ``dout @ v.T``, the score gradient and the three
        results to this dtype.

    Returns
    -------
    dq, dk, dv : arrays of `compute_dtype`, shaped like q, k, v
        Empty rows contribute 0 to all three.

    Notes
    -----
    With ``P`` the probabilities and ``delta = sum(dout * out)`` per row::

        dS = P * (dout @ v.T - delta + dlse) * phi,   phi = 1 - tanh(s_raw / softcap)**2 (or 1)
        dq = softmax_scale * dS @ k
        dk = softmax_scale * dS.T @ q
        dv = P.T @ dout

    and dk, dv are summed over the query heads that share a key head. ``P = exp(s - lse)``, as in
    FlashAttention (arXiv 2205.14135, appendix B.2): in float32 the rounding of lse, which grows
    with its magnitude, is then part of the comparator too.
    """
    batch, seqlen_q, nheads, headdim = q.shape
    nheads_k = k.shape[2]
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(headdim)
    allowed = allowed_keys(seqlen_q, k.shape[1], causal, window_size, sink_token_length)
    query, key, value, dout_ = (heads_first(x, nheads, compute_dtype) for x in (q, k, v, dout))

    with np.errstate(invalid="ignore", over="ignore"):
        scores = (query @ key.swapaxes(-1, -2)) * softmax_scale
        slope: Array = np.ones_like(scores)
        if softcap > 0:
            tanh = np.tanh(scores / softcap)
            scores, slope = softcap * tanh, 1.0 - tanh * tanh
        lse = masked_softmax(scores, allowed)[1]
        exponent = np.where(allowed, scores - lse[..., None], -np.inf).astype(scores.dtype)
        prob = round_through(np.exp(exponent), round_to)
        out = round_through(sum_allowed(prob, allowed, value), round_to)

        delta = (dout_ * out).sum(axis=-1)
        if dlse is not None:
            delta = delta - dlse.astype(compute_dtype)
        dprob = round_through(dout_ @ value.swapaxes(-1, -2), round_to)
        dscores = np.where(allowed, prob * (dprob - delta[..., None]) * slope, 0.0)
        dscores = round_through(dscores.astype(prob.dtype), round_to)

        dq = sum_allowed(dscores, allowed, key) * softmax_scale
        dk = sum_allowed(dscores.swapaxes(-1, -2), allowed.T, query) * softmax_scale
        dv = sum_allowed(prob.swapaxes(-1, -2), allowed.T, dout_)

    group = (batch, nheads_k, nheads // nheads_k, k.shape[1])
    dk = dk.reshape(*group, headdim).sum(axis=2)
    dv = dv.reshape(*group, v.shape[3]).sum(axis=2)
    dq, dk, dv = (round_through(x, round_to).swapaxes(1, 2) for x in (dq, dk, dv))
    return dq, dk, dv
