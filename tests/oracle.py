"""Oracles of the packed, paged and cached calls: one sequence at a time, by the dense oracle.

Each returns float64 (or what ``compute_dtype`` and ``round_to`` ask for) and never touches a page
or a row that no query may attend.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fa_numba.reference.attention import allowed_keys, attention, round_through
from fa_numba.reference.attention_grad import attention_grad

DESCALES = ("q_descale", "k_descale", "v_descale")


def live_keys(seqlen_q: int, seqlen_k: int, mask: dict[str, Any]) -> np.ndarray:
    """Tell which keys some query may attend; all others are dead and may hold anything."""
    return allowed_keys(
        seqlen_q,
        seqlen_k,
        mask.get("causal", False),
        mask.get("window_size", (-1, -1)),
        mask.get("sink_token_length", 0),
    ).any(axis=0)


def used_ranges(cu_seqlens: np.ndarray, seqused: np.ndarray | None) -> list[slice]:
    """Return the rows of a packed array that belong to each sequence and are in use."""
    starts, stops = cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()
    if seqused is not None:
        stops = [start + used for start, used in zip(starts, seqused.tolist(), strict=True)]
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]


def gather(cache: np.ndarray, table_row: np.ndarray | None, slots: np.ndarray) -> np.ndarray:
    """Read the given slots of one sequence, whose rows are `cache` itself or pages of it."""
    if table_row is None:
        return cache[slots]
    page_size = cache.shape[1]
    return cache[table_row[slots // page_size], slots % page_size]


def sequence_keys(
    cache: np.ndarray, table_row: np.ndarray | None, first: int, live: np.ndarray
) -> np.ndarray:
    """Return slots first, first + 1, … as (1, len(live), heads, dim); the dead ones are 0."""
    keys = np.zeros((1, live.size, *cache.shape[-2:]), cache.dtype)
    keys[0, live] = gather(cache, table_row, first + np.flatnonzero(live))
    return keys


def _flags_of(flags: dict[str, Any], sequence: int) -> dict[str, Any]:
    """Keep the descales of one sequence only."""
    return {
        name: value[sequence : sequence + 1] if name in DESCALES and value is not None else value
        for name, value in flags.items()
    }


def varlen_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cu_seqlens_q: np.ndarray,
    cu_seqlens_k: np.ndarray | None,
    *,
    seqused_q: np.ndarray | None = None,
    seqused_k: np.ndarray | None = None,
    block_table: np.ndarray | None = None,
    compute_dtype: Any = np.float64,
    **flags: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Return out (total_q, nheads, headdim_v) and lse (nheads, total_q) of packed sequences."""
    out = np.zeros((*q.shape[:2], v.shape[-1]), compute_dtype)
    lse = np.full((q.shape[1], q.shape[0]), -np.inf, compute_dtype)
    for b, rows in enumerate(used_ranges(cu_seqlens_q, seqused_q)):
        keys = _varlen_keys(k, v, b, rows, cu_seqlens_k, seqused_k, block_table, flags)
        one_out, one_lse = attention(
            q[None, rows], *keys, compute_dtype=compute_dtype, **_flags_of(flags, b)
        )
        out[rows], lse[:, rows] = one_out[0], one_lse[0]
    return out, lse


def _varlen_keys(k, v, b, rows, cu_seqlens_k, seqused_k, block_table, flags):
    if block_table is None:
        cols = used_ranges(cu_seqlens_k, seqused_k)[b]
        return k[None, cols], v[None, cols]
    seqlen_k = int(np.diff(cu_seqlens_k)[b] if seqused_k is None else seqused_k[b])
    live = live_keys(rows.stop - rows.start, seqlen_k, flags)
    return tuple(sequence_keys(x, block_table[b], 0, live) for x in (k, v))


def varlen_attention_grad(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cu_seqlens_q: np.ndarray,
    cu_seqlens_k: np.ndarray,
    *,
    dlse: np.ndarray | None = None,
    seqused_q: np.ndarray | None = None,
    seqused_k: np.ndarray | None = None,
    compute_dtype: Any = np.float64,
    **flags: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return dq, dk, dv of packed sequences; 0 outside the used rows."""
    dq, dk, dv = (np.zeros(x.shape, compute_dtype) for x in (q, k, v))
    ranges = zip(
        used_ranges(cu_seqlens_q, seqused_q), used_ranges(cu_seqlens_k, seqused_k), strict=True
    )
    for rows, cols in ranges:
        dq[None, rows], dk[None, cols], dv[None, cols] = attention_grad(
            dout[None, rows],
            q[None, rows],
            k[None, cols],
            v[None, cols],
            dlse=None if dlse is None else dlse[None, :, rows],
            compute_dtype=compute_dtype,
            **flags,
        )
    return dq, dk, dv


def rotate(
    x: np.ndarray, cos: np.ndarray, sin: np.ndarray, positions: np.ndarray, *, interleaved: bool
) -> np.ndarray:
    """Rotary embedding of x (seqlen, heads, headdim), rounded to the dtype of x.

    Computed in float32 for 16-bit x: the products are exact there, so every honest implementation
    rounds to the same bits.
    """
    work = np.float64 if x.dtype == np.float64 else np.float32
    half = cos.shape[1]
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    c, s = cos[positions, None].astype(work), sin[positions, None].astype(work)
    a, b = x[..., first].astype(work), x[..., second].astype(work)
    rotated = x.copy()
    rotated[..., first] = (a * c - b * s).astype(x.dtype)
    rotated[..., second] = (a * s + b * c).astype(x.dtype)
    return rotated


class CacheCall(NamedTuple):
    """The operands of `flash_attn_with_kvcache`, as its keywords name them."""

    q: np.ndarray
    k_cache: np.ndarray
    v_cache: np.ndarray
    k: np.ndarray | None = None
    v: np.ndarray | None = None
    cache_seqlens: np.ndarray | int | None = None
    cache_batch_idx: np.ndarray | None = None
    cache_leftpad: np.ndarray | None = None
    block_table: np.ndarray | None = None
    rotary_cos: np.ndarray | None = None
    rotary_sin: np.ndarray | None = None
    rotary_interleaved: bool = True
    cu_seqlens_q: np.ndarray | None = None
    max_seqlen_q: int | None = None

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(self.q) if self.cu_seqlens_q is None else len(self.cu_seqlens_q) - 1

    def lengths(self) -> np.ndarray:
        """Return the cached length of each sequence before the append, leftpad included."""
        if self.cache_seqlens is None:
            pages = 1 if self.block_table is None else self.block_table.shape[1]
            return np.full(self.batch, pages * self.k_cache.shape[1])
        return np.broadcast_to(np.asarray(self.cache_seqlens, np.int64), (self.batch,))

    def home(self, b: int) -> tuple[int | slice, np.ndarray | None]:
        """Return what to index the caches with, and the row of the block table, of sequence b."""
        if self.block_table is not None:
            return slice(None), self.block_table[b]
        return (b if self.cache_batch_idx is None else int(self.cache_batch_idx[b])), None


def appended_caches(call: CacheCall) -> tuple[np.ndarray, np.ndarray]:
    """Return the caches as they must be after the call; the arguments are not touched."""
    k_cache, v_cache = call.k_cache.copy(), call.v_cache.copy()
    if call.k is None:
        return k_cache, v_cache
    for b, start in enumerate(call.lengths().tolist()):
        home, table_row = call.home(b)
        slots = start + np.arange(call.k.shape[1])
        k = call.k[b]
        if call.rotary_cos is not None:
            k = rotate(
                k, call.rotary_cos, call.rotary_sin, slots, interleaved=call.rotary_interleaved
            )
        for cache, new in ((k_cache, k), (v_cache, call.v[b])):
            if table_row is None:
                cache[home, slots] = new
            else:
                page_size = cache.shape[1]
                cache[table_row[slots // page_size], slots % page_size] = new
    return k_cache, v_cache


def kvcache_attention(
    call: CacheCall, *, compute_dtype: Any = np.float64, **flags: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return out and lse of a cached call, in the layout of q (lse packed if q is)."""
    k_cache, v_cache = appended_caches(call)
    seqlen_new = 0 if call.k is None else call.k.shape[1]
    packed = call.cu_seqlens_q is not None
    nheads = call.q.shape[-2]
    out = np.zeros((*call.q.shape[:-1], v_cache.shape[-1]), compute_dtype)
    lse_shape = (nheads, len(call.q)) if packed else (call.batch, nheads, call.q.shape[1])
    lse = np.full(lse_shape, -np.inf, compute_dtype)
    for b, start in enumerate(call.lengths().tolist()):
        rows = used_ranges(call.cu_seqlens_q, None)[b] if packed else b
        q = call.q[rows]
        if call.rotary_cos is not None:
            moving = flags.get("causal") or max(flags.get("window_size", (-1, -1))) >= 0
            positions = start + np.arange(len(q)) * int(moving)
            q = rotate(
                q, call.rotary_cos, call.rotary_sin, positions, interleaved=call.rotary_interleaved
            )
        leftpad = 0 if call.cache_leftpad is None else int(call.cache_leftpad[b])
        live = live_keys(len(q), start + seqlen_new - leftpad, flags)
        home, table_row = call.home(b)
        keys = (sequence_keys(x[home], table_row, leftpad, live) for x in (k_cache, v_cache))
        one_out, one_lse = attention(
            q[None], *keys, compute_dtype=compute_dtype, **_flags_of(flags, b)
        )
        out[rows] = one_out[0]
        lse[(slice(None), rows) if packed else rows] = one_lse[0]
    return out, lse


def combine(
    out_partial: np.ndarray,
    lse_partial: np.ndarray,
    *,
    compute_dtype: Any = np.float64,
    round_to: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Merge partial results, split by split, skipping the empty ones."""
    lse = np.full(lse_partial.shape[1:], -np.inf, compute_dtype)
    out = np.zeros(out_partial.shape[1:], compute_dtype)
    row_max = np.max(lse_partial, axis=0, initial=-np.inf).astype(compute_dtype)
    total = np.zeros_like(lse)
    for one_out, one_lse in zip(out_partial, lse_partial, strict=True):
        live = ~np.isneginf(one_lse)
        weight = np.zeros_like(total)
        weight[live] = np.exp(one_lse[live].astype(compute_dtype) - row_max[live])
        total += weight
        spread = weight.swapaxes(1, 2)[..., None]
        out += np.where(spread > 0, spread * np.where(spread > 0, one_out, 0), 0)
    live = total > 0
    lse[live] = row_max[live] + np.log(total[live])
    out /= np.where(live, total, 1).swapaxes(1, 2)[..., None]
    return round_through(out, round_to), lse
