"""Between float32 and pairs of 16-bit numbers, packed in a 32-bit register.

The low half holds the element with the lower index. Roundings go to the nearest, ties to even; a
NaN becomes the one that the hardware writes, 0x7FFF.
"""

from typing import Any

import numpy as np

from fa_numba.device.ops.declare import instruction

__all__ = ["bf16_high", "bf16_low", "f16_high", "f16_low", "pack_bf16", "pack_f16"]

_NAN_16 = np.uint32(0x7FFF)


def _rounded_bf16(x: Any) -> Any:
    bits = np.asarray(x, np.float32).view(np.uint32)
    # A carry out of the mantissa raises the exponent, which is right also for infinity.
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), _NAN_16, rounded)


def _rounded_f16(x: Any) -> Any:
    bits = np.asarray(x, np.float32).astype(np.float16).view(np.uint16)
    return np.where(np.isnan(x), _NAN_16, bits.astype(np.uint32))


def _packed(low: Any, high: Any) -> Any:
    packed = low | high << np.uint32(16)
    return packed if packed.ndim else int(packed)


_ROUND_BF16 = """\
mov.b32 {r}, {x};
shr.u32 t, {r}, 16;
and.b32 t, t, 1;
add.u32 {r}, {r}, t;
add.u32 {r}, {r}, 0x7fff;
shr.u32 {r}, {r}, 16;
setp.nan.f32 p, {x}, {x};
selp.b32 {r}, 0x7fff, {r}, p;
"""


@instruction(
    "cvt.rn.bf16x2.f32 $0, $2, $1;",
    "u32(f32, f32)",
    since=(8, 0),
    section="cvt",
    variants={
        (5, 0): "{\n.reg .pred p;\n.reg .b32 t, l, h;\n"
        + _ROUND_BF16.format(r="l", x="$1")
        + _ROUND_BF16.format(r="h", x="$2")
        + "shl.b32 h, h, 16;\nor.b32 $0, l, h;\n}"
    },
)
def pack_bf16(low: Any, high: Any) -> Any:
    """Round two numbers to bfloat16 and pack them.

    One instruction since sm_80; before, the rounding is integer arithmetic: half a unit less one,
    plus one if the kept part is odd, and cut.

    Parameters
    ----------
    low, high : float32

    Returns
    -------
    uint32
    """
    return _packed(_rounded_bf16(low), _rounded_bf16(high))


@instruction(
    "cvt.rn.f16x2.f32 $0, $2, $1;",
    "u32(f32, f32)",
    since=(8, 0),
    section="cvt",
    variants={
        (5, 3): "{\n.reg .b16 l, h;\ncvt.rn.f16.f32 l, $1;\ncvt.rn.f16.f32 h, $2;\n"
        "mov.b32 $0, {l, h};\n}"
    },
)
def pack_f16(low: Any, high: Any) -> Any:
    """Round two numbers to float16 and pack them.

    One instruction since sm_80, three before. Numbers from 65520 on become ∞.

    Parameters
    ----------
    low, high : float32

    Returns
    -------
    uint32
    """
    return _packed(_rounded_f16(low), _rounded_f16(high))


@instruction(
    "{\n.reg .b32 t;\nshl.b32 t, $1, 16;\nmov.b32 $0, t;\n}",
    "f32(u32)",
    since=(5, 0),
    section="shl",
)
def bf16_low(packed: Any) -> Any:
    """Return the bfloat16 in the low half of a register.

    Since sm_20. A bfloat16 is the upper half of a float32.

    Parameters
    ----------
    packed : uint32

    Returns
    -------
    float32
    """
    return (np.asarray(packed, np.uint32) << np.uint32(16)).view(np.float32)[()]


@instruction(
    "{\n.reg .b32 t;\nand.b32 t, $1, 0xffff0000;\nmov.b32 $0, t;\n}",
    "f32(u32)",
    since=(5, 0),
    section="and",
)
def bf16_high(packed: Any) -> Any:
    """Return the bfloat16 in the high half of a register.

    Since sm_20.

    Parameters
    ----------
    packed : uint32

    Returns
    -------
    float32
    """
    return (np.asarray(packed, np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)[()]


def _f16(bits: Any) -> Any:
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)[()]


@instruction(
    "{\n.reg .b16 l, h;\nmov.b32 {l, h}, $1;\ncvt.f32.f16 $0, l;\n}",
    "f32(u32)",
    since=(5, 3),
    section="cvt",
)
def f16_low(packed: Any) -> Any:
    """Return the float16 in the low half of a register.

    Since sm_53.

    Parameters
    ----------
    packed : uint32

    Returns
    -------
    float32
    """
    return _f16(np.asarray(packed, np.uint32) & np.uint32(0xFFFF))


@instruction(
    "{\n.reg .b16 l, h;\nmov.b32 {l, h}, $1;\ncvt.f32.f16 $0, h;\n}",
    "f32(u32)",
    since=(5, 3),
    section="cvt",
)
def f16_high(packed: Any) -> Any:
    """Return the float16 in the high half of a register.

    Since sm_53.

    Parameters
    ----------
    packed : uint32

    Returns
    -------
    float32
    """
    return _f16(np.asarray(packed, np.uint32) >> np.uint32(16))
