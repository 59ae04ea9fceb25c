"""The software exp2: published errors, exact ends, and the shift of the exponent."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_numba.reference.exp2 import EXP2_COEFFICIENTS, exp2_poly
from fa_numba.reference.flash_fwd import flash_fwd

DEGREES = sorted(EXP2_COEFFICIENTS)

# Largest relative error of p on [0, 1] in exact arithmetic, as measured: rounded up to two digits.
MAX_RELATIVE_ERROR = {1: 3.9e-2, 2: 2.1e-3, 3: 8.8e-5, 4: 3.0e-6, 5: 8.5e-8}

FLOAT32_ROUNDING = 2.0**-24


def polynomial_error(degree):
    fraction = np.linspace(0, 1, 200_001)
    p = np.polynomial.polynomial.polyval(fraction, EXP2_COEFFICIENTS[degree])
    return np.max(np.abs(p / np.exp2(fraction) - 1))


def relative_error(x, degree):
    truth = np.exp2(x.astype(np.float64))
    return np.abs(exp2_poly(x, degree).astype(np.float64) / truth - 1)


@pytest.mark.parametrize("degree", DEGREES)
def test_polynomial_has_the_published_error(degree):
    assert polynomial_error(degree) == pytest.approx(MAX_RELATIVE_ERROR[degree], rel=0.02)


@pytest.mark.parametrize("degree", DEGREES)
def test_coefficients_are_float32_and_start_at_one(degree):
    coefficients = EXP2_COEFFICIENTS[degree]
    assert len(coefficients) == degree + 1
    assert coefficients[0] == 1.0
    assert all(float(np.float32(c)) == c for c in coefficients)


@pytest.mark.parametrize("degree", DEGREES)
def test_float32_error_over_the_whole_normal_range(degree):
    x = np.linspace(-126, 127.999, 400_001).astype(np.float32)
    # Horner's last step rounds p in [1, 2), the steps before it contribute less than as much.
    assert relative_error(x, degree).max() < 1.02 * MAX_RELATIVE_ERROR[degree] + (
        2 * FLOAT32_ROUNDING
    )


@pytest.mark.parametrize(("degree", "dtype_bits"), [(3, 11), (3, 8), (2, 8), (5, 22)])
def test_degree_suffices_for_the_dtype_of_p(degree, dtype_bits):
    x = np.linspace(-20, 0, 100_001).astype(np.float32)
    assert relative_error(x, degree).max() < 2.0**-dtype_bits


@pytest.mark.parametrize("degree", DEGREES)
def test_integers_are_exact(degree):
    x = np.arange(-126, 128, dtype=np.float32)
    # Not np.exp2: NumPy's float32 version is off by an ulp here and there, at 127 for one.
    assert np.array_equal(exp2_poly(x, degree), np.ldexp(np.float32(1), x.astype(np.int32)))


@given(st.integers(0, 1023), st.integers(-126, 127), st.sampled_from(DEGREES))
@settings(max_examples=200, deadline=None)
def test_adding_an_integer_shifts_the_exponent_only(steps, n, degree):
    fraction = np.array([steps / 1024])
    assert exp2_poly(fraction + n, degree) == exp2_poly(fraction, degree) * 2.0**n


@pytest.mark.parametrize("degree", DEGREES)
def test_masked_scores_give_exactly_zero(degree):
    x = np.array([-np.inf, -1e30, -200, -127], np.float32)
    result = exp2_poly(x, degree)
    assert np.array_equal(result, np.zeros(4, np.float32))
    assert not np.signbit(result).any()


@pytest.mark.parametrize("degree", DEGREES)
def test_subnormal_results_are_small_and_monotone(degree):
    x = np.linspace(-127, -126, 1001).astype(np.float32)
    result = exp2_poly(x, degree).astype(np.float64)
    assert (np.abs(result - np.exp2(x.astype(np.float64))) < 2.0**-126).all()
    assert (np.diff(result) >= 0).all()


@pytest.mark.parametrize("degree", DEGREES)
def test_overflow_gives_infinity_and_nan_stays_nan(degree):
    assert np.isposinf(exp2_poly(np.array([128.0, 128.5, 1e30, np.inf]), degree)).all()
    assert np.isfinite(exp2_poly(np.array([np.nextafter(np.float32(128), np.float32(0))]), degree))
    assert np.isnan(exp2_poly(np.array([np.nan]), degree)).all()


def test_horner_steps_are_fused():
    x = np.linspace(0, 0.999, 5001).astype(np.float32)
    c = [math.ldexp(round(math.ldexp(v, 60)), -60) for v in EXP2_COEFFICIENTS[2]]
    inner = np.array([np.float32(c[2] * float(f) + c[1]) for f in x])
    expected = np.array(
        [np.float32(float(p) * float(f) + c[0]) for p, f in zip(inner, x, strict=True)]
    )
    assert np.array_equal(exp2_poly(x, 2), expected)
    unfused = (np.float32(c[2]) * x + np.float32(c[1])) * x + np.float32(1)
    assert not np.array_equal(expected, unfused)


def test_shape_dtype_and_views():
    x = np.linspace(-5, 5, 24).astype(np.float16).reshape(4, 6)
    result = exp2_poly(x[::2, ::-1], 4)
    assert result.dtype == np.float32
    assert np.array_equal(result, exp2_poly(x.astype(np.float32), 4)[::2, ::-1])
    assert exp2_poly(np.float64(3.0)).item() == 8.0


@pytest.mark.parametrize("degree", [0, 6, -1, "3"])
def test_unknown_degree_is_refused(degree):
    with pytest.raises(ValueError, match=f"degree is {degree!r}; accepted are 1 to 5"):
        exp2_poly(np.zeros(1), degree)


@pytest.mark.parametrize("degree", DEGREES)
def test_attention_with_a_software_exponential(degree):
    """A degree's relative error is the error of P; masked scores and empty rows add nothing."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 2, 8)).astype(np.float32) for n in (40, 33, 33))
    options = {"softmax_scale": 0.4, "window_left": 9, "window_right": 0, "tile_m": 8, "tile_n": 8}
    exact_out, exact_lse = flash_fwd(q, k, v, **options)
    out, lse = flash_fwd(q, k, v, exp2=lambda x: exp2_poly(x, degree), **options)
    is_empty = np.isneginf(exact_lse)
    assert is_empty.sum() == 2 * 7
    assert np.array_equal(np.isneginf(lse), is_empty)
    # Numerator and denominator each move by at most the relative error.
    allowed = 2.1 * MAX_RELATIVE_ERROR[degree] + 1e-6
    assert np.abs(out - exact_out).max() < allowed * np.abs(v).max()
    assert np.abs(lse[~is_empty] - exact_lse[~is_empty]).max() < allowed
    assert degree > 3 or np.abs(out - exact_out).max() > 1e-6
