"""The online softmax on register fragments; see `fa_numba.reference.softmax` for the algorithm.

A thread holds parts of two rows (`fa_numba.indexing.fragment_layout`), so that every statistic is
a pair: of row ``lane // 4`` and of the row 8 below. The maximum of a row is known to the four lanes
of its quad at every moment, because all of them subtract it; the sum is only needed at the end, and
is one partial sum a lane until then.

Scores are not scaled before: `scale`, which is log2 e times the softmax scale, goes into the one
multiply-add that each score costs anyway.
"""

import math
from typing import Any

from fa_numba.device.ops import (
    ex2,
    exp2_rows,
    fma,
    fmax,
    lg2,
    mul,
    quad_max,
    quad_sum,
    rcp,
    row_max,
    row_sum,
    select_less,
)
from fa_numba.device.types import float32

__all__ = ["LOG2_E", "finalize", "init_rows", "row_shift", "update"]

LOG2_E = math.log2(math.e)
_LN_2 = math.log(2)
_MINUS_INF = float("-inf")


def init_rows() -> Any:
    """Return the statistics of two rows that have seen nothing.

    Returns
    -------
    maxima, sums : float32[2]
        -inf and 0.
    """
    minus_inf, zero = float32(_MINUS_INF), float32(0)
    return (minus_inf, minus_inf), (zero, zero)


def update(scores: Any, maxima: Any, sums: Any, scale: Any) -> Any:
    """Take in a tile of scores.

    Parameters
    ----------
    scores : float32[n]
        Accumulator fragment; masked ones -inf.
    maxima : float32[2]
        Largest score of each row so far, not scaled.
    sums : float32[2]
        This lane's part of the sum of 2^((score - maximum) · scale).
    scale : float32
        log2 e times the softmax scale; positive.

    Returns
    -------
    p : float32[n]
        2^((scores - maximum) · scale).
    maxima, sums : float32[2]
        With this tile.
    row_scale : float32[2]
        What earlier results of each row must be multiplied by.
    """
    new_0, new_1 = row_max(scores)
    new_0 = quad_max(fmax(maxima[0], new_0))
    new_1 = quad_max(fmax(maxima[1], new_1))
    shift_0, shift_1 = row_shift(new_0), row_shift(new_1)
    p = exp2_rows(scores, scale, shift_0, shift_1)
    row_scale_0 = ex2(mul(maxima[0], scale) - mul(shift_0, scale))
    row_scale_1 = ex2(mul(maxima[1], scale) - mul(shift_1, scale))
    sum_0, sum_1 = row_sum(p)
    sum_0 = fma(sums[0], row_scale_0, sum_0)
    sum_1 = fma(sums[1], row_scale_1, sum_1)
    return p, (new_0, new_1), (sum_0, sum_1), (row_scale_0, row_scale_1)


def row_shift(maximum: Any) -> Any:
    """Return what a row subtracts: its maximum, or 0 where it is -inf, as -inf - (-inf) is NaN."""
    return select_less(_MINUS_INF, maximum, maximum, 0.0)


def finalize(maxima: Any, sums: Any, scale: Any) -> Any:
    """Return what the loop leaves to do.

    Parameters
    ----------
    maxima, sums, scale
        See `update`.

    Returns
    -------
    out_scale : float32[2]
        1 / row sum; 0 for empty rows.
    lse : float32[2]
        Natural logarithm of the sum of exp(score · softmax scale); -inf for empty rows.
    """
    sum_0, sum_1 = quad_sum(sums[0]), quad_sum(sums[1])
    # A row's maximum adds 2^0, so that a sum below 1 is 0. The sum may be NaN, and stays it.
    out_scale_0 = select_less(sum_0, 0.5, 0.0, rcp(sum_0))
    out_scale_1 = select_less(sum_1, 0.5, 0.0, rcp(sum_1))
    lse_0 = mul(fma(maxima[0], scale, lg2(sum_0)), _LN_2)
    lse_1 = mul(fma(maxima[1], scale, lg2(sum_1)), _LN_2)
    return (out_scale_0, out_scale_1), (lse_0, lse_1)
