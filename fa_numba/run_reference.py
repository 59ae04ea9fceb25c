"""Run a planned problem on the reference family.

The tiled loops in :mod:`fa_numba.reference` know one thing: a batch of sequences of one length.
This module cuts packed, paged and cached operands into such batches (a whole dense batch is one)
and puts the results where the caller's layout wants them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fa_numba.arrays import numpy_dtype
from fa_numba.operands import Operands
from fa_numba.plan import Plan
from fa_numba.problem import AttentionProblem
from fa_numba.reference.append_kv import append_kv
from fa_numba.reference.flash_bwd import flash_bwd
from fa_numba.reference.flash_fwd import flash_fwd, flash_fwd_split
from fa_numba.reference.flash_fwd_combine import flash_fwd_combine
from fa_numba.reference.rotary import apply_rotary
from fa_numba.reference.tile_io import PagedTensor, Tensor

__all__ = ["run_backward", "run_forward"]

Array = np.ndarray[Any, Any]

# P lies in [0, 1] and is rounded to E4M3 for the second GEMM: shifted up by 2^8 its smallest
# normal value is 2^-14 instead of 2^-6, and 256 still fits below 448 (FlashAttention-3's value).
FP8_MAX_OFFSET = 8


class Chunk(NamedTuple):
    """A batch of sequences of one length: where it lies, and its operands as the loops want them.

    Attributes
    ----------
    batch
        The sequences' numbers, a slice of the problem's batch.
    rows
        Where out, (and dq) and lse belong: a slice of the batch axis of a dense result, or of the
        token axis of a packed one.
    keys
        Likewise for dk and dv; unused where K and V are paged or cached.
    q, k, v
        (batch, seqlen, heads, headdim), or a :class:`PagedTensor` for k and v.
    """

    batch: slice
    rows: slice
    keys: slice
    q: Array
    k: Tensor
    v: Tensor


def run_forward(problem: AttentionProblem, plan: Plan, x: Operands) -> tuple[Array, Array]:
    """Run the forward.

    Parameters
    ----------
    problem, plan, x
        The call, its plan, its arrays. For ``"kvcache"`` the new tokens are written into the
        caller's cache first.

    Returns
    -------
    out : numpy.ndarray
        (batch, seqlen_q, nheads, headdim_v), or (total_q, nheads, headdim_v) for packed q.
    lse : numpy.ndarray
        (batch, nheads, seqlen_q), or (nheads, total_q).
    """
    packed = x.q.ndim == 3
    out = np.zeros((*x.q.shape[:-1], problem.headdim_v), numpy_dtype(problem.out_dtype))
    lse_shape = x.q.shape[-2::-1] if packed else (x.q.shape[0], x.q.shape[2], x.q.shape[1])
    lse = np.full(lse_shape, -np.inf, numpy_dtype(problem.lse_dtype))
    for chunk in _chunks(problem, x):
        if 0 in chunk.q.shape or chunk.k.shape[1] == 0:
            continue  # nothing to attend: out stays 0 and lse -inf
        where, lse_where = _where(chunk.rows, packed=packed)
        lse[lse_where] = _attend(problem, plan, x, chunk, out[where])
    return out, lse


def run_backward(
    problem: AttentionProblem,
    x: Operands,
    dout: Array,
    out: Array,
    lse: Array,
    dlse: Array | None,
) -> tuple[Array, Array, Array]:
    """Run the backward.

    Parameters
    ----------
    problem, x
        The forward call and its arrays.
    dout, out, lse, dlse
        The output's gradient, the output, its log-sum-exp, the latter's gradient or None.

    Returns
    -------
    dq, dk, dv : numpy.ndarray
        In the shapes and dtypes of q, k, v.
    """
    packed = x.q.ndim == 3
    # Not zeros_like: it would copy the strides of a broadcast operand, whose rows share memory.
    dq, dk, dv = (np.zeros(a.shape, a.dtype) for a in (x.q, x.k, x.v))
    for chunk in _chunks(problem, x):
        if 0 in chunk.q.shape or chunk.k.shape[1] == 0:
            continue  # nothing attends anything: all gradients stay 0
        rows, keys = chunk.rows, chunk.keys
        where, lse_where = _where(rows, packed=packed)
        assert isinstance(chunk.k, np.ndarray)  # pages have no backward
        assert isinstance(chunk.v, np.ndarray)
        grads = flash_bwd(
            dout[where], chunk.q, chunk.k, chunk.v, out[where], lse[lse_where],
            dlse=None if dlse is None else dlse[lse_where],
            **_mask_and_score(problem),
        )  # fmt: skip
        for whole, span, grad in zip((dq, dk, dv), (rows, keys, keys), grads, strict=True):
            whole[span] = grad[0] if packed else grad
    return dq, dk, dv


def _attend(problem: AttentionProblem, plan: Plan, x: Operands, chunk: Chunk, out: Array) -> Array:
    """Attend one chunk: write its output into ``out``, return its lse."""
    options: dict[str, Any] = {
        "tile_m": plan.tile_m // problem.qhead_per_khead,
        "tile_n": plan.tile_n,
        **_mask_and_score(problem),
    }
    if problem.is_fp8:
        options |= {"p_dtype": numpy_dtype(problem.dtype), "max_offset": FP8_MAX_OFFSET}
        for name in ("q_descale", "k_descale", "v_descale"):
            descale = getattr(x, name)
            options[name] = None if descale is None else descale[chunk.batch]
    if plan.num_splits == 1:
        return flash_fwd(chunk.q, chunk.k, chunk.v, out=out, **options)[1]
    partials = flash_fwd_split(chunk.q, chunk.k, chunk.v, num_splits=plan.num_splits, **options)
    out[...], lse = flash_fwd_combine(*partials)
    return lse


def _where(rows: slice, *, packed: bool) -> tuple[Any, Any]:
    """Indices of a chunk's rows in out and in lse, as views with a batch axis."""
    return ((None, rows), (None, slice(None), rows)) if packed else ((rows,), (rows,))


def _mask_and_score(problem: AttentionProblem) -> dict[str, Any]:
    return {
        "softmax_scale": problem.softmax_scale,
        "window_left": problem.window_left,
        "window_right": problem.window_right,
        "sink_token_length": problem.sink_token_length,
        "softcap": problem.softcap,
    }


def _chunks(problem: AttentionProblem, x: Operands) -> Iterator[Chunk]:
    if problem.layout == "dense":
        whole = slice(0, problem.batch)
        yield Chunk(whole, whole, whole, x.q, x.k, x.v)
    elif problem.layout == "varlen":
        yield from _varlen_chunks(problem, x)
    else:
        yield from _kvcache_chunks(problem, x)


def _varlen_chunks(problem: AttentionProblem, x: Operands) -> Iterator[Chunk]:
    assert x.cu_seqlens_q is not None
    for b in range(problem.batch):
        rows = _span(x.cu_seqlens_q, b, x.seqused_q)
        k: Tensor
        v: Tensor
        if x.block_table is None:
            assert x.cu_seqlens_k is not None
            keys = _span(x.cu_seqlens_k, b, x.seqused_k)
            k, v = x.k[None, keys], x.v[None, keys]
        else:
            if x.seqused_k is not None:
                seqlen_k = int(x.seqused_k[b])
            else:
                assert x.cu_seqlens_k is not None
                seqlen_k = int(x.cu_seqlens_k[b + 1] - x.cu_seqlens_k[b])
            keys = slice(0, 0)
            k, v = (PagedTensor(pages, x.block_table[b], seqlen_k) for pages in (x.k, x.v))
        yield Chunk(slice(b, b + 1), rows, keys, x.q[None, rows], k, v)


def _kvcache_chunks(problem: AttentionProblem, x: Operands) -> Iterator[Chunk]:
    assert x.cache_seqlens is not None
    seqlen_new = 0
    q = x.q
    if x.k_new is not None and x.v_new is not None:
        seqlen_new = x.k_new.shape[1]
        append_kv(
            x.k, x.v, x.k_new, x.v_new, cache_seqlens=x.cache_seqlens,
            cache_batch_idx=x.cache_batch_idx, block_table=x.block_table,
            rotary_cos=x.rotary_cos, rotary_sin=x.rotary_sin,
            rotary_interleaved=x.rotary_interleaved,
        )  # fmt: skip
        if x.rotary_cos is not None:
            q = _rotate_queries(problem, x)
    starts = np.zeros_like(x.cache_seqlens) if x.cache_leftpad is None else x.cache_leftpad
    stops = x.cache_seqlens + seqlen_new
    k: Tensor
    v: Tensor
    if _is_uniform(x, starts, stops):
        whole = slice(0, problem.batch)
        k, v = (cache[:, starts[0] : stops[0]] for cache in (x.k, x.v))
        yield Chunk(whole, whole, slice(0, 0), q, k, v)
        return
    for b in range(problem.batch):
        one = slice(b, b + 1)
        rows = one if x.cu_seqlens_q is None else _span(x.cu_seqlens_q, b, None)
        if x.block_table is None:
            row = b if x.cache_batch_idx is None else int(x.cache_batch_idx[b])
            k, v = (cache[row : row + 1, starts[b] : stops[b]] for cache in (x.k, x.v))
        else:
            k, v = (PagedTensor(c, x.block_table[b], int(stops[b])) for c in (x.k, x.v))
        yield Chunk(one, rows, slice(0, 0), q[rows] if q.ndim == 4 else q[None, rows], k, v)


def _is_uniform(x: Operands, starts: Array, stops: Array) -> bool:
    """Whether all sequences of a cache lie in it alike, so that one batch takes them all."""
    return (
        x.cu_seqlens_q is None
        and x.block_table is None
        and x.cache_batch_idx is None
        and stops.size > 0
        and bool((stops == stops[0]).all() and (starts == starts[0]).all())
    )


def _rotate_queries(problem: AttentionProblem, x: Operands) -> Array:
    """Rotate q by its slot numbers: row i of a masked call at cache_seqlens + i, else all alike.

    (flash-attention's rule: without a mask the rows of a call have no order.)
    """
    assert x.cache_seqlens is not None
    assert x.rotary_cos is not None
    assert x.rotary_sin is not None
    if x.cu_seqlens_q is None:
        steps = (
            np.arange(problem.seqlen_q)
            if problem.is_masked
            else np.zeros(problem.seqlen_q, np.int64)
        )
        positions = x.cache_seqlens[:, None] + steps
    else:
        lengths = np.diff(x.cu_seqlens_q)
        first = x.cu_seqlens_q[0]
        # Rows outside every sequence are attended by nothing; position 0 serves them.
        positions = np.zeros(x.q.shape[0], np.int64)
        steps = np.arange(lengths.sum()) - np.repeat(x.cu_seqlens_q[:-1] - first, lengths)
        positions[first : x.cu_seqlens_q[-1]] = np.repeat(x.cache_seqlens, lengths) + (
            steps if problem.is_masked else 0
        )
    q = x.q if x.q.ndim == 4 else x.q[None]
    positions = positions if x.q.ndim == 4 else positions[None]
    rotated = apply_rotary(
        q, x.rotary_cos, x.rotary_sin, positions, interleaved=x.rotary_interleaved
    )
    return rotated if x.q.ndim == 4 else rotated[0]


def _span(cu_seqlens: Array, b: int, seqused: Array | None) -> slice:
    start = int(cu_seqlens[b])
    return slice(start, int(cu_seqlens[b + 1]) if seqused is None else start + int(seqused[b]))
