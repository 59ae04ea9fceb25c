"""What attention computes and keeps: floating-point operations, exponentials, scratch memory.

Everything here is exact integer arithmetic on shapes. No array is touched, so a cost can be asked
for before the call is made (`fa_numba.explain` does) and for chips that are not in the machine.
The bytes that move are in `fa_numba.models.hbm`.
"""

from __future__ import annotations

from typing import Literal

from fa_numba.models.pairs import allowed_pairs

__all__ = ["arithmetic_intensity", "attention_exps", "attention_flops", "attention_scratch_bytes"]


def attention_flops(
    batch: int,
    nheads: int,
    seqlen_q: int,
    seqlen_k: int,
    headdim: int,
    headdim_v: int,
    *,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
    backward: bool = False,
) -> int:
    """Count the matrix-multiplication FLOPs of one attention call.

    Only allowed (query, key) pairs count, so a causal call costs about half of a full one. A
    multiply-add is two FLOPs. The softmax is not counted here (see `attention_exps`).

    Parameters
    ----------
    batch, nheads, seqlen_q, seqlen_k, headdim, headdim_v : int
        Shapes of the call. KV heads do not enter: grouped heads save bytes, not FLOPs.
    window_left, window_right : int, default -1
        The window, -1 for unlimited; causal attention is ``window_right=0``.
    sink_token_length : int, default 0
        Leading keys that the left bound does not hide.
    backward : bool, default False
        Count the backward pass alone instead of the forward pass.

    Returns
    -------
    int
        FLOPs.

    Notes
    -----
    Forward: two products per pair, q·k (2·headdim) and p·v (2·headdim_v). Backward: five, because
    S is recomputed: q·k, dout·v, and the products for dv, dq and dk. With equal head dimensions
    that is the factor 2.5 of the FlashAttention-2 paper (section 4.1).

    Examples
    --------
    >>> attention_flops(1, 1, 1024, 1024, 64, 64) == 4 * 1024**2 * 64
    True
    """
    pairs = (
        batch
        * nheads
        * allowed_pairs(
            seqlen_q,
            seqlen_k,
            window_left=window_left,
            window_right=window_right,
            sink_token_length=sink_token_length,
        )
    )
    if backward:
        return 2 * pairs * (3 * headdim + 2 * headdim_v)
    return 2 * pairs * (headdim + headdim_v)


def attention_exps(
    batch: int,
    nheads: int,
    seqlen_q: int,
    seqlen_k: int,
    *,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
) -> int:
    """Count the exponentials of one pass: one for each allowed (query, key) pair.

    On a GPU they go to the MUFU, the special-function unit. The backward pass recomputes P and so
    needs the same number again. The few exponentials that rescale a row once per tile are left
    out. Arguments are those of `attention_flops`.
    """
    return (
        batch
        * nheads
        * allowed_pairs(
            seqlen_q,
            seqlen_k,
            window_left=window_left,
            window_right=window_right,
            sink_token_length=sink_token_length,
        )
    )


def attention_scratch_bytes(
    batch: int,
    nheads: int,
    seqlen_q: int,
    seqlen_k: int,
    *,
    bytes_per_element: int,
    algorithm: Literal["standard", "tiled"] = "standard",
    tile_m: int = 128,
    tile_n: int = 128,
) -> int:
    """Count the bytes a forward pass needs beside its inputs and its output.

    Parameters
    ----------
    batch, nheads, seqlen_q, seqlen_k : int
        Shapes of the call.
    bytes_per_element : int
        Size of one score (2 for float16).
    algorithm : {"standard", "tiled"}, default "standard"
        standard keeps S and P whole: two matrices of seqlen_q by seqlen_k a head. tiled keeps lse
        (float32, one number a row) and, on chip, one tile of scores for each head.
    tile_m, tile_n : int, default 128
        Tile sizes of the tiled algorithm.

    Returns
    -------
    int
        Bytes: growing with the square of the length (standard) or with the length (tiled).
    """
    heads = batch * nheads
    if algorithm == "standard":
        return 2 * heads * seqlen_q * seqlen_k * bytes_per_element
    if algorithm == "tiled":
        tile = min(tile_m, seqlen_q) * min(tile_n, seqlen_k) * bytes_per_element
        return heads * (seqlen_q * 4 + tile)
    raise ValueError(f"algorithm must be standard or tiled, got {algorithm!r}")


def arithmetic_intensity(flops: float, hbm_bytes: float) -> float:
    """Return FLOPs per byte of HBM traffic: the x axis of a roofline.

    Zero bytes with some FLOPs give infinity (nothing limits them but the arithmetic); no FLOPs at
    all give zero.
    """
    if flops == 0:
        return 0.0
    return flops / hbm_bytes if hbm_bytes else float("inf")
