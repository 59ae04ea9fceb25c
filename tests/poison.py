"""Fresh memory that is never zero by luck.

A kernel or a loop that reads what it did not write often passes, because new pages are zero. Run it
twice, with every new allocation filled with 0xFF bytes (NaN in every float type) and with 0x00: the
results must be equal bit for bit.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

FILLS = (0xFF, 0x00)


def poison(array: np.ndarray, byte: int) -> np.ndarray:
    """Fill the memory of an array that owns it with one byte, and return the array."""
    if not array.dtype.hasobject:
        ctypes.memset(array.ctypes.data, byte, array.nbytes)
    return array


@contextlib.contextmanager
def poisoned_allocations(byte: int) -> Iterator[None]:
    """Within the context, `numpy.empty` and `numpy.empty_like` return memory full of `byte`."""

    def filled(allocate: Any) -> Any:
        return lambda *args, **kwargs: poison(allocate(*args, **kwargs), byte)

    with (
        mock.patch.object(np, "empty", filled(np.empty)),
        mock.patch.object(np, "empty_like", filled(np.empty_like)),
    ):
        yield
