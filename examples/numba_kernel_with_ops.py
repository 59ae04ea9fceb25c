"""A kernel of your own, written for Numba, that uses the instructions of fa_numba.

`row_lse` is an ordinary ``@cuda.jit`` kernel: Numba's arrays and `cuda.grid`, launched by Numba.
From `fa_numba.device.ops` it takes what Numba does not offer: ex2 and lg2 as single instructions,
loads with a predicate, and reductions over the four lanes of a quad. An op is imported and called;
nothing has to be registered::

    python examples/numba_kernel_with_ops.py

With an NVIDIA GPU it runs the kernel and compares with NumPy; without one it compiles it and shows
the instructions.
"""

import math
import re
from collections import Counter

import numpy as np
from numba import cuda, float32

from fa_numba.device.ops import ex2, fmax, lg2, load_global_f32, quad_max, quad_sum

# NumPy's float32, since a plain Python float would make the arithmetic float64.
LOG2_E = np.float32(math.log2(math.e))
LN_2 = np.float32(math.log(2))
INF = np.float32(math.inf)

THREADS = 128
LANES_PER_ROW = 4


# [kernel]
@cuda.jit(device=True, inline="always")
def finite(x):
    """Return x, or 0 if it is infinite: ∞ − ∞ would be NaN."""
    return x if -INF < x < INF else float32(0)


@cuda.jit
def row_lse(x, lse):
    """Write the natural logarithm of the sum of exp over each row of x.

    Parameters
    ----------
    x : array
        (rows, cols) float32, any strides.
    lse : array
        (rows,) float32; −∞ for a row without columns or of −∞ only.
    """
    rows, cols = x.shape
    row, part = cuda.grid(1) // LANES_PER_ROW, cuda.grid(1) % LANES_PER_ROW
    address = x.ctypes.data + row * x.strides[0]

    # Each lane of a quad sums every fourth column, relative to the largest so far.
    row_max, row_sum = -INF, float32(0)
    for col in range(part, cols, LANES_PER_ROW):
        score = LOG2_E * load_global_f32(address + col * x.strides[1], row < rows)
        new_max = fmax(row_max, score)
        row_sum = row_sum * ex2(row_max - finite(new_max)) + ex2(score - finite(new_max))
        row_max = new_max

    # All lanes come here, those behind the last row too: a shuffle waits for the whole warp.
    shift = finite(quad_max(row_max))
    total = quad_sum(row_sum * ex2(row_max - shift))
    if part == 0 and row < rows:
        lse[row] = LN_2 * (shift + lg2(total))


# [launch]
def lse_on_gpu(x):
    """Return the log-sum-exp of each row.

    Parameters
    ----------
    x : device array
        (rows, cols) float32, of Numba or of any library with ``__cuda_array_interface__``.

    Returns
    -------
    device array
        (rows,) float32, of Numba.
    """
    rows = x.shape[0]
    lse = cuda.device_array(rows, np.float32)
    if rows:
        row_lse[-(-rows * LANES_PER_ROW // THREADS), THREADS](x, lse)
    return lse


# [compile]
def compile_for(compute_capability):
    """Return the kernel's PTX. It needs no GPU.

    Parameters
    ----------
    compute_capability : tuple of int
        Such as (8, 0).

    Returns
    -------
    str
    """
    signature = (cuda.types.float32[:, :], cuda.types.float32[:])
    ptx, _ = cuda.compile(
        row_lse.py_func, signature, cc=compute_capability, device=False, abi="numba"
    )
    return ptx


# [end]
def main():
    """Run the kernel, or compile it where there is no GPU."""
    if cuda.is_available():
        x = np.random.default_rng(0).standard_normal((1000, 77), dtype=np.float32)
        found = lse_on_gpu(cuda.to_device(x)).copy_to_host()
        error = np.abs(found - np.log(np.exp(x.astype(np.float64)).sum(axis=1))).max()
        print(f"largest difference from NumPy: {error:.1e}")
    else:
        names = re.findall(r"\b(?:ex2|lg2|shfl|ld\.global|max)\.[\w.]+", compile_for((8, 0)))
        print("no GPU here; compiled for sm_80:")
        for name, count in Counter(names).items():
            print(f"{count:4} {name}")


if __name__ == "__main__":
    main()
