"""Matrix products without tensor cores: for old GPUs, for float32, and to be read first.

A warp multiplies 16 rows of A with B, both in shared memory, into an accumulator with the layout of
``mma.m16n8``: thread by thread, each its own elements, one fma at a time.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from fa_numba.device.ops.builder import Composite, column_of_element, row_of_element
from fa_numba.device.ops.convert import bf16_low, f16_low
from fa_numba.device.ops.declare import Op
from fa_numba.device.ops.index import lane
from fa_numba.device.ops.memory import load_shared_f32, load_shared_u16
from fa_numba.device.ops.scalar import fma

__all__ = ["gemm_simt"]

# dtype: the load, the conversion to float32, and what NumPy calls the bytes
_ELEMENTS: dict[str, tuple[Op, Op | None, Any]] = {
    "float32": (load_shared_f32, None, np.float32),
    "float16": (load_shared_u16, f16_low, np.float16),
    "bfloat16": (load_shared_u16, bf16_low, np.uint16),
}


@cache
def gemm_simt(dtype: str) -> Composite:
    """Return the op that adds a product of two matrices in shared memory to an accumulator.

    A factory: call it outside the kernel, and the result inside, as ``gemm(acc, a, a_row_stride,
    a_k_stride, b, b_k_stride, b_col_stride, k)``.

    Parameters
    ----------
    dtype : {"float32", "float16", "bfloat16"}
        Of A and B. Products and sums are float32.

    Returns
    -------
    op
        acc + A · B. Its parameters:

        - ``acc``: float32[n], accumulator of 2n columns; n is a multiple of 4.
        - ``a``: uint32, address of A[0, 0] for this warp's 16 rows.
        - ``a_row_stride``, ``a_k_stride``: uint32, bytes between rows of A, and along the
          contraction.
        - ``b``: uint32, address of B[0, 0].
        - ``b_k_stride``, ``b_col_stride``: uint32, bytes along the contraction, and between columns
          of B. For a product with Bᵀ exchange them.
        - ``k``: int32, length of the contraction.

    Raises
    ------
    ValueError
        If the dtype is another.

    Notes
    -----
    The emulation is one NumPy product a thread. It announces what it reads to the race detector:
    the thread's two rows of A exactly, and of B, where its columns are neighbours in memory, the
    whole span of columns that the quad reads together.
    """
    if dtype not in _ELEMENTS:
        raise ValueError(f"dtype is {dtype!r}; accepted are {', '.join(_ELEMENTS)}")
    load, convert, storage = _ELEMENTS[dtype]

    def gemm(
        b: Any,
        acc: Any,
        a: Any,
        a_row_stride: Any,
        a_k_stride: Any,
        b_address: Any,
        b_k_stride: Any,
        b_col_stride: Any,
        k: Any,
    ) -> Any:
        """Return acc + A · B; see `gemm_simt`."""
        calc = b.integer

        def read(address: Any) -> Any:
            value = b.map(load, address)
            return value if convert is None else b.map(convert, value)

        me = b.map(lane)
        first_row = calc("+", a, calc("*", calc(">>", me, 2), a_row_stride))
        rows = [first_row, calc("+", first_row, calc("*", a_row_stride, 8))]
        first_column = calc("*", calc("&", me, 3), 2)
        columns = [
            calc("+", b_address, calc("*", calc("+", first_column, offset), b_col_stride))
            for offset in _column_offsets(len(acc))
        ]

        def step(i: Any, sums: Any) -> Any:
            row_values = [read(calc("+", row, calc("*", i, a_k_stride))) for row in rows]
            shift = calc("*", i, b_k_stride)
            column_values = [read(calc("+", column, shift)) for column in columns]
            return b.join(
                *[
                    b.map(fma, row_values[r], column_values[c], sums[element])
                    for element, (r, c) in enumerate(_places(len(acc)))
                ]
            )

        return b.loop(k, acc, step)

    def emulate(thread: Any, acc: Any, *operands: int) -> Any:
        return _emulate(thread, storage, acc, *operands)

    gemm.__name__ = gemm.__qualname__ = f"gemm_simt_{dtype}"
    return Composite(
        gemm,
        "f32[n](f32[n], u32, u32, u32, u32, u32, u32, i32)",
        since=(5, 3),
        section="fma, ld.shared",
        side_effect=True,
        cycles=256,
        emulation=emulate,
    )


def _column_offsets(size: int) -> list[int]:
    """Return the columns of a thread's accumulator, counted from its first."""
    return sorted({column_of_element(i) for i in range(size)})


def _places(size: int) -> list[tuple[int, int]]:
    """Return for each element of an accumulator its row (0 or 1) and the number of its column."""
    number = {offset: i for i, offset in enumerate(_column_offsets(size))}
    return [(row_of_element(i), number[column_of_element(i)]) for i in range(size)]


def _emulate(
    thread: Any,
    storage: Any,
    acc: Any,
    a: int,
    a_row_stride: int,
    a_k_stride: int,
    b: int,
    b_k_stride: int,
    b_col_stride: int,
    k: int,
) -> Any:
    if k <= 0:
        return acc
    steps = np.arange(k)
    rows = np.array([thread.lane // 4, thread.lane // 4 + 8])
    columns = 2 * (thread.lane % 4) + np.array(_column_offsets(len(acc)))
    left_at = a + rows[:, None] * a_row_stride + steps * a_k_stride
    right_at = b + columns[:, None] * b_col_stride + steps * b_k_stride
    size = np.dtype(storage).itemsize
    for addresses in (left_at, right_at):
        wrong = addresses[addresses % size != 0]
        if len(wrong):
            thread.shared_read(int(wrong[0]), size, size)  # reports it
    span = right_at
    if b_col_stride == size:
        quad_columns = np.arange(columns[0] // 8 * 8, columns[-1] // 8 * 8 + 8)
        span = b + quad_columns[:, None] * b_col_stride + steps * b_k_stride
    thread.shared_read_ranges([*_ranges(left_at, size), *_ranges(span, size)])
    left = _gather(thread.block.shared, left_at, storage)
    right = _gather(thread.block.shared, right_at, storage)
    product = left @ right.T
    result = acc + np.array([product[place] for place in _places(len(acc))], np.float32)
    result.flags.writeable = False
    return result


def _ranges(addresses: Any, size: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of elements, neighbours joined."""
    starts = np.unique(addresses)
    breaks = np.flatnonzero(np.diff(starts) != size) + 1
    for run in np.split(starts, breaks):
        yield int(run[0]), int(run[-1]) + size


def _gather(shared: Any, addresses: Any, storage: Any) -> Any:
    """Return the elements at addresses in shared memory as float32."""
    size = np.dtype(storage).itemsize
    found = shared.bytes[(addresses - shared.base)[..., None] + np.arange(size)]
    elements = np.ascontiguousarray(found).view(storage)[..., 0]
    if storage is np.uint16:
        return (elements.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return elements.astype(np.float32)
