"""What a row softmax must compute: inputs with every difficulty, the truth, and the verdict."""

from __future__ import annotations

from typing import Any

import numpy as np

from fa_numba.reference.attention import round_through
from tests.tolerance import DTYPES, assert_lse, assert_out, truth_and_lowprec


def dense_softmax(
    x: np.ndarray, *, compute_dtype: Any = np.float64, round_to: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return softmax and natural-log lse of every row, in one piece."""
    x = x.astype(compute_dtype)
    top = x.max(axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp(x - np.where(top == -np.inf, 0, top))
    total = weights.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + top
    weights = round_through(weights, round_to)
    return round_through(weights / np.where(total == 0, 1, total), round_to), lse[:, 0]


def make_scores(rows: int, cols: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Return scores below 0 that rise to the right, with -inf in some places and whole rows.

    Zeros that slip in from a tail would be the largest of all, and an online maximum has to be
    corrected at almost every tile.
    """
    rng = np.random.default_rng(seed)
    x = -np.abs(rng.standard_normal((rows, cols))) * 3 - 2 - np.linspace(6, 0, cols)
    x[rng.random((rows, cols)) < 0.1] = -np.inf
    x[1::5] = -np.inf
    # A first tile without any score, and a last one.
    x[2::5, : cols * 2 // 3] = -np.inf
    x[3::5, cols // 3 :] = -np.inf
    x[4::5] *= 100
    return x.astype(DTYPES[dtype])


def pitch_of(cols: int, dtype: str, kind: str) -> int:
    """Return the elements from one row to the next in a layout."""
    if kind == "contiguous":
        return cols
    chunk = 16 // DTYPES[dtype].itemsize
    return -(-cols // chunk) * chunk + 8


def layout(rows: int, cols: int, dtype: str, kind: str, byte: int = 0xFF) -> np.ndarray:
    """Return a (rows, cols) array in memory full of `byte`, its rows as `kind` says.

    ``contiguous``; ``aligned``: rows begin at multiples of 16 bytes; ``shifted``: the first does
    not; ``reversed``: each row lies before the last one.
    """
    itemsize = DTYPES[dtype].itemsize
    pitch = pitch_of(cols, dtype, kind)
    memory = np.full((rows * pitch + 1) * itemsize + 16, byte, np.uint8)
    memory = memory[-memory.ctypes.data % 16 :]
    memory = memory[: (rows * pitch + 1) * itemsize].view(DTYPES[dtype])
    return cut(memory, rows, cols, pitch, kind)


def cut(memory: Any, rows: int, cols: int, pitch: int, kind: str) -> Any:
    """Return the matrix that lies in a vector of ``rows * pitch + 1`` elements."""
    shift = int(kind == "shifted")
    array = memory[shift : shift + rows * pitch].reshape(rows, pitch)[:, :cols]
    return array[::-1] if kind == "reversed" else array


def place(x: np.ndarray, dtype: str, kind: str) -> np.ndarray:
    """Return a copy of x in a layout."""
    copy = layout(*x.shape, dtype, kind)
    copy[...] = x
    return copy


def assert_row_softmax(out: np.ndarray, lse: np.ndarray, x: np.ndarray, dtype: str) -> None:
    """Assert that out and lse are the softmax and the lse of x."""
    (ref, ref_lse), (lowprec, _) = truth_and_lowprec(dense_softmax, x, dtype=dtype)
    assert out.dtype == DTYPES[dtype]
    np.testing.assert_array_equal(out[np.isneginf(x)], 0)
    assert_lse(lse, ref_lse, dtype)
    assert_out(out, ref, lowprec, dtype)
