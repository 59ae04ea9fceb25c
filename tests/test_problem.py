"""The normalised call and what it says of itself."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from fa_numba.arrays import dtype_tag
from fa_numba.problem import make_problem

GEOMETRY = {
    "layout": "dense", "batch": 2, "seqlen_q": 5, "seqlen_k": 9, "nheads": 6, "nheads_k": 2,
    "headdim": 16, "headdim_v": 24, "dtype": "float32",
}  # fmt: skip


def test_defaults_are_resolved():
    problem = make_problem(**GEOMETRY)
    assert problem.softmax_scale == 0.25
    assert problem.total_q == 10
    assert problem.qhead_per_khead == 3
    assert problem.out_dtype == "float32"
    assert (problem.window_left, problem.window_right) == (-1, -1)
    assert not problem.is_causal
    assert not problem.is_local


def test_the_scale_is_that_of_the_true_head_dim():
    assert make_problem(**{**GEOMETRY, "headdim": 100}).softmax_scale == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("causal", "window_size", "expected", "is_causal", "is_local"),
    [
        (True, (-1, -1), (-1, 0), True, False),
        (True, (3, 7), (3, 0), False, True),
        (False, (-1, 0), (-1, 0), True, False),
        (False, (None, None), (-1, -1), False, False),
        (False, (None, 2), (-1, 2), False, True),
        (False, (2**31 - 1, 2**63), (9, 9), False, True),
        (False, (-5, -2), (-1, -1), False, False),
        (False, (0, 0), (0, 0), False, True),
        (False, np.array([4, -1]), (4, -1), False, True),
    ],
)
def test_windows_are_folded_and_clamped(causal, window_size, expected, is_causal, is_local):
    problem = make_problem(**GEOMETRY, causal=causal, window_size=window_size)
    assert (problem.window_left, problem.window_right) == expected
    assert (problem.is_causal, problem.is_local) == (is_causal, is_local)


def test_sinks_are_clamped_to_the_lengths():
    assert make_problem(**GEOMETRY, sink_token_length=2**40).sink_token_length == 9


def test_a_problem_is_a_value():
    one, other = make_problem(**GEOMETRY), make_problem(**GEOMETRY)
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.batch = 3


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "expected"),
    [
        ("float8_e4m3fn", None, "bfloat16"),
        ("float8_e4m3fn", np.float16, "float16"),
        ("float8_e4m3fn", "float32", "float32"),
        ("float16", None, "float16"),
        ("bfloat16", ml_dtypes.bfloat16, "bfloat16"),
    ],
)
def test_output_dtype(dtype, out_dtype, expected):
    problem = make_problem(**{**GEOMETRY, "dtype": dtype}, out_dtype=out_dtype)
    assert problem.out_dtype == expected
    assert problem.is_fp8 == (dtype == "float8_e4m3fn")
    assert problem.lse_dtype == "float32"


def test_lse_of_float64_is_float64():
    assert make_problem(**{**GEOMETRY, "dtype": "float64"}).lse_dtype == "float64"


@pytest.mark.parametrize("spelling", ["bfloat16", ml_dtypes.bfloat16, np.dtype("bfloat16")])
def test_dtype_spellings(spelling):
    assert dtype_tag(spelling) == "bfloat16"
