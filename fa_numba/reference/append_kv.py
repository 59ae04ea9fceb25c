"""Write new keys and values into the caller's cache, contiguous or paged.

A decoder calls attention once per step with a handful of new tokens. Token t of sequence b goes
to slot ``cache_seqlens[b] + t`` of its cache. In a contiguous cache a slot is a row; in a paged
one the slot's page is looked up in the block table, so that a sequence may grow without ever
being moved (PagedAttention, arXiv 2309.06180). Keys are rotated on the way in, by the slot number.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fa_numba.indexing.page_table import page_and_offset
from fa_numba.reference.quant import saturating_cast
from fa_numba.reference.rotary import apply_rotary

__all__ = ["append_kv"]


def append_kv(
    k_cache: NDArray[Any],
    v_cache: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    cache_seqlens: NDArray[Any] | int,
    cache_batch_idx: NDArray[Any] | None = None,
    block_table: NDArray[Any] | None = None,
    rotary_cos: NDArray[Any] | None = None,
    rotary_sin: NDArray[Any] | None = None,
    rotary_interleaved: bool = True,
) -> None:
    """Append tokens to a key/value cache, in place.

    Parameters
    ----------
    k_cache : ndarray, (batch_cache, seqlen_cache, nheads_k, headdim) or pages
        Pages are (num_blocks, page_size, nheads_k, headdim), any page size >= 1, and need
        `block_table`. Any strides; written through, never copied.
    v_cache : ndarray, like `k_cache` with headdim_v
        Values.
    k, v : ndarray, (batch, seqlen_new, nheads_k, headdim), (batch, seqlen_new, nheads_k, headdim_v)
        New tokens, of the cache's dtype. The rotation computes in float32 (float64 for float64)
        and rounds once.
    cache_seqlens : int or integer ndarray, (batch,)
        Tokens each sequence holds *before* the append. It is not advanced: the caller does that.
    cache_batch_idx : integer ndarray, (batch,), optional
        Row of the contiguous cache that belongs to each sequence; row b for sequence b if None.
    block_table : integer ndarray, (batch, max_num_blocks_per_seq), optional
        Page of slot s of sequence b: ``block_table[b, s // page_size]``. Entries of pages that
        receive no new token are not read.
    rotary_cos, rotary_sin : ndarray, (seqlen_ro, rotary_dim / 2), optional
        Rotate the new keys by their slot numbers; see `fa_numba.reference.rotary.apply_rotary`.
    rotary_interleaved : bool
        Layout of the rotated pairs.

    Raises
    ------
    ValueError
        Before anything is written, if the cache would overflow, a length is negative, a row or
        page does not exist, a position is outside the rotary tables, a cache is read-only, or
        two new tokens would share a slot.
    """
    batch, seqlen_new = k.shape[:2]
    slots = _new_slots(cache_seqlens, batch, seqlen_new)
    if block_table is None:
        rows, offsets = _cache_rows(slots, cache_batch_idx, k_cache.shape[:2])
    else:
        rows, offsets = _pages(slots, block_table, k_cache.shape[:2])
    _check_writes(rows, offsets, k_cache, v_cache)

    if rotary_cos is not None and rotary_sin is not None:
        k = apply_rotary(k, rotary_cos, rotary_sin, slots, interleaved=rotary_interleaved)
    k_cache[rows, offsets] = saturating_cast(k, k_cache.dtype)
    v_cache[rows, offsets] = saturating_cast(v, v_cache.dtype)


def _new_slots(cache_seqlens: NDArray[Any] | int, batch: int, seqlen_new: int) -> NDArray[np.int64]:
    """Return the slot of every new token, (batch, seqlen_new)."""
    # Signed 64-bit whatever the caller has: uint64 plus int64 would be float64.
    lengths = np.asarray(cache_seqlens, np.int64)
    if lengths.ndim > 1 or (lengths.ndim == 1 and lengths.shape != (batch,)):
        raise ValueError(
            f"cache_seqlens has shape {lengths.shape}; an int or shape ({batch},) is needed"
        )
    if lengths.size and lengths.min() < 0:
        raise ValueError(f"cache_seqlens holds {int(lengths.min())}; lengths are >= 0")
    return np.broadcast_to(lengths, batch)[:, None] + np.arange(seqlen_new)


def _check_capacity(slots: NDArray[np.int64], capacity: int) -> None:
    if not slots.size:
        return
    seq = int(np.argmax(slots[:, -1]))
    if slots[seq, -1] >= capacity:
        raise ValueError(
            f"cache_seqlens[{seq}] = {int(slots[seq, 0])} leaves no room for {slots.shape[1]} "
            f"new tokens in a cache of {capacity} slots per sequence; nothing was written"
        )


def _cache_rows(
    slots: NDArray[np.int64], cache_batch_idx: NDArray[Any] | None, shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return row and slot in a contiguous cache for every new token."""
    batch_cache, seqlen_cache = shape
    _check_capacity(slots, seqlen_cache)
    rows = np.arange(len(slots)) if cache_batch_idx is None else np.asarray(cache_batch_idx)
    if slots.size and (rows.min() < 0 or rows.max() >= batch_cache):
        name = "the batch of k" if cache_batch_idx is None else "cache_batch_idx"
        raise ValueError(
            f"{name} asks for cache rows {int(rows.min())} to {int(rows.max())}; "
            f"k_cache has {batch_cache}"
        )
    return np.broadcast_to(rows[:, None], slots.shape).astype(np.int64), slots


def _pages(
    slots: NDArray[np.int64], block_table: NDArray[Any], shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return page and offset in the page for every new token."""
    num_blocks, page_size = shape
    _check_capacity(slots, block_table.shape[1] * page_size)
    # The integer logic of indexing/ is annotated for ints and works on arrays alike.
    split: Any = page_and_offset
    page_idx, offsets = split(slots, page_size)
    pages = np.take_along_axis(np.asarray(block_table), page_idx, axis=1).astype(np.int64)
    is_bad = (pages < 0) | (pages >= num_blocks)
    if is_bad.any():
        seq, token = (int(i) for i in np.argwhere(is_bad)[0])
        raise ValueError(
            f"block_table[{seq}, {int(page_idx[seq, token])}] is {int(pages[seq, token])}; "
            f"k_cache has {num_blocks} pages"
        )
    return pages, offsets


def _check_writes(
    rows: NDArray[np.int64],
    offsets: NDArray[np.int64],
    k_cache: NDArray[Any],
    v_cache: NDArray[Any],
) -> None:
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if not cache.flags.writeable:
            raise ValueError(f"{name} is read-only; new tokens are written into it in place")
    targets = rows * k_cache.shape[1] + offsets
    if len(np.unique(targets)) < targets.size:
        raise ValueError(
            "cache_batch_idx or block_table sends two new tokens to one cache slot; "
            "sequences that append need slots of their own"
        )
