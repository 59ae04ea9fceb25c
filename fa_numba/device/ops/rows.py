"""Fragments in the accumulator layout of ``mma.m16n8``: what is done row by row and by column.

A thread holds parts of two rows of its warp's 16: row ``lane // 4`` and the row 8 below
(`fa_numba.indexing.fragment_layout`). Ops that differ by row take or return one number for each of
the two. A row lives in the four lanes of a quad: `row_max` and `row_sum` reduce what one thread
holds, `fa_numba.device.ops.shuffle.quad_max` and `quad_sum` the rest.
"""

from typing import Any

from fa_numba.device.ops.builder import column_of_element, composite
from fa_numba.device.ops.scalar import add, ex2, fma, fmax, mul, select_less_i32, subtract_i32

__all__ = ["exp2_rows", "mask_columns", "row_max", "row_sum", "scale_rows"]


@composite("f32[n](f32[n], f32, f32)", since=(5, 0), section="mul", cycles=8)
def scale_rows(b: Any, fragment: Any, scale_0: Any, scale_1: Any) -> Any:
    """Multiply the rows of a fragment.

    Parameters
    ----------
    fragment : float32[n]
        Accumulator layout.
    scale_0, scale_1 : float32
        Factors of the thread's first and second row.

    Returns
    -------
    float32[n]
    """
    return b.map(mul, fragment, b.by_row(len(fragment), scale_0, scale_1))


@composite("f32[n](f32[n], f32, f32, f32)", since=(5, 0), section="ex2", cycles=32)
def exp2_rows(b: Any, fragment: Any, scale: Any, max_0: Any, max_1: Any) -> Any:
    """Return 2^((x − row max) · scale) for every element x.

    One fma and one ex2 an element: 2^(x·scale − max·scale).

    Parameters
    ----------
    fragment : float32[n]
        Accumulator layout. −∞ gives 0.
    scale : float32
        softmax_scale · log₂ e for a softmax, positive.
    max_0, max_1 : float32
        Maximum of the thread's first and second row, unscaled. Must be finite: for a row that is
        −∞ throughout pass 0, or ∞ − ∞ is NaN.

    Returns
    -------
    float32[n]
    """
    shift_0 = b.map(mul, b.map(mul, max_0, scale), -1.0)
    shift_1 = b.map(mul, b.map(mul, max_1, scale), -1.0)
    return b.map(ex2, b.map(fma, fragment, scale, b.by_row(len(fragment), shift_0, shift_1)))


def _reduce_row(b: Any, op: Any, fragment: Any, row: int) -> Any:
    """Reduce one row of a fragment by halves: a tree, whose ops wait for few others."""
    values = b.interleave(fragment[2 * row :: 4], fragment[2 * row + 1 :: 4])
    while len(values) > 1:
        half = len(values) // 2
        reduced = b.map(op, values[:half], values[half : 2 * half])
        values = b.join(reduced, values[2 * half :]) if len(values) % 2 else reduced
    return values[0]


@composite("f32[2](f32[n])", since=(5, 0), section="max", cycles=8)
def row_max(b: Any, fragment: Any) -> Any:
    """Return the maxima of the thread's elements of its two rows. NaN loses.

    Parameters
    ----------
    fragment : float32[n]
        Accumulator layout: n is a multiple of 4.

    Returns
    -------
    float32[2]
        Of this thread only: `quad_max` makes it the maximum of the row.
    """
    return b.join(*[_reduce_row(b, fmax, fragment, row) for row in range(2)])


@composite("f32[2](f32[n])", since=(5, 0), section="add", cycles=8)
def row_sum(b: Any, fragment: Any) -> Any:
    """Return the sums of the thread's elements of its two rows.

    Parameters
    ----------
    fragment : float32[n]
        Accumulator layout: n is a multiple of 4.

    Returns
    -------
    float32[2]
        Of this thread only: `quad_sum` makes it the sum of the row. Added pairwise by halves, in
        the same order on both machines.
    """
    return b.join(*[_reduce_row(b, add, fragment, row) for row in range(2)])


@composite(
    "f32[n](f32[n], i32, i32, i32, i32, i32, f32)",
    since=(5, 0),
    section="setp, selp",
    cycles=16,
)
def mask_columns(
    b: Any,
    fragment: Any,
    column: Any,
    left_0: Any,
    right_0: Any,
    left_1: Any,
    right_1: Any,
    fill: Any,
) -> Any:
    """Replace the elements outside a range of columns, which may differ between the two rows.

    Parameters
    ----------
    fragment : float32[n]
        Accumulator layout.
    column : int32
        Column of the thread's element 0: the tile's first column + 2 · (lane % 4).
    left_0, right_0 : int32
        Columns left_0 ≤ column < right_0 of the first row are kept.
    left_1, right_1 : int32
        The same for the second row.
    fill : float32
        What replaces the others: −∞ for scores, 0 for probabilities.

    Returns
    -------
    float32[n]
    """
    size = len(fragment)
    columns = b.constants([column_of_element(i) for i in range(size)])
    offsets = [b.map(subtract_i32, x, column) for x in (left_0, left_1, right_0, right_1)]
    left, right = b.by_row(size, *offsets[:2]), b.by_row(size, *offsets[2:])
    kept = b.map(select_less_i32, columns, right, fragment, fill)
    return b.map(select_less_i32, columns, left, fill, kept)
