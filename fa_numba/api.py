"""The public functions: describe the call, plan it, run it.

Arrays are NumPy arrays; dtypes, masks and conventions are those of ``docs/contract.md``. In short:
layouts are (batch, seqlen, heads, headdim); masks are aligned at the bottom right; lse is a natural
logarithm; a query that may attend no key gives out = 0 and lse = -inf; flags are keyword-only.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, TypeVar, cast

import numpy as np

from fa_numba.arrays import (
    as_array,
    check_same_device,
    check_writable,
    dtype_tag,
    numpy_dtype,
)
from fa_numba.operands import Operands, describe_dense, describe_kvcache, describe_varlen
from fa_numba.plan import Explanation, explain_problem, make_plan
from fa_numba.problem import (
    MAX_NUM_SPLITS,
    AttentionProblem,
    BackwardProblem,
    as_flag,
    as_int,
    make_problem,
)

__all__ = [
    "check_errors",
    "explain",
    "flash_attn_backward",
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_backward",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "quantize",
]

Array = np.ndarray[Any, Any]
Result = Array | tuple[Array, Array]
F = TypeVar("F", bound=Callable[..., Any])

# Keywords of other libraries: the value that means "off", and what to say of any other.
FOREIGN_KEYWORDS: dict[str, tuple[Any, str]] = {
    "dropout_p": (0.0, "dropout is not implemented"),
    "alibi_slopes": (None, "ALiBi is not implemented"),
    "qv": (None, "the absorbed-MLA operand qv is not implemented"),
    "attention_chunk": (0, "chunked attention is not implemented"),
    "s_aux": (None, "learnable sinks are not implemented"),
    "learnable_sink": (None, "learnable sinks are not implemented"),
    "page_table": (None, "the one spelling here is block_table"),
    "deterministic": (False, "a forward always is; the flag belongs to the backward functions"),
    "sm_margin": (0, "leaving multiprocessors to others is not implemented"),
    "scheduler_metadata": (None, "a call prepares its own schedule"),
    "return_attn_probs": (False, "the one spelling here is return_lse"),
    "return_softmax_lse": (False, "the one spelling here is return_lse"),
}


def _explain_foreign_keywords(function: F) -> F:
    """Accept the other libraries' keywords where they are off; else say where we stand."""
    own = inspect.signature(function).parameters
    foreign = {name: rule for name, rule in FOREIGN_KEYWORDS.items() if name not in own}

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for name, (off, status) in foreign.items():
            if name not in kwargs:
                continue
            value = kwargs.pop(name)
            if value is not off and (isinstance(value, np.ndarray) or value != off):
                raise TypeError(f"{name} was given to {function.__name__}; {status}")
        return function(*args, **kwargs)

    return cast(F, wrapper)


@_explain_foreign_keywords
def flash_attn_func(
    q: Array,
    k: Array,
    v: Array,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    sink_token_length: int = 0,
    softcap: float = 0.0,
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    return_lse: bool = False,
    out: Array | None = None,
    dtype: str | None = None,
    out_dtype: Any = None,
    validate: bool = False,
    backend: str = "auto",
) -> Result:
    """Attention: softmax(softmax_scale · q kᵀ + mask) v, without the seqlen_q × seqlen_k matrix.

    Parameters
    ----------
    q
        (batch, seqlen_q, nheads, headdim); float64, float32, float16, bfloat16 or float8_e4m3fn,
        any strides. Head dim 1 to 256.
    k
        (batch, seqlen_k, nheads_k, headdim); nheads_k divides nheads, and query head h reads KV
        head h // (nheads / nheads_k).
    v
        (batch, seqlen_k, nheads_k, headdim_v); headdim_v may differ from headdim.
    softmax_scale
        Factor σ on q·k, finite and >= 0; headdim^-0.5 if None.
    causal
        Query i sees keys j <= i + seqlen_k - seqlen_q (aligned at the bottom right).
    window_size
        (left, right): query i also needs i + off - left <= j <= i + off + right, where
        off = seqlen_k - seqlen_q. -1 or None means no limit; causal sets right to 0.
    sink_token_length
        The first keys that the left limit does not hide; causality still does.
    softcap
        c > 0 replaces each scaled score s by c·tanh(s / c), before masking.
    q_descale, k_descale, v_descale
        float32 (batch, nheads_k), FP8 inputs only: each operand's values are its codes times this.
    num_splits
        Parts into which the keys are split and merged again; 0 leaves the choice to the plan.
        The same number gives bit-equal results, another one agrees to rounding.
    pack_gqa
        Whether the query heads of a group share a tile; None leaves it to the plan.
    return_lse
        Also return the log-sum-exp of the scores.
    out
        An array to write the output into and return; (batch, seqlen_q, nheads, headdim_v).
    dtype
        ``"float8_e4m3fn"`` to read uint8 arrays as FP8 codes.
    out_dtype
        FP8 inputs only: bfloat16 (the default), float16 or float32.
    validate
        Also check the values of index arrays on a GPU, which waits for it; values in host arrays
        are always checked.
    backend
        ``"auto"``, ``"reference"``, ``"simt"``, ``"sm80"`` or ``"sm90"``.

    Returns
    -------
    out : numpy.ndarray
        (batch, seqlen_q, nheads, headdim_v) in q's dtype (see out_dtype for FP8).
    lse : numpy.ndarray
        With return_lse: (batch, nheads, seqlen_q), natural logarithm, float32 (float64 for float64
        inputs); -inf where a query may attend no key, and out is 0 there.

    Raises
    ------
    ValueError, TypeError
        One sentence that names the argument, what was got and what is accepted; nothing has been
        written then.

    Notes
    -----
    The tiled algorithm is FlashAttention-2's (arXiv 2307.08691, algorithm 1); sinks with a window
    follow StreamingLLM (arXiv 2309.17453); softcap follows Gemma 2 (arXiv 2408.00118).

    Examples
    --------
    >>> import numpy as np, fa_numba
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((2, 100, 4, 64), dtype=np.float32) for _ in range(3))
    >>> out, lse = fa_numba.flash_attn_func(q, k, v, causal=True, return_lse=True)
    >>> out.shape, lse.shape
    ((2, 100, 4, 64), (2, 4, 100))
    """
    problem, operands = describe_dense(
        q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        sink_token_length=sink_token_length, softcap=softcap, q_descale=q_descale,
        k_descale=k_descale, v_descale=v_descale, num_splits=num_splits, pack_gqa=pack_gqa,
        dtype=dtype, out_dtype=out_dtype, backend=backend,
    )  # fmt: skip
    return _forward(problem, operands, out, return_lse, validate)


@_explain_foreign_keywords
def flash_attn_qkvpacked_func(qkv: Array, **flags: Any) -> Result:
    """Attention on q, k, v packed in one array, without a copy.

    Parameters
    ----------
    qkv
        (batch, seqlen, 3, nheads, headdim).
    **flags
        The keyword flags of :func:`flash_attn_func`.

    Returns
    -------
    out or (out, lse)
        As :func:`flash_attn_func` returns them.

    Raises
    ------
    ValueError, TypeError
        As :func:`flash_attn_func`; also if qkv is not packed as said.
    """
    return flash_attn_func(*_unpack("qkv", qkv, 5, 3), **flags)


@_explain_foreign_keywords
def flash_attn_kvpacked_func(q: Array, kv: Array, **flags: Any) -> Result:
    """Attention on k and v packed in one array, without a copy.

    Parameters
    ----------
    q
        (batch, seqlen_q, nheads, headdim).
    kv
        (batch, seqlen_k, 2, nheads_k, headdim).
    **flags
        The keyword flags of :func:`flash_attn_func`.

    Returns
    -------
    out or (out, lse)
        As :func:`flash_attn_func` returns them.

    Raises
    ------
    ValueError, TypeError
        As :func:`flash_attn_func`; also if kv is not packed as said.
    """
    return flash_attn_func(q, *_unpack("kv", kv, 5, 2), **flags)


@_explain_foreign_keywords
def flash_attn_varlen_func(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    block_table: Array | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    sink_token_length: int = 0,
    softcap: float = 0.0,
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    return_lse: bool = False,
    out: Array | None = None,
    dtype: str | None = None,
    out_dtype: Any = None,
    validate: bool = False,
    backend: str = "auto",
) -> Result:
    """Attention over sequences of different lengths, packed one after the other.

    Parameters
    ----------
    q
        (total_q, nheads, headdim).
    k, v
        (total_k, nheads_k, headdim) and (total_k, nheads_k, headdim_v); with block_table the pages
        (num_blocks, page_size, nheads_k, headdim) and (..., headdim_v), any page size.
    cu_seqlens_q, cu_seqlens_k
        (batch + 1,) int32 prefix sums: sequence b has rows cu_seqlens[b] to cu_seqlens[b + 1] - 1.
        Lengths may be zero. cu_seqlens_k may be None with block_table and seqused_k.
    max_seqlen_q, max_seqlen_k
        At least the longest lengths used.
    seqused_q, seqused_k
        (batch,) int32: only that many leading rows of a sequence count, and the mask is aligned to
        them.
    block_table
        (batch, max_num_blocks_per_seq) int32: key j of sequence b is row j % page_size of page
        ``block_table[b, j // page_size]``. Entries whose keys no query may attend may hold
        anything.
    softmax_scale, causal, window_size, sink_token_length, softcap, q_descale, k_descale, v_descale
        As in :func:`flash_attn_func`, applied to each sequence by itself.
    num_splits, pack_gqa, return_lse, out, dtype, out_dtype, validate, backend
        As in :func:`flash_attn_func`.

    Returns
    -------
    out : numpy.ndarray
        (total_q, nheads, headdim_v). Rows outside the used lengths are 0.
    lse : numpy.ndarray
        With return_lse: (nheads, total_q), natural logarithm; -inf for rows outside the used
        lengths and for queries that may attend no key.

    Raises
    ------
    ValueError, TypeError
        As :func:`flash_attn_func`; also for index arrays of a wrong dtype, shape or value.

    See Also
    --------
    fa_numba.unpad_input : Packs a padded batch and makes cu_seqlens.
    """
    problem, operands = describe_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=seqused_q,
        seqused_k=seqused_k, block_table=block_table, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, sink_token_length=sink_token_length, softcap=softcap,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, num_splits=num_splits,
        pack_gqa=pack_gqa, dtype=dtype, out_dtype=out_dtype, backend=backend,
    )  # fmt: skip
    return _forward(problem, operands, out, return_lse, validate)


@_explain_foreign_keywords
def flash_attn_varlen_qkvpacked_func(
    qkv: Array, cu_seqlens: Array, max_seqlen: int, **flags: Any
) -> Result:
    """Variable-length self-attention on q, k, v packed in one array, without a copy.

    Parameters
    ----------
    qkv
        (total, 3, nheads, headdim).
    cu_seqlens, max_seqlen
        As in :func:`flash_attn_varlen_func`, for queries and keys alike.
    **flags
        The keyword flags of :func:`flash_attn_varlen_func`, but for block_table.

    Returns
    -------
    out or (out, lse)
        As :func:`flash_attn_varlen_func` returns them.

    Raises
    ------
    ValueError, TypeError
        As :func:`flash_attn_varlen_func`; also if qkv is not packed as said.
    """
    q, k, v = _unpack("qkv", qkv, 4, 3)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, **flags)


@_explain_foreign_keywords
def flash_attn_varlen_kvpacked_func(
    q: Array,
    kv: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    max_seqlen_q: int,
    max_seqlen_k: int,
    **flags: Any,
) -> Result:
    """Variable-length attention on k and v packed in one array, without a copy.

    Parameters
    ----------
    q
        (total_q, nheads, headdim).
    kv
        (total_k, 2, nheads_k, headdim).
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        As in :func:`flash_attn_varlen_func`.
    **flags
        The keyword flags of :func:`flash_attn_varlen_func`, but for block_table.

    Returns
    -------
    out or (out, lse)
        As :func:`flash_attn_varlen_func` returns them.

    Raises
    ------
    ValueError, TypeError
        As :func:`flash_attn_varlen_func`; also if kv is not packed as said.
    """
    k, v = _unpack("kv", kv, 4, 2)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **flags
    )


@_explain_foreign_keywords
def flash_attn_with_kvcache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Array | None = None,
    v: Array | None = None,
    *,
    cache_seqlens: int | Array | None = None,
    cache_batch_idx: Array | None = None,
    cache_leftpad: Array | None = None,
    block_table: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    rotary_interleaved: bool = True,
    cu_seqlens_q: Array | None = None,
    max_seqlen_q: int | None = None,
    num_splits: int = 0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    sink_token_length: int = 0,
    softcap: float = 0.0,
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    pack_gqa: bool | None = None,
    return_lse: bool = False,
    out: Array | None = None,
    dtype: str | None = None,
    out_dtype: Any = None,
    validate: bool = False,
    backend: str = "auto",
) -> Result:
    """Attention of new queries against a KV cache, appending new keys and values to it first.

    Parameters
    ----------
    q
        (batch, seqlen_q, nheads, headdim), or (total_q, nheads, headdim) with cu_seqlens_q.
    k_cache, v_cache
        (batch_cache, seqlen_cache, nheads_k, headdim) and (..., headdim_v), or with block_table
        the pages (num_blocks, page_size, nheads_k, headdim) and (..., headdim_v). Any strides; new
        tokens are written into these arrays, which are never copied.
    k, v
        (batch, seqlen_new, nheads_k, headdim) and (..., headdim_v), or None: token t of sequence b
        goes to slot ``cache_seqlens[b] + t`` and is attended by the same call.
    cache_seqlens
        Length before the append: an int, or (batch,) int32. None means the whole cache, and is
        refused together with k. The caller advances it afterwards.
    cache_batch_idx
        (batch,) int32 rows of the cache; each row once at most when tokens are appended. Not with
        block_table.
    cache_leftpad
        (batch,) int32 first valid slots: masks count from there. Not with block_table.
    block_table
        (batch, max_num_blocks_per_seq) int32, as in :func:`flash_attn_varlen_func`.
    rotary_cos, rotary_sin
        (seqlen_ro, rotary_dim / 2), with k only: rotate the new keys, and the queries, by their
        slot numbers. With a causal or window mask query i is rotated by cache_seqlens[b] + i, else
        every query by cache_seqlens[b].
    rotary_interleaved
        Rotate the pairs (2i, 2i + 1) if true, else the pairs (i, i + rotary_dim / 2).
    cu_seqlens_q, max_seqlen_q
        (batch + 1,) int32 prefix sums of packed q, and at least its longest length.
    num_splits
        Parts into which the keys are split; 0 leaves the choice to the plan.
    softmax_scale, causal, window_size, sink_token_length, softcap, q_descale, k_descale, v_descale
        As in :func:`flash_attn_func`, where sequence b has seqlen_k =
        cache_seqlens[b] + seqlen_new - cache_leftpad[b].
    pack_gqa, return_lse, out, dtype, out_dtype, validate, backend
        As in :func:`flash_attn_func`.

    Returns
    -------
    out : numpy.ndarray
        (batch, seqlen_q, nheads, headdim_v), or (total_q, nheads, headdim_v).
    lse : numpy.ndarray
        With return_lse: (batch, nheads, seqlen_q), or (nheads, total_q), natural logarithm.

    Raises
    ------
    ValueError, TypeError
        As :func:`flash_attn_func`; also if the tokens do not fit the cache. Nothing has been
        written then.

    See Also
    --------
    fa_numba.PagedKVCache : Allocates pages and makes block tables.
    """
    problem, operands = describe_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=cache_seqlens, cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad, block_table=block_table, rotary_cos=rotary_cos,
        rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q, num_splits=num_splits, softmax_scale=softmax_scale,
        causal=causal, window_size=window_size, sink_token_length=sink_token_length,
        softcap=softcap, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        pack_gqa=pack_gqa, dtype=dtype, out_dtype=out_dtype, backend=backend,
    )  # fmt: skip
    return _forward(problem, operands, out, return_lse, validate)


def flash_attn_combine(
    out_partial: Array, lse_partial: Array, *, out_dtype: Any = None
) -> tuple[Array, Array]:
    """Merge attention over disjoint sets of keys.

    Parameters
    ----------
    out_partial
        (num_splits, batch, seqlen_q, nheads, headdim_v) float32 (or float64), each normalised.
    lse_partial
        (num_splits, batch, nheads, seqlen_q) in out_partial's dtype, natural logarithms; -inf marks
        an empty partial, whose out_partial is never read, and +inf is refused. FlashAttention-3's
        layout (num_splits, batch, seqlen_q, nheads) is refused by its shape; where nheads =
        seqlen_q the two cannot be told apart.
    out_dtype
        float64, float32, float16 or bfloat16; out_partial's dtype if None.

    Returns
    -------
    out : numpy.ndarray
        (batch, seqlen_q, nheads, headdim_v) in out_dtype; 0 where all partials are empty.
    lse : numpy.ndarray
        (batch, nheads, seqlen_q) in out_partial's dtype; -inf where all partials are empty.

    Raises
    ------
    ValueError, TypeError
        If a shape or a dtype is not accepted.

    Notes
    -----
    With m = max lse_p and w_p = exp(lse_p - m): out = Σ w_p out_p / Σ w_p and lse = m + ln Σ w_p,
    over w_p > 0 (Flash-Decoding, 2023).
    """
    from fa_numba.reference.flash_fwd_combine import flash_fwd_combine

    check_same_device(out_partial=out_partial, lse_partial=lse_partial)
    axes = "(num_splits, batch, seqlen_q, nheads, headdim_v)"
    out_partial = as_array("out_partial", out_partial, 5, axes)
    lse_axes = "(num_splits, batch, nheads, seqlen_q)"
    lse_partial = as_array("lse_partial", lse_partial, 4, lse_axes)
    tag = dtype_tag(out_partial.dtype)
    if tag not in ("float32", "float64") or lse_partial.dtype != out_partial.dtype:
        raise TypeError(
            f"out_partial has dtype {out_partial.dtype} and lse_partial {lse_partial.dtype}; "
            "accepted is float32 for both (or float64)"
        )
    num_splits, batch, seqlen_q, nheads, _ = out_partial.shape
    as_int("num_splits of out_partial", num_splits, low=1, high=MAX_NUM_SPLITS)
    if lse_partial.shape != (num_splits, batch, nheads, seqlen_q):
        hint = ""
        if lse_partial.shape == (num_splits, batch, seqlen_q, nheads):
            hint = "; this looks like FlashAttention-3's layout: swap its last two axes"
        raise ValueError(
            f"lse_partial has shape {lse_partial.shape}; accepted is {lse_axes} = "
            f"{(num_splits, batch, nheads, seqlen_q)}{hint}"
        )
    if np.isposinf(lse_partial).any():
        raise ValueError(
            "lse_partial holds +inf; accepted is -inf for an empty partial "
            "(FlashAttention-2 writes +inf: replace it)"
        )
    out_tag = tag if out_dtype is None else dtype_tag(out_dtype, "out_dtype")
    if out_tag == "float8_e4m3fn":
        raise TypeError("out_dtype is 'float8_e4m3fn'; accepted are the wider dtypes")
    with np.errstate(all="ignore"):
        out, lse = flash_fwd_combine(out_partial, lse_partial)
        return out.astype(numpy_dtype(out_tag), copy=False), lse


@_explain_foreign_keywords
def flash_attn_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    dlse: Array | None = None,
    deterministic: bool = False,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    sink_token_length: int = 0,
    softcap: float = 0.0,
    validate: bool = False,
    backend: str = "auto",
) -> tuple[Array, Array, Array]:
    """Gradients of :func:`flash_attn_func`, recomputing the scores from lse.

    Parameters
    ----------
    dout
        Gradient of out, (batch, seqlen_q, nheads, headdim_v), q's dtype, any strides.
    q, k, v
        The forward's operands; float64, float32, float16 or bfloat16.
    out, lse
        What the forward returned: (batch, seqlen_q, nheads, headdim_v) in q's dtype and
        (batch, nheads, seqlen_q).
    dlse
        Gradient of lse, (batch, nheads, seqlen_q), lse's dtype; None means 0.
    deterministic
        Whether results must be bit-equal from run to run (the reference always is).
    softmax_scale, causal, window_size, sink_token_length, softcap, validate, backend
        As in :func:`flash_attn_func`, and as the forward was called.

    Returns
    -------
    dq, dk, dv : numpy.ndarray
        In the shapes and dtypes of q, k, v; dk and dv are summed over the query heads of a group.

    Raises
    ------
    ValueError, TypeError
        As :func:`flash_attn_func`.

    Notes
    -----
    With δ = Σ dout·out: dS = P∘(dout vᵀ - δ + dlse)·φ, dq = σ dS k, dk = σ dSᵀ q, dv = Pᵀ dout,
    where φ is the derivative of softcap (FlashAttention-2, arXiv 2307.08691, algorithm 2).
    """
    problem, operands = describe_dense(
        q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        sink_token_length=sink_token_length, softcap=softcap, backend=backend,
    )  # fmt: skip
    as_flag("validate", validate)
    backward = BackwardProblem(problem, as_flag("deterministic", deterministic))
    return _backward(backward, operands, dout, out, lse, dlse)


@_explain_foreign_keywords
def flash_attn_varlen_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    dlse: Array | None = None,
    deterministic: bool = False,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    sink_token_length: int = 0,
    softcap: float = 0.0,
    validate: bool = False,
    backend: str = "auto",
) -> tuple[Array, Array, Array]:
    """Gradients of :func:`flash_attn_varlen_func` on packed (not paged) operands.

    Parameters
    ----------
    dout, out
        (total_q, nheads, headdim_v), q's dtype.
    q, k, v
        The forward's operands.
    lse, dlse
        (nheads, total_q); dlse None means 0.
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k
        As in :func:`flash_attn_varlen_func`, and as the forward was called.
    deterministic, softmax_scale, causal, window_size, sink_token_length, softcap, validate, backend
        As in :func:`flash_attn_backward`.

    Returns
    -------
    dq, dk, dv : numpy.ndarray
        In the shapes and dtypes of q, k, v; 0 in rows outside the used lengths.

    Raises
    ------
    ValueError, TypeError
        As :func:`flash_attn_varlen_func`.
    """
    problem, operands = describe_varlen(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=seqused_q,
        seqused_k=seqused_k, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
        sink_token_length=sink_token_length, softcap=softcap, backend=backend,
    )  # fmt: skip
    as_flag("validate", validate)
    backward = BackwardProblem(problem, as_flag("deterministic", deterministic))
    return _backward(backward, operands, dout, out, lse, dlse)


def quantize(
    x: Array,
    *,
    granularity: Literal["tensor", "head", "block"] = "head",
    nheads_k: int | None = None,
    block: int = 128,
    rotate: bool = False,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Quantise an operand to FP8 (E4M3) with a scale that uses its whole range.

    Parameters
    ----------
    x
        (batch, seqlen, heads, headdim), any float dtype.
    granularity
        What shares a scale: the whole tensor, each (batch, KV head), or each run of ``block``
        tokens of a (batch, KV head).
    nheads_k
        Number of KV heads, for a q with more heads than k: the heads of a group share a scale, as
        the attention functions want it. The heads of x if None.
    block
        Tokens in a block, for ``granularity="block"``.
    rotate
        Multiply the head dimension by a random orthogonal matrix first (incoherent processing,
        FlashAttention-3 §3.3), which spreads outliers. Rotate q and k with the same seed, and the
        scores do not change; do not rotate v.
    seed
        Seed of the rotation.

    Returns
    -------
    codes : numpy.ndarray
        x in float8_e4m3fn.
    descale : numpy.ndarray
        float32 (batch, nheads_k), what :func:`flash_attn_func` takes (also for ``"tensor"``, every
        entry the same); (batch, nheads_k, ceil(seqlen / block)) for ``"block"``, which the tiled
        loop :func:`fa_numba.reference.flash_fwd.flash_fwd` takes.

    Raises
    ------
    ValueError, TypeError
        If an argument is not accepted.
    """
    from fa_numba.reference.quant import quantize as quantize_reference

    x = as_array("x", x, 4, "(batch, seqlen, heads, headdim)")
    if x.shape[3] == 0:
        raise ValueError(f"x has shape {x.shape}; accepted is a headdim of at least 1")
    if granularity not in ("tensor", "head", "block"):
        raise ValueError(
            f"granularity is {granularity!r}; accepted are 'tensor', 'head' and 'block'"
        )
    heads = x.shape[2] if nheads_k is None else as_int("nheads_k", nheads_k, low=1)
    if heads == 0 or x.shape[2] % heads:
        raise ValueError(
            f"nheads_k is {heads}; accepted is a divisor of the {x.shape[2]} heads of x"
        )
    with np.errstate(all="ignore"):
        return quantize_reference(
            x,
            granularity=granularity,
            nheads_k=heads,
            block=as_int("block", block, low=1),
            rotate=as_flag("rotate", rotate),
            seed=as_int("seed", seed, low=0),
        )


@_explain_foreign_keywords
def explain(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    dtype: Any,
    *,
    headdim_v: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    sink_token_length: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    out_dtype: Any = None,
    backend: str = "auto",
    device: str | None = None,
) -> Explanation:
    """Say what a call on arrays of these shapes would do, without arrays.

    Parameters
    ----------
    q_shape, k_shape
        (batch, seqlen_q, nheads, headdim) and (batch, seqlen_k, nheads_k, headdim).
    dtype
        A dtype or a dtype tag, such as ``"bfloat16"``.
    headdim_v
        Head dimension of v; headdim if None.
    softmax_scale, causal, window_size, sink_token_length, softcap, num_splits, pack_gqa, out_dtype
        As in :func:`flash_attn_func`.
    backend
        As in :func:`flash_attn_func`.
    device
        Where the arrays would be; None or ``"cpu"`` in this version.

    Returns
    -------
    Explanation
        Family and reason, tile sizes, scheduler, splits, key tiles of each query tile, FLOPs,
        bytes. Print it for a table; ``as_dict()`` gives plain values.

    Raises
    ------
    ValueError, TypeError
        As the call itself would.

    Examples
    --------
    >>> import fa_numba
    >>> report = fa_numba.explain((1, 4096, 8, 64), (1, 4096, 8, 64), "float32", causal=True)
    >>> report.plan.family, report.tiles_visited < report.tiles_total
    ('reference', True)
    """
    if device not in (None, "cpu"):
        raise ValueError(
            f"device is {device!r}; this version serves None and 'cpu' (no GPU kernel family yet)"
        )
    shapes = []
    for name, shape in (("q_shape", q_shape), ("k_shape", k_shape)):
        if not isinstance(shape, tuple | list):
            raise TypeError(
                f"{name} is a {type(shape).__name__}; accepted is a shape, "
                "(batch, seqlen, heads, headdim)"
            )
        if len(shape) != 4:
            raise ValueError(f"{name} is {shape}; accepted is (batch, seqlen, heads, headdim)")
        shapes.append([as_int(name, n, low=0) for n in shape])
    (batch, seqlen_q, nheads, headdim), (batch_k, seqlen_k, nheads_k, headdim_k) = shapes
    if batch_k != batch or headdim_k != headdim:
        raise ValueError(
            f"k_shape is {tuple(k_shape)} and q_shape is {tuple(q_shape)}; "
            "batch and headdim must be equal"
        )
    problem = make_problem(
        layout="dense", batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k, nheads=nheads,
        nheads_k=nheads_k, headdim=headdim,
        headdim_v=headdim if headdim_v is None else as_int("headdim_v", headdim_v),
        dtype=dtype_tag(dtype), softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, sink_token_length=sink_token_length, softcap=softcap,
        num_splits=num_splits, pack_gqa=pack_gqa, out_dtype=out_dtype, backend=backend,
    )  # fmt: skip
    return explain_problem(problem)


def check_errors() -> None:
    """Raise what kernels have flagged since the last call.

    A kernel cannot raise: where the values of an index array on a GPU were out of range it writes
    nothing out of range and sets a flag, and this function, which waits for the GPU, turns the flag
    into the error. Calls on NumPy arrays check values before they start and raise at once, so for
    them nothing is ever pending.
    """


def _unpack(name: str, packed: Any, ndim: int, count: int) -> list[Array]:
    axes = "..., heads, headdim"
    form = f"({'batch, seqlen' if ndim == 5 else 'total'}, {count}, {axes[5:]})"
    if not isinstance(packed, np.ndarray):
        raise TypeError(f"{name} is a {type(packed).__name__}; accepted is a NumPy array {form}")
    if packed.ndim != ndim or packed.shape[-3] != count:
        raise ValueError(f"{name} has shape {packed.shape}; accepted is {form}")
    return [packed[..., i, :, :] for i in range(count)]


def _forward(
    problem: AttentionProblem,
    operands: Operands,
    out: Array | None,
    return_lse: bool,
    validate: bool,
) -> Result:
    from fa_numba.run_reference import run_forward

    return_lse = as_flag("return_lse", return_lse)
    as_flag("validate", validate)  # values of host arrays are checked in any case
    plan = make_plan(problem)
    shape = (*operands.q.shape[:-1], problem.headdim_v)
    if out is not None:
        check_same_device(q=operands.q, out=out)
        out = as_array("out", out, len(shape), "the result's axes", problem.out_dtype)
        if out.shape != shape:
            raise ValueError(f"out has shape {out.shape}; accepted is {shape}")
        check_writable("out", out)
    with np.errstate(all="ignore"):  # underflow is how a softmax works; the caller may raise on it
        result, lse = run_forward(problem, plan, operands)
        if out is not None:
            out[...] = result
            result = out
    return (result, lse) if return_lse else result


def _backward(
    problem: BackwardProblem,
    operands: Operands,
    dout: Array,
    out: Array,
    lse: Array,
    dlse: Array | None,
) -> tuple[Array, Array, Array]:
    from fa_numba.run_reference import run_backward

    forward = problem.forward
    if forward.is_fp8:
        raise TypeError("q has dtype float8_e4m3fn; the backward accepts the wider dtypes")
    make_plan(forward)  # refuses a family that cannot serve the call
    shape = (*operands.q.shape[:-1], forward.headdim_v)
    check_same_device(q=operands.q, dout=dout, out=out, lse=lse, dlse=dlse)
    lse_shape = shape[-2::-1] if len(shape) == 3 else (shape[0], shape[2], shape[1])
    forwards: dict[str, tuple[Any, tuple[int, ...], str]] = {
        "dout": (dout, shape, forward.out_dtype),
        "out": (out, shape, forward.out_dtype),
        "lse": (lse, lse_shape, forward.lse_dtype),
    }
    if dlse is not None:
        forwards["dlse"] = (dlse, lse_shape, forward.lse_dtype)
    for name, (x, wanted, tag) in forwards.items():
        x = as_array(name, x, len(wanted), "as the forward gives them", tag)
        if x.shape != wanted:
            raise ValueError(f"{name} has shape {x.shape}; accepted is {wanted}")
    with np.errstate(all="ignore"):
        return run_backward(forward, operands, dout, out, lse, dlse)
