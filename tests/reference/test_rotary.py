"""Rotary embedding against complex multiplication, and its reason to be: relative positions."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_numba.reference.rotary import apply_rotary

EXACT = 1e-12


def make_tables(seqlen_ro, rotary_dim, dtype=np.float64):
    inv_freq = 10000.0 ** -(np.arange(rotary_dim // 2) / max(rotary_dim // 2, 1))
    angle = np.arange(seqlen_ro)[:, None] * inv_freq
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


def rotate_by_complex_numbers(x, cos, sin, positions, interleaved):
    """Take each pair as one complex number and multiply by e^{iθ}, token by token."""
    half = cos.shape[1]
    out = np.array(x, np.float64)
    for b, t in np.ndindex(*x.shape[:2]):
        phase = cos[positions[b, t]] + 1j * sin[positions[b, t]]
        for h in range(x.shape[2]):
            part = np.array(x[b, t, h, : 2 * half], np.float64)
            if interleaved:
                z = (part[0::2] + 1j * part[1::2]) * phase
                out[b, t, h, 0 : 2 * half : 2], out[b, t, h, 1 : 2 * half : 2] = z.real, z.imag
            else:
                z = (part[:half] + 1j * part[half:]) * phase
                out[b, t, h, :half], out[b, t, h, half : 2 * half] = z.real, z.imag
    return out


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(1, 9),
    st.booleans(),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_equals_complex_rotation(seed, batch, seqlen, headdim, interleaved, data):
    rng = np.random.default_rng(seed)
    rotary_dim = 2 * data.draw(st.integers(0, headdim // 2))
    cos, sin = make_tables(11, rotary_dim)
    x = rng.standard_normal((batch, seqlen, 2, headdim))
    positions = rng.integers(0, 11, (batch, seqlen))

    got = apply_rotary(x, cos, sin, positions, interleaved=interleaved)

    expected = rotate_by_complex_numbers(x, cos, sin, positions, interleaved)
    np.testing.assert_allclose(got, expected, rtol=EXACT, atol=EXACT)
    assert np.array_equal(got[..., rotary_dim:], x[..., rotary_dim:])


@pytest.mark.parametrize("interleaved", [True, False])
def test_scores_depend_on_the_distance_only(interleaved):
    rng = np.random.default_rng(0)
    cos, sin = make_tables(64, 8)
    q, k = rng.standard_normal((2, 1, 1, 1, 8))

    def score(position_q, position_k):
        a = apply_rotary(q, cos, sin, position_q, interleaved=interleaved)
        b = apply_rotary(k, cos, sin, position_k, interleaved=interleaved)
        return np.vdot(a, b)

    assert score(40, 33) == pytest.approx(score(12, 5), rel=1e-9)
    assert score(40, 33) != pytest.approx(score(40, 32), rel=1e-3)


def test_layouts_are_one_map_up_to_a_permutation():
    rng = np.random.default_rng(1)
    cos, sin = make_tables(16, 6)
    x = rng.standard_normal((2, 5, 3, 8))
    positions = rng.integers(0, 16, (2, 5))
    to_halves = np.array([0, 2, 4, 1, 3, 5, 6, 7])
    pairs = apply_rotary(x, cos, sin, positions, interleaved=True)
    halves = apply_rotary(x[..., to_halves], cos, sin, positions, interleaved=False)
    assert np.array_equal(pairs[..., to_halves], halves)
    assert not np.allclose(pairs, apply_rotary(x, cos, sin, positions, interleaved=False))


def test_positions_broadcast_over_batch_and_tokens():
    x = np.random.default_rng(2).standard_normal((2, 3, 1, 4))
    cos, sin = make_tables(9, 4)
    full = np.array([[4, 5, 6], [4, 5, 6]])
    expected = apply_rotary(x, cos, sin, full, interleaved=True)
    assert np.array_equal(apply_rotary(x, cos, sin, full[0], interleaved=True), expected)
    per_batch = np.array([[2], [7]])
    spread = np.broadcast_to(per_batch, (2, 3))
    expected = apply_rotary(x, cos, sin, spread, interleaved=True)
    assert np.array_equal(apply_rotary(x, cos, sin, per_batch, interleaved=True), expected)
    assert np.array_equal(apply_rotary(x, cos, sin, 0, interleaved=True), x)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("interleaved", [True, False])
def test_sixteen_bits_are_rounded_once(dtype, interleaved):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 7, 2, 16)).astype(dtype)
    cos, sin = make_tables(7, 16, dtype)
    got = apply_rotary(x, cos, sin, np.arange(7), interleaved=interleaved)
    wide = apply_rotary(
        x.astype(np.float32),
        cos.astype(np.float32),
        sin.astype(np.float32),
        np.arange(7),
        interleaved=interleaved,
    )
    assert got.dtype == dtype
    assert np.array_equal(got, wide.astype(dtype))


@pytest.mark.parametrize(("second", "expected"), [(448, [0.0, 448.0]), (-448, [448.0, 0.0])])
def test_e4m3_saturates(second, expected):
    x = np.array([448, second], ml_dtypes.float8_e4m3fn).reshape(1, 1, 1, 2)
    cos = sin = np.full((1, 1), np.sqrt(0.5), np.float32)
    got = apply_rotary(x, cos, sin, 0, interleaved=True)
    assert got.astype(np.float32).ravel().tolist() == expected


def test_input_and_strides_are_left_alone():
    base = np.random.default_rng(4).standard_normal((3, 2, 4, 6))
    x = base.transpose(1, 0, 2, 3)[:, ::-1, ::2]
    before = x.copy()
    cos, sin = make_tables(3, 4)
    got = apply_rotary(x, cos, sin, np.arange(3), interleaved=False)
    expected = apply_rotary(before, cos, sin, np.arange(3), interleaved=False)
    assert np.array_equal(got, expected)
    assert np.array_equal(x, before)


@pytest.mark.parametrize(("positions", "span"), [([0, 3], "0 to 3"), ([-1, 2], "-1 to 2")])
def test_position_outside_the_table_is_refused(positions, span):
    cos, sin = make_tables(3, 4)
    with pytest.raises(ValueError, match=f"have 3 rows; positions {span} are needed"):
        apply_rotary(np.zeros((1, 2, 1, 4)), cos, sin, np.array(positions), interleaved=True)


def test_rotary_dim_above_headdim_is_refused():
    cos, sin = make_tables(3, 6)
    with pytest.raises(ValueError, match="3 columns, which rotate 6 features; the head dim is 4"):
        apply_rotary(np.zeros((1, 2, 1, 4)), cos, sin, 0, interleaved=True)
