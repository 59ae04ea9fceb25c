"""Rotary position embedding: turn pairs of features by an angle proportional to the position.

After the turn, the product of a query at position m and a key at position n depends on the
features and on m - n only, which is how attention learns about distance. Two conventions exist
for which features form a pair: neighbours (GPT-J) or the two halves (GPT-NeoX, Llama). They are
the same map up to a permutation of the features, and mixing them up is a classic silent error.

Source: Su et al., RoFormer, arXiv 2104.09864, equation 34; layouts as in flash-attention.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fa_numba.reference.quant import saturating_cast

__all__ = ["apply_rotary"]


def apply_rotary(
    x: NDArray[Any],
    cos: NDArray[Any],
    sin: NDArray[Any],
    positions: NDArray[Any] | int,
    *,
    interleaved: bool,
) -> NDArray[Any]:
    """Rotate the leading features of every token by the angles of its position.

    For the pair ``(x1, x2)`` with angle θ: ``(x1 cos θ - x2 sin θ, x1 sin θ + x2 cos θ)``.

    Parameters
    ----------
    x : ndarray, (batch, seqlen, nheads, headdim)
        Queries or keys.
    cos, sin : ndarray, (seqlen_ro, rotary_dim / 2)
        Tables: row p holds the cosines and sines of position p. ``rotary_dim <= headdim``;
        the features from ``rotary_dim`` on are copied.
    positions : int or integer ndarray broadcastable to (batch, seqlen)
        Position of each token, ``0 <= position < seqlen_ro``.
    interleaved : bool
        True: pairs (0, 1), (2, 3), …; False: pairs (i, i + rotary_dim / 2).

    Returns
    -------
    ndarray
        A new array of x's shape and dtype. Computed in float64 for float64 x, else in float32,
        and rounded once.

    Raises
    ------
    ValueError
        If a position lies outside the tables, or ``rotary_dim > headdim``.
    """
    seqlen_ro, half = cos.shape
    rotary_dim = 2 * half
    if rotary_dim > x.shape[-1]:
        raise ValueError(
            f"rotary_cos has {half} columns, which rotate {rotary_dim} features; "
            f"the head dim is {x.shape[-1]}"
        )
    token_positions = np.broadcast_to(np.asarray(positions), x.shape[:2])
    if token_positions.size:
        lowest, highest = int(token_positions.min()), int(token_positions.max())
        if lowest < 0 or highest >= seqlen_ro:
            raise ValueError(
                f"rotary_cos and rotary_sin have {seqlen_ro} rows; "
                f"positions {lowest} to {highest} are needed"
            )

    dtype = np.float64 if x.dtype == np.float64 else np.float32
    # (batch, seqlen, 1, rotary_dim / 2): the same angles for every head.
    c = cos.astype(dtype)[token_positions][:, :, None, :]
    s = sin.astype(dtype)[token_positions][:, :, None, :]
    if interleaved:
        first, second = slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)
    else:
        first, second = slice(0, half), slice(half, rotary_dim)
    x1, x2 = x[..., first].astype(dtype), x[..., second].astype(dtype)

    rotated = x.copy()
    rotated[..., first] = saturating_cast(x1 * c - x2 * s, x.dtype)
    rotated[..., second] = saturating_cast(x1 * s + x2 * c, x.dtype)
    return rotated
