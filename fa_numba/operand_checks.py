"""What may be wrong with the arrays of a call, one check a function.

Each check accepts its arguments, and returns them in the form that the rest of the package wants,
or raises the one sentence that names the argument, what was got and what is accepted (contract
§4). :mod:`fa_numba.operands` puts them together.
"""

from typing import Any

import numpy as np

from fa_numba.arrays import (
    as_array,
    as_index_array,
    check_same_device,
    check_shapes_equal,
    dtype_tag,
)
from fa_numba.indexing.page_table import num_pages
from fa_numba.problem import AttentionProblem, as_int

Array = np.ndarray[Any, Any]


def check_operands(
    q: Any,
    k: Any,
    v: Any,
    dtype: str | None,
    *,
    q_ndim: int,
    k_ndim: int,
    names: tuple[str, str, str] = ("q", "k", "v"),
    paged: bool = False,
) -> tuple[Array, Array, Array]:
    """Accept q, k and v: arrays of one dtype, on one device, of the ranks that the layout has."""
    check_same_device(**dict(zip(names, (q, k, v), strict=True)))
    tag = None if dtype is None else dtype_tag(dtype)
    forms = {4: "(batch, seqlen, heads, headdim)", 3: "(total, heads, headdim)"}
    q_form, k_form = forms[q_ndim], forms[k_ndim]
    if paged:
        k_form = "pages (num_blocks, page_size, heads, headdim), as block_table was given"
    why = "" if tag is None else f", as dtype={dtype!r} says"
    arrays = [
        as_array(names[0], q, q_ndim, q_form, tag, why),
        as_array(names[1], k, k_ndim, k_form, tag, why),
        as_array(names[2], v, k_ndim, k_form, tag, why),
    ]
    for name, x in zip(names[1:], arrays[1:], strict=True):
        if x.dtype != arrays[0].dtype:
            raise TypeError(
                f"{name} has dtype {x.dtype} and {names[0]} has dtype {arrays[0].dtype}; "
                "they must be equal"
            )
    return arrays[0], arrays[1], arrays[2]


def check_kv(k: Array, v: Array, headdim: int, names: tuple[str, str] = ("k", "v")) -> None:
    """Refuse k and v that do not fit each other, or q."""
    check_shapes_equal(
        names, (k.shape[:-1], v.shape[:-1]), "all but their last dimension must be equal"
    )
    if k.shape[-1] != headdim:
        raise ValueError(
            f"{names[0]} has headdim {k.shape[-1]} and q has headdim {headdim}; they must be equal"
        )


def check_descales(
    problem: AttentionProblem, q_descale: Any, k_descale: Any, v_descale: Any
) -> dict[str, Any]:
    """Accept the descales of an FP8 call: float32 (batch, nheads_k), or None."""
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    shape = (problem.batch, problem.nheads_k)
    for name, x in descales.items():
        if x is None:
            continue
        if not isinstance(x, np.ndarray) or x.dtype != np.float32:
            got = f"dtype {x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__
            raise TypeError(f"{name} is {got}; accepted is a float32 array (batch, nheads_k)")
        if x.shape != shape:
            raise ValueError(f"{name} has shape {x.shape}; accepted is (batch, nheads_k) = {shape}")
        if not problem.is_fp8:
            raise TypeError(f"{name} was given with {problem.dtype} inputs; it belongs to FP8")
    return descales


def prefix_differences(name: str, cu_seqlens: Array) -> Array:
    """Lengths from prefix sums, in int64 so that bad int32 values cannot wrap."""
    lengths = np.diff(cu_seqlens.astype(np.int64))
    if cu_seqlens.size == 0:
        raise ValueError(f"{name} is empty; accepted is (batch + 1,), at least [0]")
    if cu_seqlens[0] < 0 or (lengths < 0).any():
        raise ValueError(f"{name} is {cu_seqlens}; accepted are values >= 0 that never decrease")
    return lengths


def packed_lengths(name: str, cu_seqlens: Array, total: int, packed: str) -> Array:
    """Lengths of packed sequences, checked against the number of rows that there are."""
    lengths = prefix_differences(name, cu_seqlens)
    if cu_seqlens[-1] > total:
        raise ValueError(
            f"{name}[-1] is {cu_seqlens[-1]}; {packed} has {total} rows, accepted is at most that"
        )
    return lengths


def check_longest(name: str, longest: int, lengths: Array) -> None:
    """Refuse a longest length that some sequence exceeds."""
    if lengths.size and lengths.max() > longest:
        raise ValueError(
            f"{name} is {longest}; a sequence has {lengths.max()}, accepted is at least that"
        )


def used_lengths(name: str, seqused: Any, batch: int, lengths: Array, longest: int) -> Array:
    """Check used lengths and return those that the mask uses."""
    used = lengths
    if seqused is not None:
        used = as_index_array(name, seqused, (batch,), "(batch,)")
        if ((used < 0) | (used > lengths)).any():
            raise ValueError(f"{name} is {used}; accepted are 0 to the allocated lengths {lengths}")
    check_longest("max_seqlen_" + name[-1], longest, used)
    return used


def check_cache_addressing(
    k_cache: Array, batch: int, block_table: Any, cache_batch_idx: Any, cache_leftpad: Any
) -> tuple[Array | None, Array | None, Array | None]:
    """Accept how the sequences find their cache: (block_table, cache_batch_idx, cache_leftpad)."""
    if block_table is not None:
        for name, x in (("cache_batch_idx", cache_batch_idx), ("cache_leftpad", cache_leftpad)):
            if x is not None:
                raise ValueError(f"{name} was given with block_table; accepted is one of the two")
        table = as_index_array(
            "block_table", block_table, (batch, None), "(batch, max_num_blocks_per_seq)"
        )
        return table, None, None
    rows = leftpad = None
    if cache_batch_idx is not None:
        rows = as_index_array("cache_batch_idx", cache_batch_idx, (batch,), "(batch,)")
        if ((rows < 0) | (rows >= k_cache.shape[0])).any():
            raise ValueError(
                f"cache_batch_idx is {rows}; accepted are rows 0 to {k_cache.shape[0] - 1}"
            )
    elif k_cache.shape[0] != batch:
        raise ValueError(
            f"k_cache has {k_cache.shape[0]} rows and q has batch {batch}; "
            "they must be equal unless cache_batch_idx picks the rows"
        )
    if cache_leftpad is not None:
        leftpad = as_index_array("cache_leftpad", cache_leftpad, (batch,), "(batch,)")
        if (leftpad < 0).any():
            raise ValueError(f"cache_leftpad is {leftpad}; accepted are values >= 0")
    return None, rows, leftpad


def check_new_tokens(
    k: Any, v: Any, k_cache: Array, v_cache: Array, batch: int, dtype: str | None
) -> tuple[Array | None, Array | None]:
    """Accept the keys and values to append, or neither."""
    if (k is None) != (v is None):
        missing = "k" if k is None else "v"
        raise TypeError(f"{missing} is None; k and v come together")
    if k is None:
        return None, None
    axes = "(batch, seqlen_new, nheads_k, headdim)"
    tag = None if dtype is None else dtype_tag(dtype)
    k, v = as_array("k", k, 4, axes, tag), as_array("v", v, 4, axes, tag)
    for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if new.dtype != cache.dtype:
            raise TypeError(
                f"{name} has dtype {new.dtype} and {name}_cache has dtype {cache.dtype}; "
                "they must be equal"
            )
        if new.shape[0] != batch or new.shape[2:] != cache.shape[2:]:
            wanted = (batch, "any", *cache.shape[2:])
            raise ValueError(f"{name} has shape {new.shape}; accepted is {axes} = {wanted}")
    check_shapes_equal(("k", "v"), (k.shape[:2], v.shape[:2]), "their lengths must be equal")
    return k, v


def cache_lengths(
    cache_seqlens: Any, batch: int, seqlen_cache: int, seqlen_new: int, *, has_new: bool
) -> Array:
    """Lengths before the append, int64 (batch,)."""
    if cache_seqlens is None:
        if has_new:
            raise ValueError("cache_seqlens is None with k and v; say where they are appended")
        return np.full(batch, seqlen_cache, np.int64)
    if isinstance(cache_seqlens, np.ndarray) and cache_seqlens.ndim:
        seqlens = as_index_array("cache_seqlens", cache_seqlens, (batch,), "(batch,)")
        seqlens = seqlens.astype(np.int64)
    else:
        # Bounded before it meets int64, where a huge one would wrap.
        length = min(as_int("cache_seqlens", cache_seqlens, low=0), seqlen_cache + 1)
        seqlens = np.full(batch, length, np.int64)
    if (seqlens < 0).any():
        raise ValueError(f"cache_seqlens is {cache_seqlens}; accepted are values >= 0")
    if (seqlens + seqlen_new > seqlen_cache).any():
        got = cache_seqlens if np.ndim(cache_seqlens) == 0 else f"up to {seqlens.max()}"
        raise ValueError(
            f"cache_seqlens is {got} and {seqlen_new} tokens are appended; "
            f"the cache holds {seqlen_cache} a sequence"
        )
    return seqlens


def check_rotary(
    cos: Any, sin: Any, headdim: int, *, has_new: bool
) -> tuple[Array | None, Array | None]:
    """Accept the rotary tables, or neither."""
    if (cos is None) != (sin is None):
        missing = "rotary_cos" if cos is None else "rotary_sin"
        raise TypeError(f"{missing} is None; rotary_cos and rotary_sin come together")
    if cos is None:
        return None, None
    if not has_new:
        raise ValueError("rotary_cos was given without k; the rotation belongs to appended tokens")
    axes = "(seqlen_ro, rotary_dim / 2)"
    cos, sin = as_array("rotary_cos", cos, 2, axes), as_array("rotary_sin", sin, 2, axes)
    check_shapes_equal(("rotary_cos", "rotary_sin"), (cos.shape, sin.shape), "they must be equal")
    if cos.shape[1] == 0 or 2 * cos.shape[1] > headdim:
        raise ValueError(
            f"rotary_cos has shape {cos.shape}, so rotary_dim is {2 * cos.shape[1]}; "
            f"accepted are 2 to headdim = {headdim}"
        )
    return cos, sin


def check_live_pages(
    problem: AttentionProblem, table: Array, num_blocks: int, lengths_q: Array, lengths_k: Array
) -> None:
    """Refuse a page number out of range where some query of the sequence reads it.

    Entries for keys that no query may attend may hold anything (contract, decision 2).
    """
    page_size = problem.page_size
    for b in range(problem.batch):
        seqlen_q, seqlen_k = int(lengths_q[b]), int(lengths_k[b])
        if seqlen_q == 0 or seqlen_k == 0:
            continue
        # Whatever the right bound, the last query sees the last key: only the left one leaves some
        # keys to nobody.
        first = 0
        if problem.window_left >= 0:
            first = max(0, seqlen_k - seqlen_q - problem.window_left)
        live = np.zeros(table.shape[1], bool)
        for start, stop in ((0, min(problem.sink_token_length, seqlen_k)), (first, seqlen_k)):
            if start < stop:
                live[start // page_size : num_pages(stop, page_size)] = True
        bad = live & ((table[b] < 0) | (table[b] >= num_blocks))
        if bad.any():
            page = int(np.argmax(bad))
            raise ValueError(
                f"block_table[{b}, {page}] is {table[b, page]}; accepted are 0 to {num_blocks - 1}"
            )


def check_append_pages(table: Array, k_cache: Array, seqlens: Array, seqlen_new: int) -> None:
    """Refuse a page number out of range where a new token would be written."""
    num_blocks, page_size = k_cache.shape[:2]
    if seqlen_new == 0:
        return
    for b, start in enumerate(seqlens):
        pages = table[b, start // page_size : num_pages(int(start) + seqlen_new, page_size)]
        if ((pages < 0) | (pages >= num_blocks)).any():
            raise ValueError(
                f"block_table[{b}] names pages {pages} for new tokens; "
                f"accepted are 0 to {num_blocks - 1}"
            )
