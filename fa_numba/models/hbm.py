"""How many bytes attention moves through HBM, for four algorithms, forward and backward.

Caches are not modelled: a tile that two thread blocks read counts twice even where the L2 cache
would serve the second read. That is the machine of the FlashAttention papers: one large slow
memory (HBM), one small fast one (SRAM), and nothing in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from fa_numba.models.pairs import key_rows_read, query_rows_read

__all__ = ["ALGORITHMS", "Algorithm", "HbmTraffic", "attention_hbm_bytes", "attention_hbm_traffic"]

Algorithm = Literal["minimal", "standard", "fa1", "fa2"]
ALGORITHMS: tuple[Algorithm, ...] = ("minimal", "standard", "fa1", "fa2")


class HbmTraffic(NamedTuple):
    """Bytes that cross the HBM bus, by tensor.

    Attributes
    ----------
    reads, writes : dict of str to int
        Bytes read and written, keyed by the tensor's name ("q", "k", "v", "out", "lse", ...).
    """

    reads: dict[str, int]
    writes: dict[str, int]

    @property
    def total(self) -> int:
        """All bytes, read and written."""
        return sum(self.reads.values()) + sum(self.writes.values())


def attention_hbm_bytes(
    batch: int,
    nheads: int,
    nheads_k: int,
    seqlen_q: int,
    seqlen_k: int,
    headdim: int,
    headdim_v: int,
    *,
    bytes_per_element: int,
    algorithm: Algorithm = "minimal",
    tile_m: int = 128,
    tile_n: int = 128,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
    pack_gqa: bool = False,
    backward: bool = False,
) -> int:
    """Count the bytes that one attention call moves through HBM: `attention_hbm_traffic`, summed.

    Examples
    --------
    The standard algorithm moves S and P four times, 4·N² elements a head:

    >>> shape = (1, 1, 1, 4096, 4096, 64, 64)
    >>> attention_hbm_bytes(*shape, bytes_per_element=2, algorithm="standard") / 2**20
    130.0
    >>> attention_hbm_bytes(*shape, bytes_per_element=2, algorithm="minimal") / 2**20
    2.015625
    """
    return attention_hbm_traffic(
        batch,
        nheads,
        nheads_k,
        seqlen_q,
        seqlen_k,
        headdim,
        headdim_v,
        bytes_per_element=bytes_per_element,
        algorithm=algorithm,
        tile_m=tile_m,
        tile_n=tile_n,
        window_left=window_left,
        window_right=window_right,
        sink_token_length=sink_token_length,
        pack_gqa=pack_gqa,
        backward=backward,
    ).total


def attention_hbm_traffic(
    batch: int,
    nheads: int,
    nheads_k: int,
    seqlen_q: int,
    seqlen_k: int,
    headdim: int,
    headdim_v: int,
    *,
    bytes_per_element: int,
    algorithm: Algorithm = "minimal",
    tile_m: int = 128,
    tile_n: int = 128,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
    pack_gqa: bool = False,
    backward: bool = False,
) -> HbmTraffic:
    """Count the bytes that one attention call moves through HBM, tensor by tensor.

    Parameters
    ----------
    batch, nheads, nheads_k, seqlen_q, seqlen_k, headdim, headdim_v : int
        Shapes of the call.
    bytes_per_element : int
        Size of one element of q, k, v, out (2 for float16 and bfloat16). Statistics and
        accumulators are float32, or float64 where the elements are.
    algorithm : {"minimal", "standard", "fa1", "fa2"}, default "minimal"
        - minimal: every input read once, every output written once. No algorithm can do better.
        - standard: S and P are written to HBM and read back. The mask saves nothing.
        - fa1: key tiles outside, query tiles inside. The unfinished out and its row statistics
          travel to HBM and back for every key tile.
        - fa2: query tiles outside, so out and lse are written once. Keys and values are read
          again for every query tile of every query head. Its backward pass has key tiles outside
          and adds into a float32 dq_accum in HBM.
    tile_m, tile_n : int, default 128
        Rows of a query and of a key tile (fa1, fa2).
    window_left, window_right, sink_token_length : int
        The mask, as in `fa_numba.models.attention_flops`; fa1 and fa2 skip the tiles it hides.
    pack_gqa : bool, default False
        Pack the query heads of a KV head into one query tile, so that they share the reads of k
        and v (forward pass of fa2).
    backward : bool, default False
        Count the backward pass alone instead of the forward pass.

    Returns
    -------
    HbmTraffic
        Bytes read and written, by tensor.

    Raises
    ------
    ValueError
        If `algorithm` is unknown.

    Notes
    -----
    Sources: FlashAttention (arXiv 2205.14135), algorithm 0 and 3 (standard), 1 and 4 (fa1);
    FlashAttention-2 (arXiv 2307.08691), algorithms 1 and 2 (fa2).
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    heads = batch * nheads
    width = _row_bytes(headdim, headdim_v, seqlen_k, bytes_per_element)
    rows = dict.fromkeys(width, heads * seqlen_q)
    rows |= dict.fromkeys(("k", "v", "dk", "dv"), batch * nheads_k * seqlen_k)
    whole = {name: rows[name] * width[name] for name in width}
    if algorithm in ("minimal", "standard"):
        reads, writes = _UNTILED_STEPS[algorithm, backward]
        return HbmTraffic(_tally(whole, reads), _tally(whole, writes))

    mask = {
        "window_left": window_left,
        "window_right": window_right,
        "sink_token_length": sink_token_length,
    }
    if algorithm == "fa2" and not backward:
        group = nheads // nheads_k if pack_gqa else 1
        walked = (heads // group) * key_rows_read(
            seqlen_q, seqlen_k, tile_m, tile_n, **mask, qhead_per_khead_packed=group
        )
        tiles = {name: walked * width[name] for name in ("k", "v")}
        return HbmTraffic(
            {"q": whole["q"], **tiles}, {name: whole[name] for name in ("out", "lse")}
        )
    walked = heads * query_rows_read(seqlen_q, seqlen_k, tile_m, tile_n, **mask)
    tiles = {name: walked * width[name] for name in width}
    # A key tile stays on the chip while the query tiles of all its heads pass: k, v are read once.
    keys = {name: whole[name] for name in ("k", "v")}
    if algorithm == "fa1" and not backward:
        return _fa1_forward(whole, tiles, keys)
    return (
        _fa1_backward(whole, tiles, keys)
        if algorithm == "fa1"
        else _fa2_backward(whole, tiles, keys)
    )


_UNTILED_STEPS: dict[tuple[str, bool], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("minimal", False): (("q", "k", "v"), ("out", "lse")),
    ("minimal", True): (("q", "k", "v", "out", "dout", "lse"), ("dq", "dk", "dv")),
    # S = q·kᵀ; P = softmax(S); out = P·v
    ("standard", False): (("q", "k", "s", "p", "v"), ("s", "p", "out")),
    # dv = Pᵀ·dout; dP = dout·vᵀ; dS from P and dP; dq = dS·k; dk = dSᵀ·q
    ("standard", True): (
        ("p", "dout", "dout", "v", "p", "dp", "ds", "k", "ds", "q"),
        ("dv", "dp", "ds", "dq", "dk"),
    ),
}


def _row_bytes(headdim: int, headdim_v: int, seqlen_k: int, size: int) -> dict[str, int]:
    """Return the bytes of one row of every tensor that any of the algorithms touches."""
    accumulator = max(size, 4)
    width = dict.fromkeys(("q", "k", "dq", "dk"), headdim * size)
    width |= dict.fromkeys(("v", "out", "dout", "dv"), headdim_v * size)
    width |= dict.fromkeys(("s", "p", "dp", "ds"), seqlen_k * size)
    width |= dict.fromkeys(("lse", "row_max", "row_sum", "delta", "lse_log2"), accumulator)
    width["dq_accum"] = headdim * accumulator
    return width


def _tally(whole: Mapping[str, int], names: tuple[str, ...]) -> dict[str, int]:
    """Add up whole passes over tensors; a name that comes twice is two passes."""
    total: dict[str, int] = {}
    for name in names:
        total[name] = total.get(name, 0) + whole[name]
    return total


def _fa1_forward(
    whole: Mapping[str, int], tiles: Mapping[str, int], keys: Mapping[str, int]
) -> HbmTraffic:
    """Q, and the state (out, row_max, row_sum), pass once for every key tile that needs them."""
    state = {name: tiles[name] for name in ("out", "row_max", "row_sum")}
    initial = {name: whole[name] for name in state}
    return HbmTraffic(
        {"q": tiles["q"], **keys, **state},
        {name: initial[name] + state[name] for name in state},
    )


def _fa1_backward(
    whole: Mapping[str, int], tiles: Mapping[str, int], keys: Mapping[str, int]
) -> HbmTraffic:
    """As algorithm 4: delta is computed again in every tile, dq itself is the accumulator."""
    walked = {name: tiles[name] for name in ("q", "out", "dout", "dq", "row_max", "row_sum")}
    return HbmTraffic(
        {**walked, **keys},
        {"dq": whole["dq"] + tiles["dq"], "dk": whole["dk"], "dv": whole["dv"]},
    )


def _fa2_backward(
    whole: Mapping[str, int], tiles: Mapping[str, int], keys: Mapping[str, int]
) -> HbmTraffic:
    """Three kernels: delta and lse times log2 e; the tile loop into dq_accum; dq_accum to dq."""
    return HbmTraffic(
        {
            "q": tiles["q"],
            **keys,
            "out": whole["out"],
            "dout": whole["dout"] + tiles["dout"],
            "lse": whole["lse"],
            "lse_log2": tiles["lse_log2"],
            "delta": tiles["delta"],
            "dq_accum": tiles["dq_accum"] + whole["dq_accum"],
        },
        {
            "delta": whole["delta"],
            "lse_log2": whole["lse_log2"],
            "dq_accum": whole["dq_accum"] + tiles["dq_accum"],
            "dq": whole["dq"],
            "dk": whole["dk"],
            "dv": whole["dv"],
        },
    )
