"""The arrays of a call, checked.

:func:`describe_dense`, :func:`describe_varlen` and :func:`describe_kvcache` take what a public
function got, check it (contract: rank, shape, dtype, device, and the values of integers and of host
index arrays) and return an :class:`~fa_numba.problem.AttentionProblem` with the :class:`Operands`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fa_numba.arrays import as_index_array, check_same_device, check_writable, dtype_tag
from fa_numba.operand_checks import (
    cache_lengths,
    check_append_pages,
    check_cache_addressing,
    check_descales,
    check_kv,
    check_live_pages,
    check_longest,
    check_new_tokens,
    check_operands,
    check_rotary,
    packed_lengths,
    prefix_differences,
    used_lengths,
)
from fa_numba.problem import AttentionProblem, as_flag, as_int, make_problem

__all__ = ["Operands", "describe_dense", "describe_kvcache", "describe_varlen"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Operands:
    """The arrays of one call; what a call does not have is None.

    Attributes
    ----------
    q, k, v
        Dense, packed or paged operands, as the problem's layout says; for ``"kvcache"`` k and v
        are the caches.
    q_descale, k_descale, v_descale
        float32 (batch, nheads_k).
    cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k
        int32 prefix sums (batch + 1,) and used lengths (batch,).
    block_table
        int32 (batch, max_num_blocks_per_seq).
    k_new, v_new, cache_seqlens, cache_batch_idx, cache_leftpad
        The KV cache's: tokens to append, lengths before the append (batch,), cache rows, first
        valid slots.
    rotary_cos, rotary_sin
        (seqlen_ro, rotary_dim / 2).
    """

    q: Array
    k: Array
    v: Array
    q_descale: Array | None = None
    k_descale: Array | None = None
    v_descale: Array | None = None
    cu_seqlens_q: Array | None = None
    cu_seqlens_k: Array | None = None
    seqused_q: Array | None = None
    seqused_k: Array | None = None
    block_table: Array | None = None
    k_new: Array | None = None
    v_new: Array | None = None
    cache_seqlens: Array | None = None
    cache_batch_idx: Array | None = None
    cache_leftpad: Array | None = None
    rotary_cos: Array | None = None
    rotary_sin: Array | None = None
    rotary_interleaved: bool = True


def describe_dense(
    q: Any,
    k: Any,
    v: Any,
    *,
    dtype: str | None = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    **flags: Any,
) -> tuple[AttentionProblem, Operands]:
    """Describe q (batch, seqlen_q, nheads, headdim) against dense k and v."""
    q, k, v = check_operands(q, k, v, dtype, q_ndim=4, k_ndim=4)
    batch, seqlen_q, nheads, headdim = q.shape
    check_kv(k, v, headdim)
    if k.shape[0] != batch:
        raise ValueError(f"k has batch {k.shape[0]} and q has batch {batch}; they must be equal")
    problem = make_problem(
        layout="dense",
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=k.shape[1],
        nheads=nheads,
        nheads_k=k.shape[2],
        headdim=headdim,
        headdim_v=v.shape[3],
        dtype=dtype_tag(q.dtype),
        **flags,
    )
    return problem, Operands(q, k, v, **check_descales(problem, q_descale, k_descale, v_descale))


def describe_varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    *,
    seqused_q: Any = None,
    seqused_k: Any = None,
    block_table: Any = None,
    dtype: str | None = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    **flags: Any,
) -> tuple[AttentionProblem, Operands]:
    """Describe packed q (total_q, nheads, headdim) against packed or paged k and v."""
    check_same_device(
        q=q, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_q=seqused_q,
        seqused_k=seqused_k, block_table=block_table,
    )  # fmt: skip
    paged = block_table is not None
    q, k, v = check_operands(q, k, v, dtype, q_ndim=3, k_ndim=4 if paged else 3, paged=paged)
    total_q, nheads, headdim = q.shape
    check_kv(k, v, headdim)
    max_q = as_int("max_seqlen_q", max_seqlen_q, low=0)
    max_k = as_int("max_seqlen_k", max_seqlen_k, low=0)
    cu_q = as_index_array("cu_seqlens_q", cu_seqlens_q, (None,), "(batch + 1,)")
    batch = cu_q.shape[0] - 1
    lengths_q = packed_lengths("cu_seqlens_q", cu_q, total_q, "q")
    cu_k = None
    if cu_seqlens_k is not None:
        cu_k = as_index_array("cu_seqlens_k", cu_seqlens_k, (batch + 1,), "(batch + 1,)")
    elif not paged or seqused_k is None:
        raise TypeError(
            "cu_seqlens_k is None; it may be left out only with block_table and seqused_k"
        )
    if paged:
        table = as_index_array(
            "block_table", block_table, (batch, None), "(batch, max_num_blocks_per_seq)"
        )
        capacity = np.full(batch, table.shape[1] * k.shape[1])
        lengths_k = capacity
        if cu_k is not None and seqused_k is None:
            lengths_k = prefix_differences("cu_seqlens_k", cu_k)
        if (lengths_k > capacity).any():
            raise ValueError(
                f"cu_seqlens_k gives a length of {lengths_k.max()}; "
                f"block_table holds {table.shape[1]} pages of {k.shape[1]} rows a sequence"
            )
    else:
        assert cu_k is not None
        table = None
        lengths_k = packed_lengths("cu_seqlens_k", cu_k, k.shape[0], "k")
    used_q = used_lengths("seqused_q", seqused_q, batch, lengths_q, max_q)
    used_k = used_lengths("seqused_k", seqused_k, batch, lengths_k, max_k)
    problem = make_problem(
        layout="varlen",
        batch=batch,
        seqlen_q=max_q,
        seqlen_k=max_k,
        total_q=total_q,
        nheads=nheads,
        nheads_k=k.shape[-2],
        headdim=headdim,
        headdim_v=v.shape[-1],
        dtype=dtype_tag(q.dtype),
        page_size=k.shape[1] if paged else 0,
        **flags,
    )
    if table is not None:
        check_live_pages(problem, table, k.shape[0], used_q, used_k)
    return problem, Operands(
        q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k,
        seqused_q=seqused_q, seqused_k=seqused_k, block_table=table,
        **check_descales(problem, q_descale, k_descale, v_descale),
    )  # fmt: skip


def describe_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    *,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = True,
    cu_seqlens_q: Any = None,
    max_seqlen_q: Any = None,
    dtype: str | None = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    **flags: Any,
) -> tuple[AttentionProblem, Operands]:
    """Describe q, dense or packed by cu_seqlens_q, against a contiguous or paged cache."""
    check_same_device(
        q=q, k_cache=k_cache, v_cache=v_cache, k=k, v=v, cache_seqlens=cache_seqlens,
        cache_batch_idx=cache_batch_idx, cache_leftpad=cache_leftpad, block_table=block_table,
        cu_seqlens_q=cu_seqlens_q, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
    )  # fmt: skip
    packed = cu_seqlens_q is not None
    q, k_cache, v_cache = check_operands(
        q, k_cache, v_cache, dtype, q_ndim=3 if packed else 4, k_ndim=4,
        names=("q", "k_cache", "v_cache"), paged=block_table is not None,
    )  # fmt: skip
    nheads, headdim = q.shape[-2:]
    check_kv(k_cache, v_cache, headdim, names=("k_cache", "v_cache"))
    if packed:
        cu_q = as_index_array("cu_seqlens_q", cu_seqlens_q, (None,), "(batch + 1,)")
        if max_seqlen_q is None:
            raise TypeError("max_seqlen_q is None; cu_seqlens_q needs it")
        batch, seqlen_q = cu_q.shape[0] - 1, as_int("max_seqlen_q", max_seqlen_q, low=0)
        lengths_q = packed_lengths("cu_seqlens_q", cu_q, q.shape[0], "q")
        check_longest("max_seqlen_q", seqlen_q, lengths_q)
    else:
        if max_seqlen_q is not None:
            raise TypeError("max_seqlen_q was given without cu_seqlens_q; they come together")
        cu_q, (batch, seqlen_q) = None, q.shape[:2]
        lengths_q = np.full(batch, seqlen_q)

    table, rows, leftpad = check_cache_addressing(
        k_cache, batch, block_table, cache_batch_idx, cache_leftpad
    )
    seqlen_cache = k_cache.shape[1] if table is None else table.shape[1] * k_cache.shape[1]
    k_new, v_new = check_new_tokens(k, v, k_cache, v_cache, batch, dtype)
    if k_new is not None and rows is not None and np.unique(rows).size < batch:
        raise ValueError(
            f"cache_batch_idx is {rows}; a row may be named once only where k and v are appended"
        )
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if k_new is not None:
            check_writable(name, cache)
    seqlen_new = 0 if k_new is None else k_new.shape[1]
    seqlens = cache_lengths(cache_seqlens, batch, seqlen_cache, seqlen_new, has_new=k is not None)
    lengths_k = seqlens + seqlen_new - (0 if leftpad is None else leftpad)
    if (lengths_k < 0).any():
        raise ValueError(
            f"cache_leftpad is {leftpad}; accepted is at most cache_seqlens plus the new tokens, "
            f"{seqlens + seqlen_new}"
        )
    problem = make_problem(
        layout="kvcache",
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=int(lengths_k.max(initial=0)),
        total_q=q.shape[0] if packed else None,
        nheads=nheads,
        nheads_k=k_cache.shape[2],
        headdim=headdim,
        headdim_v=v_cache.shape[3],
        dtype=dtype_tag(q.dtype),
        page_size=0 if table is None else k_cache.shape[1],
        **flags,
    )
    cos, sin = check_rotary(rotary_cos, rotary_sin, headdim, has_new=k_new is not None)
    interleaved = as_flag("rotary_interleaved", rotary_interleaved)
    if cos is not None:
        rotated_q = lengths_q if problem.is_masked else np.minimum(lengths_q, 1)
        reach = int((seqlens + np.maximum(rotated_q, seqlen_new)).max(initial=0))
        if cos.shape[0] < reach:
            raise ValueError(
                f"rotary_cos has {cos.shape[0]} positions; the call reaches position {reach - 1}"
            )
    if table is not None:
        check_live_pages(problem, table, k_cache.shape[0], lengths_q, lengths_k)
        check_append_pages(table, k_cache, seqlens, seqlen_new)
    return problem, Operands(
        q, k_cache, v_cache, cu_seqlens_q=cu_q, block_table=table, k_new=k_new, v_new=v_new,
        cache_seqlens=seqlens, cache_batch_idx=rows, cache_leftpad=leftpad,
        rotary_cos=cos, rotary_sin=sin, rotary_interleaved=interleaved,
        **check_descales(problem, q_descale, k_descale, v_descale),
    )  # fmt: skip
