"""A user's own Numba kernel with our ops: compiled everywhere, run where there is a GPU."""

import subprocess
import sys

import numba_kernel_with_ops
import numpy as np
import pytest
from numba import cuda
from numba_kernel_with_ops import compile_for, lse_on_gpu

from fa_numba.device.compile import cubin_of
from fa_numba.device.resources import float64_lines

has_gpu = cuda.is_available()


@pytest.mark.compile
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (12, 0)], ids=str)
def test_it_compiles_to_the_instructions_that_it_names(capability):
    ptx = compile_for(capability)
    for text in ("ex2.approx.ftz.f32", "lg2.approx.ftz.f32", "shfl.sync.bfly.b32", "ld.global"):
        assert text in ptx
    assert float64_lines(ptx) == []
    major, minor = capability
    _, log = cubin_of(ptx, f"sm_{major}{minor}")
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log


@pytest.mark.compile
def test_importing_the_ops_is_all_that_numba_needs():
    """In a process of its own, where nothing else has imported our compiler."""
    script = """
import sys
from numba import cuda
from fa_numba.device.ops import quad_sum
def kernel(x):
    x[0] = quad_sum(x[0])
assert "fa_numba.device.lowering" not in sys.modules
ptx, _ = cuda.compile(kernel, (cuda.types.float32[:],), cc=(8, 0), device=False, abi="numba")
print(ptx.count("shfl.sync.bfly"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr


@pytest.mark.compile
@pytest.mark.skipif(has_gpu, reason="with a GPU the script runs the kernel")
def test_the_script_shows_the_instructions(capsys):
    numba_kernel_with_ops.main()
    assert "shfl.sync.bfly.b32" in capsys.readouterr().out


def logsumexp(x):
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.max(x, axis=1, initial=-np.inf).astype(np.float64)
        shift = np.where(np.isfinite(top), top, 0)
        return shift + np.log(np.exp(x - shift[:, None]).sum(axis=1))


def cases():
    rng = np.random.default_rng(0)
    yield "plain", rng.standard_normal((37, 77), dtype=np.float32)
    yield "large", 1000 * rng.standard_normal((5, 130), dtype=np.float32)
    yield "one column", rng.standard_normal((33, 1), dtype=np.float32)
    yield "strided", rng.standard_normal((40, 90), dtype=np.float32)[::2, 1::3]
    x = rng.standard_normal((6, 11), dtype=np.float32)
    x[0], x[1, :9], x[2, 3] = -np.inf, -np.inf, np.inf
    yield "infinite", x
    yield "no columns", np.empty((3, 0), np.float32)
    yield "no rows", np.empty((0, 5), np.float32)


CASES = list(cases())


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu, reason="needs an NVIDIA GPU")
@pytest.mark.filterwarnings("ignore:.*Grid size")
@pytest.mark.parametrize(("name", "x"), CASES, ids=[name for name, _ in CASES])
def test_it_runs_on_the_gpu(name, x):
    if name == "strided":
        cupy = pytest.importorskip("cupy", reason="needs CuPy", exc_type=ImportError)
        base = cupy.zeros((40, 90), np.float32)
        on_gpu = base[::2, 1::3]
        on_gpu[...] = cupy.asarray(np.ascontiguousarray(x))
    else:
        on_gpu = cuda.to_device(x)
    found = lse_on_gpu(on_gpu).copy_to_host()
    expected = logsumexp(x)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu, reason="needs an NVIDIA GPU")
@pytest.mark.filterwarnings("ignore:.*Grid size")
def test_the_script_runs_the_kernel(capsys):
    numba_kernel_with_ops.main()
    error = capsys.readouterr().out.removeprefix("largest difference from NumPy: ")
    assert float(error) < 1e-5
