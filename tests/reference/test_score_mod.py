"""Scale and softcap, and the derivative of the softcap."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.reference.score_mod import apply_score_mod, score_mod_grad

SCORES = np.linspace(-60, 60, 241)
CAPS = pytest.mark.parametrize("softcap", [0.0, 0.5, 5.0, 30.0])


@CAPS
def test_is_the_formula(softcap):
    expected = 0.3 * SCORES
    if softcap:
        expected = softcap * np.tanh(expected / softcap)
    np.testing.assert_allclose(apply_score_mod(SCORES, 0.3, softcap), expected, rtol=1e-14)


@CAPS
def test_out_may_be_the_input_and_otherwise_the_input_stays(softcap):
    expected = apply_score_mod(SCORES, 0.3, softcap)
    scores = SCORES.copy()
    assert apply_score_mod(scores, 0.3, softcap) is not scores
    np.testing.assert_array_equal(scores, SCORES)
    assert apply_score_mod(scores, 0.3, softcap, out=scores) is scores
    np.testing.assert_array_equal(scores, expected)


@CAPS
def test_scale_and_cap_times_log2_e_give_units_of_log_2(softcap):
    log2_e = math.log2(math.e)
    np.testing.assert_allclose(
        apply_score_mod(SCORES, 0.3 * log2_e, softcap * log2_e),
        apply_score_mod(SCORES, 0.3, softcap) * log2_e,
        rtol=1e-14,
    )


@given(st.floats(-(2.0**99), 2.0**99, width=32), st.sampled_from([1.0, 7.5, 50.0]))
def test_a_cap_is_never_exceeded(score, softcap):
    capped = apply_score_mod(np.array([score], np.float32), 2.0, softcap)
    assert capped.dtype == np.float32
    assert abs(capped[0]) <= softcap


@CAPS
def test_grad_is_the_slope(softcap):
    step = 1e-5
    slope = apply_score_mod(SCORES + step, 0.3, softcap) - apply_score_mod(
        SCORES - step, 0.3, softcap
    )
    phi = score_mod_grad(SCORES, 0.3, softcap)
    np.testing.assert_allclose(0.3 * phi, slope / (2 * step), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@CAPS
def test_dtype_is_kept(dtype, softcap):
    scores = SCORES.astype(dtype)
    assert apply_score_mod(scores, 0.3, softcap).dtype == dtype
    assert score_mod_grad(scores, 0.3, softcap).dtype == dtype
