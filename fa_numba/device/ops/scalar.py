"""Arithmetic on single registers.

Emulations work on NumPy arrays too: the fragment ops apply them to whole fragments. They are
correctly rounded where the GPU is; the approximate instructions of the GPU (``.approx``) differ
from them in the last bits. Subnormals are flushed where the instruction does it (``.ftz``).
"""

from typing import Any

import numpy as np

from fa_numba.device.ops.declare import instruction
from fa_numba.device.types import int32

__all__ = [
    "add",
    "ex2",
    "float_bits",
    "float_from_bits",
    "fma",
    "fmax",
    "fmin",
    "lg2",
    "mul",
    "rcp",
    "select_less",
    "select_less_i32",
    "subtract_i32",
]

_TINY = np.finfo(np.float32).tiny


def _flush(x: Any) -> Any:
    """Replace subnormals by zeros of their sign."""
    return np.where(np.abs(x) < _TINY, np.copysign(np.float32(0), x), x)[()]


@instruction("ex2.approx.ftz.f32 $0, $1;", "f32(f32)", since=(5, 0), section="ex2", cycles=4)
def ex2(x: Any) -> Any:
    """Return 2 to the power of `x`.

    Since sm_20; one of the slow instructions, 16 a clock and multiprocessor. Relative error 2⁻²².

    Parameters
    ----------
    x : float32

    Returns
    -------
    float32
        0 for −∞; results below 2⁻¹²⁶ are flushed to 0.
    """
    return _flush(np.exp2(x))


@instruction("lg2.approx.ftz.f32 $0, $1;", "f32(f32)", since=(5, 0), section="lg2", cycles=4)
def lg2(x: Any) -> Any:
    """Return the logarithm of `x` to base 2.

    Since sm_20. Absolute error 2⁻²² for 0.5 < x < 2, relative error 2⁻²² elsewhere.

    Parameters
    ----------
    x : float32
        Subnormals count as 0.

    Returns
    -------
    float32
        −∞ for 0, NaN for negative numbers.
    """
    return np.log2(_flush(x))


@instruction("rcp.approx.ftz.f32 $0, $1;", "f32(f32)", since=(5, 0), section="rcp", cycles=4)
def rcp(x: Any) -> Any:
    """Return 1 / `x`.

    Since sm_20. Error below 1 ulp.

    Parameters
    ----------
    x : float32
        Subnormals count as 0.

    Returns
    -------
    float32
        Infinite, with the sign of `x`, for 0.
    """
    return _flush(np.float32(1) / _flush(x))


@instruction("fma.rn.f32 $0, $1, $2, $3;", "f32(f32, f32, f32)", since=(5, 0), section="fma")
def fma(a: Any, b: Any, c: Any) -> Any:
    """Return `a` · `b` + `c`, rounded once.

    Since sm_20.

    Parameters
    ----------
    a, b, c : float32

    Returns
    -------
    float32

    Notes
    -----
    The emulation computes in float64, where the product is exact and the sum rounded; rounding
    again to float32 gives another result than one rounding in about one of 2²⁹ cases.
    """
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


@instruction("add.rn.f32 $0, $1, $2;", "f32(f32, f32)", since=(5, 0), section="add")
def add(a: Any, b: Any) -> Any:
    """Return `a` + `b`; unlike ``+``, never fused with a product.

    Since sm_20.

    Parameters
    ----------
    a, b : float32

    Returns
    -------
    float32
    """
    return np.add(a, b)


@instruction("mul.rn.f32 $0, $1, $2;", "f32(f32, f32)", since=(5, 0), section="mul")
def mul(a: Any, b: Any) -> Any:
    """Return `a` · `b`; unlike ``*``, never fused with a sum.

    Since sm_20.

    Parameters
    ----------
    a, b : float32

    Returns
    -------
    float32
    """
    return np.multiply(a, b)


@instruction("max.f32 $0, $1, $2;", "f32(f32, f32)", since=(5, 0), section="max")
def fmax(a: Any, b: Any) -> Any:
    """Return the larger of `a` and `b`. NaN loses against a number.

    Since sm_20.

    Parameters
    ----------
    a, b : float32

    Returns
    -------
    float32
    """
    return np.fmax(a, b)


@instruction("min.f32 $0, $1, $2;", "f32(f32, f32)", since=(5, 0), section="min")
def fmin(a: Any, b: Any) -> Any:
    """Return the smaller of `a` and `b`. NaN loses against a number.

    Since sm_20.

    Parameters
    ----------
    a, b : float32

    Returns
    -------
    float32
    """
    return np.fmin(a, b)


@instruction(
    "{\n.reg .pred p;\nsetp.lt.f32 p, $1, $2;\nselp.f32 $0, $3, $4, p;\n}",
    "f32(f32, f32, f32, f32)",
    since=(5, 0),
    section="setp, selp",
    cycles=2,
)
def select_less(a: Any, b: Any, if_less: Any, otherwise: Any) -> Any:
    """Return `if_less` where `a` < `b`, else `otherwise`, without a branch.

    Since sm_20. NaN is not less than anything.

    Parameters
    ----------
    a, b, if_less, otherwise : float32

    Returns
    -------
    float32
    """
    return np.where(np.less(a, b), if_less, otherwise)[()]


@instruction(
    "{\n.reg .pred p;\nsetp.lt.s32 p, $1, $2;\nselp.f32 $0, $3, $4, p;\n}",
    "f32(i32, i32, f32, f32)",
    since=(5, 0),
    section="setp, selp",
    cycles=2,
)
def select_less_i32(a: Any, b: Any, if_less: Any, otherwise: Any) -> Any:
    """Return `if_less` where the integer `a` < `b`, else `otherwise`, without a branch.

    Since sm_20.

    Parameters
    ----------
    a, b : int32
    if_less, otherwise : float32

    Returns
    -------
    float32
    """
    return np.where(np.less(a, b), if_less, otherwise)[()]


@instruction("sub.s32 $0, $1, $2;", "i32(i32, i32)", since=(5, 0), section="sub")
def subtract_i32(a: Any, b: Any) -> Any:
    """Return `a` − `b` in 32 bits, wrapping.

    Since sm_20. Unlike ``-``, which computes in 64 bits.

    Parameters
    ----------
    a, b : int32

    Returns
    -------
    int32
    """
    return int32(a - b)


@instruction("mov.b32 $0, $1;", "u32(f32)", since=(5, 0), section="mov")
def float_bits(x: Any) -> Any:
    """Return the bits of `x` as an integer. Costs nothing.

    Parameters
    ----------
    x : float32

    Returns
    -------
    uint32
    """
    bits = np.asarray(x, np.float32).view(np.uint32)
    return bits if bits.ndim else int(bits)


@instruction("mov.b32 $0, $1;", "f32(u32)", since=(5, 0), section="mov")
def float_from_bits(bits: Any) -> Any:
    """Return the float32 with these bits. Costs nothing.

    Parameters
    ----------
    bits : uint32

    Returns
    -------
    float32
    """
    return np.asarray(bits, np.uint32).view(np.float32)[()]
