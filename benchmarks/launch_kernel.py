"""A kernel of 12 arguments for the launch benchmark: quick to run, of ordinary size to compile."""

from fa_numba.device import ops
from fa_numba.device.kernel import kernel
from fa_numba.device.types import float32, int32, out_ptr, ptr, uint64

zeros = ops.zeros(32)


def load_row(row, tid, valid):
    """Add up what a thread holds of a row of 16-bit pairs."""
    values = ops.from_bf16(ops.load_global_u32x4(row + uint64(16 * tid), valid))
    return ops.row_sum(values)


@kernel(block=128, smem_bytes=2048)
def twelve(
    a: ptr,
    b: ptr,
    c: ptr,
    d: ptr,
    e: ptr,
    f: ptr,
    g: ptr,
    out: out_ptr,
    rows: int32,
    columns: int32,
    stride: int32,
    scale: float32,
):
    """Sums of exponentials of seven inputs, some of them through shared memory."""
    tid = ops.thread_index_x()
    acc = zeros()
    base = ops.shared_base()
    for i in range(rows):
        at = uint64(stride) * uint64(i)
        valid = tid < columns
        ops.store_shared_u32x4(
            base + 16 * tid, ops.load_global_u32x4(a + at + uint64(16 * tid), valid)
        )
        ops.syncthreads()
        x0, x1 = ops.row_sum(ops.from_f16(ops.load_shared_u32x4(base + 16 * (127 - tid))))
        ops.syncthreads()
        y0, y1 = load_row(b + at, tid, valid)
        z0, z1 = load_row(c + at, tid, valid)
        acc = ops.exp2_rows(acc, scale, ops.quad_max(ops.fmax(x0, y0)), ops.fmax(x1, z1))
        u0, u1 = load_row(d + at, tid, valid)
        v0, v1 = load_row(e + at, tid, valid)
        acc = ops.mask_columns(acc, 2 * (tid % 4), 0, columns, 1, columns, 0.0)
        acc = ops.scale_rows(acc, ops.fma(u0, v0, z0), ops.fma(u1, v1, y1))
    s0, s1 = ops.row_sum(acc)
    t0, t1 = load_row(f, tid, True)
    w0, w1 = load_row(g, tid, True)
    total = ops.quad_sum(ops.fma(s0, t0, w0)) + ops.tanh(ops.fma(s1, t1, w1))
    ops.store_global_f32(out + uint64(4 * tid), total, True)
