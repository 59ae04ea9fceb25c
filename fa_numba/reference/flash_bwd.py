"""The backward pass, tile by tile: gradients of attention without a stored score matrix.

The forward kept two numbers a row for us, `out` and `lse`. They are enough: the probabilities are
recomputed from q, k and lse, and the sum that the softmax's derivative needs, Σ_j P_ij dP_ij, is
the row's dO·O. So, per tile of keys (outer loop) and tile of queries (inner loop)::

    S  = score_mod(q kᵀ)           P  = exp(S - lse)
    dP = dO vᵀ                     dS = P ∘ (dP - delta) ∘ φ
    dv += Pᵀ dO      dk += σ dSᵀ q      dq += σ dS k

with ``delta = Σ dO·O - dlse`` per row and φ the derivative of the softcap (1 without). Five
products against the forward's two. dk and dv of a key tile are finished when its loop ends; dq is
summed across key tiles in an accumulator of compute precision, which a GPU does with atomics.

Sources: FlashAttention, arXiv 2205.14135, algorithm 4; FlashAttention-2, arXiv 2307.08691,
algorithm 2; guards and the three-kernel split of Dao-AILab/flash-attention ``hopper/``
(``flash_bwd_preprocess_kernel.h``, ``mainloop_bwd_sm90_tma_gmma_ws.hpp``,
``flash_bwd_postprocess_kernel.h``).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fa_numba.indexing.block_range import get_m_block_min_max, get_unmasked_m_block_min_max
from fa_numba.reference.mask import apply_mask, tile_mask, zero_dead_rows
from fa_numba.reference.score_mod import apply_score_mod, score_mod_grad
from fa_numba.reference.softmax import LOG2_E
from fa_numba.reference.tile_io import HbmCounter, compute_dtype, load_tile

__all__ = ["flash_bwd", "flash_bwd_postprocess", "flash_bwd_preprocess"]

_DEFAULT_TILE = 128
# Scores of a tile over batch and heads, 1 MiB of float32: some four arrays of this size are alive
# at once, and larger ones leave the caches of a usual CPU.
_MAX_SCORES = 1 << 18


def flash_bwd(
    dout: NDArray[Any],
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    out: NDArray[Any],
    lse: NDArray[Any],
    *,
    dlse: NDArray[Any] | None = None,
    softmax_scale: float,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
    softcap: float = 0.0,
    tile_m: int | None = None,
    tile_n: int | None = None,
    counter: HbmCounter | None = None,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Gradients of attention by the tiled recomputation of FlashAttention-2.

    Parameters
    ----------
    dout : ndarray, (batch, seqlen_q, nheads, headdim_v)
        Gradient arriving at the output.
    q : ndarray, (batch, seqlen_q, nheads, headdim)
        Queries. float64 is computed in float64; all other dtypes are widened to float32, tile by
        tile.
    k : ndarray, (batch, seqlen_k, nheads_k, headdim)
        Keys; query head h reads head ``h // (nheads / nheads_k)``.
    v : ndarray, (batch, seqlen_k, nheads_k, headdim_v)
        Values.
    out : ndarray, (batch, seqlen_q, nheads, headdim_v)
        The forward's output.
    lse : ndarray, (batch, nheads, seqlen_q)
        The forward's natural-log softmax denominators; -inf for empty rows.
    dlse : ndarray, (batch, nheads, seqlen_q), optional
        Gradient arriving at lse.
    softmax_scale, window_left, window_right, sink_token_length, softcap
        The forward's: factor on q·k, mask bounds (-1 = unlimited, causal = right 0), leading keys
        exempt from the left bound, and cap on the scores (0 = none).
    tile_m, tile_n : int, optional
        Queries and keys per tile.
    counter : HbmCounter, optional
        Counts the bytes that pass between the arrays and the tiles, scratch arrays included.

    Returns
    -------
    dq, dk, dv : ndarray
        Shapes and dtypes of q, k, v; rounded once. dk and dv are summed over the query heads of a
        group. Empty rows contribute 0 whatever q, dout and dlse hold there, and keys that no query
        may attend get 0 whatever k and v hold there.

    Notes
    -----
    Extra memory is O(batch · nheads · seqlen_q · headdim) for the accumulator of dq plus a few
    tiles. NaN or infinity in a key that some query may attend can spread to other rows of the
    same tile (0·inf).
    """
    batch, seqlen_q, nheads, headdim = q.shape
    seqlen_k = k.shape[1]
    config = _Config(
        tile_m=max(1, min(tile_m or _DEFAULT_TILE, seqlen_q)),
        tile_n=max(1, min(tile_n or _DEFAULT_TILE, seqlen_k)),
        mask_args=(seqlen_q, seqlen_k, window_left, window_right, sink_token_length),
        softmax_scale=softmax_scale,
        softcap=softcap,
        counter=counter,
    )
    dq, dk, dv = (np.empty(x.shape, x.dtype) for x in (q, k, v))

    # Infinities among the inputs give NaN where NaN is due; NumPy need not comment on it.
    with np.errstate(invalid="ignore", over="ignore"):
        delta, lse_log2 = flash_bwd_preprocess(dout, out, lse, dlse=dlse, counter=counter)
        is_empty = lse == -np.inf
        step = max(1, _MAX_SCORES // max(1, nheads * config.tile_m * config.tile_n))
        for start in range(0, batch, step):
            b = slice(start, start + step)
            rows = _QueryRows(q[b], dout[b], lse_log2[b], delta[b], is_empty[b])
            dq_accum = np.zeros((len(rows.q), nheads, seqlen_q, headdim), delta.dtype)
            if counter is not None:
                counter.write("dq_accum", dq_accum.nbytes)
            _main_loop(rows, k[b], v[b], dk[b], dv[b], dq_accum, config)
            dq[b] = flash_bwd_postprocess(dq_accum, softmax_scale, q.dtype, counter=counter)
    return dq, dk, dv


def flash_bwd_preprocess(
    dout: NDArray[Any],
    out: NDArray[Any],
    lse: NDArray[Any],
    *,
    dlse: NDArray[Any] | None = None,
    counter: HbmCounter | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Reduce each query row to the two numbers that the main loop needs.

    Parameters
    ----------
    dout, out : ndarray, (batch, seqlen_q, nheads, headdim_v)
        Gradient arriving at the output, and the output.
    lse : ndarray, (batch, nheads, seqlen_q)
        Natural-log softmax denominators.
    dlse : ndarray, (batch, nheads, seqlen_q), optional
        Gradient arriving at lse. Since d lse / dS = P, it enters dS exactly where delta does, with
        the opposite sign.
    counter : HbmCounter, optional
        Counts bytes.

    Returns
    -------
    delta : ndarray, (batch, nheads, seqlen_q)
        ``Σ dO·O - dlse``, in float64 for float64 dout, else float32; 0 for empty rows.
    lse_log2 : ndarray, (batch, nheads, seqlen_q)
        ``lse · log2 e`` for exp2; 0 for empty rows, whose scores are all -inf: exp2(-inf - 0) is
        0 and exp2(-inf + inf) would be NaN.
    """
    dtype = compute_dtype(dout.dtype)
    zero = dtype.type(0)
    is_empty = lse == -np.inf
    wide_dout, wide_out = (x.astype(dtype, copy=False) for x in (dout, out))
    delta: NDArray[Any] = np.einsum("bshd,bshd->bhs", wide_dout, wide_out)
    if dlse is not None:
        delta = delta - dlse.astype(dtype)
    delta = np.where(is_empty, zero, delta)
    lse_log2 = np.where(is_empty, zero, lse.astype(dtype) * dtype.type(LOG2_E))
    if counter is not None:
        counter.read("dout", dout.nbytes)
        counter.read("out", out.nbytes)
        counter.read("lse", lse.nbytes)
        if dlse is not None:
            counter.read("dlse", dlse.nbytes)
        counter.write("delta", delta.nbytes)
        counter.write("lse_log2", lse_log2.nbytes)
    return delta, lse_log2


def flash_bwd_postprocess(
    dq_accum: NDArray[Any],
    softmax_scale: float,
    dtype: DTypeLike,
    *,
    counter: HbmCounter | None = None,
) -> NDArray[Any]:
    """Finish dq: scale the accumulator, bring it to the public layout and round it once.

    Parameters
    ----------
    dq_accum : ndarray, (batch, nheads, seqlen_q, headdim)
        Sum over the key tiles of dS k.
    softmax_scale : float
        Factor on q·k.
    dtype : dtype
        Of the result.
    counter : HbmCounter, optional
        Counts bytes.

    Returns
    -------
    ndarray, (batch, seqlen_q, nheads, headdim)
        dq.
    """
    scaled: NDArray[Any] = dq_accum * dq_accum.dtype.type(softmax_scale)
    dq = scaled.transpose(0, 2, 1, 3).astype(dtype)
    if counter is not None:
        counter.read("dq_accum", dq_accum.nbytes)
        counter.write("dq", dq.nbytes)
    return dq


class _Config(NamedTuple):
    """What the main loop needs to know besides the arrays."""

    tile_m: int
    tile_n: int
    mask_args: tuple[int, int, int, int, int]  # lengths, window and sink, as `indexing` takes them
    softmax_scale: float
    softcap: float
    counter: HbmCounter | None


class _QueryRows(NamedTuple):
    """The query side of some sequences."""

    q: NDArray[Any]
    dout: NDArray[Any]
    lse_log2: NDArray[Any]
    delta: NDArray[Any]
    is_empty: NDArray[np.bool_]

    def tile(
        self, start: int, stop: int, nheads_k: int, counter: HbmCounter | None
    ) -> tuple[NDArray[Any], ...]:
        """Return q, dout (batch, nheads_k, qhead_per_khead · rows, dim), lse and delta (…, 1).

        The query heads of a group lie one below the other, so that a product with such a tile sums
        over them and each key head is read once. Empty rows are zeroed by select: they must not
        reach a gradient even if they hold NaN.
        """
        is_empty = self.is_empty[:, :, start:stop, None]
        packed = (len(self.q), nheads_k, -1)
        tiles = []
        for name, x in (("q", self.q), ("dout", self.dout)):
            tile = load_tile(x, start, stop, counter=counter, name=name)
            if is_empty.any():
                tile = np.where(is_empty, tile.dtype.type(0), tile)
            tiles.append(tile.reshape(*packed, tile.shape[-1]))
        for name, x in (("lse_log2", self.lse_log2), ("delta", self.delta)):
            if counter is not None:
                counter.read(name, x[:, :, start:stop].nbytes)
            tiles.append(x[:, :, start:stop].reshape(*packed, 1))
        return tuple(tiles)


def _main_loop(
    rows: _QueryRows,
    k: NDArray[Any],
    v: NDArray[Any],
    dk: NDArray[Any],
    dv: NDArray[Any],
    dq_accum: NDArray[Any],
    config: _Config,
) -> None:
    """Fill dk and dv, and add to dq_accum (batch, nheads, seqlen_q, headdim)."""
    seqlen_q, seqlen_k = config.mask_args[:2]
    counter = config.counter
    for n_block in range(-(-seqlen_k // config.tile_n)):
        n_start, n_stop = n_block * config.tile_n, min((n_block + 1) * config.tile_n, seqlen_k)
        k_tile = load_tile(k, n_start, n_stop, counter=counter, name="k")
        v_tile = load_tile(v, n_start, n_stop, counter=counter, name="v")
        dk_acc, dv_acc = np.zeros(k_tile.shape, k_tile.dtype), np.zeros(v_tile.shape, v_tile.dtype)
        block_args = (n_block, config.tile_m, config.tile_n, *config.mask_args)
        m_block_min, m_block_max = get_m_block_min_max(*block_args)
        m_unmasked_min, m_unmasked_max = get_unmasked_m_block_min_max(*block_args)

        for m_block in range(m_block_min, m_block_max):
            m_start, m_stop = m_block * config.tile_m, min((m_block + 1) * config.tile_m, seqlen_q)
            q_tile, dout_tile, lse_log2, delta = rows.tile(m_start, m_stop, k.shape[2], counter)
            allowed, k_live, v_live = None, k_tile, v_tile
            if not m_unmasked_min <= m_block < m_unmasked_max:
                allowed = tile_mask(m_start, m_stop, n_start, n_stop, *config.mask_args)
                k_live, v_live = (zero_dead_rows(x, allowed) for x in (k_tile, v_tile))

            p, phi = _recompute_p(q_tile, k_live, lse_log2, allowed, config)
            dv_acc += p.swapaxes(-1, -2) @ dout_tile
            ds = dout_tile @ v_live.swapaxes(-1, -2)  # dP; dS three steps on
            ds -= delta
            ds *= p
            if phi is not None:
                ds *= phi
            dk_acc += ds.swapaxes(-1, -2) @ q_tile
            dq_tile = dq_accum[:, :, m_start:m_stop]
            dq_tile += (ds @ k_live).reshape(dq_tile.shape)
            if counter is not None:
                counter.read("dq_accum", dq_tile.nbytes)
                counter.write("dq_accum", dq_tile.nbytes)

        dk_acc *= dk_acc.dtype.type(config.softmax_scale)
        for name, grad, acc in (("dk", dk, dk_acc), ("dv", dv, dv_acc)):
            grad[:, n_start:n_stop] = acc.transpose(0, 2, 1, 3)
            if counter is not None:
                counter.write(name, grad[:, n_start:n_stop].nbytes)


def _recompute_p(
    q_tile: NDArray[Any],
    k_tile: NDArray[Any],
    lse_log2: NDArray[Any],
    allowed: NDArray[np.bool_] | None,
    config: _Config,
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return P of a tile, and φ if there is a softcap."""
    scores = q_tile @ k_tile.swapaxes(-1, -2)
    phi = None
    if config.softcap > 0:
        phi = score_mod_grad(scores, config.softmax_scale, config.softcap)
    # Scale and cap both times log2 e: scores in units of log 2, ready for exp2.
    apply_score_mod(scores, config.softmax_scale * LOG2_E, config.softcap * LOG2_E, out=scores)
    if allowed is not None:
        apply_mask(scores, allowed)
    scores -= lse_log2
    return np.exp2(scores, out=scores), phi
