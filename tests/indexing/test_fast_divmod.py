import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.indexing.fast_divmod import FastDivmod, fast_div, fast_divmod, make_fast_divmod
from tests.indexing.brute import thorough

LARGEST = 2**31 - 1
POWERS = [2**k for k in range(31)]
EDGE_DIVISORS = sorted(
    {d for p in POWERS for d in (p - 1, p, p + 1) if 1 <= d <= LARGEST}
    | {7, 641, 6700417, 10**9 + 7, LARGEST - 1, LARGEST}
)


def edge_numerators(d):
    """The ends of the range, and both sides of the first and the last multiples of d."""
    last = LARGEST // d * d
    candidates = {0, 1, d - 1, d, d + 1, 2 * d - 1, 2 * d, last - 1, last, last + 1, LARGEST}
    return sorted(n for n in candidates if 0 <= n <= LARGEST)


def test_exact_at_every_edge():
    for d in EDGE_DIVISORS:
        divmod_d = make_fast_divmod(d)
        for n in edge_numerators(d):
            assert fast_divmod(n, divmod_d) == divmod(n, d), (n, d)


@thorough
@given(st.integers(0, LARGEST), st.integers(1, LARGEST))
def test_exact_anywhere(n, d):
    assert fast_divmod(n, make_fast_divmod(d)) == divmod(n, d)
    assert fast_div(n, make_fast_divmod(d)) == n // d


@thorough
@given(st.integers(0, 2**40), st.integers(1, 1000))
def test_exact_for_small_divisors(n, d):
    n %= LARGEST + 1
    assert fast_divmod(n, make_fast_divmod(d)) == divmod(n, d)


def test_fits_the_integers_of_a_kernel():
    for d in EDGE_DIVISORS:
        f = make_fast_divmod(d)
        assert f.divisor == d
        assert 2**31 <= f.multiplier < 2**32
        assert LARGEST * f.multiplier < 2**63
        # The 32-bit form: upper half of the product, then a shift.
        if d >= 2:
            for n in edge_numerators(d):
                assert ((n * f.multiplier) >> 32) >> (f.shift - 32) == n // d


@pytest.mark.parametrize(
    ("divisor", "multiplier", "shift"),
    [
        (1, 2**31, 31),
        (2, 2**31, 32),
        (3, 0xAAAAAAAB, 33),
        (4, 2**31, 33),
        (5, 0xCCCCCCCD, 34),
        (7, 0x92492493, 34),
        (10, 0xCCCCCCCD, 35),
        (641, 3430613504, 41),
        (LARGEST, 2**31 + 2, 62),
    ],
)
def test_golden_values(divisor, multiplier, shift):
    assert make_fast_divmod(divisor) == FastDivmod(divisor, multiplier, shift)
