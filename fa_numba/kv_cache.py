"""A small page allocator for the paged KV cache."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fa_numba.arrays import dtype_tag, numpy_dtype
from fa_numba.indexing.page_table import num_pages
from fa_numba.problem import MAX_HEADDIM, as_int

__all__ = ["PagedKVCache"]

Array = np.ndarray[Any, Any]


class PagedKVCache:
    """K and V of many sequences in pages of one pool.

    A sequence owns a list of pages, in order; token t of it lies in page ``t // page_size`` of the
    list at row ``t % page_size``. Pages are handed out one by one as a sequence grows and come back
    when it is freed, so no sequence reserves its longest length.

    Parameters
    ----------
    num_blocks
        Pages in the pool.
    page_size
        Tokens in a page.
    nheads_k, headdim
        Heads and head dimension of K.
    headdim_v
        Head dimension of V; headdim if None.
    dtype
        A dtype or dtype tag of the operands.

    Attributes
    ----------
    k_cache, v_cache : numpy.ndarray
        (num_blocks, page_size, nheads_k, headdim) and (..., headdim_v): what
        :func:`fa_numba.flash_attn_with_kvcache` takes. Fresh pages hold zeros.

    Examples
    --------
    >>> import numpy as np, fa_numba
    >>> cache = fa_numba.PagedKVCache(num_blocks=8, page_size=4, nheads_k=1, headdim=2)
    >>> a = cache.allocate()
    >>> cache.append(a, np.ones((5, 1, 2), np.float32), np.ones((5, 1, 2), np.float32))
    >>> cache.cache_seqlens([a]), cache.num_free_blocks
    (array([5], dtype=int32), 6)
    """

    def __init__(
        self,
        num_blocks: int,
        page_size: int,
        nheads_k: int,
        headdim: int,
        *,
        headdim_v: int | None = None,
        dtype: Any = "float32",
    ) -> None:
        num_blocks = as_int("num_blocks", num_blocks, low=0)
        self.page_size = as_int("page_size", page_size, low=1)
        nheads_k = as_int("nheads_k", nheads_k, low=1)
        headdim = as_int("headdim", headdim, low=1, high=MAX_HEADDIM)
        if headdim_v is None:
            headdim_v = headdim
        headdim_v = as_int("headdim_v", headdim_v, low=1, high=MAX_HEADDIM)
        kind = numpy_dtype(dtype_tag(dtype))
        self.k_cache: Array = np.zeros((num_blocks, self.page_size, nheads_k, headdim), kind)
        self.v_cache: Array = np.zeros((num_blocks, self.page_size, nheads_k, headdim_v), kind)
        # Popped from the end, so the lowest free page comes first and runs are easy to follow.
        self._free = list(range(num_blocks))[::-1]
        self._pages: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._next_seq = 0

    @property
    def num_free_blocks(self) -> int:
        """Pages that no sequence owns."""
        return len(self._free)

    def allocate(self, seqlen: int = 0) -> int:
        """Start a sequence and return its handle.

        Parameters
        ----------
        seqlen
            Tokens that it counts as written from the start (their pages hold what they held).

        Raises
        ------
        MemoryError
            If the pool has too few free pages; nothing is allocated then.
        """
        seqlen = as_int("seqlen", seqlen, low=0)
        seq = self._next_seq
        self._pages[seq], self._lengths[seq] = [], 0
        try:
            self.advance(seq, seqlen)
        except MemoryError:
            del self._pages[seq], self._lengths[seq]
            raise
        self._next_seq += 1
        return seq

    def free(self, seq: int) -> None:
        """End a sequence; its pages go back to the pool."""
        self._check(seq)
        self._free.extend(reversed(self._pages.pop(seq)))
        del self._lengths[seq]

    def reserve(self, seq: int, num_tokens: int) -> None:
        """Give a sequence the pages that its next tokens need, without counting them as written.

        Call it before :func:`fa_numba.flash_attn_with_kvcache` appends the tokens itself, and
        :meth:`advance` after.

        Raises
        ------
        MemoryError
            If the pool has too few free pages; nothing is changed then.
        """
        self._check(seq)
        length = self._lengths[seq] + as_int("num_tokens", num_tokens, low=0)
        missing = num_pages(length, self.page_size) - len(self._pages[seq])
        if missing > len(self._free):
            raise MemoryError(
                f"sequence {seq} needs {missing} more pages of {self.page_size} tokens; "
                f"{len(self._free)} of {self.k_cache.shape[0]} are free"
            )
        for _ in range(missing):
            self._pages[seq].append(self._free.pop())

    def advance(self, seq: int, num_tokens: int) -> None:
        """Count tokens as written, reserving their pages where that has not been done.

        Raises
        ------
        MemoryError
            If the pool has too few free pages; nothing is changed then.
        """
        self.reserve(seq, num_tokens)
        self._lengths[seq] += num_tokens

    def append(self, seq: int, k: Array, v: Array) -> None:
        """Write tokens at the end of a sequence.

        Parameters
        ----------
        seq
            Handle of the sequence.
        k, v
            (num_tokens, nheads_k, headdim) and (num_tokens, nheads_k, headdim_v), in the pool's
            dtype.

        Raises
        ------
        ValueError, TypeError
            If a shape or dtype does not fit the pool.
        MemoryError
            If the pool has too few free pages; nothing is written then.
        """
        self._check(seq)
        for name, x, cache in (("k", k, self.k_cache), ("v", v, self.v_cache)):
            if not isinstance(x, np.ndarray) or x.dtype != cache.dtype:
                got = f"dtype {x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__
                raise TypeError(f"{name} is {got}; accepted is a NumPy array of {cache.dtype}")
            if x.shape[1:] != cache.shape[2:] or x.ndim != 3:
                raise ValueError(
                    f"{name} has shape {x.shape}; accepted is (num_tokens, *{cache.shape[2:]})"
                )
        if k.shape[0] != v.shape[0]:
            raise ValueError(f"k has {k.shape[0]} tokens and v has {v.shape[0]}; must be equal")
        start = self._lengths[seq]
        self.advance(seq, k.shape[0])
        slots = np.arange(start, start + k.shape[0])
        pages = np.asarray(self._pages[seq], np.intp)[slots // self.page_size]
        self.k_cache[pages, slots % self.page_size] = k
        self.v_cache[pages, slots % self.page_size] = v

    def block_table(self, seqs: Sequence[int]) -> Array:
        """Return the int32 (batch, max_num_blocks_per_seq) table of some sequences.

        Rows are as long as the longest sequence's page list; the rest of a shorter row is 0, which
        no call reads.
        """
        for seq in seqs:
            self._check(seq)
        width = max((len(self._pages[seq]) for seq in seqs), default=0)
        table = np.zeros((len(seqs), width), np.int32)
        for row, seq in zip(table, seqs, strict=True):
            row[: len(self._pages[seq])] = self._pages[seq]
        return table

    def cache_seqlens(self, seqs: Sequence[int]) -> Array:
        """Return the int32 (batch,) lengths of some sequences."""
        for seq in seqs:
            self._check(seq)
        return np.array([self._lengths[seq] for seq in seqs], np.int32)

    def _check(self, seq: int) -> None:
        if seq not in self._lengths:
            raise KeyError(f"sequence {seq} is not allocated (never, or freed already)")
