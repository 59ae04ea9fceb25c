"""The hyperbolic tangent, for softcaps: one instruction for 16-bit results, a formula for more."""

from typing import Any

import numpy as np

from fa_numba.device.ops.builder import composite
from fa_numba.device.ops.declare import instruction
from fa_numba.device.ops.scalar import add, ex2, fma, mul, rcp, select_less

__all__ = ["tanh", "tanh_approx"]


@instruction("tanh.approx.f32 $0, $1;", "f32(f32)", since=(7, 5), section="tanh", cycles=4)
def tanh_approx(x: Any) -> Any:
    """Return the hyperbolic tangent of `x`, good enough for 16-bit results.

    Since sm_75. Relative error 2⁻¹¹: about that of a float16. For float32 use `tanh`.

    Parameters
    ----------
    x : float32

    Returns
    -------
    float32
    """
    return np.tanh(x)


_TWO_LOG2_E = float(2 / np.log(2))
# (tanh x − x) / x³ as a polynomial in x², for |x| < 0.55: minimax in the relative error of tanh.
_TANH_NEAR = 0.55
_TANH_COEFFICIENTS = (
    -0.3333294689655304,
    0.13320724666118622,
    -0.05267181247472763,
    0.016437575221061707,
)


@composite("f32(f32)", since=(5, 0), section="ex2, rcp", cycles=16)
def tanh(b: Any, x: Any) -> Any:
    """Return the hyperbolic tangent of `x` to float32 accuracy.

    tanh x = 1 − 2 / (1 + 2^(2x·log₂ e)). For a small x the difference cancels, so that an odd
    polynomial of degree 9, fitted to the relative error, takes over. Relative error below 4e-7.

    Parameters
    ----------
    x : float32

    Returns
    -------
    float32
    """
    exponential = b.map(ex2, b.map(mul, x, _TWO_LOG2_E))
    far = b.map(fma, b.map(rcp, b.map(add, exponential, 1.0)), -2.0, 1.0)
    square = b.map(mul, x, x)
    polynomial = _TANH_COEFFICIENTS[-1]
    for coefficient in _TANH_COEFFICIENTS[-2::-1]:
        polynomial = b.map(fma, polynomial, square, coefficient)
    near = b.map(fma, b.map(mul, polynomial, square), x, x)
    return b.map(select_less, square, _TANH_NEAR**2, near, far)
