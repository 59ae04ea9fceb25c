"""FP8: the codes against ml_dtypes, the scales against their definition, the rotation, the gain."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_numba.reference.flash_fwd import flash_fwd
from fa_numba.reference.quant import (
    E4M3_MAX,
    decode_e4m3,
    dequantize,
    encode_e4m3,
    hadamard,
    incoherent_rotation,
    quantize,
    saturating_cast,
)

E4M3 = ml_dtypes.float8_e4m3fn
ALL_CODES = np.arange(256, dtype=np.uint8)
EXACT = 1e-12

finite_floats = st.floats(allow_nan=False, allow_infinity=False)


def encode_by_ml_dtypes(x):
    """Saturate first: ml_dtypes turns what rounds beyond 448 into NaN."""
    return np.clip(x, -E4M3_MAX, E4M3_MAX).astype(x.dtype).astype(E4M3).view(np.uint8)


def test_decode_all_codes():
    expected = ALL_CODES.view(E4M3).astype(np.float32)
    got = decode_e4m3(ALL_CODES)
    assert got.dtype == np.float32
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    assert np.isnan(got).sum() == 2
    assert np.array_equal(np.nan_to_num(got), np.nan_to_num(expected))
    assert np.array_equal(np.signbit(got), ALL_CODES >= 128)


def test_decode_takes_the_dtype_and_any_view():
    codes = ALL_CODES.reshape(16, 16).T[::3]
    got = decode_e4m3(codes.view(E4M3))
    assert np.array_equal(got, decode_e4m3(codes), equal_nan=True)
    assert np.array_equal(got, codes.view(E4M3).astype(np.float32), equal_nan=True)
    assert decode_e4m3(np.uint8(0x7E)).item() == 448.0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_encode_inverts_decode(dtype):
    assert np.array_equal(encode_e4m3(decode_e4m3(ALL_CODES).astype(dtype)), ALL_CODES)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_encode_every_sixteen_bit_number(dtype):
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        is_nan = np.isnan(x.astype(np.float32))
    got = encode_e4m3(x)
    assert np.array_equal(got[~is_nan], encode_by_ml_dtypes(x[~is_nan]))
    assert np.isnan(decode_e4m3(got[is_nan])).all()
    assert not np.isnan(decode_e4m3(got[~is_nan])).any()


def test_encode_random_float32_bit_patterns():
    bits = np.random.default_rng(0).integers(0, 1 << 32, 400_000, dtype=np.uint32)
    # Half of them with exponents around E4M3's own range.
    bits[::2] = (bits[::2] & 0x87FFFFFF) | 0x38000000
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    assert np.array_equal(encode_e4m3(x), encode_by_ml_dtypes(x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ties_go_to_even_and_neighbours_to_the_nearest(dtype):
    positive = decode_e4m3(ALL_CODES[:0x7F]).astype(dtype)
    tie = (positive[:-1] + positive[1:]) / 2
    below, above = np.nextafter(tie, dtype(0)), np.nextafter(tie, dtype(1e9))
    code = ALL_CODES[:0x7E]
    assert np.array_equal(encode_e4m3(tie), code + (code & 1))
    assert np.array_equal(encode_e4m3(below), code)
    assert np.array_equal(encode_e4m3(above), code + 1)
    assert np.array_equal(encode_e4m3(-tie), (code + (code & 1)) | 0x80)


@given(finite_floats)
@settings(max_examples=300, deadline=None)
def test_float64_is_rounded_once(x):
    x = np.array([x])
    numbers = decode_e4m3(ALL_CODES[:0x7F]).astype(np.float64)
    distance = np.abs(numbers - min(abs(x[0]), E4M3_MAX))
    got = encode_e4m3(x)[0] & 0x7F
    assert distance[got] == distance.min()


def test_float64_tie_that_float32_would_hide():
    # 1 + 2^-4 is a tie between 1 and 1.125; float32 cannot see the 2^-40 that breaks it.
    assert decode_e4m3(encode_e4m3(np.array([1 + 2.0**-4 + 2.0**-40]))).item() == 1.125


def test_saturation_zeros_and_nan():
    x = np.array([448, 448.001, 464, 465, 1e30, np.inf, -449, -np.inf, 0.0, -0.0], np.float32)
    assert encode_e4m3(x).tolist() == [0x7E] * 6 + [0xFE] * 2 + [0x00, 0x80]
    nan = np.array([0x7FC00000, 0xFFC00001, 0x7F800001], np.uint32).view(np.float32)
    assert (encode_e4m3(nan) & 0x7F == 0x7F).all()


def test_encode_takes_any_view_and_scalars():
    x = np.linspace(-500, 500, 60).reshape(6, 10)
    assert np.array_equal(encode_e4m3(x.T[::2, ::-1]), encode_e4m3(x).T[::2, ::-1])
    assert encode_e4m3(np.float32(1)).item() == 0x38


def test_saturating_cast():
    x = np.array([500.0, -3.3, np.nan], np.float32)
    got = saturating_cast(x, E4M3)
    assert got.dtype == E4M3
    assert got.view(np.uint8).tolist() == encode_e4m3(x).tolist()
    assert saturating_cast(x, np.float32) is x
    assert np.array_equal(saturating_cast(x, np.float16), x.astype(np.float16), equal_nan=True)


# ------------------------------------------------------------------------------------------- scales


def descales_by_loops(x, granularity, nheads_k, block):
    batch, seqlen, nheads, _ = x.shape
    group = nheads // nheads_k

    def descale(part):
        largest = np.max(np.abs(part), initial=0.0)
        return largest / 448 if largest > 0 else 1.0

    if granularity == "tensor":
        return np.full((batch, nheads_k), descale(x))
    starts = range(0, seqlen, block) if granularity == "block" else [0]
    rows = block if granularity == "block" else max(seqlen, 1)
    result = np.array(
        [
            [[descale(x[b, i : i + rows, h * group : (h + 1) * group]) for i in starts]
             for h in range(nheads_k)]
            for b in range(batch)
        ]
    ).reshape(batch, nheads_k, len(starts))  # fmt: skip
    return result if granularity == "block" else result[..., 0]


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["tensor", "head", "block"]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 9),
    st.integers(1, 10),
)
@settings(max_examples=80, deadline=None)
def test_descales_and_codes(seed, granularity, nheads_k, group, seqlen, block):
    rng = np.random.default_rng(seed)
    shape = (2, seqlen, nheads_k * group, 4)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)

    x_fp8, descale = quantize(x, granularity=granularity, nheads_k=nheads_k, block=block)

    expected = descales_by_loops(x, granularity, nheads_k, block)
    assert descale.shape == expected.shape
    assert descale.dtype == np.float32
    np.testing.assert_allclose(descale, expected, rtol=2**-22)
    assert x_fp8.dtype == E4M3
    # Half a step of a 3-bit mantissa, or half of the smallest subnormal.
    per_row = dequantize(np.full(shape, 0x38, np.uint8), descale, block=block)
    error = np.abs(dequantize(x_fp8, descale, block=block) - x)
    assert (error <= np.maximum(np.abs(x) * 2.0**-4, per_row * 2.0**-10) * (1 + 1e-5)).all()
    # The largest entry of a scale's group lands on 448.
    if seqlen and x.any():
        assert np.abs(x_fp8.astype(np.float32)).max() == E4M3_MAX


def test_query_heads_of_a_group_share_a_descale():
    x = np.ones((1, 2, 4, 3), np.float32) * np.array([1, 2, 3, 4], np.float32)[:, None]
    _, descale = quantize(x, granularity="head", nheads_k=2)
    np.testing.assert_allclose(descale, [[2 / 448, 4 / 448]], rtol=1e-6)
    _, descale = quantize(x, granularity="head")
    np.testing.assert_allclose(descale, [[1 / 448, 2 / 448, 3 / 448, 4 / 448]], rtol=1e-6)


@pytest.mark.parametrize("granularity", ["tensor", "head", "block"])
def test_zeros_get_descale_one(granularity):
    x_fp8, descale = quantize(np.zeros((1, 3, 2, 4)), granularity=granularity, block=2)
    assert (descale == 1).all()
    assert not x_fp8.astype(np.float32).any()


def test_one_silent_head_does_not_disturb_the_other():
    x = np.zeros((1, 3, 2, 4), np.float32)
    x[:, :, 1] = 7
    x_fp8, descale = quantize(x, granularity="head")
    assert descale[0, 0] == 1
    assert descale[0, 1] == np.float32(7 / 448)
    assert (x_fp8.astype(np.float32)[:, :, 1] == 448).all()


def test_infinities_saturate_and_nan_stays():
    x = np.array([1.0, -np.inf, np.nan, 2.0], np.float32).reshape(1, 1, 1, 4)
    x_fp8, descale = quantize(x)
    assert descale.item() == np.float32(2 / 448)
    values = x_fp8.astype(np.float32).ravel()
    assert values[[0, 1, 3]].tolist() == [224, -448, 448]
    assert np.isnan(values[2])


@pytest.mark.parametrize("magnitude", [1e-300, 1e-42, 1e-35, 1e36, 1e300])
def test_extreme_magnitudes_are_scaled_safely(magnitude):
    x = np.array([1.0, -0.5]).reshape(1, 1, 1, 2) * magnitude
    x_fp8, descale = quantize(x)
    assert np.finfo(np.float32).tiny <= descale.item() <= np.finfo(np.float32).max
    values = x_fp8.astype(np.float32).ravel()
    assert np.isfinite(values).all()
    if 1e-35 <= magnitude <= 1e36:
        assert values.tolist() == [448, -224]
    elif magnitude > 1:
        assert values.tolist() == [448, -448]


def test_dtypes_agree():
    x = np.random.default_rng(1).standard_normal((1, 5, 2, 8)).astype(np.float16)
    narrow, wide = quantize(x), quantize(x.astype(np.float32))
    assert np.array_equal(narrow[0].view(np.uint8), wide[0].view(np.uint8))
    assert np.array_equal(narrow[1], wide[1])


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"granularity": "row"}, "granularity is 'row'; accepted are 'tensor', 'head', 'block'"),
        ({"nheads_k": 3}, "nheads_k is 3; it must divide the 4 heads"),
        ({"nheads_k": 0}, "nheads_k is 0"),
        ({"granularity": "block", "block": 0}, "block is 0; it must be at least 1"),
    ],
)
def test_refusals(keywords, message):
    with pytest.raises(ValueError, match=message):
        quantize(np.ones((1, 2, 4, 8), np.float32), **keywords)


# ----------------------------------------------------------------------------------------- rotation


@pytest.mark.parametrize("n", [1, 2, 4, 64, 256])
def test_hadamard_is_the_sylvester_matrix(n):
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    np.testing.assert_allclose(hadamard(np.eye(n)), matrix / np.sqrt(n), atol=EXACT)
    x = np.random.default_rng(n).standard_normal((3, 2, n))
    np.testing.assert_allclose(hadamard(x), x @ matrix / np.sqrt(n), atol=EXACT)
    np.testing.assert_allclose(hadamard(hadamard(x)), x, atol=EXACT)


@pytest.mark.parametrize("n", [0, 3, 96])
def test_hadamard_needs_a_power_of_two(n):
    with pytest.raises(ValueError, match=f"power of two; the last axis has {n}"):
        hadamard(np.zeros((2, n)))


HEADDIMS = [1, 2, 7, 33, 64, 72, 80, 96, 128, 192, 255, 256]


@pytest.mark.parametrize("headdim", HEADDIMS)
def test_rotation_is_orthogonal_and_keeps_scores(headdim):
    matrix = incoherent_rotation(np.eye(headdim), seed=5)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(headdim), atol=EXACT)
    rng = np.random.default_rng(headdim)
    q, k = rng.standard_normal((2, 2, 5, 3, headdim))
    rotated = [incoherent_rotation(x, seed=5) for x in (q, k)]
    score = np.einsum("bihd,bjhd->bhij", q, k)
    np.testing.assert_allclose(np.einsum("bihd,bjhd->bhij", *rotated), score, atol=1e-11)
    other = np.einsum("bihd,bjhd->bhij", rotated[0], incoherent_rotation(k, seed=6))
    assert headdim == 1 or not np.allclose(other, score)


@pytest.mark.parametrize(("headdim", "n"), [(8, 8), (11, 8), (5, 4)])
def test_rotation_is_signs_then_hadamard_on_the_first_then_the_last_features(headdim, n):
    raw = np.random.PCG64(7).random_raw(2 * n)
    signs = np.where(raw >= 2**63, -1.0, 1.0)
    x = np.random.default_rng(0).standard_normal((4, headdim))
    expected = x.copy()
    expected[:, :n] = hadamard(expected[:, :n] * signs[:n])
    if headdim > n:
        expected[:, -n:] = hadamard(expected[:, -n:] * signs[n:])
    np.testing.assert_allclose(incoherent_rotation(x, seed=7), expected, atol=EXACT)


@pytest.mark.parametrize("headdim", [d for d in HEADDIMS if d >= 32])
def test_rotation_spreads_every_feature(headdim):
    largest = np.abs(incoherent_rotation(np.eye(headdim), seed=0)).max(axis=1)
    assert largest.max() < 0.55
    if headdim & (headdim - 1) == 0:
        np.testing.assert_allclose(largest, headdim**-0.5, rtol=1e-9)


def test_rotation_depends_on_the_seed_alone():
    x = np.random.default_rng(0).standard_normal((2, 3, 1, 16)).astype(np.float32)
    again = incoherent_rotation(x.copy(), seed=3)
    assert np.array_equal(incoherent_rotation(x, seed=3), again)
    assert np.array_equal(incoherent_rotation(x[:1, ::2], seed=3), again[:1, ::2])
    assert not np.array_equal(incoherent_rotation(x, seed=4), again)
    # Pinned, since stored caches rely on it: the signs of seed 0.
    signs = np.sign(hadamard(incoherent_rotation(np.eye(8), seed=0)).diagonal())
    assert signs.tolist() == PINNED_SIGNS


PINNED_SIGNS = [-1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0]


def test_rotation_does_not_touch_its_input_and_spoils_only_the_infinite_row():
    x = np.ones((2, 48), np.float32)
    x[1, 3] = np.inf
    before = x.copy()
    got = incoherent_rotation(x, seed=0)
    assert np.array_equal(x, before)
    assert np.isfinite(got[0]).all()
    assert not np.isfinite(got[1]).any()


def test_quantize_rotates_before_scaling():
    x = np.random.default_rng(2).standard_normal((1, 6, 2, 24)).astype(np.float32)
    got = quantize(x, granularity="block", block=4, rotate=True, seed=9)
    expected = quantize(incoherent_rotation(x, seed=9), granularity="block", block=4)
    assert np.array_equal(got[0].view(np.uint8), expected[0].view(np.uint8))
    assert np.array_equal(got[1], expected[1])


# --------------------------------------------------------------------------- accuracy of attention


def with_outliers(rng, shape):
    """N(0, 1) + N(0, 100)·Bernoulli(0.001): the protocol of FlashAttention-3, section 4.3."""
    outliers = 10 * rng.standard_normal(shape) * (rng.random(shape) < 0.001)
    return (rng.standard_normal(shape) + outliers).astype(np.float32)


def squared_error(rng, recipes, *, seqlen=8192, rows=1024, headdim=128, block=128):
    """Mean squared error of FP8 attention on the first rows of one head, for each recipe."""
    q, k, v = (with_outliers(rng, (1, seqlen, 1, headdim)) for _ in range(3))
    scale = {"softmax_scale": headdim**-0.5}
    truth, _ = flash_fwd(q[:, :rows].astype(np.float64), k.astype(np.float64), v, **scale)
    errors = []
    for granularity, rotate in recipes:
        (q_fp8, q_descale), (k_fp8, k_descale) = (
            quantize(x, granularity=granularity, rotate=rotate, block=block) for x in (q, k)
        )
        v_fp8, v_descale = quantize(v, granularity=granularity, block=block)
        out, _ = flash_fwd(
            q_fp8[:, :rows], k_fp8, v_fp8, q_descale=q_descale, k_descale=k_descale,
            v_descale=v_descale, descale_block=block, p_dtype=E4M3, max_offset=8, **scale,
        )  # fmt: skip
        errors.append(np.mean((out - truth) ** 2))
    return errors


def test_incoherent_block_quantisation_beats_one_scale():
    """The accuracy experiment of the FlashAttention-3 paper, table 3.

    The paper reports a root mean squared error of 2.4e-2 with one scale per tensor and 9.1e-3 with
    block quantisation and incoherent processing: 2.6 times lower. Measured here: 2.6e-2 and 9.3e-3,
    2.8 times lower. A single seed gives 2.1 to 3.3 times, as its outliers fall; the gain grows with
    the length, since one outlier sets the scale of the whole tensor.
    """
    recipes = [("tensor", False), ("block", True), ("tensor", True), ("block", False)]
    errors = [squared_error(np.random.default_rng(seed), recipes) for seed in range(3)]
    tensor, both, rotated, block = np.sqrt(np.mean(errors, axis=0))
    assert 1.5e-2 < tensor < 4e-2
    assert 6e-3 < both < 1.2e-2
    assert tensor / both > 2
    # The rotation does nearly all of it (the paper: 2.4e-2 without it, 9.3e-3 without blocks).
    assert rotated < 1.2 * both
    assert block > 1.3 * both
