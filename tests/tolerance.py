"""The one tolerance of the project.

A result passes if it is about as close to the float64 truth as an honest implementation in the
input dtype would be. That is the rule of flash-attention's own tests (``hopper/test_flash_attn.py``
of Dao-AILab/flash-attention), with the truth in float64. No test has a number of its own: it calls
`assert_out`, `assert_grads`, `assert_lse` or `assert_appended`.

Words: ``ref`` is the dense formula in float64 on the inputs as they are after rounding to their
dtype; ``lowprec`` is the dense formula in float32, rounded to the input dtype after each stage.
`truth_and_lowprec` builds both from one oracle.

``score_norm`` is a bound ``softmax_scale * |q| * |k|`` on the raw scores, given only by cases that
make them huge on purpose (soft caps driven to saturation). A dot product in float32 is uncertain by
about eps times that bound, whoever computes it, and the backward computes it anew in another order;
a saturated tanh hides the error in the output but not in lse or the gradient of the few scores
that are not saturated. At ordinary scores the term would be below the others anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from fa_numba.reference.attention import round_through

DTYPES: dict[str, np.dtype] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
}

FLOAT64_EPS, FLOAT32_EPS = 2.0**-52, 2.0**-23
FLOAT64_ERROR = 1e-12
FLOAT32_FACTOR, FLOAT32_FLOOR = 8, 1e-6
LOWPREC_FACTOR, LOOSE_LOWPREC_FACTOR = 2, 3
LSE_ERROR = {"float64": FLOAT64_ERROR, "float8_e4m3fn": 1e-3}
LSE_ERROR_DEFAULT = 1e-5
ROTARY_ULPS = {"float64": 4, "float32": 4}


def truth_and_lowprec(oracle: Callable[..., Any], *args: Any, dtype: str, **kwargs: Any) -> Any:
    """Run `oracle` in float64, then in float32 with the roundings of `dtype`.

    Parameters
    ----------
    oracle : callable
        Takes ``compute_dtype`` and ``round_to``, as `fa_numba.reference.attention.attention`.
    dtype : str
        Tag of the input dtype.

    Returns
    -------
    ref, lowprec
        Whatever `oracle` returns, twice.
    """
    ref = oracle(*args, compute_dtype=np.float64, round_to=None, **kwargs)
    if dtype == "float64":
        return ref, ref
    round_to = None if dtype == "float32" else DTYPES[dtype]
    return ref, oracle(*args, compute_dtype=np.float32, round_to=round_to, **kwargs)


def allowed_error(
    ref: np.ndarray,
    lowprec: np.ndarray,
    dtype: str,
    *,
    loose: bool = False,
    scale: float | None = None,
    score_norm: float = 0.0,
) -> float:
    """Return the largest ``max|result - ref|`` that passes.

    Parameters
    ----------
    ref, lowprec : array
    dtype : str
        Tag of the input dtype.
    loose : bool
        Softcap or a gradient: a factor of 3 on the error of `lowprec` instead of 2.
    scale : float, optional
        Magnitude that the floors of float32 and float64 are relative to; ``max|ref|`` if None.
    score_norm : float
        See the module's docstring.
    """
    scale = _largest(ref) if scale is None else scale
    if dtype == "float64":
        return (FLOAT64_ERROR + FLOAT64_EPS * score_norm) * max(1.0, scale)

    def fl(x: np.ndarray) -> np.ndarray:
        return round_through(x, DTYPES[dtype])

    shift = fl(np.array(0.3))
    rounding_step = _largest(fl(fl(fl(ref) + shift) - shift) - fl(ref))
    lowprec_error = _largest(lowprec.astype(np.float64) - ref)
    if dtype == "float32":
        floor = (FLOAT32_FLOOR + FLOAT32_EPS * score_norm) * scale
        return FLOAT32_FACTOR * lowprec_error + 2 * rounding_step + floor
    factor = LOOSE_LOWPREC_FACTOR if loose else LOWPREC_FACTOR
    return factor * lowprec_error + 2 * rounding_step


def assert_out(
    out: np.ndarray,
    ref: np.ndarray,
    lowprec: np.ndarray,
    dtype: str,
    *,
    softcap: float = 0.0,
    gradient: bool = False,
    scale: float | None = None,
    score_norm: float = 0.0,
    name: str = "out",
) -> None:
    """Assert that an output or a gradient is as close to `ref` as `dtype` can be asked for."""
    assert out.shape == ref.shape, f"{name} has shape {out.shape}, expected {ref.shape}"
    error = np.abs(out.astype(np.float64) - ref)
    loose = gradient or softcap > 0
    limit = allowed_error(ref, lowprec, dtype, loose=loose, scale=scale, score_norm=score_norm)
    # Written so that a NaN fails.
    if not (error <= limit).all():
        worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
        raise AssertionError(
            f"{name} is off by {error[worst]:.3g} at {tuple(map(int, worst))} "
            f"(got {out[worst]}, expected {ref[worst]:.6g}); allowed {limit:.3g} for {dtype}; "
            f"{int((~(error <= limit)).sum())} of {error.size} elements are off"
        )


def assert_grads(
    grads: Sequence[np.ndarray],
    refs: Sequence[np.ndarray],
    lowprecs: Sequence[np.ndarray],
    dtype: str,
    *,
    score_norm: float = 0.0,
) -> None:
    """Assert that (dq, dk, dv) are as close to `refs` as `dtype` can be asked for.

    dq and dk are sums of differences that may cancel to nothing (one key only, say), so the floors
    of float32 and float64 are relative to the largest of the three gradients.
    """
    scale = max(_largest(ref) for ref in refs)
    for name, grad, ref, lowprec in zip(("dq", "dk", "dv"), grads, refs, lowprecs, strict=True):
        assert_out(
            grad,
            ref,
            lowprec,
            dtype,
            gradient=True,
            scale=scale,
            score_norm=score_norm,
            name=name,
        )


def assert_lse(lse: np.ndarray, ref: np.ndarray, dtype: str, *, score_norm: float = 0.0) -> None:
    """Assert that a natural-log lse equals `ref`: -inf at the same rows, the others closely."""
    assert lse.shape == ref.shape, f"lse has shape {lse.shape}, expected {ref.shape}"
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(ref), "rows where lse is -inf")
    live = ~np.isneginf(ref)
    got, want = lse[live].astype(np.float64), ref[live]
    limit = LSE_ERROR.get(dtype, LSE_ERROR_DEFAULT) * np.maximum(1.0, np.abs(want))
    limit += (FLOAT64_EPS if dtype == "float64" else FLOAT32_EPS) * score_norm
    good = np.abs(got - want) <= limit
    if not good.all():
        worst = int(np.argmin(good))
        raise AssertionError(
            f"lse is {got[worst]}, expected {want[worst]} (within {limit[worst]:.3g}); "
            f"{int((~good).sum())} of {good.size} rows are off"
        )


def assert_appended(cache: np.ndarray, expected: np.ndarray, dtype: str, *, rotary: bool) -> None:
    """Assert that a cache holds what it should, byte for byte.

    A rotated key of a 16-bit dtype is exact too, since the two products of a rotation are exact in
    float32. In float32 and float64 they are not, and a fused multiply-add may move the last bits.
    """
    assert cache.dtype == expected.dtype
    if rotary and dtype in ROTARY_ULPS:
        # relative to the pair's length, not to a component that may have cancelled
        limit = ROTARY_ULPS[dtype] * np.finfo(expected.dtype).eps
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(cache[~finite], expected[~finite])
        difference = cache[finite].astype(np.float64) - expected[finite]
        assert (np.abs(difference) <= limit * np.maximum(1.0, np.abs(expected[finite]))).all()
    else:
        np.testing.assert_array_equal(_bytes(cache), _bytes(expected))


def _bytes(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def _largest(x: np.ndarray) -> float:
    return float(np.max(np.abs(x.astype(np.float64)), initial=0.0))
