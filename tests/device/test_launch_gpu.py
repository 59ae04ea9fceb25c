"""Launching on a real GPU: the same results as in the emulator, on the caller's stream."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fa_numba.device import launch as launching
from fa_numba.device import ops
from fa_numba.device.emulator import emulate
from fa_numba.device.kernel import kernel
from fa_numba.device.launch import launch
from fa_numba.device.resources import SHARED_MEMORY_LIMIT
from fa_numba.device.types import int32, out_ptr, ptr, uint64
from tests.device import op_kernels
from tests.device.test_launch import NUMBERS, store_numbers, words_of
from tests.device.test_ops_machine import gemm_inputs

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FA_NUMBA_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def on_both(cp, kernel, grid, *args):
    """Launch on both machines; return the last array from each."""
    arrays = [i for i, x in enumerate(args) if isinstance(x, np.ndarray)]
    out = arrays[-1]
    on_device = [cp.asarray(x) if i in arrays else x for i, x in enumerate(args)]
    launch(kernel, grid, on_device)
    with emulate() as machine:
        launch(kernel, grid, args, target="emulator")
    assert machine.hazards == []
    return on_device[out].get(), args[out]


# Relative error that the manual allows the instruction, and some for the emulation's own.
TOLERANCE = {"ex2": 5e-7, "lg2": 5e-7, "rcp": 3e-7, "tanh": 1e-6, "tanh_approx": 1e-3}


def test_scalar(cp):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((3, 64)) * 4).astype(np.float32)
    x[:, :8] = [0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1, 3e38]
    got, expected = on_both(cp, op_kernels.scalar, 1, x, np.zeros((64, 13), np.float32))
    for i, name in enumerate(op_kernels.SCALAR_RESULTS):
        tolerance = TOLERANCE.get(name, 0)
        np.testing.assert_allclose(got[:, i], expected[:, i], tolerance, tolerance, err_msg=name)


def test_convert(cp):
    upper = np.random.default_rng(1).integers(0, 2**16, (2, 64), dtype=np.uint32) << np.uint32(16)
    edges = np.tile(np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 2, 3], np.uint32), 8)
    x = (upper | edges).view(np.float32)
    x[0, :2] = np.nan, 65520
    got, expected = on_both(cp, op_kernels.convert, 1, x, np.zeros((64, 6), np.uint32))
    assert np.array_equal(got[:, :2], expected[:, :2])
    floats = got[:, 2:].view(np.float32), expected[:, 2:].view(np.float32)
    assert np.array_equal(*floats, equal_nan=True)


def test_fragment(cp):
    pairs = np.random.default_rng(2).standard_normal((64, 8)).astype(np.float16).view(np.uint32)
    out = np.zeros((64, 6, 8), np.float32)
    got, expected = on_both(cp, op_kernels.fragment, 1, pairs, out, 5, 0.75)
    exact = [0, 2, 3, 4, 5]
    assert np.array_equal(got[:, exact], expected[:, exact])
    np.testing.assert_allclose(got[:, 1], expected[:, 1], 1e-6)


@pytest.mark.parametrize("count", [64, 40])
def test_memory(cp, count):
    x = np.random.default_rng(3).integers(1, 2**32, (64, 4), dtype=np.uint32)
    args = (x, np.zeros((64, 16), np.uint32), count)
    assert np.array_equal(*on_both(cp, op_kernels.memory, 1, *args))


def test_shuffle(cp):
    x = np.random.default_rng(4).standard_normal(64).astype(np.float32)
    assert np.array_equal(*on_both(cp, op_kernels.shuffle, 1, x, np.zeros((64, 6), np.uint32)))


def test_index(cp):
    out = np.zeros((2, 3, 2, 64, 13), np.int32)
    assert np.array_equal(*on_both(cp, op_kernels.index, (2, 3, 2), out))


@pytest.mark.parametrize("k", [0, 27])
@pytest.mark.parametrize(("dtype", "transposed"), op_kernels.GEMMS)
def test_gemm(cp, dtype, transposed, k):
    *_, x = gemm_inputs(dtype, transposed, k, integers=False)
    out = np.zeros((64, 8), np.float32)
    got, expected = on_both(cp, op_kernels.GEMMS[dtype, transposed], 1, x, out, k)
    np.testing.assert_allclose(got, expected, 5e-6, 5e-6)


@pytest.mark.parametrize("numbers", NUMBERS)
def test_numbers_arrive(cp, numbers):
    out = cp.zeros(7, cp.uint32)
    launch(store_numbers, 1, [out, *numbers])
    assert out.get().tolist() == words_of(*numbers)


def test_wrong_arguments_are_refused(cp):
    out = cp.zeros(7, cp.uint32)
    with pytest.raises(TypeError, match=r"takes 6 arguments \(out, a, b, c, d, e\), got 1"):
        launch(store_numbers, 1, [out])
    with pytest.raises(TypeError, match=r"out is a numpy\.ndarray"):
        launch(store_numbers, 1, [np.zeros(7, np.uint32), 0, 0, 0, 0, 0.0])
    with pytest.raises(OverflowError, match="a is 2147483648"):
        launch(store_numbers, 1, [out, 2**31, 0, 0, 0, 0.0])
    with pytest.raises(ValueError, match=r"grid is \(3, 1, 1\); accepted are multiples of the"):
        launch(store_numbers, 3, [out, 0, 0, 0, 0, 0.0], cluster=2)
    launch(store_numbers, 0, [out, 1, 1, 1, 1, 1.0])
    assert (out.get() == 0).all()


@kernel(block=32)
def count_up(out: out_ptr, n: int32):
    """Add n to each of 32 numbers."""
    place = out + uint64(4 * ops.thread_index_x())
    ops.store_global_u32(place, ops.load_global_u32(place, True) + n, True)


def test_a_launch_goes_into_the_current_stream_and_waits_for_nothing(cp):
    """In a capture of the strict kind every call that waits or allocates fails."""
    out = cp.zeros(32, cp.uint32)
    launch(count_up, 1, [out, 1])
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture(cp.cuda.runtime.streamCaptureModeGlobal)
        for n in (10, 100):
            launch(count_up, 1, [out, n])
        graph = stream.end_capture()
    stream.synchronize()
    assert (out.get() == 1).all()
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    assert (out.get() == 331).all()


def test_a_stream_can_be_given(cp):
    from cuda.core import Device

    out = cp.zeros(32, cp.uint32)
    launch(count_up, 1, [out, 1])
    cp.cuda.Device().synchronize()
    theirs = cp.cuda.Stream(non_blocking=True)
    device = Device()
    device.set_current()
    ours = device.create_stream()
    launch(count_up, 1, [out, 10], stream=theirs.ptr)
    theirs.synchronize()
    launch(count_up, 1, [out, 100], stream=ours)
    ours.sync()
    launch(count_up, 1, [out, 1000], stream=0)
    assert (out.get() == 1111).all()


def test_much_shared_memory(cp):
    major, minor = divmod(int(cp.cuda.Device().compute_capability), 10)
    limit = SHARED_MEMORY_LIMIT[f"sm_{major}{minor}"]

    @kernel(block=64, smem_bytes=limit, key=limit)
    def far_end(x: ptr, out: out_ptr):
        tid = ops.thread_index_x()
        top = ops.shared_base() + limit - 4 - 4 * tid
        ops.store_shared_u32(top, ops.load_global_u32(x + uint64(4 * tid), True))
        ops.syncthreads()
        mirrored = ops.shared_base() + limit - 4 - 4 * (63 - tid)
        ops.store_global_u32(out + uint64(4 * tid), ops.load_shared_u32(mirrored), True)

    x = np.arange(1, 65, dtype=np.uint32)
    got, expected = on_both(cp, far_end, 1, x, np.zeros(64, np.uint32))
    assert np.array_equal(got, expected)
    assert np.array_equal(got, x[::-1])

    too_much = kernel(block=64, smem_bytes=limit + 4096, key="too much")(far_end.function)
    with pytest.raises(ValueError, match=f"needs {limit + 4096} bytes of shared memory"):
        launch(too_much, 1, [cp.asarray(x), cp.zeros(64, cp.uint32)])


def test_clusters(cp):
    if int(cp.cuda.Device().compute_capability) < 90:
        pytest.skip("needs compute capability 9.0")
    out = cp.zeros((4, 3, 1, 64, 13), cp.int32)
    launch(op_kernels.index, (2, 3, 2), [out], cluster=(2, 1, 2))
    expected = cp.zeros_like(out)
    launch(op_kernels.index, (2, 3, 2), [expected])
    assert (out == expected).all()


def test_threads_launch_side_by_side(cp):
    """Each with its own new kernel, which it loads first, and its own stream."""
    outs = [cp.zeros(32, cp.uint32) for _ in range(8)]
    cp.cuda.Device().synchronize()
    errors = []

    def work(number):
        try:
            own = kernel(block=32, name=f"own_{number % 3}")(count_up.function)
            with cp.cuda.Stream(non_blocking=True) as stream:
                for _ in range(100):
                    launch(own, 1, [outs[number], number])
                stream.synchronize()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[i]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [int(out[5]) for out in outs] == [100 * i for i in range(8)]


def test_a_device_has_its_own_handle(cp):
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    for device in (0, 1, 0):
        with cp.cuda.Device(device):
            out = cp.zeros(32, cp.uint32)
            launch(count_up, 1, [out, 5])
            assert (out.get() == 5).all()
    assert {(id(count_up), 0), (id(count_up), 1)} <= launching._loaded.keys()


IN_A_NEW_PROCESS = """
import sys
import cupy
from tests.device.op_kernels import shuffle
from fa_numba.device.launch import launch
x = cupy.arange(64, dtype=cupy.float32)
out = cupy.zeros((64, 6), cupy.uint32)
launch(shuffle, 1, [x, out])
print(int(out[0, 3]), "numba" in sys.modules)
"""


def test_with_the_cache_numba_is_not_imported(cp, tmp_path):
    env = {**os.environ, "FA_NUMBA_CACHE_DIR": str(tmp_path)}
    outputs = []
    for _ in range(2):
        command = [sys.executable, "-c", IN_A_NEW_PROCESS]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=env, cwd=ROOT
        )
        outputs.append(done.stdout.strip())
    assert outputs == ["1 True", "1 False"]


@pytest.mark.filterwarnings("ignore:.*Grid size")
def test_a_users_own_numba_kernel(cp):
    from numba import cuda

    @cuda.jit
    def own(x, out):
        i = cuda.grid(1)
        out[i] = ops.quad_max(ops.ex2(x[i]))

    x = cp.arange(64, dtype=cp.float32) % 8
    out = cp.zeros(64, cp.float32)
    own[2, 32](x, out)
    expected = (2 ** x.reshape(-1, 4)).max(1).repeat(4)
    assert cp.allclose(out, expected, 1e-6)
