"""The ops that act on threads and memory, in the emulator, against what NumPy says."""

import inspect
from types import FunctionType

import ml_dtypes
import numpy as np
import pytest

from fa_numba.device import ops
from fa_numba.device.emulator import emulate
from fa_numba.device.kernel import kernel
from fa_numba.device.launch import launch
from fa_numba.device.ops.declare import Op
from fa_numba.device.types import FragmentType, int32, out_ptr, ptr, uint64
from fa_numba.indexing.bind import referenced
from fa_numba.indexing.fragment_layout import acc_coord
from tests.device import op_kernels

pytestmark = pytest.mark.emu

SCHEDULES = ("round_robin", "random")


def run(kernel, grid, *args, schedule="round_robin"):
    """Launch in the emulator, and expect nothing to be wrong."""
    with emulate(schedule=schedule, seed=1) as machine:
        launch(kernel, grid, args, target="emulator")
    assert machine.hazards == []


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def called_ops(function, seen=None):
    """All ops that a function and its callees name."""
    seen = set() if seen is None else seen
    for _, value in referenced(function):
        if isinstance(value, Op):
            seen.add(value.name)
        elif isinstance(value, FunctionType):
            called_ops(value, seen)
    return seen


def test_the_kernels_call_every_op():
    called = set().union(*[called_ops(k.function) for k in op_kernels.ALL])
    public = {name for name in ops.__all__ if isinstance(getattr(ops, name), Op)}
    factories = {name for name in ops.__all__ if name not in public}
    assert public - called == set()
    for factory in factories:
        assert any(name.startswith(factory) for name in called), factory


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scalar(schedule):
    x = np.abs(normal(3, 64)) + np.float32(0.1)
    out = np.full((64, 13), np.nan, np.float32)
    run(op_kernels.scalar, 1, x, out, schedule=schedule)
    a, b, c = x.astype(np.float64)
    tid = np.arange(64)
    expected = {
        "ex2": 2**a,
        "lg2": np.log2(a),
        "rcp": 1 / a,
        "fma": a * b + c,
        "add": a + b,
        "mul": a * b,
        "fmax": np.maximum(a, b),
        "fmin": np.minimum(a, b),
        "select_less": np.where(a < b, c, 7),
        "select_less_i32": np.where(tid - 40 < -8, a, b),
        "tanh": np.tanh(a),
        "tanh_approx": np.tanh(a),
        "float_from_bits": -a,
    }
    for column, name in enumerate(op_kernels.SCALAR_RESULTS):
        np.testing.assert_allclose(out[:, column], expected[name], 5e-7, 1e-7, err_msg=name)


def test_convert():
    x = normal(2, 64, seed=1) * 100
    out = np.zeros((64, 6), np.uint32)
    run(op_kernels.convert, 1, x, out)
    for column, dtype in ((0, ml_dtypes.bfloat16), (1, np.float16)):
        low, high = x.astype(dtype)
        bits = low.view(np.uint16) | high.view(np.uint16).astype(np.uint32) << 16
        assert np.array_equal(out[:, column], bits)
        unpacked = out[:, 2 + 2 * column : 4 + 2 * column].view(np.float32)
        assert np.array_equal(unpacked, np.stack([low, high], 1).astype(np.float32))


def test_fragment():
    pairs = normal(64, 8, seed=2).astype(np.float16)
    out = np.full((64, 48), np.nan, np.float32)
    run(op_kernels.fragment, 1, pairs.view(np.uint32), out, 5, 0.75)
    s = pairs.astype(np.float64).reshape(2, 32, 8)
    results = out.reshape(2, 32, 6, 8)
    is_second = np.array([i // 2 % 2 == 1 for i in range(8)])

    def by_row(first, second):
        return np.where(is_second, second, first)

    assert np.array_equal(results[:, :, 0], s * by_row(2, 0.75))

    maxima = [s[..., rows].max(-1) for rows in (~is_second, is_second)]
    maxima = [m.reshape(2, 8, 4).max(-1).repeat(4, 1)[..., None] for m in maxima]
    np.testing.assert_allclose(results[:, :, 1], 2 ** ((s - by_row(*maxima)) * 0.75), 3e-7)

    for lane in range(32):
        for i in range(8):
            column = acc_coord(lane, i)[1]
            kept = 0 <= column < 4 if is_second[i] else 2 <= column < 9
            assert (results[:, lane, 2, i] == (s[:, lane, i] if kept else -1)).all()

    products = s * (s + 0.75)
    sums = [products[..., rows].sum(-1) for rows in (~is_second, is_second)]
    quad = sums[0].reshape(2, 8, 4).sum(-1).repeat(4, 1)
    expected = np.zeros((2, 32, 8))
    expected[..., 5] = s[..., 5]
    expected[..., 2] = quad
    np.testing.assert_allclose(results[:, :, 3], expected, 1e-5, 1e-5)

    bf16 = s.astype(np.float32).astype(ml_dtypes.bfloat16)
    assert np.array_equal(results[:, :, 4], bf16.astype(np.float32))
    back = (s * by_row(sums[1][..., None], 3)).astype(np.float16)
    np.testing.assert_allclose(results[:, :, 5], back, 2e-3, 1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("count", [64, 40, 0])
def test_memory(schedule, count):
    x = np.random.default_rng(3).integers(1, 2**32, (64, 4), dtype=np.uint32)
    # Rows that the predicate excludes do not exist: reading them would be found.
    out = np.zeros((64, 16), np.uint32)
    run(op_kernels.memory, 1, x[:count].copy(), out, count, schedule=schedule)
    valid = x.copy()
    valid[count:] = 0
    mirrored = valid[::-1]
    tid = np.arange(64)
    as_float = out.view(np.float32)
    assert np.array_equal(out[:, :4], mirrored)
    assert np.array_equal(out[:, 4:6], mirrored[:, :2])
    assert np.array_equal(as_float[:, 6:8], np.stack([np.full(64, 1.5), 63 - tid], 1))
    assert np.array_equal(out[:, 8], mirrored[:, 0])
    assert (as_float[:, 9] == 0.25).all()
    assert np.array_equal(out[:, 10], mirrored[:, 0] >> 16)
    assert (out[:, 11] == 0xFFFF5678).all()
    sender = np.where(tid < 32, 31 - tid, 63 - tid)
    sent = [np.ones(64), np.full(64, 2), sender, np.full(64, 4)]
    assert np.array_equal(as_float[:, 12:], np.stack(sent, 1))


def test_shuffle():
    x = normal(64, seed=4)
    out = np.zeros((64, 6), np.uint32)
    run(op_kernels.shuffle, 1, x, out)
    warps, tid = x.reshape(2, 32), np.arange(64).reshape(2, 32)
    lanes = np.arange(32)
    as_float = out.view(np.float32).reshape(2, 32, 6)
    as_int = out.reshape(2, 32, 6)
    assert np.array_equal(as_float[..., 0], warps[:, lanes ^ 5])
    assert np.array_equal(as_int[..., 1], tid[:, lanes ^ 31])
    assert np.array_equal(as_float[..., 2], warps[:, [3] * 32])
    assert np.array_equal(as_int[..., 3], tid[:, (lanes + 1) % 32])
    quads = x.reshape(2, 8, 4)
    assert np.array_equal(as_float[..., 4], quads.max(-1).repeat(4, 1))
    sums = (quads[..., 0] + quads[..., 1]) + (quads[..., 2] + quads[..., 3])
    assert np.array_equal(as_float[..., 5], sums.repeat(4, 1))


def test_index():
    out = np.full((2, 3, 2, 64, 13), -1, np.int32)
    run(op_kernels.index, (2, 3, 2), out)
    for bz, by, bx, t in np.ndindex(2, 3, 2, 64):
        expected = [t % 4, t // 4 % 2, t // 8, bx, by, bz, 4, 2, 8, 2, 3, 2, t % 32]
        assert out[bz, by, bx, t].tolist() == expected


def gemm_inputs(dtype, transposed, k, integers):
    """A (32, k), B (k, 16), and both in the rows of 80 that the kernel copies."""
    rng = np.random.default_rng(5)
    storage = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    packed = np.full((64, 80), np.nan, storage)
    draw = (lambda s: rng.integers(-4, 5, s)) if integers else rng.standard_normal
    a, b = draw((32, k)).astype(storage), draw((k, 16)).astype(storage)
    packed[:32, :k] = a
    if transposed:
        packed[32:48, :k] = b.T
    else:
        packed[32 : 32 + min(k, 32), :16] = b[:32]
    return a.astype(np.float32), b.astype(np.float32), packed.view(np.uint32)


def to_matrix(fragments):
    """(64 threads, 8) in fragment order to (32, 16)."""
    matrix = np.full((32, 16), np.nan, np.float32)
    for thread, i in np.ndindex(fragments.shape):
        row, column = acc_coord(thread % 32, i)
        matrix[16 * (thread // 32) + row, column] = fragments[thread, i]
    return matrix


@pytest.mark.parametrize("k", [0, 1, 27])
@pytest.mark.parametrize(("dtype", "transposed"), op_kernels.GEMMS)
def test_gemm(dtype, transposed, k):
    a, b, x = gemm_inputs(dtype, transposed, k, integers=False)
    out = np.full((64, 8), np.nan, np.float32)
    run(op_kernels.GEMMS[dtype, transposed], 1, x, out, k)
    expected = a.astype(np.float64) @ b.astype(np.float64) + 0.5
    np.testing.assert_allclose(to_matrix(out), expected, 1e-5, 1e-5)


@pytest.mark.parametrize(("dtype", "transposed"), op_kernels.GEMMS)
def test_gemm_is_the_loop_that_it_compiles_to(dtype, transposed, monkeypatch):
    """The one NumPy product and the loop of fma agree: exactly, where sums are exact."""
    op = ops.gemm_simt(dtype)
    results = []
    for integers in (True, False):
        *_, x = gemm_inputs(dtype, transposed, 9, integers)
        product, loop = np.zeros((64, 8), np.float32), np.zeros((64, 8), np.float32)
        run(op_kernels.GEMMS[dtype, transposed], 1, x, product, 9)
        monkeypatch.setattr(type(op), "__call__", lambda self, *args: self.steps(*args))
        run(op_kernels.GEMMS[dtype, transposed], 1, x, loop, 9)
        monkeypatch.undo()
        results.append((product, loop))
    assert np.array_equal(*results[0])
    np.testing.assert_allclose(*results[1], 2e-6, 2e-6)


def racing_gemm(where):
    """A product of which one word is written by the other warp without a barrier after it."""
    gemm, zero = ops.gemm_simt("float32"), ops.zeros(4)

    @kernel(block=64, smem_bytes=8192)
    def racing(out: out_ptr):
        tid = ops.thread_index_x()
        base = ops.shared_base()
        for i in range(tid, 2048, 64):
            ops.store_shared_f32(base + 4 * i, 1.0)
        ops.syncthreads()
        if tid == 32:
            ops.store_shared_f32(base + where, 2.0)
        if tid < 32:
            acc = gemm(zero(), base, 80, 4, base + 4096, 80, 4, 16)
            ops.store_global_u32x4(out + 16 * tid, ops.fragment_bits(acc), True)

    return racing


@pytest.mark.parametrize(
    ("where", "read"),
    [(80 * 15 + 60, True), (80 * 15 + 64, False), (4096 + 80 * 15 + 28, True), (4096 + 32, False)],
)
def test_gemm_tells_the_race_detector_what_it_reads(where, read):
    with emulate() as machine:
        launch(racing_gemm(where), 1, [np.zeros((32, 4), np.float32)], target="emulator")
    assert [h.kind for h in machine.hazards] == ["race"] * read


def misuse(body):
    return kernel(block=32, smem_bytes=64, name="misuse")(body)


def test_gemm_reports_misaligned_operands():
    gemm, zero = ops.gemm_simt("float32"), ops.zeros(4)

    def body(out: out_ptr):
        base = ops.shared_base()
        acc = gemm(zero(), base + 2, 0, 4, base, 4, 4, 1)
        ops.store_global_u32x4(out + 16 * ops.lane(), ops.fragment_bits(acc), True)

    with emulate() as machine:
        launch(misuse(body), 1, [np.zeros((32, 4), np.float32)], target="emulator")
    assert "misaligned" in {h.kind for h in machine.hazards}


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ValueError, match=r"dtype is 'int8'; accepted are float32, float16"):
        ops.gemm_simt("int8")


def test_a_misaligned_vector_load_is_found():
    def body(x: ptr, out: out_ptr):
        value = ops.load_global_u32x4(x + 4, ops.lane() == 0)
        ops.store_global_u32(out + 4 * ops.lane(), value[0], True)

    with emulate() as machine:
        args = [np.zeros(8, np.uint32), np.zeros(32, np.uint32)]
        launch(misuse(body), 1, args, target="emulator")
    assert {h.kind for h in machine.hazards} == {"misaligned"}


def test_a_shuffle_reads_no_lane_that_has_returned():
    def body(out: out_ptr, active: int32):
        tid = ops.thread_index_x()
        if tid < active:
            value = ops.shuffle_xor_u32(tid, 16)
            ops.store_global_u32(out + uint64(4 * tid), value, True)

    out = np.zeros(16, np.uint32)
    with emulate():
        launch(misuse(body), 1, [out, 16], target="emulator")
    assert (out == 0xFFFFFFFF).all()


@pytest.mark.parametrize("name", [n for n in ops.__all__ if isinstance(getattr(ops, n), Op)])
def test_outside_a_kernel_ops_that_need_a_thread_refuse(name):
    op = getattr(ops, name)
    values = {"f32": 1.0, "pred": True}
    args = [
        (1.0,) * t.count(4) if isinstance(t, FragmentType) else values.get(t.tag, 0)
        for t in op.parameters
    ]
    if op.needs_thread or name in ("quad_max", "quad_sum"):
        with pytest.raises(RuntimeError, match="runs in a kernel"):
            op(*args)
    else:
        op(*args)


def test_every_op_says_what_it_is():
    for name in ops.__all__:
        op = getattr(ops, name)
        doc = inspect.getdoc(op)
        assert doc, name
        if isinstance(op, Op):
            assert op.section, name
            assert op.name == name
            assert list(inspect.signature(op).parameters) == [
                line.split(" : ")[0] for line in _documented(doc)
            ], name


def _documented(doc):
    """Parameter lines of a numpydoc docstring, names that share one split."""
    lines = doc.splitlines()
    if "Parameters" not in lines:
        return []
    found = []
    for line in lines[lines.index("Parameters") + 2 :]:
        if line.startswith("---"):
            break
        if line and not line.startswith(" ") and " : " in line:
            names, kind = line.split(" : ")
            found += [f"{name} : {kind}" for name in names.split(", ")]
    return found
