"""FP8: the E4M3 format bit by bit, scaled quantisation, and incoherent processing.

E4M3 has 1 sign, 4 exponent (bias 7) and 3 mantissa bits. There is no infinity: the largest finite
number is 448, and the pattern with all exponent and mantissa bits set is NaN. With 3 mantissa bits
the relative error of a rounding is 2^-4 whatever the scale, as long as the numbers stay clear of
the subnormals below 2^-6. A scale ("descale" δ: x ≈ δ·x_fp8) moves the largest number to 448; a
few outliers then push the rest towards the subnormals, and two remedies help:

- *block quantisation*: one scale per tile of rows instead of one per tensor or head;
- *incoherent processing*: multiply q and k by the same random orthogonal matrix. It leaves q·k as
  it is and spreads an outlier over the whole head dim.

Sources: OCP 8-bit Floating Point Specification 1.0; Micikevicius et al., arXiv 2209.05433; Shah et
al., FlashAttention-3, arXiv 2407.08608, section 3.3; Chee et al., QuIP, arXiv 2307.13304.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "E4M3_MAX",
    "decode_e4m3",
    "dequantize",
    "encode_e4m3",
    "hadamard",
    "incoherent_rotation",
    "quantize",
    "saturating_cast",
]

E4M3_MAX = 448.0
"""Largest finite E4M3 number, 1.75·2^8."""

_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_E4M3_MIN_NORMAL = 2.0**-6
_E4M3_NAN = 0x7F


def encode_e4m3(x: NDArray[Any]) -> NDArray[np.uint8]:
    """Round to E4M3 codes: nearest, ties to even, saturating at ±448.

    Infinities saturate too; NaN stays NaN. The sign of zero and of NaN is kept. (ml_dtypes' own
    cast turns everything beyond ±464 into NaN; hardware conversions with ``.satfinite`` saturate.)

    Parameters
    ----------
    x : ndarray
        Any floating-point dtype up to float64; rounded once, directly from that dtype.

    Returns
    -------
    ndarray of uint8
        Codes, the shape of x.
    """
    # Every accepted dtype embeds exactly in float64, so one bit layout (11 exponent bits with bias
    # 1023, 52 mantissa bits) serves all of them without a second rounding.
    with np.errstate(invalid="ignore"):  # widening a signalling NaN is no error here
        x = np.asarray(x).astype(np.float64)
    is_nan = np.isnan(x)
    magnitude = np.minimum(np.where(is_nan, 0.0, np.abs(x)), E4M3_MAX)
    bits = magnitude.view(np.uint64)

    # Normal numbers: keep 3 of 52 mantissa bits. Adding half of the last kept bit, less one unless
    # that bit is odd, rounds ties to even; a carry runs into the exponent, where it belongs.
    dropped = np.uint64(49)
    is_odd = (bits >> dropped) & np.uint64(1)
    rounded = (bits + np.uint64((1 << 48) - 1) + is_odd) >> dropped
    normal = rounded - np.uint64((1023 - 7) << 3)

    # Below 2^-6 the step is constant, 2^-9. Adding 2^43, whose last bit is worth 2^-9, makes the
    # adder round to that step and leaves the count of steps in the low bits.
    subnormal = (np.minimum(magnitude, 1.0) + 2.0**43).view(np.uint64) & np.uint64(0xF)

    code = np.where(magnitude < _E4M3_MIN_NORMAL, subnormal, normal).astype(np.uint8)
    code = np.where(is_nan, np.uint8(_E4M3_NAN), code)
    sign: NDArray[np.uint8] = np.signbit(x).astype(np.uint8) << np.uint8(7)
    return code | sign


def decode_e4m3(codes: NDArray[Any]) -> NDArray[np.float32]:
    """Turn E4M3 codes into the float32 numbers they stand for, exactly.

    Parameters
    ----------
    codes : ndarray of uint8 or float8_e4m3fn
        Codes.

    Returns
    -------
    ndarray of float32
        The shape of codes; codes 0x7F and 0xFF give NaN.
    """
    codes = np.ascontiguousarray(codes).view(np.uint8).reshape(np.shape(codes)).astype(np.uint32)
    sign = (codes >> np.uint32(7)) << np.uint32(31)
    exponent = (codes >> np.uint32(3)) & np.uint32(0xF)
    mantissa = codes & np.uint32(0x7)
    normal = ((exponent + np.uint32(127 - 7)) << np.uint32(23)) | (mantissa << np.uint32(20))
    # Exponent field 0 has no implicit leading 1: mantissa counts steps of 2^-9.
    subnormal = (mantissa.astype(np.float32) * np.float32(2.0**-9)).view(np.uint32)
    bits = np.where(exponent == 0, subnormal, normal)
    bits = np.where((codes & np.uint32(0x7F)) == _E4M3_NAN, np.uint32(0x7FC00000), bits)
    decoded: NDArray[np.float32] = (bits | sign).view(np.float32)
    return decoded


def saturating_cast(x: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Round to a dtype; to E4M3 with saturation, to any other dtype as NumPy does.

    Parameters
    ----------
    x : ndarray
        Floating-point array.
    dtype : dtype
        Target; ``float8_e4m3fn`` is encoded by `encode_e4m3`.

    Returns
    -------
    ndarray
        x itself if it has the dtype already.
    """
    if np.dtype(dtype) == x.dtype:
        return x
    if np.dtype(dtype) == _E4M3:
        return encode_e4m3(x).view(_E4M3)
    return x.astype(dtype)


def quantize(
    x: NDArray[Any],
    *,
    granularity: str = "tensor",
    nheads_k: int | None = None,
    block: int = 128,
    rotate: bool = False,
    seed: int = 0,
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Quantise q, k or v to E4M3 with one scale per tensor, head or block of rows.

    Per group of entries that share a scale: ``descale = max|x| / 448`` and
    ``x_fp8 = E4M3(x / descale)``, so that ``x ≈ descale·x_fp8``. The maximum runs over the finite
    entries; infinities saturate and NaN stays NaN. A group without a nonzero finite entry gets
    descale 1. A descale is kept within the normal float32 range, so dividing by it is safe.

    Parameters
    ----------
    x : ndarray, (batch, seqlen, nheads, headdim)
        Any floating-point dtype; scaled in float64 for float64 x, else in float32.
    granularity : {"tensor", "head", "block"}
        Which entries share a scale: all of x; one sequence and key/value head; or one sequence,
        head and `block` consecutive rows.
    nheads_k : int, optional
        Number of key/value heads. Give it for q: descales are per key/value head, so the
        ``nheads / nheads_k`` query heads of a group share one. Default: nheads.
    block : int
        Rows of a block: the tile of the kernel that will read them.
    rotate : bool
        Apply `incoherent_rotation` first. For q and k only, both with the same seed: their
        product does not change, while a rotated v would give a rotated output.
    seed : int
        Seed of the rotation.

    Returns
    -------
    x_fp8 : ndarray of float8_e4m3fn
        The shape of x.
    descale : ndarray of float32
        (batch, nheads_k), all equal for "tensor"; (batch, nheads_k, ceil(seqlen / block)) for
        "block".

    Raises
    ------
    ValueError
        If the granularity is unknown, nheads_k does not divide nheads, or block < 1.
    """
    batch, seqlen, nheads, headdim = x.shape
    nheads_k = nheads if nheads_k is None else nheads_k
    if granularity not in ("tensor", "head", "block"):
        raise ValueError(f"granularity is {granularity!r}; accepted are 'tensor', 'head', 'block'")
    if nheads_k < 1 or nheads % nheads_k:
        raise ValueError(f"nheads_k is {nheads_k}; it must divide the {nheads} heads of x")
    if block < 1:
        raise ValueError(f"block is {block}; it must be at least 1")
    x = incoherent_rotation(x, seed) if rotate else _to_compute_dtype(x)

    magnitude = np.where(np.isfinite(x), np.abs(x), 0)
    per_head = magnitude.reshape(batch, seqlen, nheads_k, nheads // nheads_k * headdim)
    row_amax = per_head.max(axis=-1, initial=0)
    if granularity == "tensor":
        amax = np.broadcast_to(row_amax.max(initial=0), (batch, nheads_k))
    elif granularity == "head":
        amax = row_amax.max(axis=1, initial=0)
    else:
        num_blocks = -(-seqlen // block)
        padded = np.pad(row_amax, ((0, 0), (0, num_blocks * block - seqlen), (0, 0)))
        amax = padded.reshape(batch, num_blocks, block, nheads_k).max(axis=2).transpose(0, 2, 1)

    limits = np.finfo(np.float32)
    descale = np.clip(amax / E4M3_MAX, limits.tiny, limits.max).astype(np.float32)
    descale = np.where(amax == 0, np.float32(1), descale)
    scaled = x / _descale_per_row(descale, seqlen, nheads, block)
    return saturating_cast(scaled, _E4M3), descale


def dequantize(
    x_fp8: NDArray[Any], descale: NDArray[Any], *, block: int = 128
) -> NDArray[np.float32]:
    """Undo `quantize`: the float32 numbers that a quantised tensor stands for.

    Parameters
    ----------
    x_fp8 : ndarray of float8_e4m3fn or uint8 codes, (batch, seqlen, nheads, headdim)
        Quantised tensor.
    descale : ndarray of float32, (batch, nheads_k) or (batch, nheads_k, ceil(seqlen / block))
        Its descales.
    block : int
        Rows that share a scale in the three-dimensional form.

    Returns
    -------
    ndarray of float32
        The shape of x_fp8.
    """
    _, seqlen, nheads, _ = x_fp8.shape
    return decode_e4m3(x_fp8) * _descale_per_row(descale, seqlen, nheads, block)


def hadamard(x: NDArray[Any]) -> NDArray[Any]:
    """Multiply the last axis by the orthonormal Walsh-Hadamard matrix (Sylvester's order).

    log2(n) passes of sums and differences instead of a product with the n x n matrix of ±n^-½.
    The matrix is symmetric and its own inverse.

    Parameters
    ----------
    x : ndarray, (..., n)
        n must be a power of two.

    Returns
    -------
    ndarray
        The shape of x; float64 for float64 x, else float32.

    Raises
    ------
    ValueError
        If n is not a power of two.
    """
    n = x.shape[-1]
    if n < 1 or n & (n - 1):
        raise ValueError(f"a Hadamard transform needs a power of two; the last axis has {n}")
    y = _to_compute_dtype(x).copy()
    half = 1
    while half < n:
        pairs = y.reshape(*x.shape[:-1], n // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack((first + second, first - second), axis=-2).reshape(x.shape)
        half *= 2
    y *= y.dtype.type(n**-0.5)
    return y


def incoherent_rotation(x: NDArray[Any], seed: int) -> NDArray[Any]:
    """Multiply the head dim by a random orthogonal matrix that depends on the seed alone.

    For a power of two the matrix is ``diag(±1)·H``: random signs, then `hadamard`. Another head
    dim takes two such steps with overlap, on its first and then on its last n features, n the
    largest power of two within. Both are orthogonal, so the product is, every feature is mixed,
    and the head dim stays as it is (zero padding would enlarge q, k and the work).

    Parameters
    ----------
    x : ndarray, (..., headdim)
        Rotate q and k with the same seed: then q·k is unchanged to rounding.
    seed : int
        Seed of the signs. The signs come from PCG64's raw output, which NumPy keeps stable
        between versions: a stored rotated cache stays readable.

    Returns
    -------
    ndarray
        The shape of x; float64 for float64 x, else float32. A row with an infinity becomes NaN.
    """
    headdim = x.shape[-1]
    n = 1 << (headdim.bit_length() - 1)
    raw = np.random.PCG64(seed).random_raw(2 * n)
    y = _to_compute_dtype(x).copy()
    signs = np.where(raw >> np.uint64(63), -1, 1).astype(y.dtype).reshape(2, n)
    with np.errstate(invalid="ignore"):
        y[..., :n] = hadamard(y[..., :n] * signs[0])
        if n < headdim:
            y[..., -n:] = hadamard(y[..., -n:] * signs[1])
    return y


def _to_compute_dtype(x: NDArray[Any]) -> NDArray[Any]:
    return x.astype(np.float64 if x.dtype == np.float64 else np.float32, copy=False)


def _descale_per_row(
    descale: NDArray[Any], seqlen: int, nheads: int, block: int
) -> NDArray[np.float32]:
    """Expand descales to (batch, seqlen or 1, nheads, 1)."""
    per_head = np.repeat(descale.astype(np.float32), nheads // descale.shape[1], axis=1)
    if per_head.ndim == 2:
        return per_head[:, None, :, None]
    return np.repeat(per_head, block, axis=2)[:, :, :seqlen].transpose(0, 2, 1)[..., None]
