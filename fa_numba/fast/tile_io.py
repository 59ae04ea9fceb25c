"""Tiles between global memory, shared memory and registers.

A tile of a matrix lies in shared memory in *slabs* of 64 columns, one behind the other. A slab is
stored row by row, in chunks of 16 bytes that are permuted by an XOR with the number of the 128-byte
line (`fa_numba.indexing.swizzle`). Threads move a tile in two patterns. To and from global memory
they take chunks in reading order, so that neighbouring threads touch neighbouring addresses. To and
from registers a thread takes the elements that the accumulator layout gives it
(`fa_numba.indexing.fragment_layout`): two of row ``lane // 4`` and two of the row 8 below, every 8
columns. Thanks to the permutation neither pattern hits a bank of shared memory twice.

Every stage is called by all threads of the block, and none contains a barrier: the kernel places
them, and says why. It needs one only where the pattern changes: in either pattern a thread comes
back to the bytes that it had before.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from fa_numba.device.ops import (
    fragment_bits,
    fragment_from_bits,
    from_bf16,
    from_f16,
    load_global_u16,
    load_global_u32,
    load_global_u32x4,
    load_shared_u32,
    load_shared_u32x2,
    load_shared_u32x4,
    store_global_u16,
    store_global_u32,
    store_global_u32x4,
    store_shared_u32,
    store_shared_u32x2,
    store_shared_u32x4,
    thread_index_x,
    to_bf16,
    to_f16,
)
from fa_numba.device.types import uint32, uint64
from fa_numba.indexing.swizzle import swizzle

__all__ = ["ITEMSIZE", "TileIO", "make_tile_io"]

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element, by dtype tag."""

_UNPACK = {"float32": fragment_from_bits, "float16": from_f16, "bfloat16": from_bf16}
_PACK = {"float32": fragment_bits, "float16": to_f16, "bfloat16": to_bf16}

_SLAB_COLS = 64
# The unit of vector accesses and of the swizzle, and the bytes that its pattern spans.
_CHUNK_BYTES = 16
_SPAN = 128

Stage = Callable[..., Any]


class TileIO(NamedTuple):
    """The ways of a tile, each a function for kernels.

    `tile` is the address of the tile in shared memory. A matrix in global memory is given by the
    address of its element (0, 0), the elements from one row to the next, and its size; `row_start`
    and `col_start` are the tile's first row and column in it.

    Attributes
    ----------
    load_tile : callable
        ``(tile, x, row_stride, row_start, col_start, rows, cols)``: global to shared memory.
        Elements outside the matrix become 0 and are not read, so that the tile is whole.
    read_fragment : callable
        ``(tile, row, col)`` -> float32[tile_n / 2]: shared memory to an accumulator fragment. Row
        and column are those of the thread's element 0.
    write_fragment : callable
        ``(tile, row, col, fragment)``: back, rounded to the dtype. A thread writes the bytes that
        `read_fragment` reads.
    store_tile : callable
        ``(tile, out, row_stride, row_start, col_start, rows, cols)``: shared to global memory.
        Elements outside the matrix are dropped.
    """

    load_tile: Stage
    read_fragment: Stage
    write_fragment: Stage
    store_tile: Stage


def make_tile_io(dtype: str, tile_m: int, tile_n: int, vector_bytes: int) -> TileIO:
    """Return the stages for tiles of one kind.

    Parameters
    ----------
    dtype : str
        A key of `ITEMSIZE`.
    tile_m, tile_n : int
        Rows, a multiple of 16: a warp holds 16. Columns, 64 or a power of two above.
    vector_bytes : int
        Width of accesses to global memory: 16 where all rows of a matrix begin at multiples of 16
        bytes, else the itemsize. Shared memory is always accessed by vectors.

    Returns
    -------
    TileIO

    Raises
    ------
    ValueError
        If a value is not accepted.
    """
    if dtype not in ITEMSIZE:
        raise ValueError(f"dtype is {dtype!r}; accepted are {', '.join(ITEMSIZE)}")
    itemsize = ITEMSIZE[dtype]
    if tile_m < 16 or tile_m % 16:
        raise ValueError(f"tile_m is {tile_m}; accepted are multiples of 16")
    if tile_n < _SLAB_COLS or tile_n & (tile_n - 1):
        raise ValueError(f"tile_n is {tile_n}; accepted are powers of two from {_SLAB_COLS} on")
    if vector_bytes not in (itemsize, _CHUNK_BYTES):
        raise ValueError(
            f"vector_bytes is {vector_bytes}; accepted are {itemsize} and {_CHUNK_BYTES}"
        )
    offset = _make_offset(itemsize, tile_m, tile_n)
    load_tile, store_tile = _make_global_io(itemsize, tile_m, tile_n, vector_bytes, offset)
    read_fragment, write_fragment = _make_fragment_io(dtype, tile_n, offset)
    return TileIO(load_tile, read_fragment, write_fragment, store_tile)


def _make_offset(itemsize: int, tile_m: int, tile_n: int) -> Stage:
    """Return the function that tells where in a tile's memory an element is."""
    row_bytes = _SLAB_COLS * itemsize

    def offset_in_slab(row: int, col: int) -> int:
        return swizzle(row * row_bytes + col * itemsize, _SPAN)

    def offset_in_tile(row: int, col: int) -> int:
        slab_row = col // _SLAB_COLS * tile_m + row
        return swizzle(slab_row * row_bytes + col % _SLAB_COLS * itemsize, _SPAN)

    return offset_in_slab if tile_n == _SLAB_COLS else offset_in_tile


def _make_global_io(
    itemsize: int, tile_m: int, tile_n: int, vector_bytes: int, offset: Stage
) -> tuple[Stage, Stage]:
    """Return `load_tile` and `store_tile`."""
    threads = 2 * tile_m
    chunk = _CHUNK_BYTES // itemsize
    row_chunks = tile_n // chunk
    num_chunks = tile_m * row_chunks
    load_chunk, store_chunk = _make_chunk_io(itemsize, vector_bytes)

    def load_tile(
        tile: int, x: int, row_stride: int, row_start: int, col_start: int, rows: int, cols: int
    ) -> None:
        for i in range(thread_index_x(), num_chunks, threads):
            row, col = i // row_chunks, i % row_chunks * chunk
            place = x + uint64(((row_start + row) * row_stride + col_start + col) * itemsize)
            count = cols - col_start - col if row_start + row < rows else 0
            words = load_chunk(place, count)
            store_shared_u32x4(tile + offset(row, col), words)

    def store_tile(
        tile: int, out: int, row_stride: int, row_start: int, col_start: int, rows: int, cols: int
    ) -> None:
        for i in range(thread_index_x(), num_chunks, threads):
            row, col = i // row_chunks, i % row_chunks * chunk
            place = out + uint64(((row_start + row) * row_stride + col_start + col) * itemsize)
            count = cols - col_start - col if row_start + row < rows else 0
            words = load_shared_u32x4(tile + offset(row, col))
            store_chunk(place, words, count)

    return load_tile, store_tile


def _make_chunk_io(itemsize: int, vector_bytes: int) -> tuple[Stage, Stage]:
    """Return functions that move a chunk, of which `count` elements exist (may be < 0, or more)."""
    chunk = _CHUNK_BYTES // itemsize

    def load_words(place: int, count: int) -> Any:
        return (
            load_global_u32(place, count > 0),
            load_global_u32(place + 4, count > 1),
            load_global_u32(place + 8, count > 2),
            load_global_u32(place + 12, count > 3),
        )

    def store_words(place: int, words: Any, count: int) -> None:
        store_global_u32(place, words[0], count > 0)
        store_global_u32(place + 4, words[1], count > 1)
        store_global_u32(place + 8, words[2], count > 2)
        store_global_u32(place + 12, words[3], count > 3)

    def load_pair(place: int, count: int) -> int:
        low, high = load_global_u16(place, count > 0), load_global_u16(place + 2, count > 1)
        return uint32(low | high << 16)

    def load_pairs(place: int, count: int) -> Any:
        return (
            load_pair(place, count),
            load_pair(place + 4, count - 2),
            load_pair(place + 8, count - 4),
            load_pair(place + 12, count - 6),
        )

    def store_pair(place: int, word: int, count: int) -> None:
        store_global_u16(place, word, count > 0)
        store_global_u16(place + 2, word >> 16, count > 1)

    def store_pairs(place: int, words: Any, count: int) -> None:
        store_pair(place, words[0], count)
        store_pair(place + 4, words[1], count - 2)
        store_pair(place + 8, words[2], count - 4)
        store_pair(place + 12, words[3], count - 6)

    load_elements = load_words if itemsize == 4 else load_pairs
    store_elements = store_words if itemsize == 4 else store_pairs
    if vector_bytes == itemsize:
        return load_elements, store_elements

    # A row may end inside a chunk; what lies behind its end belongs to somebody else.
    def load_vector(place: int, count: int) -> Any:
        if 0 < count < chunk:
            return load_elements(place, count)
        return load_global_u32x4(place, count >= chunk)

    def store_vector(place: int, words: Any, count: int) -> None:
        if 0 < count < chunk:
            store_elements(place, words, count)
        else:
            store_global_u32x4(place, words, count >= chunk)

    return load_vector, store_vector


def _make_fragment_io(dtype: str, tile_n: int, offset: Stage) -> tuple[Stage, Stage]:
    """Return `read_fragment` and `write_fragment`.

    A fragment is a value, not an array: it is read and written by code that is as long as itself,
    made by doubling.
    """
    itemsize = ITEMSIZE[dtype]
    unpack, pack = _UNPACK[dtype], _PACK[dtype]
    # The row 8 below has the same permutation: 8 rows are 8 lines of the swizzle, or 16.
    eight_rows = 8 * _SLAB_COLS * itemsize

    def read_pairs(tile: int, row: int, col: int) -> Any:
        place = tile + offset(row, col)
        return load_shared_u32(place), load_shared_u32(place + eight_rows)

    def write_pairs(tile: int, row: int, col: int, words: Any) -> None:
        place = tile + offset(row, col)
        store_shared_u32(place, words[0])
        store_shared_u32(place + eight_rows, words[1])

    def read_words(tile: int, row: int, col: int) -> Any:
        place = tile + offset(row, col)
        return *load_shared_u32x2(place), *load_shared_u32x2(place + eight_rows)

    def write_words(tile: int, row: int, col: int, words: Any) -> None:
        place = tile + offset(row, col)
        store_shared_u32x2(place, words[:2])
        store_shared_u32x2(place + eight_rows, words[2:])

    read, write, size = (
        (read_words, write_words, 4) if itemsize == 4 else (read_pairs, write_pairs, 2)
    )
    cols = 8
    while cols < tile_n:
        read, write = _read_twice(read, cols), _write_twice(write, cols, size)
        cols, size = 2 * cols, 2 * size
    read_registers, write_registers = read, write

    def read_fragment(tile: int, row: int, col: int) -> Any:
        return unpack(read_registers(tile, row, col))

    def write_fragment(tile: int, row: int, col: int, fragment: Any) -> None:
        write_registers(tile, row, col, pack(fragment))

    return read_fragment, write_fragment


def _read_twice(read: Stage, cols: int) -> Stage:
    def read_twice(tile: int, row: int, col: int) -> Any:
        return *read(tile, row, col), *read(tile, row, col + cols)

    return read_twice


def _write_twice(write: Stage, cols: int, size: int) -> Stage:
    def write_twice(tile: int, row: int, col: int, words: Any) -> None:
        write(tile, row, col, words[:size])
        write(tile, row, col + cols, words[size:])

    return write_twice
