"""The ops that only compute, called as functions, against NumPy and exact arithmetic."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.device import ops
from fa_numba.device.ops.builder import composite
from fa_numba.device.ops.declare import Op, Signature, instruction
from fa_numba.device.types import (
    FragmentType,
    boolean,
    float32,
    int32,
    int64,
    parse_type,
    uint32,
    uint64,
)

INF = float("inf")
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
any_floats = st.floats(width=32)
words = st.integers(0, 2**32 - 1)


def fragments(elements=floats, multiple=4):
    sizes = st.integers(1, 9).map(lambda i: multiple * i)
    return sizes.flatmap(lambda n: st.lists(elements, min_size=n, max_size=n))


def f32(values):
    return np.array(values, np.float32)


def same(x, y):
    """Bit for bit, any NaN for any NaN."""
    return np.array_equal(f32(x), f32(y), equal_nan=True)


# ---------------------------------------------------------------------------- scalars


moderate = st.floats(-4, 4, width=32)


def test_fma_keeps_what_the_product_would_lose():
    a = np.float32(1 + 2**-12)
    assert ops.fma(a, a, -1.0) == np.float32(2**-11 + 2**-24)


@given(st.one_of(floats, moderate), st.one_of(floats, moderate), st.one_of(floats, moderate))
def test_fma_rounds_the_exact_result(a, b, c):
    result = ops.fma(a, b, c)
    assert type(result) is np.float32
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if abs(exact) >= 2**128 * (1 - Fraction(1, 2**25)):
        assert abs(result) == INF or abs(result) == np.finfo(np.float32).max
        return
    error = abs(Fraction(float(result)) - exact)
    for toward in (-np.inf, np.inf):
        with np.errstate(over="ignore"):
            other = np.nextafter(result, np.float32(toward))
        if np.isfinite(other):
            # Rounding twice may lose a tie, by less than one part in 2^28 of the distance.
            assert error <= abs(Fraction(float(other)) - exact) * (1 + Fraction(1, 2**27))


@given(any_floats, any_floats)
def test_add_and_mul_round_once(a, b):
    with np.errstate(all="ignore"):
        assert same(ops.add(a, b), np.float32(a) + np.float32(b))
        assert same(ops.mul(a, b), np.float32(a) * np.float32(b))


@given(any_floats, any_floats)
def test_nan_loses_in_fmax_and_fmin(a, b):
    numbers = [x for x in (a, b) if x == x]
    assert same(ops.fmax(a, b), max(numbers, default=np.nan))
    assert same(ops.fmin(a, b), min(numbers, default=np.nan))


@pytest.mark.parametrize(
    ("op", "x", "expected"),
    [
        (ops.ex2, -INF, 0),
        (ops.ex2, INF, INF),
        (ops.ex2, 3, 8),
        (ops.ex2, -126, 2.0**-126),
        (ops.ex2, -127, 0),
        (ops.ex2, 128, INF),
        (ops.ex2, np.nan, np.nan),
        (ops.lg2, 0, -INF),
        (ops.lg2, 1e-40, -INF),
        (ops.lg2, -1, np.nan),
        (ops.lg2, INF, INF),
        (ops.lg2, 0.25, -2),
        (ops.rcp, 0.0, INF),
        (ops.rcp, -0.0, -INF),
        (ops.rcp, 1e-40, INF),
        (ops.rcp, INF, 0),
        (ops.rcp, 4, 0.25),
        (ops.rcp, 2.0**127, 0),
        (ops.tanh, INF, 1),
        (ops.tanh, -INF, -1),
        (ops.tanh, 0, 0),
        (ops.tanh, np.nan, np.nan),
        (ops.tanh, 1e-30, 1e-30),
    ],
)
def test_special_values(op, x, expected):
    assert same(op(x), expected)


def test_tanh_is_accurate_everywhere():
    x = f32(np.concatenate([np.linspace(-12, 12, 100_001), np.geomspace(1e-20, 1, 10_000)]))
    with np.errstate(all="ignore"):
        got = ops.tanh.emulation(x).astype(np.float64)
    expected = np.tanh(x.astype(np.float64))
    nonzero = expected != 0
    relative = np.abs(got - expected)[nonzero] / np.abs(expected[nonzero])
    assert relative.max() < 4e-7
    assert (got[~nonzero] == 0).all()


@given(any_floats, any_floats, floats, floats)
def test_select_less(a, b, x, y):
    assert same(ops.select_less(a, b, x, y), x if a < b else y)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_integer_ops_wrap_and_compare_signed(a, b):
    assert ops.select_less_i32(a, b, 1.0, 2.0) == (1 if a < b else 2)
    difference = ops.subtract_i32(a, b)
    assert -(2**31) <= difference < 2**31
    assert (difference - (a - b)) % 2**32 == 0


@given(words)
def test_bits_go_there_and_back(bits):
    value = ops.float_from_bits(bits)
    assert type(value) is np.float32
    if not np.isnan(value):
        assert ops.float_bits(value) == bits
        assert type(ops.float_bits(value)) is int


# ---------------------------------------------------------------------------- conversions

# Every bfloat16, and the float32 just below, at and above the middle to the next one.
UPPER = np.arange(2**16, dtype=np.uint32)[:, None] << np.uint32(16)
LOWER = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
EDGES = (UPPER | LOWER).view(np.float32).ravel()


@pytest.mark.parametrize(
    ("op", "low_op", "high_op", "dtype"),
    [
        (ops.pack_bf16, ops.bf16_low, ops.bf16_high, ml_dtypes.bfloat16),
        (ops.pack_f16, ops.f16_low, ops.f16_high, np.float16),
    ],
)
def test_conversions_round_to_nearest_even(op, low_op, high_op, dtype):
    with np.errstate(all="ignore"):
        rounded = EDGES.astype(dtype)
        packed = op.emulation(EDGES, EDGES[::-1])
    bits = np.where(np.isnan(EDGES), 0x7FFF, rounded.view(np.uint16)).astype(np.uint32)
    assert np.array_equal(packed, bits | bits[::-1] << np.uint32(16))
    assert same(low_op.emulation(packed), rounded)
    assert same(high_op.emulation(packed), rounded[::-1])


@given(any_floats, any_floats)
def test_scalar_conversions_give_python_integers(low, high):
    packed = ops.pack_bf16(low, high)
    assert type(packed) is int
    assert same(ops.bf16_low(packed), np.float32(low).astype(ml_dtypes.bfloat16))
    assert same(ops.f16_high(ops.pack_f16(low, 0.5)), 0.5)


@given(fragments(multiple=2))
def test_fragments_pack_neighbours(values):
    packed = ops.to_bf16(values)
    assert packed.dtype == np.uint32
    assert len(packed) == len(values) // 2
    assert same(ops.from_bf16(packed), f32(values).astype(ml_dtypes.bfloat16))
    with np.errstate(all="ignore"):
        assert same(ops.from_f16(ops.to_f16(values)), f32(values).astype(np.float16))


# ---------------------------------------------------------------------------- fragments


def rows_of(values):
    """The elements of the thread's first and second row."""
    second = np.arange(len(values)) // 2 % 2 == 1
    return f32(values)[~second], f32(values)[second]


def by_row(size, first, second):
    return np.where(np.arange(size) // 2 % 2 == 1, second, first)


@given(fragments(any_floats))
def test_row_max_ignores_nan(values):
    expected = [np.fmax.reduce(row) for row in rows_of(values)]
    assert same(ops.row_max(values), expected)


@given(fragments(st.floats(-1e6, 1e6, width=32)))
def test_row_sum(values):
    result = ops.row_sum(values)
    for got, row in zip(result, rows_of(values), strict=True):
        scale = np.abs(row.astype(np.float64)).sum()
        assert abs(got - row.astype(np.float64).sum()) <= 1e-6 * scale


@given(fragments(), floats, floats)
def test_scale_rows(values, first, second):
    with np.errstate(all="ignore"):
        expected = f32(values) * f32(by_row(len(values), first, second))
    assert same(ops.scale_rows(values, first, second), expected)


@given(fragments(st.floats(-50, 50, width=32)), st.floats(-8, 8, width=32))
def test_exp2_rows_of_scores_below_their_maximum(values, scale):
    top = max(values)
    result = ops.exp2_rows(values, abs(scale), top, 60.0)
    shifted = (np.float64(values) - by_row(len(values), top, 60.0)) * abs(np.float64(scale))
    np.testing.assert_allclose(result, 2**shifted, 5e-5, 2.0**-126)


def test_exp2_rows_of_minus_infinity_is_zero():
    assert same(ops.exp2_rows([-INF, 0, 1, -INF], 1.5, 0.0, 1.0), [0, 1, 1, 0])


bounds = st.integers(-5, 40)


@given(fragments(), st.integers(0, 20), bounds, bounds, bounds, bounds)
def test_mask_columns(values, column, left_0, right_0, left_1, right_1):
    result = ops.mask_columns(values, column, left_0, right_0, left_1, right_1, -INF)
    for i, x in enumerate(f32(values)):
        here = column + 8 * (i // 4) + i % 2
        left, right = (left_1, right_1) if i // 2 % 2 else (left_0, right_0)
        assert same(result[i], x if left <= here < right else -INF)


def test_mask_columns_takes_the_widest_limits():
    values = f32([1, 2, 3, 4])
    widest = (-(2**31) + 100, 2**31 - 1)
    assert same(ops.mask_columns(values, 100, *widest, *widest, 0.0), values)


@given(fragments(), st.data())
def test_elements_by_index(values, data):
    i = data.draw(st.integers(0, len(values) - 1))
    assert same(ops.element(values, i), values[i])
    expected = f32(values)
    expected[i] = 5
    assert same(ops.with_element(values, i, 5.0), expected)
    assert same(ops.with_element(values, len(values), 5.0), values)
    assert same(ops.with_element(values, -1, 5.0), values)


@given(fragments())
def test_elementwise(values):
    with np.errstate(all="ignore"):
        assert same(ops.add_fragments(values, values), f32(values) * 2)
        assert same(ops.mul_fragments(values, values), f32(values) ** 2)
    assert same(ops.fragment_from_bits(ops.fragment_bits(values)), values)


def test_zeros_and_full_are_made_once_for_each_size():
    assert ops.zeros(8) is ops.zeros(8)
    assert same(ops.zeros(8)(), np.zeros(8))
    assert same(ops.full(4)(2.5), np.full(4, 2.5))


PURE = [
    name
    for name in ops.__all__
    if isinstance(op := getattr(ops, name), Op)
    and not op.needs_thread
    and not getattr(op, "stepwise", False)
]


@pytest.mark.parametrize("name", PURE)
def test_results_have_the_declared_types(name):
    op = getattr(ops, name)
    samples = {"f32": 0.5, "pred": True}
    args = [
        [1.0] * t.count(8) if isinstance(t, FragmentType) else samples.get(t.tag, 3)
        for t in op.parameters
    ]
    result = op(*args)
    if isinstance(op.result, FragmentType):
        assert result.dtype == op.result.dtype
        assert result.shape == (op.result.count(8),)
        with pytest.raises(ValueError, match="read-only"):
            result[0] = 1
    else:
        assert type(result) is {"f32": np.float32, "u32": int, "i32": int}[op.result.tag]


# ---------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("cast", "value", "expected"),
    [
        (int32, 2**31, -(2**31)),
        (int32, -1, -1),
        (uint32, -1, 2**32 - 1),
        (uint32, 2**32 + 5, 5),
        (int64, 2**63, -(2**63)),
        (uint64, -1, 2**64 - 1),
        (int32, 2.75, 2),
        (int32, np.float32(-2.75), -2),
        (float32, 0.1, np.float32(0.1)),
        (boolean, 2**32, True),
        (boolean, 0, False),
    ],
)
def test_casts(cast, value, expected):
    assert cast(value) == expected
    assert type(cast(value)) is type(expected)


def test_a_fragment_is_made_of_any_sequence_of_the_right_length():
    two = parse_type("f32[2]")
    assert repr(two) == "f32[2]"
    assert same(two.convert((1, 2.5)), [1, 2.5])
    ready = f32([1, 2])
    assert two.convert(ready) is ready
    with pytest.raises(TypeError, match=r"expected a fragment f32\[2\], got one of 3 registers"):
        two.convert((1, 2, 3))
    with pytest.raises(TypeError, match=r"expected a fragment f32\[2\], got 7"):
        two.convert(7)
    assert parse_type("u32[2n]").count(6) == 12
    assert parse_type("u32[n/2]").count(6) == 3


def test_a_wrong_signature_is_refused():
    with pytest.raises(ValueError, match="signature is 'f32'; accepted is"):
        Signature("f32")
    with pytest.raises(KeyError):
        Signature("f16(f32)")


def test_a_wrong_number_of_arguments_is_refused():
    with pytest.raises(TypeError, match="fma takes 3 arguments, got 2"):
        ops.fma(1.0, 2.0)


def test_variants_by_architecture():
    @instruction(
        "new;",
        "f32(f32)",
        since=(9, 0),
        section="none",
        variants={(5, 0): "oldest;", (8, 0): "old;"},
    )
    def op(x):
        """Something that changed twice."""
        return x

    texts = [op.ptx_for(cc) for cc in ((12, 0), (9, 0), (8, 6), (7, 5), (5, 0))]
    assert texts == ["new;", "new;", "old;", "oldest;", "oldest;"]
    with pytest.raises(ValueError, match=r"op needs compute capability 5.0 or newer, got 3.5"):
        op.ptx_for((3, 5))


def test_a_user_can_compose_ops():
    @composite("f32[n](f32[n])", since=(5, 0), section="none")
    def softplus(b, x):
        """Return ln(1 + e^x) in base 2."""
        return b.map(ops.lg2, b.map(ops.add, b.map(ops.ex2, x), 1.0))

    np.testing.assert_allclose(softplus([0, 1, 3]), np.log2(1 + 2 ** f32([0, 1, 3])), 1e-6)
    assert repr(softplus) == "<op softplus>"
