"""From q·k to a score: the scale and the softcap.

``score = σ·q·k``, and with a softcap c, ``score = c·tanh(σ·q·k / c)``: close to the identity for
small scores, and never beyond ±c (Gemma 2, arXiv 2408.00118, section 2; Grok). The softcap comes
before the mask, since tanh would make a finite number of -inf.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["apply_score_mod", "score_mod_grad"]


def apply_score_mod(
    s: NDArray[Any],
    softmax_scale: float,
    softcap: float,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Scale and cap raw scores.

    With `softmax_scale` and `softcap` both times log2 e, the result is in units of log 2: that is
    how the loops call it.

    Parameters
    ----------
    s : ndarray
        Products q·k.
    softmax_scale : float
        Factor σ.
    softcap : float
        Bound c on the magnitude of a score; 0 for none.
    out : ndarray, optional
        Where to put the result; may be `s`.

    Returns
    -------
    ndarray
        σ·s, or c·tanh(σ·s / c).
    """
    factor = softmax_scale / softcap if softcap > 0 else softmax_scale
    scaled: NDArray[Any] = np.multiply(s, s.dtype.type(factor), out=out)
    if softcap > 0:
        np.tanh(scaled, out=scaled)
        scaled *= s.dtype.type(softcap)
    return scaled


def score_mod_grad(s_raw: NDArray[Any], softmax_scale: float, softcap: float) -> NDArray[Any]:
    """Return the factor φ that the softcap puts on a score's gradient.

    Parameters
    ----------
    s_raw : ndarray
        Products q·k, before scale, cap and mask.
    softmax_scale : float
        Factor σ.
    softcap : float
        Bound c; 0 for none.

    Returns
    -------
    ndarray
        φ = 1 − tanh²(σ·s_raw / c), or 1 without a softcap. The factor σ itself is not in it.
    """
    if softcap == 0:
        return np.ones_like(s_raw)
    t = np.tanh(s_raw * s_raw.dtype.type(softmax_scale / softcap))
    phi: NDArray[Any] = 1 - t * t
    return phi
