"""The types of kernels: parameter annotations, casts, and what ops take and give.

A kernel declares its parameters with these objects and casts with them::

    def scale(x: ptr, n: int32, factor: float32): ...
        i = uint32(block_index_x() * 256)

In the emulator a cast is a call of the object. For the GPU it is replaced by Numba's type of the
same name. Numba computes integers in 64 bits and wraps only at a cast or at an op's argument;
a cast here does the same.

A *fragment* is several 32-bit registers of one thread that belong together, such as its part of a
tile. In the emulator it is a read-only NumPy array, on the GPU a tuple of Numba. Both can be
indexed and unpacked; a fragment is also made by writing a tuple.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fa_numba.device.emulator import state

__all__ = [
    "DeviceType",
    "FragmentType",
    "boolean",
    "float32",
    "inout_ptr",
    "int32",
    "int64",
    "out_ptr",
    "parse_type",
    "ptr",
    "uint32",
    "uint64",
]


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A scalar type of kernels.

    Attributes
    ----------
    name : str
        As a kernel spells it.
    tag : str
        As an op's signature spells it.
    numba_name : str
        The Numba type that it becomes on the GPU.
    ptx_constraint : str
        The register class in inline PTX.
    itemsize : int
        Bytes.
    convert : callable
        The cast, on the host: a Python integer in range, or a numpy.float32.
    role : str
        For parameters that are addresses: ``"in"``, ``"out"`` (the launch writes every byte of the
        array passed) or ``"inout"``; ``""`` for plain numbers.
    """

    name: str
    tag: str
    numba_name: str
    ptx_constraint: str
    itemsize: int
    convert: Callable[[Any], Any]
    role: str = ""

    def __call__(self, value: Any) -> Any:
        """Cast a value, wrapping integers as the hardware does."""
        number = self.convert(value)
        return number if state.strict is None else state.strict(self.tag, number)

    @property
    def _numba_type_(self) -> Any:
        """What Numba takes the object for, asked when a kernel names it."""
        from fa_numba.device.lowering import cast_type

        return cast_type(self)

    def __repr__(self) -> str:
        """Return the name."""
        return self.name


def _wrap(bits: int, *, signed: bool) -> Callable[[Any], int]:
    modulus, half = 1 << bits, 1 << (bits - 1)

    def wrap(value: Any) -> int:
        number = int(value) & (modulus - 1)
        return number - modulus if signed and number >= half else number

    return wrap


int32 = DeviceType("int32", "i32", "int32", "r", 4, _wrap(32, signed=True))
uint32 = DeviceType("uint32", "u32", "uint32", "r", 4, _wrap(32, signed=False))
int64 = DeviceType("int64", "i64", "int64", "l", 8, _wrap(64, signed=True))
uint64 = DeviceType("uint64", "u64", "uint64", "l", 8, _wrap(64, signed=False))
float32 = DeviceType("float32", "f32", "float32", "f", 4, np.float32)
boolean = DeviceType("boolean", "pred", "boolean", "r", 4, bool)
ptr = DeviceType("ptr", "u64", "uint64", "l", 8, uint64.convert, role="in")
out_ptr = DeviceType("out_ptr", "u64", "uint64", "l", 8, uint64.convert, role="out")
inout_ptr = DeviceType("inout_ptr", "u64", "uint64", "l", 8, uint64.convert, role="inout")

_BY_TAG = {t.tag: t for t in (int32, uint32, int64, uint64, float32, boolean)}
_DTYPES = {"f32": np.dtype(np.float32), "u32": np.dtype(np.uint32)}


@dataclass(frozen=True, slots=True)
class FragmentType:
    """Registers of one element type.

    Attributes
    ----------
    element : DeviceType
        `float32` or `uint32` (any 32 bits, for instance two packed 16-bit numbers).
    size : str
        How many: a number, or ``"n"`` where an op takes any number. In a result ``"n/2"`` and
        ``"2n"`` refer to that.
    """

    element: DeviceType
    size: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's name of the element type."""
        return _DTYPES[self.element.tag]

    def count(self, n: int) -> int:
        """Return how many registers that is for an op called with `n`."""
        if self.size.endswith("n"):
            return n * int(self.size[:-1] or 1)
        if self.size == "n/2":
            return n // 2
        return int(self.size)

    def convert(self, value: npt.NDArray[Any] | Sequence[Any]) -> npt.NDArray[Any]:
        """Return `value`, a fragment or the sequence of its elements, as a read-only array.

        Raises
        ------
        TypeError
            If it is not a fragment of this size.
        """
        if not (isinstance(value, np.ndarray) and value.dtype == self.dtype and value.ndim == 1):
            if not isinstance(value, Sequence | np.ndarray):
                raise TypeError(f"expected a fragment {self!r}, got {value!r}")
            value = np.array([self.element.convert(x) for x in value], self.dtype)
            value.flags.writeable = False
        if self.size != "n" and len(value) != int(self.size):
            raise TypeError(f"expected a fragment {self!r}, got one of {len(value)} registers")
        return value

    def __repr__(self) -> str:
        """Return it as a signature spells it."""
        return f"{self.element.tag}[{self.size}]"


def parse_type(text: str) -> DeviceType | FragmentType | None:
    """Return the type that an op's signature spells ``f32``, ``u32[4]``, ``f32[n]`` or ``void``."""
    if text == "void":
        return None
    tag, bracket, size = text.partition("[")
    if bracket:
        return FragmentType(_BY_TAG[tag], size.removesuffix("]"))
    return _BY_TAG[tag]
