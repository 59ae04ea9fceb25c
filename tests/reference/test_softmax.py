"""The online softmax equals the softmax, however the keys are cut, and whatever its refinements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.reference.exp2 import exp2_poly
from fa_numba.reference.softmax import LOG2_E, OnlineSoftmax

EXACT = 1e-12  # float64 paths
LN_2 = np.log(2)


@pytest.fixture(autouse=True)
def quiet():
    """The loop that calls the stage silences these; -inf − (−inf) is part of the algorithm."""
    with np.errstate(invalid="ignore"):
        yield


def run(scores, cuts, values=None, **options):
    """Feed scores (rows, cols), in units of log 2, tile by tile; return P·V normalised, and lse."""
    values = np.eye(scores.shape[1], dtype=scores.dtype) if values is None else values
    softmax = OnlineSoftmax(scores.shape[:1], scores.dtype, **options)
    acc_o = np.zeros((len(scores), values.shape[1]), scores.dtype)
    for start, stop in zip([0, *cuts], [*cuts, scores.shape[1]], strict=True):
        if start < stop:
            p, row_scale = softmax.update(scores[:, start:stop].copy())
            acc_o = acc_o * row_scale + p @ values[start:stop]
    out_scale, lse = softmax.finalize()
    return acc_o * out_scale, lse, softmax


def dense(scores):
    """Softmax and natural-log denominator of scores in units of log 2; empty rows 0 and -inf."""
    top = scores.max(axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp2(scores - np.where(top == -np.inf, 0, top))
    total = weights.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + top * LN_2
    return weights / np.where(total == 0, 1, total), lse[:, 0]


@st.composite
def tiled_scores(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, cols = draw(st.integers(1, 5)), draw(st.integers(0, 12))
    scores = draw(st.sampled_from([1.0, 30.0, 300.0])) * rng.standard_normal((rows, cols))
    scores[rng.random((rows, cols)) < draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))] = -np.inf
    cuts = sorted(draw(st.lists(st.integers(0, cols), max_size=4)))
    return scores, cuts


@given(tiled_scores(), st.sampled_from([0.0, 1.0, 8.0]), st.sampled_from([0, 8]))
def test_equals_the_dense_softmax(tiles, rescale_threshold, max_offset):
    scores, cuts = tiles
    prob, lse, _ = run(scores, cuts, rescale_threshold=rescale_threshold, max_offset=max_offset)
    expected_prob, expected_lse = dense(scores)
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(expected_lse))
    np.testing.assert_allclose(prob, expected_prob, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(lse, expected_lse, rtol=EXACT, atol=EXACT)


@given(tiled_scores())
def test_p_never_exceeds_what_threshold_and_offset_promise(tiles):
    scores, cuts = tiles
    softmax = OnlineSoftmax(scores.shape[:1], np.float64, rescale_threshold=3.0, max_offset=5)
    for start, stop in zip([0, *cuts], [*cuts, scores.shape[1]], strict=True):
        if start < stop:
            p, row_scale = softmax.update(scores[:, start:stop].copy())
            assert p.max() <= 2.0 ** (3 + 5)
            assert row_scale.max() <= 1


def test_a_small_new_maximum_is_ignored_and_a_large_one_taken():
    softmax = OnlineSoftmax((1,), np.float64, rescale_threshold=4.0)
    seen = []
    for score in (1.0, 4.5, 5.0, 5.5):
        _, row_scale = softmax.update(np.array([[score]]))
        seen.append((softmax.row_max[0, 0], row_scale[0, 0]))
    # 5.0 beats the kept 1.0 by exactly the threshold; 5.5 by more.
    assert seen == [(1.0, 0.0), (1.0, 1.0), (1.0, 1.0), (5.5, 2.0**-4.5)]


def test_row_sum_carries_the_offset_and_lse_does_not():
    scores = np.array([[0.0, -1.0, 1.0]])
    _, lse, softmax = run(scores, [1], max_offset=8)
    assert softmax.row_sum[0, 0] == 2.0**8 * (0.5 + 0.25 + 1)
    np.testing.assert_allclose(lse, [np.log(3.5)], rtol=EXACT)


def test_p_reuses_the_memory_of_the_scores():
    scores = np.array([[1.0, 2.0]], np.float32)
    p, _ = OnlineSoftmax((1,), np.float32).update(scores)
    assert p is scores


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_keep_the_dtype(dtype):
    scores = np.array([[1.0, -np.inf], [-np.inf, -np.inf]], dtype)
    prob, lse, softmax = run(scores, [1], rescale_threshold=2.0, max_offset=3)
    arrays = (prob, lse, softmax.row_max, softmax.row_sum, *softmax.finalize())
    assert {x.dtype for x in arrays} == {np.dtype(dtype)}


def test_nan_scores_make_their_row_nan_and_no_other():
    scores = np.array([[0.0, np.nan, 1.0], [0.0, 1.0, 2.0]])
    prob, lse, _ = run(scores, [1], rescale_threshold=2.0)
    assert np.isnan(prob[0]).all()
    assert np.isnan(lse[0])
    np.testing.assert_allclose(prob[1], dense(scores[1:])[0][0], rtol=EXACT)


def test_the_hook_computes_p():
    calls = []

    def hook(x):
        calls.append(x.copy())
        return np.exp2(x) * 0.5

    scores = np.array([[3.0, 1.0]])
    p, _ = OnlineSoftmax((1,), np.float64, exp2=hook).update(scores)
    np.testing.assert_array_equal(calls, [[[0.0, -2.0]]])
    np.testing.assert_array_equal(p, [[0.5, 0.125]])


def test_a_polynomial_of_degree_5_is_as_good_as_float32():
    rng = np.random.default_rng(3)
    scores = (5 * rng.standard_normal((6, 40))).astype(np.float32)
    prob, lse, _ = run(scores, [13], exp2=lambda x: exp2_poly(x, 5))
    expected_prob, expected_lse = dense(scores.astype(np.float64))
    np.testing.assert_allclose(prob, expected_prob, rtol=2e-6)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_p_is_2_to_the_x(dtype):
    x = np.array([0.0, -1.0, -0.3, -20.0, -200.0, -np.inf], dtype)
    scores = np.stack([x, x])
    p, _ = OnlineSoftmax((2,), dtype).update(scores)
    assert p[0, 0] == 1
    assert p[0, -1] == 0
    # The multiplication by ln 2 moves an exponent of size n by n half-ulps.
    np.testing.assert_allclose(p[0], np.exp2(x), rtol=16 * np.finfo(dtype).eps, atol=1e-40)


def test_log2_e_is_what_its_name_says():
    np.testing.assert_allclose(2.0**LOG2_E, np.e, rtol=1e-15)
