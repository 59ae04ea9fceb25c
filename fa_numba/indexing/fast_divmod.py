"""How to divide by a run-time constant without a division.

A GPU has no integer divider: ``//`` by a number unknown to the compiler costs some twenty
instructions. But schedulers, PackGQA rows and page tables divide by the same few numbers all the
time. For those, a multiplier and a shift are computed once, and then

    ``n // d == (n * multiplier) >> shift``.

Why it is exact: let ``shift = 31 + e`` with ``d <= 2**e``, and ``multiplier = ceil(2**shift / d)``.
The rounding makes the multiplier too large by less than 1, hence the product too large by less than
``n``. A wrong quotient would need an excess of at least ``2**shift / d`` (the distance from the
worst remainder, ``d - 1``, to the next quotient). But ``n < 2**31 <= 2**(31 + e) / d``. (T.
Granlund and P. L. Montgomery, "Division by invariant integers using multiplication", PLDI 1994.)

With the smallest such ``e`` the multiplier stays below ``2**32``, so the product of the two fits a
signed 64-bit integer. A kernel may instead take the upper half of a 32-bit product,
``umulhi(n, multiplier) >> (shift - 32)``, as CUTLASS's ``FastDivmod`` does; that form needs
``d = 1`` as a case of its own, since its shift would be -1.
"""

from typing import NamedTuple


class FastDivmod(NamedTuple):
    """A divisor with its precomputed reciprocal.

    Attributes
    ----------
    divisor : int
        The divisor ``d``, ``1 <= d < 2**31``.
    multiplier : int
        ``ceil(2**shift / d)``, in ``[2**31, 2**32)``.
    shift : int
        ``31 + ceil(log2(d))``.
    """

    divisor: int
    multiplier: int
    shift: int


def make_fast_divmod(divisor: int) -> FastDivmod:
    """Precompute the division by `divisor`.

    Parameters
    ----------
    divisor : int
        ``1 <= divisor < 2**31``.

    Returns
    -------
    FastDivmod
    """
    shift = 31
    while (1 << (shift - 31)) < divisor:
        shift += 1
    return FastDivmod(divisor, ((1 << shift) + divisor - 1) // divisor, shift)


def fast_div(numerator: int, d: FastDivmod) -> int:
    """Return ``numerator // d.divisor``.

    Parameters
    ----------
    numerator : int
        ``0 <= numerator < 2**31``.
    d : FastDivmod
        The divisor.

    Returns
    -------
    int
    """
    return (numerator * d.multiplier) >> d.shift


def fast_divmod(numerator: int, d: FastDivmod) -> tuple[int, int]:
    """Return the quotient and the remainder.

    Parameters
    ----------
    numerator : int
        ``0 <= numerator < 2**31``.
    d : FastDivmod
        The divisor.

    Returns
    -------
    quotient, remainder : int
    """
    quotient = fast_div(numerator, d)
    return quotient, numerator - quotient * d.divisor
