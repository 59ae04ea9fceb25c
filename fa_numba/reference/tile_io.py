"""Where a tile comes from: dense arrays, pages of a cache, and the bytes that this moves.

All loops over tiles work on matrices (batch, heads, rows, dim) in float32 or float64. `load_tile`
cuts such a tile out of the public layout (batch, seqlen, heads, dim), whatever the storage: a dense
array, 16-bit or FP8 numbers with or without scales, or the pages of a cache.

`HbmCounter` is the memory model of the FlashAttention papers (arXiv 2205.14135, section 3.2): one
large, slow memory (HBM) that holds the arrays, one small, fast one that holds the tiles, and every
tile that passes between them is paid for.
"""

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fa_numba.indexing.page_table import clamp_page, page_and_offset

__all__ = ["HbmCounter", "PagedTensor", "Tensor", "TileBuffers", "compute_dtype", "load_tile"]

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class PagedTensor:
    """The keys or values of one sequence, scattered over the pages of a pool.

    Attributes
    ----------
    pages : ndarray, (num_blocks, page_size, nheads_k, headdim)
        The pool.
    block_table_row : ndarray of int32, (max_num_blocks_per_seq,)
        The pages of the sequence, in order. An entry whose slots are never loaded may hold
        anything; so may one of a tile in which all its keys are masked.
    seqlen : int
        Number of slots in use.
    """

    pages: NDArray[Any]
    block_table_row: NDArray[np.int32]
    seqlen: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the dense array that this stands for: (1, seqlen, nheads_k, headdim)."""
        return (1, self.seqlen, *self.pages.shape[2:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the pages."""
        return self.pages.dtype

    def gather(self, start: int, stop: int, heads: slice = _ALL) -> NDArray[Any]:
        """Copy slots [start, stop) of some heads together: (1, stop - start, heads, headdim)."""
        num_blocks, page_size = self.pages.shape[:2]
        first, _ = page_and_offset(start, page_size)
        last, _ = page_and_offset(stop - 1, page_size)
        page_ids = [
            clamp_page(page, num_blocks) for page in self.block_table_row[first : last + 1].tolist()
        ]
        slots = np.arange(start, stop)
        page_of_slot = np.take(page_ids, slots // page_size - first)
        rows: NDArray[Any] = self.pages[:, :, heads][page_of_slot, slots % page_size]
        return rows[None]


Tensor: TypeAlias = "NDArray[Any] | PagedTensor"
"""An operand in the public layout (batch, seqlen, heads, dim)."""


@dataclass(slots=True)
class HbmCounter:
    """Bytes that cross the bus between the large memory and the tiles, by tensor.

    Attributes
    ----------
    reads, writes : dict of str to int
        Bytes read and written, keyed by the tensor's name ("q", "k", "v", "out", "lse", and for
        FlashAttention-1 "row_max" and "row_sum").
    """

    reads: dict[str, int] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)

    def read(self, name: str, nbytes: int) -> None:
        """Count a tile that was loaded."""
        self.reads[name] = self.reads.get(name, 0) + nbytes

    def write(self, name: str, nbytes: int) -> None:
        """Count a tile that was stored."""
        self.writes[name] = self.writes.get(name, 0) + nbytes

    @property
    def total(self) -> int:
        """All bytes, read and written."""
        return sum(self.reads.values()) + sum(self.writes.values())


class TileBuffers:
    """Memory for tiles, taken once and used for every row block, like a GPU's shared memory.

    Fresh memory is slow: the operating system hands it out page by page on first touch.

    Parameters
    ----------
    dtype : dtype
        Of all tiles.
    """

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = dtype
        self._memory: dict[str, NDArray[Any]] = {}

    def take(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the buffer of this name as a contiguous array; it holds whatever was there."""
        size = math.prod(shape)
        memory = self._memory.get(name)
        if memory is None or memory.size < size:
            memory = self._memory[name] = np.empty(size, self._dtype)
        return memory[:size].reshape(shape)


def compute_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype of scores and accumulators: float64 for float64 inputs, else float32.

    Parameters
    ----------
    dtype : dtype
        Of the inputs.

    Returns
    -------
    numpy.dtype
    """
    return np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)


def load_tile(
    x: Tensor,
    start: int,
    stop: int,
    *,
    batch: slice = _ALL,
    heads: slice = _ALL,
    descale: NDArray[Any] | None = None,
    descale_block: int = 128,
    counter: HbmCounter | None = None,
    name: str = "",
) -> NDArray[Any]:
    """Cut rows [start, stop) of some heads of some sequences out of an operand.

    Parameters
    ----------
    x : ndarray or PagedTensor, (batch, seqlen, heads, dim)
        The operand.
    start, stop : int
        Rows, ``0 <= start < stop <= seqlen``.
    batch, heads : slice
        Which sequences and heads; all by default.
    descale : ndarray of float32, (batch, heads) or (batch, heads, n_blocks), optional
        Undoes a quantisation: the operand stands for ``x * descale``, with one factor a head or
        one for every `descale_block` rows of a head.
    descale_block : int
        Rows that share a factor; unused unless `descale` has three dimensions.
    counter : HbmCounter, optional
        Counts the tile in the operand's own dtype, as `name`.
    name : str
        Name of the operand for `counter`.

    Returns
    -------
    ndarray, (batch, heads, stop - start, dim)
        In the compute dtype. It may be a view of the operand: do not write to it.
    """
    if isinstance(x, PagedTensor):
        rows = x.gather(start, stop, heads)
    else:
        rows = x[batch, start:stop, heads]
    tile: NDArray[Any] = rows.transpose(0, 2, 1, 3)
    if counter is not None:
        counter.read(name, tile.nbytes)
    tile = tile.astype(compute_dtype(x.dtype), copy=False)
    if descale is None:
        return tile
    factors = descale[batch, heads]
    if factors.ndim == 3:
        factors = factors[:, :, np.arange(start, stop) // descale_block]
    else:
        factors = factors[:, :, None]
    scaled: NDArray[Any] = tile * factors[..., None].astype(tile.dtype)
    return scaled
