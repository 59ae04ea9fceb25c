"""The forward pass, tile by tile: softmax(q kᵀ) v without ever holding q kᵀ.

`flash_fwd` is FlashAttention-2 (arXiv 2307.08691, algorithm 1). A block of queries stays in fast
memory while the keys and values pass by in tiles; an online softmax keeps the running sum right,
and the rows are normalised and written once, at the end::

    for each block of rows:                       on a GPU: one thread block each
        q_tile = load(q) · σ·log2 e
        for each tile of keys that the mask leaves, right to left:
            S = q_tile · k_tileᵀ                  score_mod: softcap
            S = -inf where not allowed            mask: in edge tiles only
            P, row_scale = online softmax of S    softmax
            acc_o = row_scale · acc_o + P · v_tile
        store(acc_o / row_sum, lse)               epilogue

`flash_fwd_split` shares the key tiles of a row block out among several workers (Flash-Decoding).
`flash_fwd_fa1` is the loop order of FlashAttention (arXiv 2205.14135, algorithm 1): keys outside,
queries inside, the unfinished output in slow memory. The results are equal to rounding, the traffic
is not; `HbmCounter` shows it.

The code is vectorised over sequences and heads. As with PackGQA, the query heads that share a
key head lie one below the other in a tile, so that keys and values are neither copied nor read
twice.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from fa_numba.indexing.block_range import (
    ceil_div,
    get_m_block_min_max,
    get_n_block_min_max,
    get_unmasked_n_block_min_max,
    n_block_at,
    n_block_count,
)
from fa_numba.reference.epilogue import store_rows
from fa_numba.reference.mask import apply_mask, tile_mask, zero_dead_rows
from fa_numba.reference.score_mod import apply_score_mod
from fa_numba.reference.softmax import LOG2_E, Exp2, OnlineSoftmax
from fa_numba.reference.tile_io import (
    HbmCounter,
    PagedTensor,
    Tensor,
    TileBuffers,
    compute_dtype,
    load_tile,
)
from fa_numba.reference.workers import run_workers

__all__ = [
    "HbmCounter",
    "PagedTensor",
    "default_tiles",
    "flash_fwd",
    "flash_fwd_fa1",
    "flash_fwd_split",
]

# Scores of all heads that are worked on at once: 1 MiB of float32, about the second-level cache of
# a current core. Fewer make the calls into NumPy dear, more make them wait for memory.
_MAX_SCORES = 512 * 512
_WIDE_TILE_N = 1024
# Scores to compute plus numbers of keys to read, from which on threads are worth their start: calls
# of some milliseconds.
_MIN_SHARED_WORK = 1 << 21
# So many tasks at least, however few the rows. More would tear apart heads that lie side by side in
# memory, and decoding waits for memory.
_MIN_SHARED_TASKS = 4


class RowBlock(NamedTuple):
    """What a GPU gives to one thread block: a tile of queries, of some heads of some sequences.

    Attributes
    ----------
    m_block
        Index of the tile.
    batch, heads_k
        Sequences, and key heads with all query heads that belong to them.
    """

    m_block: int
    batch: slice
    heads_k: slice


class KeyTile(NamedTuple):
    """One step of the loop over keys.

    Attributes
    ----------
    start, stop
        Keys [start, stop); the last tile is cut at the last key.
    mask
        From `tile_mask`, or None if all its scores count.
    """

    start: int
    stop: int
    mask: NDArray[np.bool_] | None


def flash_fwd(
    q: NDArray[Any],
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
    softcap: float = 0.0,
    q_descale: NDArray[Any] | None = None,
    k_descale: NDArray[Any] | None = None,
    v_descale: NDArray[Any] | None = None,
    descale_block: int = 128,
    tile_m: int | None = None,
    tile_n: int | None = None,
    exp2: Exp2 | None = None,
    rescale_threshold: float = 0.0,
    max_offset: int = 0,
    p_dtype: DTypeLike | None = None,
    counter: HbmCounter | None = None,
    split_idx: int = 0,
    num_splits: int = 1,
    out: NDArray[Any] | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Attention in the loop order of FlashAttention-2.

    Parameters
    ----------
    q : ndarray, (batch, seqlen_q, nheads, headdim)
        Queries. float64 is computed in float64; every other dtype is widened to float32, tile by
        tile.
    k : ndarray or PagedTensor, (batch, seqlen_k, nheads_k, headdim)
        Keys; query head h reads head ``h // (nheads / nheads_k)``. Keys that no query may attend
        may hold anything.
    v : ndarray or PagedTensor, (batch, seqlen_k, nheads_k, headdim_v)
        Values, likewise.
    softmax_scale : float
        Factor on q·k, finite and >= 0.
    window_left, window_right : int
        Keys visible before and after a query's own position ``i + seqlen_k - seqlen_q``; -1 is
        unlimited, causal attention is ``window_right = 0``.
    sink_token_length : int
        Leading keys that the left bound does not hide.
    softcap : float
        Bound on the magnitude of the scores; 0 for none.
    q_descale, k_descale, v_descale : ndarray of float32, optional
        Undo an FP8 quantisation: (batch, nheads_k), or (batch, nheads_k, n_blocks) with a factor
        for every `descale_block` rows (FlashAttention-3's block quantisation).
    descale_block : int
        Rows that share a factor of a three-dimensional descale.
    tile_m, tile_n : int, optional
        Queries and keys of a tile; by default `default_tiles`.
    exp2 : callable, optional
        Evaluates 2^x for P, for instance `fa_numba.reference.exp2.exp2_poly`.
    rescale_threshold : float
        τ of the conditional rescale, in units of log 2.
    max_offset : int
        P is scaled by 2^max_offset; 8 for FP8.
    p_dtype : dtype, optional
        P is rounded to it before it meets v, as on tensor cores. The row sums add up the unrounded
        P, as in FlashAttention-3: lse stays exact, and the rounding errors of P, which have no
        common sign, average out in the output.
    counter : HbmCounter, optional
        Counts the traffic.
    split_idx, num_splits : int
        Work on one share of the key tiles of every row block only.
    out : ndarray, (batch, seqlen_q, nheads, headdim_v), optional
        Where to put the output, in any floating-point dtype.

    Returns
    -------
    out : ndarray, (batch, seqlen_q, nheads, headdim_v)
        The argument, or a new array of float32 (float64 for float64 inputs); 0 for rows that may
        attend no key.
    lse : ndarray, (batch, nheads, seqlen_q)
        Natural logarithm of the sum of exp(score), float32 or float64; -inf for such rows.

    Raises
    ------
    ValueError
        If P could overflow `p_dtype`.
    """
    batch, seqlen_q, nheads, _ = q.shape
    seqlen_k, nheads_k, headdim_v = k.shape[1], k.shape[2], v.shape[3]
    group = nheads // nheads_k
    dtype = compute_dtype(q.dtype)
    _check_p_range(p_dtype, rescale_threshold, max_offset)
    best_m, best_n = default_tiles(seqlen_q, seqlen_k, group, window_left, window_right)
    tile_m = min(tile_m or best_m, max(seqlen_q, 1))
    tile_n = min(tile_n or best_n, max(seqlen_k, 1))
    geometry = (seqlen_q, seqlen_k, window_left, window_right, sink_token_length)
    if q_descale is not None:
        q_descale = np.repeat(q_descale, group, axis=1)
    if out is None:
        out = np.empty((batch, seqlen_q, nheads, headdim_v), dtype)
    lse = np.empty((batch, nheads, seqlen_q), dtype)

    load = functools.partial(load_tile, descale_block=descale_block, counter=counter)
    new_softmax = functools.partial(
        OnlineSoftmax,
        dtype=dtype,
        exp2=exp2,
        rescale_threshold=rescale_threshold,
        max_offset=max_offset,
    )
    # Consecutive tasks work on the same rows of other heads, under the same masks.
    list_key_tiles = functools.lru_cache(maxsize=16)(
        functools.partial(
            _key_tiles, tile_m=tile_m, tile_n=tile_n, geometry=geometry,
            split_idx=split_idx, num_splits=num_splits,
        )
    )  # fmt: skip

    def attend_row_blocks(row_blocks: Iterator[RowBlock]) -> None:
        buffers = TileBuffers(dtype)
        # Keys that nobody attends may hold infinities; what they make is thrown away, silently.
        with np.errstate(invalid="ignore", over="ignore"):
            for m_block, b, heads_k in row_blocks:
                rows = slice(m_block * tile_m, min((m_block + 1) * tile_m, seqlen_q))
                heads = slice(heads_k.start * group, heads_k.stop * group)
                q_tile = load(
                    q, rows.start, rows.stop, batch=b, heads=heads, descale=q_descale, name="q"
                )
                q_tile = _scale_and_pack(q_tile, softmax_scale * LOG2_E, group, buffers)
                load_k, load_v = (
                    functools.partial(load, x, batch=b, heads=heads_k, descale=descale, name=name)
                    for x, descale, name in ((k, k_descale, "k"), (v, v_descale, "v"))
                )
                softmax = new_softmax(q_tile.shape[:3])
                acc_o = buffers.take("acc_o", (*q_tile.shape[:3], headdim_v))
                key_tiles = list_key_tiles(m_block)
                _attend(
                    q_tile, key_tiles, load_k, load_v, softmax, acc_o, buffers, softcap, p_dtype
                )
                out_tile, lse_tile = out[b, rows, heads], lse[b, heads, rows]
                store_rows(acc_o, softmax, out_tile, lse_tile)
                if counter is not None:
                    counter.write("out", out_tile.nbytes)
                    counter.write("lse", lse_tile.nbytes)

    num_m_blocks = ceil_div(seqlen_q, tile_m)
    work = batch * nheads_k * seqlen_k * (group * seqlen_q + headdim_v)
    is_shared = work >= _MIN_SHARED_WORK and counter is None  # a counter counts in one thread
    min_groups = ceil_div(_MIN_SHARED_TASKS, max(num_m_blocks, 1)) if is_shared else 1
    head_groups = list(_head_groups(batch, nheads_k, group * tile_m * tile_n, min_groups))
    # Last rows first: under a causal mask they have the most keys.
    row_blocks = [RowBlock(m, b, h) for m in reversed(range(num_m_blocks)) for b, h in head_groups]
    if is_shared:
        run_workers(attend_row_blocks, row_blocks)
    else:
        attend_row_blocks(iter(row_blocks))
    return out, lse


def flash_fwd_split(
    q: NDArray[Any], k: Tensor, v: Tensor, *, num_splits: int, **options: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Attention to each of `num_splits` shares of the key tiles, to be merged afterwards.

    A decoding step has few rows of queries and would leave most of a GPU idle; splitting the keys
    makes work for it (Flash-Decoding). `fa_numba.reference.flash_fwd_combine` merges the parts.

    Parameters
    ----------
    q, k, v
        As for `flash_fwd`.
    num_splits : int
        Number of shares, at least 1. Of the tiles of a row block, each share is a run of
        ceil(count / num_splits); the last ones may get fewer or none.
    **options
        As for `flash_fwd`.

    Returns
    -------
    out_partial : ndarray, (num_splits, batch, seqlen_q, nheads, headdim_v)
        Normalised outputs, float32 or float64; 0 where a share has no allowed key.
    lse_partial : ndarray, (num_splits, batch, nheads, seqlen_q)
        Their natural-log softmax denominators; -inf where a share has no allowed key.
    """
    batch, seqlen_q, nheads, _ = q.shape
    dtype = compute_dtype(q.dtype)
    out_partial = np.empty((num_splits, batch, seqlen_q, nheads, v.shape[3]), dtype)
    lse_partial = np.empty((num_splits, batch, nheads, seqlen_q), dtype)
    for split_idx in range(num_splits):
        _, lse_partial[split_idx] = flash_fwd(
            q,
            k,
            v,
            split_idx=split_idx,
            num_splits=num_splits,
            out=out_partial[split_idx],
            **options,
        )
    return out_partial, lse_partial


def flash_fwd_fa1(
    q: NDArray[Any],
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
    softcap: float = 0.0,
    tile_m: int = 128,
    tile_n: int = 128,
    counter: HbmCounter | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Attention in the loop order of FlashAttention-1: keys outside, queries inside.

    Every key tile is loaded once and stays. The price: each row's unfinished output, its maximum
    and its sum go to slow memory and come back for every key tile.

    Parameters
    ----------
    q, k, v, softmax_scale, window_left, window_right, sink_token_length, softcap, counter
        As for `flash_fwd`.
    tile_m, tile_n : int
        Queries and keys of a tile. All sequences and heads are worked on at once, so the score
        tile has batch · nheads · tile_m · tile_n elements.

    Returns
    -------
    out, lse : ndarray
        As from `flash_fwd`.
    """
    batch, seqlen_q, nheads, _ = q.shape
    seqlen_k, nheads_k = k.shape[1:3]
    geometry = (seqlen_q, seqlen_k, window_left, window_right, sink_token_length)
    dtype = compute_dtype(q.dtype)
    counter = HbmCounter() if counter is None else counter
    load = functools.partial(load_tile, counter=counter)
    out = np.zeros((batch, seqlen_q, nheads, v.shape[3]), dtype)
    # lse is the two statistics in one number, for the caller; the loop does not use it.
    lse = np.full((batch, nheads, seqlen_q), -np.inf, dtype)
    row_max, row_sum = np.full_like(lse, -np.inf), np.zeros_like(lse)
    for name, state in (("out", out), ("row_max", row_max), ("row_sum", row_sum)):
        counter.write(name, state.nbytes)

    with np.errstate(invalid="ignore", over="ignore"):
        for n_block in range(ceil_div(seqlen_k, tile_n)):
            cols = slice(n_block * tile_n, min((n_block + 1) * tile_n, seqlen_k))
            k_tile = load(k, cols.start, cols.stop, name="k")
            v_tile = load(v, cols.start, cols.stop, name="v")
            for m_block in range(*get_m_block_min_max(n_block, tile_m, tile_n, *geometry)):
                rows = slice(m_block * tile_m, min((m_block + 1) * tile_m, seqlen_q))
                mask = tile_mask(rows.start, rows.stop, cols.start, cols.stop, *geometry)
                packed = (batch, nheads_k, nheads // nheads_k * (rows.stop - rows.start))
                q_tile, out_tile = (
                    load(x, rows.start, rows.stop, name=name).reshape(*packed, x.shape[3])
                    for x, name in ((q, "q"), (out, "out"))
                )
                old_max, old_sum = (x[:, :, rows].reshape(*packed, 1) for x in (row_max, row_sum))
                softmax = OnlineSoftmax(packed, dtype)
                softmax.row_max, softmax.row_sum = old_max, old_sum
                counter.read("row_max", old_max.nbytes)
                counter.read("row_sum", old_sum.nbytes)

                scores = q_tile @ k_tile.swapaxes(-1, -2)
                scores = apply_score_mod(scores, softmax_scale * LOG2_E, softcap * LOG2_E)
                apply_mask(scores, mask)
                p, row_scale = softmax.update(scores)
                # The output in slow memory is normalised; its old row sum makes a sum of it again.
                acc_o = out_tile * (old_sum * row_scale) + p @ zero_dead_rows(v_tile, mask)

                store_rows(acc_o, softmax, out[:, rows], lse[:, :, rows])
                for name, state, new in (
                    ("row_max", row_max, softmax.row_max),
                    ("row_sum", row_sum, softmax.row_sum),
                ):
                    state[:, :, rows] = new.reshape(batch, nheads, rows.stop - rows.start)
                    counter.write(name, new.nbytes)
                counter.write("out", out[:, rows].nbytes)
    return out, lse


def _scale_and_pack(
    q_tile: NDArray[Any], scale: float, group: int, buffers: TileBuffers
) -> NDArray[Any]:
    """Scale queries, which is scaling S with a pass over it fewer, and pack heads into rows.

    (batch, nheads, rows, headdim) becomes (batch, nheads_k, group * rows, headdim).
    """
    batch, nheads, rows, headdim = q_tile.shape
    scaled = buffers.take("q", q_tile.shape)
    np.multiply(q_tile, q_tile.dtype.type(scale), out=scaled)
    return scaled.reshape(batch, nheads // group, group * rows, headdim)


def _attend(
    q_tile: NDArray[Any],
    key_tiles: list[KeyTile],
    load_k: Callable[[int, int], NDArray[Any]],
    load_v: Callable[[int, int], NDArray[Any]],
    softmax: OnlineSoftmax,
    acc_o: NDArray[Any],
    buffers: TileBuffers,
    softcap: float,
    p_dtype: DTypeLike | None,
) -> None:
    """Put the sum of P·V over the key tiles into `acc_o`, the row statistics into `softmax`.

    Without any key tile `acc_o` stays as it was: the epilogue does not look at empty rows.
    """
    for i, (start, stop, mask) in enumerate(key_tiles):
        scores = buffers.take("scores", (*q_tile.shape[:3], stop - start))
        np.matmul(q_tile, load_k(start, stop).swapaxes(-1, -2), out=scores)
        if softcap > 0:
            apply_score_mod(scores, 1, softcap * LOG2_E, out=scores)
        v_tile = load_v(start, stop)
        if mask is not None:
            apply_mask(scores, mask)
            v_tile = zero_dead_rows(v_tile, mask)
        p, row_scale = softmax.update(scores)
        if p_dtype is not None:
            p = p.astype(p_dtype).astype(p.dtype)
        if i == 0:
            np.matmul(p, v_tile, out=acc_o)  # nothing to rescale yet
        else:
            acc_o *= row_scale
            acc_o += np.matmul(p, v_tile, out=buffers.take("pv", acc_o.shape))


def default_tiles(
    seqlen_q: int, seqlen_k: int, qhead_per_khead: int, window_left: int, window_right: int
) -> tuple[int, int]:
    """Choose the tile for which NumPy is fast, by measurement.

    Large tiles keep the calls into NumPy few. The edges of a mask want smaller ones, because a
    tile on an edge is computed whole: half as wide for a causal mask, and no wider than half of a
    short window. A few rows of queries, as in decoding, get wide tiles.

    Parameters
    ----------
    seqlen_q, seqlen_k : int
        Lengths.
    qhead_per_khead : int
        Query heads of a key head; they are rows of the same tile.
    window_left, window_right : int
        The mask; -1 is unlimited.

    Returns
    -------
    tile_m, tile_n : int
        At least 1 each.
    """
    is_band = window_left >= 0 and window_right >= 0
    side = 256 if window_right >= 0 else 512
    if is_band and window_left + window_right < 512:
        side = 128
    tile_m = max(1, min(side // qhead_per_khead, seqlen_q))
    has_few_rows = seqlen_q * qhead_per_khead < side
    tile_n = _WIDE_TILE_N if has_few_rows and not is_band else side
    return tile_m, max(1, min(tile_n, seqlen_k))


def _key_tiles(
    m_block: int,
    *,
    tile_m: int,
    tile_n: int,
    geometry: tuple[int, int, int, int, int],
    split_idx: int,
    num_splits: int,
) -> list[KeyTile]:
    """List the key tiles of a tile of queries in loop order, with the masks that they need."""
    row_start, row_stop = m_block * tile_m, min((m_block + 1) * tile_m, geometry[0])
    args = (m_block, tile_m, tile_n, *geometry, 1, split_idx, num_splits)
    visited = get_n_block_min_max(*args)
    unmasked = range(*get_unmasked_n_block_min_max(*args))
    tiles = []
    for i in range(n_block_count(visited)):
        n_block = n_block_at(visited, i)
        start, stop = n_block * tile_n, min((n_block + 1) * tile_n, geometry[1])
        mask = None
        if n_block not in unmasked:
            mask = tile_mask(row_start, row_stop, start, stop, *geometry)
            # A kernel masks the columns past the last key; here the tile is cut, and may be whole.
            mask = None if mask.all() else mask
        tiles.append(KeyTile(start, stop, mask))
    return tiles


def _head_groups(
    batch: int, nheads_k: int, scores_per_head: int, min_groups: int
) -> Iterator[tuple[slice, slice]]:
    """Cut (sequence, key head) pairs into runs whose score tiles fit the cache together.

    About `min_groups` runs at least, if there are so many pairs.
    """
    heads_at_once = _MAX_SCORES // scores_per_head
    if min_groups > 1:
        heads_at_once = min(heads_at_once, batch * nheads_k // min_groups)
    heads_at_once = max(1, heads_at_once)
    sequences_at_once = max(1, heads_at_once // nheads_k)
    for b in range(0, batch, sequences_at_once):
        for h in range(0, nheads_k, heads_at_once):
            yield (
                slice(b, min(b + sequences_at_once, batch)),
                slice(h, min(h + heads_at_once, nheads_k)),
            )


def _check_p_range(p_dtype: DTypeLike | None, rescale_threshold: float, max_offset: int) -> None:
    if p_dtype is None:
        return
    limit = math.log2(float(ml_dtypes.finfo(p_dtype).max))  # type: ignore[no-untyped-call]
    if max_offset + rescale_threshold > limit:
        raise ValueError(
            f"max_offset is {max_offset} and rescale_threshold {rescale_threshold}; accepted is a "
            f"sum of at most log2 of the largest {np.dtype(p_dtype)}, {limit:.2f}"
        )
