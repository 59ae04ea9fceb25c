"""Register fragments as such: made, added, packed, taken apart.

What depends on rows and columns is in `fa_numba.device.ops.rows`.
"""

from functools import cache
from typing import Any

from fa_numba.device.ops.builder import Composite, composite
from fa_numba.device.ops.convert import (
    bf16_high,
    bf16_low,
    f16_high,
    f16_low,
    pack_bf16,
    pack_f16,
)
from fa_numba.device.ops.scalar import add, float_bits, float_from_bits, mul, select_less_i32

__all__ = [
    "add_fragments",
    "element",
    "fragment_bits",
    "fragment_from_bits",
    "from_bf16",
    "from_f16",
    "full",
    "mul_fragments",
    "to_bf16",
    "to_f16",
    "with_element",
    "zeros",
]


@cache
def zeros(size: int) -> Composite:
    """Return the op that returns a fragment of `size` zeros.

    A factory: call it outside the kernel, and the result inside.

    Parameters
    ----------
    size : int
        Registers: half the columns of the tile, for an accumulator.

    Returns
    -------
    op
        Takes nothing, returns float32[size].

    Examples
    --------
    >>> zero_acc = zeros(4)
    >>> zero_acc()
    array([0., 0., 0., 0.], dtype=float32)
    """

    @composite(f"f32[{size}]()", since=(5, 0), section="mov", cycles=size, name=f"zeros_{size}")
    def make(b: Any) -> Any:
        """Return a fragment of zeros."""
        return b.fill(size, 0.0)

    return make


@cache
def full(size: int) -> Composite:
    """Return the op that returns a fragment with one value in `size` elements.

    A factory: call it outside the kernel, and the result inside.

    Parameters
    ----------
    size : int
        Registers.

    Returns
    -------
    op
        Takes a float32, returns float32[size].
    """

    @composite(f"f32[{size}](f32)", since=(5, 0), section="mov", cycles=size, name=f"full_{size}")
    def make(b: Any, value: Any) -> Any:
        """Return a fragment full of `value`."""
        return b.fill(size, value)

    return make


@composite("f32[n](f32[n], f32[n])", since=(5, 0), section="add", cycles=8)
def add_fragments(b: Any, x: Any, y: Any) -> Any:
    """Return x + y, element by element.

    In a kernel ``x + y`` is not the same: Numba joins tuples.

    Parameters
    ----------
    x, y : float32[n]

    Returns
    -------
    float32[n]
    """
    return b.map(add, x, y)


@composite("f32[n](f32[n], f32[n])", since=(5, 0), section="mul", cycles=8)
def mul_fragments(b: Any, x: Any, y: Any) -> Any:
    """Return x · y, element by element.

    Parameters
    ----------
    x, y : float32[n]

    Returns
    -------
    float32[n]
    """
    return b.map(mul, x, y)


@composite("f32(f32[n], i32)", since=(5, 0), section="selp", cycles=8)
def element(b: Any, fragment: Any, index: Any) -> Any:
    """Return one element, chosen at run time.

    Registers have no addresses, so that this is n selections; with a constant write
    ``fragment[3]``, which is free.

    Parameters
    ----------
    fragment : float32[n]
    index : int32
        0 ≤ index < n; beyond, the nearest end is meant.

    Returns
    -------
    float32
    """
    found = fragment[0]
    for i in range(1, len(fragment)):
        found = b.map(select_less_i32, index, i, found, fragment[i])
    return found


@composite("f32[n](f32[n], i32, f32)", since=(5, 0), section="selp", cycles=16)
def with_element(b: Any, fragment: Any, index: Any, value: Any) -> Any:
    """Return the fragment with one element replaced.

    Parameters
    ----------
    fragment : float32[n]
    index : int32
        Which one; if it is outside 0 ≤ index < n, nothing is replaced.
    value : float32

    Returns
    -------
    float32[n]
    """
    numbers = b.constants(range(len(fragment)))
    from_here = b.map(select_less_i32, numbers, index, fragment, value)
    return b.map(select_less_i32, index, numbers, fragment, from_here)


@composite("u32[n/2](f32[n])", since=(8, 0), section="cvt", cycles=8)
def to_bf16(b: Any, fragment: Any) -> Any:
    """Round to bfloat16 and pack neighbours: element 2i in the low half of register i.

    An accumulator becomes the A operand of the next ``mma.m16n8k16`` by this alone.

    Parameters
    ----------
    fragment : float32[n]
        n is even.

    Returns
    -------
    uint32[n/2]
        Round to nearest even; NaN stays NaN. Below sm_80 with integer arithmetic.
    """
    return b.map(pack_bf16, fragment[0::2], fragment[1::2])


@composite("u32[n/2](f32[n])", since=(8, 0), section="cvt", cycles=8)
def to_f16(b: Any, fragment: Any) -> Any:
    """Round to float16 and pack neighbours: element 2i in the low half of register i.

    Parameters
    ----------
    fragment : float32[n]
        n is even.

    Returns
    -------
    uint32[n/2]
        Round to nearest even; above 65504 + half a step to ∞.
    """
    return b.map(pack_f16, fragment[0::2], fragment[1::2])


@composite("f32[2n](u32[n])", since=(5, 0), section="shl", cycles=8)
def from_bf16(b: Any, packed: Any) -> Any:
    """Unpack bfloat16 numbers; the inverse of `to_bf16`.

    Parameters
    ----------
    packed : uint32[n]

    Returns
    -------
    float32[2n]
    """
    return b.interleave(b.map(bf16_low, packed), b.map(bf16_high, packed))


@composite("f32[2n](u32[n])", since=(5, 3), section="cvt", cycles=8)
def from_f16(b: Any, packed: Any) -> Any:
    """Unpack float16 numbers; the inverse of `to_f16`.

    Parameters
    ----------
    packed : uint32[n]

    Returns
    -------
    float32[2n]
    """
    return b.interleave(b.map(f16_low, packed), b.map(f16_high, packed))


@composite("u32[n](f32[n])", since=(5, 0), section="mov")
def fragment_bits(b: Any, fragment: Any) -> Any:
    """Return the bits of each element. Costs nothing.

    Parameters
    ----------
    fragment : float32[n]

    Returns
    -------
    uint32[n]
    """
    return b.map(float_bits, fragment)


@composite("f32[n](u32[n])", since=(5, 0), section="mov")
def fragment_from_bits(b: Any, bits: Any) -> Any:
    """Return the float32 numbers with these bits. Costs nothing.

    Parameters
    ----------
    bits : uint32[n]

    Returns
    -------
    float32[n]
    """
    return b.map(float_from_bits, bits)
