"""Padded batches to packed ones and back."""

from typing import Any

import numpy as np

from fa_numba.problem import as_int

__all__ = ["pad_input", "unpad_input"]

Array = np.ndarray[Any, Any]


def unpad_input(x: Array, mask: Array) -> tuple[Array, Array, Array, int]:
    """Pack the real tokens of a padded batch, for the varlen functions.

    Parameters
    ----------
    x
        (batch, seqlen, ...), any dtype.
    mask
        (batch, seqlen), bool or integer; non-zero marks a real token. Real tokens need not be
        contiguous; their order is kept.

    Returns
    -------
    packed : numpy.ndarray
        (total, ...), the real tokens, sequence after sequence.
    indices : numpy.ndarray
        (total,) int64, each token's position in the flattened (batch * seqlen) axis.
    cu_seqlens : numpy.ndarray
        (batch + 1,) int32, prefix sums of the lengths.
    max_seqlen : int
        The longest length, 0 for an empty batch.

    Raises
    ------
    TypeError
        If an argument is not a NumPy array or the mask is neither bool nor integer.
    ValueError
        If the mask's shape is not x's first two dimensions.

    See Also
    --------
    pad_input : The inverse.
    """
    for name, array in (("x", x), ("mask", mask)):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name} is a {type(array).__name__}; accepted is a NumPy array")
    if mask.dtype.kind not in "bui":
        raise TypeError(f"mask has dtype {mask.dtype}; accepted are bool and integers")
    if x.ndim < 2 or mask.shape != x.shape[:2]:
        raise ValueError(
            f"mask has shape {mask.shape} and x has shape {x.shape}; "
            "accepted is a mask (batch, seqlen) for x (batch, seqlen, ...)"
        )
    real = mask != 0
    lengths = real.sum(axis=1)
    indices = np.flatnonzero(real)
    cu_seqlens = np.zeros(x.shape[0] + 1, np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    return x[real], indices, cu_seqlens, int(lengths.max(initial=0))


def pad_input(packed: Array, indices: Array, batch: int, seqlen: int) -> Array:
    """Spread packed tokens over a padded batch; the padding is zero.

    Parameters
    ----------
    packed
        (total, ...), the real tokens.
    indices
        (total,) integers, as :func:`unpad_input` returns them.
    batch, seqlen
        Shape of the padded batch.

    Returns
    -------
    numpy.ndarray
        (batch, seqlen, ...) in packed's dtype.

    Raises
    ------
    TypeError
        If indices are not an integer array.
    ValueError
        If the indices do not fit packed or the padded batch.
    """
    batch, seqlen = as_int("batch", batch, low=0), as_int("seqlen", seqlen, low=0)
    if not isinstance(packed, np.ndarray):
        raise TypeError(f"packed is a {type(packed).__name__}; accepted is a NumPy array")
    if not isinstance(indices, np.ndarray) or indices.dtype.kind not in "ui":
        raise TypeError("indices is not an integer array; accepted is what unpad_input returns")
    if packed.ndim < 1 or indices.shape != packed.shape[:1]:
        raise ValueError(
            f"indices has shape {indices.shape} and packed has shape {packed.shape}; "
            "accepted is one index for each row"
        )
    if indices.size and (indices.min() < 0 or indices.max() >= batch * seqlen):
        raise ValueError(
            f"indices reach from {indices.min()} to {indices.max()}; "
            f"accepted are 0 to batch * seqlen - 1 = {batch * seqlen - 1}"
        )
    padded = np.zeros((batch * seqlen, *packed.shape[1:]), packed.dtype)
    padded[indices] = packed
    return padded.reshape(batch, seqlen, *packed.shape[1:])
