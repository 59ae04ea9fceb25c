"""Strict integers against Numba's own types and values, and float64 found where it slips in."""

import itertools
import operator

import numpy as np
import pytest

from fa_numba.device.emulator.ints import STRICT_TYPES, Int32, Int64, StrictInt, UInt32, UInt64
from fa_numba.device.kernel import kernel
from fa_numba.device.types import float32, int32, int64, out_ptr, uint32, uint64
from tests.device.emulator_ops import machine_for, store_global, the_hazard, tid

pytestmark = pytest.mark.emu

TYPES = {"int32": Int32, "uint32": UInt32, "int64": Int64, "uint64": UInt64}
OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}


@pytest.mark.compile
@pytest.mark.parametrize("symbol", OPERATORS)
def test_types_of_results_are_those_that_numba_infers(symbol):
    """The GPU target's own table, asked without a GPU."""
    from numba.cuda import types
    from numba.cuda.descriptor import cuda_target

    typing = cuda_target.typing_context
    typing.refresh()
    compute = OPERATORS[symbol]
    for left, right in itertools.product(TYPES, TYPES):
        signature = typing.resolve_function_type(
            compute, (getattr(types, left), getattr(types, right)), {}
        )
        mine = compute(TYPES[left](5), TYPES[right](3))
        assert type(mine).__name__.lower() == str(signature.return_type), (left, symbol, right)
    for left in TYPES:
        literal = typing.resolve_function_type(compute, (getattr(types, left), types.int64), {})
        mine = compute(TYPES[left](5), 3)
        assert type(mine).__name__.lower() == str(literal.return_type), (left, symbol)


@pytest.mark.parametrize("tag", STRICT_TYPES)
def test_values_wrap_in_their_type(tag):
    kind = STRICT_TYPES[tag]
    low = -(1 << (kind.bits - 1)) if kind.signed else 0
    high = low + (1 << kind.bits) - 1
    assert kind(low) == low
    assert kind(high) == high
    assert kind(high + 1) == low
    assert kind(low - 1) == high


def test_32_bits_wrap_in_casts_only():
    x = UInt32(0xFFFFFFFF)
    assert x + x == 0x1FFFFFFFE
    assert UInt32(x + x) == 0xFFFFFFFE
    assert Int32(0x7FFFFFFF) * Int32(4) == 0x1FFFFFFFC


def test_64_bits_wrap():
    big = UInt64(1 << 63)
    assert UInt64(2) - UInt64(3) == (1 << 64) - 1
    assert big * UInt64(2) == 0
    assert type(big + 1) is Int64
    assert big + 1 == -(1 << 63) + 1
    assert 0 - UInt64(1) == -1
    assert Int64(1) << 63 == -(1 << 63)


def test_signs_of_division_and_shifts_are_those_of_python():
    """Numba rounds // and % down, as Python does."""
    assert Int32(-7) // Int32(2) == -4
    assert Int32(-7) % Int32(2) == 1
    assert Int64(-8) >> 1 == -4
    assert type(UInt32(8) >> 1) is UInt64
    assert type(-UInt32(1)) is UInt64
    assert -UInt32(1) == (1 << 64) - 1
    assert ~Int32(0) == -1
    assert abs(Int32(-3)) == 3
    assert type(abs(Int32(-3))) is Int32
    assert +Int32(3) == 3


def test_numpy_scalars_leave_arithmetic_to_the_integer():
    for result in (np.float32(1.5) * Int32(2), Int32(2) * np.float32(1.5), Int32(6) / Int32(2)):
        assert type(result) is np.float64
        assert result == 3.0
    assert type(np.int32(3) + Int32(2)) is Int64
    assert type(np.uint32(3) + UInt32(2)) is UInt64
    assert type(np.uint32(3) + Int32(2)) is Int64
    assert repr(Int32(3)) == "Int32(3)"
    assert f"{Int32(3)} {Int32(3)!s}" == "3 3"
    assert [10, 20][Int32(1)] == 20


def test_kernels_get_and_make_strict_integers():
    seen = {}

    @kernel(block=1)
    def look(out: out_ptr, n: int32, m: int64, u: uint32):
        seen.update(n=n, m=m, u=u, out=out, tid=tid(), cast=uint64(n + m), less=n + u)
        seen["f"] = float32(n)
        store_global(out, 1.0)

    types = {"n": Int32, "m": Int64, "u": UInt32, "out": UInt64, "tid": Int32, "cast": UInt64}
    types["less"] = Int64
    machine = machine_for(look, args=(np.zeros(1, np.float32), 3, 4, 5), strict=True)
    assert machine.hazards == []
    assert {name: type(seen[name]) for name in types} == types
    assert type(seen["f"]) is np.float32

    machine_for(look, args=(np.zeros(1, np.float32), 3, 4, 5))
    assert {type(seen[name]) for name in types} == {int}
    # Outside a launch a cast is plain.
    assert type(int32(3)) is int


def test_a_float64_is_reported_where_it_is_made():
    @kernel(block=32)
    def mixes(out: out_ptr, n: int32, scale: float32):
        x = n * scale  # mixed
        store_global(out + 4 * tid(), x)

    @kernel(block=32)
    def casts(out: out_ptr, n: int32, scale: float32):
        store_global(out + 4 * tid(), float32(n) * scale)

    def args():
        return np.zeros(32, np.float32), 3, 0.5

    assert machine_for(casts, args=args(), strict=True).hazards == []
    assert machine_for(mixes, args=args()).hazards == []
    machine = machine_for(mixes, args=args(), strict=True)
    hazard = the_hazard(machine, "float64", mixes, "mixed", "", thread=0, count=32)
    assert "int32 and float32 make float64" in hazard.message


def test_a_division_of_integers_is_reported():
    @kernel(block=1)
    def divides(n: int32):
        n / 2  # division

    machine = machine_for(divides, args=(3,), strict=True)
    the_hazard(machine, "float64", divides, "division", "", thread=0)


def test_what_is_no_number_is_refused():
    with pytest.raises(TypeError):
        Int32(1) + "a"
    with pytest.raises(TypeError):
        "a" - Int32(1)
    with pytest.raises(TypeError):
        Int32(1) / "a"
    assert issubclass(StrictInt, int)
