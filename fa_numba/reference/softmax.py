"""The online softmax: a softmax over keys that arrive tile by tile.

Of each row it keeps two numbers, the largest score so far m and the sum ℓ of 2^(s − m). A new tile
with a larger maximum m' makes all earlier sums too large by 2^(m − m'), and so is the accumulator
of P·V: both are multiplied by that factor, the *row scale*, and all is as if m' had been known from
the start (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention, arXiv 2205.14135, section 3.1).

Scores come in units of log 2 (already times log2 e), because 2^x is the cheaper exponential.

Three refinements:

- a row without any allowed key has m = −inf, and −inf − (−inf) is NaN: such a row subtracts 0;
- *conditional rescale* (FlashAttention-4): a new maximum that beats the old one by at most τ is
  ignored. P then grows up to 2^τ, which the accumulator can hold, and most tiles need no rescale;
- *max_offset* (FlashAttention-3, arXiv 2407.08608): P is 2^(s − m + offset), so that FP8 numbers,
  whose smallest is 2^-9, resolve more of it. ℓ carries the same factor; it cancels in the output
  and is taken out of lse.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["LOG2_E", "Exp2", "OnlineSoftmax"]

LOG2_E = math.log2(math.e)
_LN_2 = math.log(2)

Exp2 = Callable[[NDArray[Any]], NDArray[Any]]
"""A function that returns 2^x, elementwise."""


class OnlineSoftmax:
    """Running row statistics of one tile of queries.

    Parameters
    ----------
    shape : tuple of int
        (..., rows).
    dtype : dtype
        Of scores and statistics.
    exp2 : callable, optional
        Evaluates 2^x for P, for instance `fa_numba.reference.exp2.exp2_poly`. NumPy's by default.
    rescale_threshold : float
        τ, in units of log 2; 0 rescales at every new maximum.
    max_offset : int
        P is scaled by 2^max_offset.

    Attributes
    ----------
    row_max, row_sum : ndarray, (..., rows, 1)
        m in units of log 2, and ℓ (times 2^max_offset).
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        *,
        exp2: Exp2 | None = None,
        rescale_threshold: float = 0.0,
        max_offset: int = 0,
    ) -> None:
        self.row_max: NDArray[Any] = np.full((*shape, 1), -np.inf, dtype)
        self.row_sum: NDArray[Any] = np.zeros((*shape, 1), dtype)
        self._exp2 = exp2
        self._rescale_threshold = rescale_threshold
        self._max_offset = max_offset

    def update(self, scores: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Take in a tile of scores.

        Parameters
        ----------
        scores : ndarray, (..., rows, cols)
            In units of log 2, masked ones -inf. Overwritten.

        Returns
        -------
        p : ndarray, (..., rows, cols)
            2^(scores − m + max_offset), in the memory of `scores`.
        row_scale : ndarray, (..., rows, 1)
            What the accumulator of P·V must be multiplied by before this tile is added.
        """
        old_max = self.row_max
        new_max = np.maximum(old_max, scores.max(axis=-1, keepdims=True))
        # A first tile has old_max = -inf: the comparison is false and the new maximum is taken.
        self.row_max = np.where(old_max - new_max >= -self._rescale_threshold, old_max, new_max)
        shift = np.where(self.row_max == -np.inf, 0, self.row_max)
        row_scale = np.exp2(old_max - shift)

        np.subtract(scores, shift, out=scores)
        p = scores
        if self._exp2 is None:
            _exp2_in_place(p)
        else:
            p[...] = self._exp2(p)
        if self._max_offset:
            # After the exponential, and so exact: a power of two.
            p *= 2.0**self._max_offset
        # A product with ones: BLAS adds up rows faster than np.sum.
        ones = np.ones(p.shape[-1], p.dtype)
        tile_sum = (p.reshape(-1, p.shape[-1]) @ ones).reshape(row_scale.shape)
        self.row_sum = self.row_sum * row_scale + tile_sum
        return p, row_scale

    def finalize(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return what the loop leaves to do.

        Returns
        -------
        out_scale : ndarray, (..., rows, 1)
            1/ℓ, the last factor on the accumulator; 0 for empty rows.
        lse : ndarray, (..., rows)
            Natural logarithm of the sum of exp(score); -inf for empty rows.
        """
        is_empty = self.row_sum == 0
        row_sum = np.where(is_empty, 1, self.row_sum)
        # An empty row's row_max is -inf, and so is its lse.
        lse: NDArray[Any] = (self.row_max + (np.log2(row_sum) - self._max_offset)) * _LN_2
        return np.where(is_empty, 0, 1 / row_sum), lse[..., 0]


def _exp2_in_place(x: NDArray[Any]) -> None:
    """Replace x by 2^x.

    Not by np.exp2: its vector code takes many times as long for numbers whose power is 0 or
    subnormal, as it is for every masked score (and without AVX-512 there is no vector code at all).
    np.exp is fast for all numbers.
    """
    x *= x.dtype.type(_LN_2)
    np.exp(x, out=x)
