"""Integers that follow Numba's rules, for ``emulate(strict=True)``.

Numba computes integers in 64 bits. ``+ - * // % & | ^`` give a signed result if either side is
signed, and a literal is signed; shifts keep the sign of their left side. The result wraps at 64
bits, at 32 only in a cast or as an op's argument. ``/`` gives float64, and so does an integer with
a float32: on a GPU that is slow arithmetic that nobody asked for, so it is reported.

A plain Python integer (a literal, a loop variable of ``range``) counts as int64. A float32 with a
literal cannot be seen here; the lint of the compiled kernel finds it.
"""

import operator
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from fa_numba.device.emulator import state

__all__ = ["STRICT_TYPES", "Int32", "Int64", "StrictInt", "UInt32", "UInt64", "typed"]


class StrictInt(int):
    """An integer of a fixed type."""

    bits: ClassVar[int] = 64
    signed: ClassVar[bool] = True

    # NumPy's scalars leave arithmetic with us to our reflected methods.
    __array_ufunc__ = None

    def __new__(cls, value: Any = 0) -> Self:
        """Wrap a value."""
        number = int(value) & ((1 << cls.bits) - 1)
        if cls.signed and number >> (cls.bits - 1):
            number -= 1 << cls.bits
        return super().__new__(cls, number)

    def __repr__(self) -> str:
        """Return value and type."""
        return f"{type(self).__name__}({int(self)})"

    def __str__(self) -> str:
        """Return the value."""
        return int.__repr__(self)

    def __neg__(self) -> "StrictInt":
        """Return -self in 64 bits."""
        return _result(self)(-int(self))

    def __invert__(self) -> "StrictInt":
        """Return ~self in 64 bits."""
        return _result(self)(~int(self))

    def __pos__(self) -> Self:
        """Return self."""
        return self

    def __abs__(self) -> Self:
        """Return the magnitude in the same type."""
        return type(self)(abs(int(self)))


class Int32(StrictInt):
    """A signed integer of 32 bits."""

    bits = 32


class UInt32(StrictInt):
    """An unsigned integer of 32 bits."""

    bits = 32
    signed = False


class Int64(StrictInt):
    """A signed integer of 64 bits."""


class UInt64(StrictInt):
    """An unsigned integer of 64 bits."""

    signed = False


_INTEGERS = (int, np.integer, np.bool)

STRICT_TYPES: dict[str, type[StrictInt]] = {
    "i32": Int32,
    "u32": UInt32,
    "i64": Int64,
    "u64": UInt64,
}
"""The types by an op's tag."""


def typed(tag: str | None, value: Any) -> Any:
    """Return a value as the integer type that an op's signature calls `tag`; others as they are."""
    kind = STRICT_TYPES.get(tag) if tag is not None else None
    return value if kind is None else kind(value)


def _result(*operands: Any) -> type[StrictInt]:
    """Return the type of what operands give: signed if one of them is."""
    return Int64 if any(_is_signed(x) for x in operands) else UInt64


def _is_signed(value: Any) -> bool:
    if isinstance(value, StrictInt):
        return value.signed
    return not isinstance(value, np.unsignedinteger)


def _mixed(left: Any, right: Any, compute: Callable[[Any, Any], Any]) -> Any:
    """Compute with a float: float64, which is reported."""
    thread = state.current
    if thread is not None:
        # The kernel's line is outside this file, where reports look for it.
        thread.op, thread.frame = None, sys._getframe()
        text = (
            f"{_type_name(left)} and {_type_name(right)} make float64; cast the integer to float32"
        )
        thread.hazard("float64", text)
    return compute(np.float64(left), np.float64(right))


def _type_name(value: Any) -> str:
    if isinstance(value, StrictInt):
        return type(value).__name__.lower()
    return str(value.dtype) if isinstance(value, np.generic) else type(value).__name__


def _install(name: str, compute: Callable[[Any, Any], Any], *, shift: bool = False) -> None:
    """Give `StrictInt` an operator and its reflection."""

    def apply(left: Any, right: Any) -> Any:
        if isinstance(left, float | np.floating) or isinstance(right, float | np.floating):
            return _mixed(left, right, compute)
        if not isinstance(left, _INTEGERS) or not isinstance(right, _INTEGERS):
            return NotImplemented
        kind = _result(left) if shift else _result(left, right)
        return kind(compute(int(left), int(right)))

    def reflected(self: StrictInt, other: Any) -> Any:
        return apply(other, self)

    setattr(StrictInt, f"__{name}__", apply)
    setattr(StrictInt, f"__r{name}__", reflected)


for _name, _compute in {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}.items():
    _install(_name, _compute)
_install("lshift", operator.lshift, shift=True)
_install("rshift", operator.rshift, shift=True)


def _divide(left: Any, right: Any) -> Any:
    if not isinstance(left, int | float | np.generic) or not isinstance(
        right, int | float | np.generic
    ):
        return NotImplemented
    return _mixed(left, right, operator.truediv)


setattr(StrictInt, "__truediv__", _divide)  # noqa: B010, as above
setattr(StrictInt, "__rtruediv__", lambda self, other: _divide(other, self))  # noqa: B010
