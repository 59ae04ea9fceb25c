"""Arrays in and out: which library, which device, which dtype.

The rest of the package sees dtypes as strings (``"bfloat16"``, ``"float8_e4m3fn"`` ...) and arrays
that :func:`as_array` has accepted. Everything that is wrong with an argument *as an array* (not an
array, wrong rank, wrong dtype, wrong device) is refused here, by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "DTYPES",
    "as_array",
    "as_index_array",
    "check_same_device",
    "check_writable",
    "dtype_tag",
    "numpy_dtype",
]

DTYPES: Mapping[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
}
"""dtype tag -> NumPy dtype, for every dtype that an attention operand may have."""

_TAGS = {dtype: tag for tag, dtype in DTYPES.items()}


def numpy_dtype(tag: str) -> np.dtype[Any]:
    """Return the NumPy (or ml_dtypes) dtype of a dtype tag."""
    return DTYPES[tag]


def dtype_tag(dtype: Any, name: str = "dtype") -> str:
    """Return the tag of a dtype given as a tag, a NumPy dtype or a scalar type.

    Raises
    ------
    TypeError
        If no operand may have this dtype; ``name`` is the argument that the message names.
    """
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    try:
        # NumPy takes None for float64.
        tag = None if dtype is None else _TAGS.get(np.dtype(dtype))
    except TypeError:
        tag = None
    if tag is None:
        raise TypeError(f"{name} is {dtype!r}; accepted are {', '.join(DTYPES)}")
    return tag


def device_of(x: Any) -> str:
    """Return ``"cpu"``, ``"cuda:0"`` ... for an array of any library, or ``""`` for a non-array."""
    if isinstance(x, np.ndarray):
        return "cpu"
    if hasattr(x, "__dlpack_device__"):
        kind, index = x.__dlpack_device__()
        return "cpu" if int(kind) == 1 else f"cuda:{int(index)}"
    if hasattr(x, "__cuda_array_interface__"):
        return "cuda:0"
    return ""


def check_same_device(**arrays: Any) -> None:
    """Refuse arrays that live on different devices.

    Raises
    ------
    ValueError
        Naming the first two arguments whose devices differ.
    """
    found = [(name, device_of(x)) for name, x in arrays.items() if device_of(x)]
    for name, device in found[1:]:
        if device != found[0][1]:
            raise ValueError(
                f"{name} is on {device} and {found[0][0]} is on {found[0][1]}; "
                "all arrays of a call must be on one device"
            )


def as_array(
    name: str,
    x: Any,
    ndim: int,
    axes: str,
    dtype: str | None = None,
    why_dtype: str = "",
) -> np.ndarray[Any, Any]:
    """Accept ``x`` as a floating-point operand, or say what is wrong with it.

    Parameters
    ----------
    name
        The argument's name, for messages.
    x
        A NumPy array of a dtype in :data:`DTYPES`, any strides.
    ndim, axes
        The accepted rank, and how the axes are called.
    dtype
        ``"float8_e4m3fn"`` to read a uint8 array as FP8 codes; otherwise the dtype that ``x``
        must have, if given.
    why_dtype
        Why it must, to end the message.

    Returns
    -------
    numpy.ndarray
        ``x`` itself, or a view of it; never a copy.

    Raises
    ------
    TypeError
        Not an array of a library that this version serves, or a dtype that no operand may have.
    ValueError
        A rank that is not accepted.
    """
    if not isinstance(x, np.ndarray):
        if device_of(x).startswith("cuda"):
            raise TypeError(
                f"{name} is a GPU array ({type(x).__module__}.{type(x).__name__}); this version "
                "has no GPU kernel family yet: pass NumPy arrays, which backend='reference' serves"
            )
        raise TypeError(f"{name} is {_describe_type(x)}; accepted is a NumPy array {axes}")
    _refuse_masked(name, x)
    if dtype == "float8_e4m3fn" and x.dtype == np.uint8:
        x = x.view(DTYPES["float8_e4m3fn"])
    if x.dtype not in _TAGS:
        hint = "; pass dtype='float8_e4m3fn' to read uint8 as FP8" if x.dtype == np.uint8 else ""
        raise TypeError(f"{name} has dtype {x.dtype}; accepted are {', '.join(DTYPES)}{hint}")
    if dtype is not None and _TAGS[x.dtype] != dtype:
        raise TypeError(f"{name} has dtype {x.dtype}; accepted is {dtype}{why_dtype}")
    if x.ndim != ndim:
        raise ValueError(
            f"{name} has {x.ndim} dimensions, shape {x.shape}; accepted are {ndim}: {axes}"
        )
    return x


def as_index_array(
    name: str, x: Any, shape: tuple[int | None, ...], axes: str
) -> np.ndarray[Any, Any]:
    """Accept ``x`` as an int32 index array of the given shape (None: any size on that axis).

    Raises
    ------
    TypeError
        Not a NumPy array, or not int32.
    ValueError
        A rank or a length that is not accepted.
    """
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} is {_describe_type(x)}; accepted is an int32 array {axes}")
    _refuse_masked(name, x)
    if x.dtype != np.int32:
        raise TypeError(f"{name} has dtype {x.dtype}; accepted is int32 {axes}")
    if x.ndim != len(shape) or any(
        want is not None and got != want for got, want in zip(x.shape, shape, strict=True)
    ):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} has shape {x.shape}; accepted is {axes} = ({wanted})")
    return x


def check_shapes_equal(names: Sequence[str], shapes: Sequence[tuple[int, ...]], what: str) -> None:
    """Refuse arguments whose shapes must be equal and are not."""
    for name, shape in zip(names[1:], shapes[1:], strict=True):
        if shape != shapes[0]:
            raise ValueError(
                f"{name} has shape {shape} and {names[0]} has shape {shapes[0]}; {what}"
            )


def check_writable(name: str, x: np.ndarray[Any, Any]) -> None:
    """Refuse an array that cannot hold a result: read-only, or rows that share memory.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    if not x.flags.writeable:
        raise ValueError(f"{name} is read-only; accepted is an array that can be written")
    if x.size and any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.strides, strict=True)):
        raise ValueError(
            f"{name} has strides {x.strides} for shape {x.shape}, so some of its elements are one; "
            "accepted is an array in which each has its own memory, such as a copy"
        )


def _refuse_masked(name: str, x: np.ndarray[Any, Any]) -> None:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, and its mask would be ignored; accepted are plain arrays: "
            "pass its .data, and say which keys count with the mask flags or with lengths"
        )


def _describe_type(x: Any) -> str:
    return "None" if x is None else f"a {type(x).__name__}"
