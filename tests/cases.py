"""The one list of cases: every kernel family, forward and backward, must pass all of it.

Each group is a public bug report of some attention library, or the shape that would hide one. A
case holds no arrays: `tests.inputs.make_inputs` builds them from the case's own seed. A new family
is added by adding its name to `FAMILIES` and the dtypes it serves to `SERVES`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

FAMILIES = ("reference",)
SERVES = {"reference": ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn")}

FLOATS = ("float64", "float32", "float16", "bfloat16")
FP8 = ("float8_e4m3fn",)

# What a kernel in the emulator can do in seconds: multiply-adds of one of its matrix products.
SMALL_WORK = 1 << 23
SMALL_BATCH = 64

Fill = Literal["normal", "zero_q", "head_map", "all_codes"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Geometry and flags shared by all kinds of calls.

    Attributes
    ----------
    group, variant : str
        What the case is for, and which one it is; together its id.
    dtypes : tuple of str
        Input dtypes to run.
    gain : float
        Factor on the entries of q and k, which are standard normal otherwise.
    fill : str
        ``normal``; ``zero_q`` makes every score 0, so lse must be ln(seqlen_k); ``head_map`` makes
        v constant per key head, so the output names the head that was read; ``all_codes`` runs K
        and V through all finite float8 codes.
    garbage : bool
        Fill dead keys and values with NaN, infinities and huge numbers.
    descales : bool
        Pass q, k and v descales that are distinct powers of two.
    backward, dlse : bool
        Whether the gradients are checked too, and with a gradient arriving at lse.
    """

    group: str
    variant: str
    dtypes: tuple[str, ...] = FLOATS
    nheads: int = 2
    nheads_k: int = 1
    headdim: int = 16
    headdim_v: int = 16
    softmax_scale: float | None = None
    causal: bool = False
    window_size: tuple[int | None, int | None] = (-1, -1)
    sink_token_length: int = 0
    softcap: float = 0.0
    num_splits: int = 1
    pack_gqa: bool | None = None
    gain: float = 1.0
    fill: Fill = "normal"
    garbage: bool = False
    descales: bool = False
    backward: bool = False
    dlse: bool = False

    @property
    def id(self) -> str:
        """Stable name, also the source of the seed."""
        return f"{self.group}/{self.variant}"

    @property
    def seed(self) -> int:
        """Seed of the case's random numbers; independent of the order of the list."""
        return zlib.crc32(self.id.encode())

    @property
    def size(self) -> Literal["small", "large"]:
        """Return ``small`` if the emulator can run it in seconds."""
        batch, seqlen_q, seqlen_k = self.extent
        work = batch * self.nheads * seqlen_q * seqlen_k * max(self.headdim, self.headdim_v)
        return "small" if work <= SMALL_WORK and batch <= SMALL_BATCH else "large"

    @property
    def extent(self) -> tuple[int, int, int]:
        """Batch, largest seqlen_q, largest seqlen_k."""
        raise NotImplementedError

    @property
    def mask(self) -> dict[str, Any]:
        """Keyword arguments that decide which keys a query may attend."""
        return {
            "causal": self.causal,
            "window_size": self.window_size,
            "sink_token_length": self.sink_token_length,
        }

    @property
    def score_flags(self) -> dict[str, Any]:
        """Keyword arguments common to the oracles and the public functions."""
        return {**self.mask, "softmax_scale": self.softmax_scale, "softcap": self.softcap}

    @property
    def forward_flags(self) -> dict[str, Any]:
        """Keyword arguments of the public forward functions only."""
        return {"num_splits": self.num_splits, "pack_gqa": self.pack_gqa}


@dataclass(frozen=True, kw_only=True)
class DenseCase(Case):
    """A call of `flash_attn_func`; `layout` is one of `tests.inputs.LAYOUTS` or a packing."""

    batch: int = 2
    seqlen_q: int = 33
    seqlen_k: int = 47
    layout: str = "contiguous"

    @property
    def extent(self) -> tuple[int, int, int]:
        """Batch, seqlen_q, seqlen_k."""
        return self.batch, self.seqlen_q, self.seqlen_k


@dataclass(frozen=True, kw_only=True)
class VarlenCase(Case):
    """A call of `flash_attn_varlen_func`.

    Attributes
    ----------
    seqlens_q, seqlens_k : tuple of int
        Rows allocated to each sequence.
    used_q, used_k : tuple of int, optional
        seqused_q, seqused_k.
    tail_q, tail_k : int
        Rows after the last sequence, which belong to none.
    page_size : int
        0 for packed K and V, else the rows of a page.
    with_cu_seqlens_k : bool
        Whether paged calls are given cu_seqlens_k (else only seqused_k).
    packing : str
        ``""``, ``"qkv"`` or ``"kv"``: which packed function is called.
    """

    seqlens_q: tuple[int, ...]
    seqlens_k: tuple[int, ...]
    used_q: tuple[int, ...] | None = None
    used_k: tuple[int, ...] | None = None
    tail_q: int = 0
    tail_k: int = 0
    page_size: int = 0
    with_cu_seqlens_k: bool = True
    packing: str = ""
    garbage: bool = True

    @property
    def extent(self) -> tuple[int, int, int]:
        """Batch, largest seqlen_q, largest seqlen_k."""
        longest = (max(x, default=0) for x in (self.seqlens_q, self.seqlens_k))
        return len(self.seqlens_q), *longest


@dataclass(frozen=True, kw_only=True)
class CacheCase(Case):
    """A call of `flash_attn_with_kvcache`.

    Attributes
    ----------
    cache_seqlens : tuple of int, int or None
        Cached tokens before the append.
    seqlen_q : int or tuple of int
        Queries of every sequence; a tuple makes the call packed (cu_seqlens_q).
    seqlen_new : int
        Tokens appended by the call; 0 passes no k and v.
    batch, seqlen_cache : int
        Number of sequences and slots of each.
    page_size : int
        0 for a contiguous cache.
    shared_pages : int
        Leading pages that all sequences share (a common prefix).
    leftpad : tuple of int, optional
        cache_leftpad.
    batch_idx : tuple of int, optional
        cache_batch_idx, into a cache of `batch_cache` rows.
    rotary : str
        ``""``, ``"interleaved"`` or ``"halves"``, on the first `rotary_dim` of a head.
    """

    cache_seqlens: tuple[int, ...] | int | None
    seqlen_q: int | tuple[int, ...] = 1
    seqlen_new: int = 0
    batch: int = 3
    seqlen_cache: int = 96
    page_size: int = 0
    shared_pages: int = 0
    leftpad: tuple[int, ...] | None = None
    batch_idx: tuple[int, ...] | None = None
    batch_cache: int = 5
    rotary: Literal["", "interleaved", "halves"] = ""
    rotary_dim: int = 16
    garbage: bool = True

    @property
    def extent(self) -> tuple[int, int, int]:
        """Batch, largest seqlen_q, slots of a sequence."""
        longest = self.seqlen_q if isinstance(self.seqlen_q, int) else max(self.seqlen_q)
        return self.batch, longest, self.seqlen_cache


@dataclass(frozen=True, kw_only=True)
class CombineCase(Case):
    """A call of `flash_attn_combine`; `dtypes` are output dtypes, `empty` says which are empty."""

    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    splits: int
    batch: int = 2
    seqlen_q: int = 5
    empty: Literal["none", "some", "row", "all"] = "none"

    @property
    def extent(self) -> tuple[int, int, int]:
        """Batch, seqlen_q, number of partial results."""
        return self.batch, self.seqlen_q, self.splits


TILES = (64, 128)
INT32_MAX = 2**31 - 1


def _empty_front_rows() -> Iterable[DenseCase]:
    """Causal with more queries than keys: whole rows, then whole tiles, of queries see nothing."""
    excess = sorted({1, *(tile + d for tile in TILES for d in (-1, 0, 1))})
    for extra in excess:
        base = DenseCase(
            group="empty_front_rows",
            variant=f"by_{extra}",
            seqlen_q=40 + extra,
            seqlen_k=40,
            causal=True,
            backward=True,
            dlse=True,
        )
        yield base
        yield replace(base, variant=f"by_{extra}_splits", num_splits=3, backward=False)
    yield replace(base, variant="window", window_size=(3, 0))
    yield replace(base, variant="window_sink", window_size=(3, 0), sink_token_length=2)
    yield replace(base, variant="right_window", causal=False, window_size=(-1, 7))


def _masked_first_tile() -> Iterable[DenseCase]:
    """Some rows find the tile they visit first (or last) wholly masked: -inf minus -inf lurks."""
    base = DenseCase(group="masked_first_tile", variant="", backward=True)
    for seqlen_q, seqlen_k in ((128, 128), (200, 200), (192, 128), (129, 257)):
        square = replace(base, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
        name = f"{seqlen_q}x{seqlen_k}"
        yield replace(square, variant=f"causal_{name}", causal=True)
        yield replace(square, variant=f"diagonal_{name}", window_size=(0, 0))
        yield replace(square, variant=f"local_{name}", window_size=(60, 3))
        yield replace(square, variant=f"far_sink_{name}", window_size=(2, 0), sink_token_length=1)


def _lengths() -> Iterable[DenseCase]:
    """Lengths around tiles, primes, and differences of lengths that cross a tile."""
    pairs = (
        *((1, 1), (1, 63), (1, 64), (1, 65), (63, 1), (64, 1), (65, 1), (2, 3), (3, 2)),
        *((63, 63), (64, 64), (65, 65), (63, 65), (65, 63), (64, 128), (128, 64), (7, 131)),
        *((131, 7), (127, 127), (128, 127), (127, 128), (129, 129), (97, 101), (191, 191)),
        *((2, 64), (64, 126), (65, 127), (2, 128), (64, 190), (130, 256), (255, 255)),
        *((64, 9 * 64), (17, 9 * 64), (1, 257), (3, 799), (799, 3)),
    )
    for seqlen_q, seqlen_k in pairs:
        for causal in (False, True):
            name = f"{seqlen_q}x{seqlen_k}" + "_causal" * causal
            yield DenseCase(
                group="lengths",
                variant=name,
                seqlen_q=seqlen_q,
                seqlen_k=seqlen_k,
                causal=causal,
                backward=True,
            )


def _windows() -> Iterable[DenseCase]:
    """A window edge at every offset of small shapes, and around tiles in larger ones."""
    for seqlen_q, seqlen_k in ((5, 9), (9, 5)):
        for left in range(-1, 11):
            for right in (-1, 0, 1, 4, 9):
                yield DenseCase(
                    group="window_offsets",
                    variant=f"{seqlen_q}x{seqlen_k}_{left}_{right}",
                    dtypes=("float32",),
                    seqlen_q=seqlen_q,
                    seqlen_k=seqlen_k,
                    window_size=(left, right),
                    backward=True,
                    dlse=True,
                )
    edges = (0, 1, 62, 63, 64, 65, 126, 127, 128, 129, INT32_MAX)
    for seqlen_q, seqlen_k in ((130, 130), (70, 131)):
        for w in edges:
            for window in dict.fromkeys(((w, 0), (0, w), (w, w), (w, -1), (-1, w))):
                yield DenseCase(
                    group="window_tiles",
                    variant=f"{seqlen_q}x{seqlen_k}_{window[0]}_{window[1]}",
                    dtypes=("float32", "bfloat16"),
                    seqlen_q=seqlen_q,
                    seqlen_k=seqlen_k,
                    window_size=window,
                    backward=w in (0, 63, 64, 128),
                )
    spelled = ((None, None), (None, 0), (3, None), (-7, 2))
    for window in spelled:
        yield DenseCase(
            group="window_spelling", variant=f"{window[0]}_{window[1]}", window_size=window
        )
    yield DenseCase(
        group="window_spelling",
        variant="causal_wins",
        causal=True,
        window_size=(5, 9),
        backward=True,
    )


def _sinks() -> Iterable[DenseCase]:
    """Sink tokens: with window 0, overlapping the window, in decode, in splits, and useless."""
    base = DenseCase(group="sink", variant="", seqlen_q=70, seqlen_k=140, backward=True, dlse=True)
    for sink in (1, 4, 63, 64, 65, 130, 1000):
        yield replace(base, variant=f"window_0_{sink}", window_size=(0, 0), sink_token_length=sink)
        yield replace(base, variant=f"overlap_{sink}", window_size=(40, 5), sink_token_length=sink)
    yield replace(base, variant="causal", window_size=(9, -1), causal=True, sink_token_length=3)
    yield replace(base, variant="without_window", sink_token_length=3)
    yield replace(base, variant="causal_only", causal=True, sink_token_length=99)
    for splits in (1, 3):
        yield replace(
            base,
            variant=f"decode_splits_{splits}",
            seqlen_q=1,
            seqlen_k=300,
            window_size=(16, 0),
            sink_token_length=4,
            num_splits=splits,
            backward=splits == 1,
        )
    yield replace(
        base,
        variant="more_queries",
        seqlen_q=140,
        seqlen_k=70,
        window_size=(0, 0),
        sink_token_length=5,
    )


def _heads() -> Iterable[DenseCase]:
    """GQA groups of 1, 2, 3, 7, 8 and MQA, with constant v that shows the head map."""
    counts = ((1, 1), (3, 3), (2, 1), (4, 2), (6, 2), (7, 1), (14, 2), (8, 1), (16, 2), (12, 3))
    for nheads, nheads_k in counts:
        base = DenseCase(
            group="gqa",
            variant=f"{nheads}_{nheads_k}",
            nheads=nheads,
            nheads_k=nheads_k,
            causal=True,
            backward=True,
            dlse=True,
        )
        yield base
        yield replace(
            base, variant=f"{nheads}_{nheads_k}_map", fill="head_map", causal=False, backward=False
        )
        for pack in (True, False):
            yield replace(
                base,
                variant=f"{nheads}_{nheads_k}_pack_{pack}",
                seqlen_q=9,
                pack_gqa=pack,
                backward=False,
            )


def _headdims() -> Iterable[DenseCase]:
    """Head dims that need a pad, with the scale of the true one; and headdim_v apart from it."""
    dims = (1, 7, 8, 33, 40, 64, 72, 80, 96, 100, 120, 128, 136, 192, 255, 256)
    unequal = ((64, 32), (32, 64), (192, 128), (128, 256), (40, 7), (1, 33), (256, 1))
    for headdim, headdim_v in (*((d, d) for d in dims), *unequal):
        yield DenseCase(
            group="headdim",
            variant=f"{headdim}_{headdim_v}",
            headdim=headdim,
            headdim_v=headdim_v,
            causal=True,
            backward=True,
        )


def _nothing() -> Iterable[DenseCase]:
    """A dimension of size 0: a result of the right shape, 0 and -inf, and no launch of 0 blocks."""
    base = DenseCase(group="nothing", variant="", backward=True, dlse=True)
    sizes = {"batch": {"batch": 0}, "q": {"seqlen_q": 0}, "k": {"seqlen_k": 0}}
    sizes["q_and_k"] = {"seqlen_q": 0, "seqlen_k": 0}
    for name, change in sizes.items():
        yield replace(base, variant=name, **change)
        yield replace(base, variant=f"{name}_causal", causal=True, **change)
        yield replace(base, variant=f"{name}_splits", num_splits=4, backward=False, **change)


def _splits() -> Iterable[DenseCase]:
    """Split KV: automatic, more splits than keys, splits that a window or the mask empties."""
    base = DenseCase(group="splits", variant="", seqlen_q=1)
    for num_splits in (0, 2, 3, 5, 17, 256):
        for seqlen_k in (1, 5, 70, 200, 1000):
            yield replace(
                base,
                variant=f"decode_{num_splits}_{seqlen_k}",
                num_splits=num_splits,
                seqlen_k=seqlen_k,
            )
        prefill = replace(base, num_splits=num_splits, seqlen_q=70, seqlen_k=200)
        yield replace(prefill, variant=f"causal_{num_splits}", causal=True)
        yield replace(prefill, variant=f"window_{num_splits}", window_size=(5, 5))
        yield replace(
            prefill, variant=f"sink_{num_splits}", window_size=(5, 0), sink_token_length=2
        )
        yield replace(
            prefill, variant=f"empty_rows_{num_splits}", seqlen_q=200, seqlen_k=70, causal=True
        )
        yield replace(prefill, variant=f"softcap_{num_splits}", softcap=2.0, nheads=4, nheads_k=2)


def _scores() -> Iterable[DenseCase]:
    """Scales, uniform scores, soft caps up to saturation, and scores in the hundreds."""
    base = DenseCase(group="scale", variant="", backward=True, dlse=True)
    for scale in (0.0, 0.3, 1.0, 2.5):
        yield replace(base, variant=str(scale), softmax_scale=scale)
    base = replace(base, group="zero_query", fill="zero_q")
    for seqlen_k in (1, 7, 64, 131):
        for splits in (1, 3):
            yield replace(
                base,
                variant=f"{seqlen_k}_splits_{splits}",
                seqlen_k=seqlen_k,
                num_splits=splits,
                backward=splits == 1,
            )
    base = DenseCase(group="softcap", variant="", backward=True, dlse=True)
    for cap in (0.5, 1.0, 15.0, 50.0):
        yield replace(base, variant=f"{cap}", softcap=cap, gain=max(1.0, cap**0.5))
        yield replace(base, variant=f"{cap}_causal", softcap=cap, causal=True)
        yield replace(
            base, variant=f"{cap}_sink", softcap=cap, window_size=(3, 3), sink_token_length=2
        )
    for cap in (1.0, 5.0, 30.0, 50.0):
        yield DenseCase(
            group="softcap_saturated",
            variant=f"{cap}",
            seqlen_q=70,
            seqlen_k=70,
            nheads=4,
            nheads_k=2,
            headdim=64,
            headdim_v=64,
            softcap=cap,
            gain=40.0,
            causal=True,
            backward=True,
        )
    yield DenseCase(
        group="large_scores",
        variant="hundreds",
        gain=10.0,
        causal=True,
        seqlen_q=80,
        seqlen_k=80,
        dtypes=("float64", "float32", "bfloat16"),
        backward=True,
    )


def _layouts() -> Iterable[DenseCase]:
    """Views of every kind, and the packed functions."""
    layouts = (
        *("bhsd", "sbhd", "fortran", "sliced", "read_only", "expanded", "reversed"),
        *("strided_last", "unaligned", "qkv", "kv"),
    )
    for layout in layouts:
        yield DenseCase(
            group="layout",
            variant=layout,
            layout=layout,
            seqlen_k=33 if layout == "qkv" else 47,
            nheads_k=2 if layout == "qkv" else 1,
            causal=True,
            backward=layout not in ("qkv", "kv"),
        )


def _dead_keys() -> Iterable[DenseCase]:
    """Keys that no query may attend hold NaN, infinities and huge numbers."""
    base = DenseCase(
        group="dead_keys",
        variant="",
        seqlen_q=10,
        seqlen_k=200,
        garbage=True,
        backward=True,
        dlse=True,
    )
    for left in (0, 5, 64, 127):
        yield replace(base, variant=f"left_{left}", window_size=(left, -1))
        yield replace(
            base, variant=f"sink_{left}", window_size=(left, 0), causal=True, sink_token_length=3
        )
        yield replace(
            base, variant=f"splits_{left}", window_size=(left, 2), num_splits=4, backward=False
        )
        yield replace(base, variant=f"softcap_{left}", window_size=(left, 0), softcap=3.0)


def _float8() -> Iterable[DenseCase]:
    """FP8 operands: descales, all codes, masks, groups, head dims and splits."""
    base = DenseCase(
        group="float8",
        variant="plain",
        dtypes=FP8,
        nheads=4,
        nheads_k=2,
        headdim=64,
        headdim_v=64,
        seqlen_q=65,
        seqlen_k=129,
    )
    yield base
    yield replace(base, variant="descales", descales=True)
    yield replace(base, variant="descales_causal", descales=True, causal=True)
    yield replace(
        base, variant="sink", descales=True, window_size=(9, 0), sink_token_length=2, garbage=True
    )
    yield replace(base, variant="softcap", descales=True, softcap=3.0)
    yield replace(base, variant="splits", descales=True, num_splits=3)
    yield replace(base, variant="all_codes", fill="all_codes", seqlen_k=254, descales=True)
    yield replace(base, variant="zero_query", fill="zero_q", descales=True)
    yield replace(base, variant="head_map", fill="head_map")
    yield replace(base, variant="empty_rows", causal=True, seqlen_q=129, seqlen_k=65)
    for headdim, headdim_v in ((1, 1), (7, 40), (100, 136), (256, 256)):
        yield replace(
            base,
            variant=f"headdim_{headdim}_{headdim_v}",
            headdim=headdim,
            headdim_v=headdim_v,
            descales=True,
        )


def _large() -> Iterable[DenseCase]:
    """Grids beyond 65535 blocks, and lengths of real use."""
    yield DenseCase(
        group="batch_65537",
        variant="decode",
        dtypes=("float32", "float16"),
        batch=65537,
        seqlen_q=1,
        seqlen_k=3,
        nheads=1,
        headdim=8,
        headdim_v=8,
        causal=True,
        backward=True,
    )
    base = DenseCase(
        group="long",
        variant="",
        dtypes=("float32", "bfloat16"),
        batch=1,
        nheads=4,
        nheads_k=2,
        headdim=64,
        headdim_v=64,
        causal=True,
    )
    yield replace(base, variant="prefill", seqlen_q=1024, seqlen_k=1024)
    yield replace(base, variant="backward", seqlen_q=390, seqlen_k=645, backward=True)
    yield replace(base, variant="uneven", seqlen_q=513, seqlen_k=1023, softcap=10.0)
    yield replace(
        base,
        variant="window",
        seqlen_q=1023,
        seqlen_k=1024,
        window_size=(200, 0),
        sink_token_length=4,
    )
    yield replace(base, variant="decode", seqlen_q=1, seqlen_k=8192, num_splits=0)


DENSE_CASES: tuple[DenseCase, ...] = (
    *_empty_front_rows(),
    *_masked_first_tile(),
    *_lengths(),
    *_windows(),
    *_sinks(),
    *_heads(),
    *_headdims(),
    *_nothing(),
    *_splits(),
    *_scores(),
    *_layouts(),
    *_dead_keys(),
    *_float8(),
    *_large(),
)


def _varlen() -> Iterable[VarlenCase]:
    """Packed sequences: empty ones on either side, unused rows, tails, empty front rows."""
    uneven = VarlenCase(
        group="varlen",
        variant="uneven",
        seqlens_q=(5, 64, 1, 33, 131),
        seqlens_k=(9, 64, 200, 17, 66),
        backward=True,
        dlse=True,
    )
    masks: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {"causal": True},
        "window": {"window_size": (7, 3)},
        "sink": {"window_size": (4, 0), "sink_token_length": 2},
        "softcap": {"softcap": 2.0, "causal": True},
    }
    shapes = {
        "uneven": uneven,
        "zero_lengths": replace(
            uneven, seqlens_q=(0, 5, 0, 40, 3, 0), seqlens_k=(7, 0, 0, 66, 64, 0)
        ),
        "tails": replace(uneven, tail_q=37, tail_k=70),
        "unused": replace(uneven, used_q=(3, 64, 0, 1, 129), used_k=(9, 1, 77, 0, 65)),
        "unused_tails": replace(uneven, used_k=(0, 60, 130, 17, 1), tail_q=1, tail_k=1),
        "gqa": replace(uneven, nheads=6, nheads_k=2, seqlens_q=(1, 2, 9), seqlens_k=(70, 3, 9)),
    }
    for shape, case in shapes.items():
        for name, mask in masks.items():
            yield replace(case, variant=f"{shape}_{name}", **mask)
    for extra in (1, 63, 64, 65, 127, 128, 129):
        yield replace(
            uneven,
            group="varlen_empty_front_rows",
            variant=f"by_{extra}",
            seqlens_q=(20 + extra, 3, 5 + extra),
            seqlens_k=(20, 3, 5),
            causal=True,
        )
    yield replace(uneven, variant="no_sequence", seqlens_q=(), seqlens_k=(), tail_q=3, tail_k=2)
    yield replace(uneven, variant="nothing", seqlens_q=(0, 0), seqlens_k=(0, 0))
    yield replace(uneven, variant="one", seqlens_q=(1,), seqlens_k=(1,))
    yield replace(uneven, variant="headdim", headdim=33, headdim_v=7, causal=True)
    yield replace(uneven, variant="splits", num_splits=3, causal=True, backward=False)
    yield replace(uneven, variant="zero_query", fill="zero_q", backward=False)
    yield replace(uneven, variant="head_map", fill="head_map", nheads=6, nheads_k=3, backward=False)
    yield replace(
        uneven,
        variant="many",
        dtypes=("float32", "bfloat16"),
        seqlens_q=tuple((7 * i) % 11 for i in range(200)),
        seqlens_k=tuple((5 * i) % 13 for i in range(200)),
        causal=True,
    )
    yield replace(
        uneven,
        variant="float8",
        dtypes=FP8,
        nheads=4,
        nheads_k=2,
        descales=True,
        causal=True,
        backward=False,
    )
    equal = replace(uneven, seqlens_k=uneven.seqlens_q, backward=False, garbage=False)
    yield replace(equal, variant="packed_qkv", packing="qkv", nheads_k=2, causal=True)
    yield replace(uneven, variant="packed_kv", packing="kv", causal=True, backward=False)


def _varlen_paged() -> Iterable[VarlenCase]:
    """Packed queries on paged keys; dead pages and dead table entries hold garbage."""
    base = VarlenCase(
        group="varlen_paged",
        variant="",
        seqlens_q=(5, 64, 1, 0, 70),
        seqlens_k=(9, 64, 200, 17, 66),
        used_k=(9, 64, 130, 3, 0),
    )
    for page_size in (1, 4, 16, 64, 128, 256):
        paged = replace(base, page_size=page_size)
        yield replace(paged, variant=f"{page_size}_full", with_cu_seqlens_k=False)
        yield replace(paged, variant=f"{page_size}_causal", causal=True)
        yield replace(paged, variant=f"{page_size}_cu_seqlens", used_k=None, causal=True)
        yield replace(
            paged,
            variant=f"{page_size}_sink",
            window_size=(3, 0),
            sink_token_length=2,
            with_cu_seqlens_k=False,
        )
        yield replace(paged, variant=f"{page_size}_splits", num_splits=4, window_size=(30, 5))
        yield replace(paged, variant=f"{page_size}_zero_query", fill="zero_q")
    yield replace(paged, variant="float8", page_size=16, dtypes=FP8, descales=True, causal=True)


VARLEN_CASES: tuple[VarlenCase, ...] = (*_varlen(), *_varlen_paged())


def _cache_contiguous() -> Iterable[CacheCase]:
    """A contiguous cache: lengths, append, leftpad, row index, splits."""
    base = CacheCase(group="cache", variant="", cache_seqlens=(0, 17, 80))
    for seqlen_q in (1, 3, 20):
        for causal in (False, True):
            name = f"q{seqlen_q}" + "_causal" * causal
            case = replace(base, seqlen_q=seqlen_q, causal=causal)
            yield replace(case, variant=f"read_{name}")
            for seqlen_new in (1, 16):
                yield replace(case, variant=f"append_{seqlen_new}_{name}", seqlen_new=seqlen_new)
    full = replace(base, cache_seqlens=None, seqlen_q=2)
    yield replace(full, variant="whole_cache")
    yield replace(full, variant="whole_cache_causal", causal=True)
    yield replace(base, variant="int_length", cache_seqlens=33, causal=True, seqlen_q=2)
    yield replace(base, variant="fill_to_the_brim", cache_seqlens=(92, 0, 50), seqlen_new=4)
    append = replace(base, seqlen_q=4, seqlen_new=4)
    yield replace(append, variant="window", window_size=(9, 0))
    yield replace(append, variant="window_both", window_size=(9, 3))
    yield replace(append, variant="window_inside_append", seqlen_new=16, window_size=(2, 0))
    yield replace(append, variant="sink", window_size=(9, 0), sink_token_length=3)
    yield replace(append, variant="softcap", softcap=2.0, causal=True)
    yield replace(append, variant="headdim", headdim=40, headdim_v=7, causal=True)
    yield replace(append, variant="zero_query", fill="zero_q")
    yield replace(append, variant="head_map", fill="head_map", nheads=6, nheads_k=3)
    yield replace(append, variant="packed_queries", seqlen_q=(3, 0, 9), causal=True)
    yield replace(append, variant="packed_queries_read", seqlen_q=(3, 0, 9), seqlen_new=0)
    for splits in (0, 2, 7, 256):
        yield replace(append, variant=f"splits_{splits}", num_splits=splits)
        yield replace(
            append,
            variant=f"splits_sink_{splits}",
            num_splits=splits,
            window_size=(9, 0),
            sink_token_length=3,
        )
        yield replace(base, variant=f"splits_decode_{splits}", num_splits=splits, nheads=8)
    index = replace(base, group="cache_batch_idx", batch_idx=(3, 0, 4))
    yield replace(index, variant="read", seqlen_q=2, causal=True)
    yield replace(index, variant="read_twice", batch_idx=(2, 2, 1), cache_seqlens=(5, 70, 9))
    yield replace(index, variant="append", seqlen_q=2, seqlen_new=2, causal=True)
    # Sequences of one length may be taken as one batch only where they lie in the cache alike.
    yield replace(index, variant="one_length", cache_seqlens=17, seqlen_q=2)
    yield replace(
        index, variant="one_length_whole_rows", cache_seqlens=17, batch_idx=(2, 0, 1), batch_cache=3
    )
    pad = replace(base, group="cache_leftpad", leftpad=(0, 5, 64))
    yield replace(pad, variant="one_end", cache_seqlens=80, seqlen_q=2, causal=True)
    yield replace(pad, variant="one_start", leftpad=(5, 5, 5), cache_seqlens=(5, 17, 80))
    yield replace(pad, variant="read")
    yield replace(pad, variant="causal", seqlen_q=30, causal=True)
    yield replace(pad, variant="append", seqlen_q=3, seqlen_new=3, causal=True)
    yield replace(pad, variant="sink", window_size=(4, 0), sink_token_length=2, seqlen_q=3)
    yield replace(pad, variant="all_padding", leftpad=(0, 17, 80), seqlen_q=2)
    yield replace(pad, variant="batch_idx", batch_idx=(1, 0, 3), seqlen_new=2, seqlen_q=2)
    yield replace(pad, variant="splits", num_splits=5)
    eight = replace(
        append, group="cache_float8", dtypes=FP8, nheads=4, nheads_k=2, descales=True, causal=True
    )
    yield replace(eight, variant="append")
    yield replace(eight, variant="read_splits", seqlen_new=0, num_splits=3)


def _cache_paged() -> Iterable[CacheCase]:
    """A paged cache: every page size, appends that cross pages, shared prefixes."""
    base = CacheCase(
        group="cache_paged", variant="", cache_seqlens=(0, 61, 255), seqlen_cache=512, seqlen_q=3
    )
    for page_size in (1, 4, 16, 64, 128, 256):
        paged = replace(base, page_size=page_size)
        yield replace(paged, variant=f"{page_size}_read", causal=True)
        yield replace(paged, variant=f"{page_size}_append", seqlen_new=3, causal=True)
        yield replace(paged, variant=f"{page_size}_append_many", seqlen_new=70)
        yield replace(
            paged,
            variant=f"{page_size}_sink_append",
            seqlen_new=20,
            window_size=(5, 0),
            sink_token_length=2,
        )
        yield replace(paged, variant=f"{page_size}_splits", num_splits=5, window_size=(40, 0))
        yield replace(paged, variant=f"{page_size}_zero_query", fill="zero_q", seqlen_new=1)
    paged = replace(base, page_size=16)
    yield replace(paged, variant="shared_prefix", cache_seqlens=(40, 61, 255), shared_pages=2)
    yield replace(paged, variant="packed_queries", seqlen_q=(5, 1, 0), seqlen_new=2, causal=True)
    yield replace(paged, variant="whole_cache", cache_seqlens=None, seqlen_cache=64)
    yield replace(paged, variant="rotary", seqlen_new=3, rotary="interleaved", causal=True)
    yield replace(
        paged, variant="float8", seqlen_new=3, dtypes=FP8, nheads=4, nheads_k=2, descales=True
    )


def _cache_rotary() -> Iterable[CacheCase]:
    """Rotary embedding: both layouts, part of the head, with and without moving queries."""
    base = CacheCase(
        group="cache_rotary",
        variant="",
        cache_seqlens=(0, 17, 70),
        seqlen_q=4,
        seqlen_new=4,
        headdim=32,
    )
    masks: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {"causal": True},
        "window": {"window_size": (9, 2)},
        "left_window": {"window_size": (9, -1)},
        "right_window": {"window_size": (-1, 2)},
    }
    for layout in ("interleaved", "halves"):
        for rotary_dim in (2, 16, 32):
            for name, mask in masks.items():
                yield replace(
                    base,
                    variant=f"{layout}_{rotary_dim}_{name}",
                    rotary=layout,
                    rotary_dim=rotary_dim,
                    **mask,
                )
        case = replace(base, rotary=layout, causal=True)
        yield replace(case, variant=f"{layout}_leftpad", leftpad=(0, 5, 64))
        yield replace(case, variant=f"{layout}_batch_idx", batch_idx=(4, 1, 2))
        yield replace(case, variant=f"{layout}_packed", seqlen_q=(2, 4, 1))
        yield replace(case, variant=f"{layout}_packed_full", seqlen_q=(2, 4, 1), causal=False)
        yield replace(case, variant=f"{layout}_odd_headdim", headdim=33, headdim_v=33)
        yield replace(case, variant=f"{layout}_longer_append", seqlen_new=11, num_splits=3)


CACHE_CASES: tuple[CacheCase, ...] = (
    *_cache_contiguous(),
    *_cache_paged(),
    *_cache_rotary(),
)


def _combine() -> Iterable[CombineCase]:
    """Merging partial results; an empty one is neutral whatever its output holds."""
    for splits in (1, 2, 3, 5, 17, 129):
        for empty in ("none", "some", "row", "all"):
            yield CombineCase(
                group="combine",
                variant=f"{splits}_{empty}",
                splits=splits,
                empty=empty,
                nheads=3,
                headdim_v=33,
            )
    base = CombineCase(group="combine", variant="no_batch", splits=3, batch=0)
    yield base
    yield replace(base, variant="no_rows", batch=2, seqlen_q=0)
    yield replace(base, variant="one_row", batch=1, seqlen_q=1, nheads=1, headdim_v=1)


COMBINE_CASES: tuple[CombineCase, ...] = tuple(_combine())

ALL_CASES: tuple[Case, ...] = (*DENSE_CASES, *VARLEN_CASES, *CACHE_CASES, *COMBINE_CASES)


def parametrize(cases: Iterable[Case], *, backward: bool = False) -> pytest.MarkDecorator:
    """Parametrise a test over (family, dtype, case), leaving out what a family does not serve."""
    rows = [
        pytest.param(family, dtype, case, id=f"{family}-{dtype}-{case.id}")
        for family in FAMILIES
        for case in cases
        if case.backward or not backward
        for dtype in case.dtypes
        if dtype in SERVES[family]
    ]
    return pytest.mark.parametrize(("family", "dtype", "case"), rows)
