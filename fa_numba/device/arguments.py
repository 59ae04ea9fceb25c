"""Arguments of a launch on the GPU: from Python objects to the bits that a kernel gets."""

import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fa_numba.device.types import DeviceType

__all__ = ["converter", "is_cupy_type", "packer"]

_RANGES = {
    "i32": (-(2**31), 2**31 - 1),
    "u32": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**64 - 1),
}
_pointer_getters: dict[type, Callable[[Any], int]] = {}
_cupy_types: set[type] = set()

is_cupy_type = _cupy_types.__contains__
"""Tells whether a type is CuPy's; known once a `packer` or a `converter` has met it."""


def packer(parameters: Mapping[str, DeviceType]) -> Callable[..., tuple[Any, ...]]:
    """Return what turns all arguments of a launch at once into what cuda.core passes.

    A call for each argument would cost more than the launch itself. So the function is written out
    for the kernel, an expression a parameter, as the ``__init__`` of a dataclass is; what is not an
    array of CuPy or a Python integer in range goes through the parameter's `converter`.

    Parameters
    ----------
    parameters : mapping of str to DeviceType
        A kernel's.

    Returns
    -------
    callable
        Takes the arguments one by one.
    """
    cupy = sys.modules.get("cupy")
    namespace: dict[str, Any] = {"ndarray": getattr(cupy, "ndarray", None)}
    names, values = [], []
    for i, (name, t) in enumerate(parameters.items()):
        namespace[f"convert{i}"] = converter(name, t)
        if t.role:
            value = f"a{i}.data.ptr if type(a{i}) is ndarray else "
        elif t.tag in _RANGES:
            lowest, highest = _RANGES[t.tag]
            highest = min(highest, 2**63 - 1)
            value = f"a{i} if type(a{i}) is int and {lowest} <= a{i} <= {highest} else "
        else:
            value = ""
        names.append(f"a{i}")
        values.append(f"{value}convert{i}(a{i}),")
    exec(f"def pack({', '.join(names)}):\n    return ({' '.join(values)})", namespace)
    if cupy is not None:
        _cupy_types.add(cupy.ndarray)
    pack: Callable[..., tuple[Any, ...]] = namespace["pack"]
    return pack


def converter(name: str, t: DeviceType) -> Callable[[Any], Any]:
    """Return what turns an argument into what cuda.core passes with the right bits.

    Parameters
    ----------
    name : str
        The parameter's, for errors.
    t : DeviceType
        Its type.

    Returns
    -------
    callable
        Takes an argument.
    """
    if t.role:
        return _pointer_converter(name)
    if t.tag == "f32":
        return t.convert
    lowest, highest = _RANGES[t.tag]

    def convert(value: Any) -> int:
        # cuda.core passes 8 bytes, of which a 4-byte parameter takes the low ones.
        try:
            number = operator.index(value)
        except TypeError:
            raise TypeError(f"{name} is {value!r}; accepted is an integer") from None
        if lowest <= number <= highest:
            return number if number < 2**63 else number - 2**64
        raise OverflowError(f"{name} is {number}; accepted are {lowest} to {highest}")

    return convert


def _pointer_converter(name: str) -> Callable[[Any], int]:
    getters = _pointer_getters

    def convert(value: Any) -> int:
        get = getters.get(type(value))
        return _new_pointer_getter(name, type(value))(value) if get is None else get(value)

    return convert


def _new_pointer_getter(name: str, kind: type) -> Callable[[Any], int]:
    """Return, and remember, what gives the address of a kind of array."""
    get: Callable[[Any], int]
    if issubclass(kind, int):
        get = int
    elif kind.__module__.partition(".")[0] == "cupy":
        get = operator.attrgetter("data.ptr")
        _cupy_types.add(kind)
    elif hasattr(kind, "__cuda_array_interface__"):
        get = _interface_pointer
    else:
        raise TypeError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}; accepted on the GPU are arrays "
            "with __cuda_array_interface__, such as those of CuPy, and addresses"
        )
    _pointer_getters[kind] = get
    return get


def _interface_pointer(array: Any) -> int:
    return array.__cuda_array_interface__["data"][0]
