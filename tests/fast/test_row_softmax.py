"""The row softmax on every machine: in the emulator, through the compilers, on the GPU.

The same function each time, against softmax in one piece in float64.
"""

import sys

import numpy as np
import pytest

from fa_numba.device.compile import compile_kernel
from fa_numba.device.emulator import emulate
from fa_numba.device.launch import launch
from fa_numba.device.resources import float64_lines, resources
from fa_numba.fast.row_softmax import RowSoftmaxConfig, make_row_softmax, run_row_softmax
from fa_numba.fast.tile_io import ITEMSIZE
from fa_numba.reference.row_softmax import row_softmax
from tests.poison import FILLS
from tests.row_softmax import (
    assert_row_softmax,
    cut,
    dense_softmax,
    layout,
    make_scores,
    pitch_of,
    place,
)
from tests.tolerance import DTYPES, assert_lse, assert_out, truth_and_lowprec

emu = pytest.mark.emu
TILE_M, TILE_N = 16, 64
KINDS = ("contiguous", "aligned", "shifted", "reversed")


def emulated(
    x,
    dtype,
    kind="contiguous",
    *,
    byte=0xFF,
    tile_m=TILE_M,
    tile_n=TILE_N,
    x_kind=None,
    **options,
):
    """Run the kernel in the emulator, outputs poisoned; return out, lse and the machine."""
    out = layout(*x.shape, dtype, kind, byte)
    lse = np.full(len(x), byte * 0x01010101, np.uint32).view(np.float32)
    with emulate(**options) as machine:
        run_row_softmax(
            place(x, dtype, x_kind or kind),
            out,
            lse,
            tile_m=tile_m,
            tile_n=tile_n,
            target="emulator",
        )
    assert [str(hazard) for hazard in machine.hazards] == []
    return out, lse, machine


def assert_same(out, lse, told, told_lse, x, dtype):
    """Assert that two computations agree as well as they can, which round at different places."""
    _, (lowprec, _) = truth_and_lowprec(dense_softmax, x, dtype=dtype)
    assert_lse(lse, told_lse.astype(np.float64), dtype)
    assert_out(out, told.astype(np.float64), lowprec, dtype)


# ------------------------------------------------------------------------------------- emulator


@emu
@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("rows", [1, TILE_M - 1, TILE_M, TILE_M + 1])
@pytest.mark.parametrize("cols", [1, TILE_N - 1, TILE_N, TILE_N + 1, 2 * TILE_N - 1])
def test_boundary_shapes(dtype, rows, cols):
    x = make_scores(rows, cols, dtype, seed=rows)
    out, lse, _ = emulated(x, dtype)
    assert_row_softmax(out, lse, x, dtype)


@emu
@pytest.mark.parametrize(("rows", "cols"), [(0, 5), (0, 0), (3, 0)])
def test_nothing_to_do(rows, cols):
    out, lse, _ = emulated(np.zeros((rows, cols), np.float32), "float32")
    assert out.shape == (rows, cols)
    np.testing.assert_array_equal(lse, np.full(rows, -np.inf, np.float32))


@emu
@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("kind", KINDS)
def test_strides(dtype, kind):
    """What lies between the rows of out is not ours: the emulator reports a write to it."""
    x = make_scores(TILE_M + 3, 2 * TILE_N + 5, dtype)
    out, lse, _ = emulated(x, dtype, kind)
    assert_row_softmax(out, lse, x, dtype)


@emu
@pytest.mark.parametrize(("x_kind", "out_kind"), [("aligned", "shifted"), ("shifted", "aligned")])
def test_one_unaligned_matrix_is_enough_to_go_by_elements(x_kind, out_kind):
    x = make_scores(5, 70, "float16")
    out, lse, _ = emulated(x, "float16", out_kind, x_kind=x_kind)
    assert_row_softmax(out, lse, x, "float16")


@emu
@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize(("tile_m", "tile_n"), [(32, 64), (48, 64), (16, 128), (32, 256)])
def test_other_tiles(dtype, tile_m, tile_n):
    x = make_scores(tile_m + 5, tile_n + 9, dtype)
    out, lse, _ = emulated(x, dtype, "aligned", tile_m=tile_m, tile_n=tile_n)
    assert_row_softmax(out, lse, x, dtype)


@emu
def test_the_default_tile():
    x = make_scores(70, 150, "bfloat16")
    out = np.full(x.shape, np.nan, x.dtype)
    lse = np.full(70, np.nan, np.float32)
    with emulate() as machine:
        run_row_softmax(x, out, lse, target="emulator")
    assert machine.hazards == []
    assert_row_softmax(out, lse, x, "bfloat16")


@emu
@pytest.mark.parametrize("schedule", ["round_robin", "random", "time"])
@pytest.mark.parametrize("policy", ["late/late", "late/early", "early/late"])
def test_schedules_and_policies_do_not_matter(schedule, policy):
    x = make_scores(TILE_M + 1, 2 * TILE_N + 1, "float16")
    expected, expected_lse, _ = emulated(x, "float16", tile_m=32)
    out, lse, _ = emulated(x, "float16", tile_m=32, schedule=schedule, policy=policy)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


@emu
@pytest.mark.parametrize("part", range(4))
def test_no_false_alarm(part):
    """100 seeded runs of random interleavings, none of which finds anything."""
    for seed in range(25 * part, 25 * part + 25):
        rng = np.random.default_rng(seed)
        dtype = rng.choice(list(ITEMSIZE))
        tile_m = int(rng.choice([16, 16, 32]))
        kind = rng.choice(KINDS)
        x = make_scores(*rng.integers(1, [tile_m + 4, TILE_N + 12]), dtype, seed)
        options = {"schedule": "random", "seed": seed, "policy": "random"}
        out, lse, _ = emulated(x, dtype, kind, tile_m=tile_m, **options)
        assert_row_softmax(out, lse, x, dtype)


@emu
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_integers_follow_numbas_rules(dtype):
    """Strict mode wraps as Numba does, and finds integers that meet floats."""
    x = make_scores(5, TILE_N + 3, dtype)
    out, lse, _ = emulated(x, dtype, "reversed", strict=True)
    assert_row_softmax(out, lse, x, dtype)


@emu
def test_nothing_depends_on_what_the_outputs_held():
    x = make_scores(9, 70, "bfloat16")
    results = [emulated(x, "bfloat16", byte=byte)[:2] for byte in FILLS]
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@emu
@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("tile_n", [64, 128])
def test_no_bank_of_shared_memory_is_hit_twice(dtype, tile_n):
    x = make_scores(TILE_M, 128, dtype)
    *_, machine = emulated(x, dtype, "aligned", tile_n=tile_n)
    counts = machine.bank_conflicts
    assert {count.site.op[:10] for count in counts} == {"load_share", "store_shar"}
    assert [str(count) for count in counts if count.wavefronts > count.ideal] == []


@emu
def test_in_place():
    x = make_scores(TILE_M + 2, 70, "float16")
    array = place(x, "float16", "aligned")
    lse = np.full(len(x), np.nan, np.float32)
    with emulate() as machine:
        run_row_softmax(array, array, lse, tile_m=TILE_M, target="emulator")
    assert machine.hazards == []
    assert_row_softmax(array, lse, x, "float16")


@emu
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("col", [0, 69])
def test_what_is_no_score_spoils_its_row_and_no_other(bad, col):
    x = make_scores(TILE_M, 70, "bfloat16")
    expected, expected_lse, _ = emulated(x, "bfloat16")
    x[6, col] = bad
    out, lse, _ = emulated(x, "bfloat16")
    others = np.arange(TILE_M) != 6
    assert np.isnan(out[6].astype(np.float32)).all()
    assert np.isnan(lse[6])
    np.testing.assert_array_equal(out[others], expected[others])
    np.testing.assert_array_equal(lse[others], expected_lse[others])


@emu
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_is_the_reference(dtype):
    """The same tiles in the same order: only the order of the sums of a tile is another."""
    x = make_scores(TILE_M + 3, 2 * TILE_N + 7, dtype)
    out, lse, _ = emulated(x, dtype)
    told, told_lse = row_softmax(x, tile_m=TILE_M, tile_n=TILE_N)
    assert_same(out, lse, told, told_lse, x, dtype)


# --------------------------------------------------------------------------------------- errors


def arguments(dtype=np.float32, rows=4, cols=8):
    return [np.zeros((rows, cols), dtype), np.zeros((rows, cols), dtype), np.zeros(rows, "f4")]


@pytest.mark.parametrize(
    ("position", "value", "error", "message"),
    [
        (0, np.zeros((4, 8), np.float64), TypeError, "x has dtype float64; accepted are float32,"),
        (0, np.zeros(4, np.float32), ValueError, r"x has shape \(4,\); accepted is \(rows, cols\)"),
        (0, np.zeros((4, 16), np.float32)[:, ::2], ValueError, r"x has strides \(64, 8\);"),
        (1, np.zeros((4, 8), np.float16), TypeError, "out has dtype float16; accepted is float32"),
        (1, np.zeros((4, 9), np.float32), ValueError, r"out has shape \(4, 9\);"),
        (2, np.zeros(5, np.float32), ValueError, r"lse has shape \(5,\); accepted is \(4,\)"),
        (2, np.zeros(8, np.float32)[::2], ValueError, r"lse has strides \(8,\);"),
    ],
)
def test_wrong_arrays_are_refused(position, value, error, message):
    arrays = arguments()
    arrays[position] = value
    with pytest.raises(error, match=message):
        run_row_softmax(*arrays, target="emulator")


def test_one_kernel_for_one_configuration():
    config = RowSoftmaxConfig("float16", 32, 64)
    kernel = make_row_softmax(config)
    assert kernel is make_row_softmax(RowSoftmaxConfig("float16", 32, 64))
    assert kernel.num_threads == 64
    assert kernel.smem_bytes == 32 * 64 * 2
    assert kernel.key == config


# ------------------------------------------------------------------------------------- compilers

TARGETS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_120")
# Every target with every dtype; accesses by elements once for each dtype.
COMPILED = [(target, dtype, 16) for target in TARGETS for dtype in ITEMSIZE]
COMPILED += zip(("sm_75", "sm_90", "sm_120"), ITEMSIZE, ITEMSIZE.values(), strict=True)


@pytest.mark.compile
@pytest.mark.skipif(sys.platform == "darwin", reason="NVIDIA's compilers need Linux or Windows")
@pytest.mark.parametrize(("target", "dtype", "vector_bytes"), COMPILED)
def test_compiled(target, dtype, vector_bytes):
    kernel = make_row_softmax(RowSoftmaxConfig(dtype, vector_bytes=vector_bytes))
    compiled = compile_kernel(kernel, target)
    assert float64_lines(compiled.ptx) == []
    report = resources(kernel, compiled, sass=True)
    assert report.problems() == []
    assert report.stack == report.spill_stores == report.spill_loads == 0
    assert report.shared_bytes == 64 * 64 * ITEMSIZE[dtype] <= report.shared_limit

    def count(*parts):
        """Instructions whose dotted names have all these parts; older GPUs insert some."""
        return sum(n for name, n in report.sass.items() if set(parts) <= set(name.split(".")))

    assert (count("LDG", "128") > 0) == (count("STG", "128") > 0) == (vector_bytes == 16)
    assert count("STS", "128") > 0
    assert count("LDS", "128") > 0
    # One barrier for each in the source.
    assert count("BAR", "SYNC") == 4
    # An exponential for each of 32 elements, in both passes, and one for the scale of two rows.
    assert count("MUFU", "EX2") == 32 + 32 + 2
    # Two for each maximum and each sum of two rows.
    assert count("SHFL", "BFLY") == 8
    # Before sm_80 bfloat16 is rounded with integers.
    assert (count("F2FP", "BF16") > 0) == (dtype == "bfloat16" and target != "sm_75")


# ------------------------------------------------------------------------------------------- GPU


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FA_NUMBA_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


class OnDevice:
    """A matrix on the device in a layout of the host's, in memory that is NaN everywhere else.

    Moved as integers, which every CuPy can do with every dtype.
    """

    def __init__(self, cp, shape, dtype, kind="contiguous"):
        rows, cols = shape
        pitch = pitch_of(cols, dtype, kind)
        self.dtype = DTYPES[dtype]
        self.memory = cp.full(rows * pitch + 1, -1, f"i{self.dtype.itemsize}")
        self.integers = cut(self.memory, rows, cols, pitch, kind)
        self.array = self.integers.view(self.dtype)

    def get(self):
        return self.integers.get().view(self.dtype)

    def num_written(self):
        return int((self.memory != -1).sum())


def to_device(cp, x, dtype, kind="contiguous"):
    matrix = OnDevice(cp, x.shape, dtype, kind)
    matrix.integers[...] = cp.asarray(np.ascontiguousarray(x).view(matrix.memory.dtype))
    return matrix


def on_gpu(test):
    """Mark a test that runs on a GPU, with a cache of its own."""
    return pytest.mark.gpu(pytest.mark.usefixtures("cache")(test))


@on_gpu
@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("cols", [0, 1, 63, 64, 65, 127, 4099])
def test_on_the_gpu(cp, dtype, kind, rows, cols):
    x = make_scores(rows, cols, dtype, seed=rows + cols)
    out, lse = OnDevice(cp, x.shape, dtype, kind), cp.full(rows, np.nan, np.float32)
    run_row_softmax(to_device(cp, x, dtype, kind).array, out.array, lse)
    assert_row_softmax(out.get(), lse.get(), x, dtype)
    # Between the rows nothing is written.
    assert out.num_written() == rows * cols


@on_gpu
@pytest.mark.parametrize("dtype", ITEMSIZE)
@pytest.mark.parametrize(("tile_m", "tile_n"), [(16, 64), (128, 128), (32, 256)])
def test_other_tiles_on_the_gpu(cp, dtype, tile_m, tile_n):
    x = make_scores(300, 700, dtype)
    out, lse = OnDevice(cp, x.shape, dtype), cp.full(300, np.nan, np.float32)
    run_row_softmax(to_device(cp, x, dtype).array, out.array, lse, tile_m=tile_m, tile_n=tile_n)
    assert_row_softmax(out.get(), lse.get(), x, dtype)


@on_gpu
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_the_gpu_and_the_emulator_agree(cp, dtype):
    x = make_scores(TILE_M + 3, 2 * TILE_N + 7, dtype)
    told, told_lse, _ = emulated(x, dtype, "aligned")
    out, lse = OnDevice(cp, x.shape, dtype, "aligned"), cp.full(len(x), np.nan, np.float32)
    matrix = to_device(cp, x, dtype, "aligned")
    run_row_softmax(matrix.array, out.array, lse, tile_m=TILE_M, tile_n=TILE_N)
    assert_same(out.get(), lse.get(), told, told_lse, x, dtype)


@on_gpu
@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_in_a_graph(cp, dtype):
    """Captured once, replayed on other numbers."""
    x, other = (make_scores(130, 200, dtype, seed) for seed in (1, 2))
    matrix, out = to_device(cp, x, dtype), OnDevice(cp, x.shape, dtype)
    lse = cp.full(len(x), np.nan, np.float32)
    run_row_softmax(matrix.array, out.array, lse)
    cp.cuda.runtime.deviceSynchronize()
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        run_row_softmax(matrix.array, out.array, lse)
        graph = stream.end_capture()
        for scores in (x, other):
            matrix.integers[...] = to_device(cp, scores, dtype).integers
            out.memory.fill(-1)
            lse.fill(np.nan)
            graph.launch(stream)
            stream.synchronize()
            assert_row_softmax(out.get(), lse.get(), scores, dtype)


@on_gpu
def test_the_same_bits_every_time(cp):
    matrix = to_device(cp, make_scores(1000, 777, "float32"), "float32")
    results = []
    for _ in range(3):
        out, lse = OnDevice(cp, (1000, 777), "float32"), cp.full(1000, np.nan, np.float32)
        run_row_softmax(matrix.array, out.array, lse)
        results.append((out.get(), lse.get()))
    for out, lse in results[1:]:
        np.testing.assert_array_equal(out, results[0][0])
        np.testing.assert_array_equal(lse, results[0][1])


@on_gpu
@pytest.mark.parametrize("sign", [1, -1])
def test_offsets_beyond_32_bits(cp, sign):
    """Rows so far apart that neither elements nor bytes between them fit 32 bits."""
    rows, cols = 4, 70
    row_stride = 3 * 2**28 + 8
    needed = 2 * rows * row_stride * 2
    free, _ = cp.cuda.runtime.memGetInfo()
    if free < needed + 2**30:
        pytest.skip(f"needs {needed / 2**30:.1f} GiB of GPU memory")
    x = make_scores(rows, cols, "float16")
    array, out = (
        cp.empty(rows * row_stride, np.float16).reshape(rows, row_stride)[::sign, :cols]
        for _ in range(2)
    )
    array[...] = cp.asarray(x)
    out.fill(np.nan)
    lse = cp.full(rows, np.nan, np.float32)
    run_row_softmax(array, out, lse)
    assert_row_softmax(out.get(), lse.get(), x, "float16")
    del array, out
    cp.get_default_memory_pool().free_all_blocks()


@on_gpu
def test_a_launch_by_hand(cp):
    """With the kernel, the grid and the arguments, as a kernel of one's own is launched."""
    x = make_scores(100, 300, "bfloat16")
    matrix, out = to_device(cp, x, "bfloat16"), OnDevice(cp, x.shape, "bfloat16")
    lse = cp.full(100, np.nan, np.float32)
    kernel = make_row_softmax(RowSoftmaxConfig("bfloat16", vector_bytes=2))
    launch(kernel, 2, (matrix.array, out.array, lse, 100, 300, 300, 300))
    assert_row_softmax(out.get(), lse.get(), x, "bfloat16")
