"""From kernels to machine code, for every architecture, on a machine without a GPU."""

import sys

import pytest

from fa_numba.device import compile as compiling
from fa_numba.device import ops
from fa_numba.device.compile import CompileError, compile_kernel, cubin_of, ptx_of
from fa_numba.device.kernel import Kernel, kernel
from fa_numba.device.resources import (
    SHARED_MEMORY_LIMIT,
    Resources,
    float64_lines,
    resources,
    sass_counts,
)
from fa_numba.device.types import float32, int32, out_ptr, ptr, uint64
from tests.device import op_kernels

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(sys.platform == "darwin", reason="NVIDIA's compilers need Linux or Windows"),
]

TARGETS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_120")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", op_kernels.ALL, ids=lambda k: k.name)
def test_every_op_compiles_for_every_target(kernel, target):
    compiled = compile_kernel(kernel, target)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.symbol == kernel.name
    assert f".target {target}" in compiled.ptx
    assert float64_lines(compiled.ptx) == []
    report = resources(kernel, compiled)
    assert report.problems() == []
    assert 8 <= report.registers <= 255


@pytest.fixture(scope="module")
def memory_on_ampere():
    return compile_kernel(op_kernels.memory, "sm_80")


def test_the_instructions_are_the_ones_meant(memory_on_ampere):
    counts = sass_counts(memory_on_ampere)
    for name in ("LDG.E.128", "LDG.E.64", "LDS.128", "STS.128", "STG.E.128", "STG.E.U16"):
        assert counts.get(name, 0) >= 1, (name, counts)
    barriers = sum(n for name, n in counts.items() if name.startswith("BAR."))
    assert barriers == 8


def test_shuffles_and_fast_mathematics_are_single_instructions():
    counts = sass_counts(compile_kernel(op_kernels.shuffle, "sm_80"))
    # Two, and those of quad_max and quad_sum, which share the first.
    assert counts["SHFL.BFLY"] == 5
    assert counts["SHFL.IDX"] == 2
    counts = sass_counts(compile_kernel(op_kernels.fragment, "sm_80"))
    assert counts["MUFU.EX2"] == 8
    assert sum(n for name, n in counts.items() if name.startswith("F2FP.BF16")) == 4


def test_the_report(memory_on_ampere):
    report = resources(op_kernels.memory, memory_on_ampere, sass=True)
    assert report.kernel == "memory"
    assert report.target == "sm_80"
    assert report.threads == 64
    assert report.shared_bytes == 2048
    assert report.stack == report.spill_loads == report.spill_stores == 0
    assert report.shared_limit == SHARED_MEMORY_LIMIT["sm_80"]
    assert report.sass["EXIT"] >= 1
    assert f"memory sm_80: {report.registers} registers, 2048 bytes" in str(report)


def crowded(x: ptr, out: out_ptr):
    """Needs far more registers than 1024 threads have."""
    tid = ops.thread_index_x()
    total = op_kernels.zeros_8()
    kept = op_kernels.zeros_8()
    a = ops.from_bf16(ops.load_global_u32x4(x + 16 * tid, True))
    b = ops.from_bf16(ops.load_global_u32x4(x + 16 * tid + 64000, True))
    c = ops.from_bf16(ops.load_global_u32x4(x + 16 * tid + 128000, True))
    d = ops.from_bf16(ops.load_global_u32x4(x + 16 * tid + 192000, True))
    e = ops.from_bf16(ops.load_global_u32x4(x + 16 * tid + 256000, True))
    f = ops.from_bf16(ops.load_global_u32x4(x + 16 * tid + 320000, True))
    for i in range(100):
        ops.syncthreads()
        y = ops.load_global_f32(x + 4 * i, True)
        total = ops.add_fragments(total, ops.scale_rows(a, y, y))
        total = ops.mul_fragments(total, ops.add_fragments(b, c))
        kept = ops.add_fragments(ops.mul_fragments(kept, d), ops.mul_fragments(total, e))
        a, b, c, d, e, f = b, kept, d, e, f, ops.add_fragments(a, total)
    op_kernels.store_8(out + uint64(32 * tid), ops.add_fragments(total, ops.mul_fragments(f, c)))


def test_spills_are_reported():
    large = kernel(block=1024)(crowded)
    found = resources(large, compile_kernel(large, "sm_80"))
    assert found.registers == 64
    assert found.spill_stores > 0
    assert any("local memory" in problem for problem in found.problems())


def test_limits_are_reported():
    report = Resources("k", "sm_75", 1024, 96, 70_000, 0, 0, 0, 1, ())
    assert report.problems() == [
        "70000 bytes of shared memory, 65536 exist",
        "96 registers for 1024 threads, 65536 exist",
    ]


def test_float64_is_found():
    def divides(out: out_ptr, n: int32):
        ops.store_global_f32(out, n / 3, True)

    _, text = ptx_of(kernel(block=32)(divides), "sm_80")
    lines = float64_lines(text)
    assert any(line.startswith("div.rn.f64") for line in lines)


def test_an_infinity_stays_one():
    """Numba's fast mathematics would take the comparison for impossible."""

    def compare(x: ptr, out: out_ptr):
        value = ops.load_global_f32(x, True)
        if value == float32(-float("inf")):
            value = float32(1)
        ops.store_global_f32(out, value, True)

    _, text = ptx_of(kernel(block=32)(compare), "sm_80")
    assert "0fFF800000" in text
    assert "setp" in text


def test_plain_arithmetic_keeps_subnormals_and_is_fused():
    """As in the emulator, which computes it in NumPy; fused because libNVVM does so by itself."""

    def arithmetic(x: ptr, out: out_ptr):
        value = ops.load_global_f32(x, True)
        ops.store_global_f32(out, value + value, True)
        ops.store_global_f32(out, value * value + float32(3), True)

    _, text = ptx_of(kernel(block=32)(arithmetic), "sm_80")
    assert "add.f32" in text
    assert "fma.rn.f32" in text
    assert ".ftz" not in text


def test_the_block_bounds_the_registers():
    _, text = ptx_of(op_kernels.index, "sm_80")
    assert ".maxntid 64" in text


@pytest.mark.parametrize("target", ["sm80", "sm_8", "90", "sm_90b"])
def test_a_wrong_target_is_refused(target):
    with pytest.raises(CompileError, match=f"target is '{target}'; accepted are names such as"):
        compile_kernel(op_kernels.shuffle, target)


def test_an_architecture_that_does_not_exist_is_refused():
    with pytest.raises(CompileError):
        compile_kernel(op_kernels.shuffle, "sm_98")


def test_a_function_that_numba_refuses_is_named():
    def wrong(out: out_ptr):
        ops.store_global_f32(out, undefined_name, True)  # noqa: F821

    with pytest.raises(CompileError, match=r"kernel wrong for sm_80: [^$]*undefined_name"):
        compile_kernel(kernel(block=32)(wrong), "sm_80")


def test_a_name_that_ptx_does_not_know_is_replaced():
    named = Kernel(op_kernels.shuffle.function, "soft-max <8>", (64, 1, 1), 0, ())
    symbol, text = ptx_of(named, "sm_80")
    assert symbol == "soft_max__8_"
    assert f".visible .entry {symbol}(" in text


def test_without_nvjitlink_ptxas_assembles(monkeypatch):
    _, text = ptx_of(op_kernels.shuffle, "sm_80")
    assert compiling.has_nvjitlink()
    monkeypatch.setattr(compiling, "has_nvjitlink", lambda: False)
    cubin, log = cubin_of(text, "sm_80")
    assert cubin[:4] == b"\x7fELF"
    assert "registers" in log
    with pytest.raises(CompileError, match=r"ptxas: .*error"):
        cubin_of(text.replace("ret;", "return;"), "sm_80")
    monkeypatch.setattr(compiling, "find_nvidia_binary_utility", lambda name: None)
    with pytest.raises(CompileError, match="pip install nvidia-nvjitlink"):
        cubin_of(text, "sm_80")


def test_nvjitlink_says_what_is_wrong():
    with pytest.raises(CompileError, match="nvJitLink"):
        cubin_of(".version 8.0\n.target sm_80\n.address_size 64\nnonsense\n", "sm_80")


def test_parameters_need_types_of_ours():
    def untyped(out, n: int):
        """A function whose parameters say nothing to the compiler."""

    with pytest.raises(TypeError, match="parameter out of kernel untyped is annotated with"):
        compile_kernel(kernel(block=32)(untyped), "sm_80")


def test_annotations_may_be_text():
    """As they are in a file with ``from __future__ import annotations``."""

    def typed(out: "out_ptr", n: "int32"):
        """Do nothing."""

    assert kernel(block=32)(typed).parameters == {"out": out_ptr, "n": int32}


@pytest.mark.parametrize("block", [0, 1025, (32, 33), (1, 1, 1, 1), (-1, 2)])
def test_a_block_that_no_gpu_has_is_refused(block):
    with pytest.raises(ValueError, match="block is"):
        kernel(block=block)


def test_a_kernel_is_made_of_a_plain_function():
    with pytest.raises(TypeError, match="a kernel is made of a plain function, got <built-in"):
        kernel(block=32)(print)


def test_shared_memory_is_not_negative():
    with pytest.raises(ValueError, match="smem_bytes is -1"):
        kernel(block=32, smem_bytes=-1)
