"""What Numba makes of ops, casts and plain functions."""

import re
import subprocess
import sys

import numba
import pytest
from llvmlite import ir
from numba import cuda

from fa_numba.device import lowering, ops
from fa_numba.device.compile import CompileError, ptx_of
from fa_numba.device.kernel import kernel
from fa_numba.device.llvm import LlvmBuilder
from fa_numba.device.types import float32, int32, int64, out_ptr, ptr, uint32, uint64
from fa_numba.indexing import fragment_layout, swizzle
from tests.device import op_kernels

pytestmark = pytest.mark.compile


def ptx(function, target="sm_80", block=32):
    return ptx_of(kernel(block=block, name="test")(function), target)[1]


def instructions(text):
    """The opcodes of a PTX program, without the moves of parameters."""
    return [m[1] for m in re.finditer(r"^\s*(?:@\S+ )?([a-z][\w.:]+)\s.*;$", text, re.MULTILINE)]


# ---------------------------------------------------------------------------- ops and casts

OWN_KERNEL = """
import numba
from numba import cuda
from fa_numba.device import ops
from fa_numba.device.ops import fmax, quad_max, row_max
from fa_numba.device.types import uint32

zeros = ops.zeros(8)

@cuda.jit(device=True, inline="always")
def helper(x):
    return ops.ex2(x)

def own(x, out):
    i = cuda.grid(1)
    top = row_max(zeros())
    out[i] = quad_max(fmax(helper(x[i]), top[0])) + numba.float32(uint32(i))

vector = numba.float32[::1]
signature = numba.void(vector, vector)
print(cuda.compile(own, signature, cc=(8, 0), device=False, abi="numba")[0])
"""


def test_a_users_own_kernel_calls_ops():
    """In a new process, in which nothing can have registered them."""
    command = [sys.executable, "-W", "error", "-c", OWN_KERNEL]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("ex2.approx.ftz.f32") == 1
    assert done.stdout.count("shfl.sync.bfly") == 2
    assert ".f64" not in done.stdout


def test_casts_wrap_as_on_the_host():
    def run(out: out_ptr, n: int64):
        ops.store_global_u32(out, int32(n * 3) + uint32(n), True)
        ops.store_global_f32(out, float32(int32(n)), True)
        ops.store_global_u32(out, uint32(uint64(n) >> 32), True)

    text = ptx(run)
    assert "cvt.rn.f32.s32" in text
    assert ".f64" not in text


def test_pure_ops_are_merged_and_dropped_but_accesses_are_not():
    def run(x: ptr, out: out_ptr):
        value = ops.load_global_f32(x, True)
        ops.load_global_f32(x, True)
        ops.lg2(value)
        ops.store_global_f32(out, ops.ex2(value) + ops.ex2(value), True)

    found = instructions(ptx(run))
    assert found.count("ex2.approx.ftz.f32") == 1
    assert found.count("lg2.approx.ftz.f32") == 0
    assert sum(name.startswith("ld.global") for name in found) == 2


def test_a_barrier_stays_between_the_accesses_around_it():
    def run(out: out_ptr):
        base = ops.shared_base()
        ops.store_shared_f32(base + 4 * ops.lane(), 1.0)
        ops.syncthreads()
        ops.store_global_f32(out, ops.load_shared_f32(base), True)

    names = ("st.shared", "bar.sync", "ld.shared", "st.global")
    order = [n for n in instructions(ptx(run)) if n.startswith(names)]
    assert [n.split(".b32")[0] for n in order] == list(names)


@pytest.mark.parametrize(
    ("target", "present", "absent"),
    [("sm_75", "setp.nan.f32", "cvt.rn.bf16x2"), ("sm_80", "cvt.rn.bf16x2", "setp.nan.f32")],
)
def test_variants_follow_the_target(target, present, absent):
    text = ptx(op_kernels.convert.function, target)
    assert present in text
    assert absent not in text


def test_an_op_that_the_target_lacks_is_refused():
    @ops.declare.instruction("tanh.new $0, $1;", "f32(f32)", since=(9, 0), section="none")
    def tanh_new(x):
        """Nothing that exists."""
        return x

    def run(out: out_ptr):
        ops.store_global_f32(out, tanh_new(1.0), True)

    with pytest.raises(CompileError, match=r"tanh_new needs compute capability 9.0 or newer"):
        ptx(run, "sm_80")


def bad_count(out: out_ptr):
    ops.store_global_f32(out, ops.fma(1.0, 2.0), True)


def bad_fragment(out: out_ptr):
    ops.store_global_u32x4(out, (uint32(1), uint32(2)), True)


def bad_sizes(out: out_ptr):
    ops.add_fragments((1.0, 2.0), (1.0, 2.0, 3.0))


def not_a_fragment(out: out_ptr):
    ops.row_max(out)


def float_for_integer(out: out_ptr):
    ops.bar_sync(1.5, 32)


def fragment_for_number(out: out_ptr):
    ops.ex2((1.0, 2.0))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (bad_count, "fma takes 3 arguments"),
        (bad_fragment, r"argument 2 of store_global_u32x4 is UniTuple\(uint32 x 2\)"),
        (bad_sizes, "argument 2 of add_fragments is"),
        (not_a_fragment, r"argument 1 of row_max is uint64; accepted is f32\[n\]"),
        (float_for_integer, "argument 1 of bar_sync is float64; accepted is uint32"),
        (fragment_for_number, "argument 1 of ex2 is UniTuple"),
    ],
)
def test_wrong_arguments_are_refused(function, message):
    with pytest.raises(CompileError, match=message):
        ptx(function)


def test_results_have_the_declared_types():
    """Numba's types of all ops, from their signatures."""
    f32 = numba.float32
    assert lowering.numba_type(ops.row_max.result, 16) == numba.types.UniTuple(f32, 2)
    assert lowering.numba_type(ops.to_bf16.result, 16) == numba.types.UniTuple(numba.uint32, 8)
    assert lowering.numba_type(ops.from_bf16.result, 4) == numba.types.UniTuple(f32, 8)
    assert lowering.numba_type(ops.lane.result, 0) == numba.int32
    assert lowering.numba_type(ops.syncthreads.result, 0) == numba.void
    assert lowering.numba_type(ptr, 0) == numba.uint64


def test_a_loop_keeps_fragments_in_registers():
    zero = ops.zeros(32)

    def run(x: ptr, out: out_ptr, n: int32):
        acc = zero()
        for i in range(n):
            scale = ops.load_global_f32(x + 4 * i, True)
            if scale > float32(0):
                acc = ops.scale_rows(acc, scale, scale)
            acc = ops.add_fragments(acc, ops.exp2_rows(acc, scale, scale, scale))
        ops.store_global_f32(out, ops.row_sum(acc)[0], True)

    text = ptx(run)
    assert ".local" not in text
    assert ".f64" not in text


# ---------------------------------------------------------------------------- plain functions


def leaf(x):
    return ops.fmax(x, float32(2.0))


def branch(x):
    return leaf(leaf(x))


def test_plain_functions_are_inlined_wherever_they_are_found():
    def in_closure(x):
        return branch(x) * float32(3.0)

    def run(x: ptr, out: out_ptr):
        tid = ops.thread_index_x()
        row, column = fragment_layout.acc_coord(tid % 32, 3)
        offset = swizzle.swizzle(128 * row + 4 * column, 128)
        value = in_closure(ops.load_global_f32(x, True))
        ops.store_global_f32(out + uint64(offset), branch(value), True)

    text = ptx(run)
    assert "call" not in text
    assert instructions(text).count("max.f32") == 4


def shared_word(place):
    return ops.load_shared_u32(ops.shared_base() + 4 * place)


def test_all_functions_mean_the_same_shared_memory():
    def run(out: out_ptr):
        tid = ops.thread_index_x()
        ops.store_shared_u32(ops.shared_base() + 4 * tid, tid)
        ops.syncthreads()
        ops.store_global_u32(out, shared_word(31 - tid), True)

    text = ptx(run)
    assert text.count(".extern .shared") == 1
    assert "call" not in text


def test_a_function_is_compiled_for_each_type_of_arguments():
    def twice(x):
        return x * 2

    def run(out: out_ptr, n: int32):
        ops.store_global_u32(out, twice(n), True)
        ops.store_global_u32(out, twice(twice(uint64(n))) >> 32, True)

    assert ".f64" not in ptx(run)


def large(x):
    """More than a compiler would inline by itself."""
    x = ops.tanh(ops.tanh(ops.tanh(ops.tanh(ops.tanh(ops.tanh(x))))))
    x = ops.tanh(ops.tanh(ops.tanh(ops.tanh(ops.tanh(ops.tanh(x))))))
    return ops.tanh(ops.tanh(ops.tanh(ops.tanh(ops.tanh(ops.tanh(x))))))


def test_large_functions_are_inlined_too():
    def run(x: ptr, out: out_ptr):
        value = large(ops.load_global_f32(x, True))
        ops.store_global_f32(out, large(large(large(value))), True)

    text = ptx(run)
    assert "call" not in text
    assert instructions(text).count("ex2.approx.ftz.f32") == 4 * 18


def test_llvm_is_told_what_an_op_does():
    """What it may assume, in its own words."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "f")
    builder = LlvmBuilder(ir.IRBuilder(function.append_basic_block()), (8, 0))
    builder.map(ops.ex2, [1.0])
    builder.map(ops.bar_sync, 1, 64)
    pure, effect = [line for line in str(module).splitlines() if " call " in line]
    assert "sideeffect" not in pure
    assert "~{memory}" not in pure
    assert "readnone" in pure
    assert "asm sideeffect" in effect
    assert "~{memory}" in effect
    assert "convergent" in effect
    assert "readnone" not in effect


def test_the_original_functions_are_left_alone():
    bound = lowering.bind(branch)
    assert bound is not branch
    assert branch.__globals__["leaf"] is leaf
    assert branch(1.0) == 2


def test_a_function_that_is_compiled_already_is_left_as_it_is():
    @cuda.jit(device=True, inline="always")
    def compiled(x):
        return x + float32(1.0)

    def run(x: ptr, out: out_ptr):
        ops.store_global_f32(out, compiled(ops.load_global_f32(x, True)), True)

    assert "add.f32" in ptx(run)


def test_a_function_that_calls_itself_is_refused():
    def run(out: out_ptr):
        recursive(out)

    with pytest.raises(CompileError, match="recursive calls itself"):
        ptx(run)


def recursive(x):
    return recursive(x)
