"""The normalised attention call.

A public function turns its arguments into one frozen :class:`AttentionProblem`: shapes, dtype and
flags, with the causal flag folded into the window, the window clamped, the softmax scale resolved.
It is validated here, once; planning, running and explaining take it and never loose flags. It holds
no arrays (those are in :class:`fa_numba.operands.Operands`), so it can be hashed, cached and built
from shapes alone.
"""

import operator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fa_numba.arrays import dtype_tag
from fa_numba.indexing.mask import normalize_window

__all__ = ["MAX_HEADDIM", "MAX_NUM_SPLITS", "AttentionProblem", "BackwardProblem", "make_problem"]

MAX_HEADDIM = 256
MAX_NUM_SPLITS = 256

# Factors become numbers of the compute dtype, and some are multiplied by log2 e: an infinite one
# would make NaN of a score 0.
MAX_FACTOR = {"float32": 2.0**127, "float64": 2.0**1023}

BACKENDS = ("auto", "reference", "simt", "sm80", "sm90")

Layout = Literal["dense", "varlen", "kvcache"]


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """One forward call, normalised: everything but the arrays.

    Attributes
    ----------
    layout
        ``"dense"`` (batch, seqlen, heads, headdim), ``"varlen"`` (packed by cu_seqlens) or
        ``"kvcache"`` (dense or packed queries against a cache).
    batch
        Number of sequences.
    seqlen_q, seqlen_k
        Lengths; the largest one where lengths vary by sequence.
    total_q
        Rows of q in all sequences; ``batch * seqlen_q`` unless q is packed.
    nheads, nheads_k, headdim, headdim_v
        Head counts and dimensions as the caller gave them, before any padding.
    dtype, out_dtype
        dtype tags of the operands and of the output.
    softmax_scale
        Factor on q·k, in natural units (the softmax is base e).
    window_left, window_right
        Keys a query may look back and ahead, clamped to [-1, max(seqlen_q, seqlen_k)]; -1 means
        unlimited. A causal call has window_right = 0.
    sink_token_length
        Leading keys that the left bound does not hide.
    softcap
        Cap c of c·tanh(s/c) on the scores; 0 means none.
    num_splits
        KV splits asked for; 0 leaves it to the plan.
    pack_gqa
        PackGQA forced on or off; None leaves it to the plan.
    page_size
        Rows of a KV page; 0 for contiguous K and V.
    backend
        The family asked for, or ``"auto"``.
    """

    layout: Layout
    batch: int
    seqlen_q: int
    seqlen_k: int
    total_q: int
    nheads: int
    nheads_k: int
    headdim: int
    headdim_v: int
    dtype: str
    out_dtype: str
    softmax_scale: float
    window_left: int
    window_right: int
    sink_token_length: int
    softcap: float
    num_splits: int
    pack_gqa: bool | None
    page_size: int
    backend: str

    @property
    def qhead_per_khead(self) -> int:
        """Query heads that share one KV head (G)."""
        return self.nheads // self.nheads_k if self.nheads_k else 1

    @property
    def is_causal(self) -> bool:
        """Whether the mask is exactly the causal one."""
        return self.window_right == 0 and self.window_left < 0

    @property
    def is_local(self) -> bool:
        """Whether a window bounds the mask on the left, or on the right beyond causal."""
        return self.window_left >= 0 or self.window_right > 0

    @property
    def is_masked(self) -> bool:
        """Whether a bound, causal or window, hides keys by position."""
        return self.is_causal or self.is_local

    @property
    def is_fp8(self) -> bool:
        """Whether the operands are FP8 codes."""
        return self.dtype == "float8_e4m3fn"

    @property
    def lse_dtype(self) -> str:
        """Dtype tag of the log-sum-exp: float64 for float64 operands, else float32."""
        return "float64" if self.dtype == "float64" else "float32"


@dataclass(frozen=True, slots=True)
class BackwardProblem:
    """One backward call: the forward that it differentiates, and how.

    Attributes
    ----------
    forward
        The forward call.
    deterministic
        Whether dQ must be accumulated in a fixed order.
    """

    forward: AttentionProblem
    deterministic: bool


def make_problem(
    *,
    layout: Layout,
    batch: int,
    seqlen_q: int,
    seqlen_k: int,
    nheads: int,
    nheads_k: int,
    headdim: int,
    headdim_v: int,
    dtype: str,
    total_q: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    sink_token_length: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    page_size: int = 0,
    out_dtype: Any = None,
    backend: str = "auto",
) -> AttentionProblem:
    """Validate shapes and flags and return the normalised problem.

    Parameters
    ----------
    layout, batch, seqlen_q, seqlen_k, total_q, nheads, nheads_k, headdim, headdim_v, page_size
        As in :class:`AttentionProblem`.
    dtype
        dtype tag of the operands.
    softmax_scale, causal, window_size, sink_token_length, softcap
        The mask and score flags of the public functions, as the caller gave them.
    num_splits, pack_gqa, out_dtype, backend
        The other flags of the public functions.

    Returns
    -------
    AttentionProblem
        The problem.

    Raises
    ------
    ValueError, TypeError
        One sentence that names the argument, what was got and what is accepted.
    """
    if not (isinstance(backend, str) and backend in BACKENDS):
        raise ValueError(f"backend is {backend!r}; accepted are {', '.join(map(repr, BACKENDS))}")
    for name, dim in (("headdim", headdim), ("headdim_v", headdim_v)):
        if not 1 <= dim <= MAX_HEADDIM:
            raise ValueError(f"{name} is {dim}; accepted are 1 to {MAX_HEADDIM}")
    if nheads_k < 1 or nheads < 1 or nheads % nheads_k:
        raise ValueError(
            f"q has {nheads} heads and k has {nheads_k}; "
            "accepted is a number of query heads that is a multiple of the number of KV heads"
        )
    scale = headdim**-0.5 if softmax_scale is None else as_float("softmax_scale", softmax_scale)
    limit = MAX_FACTOR["float64" if dtype == "float64" else "float32"]
    if not 0.0 <= scale <= limit:
        raise ValueError(
            f"softmax_scale is {scale}; accepted is a finite value >= 0 "
            f"(for a negative one negate q), at most {limit:.2g} for {dtype}"
        )
    cap = as_float("softcap", softcap)
    if not 0.0 <= cap <= limit:
        raise ValueError(
            f"softcap is {cap}; accepted is a finite value >= 0, where 0 means none, "
            f"at most {limit:.2g} for {dtype}"
        )
    least = max(scale, 1.0) / limit
    if 0.0 < cap < least:
        raise ValueError(
            f"softcap is {cap}; accepted are 0, which means none, and from {least:.2g} on"
        )
    left, right = _window(window_size)
    left, right = normalize_window(as_flag("causal", causal), left, right, seqlen_q, seqlen_k)
    sink = as_int("sink_token_length", sink_token_length, low=0)
    return AttentionProblem(
        layout=layout,
        batch=batch,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        total_q=batch * seqlen_q if total_q is None else total_q,
        nheads=nheads,
        nheads_k=nheads_k,
        headdim=headdim,
        headdim_v=headdim_v,
        dtype=dtype,
        out_dtype=_resolve_out_dtype(dtype, out_dtype),
        softmax_scale=scale,
        window_left=left,
        window_right=right,
        sink_token_length=min(sink, max(seqlen_q, seqlen_k)),
        softcap=cap,
        num_splits=as_int("num_splits", num_splits, low=0, high=MAX_NUM_SPLITS),
        pack_gqa=None if pack_gqa is None else as_flag("pack_gqa", pack_gqa),
        page_size=page_size,
        backend=backend,
    )


def as_int(name: str, value: Any, *, low: int | None = None, high: int | None = None) -> int:
    """Accept an integer (Python's or NumPy's, no bool, no float) within [low, high].

    Raises
    ------
    TypeError
        Not an integer.
    ValueError
        Out of range.
    """
    try:
        if isinstance(value, bool):  # an index to Python, and here another argument's value
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; accepted is an integer") from None
    if (low is not None and number < low) or (high is not None and number > high):
        bounds = f">= {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} is {number}; accepted is an integer {bounds}")
    return number


def as_float(name: str, value: Any) -> float:
    """Accept a real number (Python's, NumPy's or ml_dtypes'; no bool, no text).

    Raises
    ------
    TypeError
        Not a real number.
    ValueError
        An integer too large for a float.
    """
    try:
        # float() would also read text, and an array of one element.
        if isinstance(value, bool | np.bool_ | str | bytes) or np.ndim(value):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; accepted is a number") from None
    except OverflowError:
        raise ValueError(
            f"{name} is an integer beyond 1e308; accepted is a finite number"
        ) from None


def as_flag(name: str, value: Any) -> bool:
    """Accept True or False (Python's or NumPy's, or 1 or 0), and nothing that merely has a truth.

    Raises
    ------
    TypeError
        Not a flag: "no", NaN and an array of several elements would all pass for something else.
    """
    if isinstance(value, np.bool_):
        return bool(value)
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number not in (0, 1):
        is_array = isinstance(value, np.ndarray)
        got = f"an array of shape {value.shape}" if is_array else repr(value)
        raise TypeError(f"{name} is {got}; accepted is True or False")
    return bool(number)


def _window(window_size: Any) -> tuple[int, int]:
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ValueError(
            f"window_size is {window_size!r}; accepted is a pair (left, right), -1 for no limit"
        ) from None
    return (
        -1 if left is None else as_int("window_size[0]", left),
        -1 if right is None else as_int("window_size[1]", right),
    )


def _resolve_out_dtype(dtype: str, out_dtype: Any) -> str:
    wanted = None if out_dtype is None else dtype_tag(out_dtype, "out_dtype")
    if dtype == "float8_e4m3fn":
        if wanted not in (None, "bfloat16", "float16", "float32"):
            raise ValueError(
                f"out_dtype is {wanted!r}; accepted for FP8 inputs are bfloat16, float16, float32"
            )
        return wanted or "bfloat16"
    if wanted not in (None, dtype):
        raise ValueError(
            f"out_dtype is {wanted!r}; for {dtype} inputs the output has their dtype, "
            "and only FP8 inputs take another"
        )
    return dtype
