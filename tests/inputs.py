"""The arrays of a case: random, reproducible, with garbage wherever nothing may look."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np

from fa_numba.reference.attention import E4M3_MAX
from tests.cases import CacheCase, Case, CombineCase, DenseCase, VarlenCase
from tests.oracle import CacheCall, live_keys, used_ranges
from tests.tolerance import DTYPES

INT32 = np.iinfo(np.int32)


class DenseInputs(NamedTuple):
    """Operands of the dense functions; `packed` replaces q, k, v in the packed ones."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dout: np.ndarray
    dlse: np.ndarray | None
    descales: dict[str, np.ndarray]
    packed: tuple[np.ndarray, ...]


class VarlenInputs(NamedTuple):
    """Operands of the varlen functions; k and v are pages if `block_table` is given."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dout: np.ndarray
    dlse: np.ndarray | None
    descales: dict[str, np.ndarray]
    packed: tuple[np.ndarray, ...]
    cu_seqlens_q: np.ndarray
    cu_seqlens_k: np.ndarray | None
    seqused_q: np.ndarray | None
    seqused_k: np.ndarray | None
    block_table: np.ndarray | None

    @property
    def lengths(self) -> dict[str, Any]:
        """Keyword arguments that say which rows are in use."""
        return {
            "seqused_q": self.seqused_q,
            "seqused_k": self.seqused_k,
            "block_table": self.block_table,
        }


class CacheInputs(NamedTuple):
    """Operands of `flash_attn_with_kvcache`."""

    call: CacheCall
    descales: dict[str, np.ndarray]


class CombineInputs(NamedTuple):
    """Operands of `flash_attn_combine`."""

    out_partial: np.ndarray
    lse_partial: np.ndarray


@functools.singledispatch
def make_inputs(case: Case, dtype: str, rng: np.random.Generator | None = None) -> Any:
    """Return the operands of a case in one dtype.

    Parameters
    ----------
    case : Case
    dtype : str
        Tag of the operands' dtype.
    rng : numpy.random.Generator, optional
        Source of the numbers; one seeded by the case itself if None.

    Returns
    -------
    DenseInputs, VarlenInputs, CacheInputs or CombineInputs
    """
    raise TypeError(f"no inputs for {type(case).__name__}")


@make_inputs.register
def _(case: DenseCase, dtype: str, rng: np.random.Generator | None = None) -> DenseInputs:
    rng = rng or np.random.default_rng(case.seed)
    heads = case.batch, case.seqlen_q, case.seqlen_k
    q, k, v, dout = _qkv_dout(case, dtype, rng, heads[:2], heads[::2])
    if case.garbage:
        _spoil(rng, (k, v), (slice(None), ~live_keys(case.seqlen_q, case.seqlen_k, case.mask)))
    packed: tuple[np.ndarray, ...] = ()
    if case.layout == "qkv":
        packed = (np.stack([q, k, v], axis=2),)
        q, k, v = (packed[0][:, :, i] for i in range(3))
    elif case.layout == "kv":
        packed = (q, np.stack([k, v], axis=2))
        k, v = (packed[1][:, :, i] for i in range(2))
    else:
        q, k, v, dout = (LAYOUTS[case.layout](x) for x in (q, k, v, dout))
    dlse = _dlse(case, dtype, rng, (case.batch, case.nheads, case.seqlen_q))
    return DenseInputs(q, k, v, dout, dlse, _descales(case, rng, case.batch), packed)


@make_inputs.register
def _(case: VarlenCase, dtype: str, rng: np.random.Generator | None = None) -> VarlenInputs:
    rng = rng or np.random.default_rng(case.seed)
    batch = len(case.seqlens_q)
    total_q, total_k = sum(case.seqlens_q) + case.tail_q, sum(case.seqlens_k) + case.tail_k
    q, k, v, dout = _qkv_dout(case, dtype, rng, (total_q,), (total_k,))
    cu_seqlens_q, cu_seqlens_k = _cumulate(case.seqlens_q), _cumulate(case.seqlens_k)
    seqused_q, seqused_k = _int32(case.used_q), _int32(case.used_k)
    rows, cols = used_ranges(cu_seqlens_q, seqused_q), used_ranges(cu_seqlens_k, seqused_k)
    live = [
        col.start + np.flatnonzero(live_keys(row.stop - row.start, col.stop - col.start, case.mask))
        for row, col in zip(rows, cols, strict=True)
    ]
    if case.garbage:
        unused_q = np.ones(total_q, bool)
        for row in rows:
            unused_q[row] = False
        dead_k = np.ones(total_k, bool)
        dead_k[np.concatenate([np.empty(0, int), *live])] = False
        _spoil(rng, (q, dout), unused_q)
        _spoil(rng, (k, v), dead_k)

    block_table = None
    packed: tuple[np.ndarray, ...] = ()
    if case.page_size:
        sequences = [slice(start, stop) for start, stop in itertools.pairwise(cu_seqlens_k)]
        needed = [index - s.start for index, s in zip(live, sequences, strict=True)]
        (k, v), block_table = _paginate(
            rng, [[x[s] for s in sequences] for x in (k, v)], needed, case.page_size
        )
    elif case.packing == "qkv":
        packed = (np.stack([q, k, v], axis=1),)
    elif case.packing == "kv":
        packed = (q, np.stack([k, v], axis=1))
    return VarlenInputs(
        q,
        k,
        v,
        dout,
        _dlse(case, dtype, rng, (case.nheads, total_q)),
        _descales(case, rng, batch),
        packed,
        cu_seqlens_q,
        cu_seqlens_k if case.with_cu_seqlens_k else None,
        seqused_q,
        seqused_k,
        block_table,
    )


@make_inputs.register
def _(case: CacheCase, dtype: str, rng: np.random.Generator | None = None) -> CacheInputs:
    rng = rng or np.random.default_rng(case.seed)
    batch, new = case.batch, case.seqlen_new
    packed = isinstance(case.seqlen_q, tuple)
    seqlens_q = case.seqlen_q if packed else (case.seqlen_q,) * batch
    shape_q = (sum(seqlens_q),) if packed else (batch, case.seqlen_q)
    q, k_all, v_all, _ = _qkv_dout(case, dtype, rng, shape_q, (batch, case.seqlen_cache))
    _, k, v, _ = _qkv_dout(case, dtype, rng, (0,), (batch, new))

    lengths = case.cache_seqlens
    if not isinstance(lengths, tuple):
        lengths = (case.seqlen_cache if lengths is None else lengths,) * batch
    needed = []
    for b, (seqlen_q, length) in enumerate(zip(seqlens_q, lengths, strict=True)):
        leftpad = 0 if case.leftpad is None else case.leftpad[b]
        live = leftpad + np.flatnonzero(live_keys(seqlen_q, length + new - leftpad, case.mask))
        old, appended = live[live < length], length + np.arange(new)
        dead = np.ones(case.seqlen_cache, bool)
        dead[old] = False
        _spoil(rng, (k_all[b], v_all[b]), dead)
        needed.append(np.concatenate([old, appended]))

    block_table = None
    if case.page_size:
        shared = case.shared_pages * case.page_size
        for cache in (k_all, v_all):
            cache[1:, :shared] = cache[:1, :shared]
        (k_cache, v_cache), block_table = _paginate(
            rng,
            [list(k_all), list(v_all)],
            needed,
            case.page_size,
            shared_pages=case.shared_pages,
            spare_columns=0 if case.cache_seqlens is None else 2,
        )
    elif case.batch_idx is not None:
        k_cache, v_cache = (
            _garbage(rng, (case.batch_cache, *x.shape[1:]), x.dtype) for x in (k_all, v_all)
        )
        # A row that two sequences read is live where either needs it.
        for b, home in enumerate(case.batch_idx):
            for cache, x in ((k_cache, k_all), (v_cache, v_all)):
                cache[home, needed[b]] = x[b, needed[b]]
    else:
        k_cache, v_cache = k_all, v_all

    seqlens = case.cache_seqlens
    half = case.rotary_dim // 2
    angle = rng.uniform(-np.pi, np.pi, (case.seqlen_cache + 3, half)) if case.rotary else None
    return CacheInputs(
        CacheCall(
            q=q,
            k_cache=k_cache,
            v_cache=v_cache,
            k=k if new else None,
            v=v if new else None,
            cache_seqlens=_int32(seqlens) if isinstance(seqlens, tuple) else seqlens,
            cache_batch_idx=_int32(case.batch_idx),
            cache_leftpad=_int32(case.leftpad),
            block_table=block_table,
            rotary_cos=None if angle is None else np.cos(angle).astype(DTYPES[dtype]),
            rotary_sin=None if angle is None else np.sin(angle).astype(DTYPES[dtype]),
            rotary_interleaved=case.rotary != "halves",
            cu_seqlens_q=_cumulate(seqlens_q) if packed else None,
            max_seqlen_q=max(seqlens_q) if packed else None,
        ),
        _descales(case, rng, batch),
    )


@make_inputs.register
def _(case: CombineCase, dtype: str, rng: np.random.Generator | None = None) -> CombineInputs:
    rng = rng or np.random.default_rng(case.seed)
    lead = case.splits, case.batch
    out = rng.standard_normal((*lead, case.seqlen_q, case.nheads, case.headdim_v))
    lse = 5 * rng.standard_normal((*lead, case.nheads, case.seqlen_q))
    if case.empty == "all":
        lse[:] = -np.inf
    elif case.empty == "row":
        lse[..., 0] = -np.inf
    elif case.empty == "some":
        lse[rng.random(lse.shape) < 0.5] = -np.inf
    out, lse = out.astype(np.float32), lse.astype(np.float32)
    empty = np.isneginf(lse).swapaxes(-1, -2)
    out[empty] = _garbage(rng, (int(empty.sum()), case.headdim_v), out.dtype)
    return CombineInputs(out, lse)


def _qkv_dout(case, dtype, rng, lead_q, lead_k):
    q = case.gain * rng.standard_normal((*lead_q, case.nheads, case.headdim))
    k = case.gain * rng.standard_normal((*lead_k, case.nheads_k, case.headdim))
    v = rng.standard_normal((*lead_k, case.nheads_k, case.headdim_v))
    dout = rng.standard_normal((*lead_q, case.nheads, case.headdim_v))
    if case.fill == "zero_q":
        q[:] = 0
    elif case.fill == "head_map":
        v[:] = 1 + np.arange(case.nheads_k)[:, None]
    elif case.fill == "all_codes":
        codes = np.arange(256, dtype=np.uint8).view(DTYPES["float8_e4m3fn"]).astype(np.float64)
        codes = codes[np.isfinite(codes)]
        for x in (k, v):
            # Every code in every column, at another row in each.
            step = np.arange(x.shape[-1]) + np.arange(x.shape[-3])[:, None]
            x[:] = codes[step % codes.size][:, None, :]
        q /= 64
    return tuple(_cast(x, dtype) for x in (q, k, v, dout))


def _cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """Round to the dtype; float8 saturates, where a plain cast gives NaN."""
    return (np.clip(x, -E4M3_MAX, E4M3_MAX) if dtype == "float8_e4m3fn" else x).astype(
        DTYPES[dtype]
    )


def _dlse(case, dtype, rng, shape):
    wide = np.float64 if dtype == "float64" else np.float32
    return rng.standard_normal(shape).astype(wide) if case.dlse else None


def _descales(case: Case, rng: np.random.Generator, batch: int) -> dict[str, np.ndarray]:
    """Distinct powers of two, so that a factor taken from another head is off by 2 or more."""
    if not case.descales:
        return {}
    count = batch * case.nheads_k
    # The largest stays small for q and k: a float8 score must not saturate in the comparator.
    largest = {"q_descale": 0, "k_descale": 1, "v_descale": 2}
    return {
        name: 2.0
        ** (rng.permutation(count) + 1 + exponent - count)
        .reshape(batch, case.nheads_k)
        .astype(np.float32)
        for name, exponent in largest.items()
    }


def _garbage(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return NaN, infinities and the largest finite numbers (NaN and +-448 for float8)."""
    if dtype == DTYPES["float8_e4m3fn"]:
        choices = np.array([np.nan, E4M3_MAX, -E4M3_MAX])
    else:
        choices = np.array([np.nan, np.inf, -np.inf, 65504.0, -65504.0])
    return rng.choice(choices, shape).astype(dtype)


def _spoil(rng: np.random.Generator, arrays: tuple[np.ndarray, ...], where: Any) -> None:
    """Overwrite ``array[where]`` with garbage."""
    for array in arrays:
        array[where] = _garbage(rng, array[where].shape, array.dtype)


def _paginate(
    rng: np.random.Generator,
    arrays: list[list[np.ndarray]],
    needed: list[np.ndarray],
    page_size: int,
    *,
    shared_pages: int = 0,
    spare_columns: int = 2,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Scatter sequences over pages in random order.

    Pages without a needed slot hold garbage and are named by no table entry: the entry is any
    int32, negative and huge ones included.
    """
    pages_of = [np.unique(slots // page_size) for slots in needed]
    width = max((-(-len(x) // page_size) for x in arrays[0]), default=0) + spare_columns
    table = rng.integers(INT32.min, INT32.max, (len(needed), width), dtype=np.int32, endpoint=True)
    ids = iter(rng.permutation(sum(map(len, pages_of)) + 3).tolist())
    num_blocks = sum(map(len, pages_of)) + 3
    stores = [_garbage(rng, (num_blocks, page_size, *a[0].shape[1:]), a[0].dtype) for a in arrays]
    for b, pages in enumerate(pages_of):
        for page in pages.tolist():
            shared = b > 0 and page < shared_pages
            table[b, page] = table[0, page] if shared else next(ids)
            for store, sequences in zip(stores, arrays, strict=True):
                rows = sequences[b][page * page_size : (page + 1) * page_size]
                store[table[b, page], : len(rows)] = rows
    return stores, table


def _cumulate(seqlens: tuple[int, ...]) -> np.ndarray:
    return np.cumsum([0, *seqlens], dtype=np.int32)


def _int32(values: tuple[int, ...] | None) -> np.ndarray | None:
    return None if values is None else np.array(values, np.int32)


def _stored_as(*axes: int) -> Any:
    """Return a function that stores an array with its axes in this order and gives it back."""
    return lambda x: np.ascontiguousarray(x.transpose(axes)).transpose(np.argsort(axes))


def _sliced(x: np.ndarray) -> np.ndarray:
    batch, seqlen, heads, dim = x.shape
    room = np.full((batch + 1, 2 * seqlen, heads + 2, dim + 5), np.nan, x.dtype)
    view = room[1:, ::2, 1:-1, 3 : 3 + dim]
    view[...] = x
    return view


def _read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


def _expanded(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x[:1], x.shape)


def _reversed(x: np.ndarray) -> np.ndarray:
    return x[:, ::-1].copy()[:, ::-1]


def _strided_last(x: np.ndarray) -> np.ndarray:
    room = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, x.dtype)
    room[..., ::2] = x
    return room[..., ::2]


def _unaligned(x: np.ndarray) -> np.ndarray:
    room = np.zeros(x.nbytes + 1, np.uint8)
    view = room[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


LAYOUTS = {
    "contiguous": lambda x: x,
    "bhsd": _stored_as(0, 2, 1, 3),
    "sbhd": _stored_as(1, 0, 2, 3),
    "fortran": _stored_as(3, 2, 1, 0),
    "sliced": _sliced,
    "read_only": _read_only,
    "expanded": _expanded,
    "reversed": _reversed,
    "strided_last": _strided_last,
    "unaligned": _unaligned,
}

# Layouts that a family may refuse, if the message says what to call instead.
MAY_REFUSE = ("fortran", "expanded", "reversed", "strided_last", "unaligned")


def check_refusal(case: DenseCase, refusal: ValueError) -> None:
    """Assert that the case's layout may be refused, and that the message names the way out."""
    if case.layout not in MAY_REFUSE:
        raise refusal
    assert "contiguous" in str(refusal)


def score_norm(case: Case, q: np.ndarray, k: np.ndarray) -> float:
    """Return the bound softmax_scale |q| |k| on a raw score where gain made it large, else 0.

    The tolerance of a result whose scores are large grows with it: see `tests.tolerance`.
    """
    if case.gain <= 1:
        return 0.0
    scale = case.headdim**-0.5 if case.softmax_scale is None else case.softmax_scale
    longest = (np.linalg.norm(x.astype(np.float64), axis=-1).max() for x in (q, k))
    return scale * float(np.prod(list(longest)))
