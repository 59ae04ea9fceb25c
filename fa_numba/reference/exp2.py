"""2^x from additions, multiplications and shifts: the software exponential of a kernel.

A GPU computes few exponentials per clock compared with its matrix products, so FlashAttention-4
evaluates a share of them on the ordinary float units:

1. split x = n + f with n = floor(x) and f in [0, 1) (Cody and Waite's range reduction);
2. evaluate a polynomial p(f) ≈ 2^f by Horner's rule;
3. multiply by 2^n by adding n to the exponent bits of p(f).

Step 1 is one addition: 2^23 + 2^22 plus x, rounded down, leaves n in the low mantissa bits, since
the last bit of a float32 of that size is worth 1.

The coefficients are minimax for the relative error on [0, 1], with constant term 1. The largest
relative errors of degrees 1 to 5 are 3.9e-2, 2.1e-3, 8.8e-5, 3.0e-6 and 8.5e-8. P is rounded to
bfloat16 (2^-8) or float16 (2^-11) before it meets V: degree 3 is below either rounding.

Sources: Cody and Waite, Software Manual for the Elementary Functions, 1980; method and coefficients
from Dao-AILab/flash-attention ``flash_attn/cute/utils.py`` (commit 0251105a).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["EXP2_COEFFICIENTS", "exp2_poly"]

EXP2_COEFFICIENTS: Mapping[int, tuple[float, ...]] = {
    1: (1.0, 0.922497093677520751953125),
    2: (1.0, 0.6657850742340087890625, 0.330107033252716064453125),
    3: (
        1.0,
        0.695146143436431884765625,
        0.227564394474029541015625,
        0.077119089663028717041015625,
    ),
    4: (
        1.0,
        0.693042695522308349609375,
        0.2412912547588348388671875,
        0.052225358784198760986328125,
        0.013434938155114650726318359375,
    ),
    5: (
        1.0,
        0.693151414394378662109375,
        0.24016360938549041748046875,
        0.055802188813686370849609375,
        0.00901452265679836273193359375,
        0.00186810153536498546600341796875,
    ),
}
"""degree -> coefficients c0 … c_degree of p(f) ≈ 2^f; each is a float32 number."""

_MAGIC = np.float32(2.0**23 + 2.0**22)


def exp2_poly(x: NDArray[Any], degree: int = 3) -> NDArray[np.float32]:
    """Approximate 2^x by a polynomial and exponent arithmetic, in float32.

    x is clamped to [-127, 128]. Both ends are exact: -127 and everything below, -inf included,
    give +0 (the exponent field of p = 1 less 127 is empty), so a masked score contributes nothing;
    128 and above give +inf. Between -127 and -126 the result is a subnormal whose absolute error
    is below 2^-126. NaN stays NaN.

    Parameters
    ----------
    x : ndarray
        Exponents; converted to float32.
    degree : {1, 2, 3, 4, 5}
        Degree of the polynomial.

    Returns
    -------
    ndarray of float32
        The shape of x. Horner's steps are fused multiply-adds, as on a GPU.

    Raises
    ------
    ValueError
        If there are no coefficients for the degree.
    """
    if degree not in EXP2_COEFFICIENTS:
        raise ValueError(f"degree is {degree!r}; accepted are 1 to 5")
    x = np.clip(np.asarray(x).astype(np.float32), np.float32(-127), np.float32(128))
    is_nan = np.isnan(x)
    x = np.where(is_nan, np.float32(0), x)

    # The addition rounded down; NumPy only rounds to nearest, so one step back where it went up.
    shifted = x + _MAGIC
    shifted -= shifted - _MAGIC > x
    fraction = x - (shifted - _MAGIC)

    coefficients = EXP2_COEFFICIENTS[degree]
    polynomial = np.full_like(fraction, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        polynomial = _fma(polynomial, fraction, coefficient)

    # The shift by 23 drops the bits of the magic number and keeps n modulo 2^9 in place.
    exponent = shifted.view(np.uint32) << np.uint32(23)
    result = (polynomial.view(np.uint32) + exponent).view(np.float32)
    return np.where(is_nan, np.float32(np.nan), result)


def _fma(a: NDArray[np.float32], b: NDArray[np.float32], c: float) -> NDArray[np.float32]:
    """Return a·b + c with one rounding: the float64 product of two float32 numbers is exact."""
    return (a.astype(np.float64) * b + c).astype(np.float32)
