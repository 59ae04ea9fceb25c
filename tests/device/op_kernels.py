"""Kernels that between them call every op, for the emulator, the compiler and the GPU alike.

Each writes its results to `out`, one column a result and one row a thread.
"""

from fa_numba.device import ops
from fa_numba.device.kernel import kernel
from fa_numba.device.ops import (
    add,
    add_fragments,
    bar_arrive,
    bar_sync,
    bar_warp_sync,
    bf16_high,
    bf16_low,
    block_index_x,
    block_index_y,
    block_index_z,
    block_size_x,
    block_size_y,
    block_size_z,
    element,
    ex2,
    exp2_rows,
    f16_high,
    f16_low,
    float_bits,
    float_from_bits,
    fma,
    fmax,
    fmin,
    fragment_bits,
    fragment_from_bits,
    from_bf16,
    from_f16,
    grid_size_x,
    grid_size_y,
    grid_size_z,
    lane,
    lg2,
    load_global_f32,
    load_global_u16,
    load_global_u32,
    load_global_u32x2,
    load_global_u32x4,
    load_shared_f32,
    load_shared_f32x2,
    load_shared_f32x4,
    load_shared_u16,
    load_shared_u32,
    load_shared_u32x2,
    load_shared_u32x4,
    mask_columns,
    mul,
    mul_fragments,
    pack_bf16,
    pack_f16,
    quad_max,
    quad_sum,
    rcp,
    row_max,
    row_sum,
    scale_rows,
    select_less,
    select_less_i32,
    shared_base,
    shuffle_idx_f32,
    shuffle_idx_u32,
    shuffle_xor_f32,
    shuffle_xor_u32,
    store_global_f32,
    store_global_u16,
    store_global_u32,
    store_global_u32x2,
    store_global_u32x4,
    store_shared_f32,
    store_shared_f32x2,
    store_shared_f32x4,
    store_shared_u16,
    store_shared_u32,
    store_shared_u32x2,
    store_shared_u32x4,
    subtract_i32,
    syncthreads,
    tanh,
    tanh_approx,
    thread_index_x,
    thread_index_y,
    thread_index_z,
    to_bf16,
    to_f16,
    with_element,
)
from fa_numba.device.types import float32, int32, out_ptr, ptr, uint32, uint64

THREADS = 64

SCALAR_RESULTS = [
    "ex2",
    "lg2",
    "rcp",
    "fma",
    "add",
    "mul",
    "fmax",
    "fmin",
    "select_less",
    "select_less_i32",
    "tanh",
    "tanh_approx",
    "float_from_bits",
]
"""Columns of `scalar`."""


@kernel(block=THREADS)
def scalar(x: ptr, out: out_ptr):
    """x: (3, 64) float32; out: (64, 13) float32, see `SCALAR_RESULTS`."""
    tid = thread_index_x()
    a = load_global_f32(x + 4 * tid, True)
    b = load_global_f32(x + 4 * (tid + 64), True)
    c = load_global_f32(x + 4 * (tid + 128), True)
    row = out + uint64(4 * 13 * tid)
    store_global_f32(row, ex2(a), True)
    store_global_f32(row + 4, lg2(a), True)
    store_global_f32(row + 8, rcp(a), True)
    store_global_f32(row + 12, fma(a, b, c), True)
    store_global_f32(row + 16, add(a, b), True)
    store_global_f32(row + 20, mul(a, b), True)
    store_global_f32(row + 24, fmax(a, b), True)
    store_global_f32(row + 28, fmin(a, b), True)
    store_global_f32(row + 32, select_less(a, b, c, 7.0), True)
    store_global_f32(row + 36, select_less_i32(subtract_i32(tid, 40), -8, a, b), True)
    store_global_f32(row + 40, tanh(a), True)
    store_global_f32(row + 44, tanh_approx(a), True)
    store_global_f32(row + 48, float_from_bits(float_bits(a) ^ uint32(0x80000000)), True)


@kernel(block=THREADS)
def convert(x: ptr, out: out_ptr):
    """x: (2, 64) float32; out: (64, 6) uint32: packed bf16, fp16, and four float32 unpacked."""
    tid = thread_index_x()
    low = load_global_f32(x + 4 * tid, True)
    high = load_global_f32(x + 4 * (tid + 64), True)
    row = out + uint64(24 * tid)
    bf16 = pack_bf16(low, high)
    f16 = pack_f16(low, high)
    store_global_u32(row, bf16, True)
    store_global_u32(row + 4, f16, True)
    store_global_f32(row + 8, bf16_low(bf16), True)
    store_global_f32(row + 12, bf16_high(bf16), True)
    store_global_f32(row + 16, f16_low(f16), True)
    store_global_f32(row + 20, f16_high(f16), True)


zeros_8 = ops.zeros(8)
full_8 = ops.full(8)


def store_8(place, fragment):
    """Write a fragment of 8 as two vectors of 16 bytes."""
    bits = fragment_bits(fragment)
    store_global_u32x4(place, (bits[0], bits[1], bits[2], bits[3]), True)
    store_global_u32x4(place + 16, (bits[4], bits[5], bits[6], bits[7]), True)


@kernel(block=THREADS)
def fragment(x: ptr, out: out_ptr, index: int32, scale: float32):
    """x: (64, 8) float16 pairs of small numbers; out: (64, 48) float32."""
    tid = thread_index_x()
    s = from_f16(load_global_u32x4(x + 16 * tid, True))
    row = out + uint64(4 * 48 * tid)
    store_8(row, scale_rows(s, 2.0, scale))
    m0, m1 = row_max(s)
    store_8(row + 32, exp2_rows(s, scale, quad_max(m0), quad_max(m1)))
    left, right = int32(2), int32(9)
    masked = mask_columns(s, 2 * (lane() % 4), left, right, int32(0), int32(4), -1.0)
    store_8(row + 64, masked)
    sums = row_sum(mul_fragments(s, add_fragments(s, full_8(scale))))
    changed = with_element(zeros_8(), index, element(s, index))
    store_8(row + 96, with_element(changed, 7 - index, quad_sum(sums[0])))
    store_8(row + 128, from_bf16(to_bf16(s)))
    back = from_f16(to_f16(scale_rows(s, sums[1], 3.0)))
    store_8(row + 160, fragment_from_bits(fragment_bits(back)))


@kernel(block=THREADS, smem_bytes=2048)
def memory(x: ptr, out: out_ptr, count: int32):
    """x: (64, 4) uint32; out: (64, 16) uint32. Threads pass data to each other's mirror image."""
    tid = thread_index_x()
    base = shared_base()
    mine = base + 16 * tid
    other = base + 16 * (63 - tid)
    row = out + uint64(64 * tid)
    valid = tid < count

    store_shared_u32x4(mine, load_global_u32x4(x + 16 * tid, valid))
    syncthreads()
    store_global_u32x4(row, load_shared_u32x4(other), True)
    syncthreads()

    pair = load_global_u32x2(x + 16 * tid, valid)
    store_shared_u32x2(mine, pair)
    store_shared_f32x2(mine + 8, (1.5, float32(tid)))
    bar_sync(1, 64)
    store_global_u32x2(row + 16, load_shared_u32x2(other), True)
    store_global_u32x2(row + 24, fragment_bits(load_shared_f32x2(other + 8)), True)
    bar_sync(2, 64)

    store_shared_u32(mine, load_global_u32(x + 16 * tid, valid))
    store_shared_f32(mine + 4, 0.25)
    store_shared_u16(mine + 8, load_global_u16(x + 16 * tid + 2, valid))
    syncthreads()
    store_global_u32(row + 32, load_shared_u32(other), True)
    store_global_f32(row + 36, load_shared_f32(other + 4), True)
    store_global_u32(row + 40, load_shared_u16(other + 8), True)
    store_global_u16(row + 44, 0x12345678, True)
    store_global_u16(row + 46, 0xFFFF, True)
    store_global_u32(row + 44, uint32(0), False)
    syncthreads()

    # One warp hands over to the other, and does not wait for it.
    store_shared_f32x4(mine, (1.0, 2.0, float32(tid), 4.0))
    if tid < 32:
        bar_arrive(3, 64)
        bar_warp_sync(0xFFFFFFFF)
        store_global_u32x4(row + 48, fragment_bits(load_shared_f32x4(base + 16 * (31 - tid))), True)
    else:
        bar_sync(3, 64)
        store_global_u32x4(row + 48, fragment_bits(load_shared_f32x4(other)), True)


@kernel(block=THREADS)
def shuffle(x: ptr, out: out_ptr):
    """x: (64,) float32; out: (64, 6) uint32 or float32."""
    tid = thread_index_x()
    value = load_global_f32(x + 4 * tid, True)
    row = out + uint64(24 * tid)
    store_global_f32(row, shuffle_xor_f32(value, 5), True)
    store_global_u32(row + 4, shuffle_xor_u32(tid, 31), True)
    store_global_f32(row + 8, shuffle_idx_f32(value, 3), True)
    store_global_u32(row + 12, shuffle_idx_u32(tid, (tid + 1) & 31), True)
    store_global_f32(row + 16, quad_max(value), True)
    store_global_f32(row + 20, quad_sum(value), True)


@kernel(block=(4, 2, 8))
def index(out: out_ptr):
    """out: (2, 3, 2, 64, 13) int32, by block in z, y, x."""
    x, y, z = thread_index_x(), thread_index_y(), thread_index_z()
    bx, by, bz = block_index_x(), block_index_y(), block_index_z()
    block = (bz * grid_size_y() + by) * grid_size_x() + bx
    thread = (z * block_size_y() + y) * block_size_x() + x
    row = out + uint64(4 * 13 * (64 * block + thread))
    store_global_u32(row, x, True)
    store_global_u32(row + 4, y, True)
    store_global_u32(row + 8, z, True)
    store_global_u32(row + 12, bx, True)
    store_global_u32(row + 16, by, True)
    store_global_u32(row + 20, bz, True)
    store_global_u32(row + 24, block_size_x(), True)
    store_global_u32(row + 28, block_size_y(), True)
    store_global_u32(row + 32, block_size_z(), True)
    store_global_u32(row + 36, grid_size_x(), True)
    store_global_u32(row + 40, grid_size_y(), True)
    store_global_u32(row + 44, grid_size_z(), True)
    store_global_u32(row + 48, lane(), True)


def make_gemm(dtype, transposed):
    """A kernel for out = acc + A B with A (32, k), B (k, 16) or its transpose, both in rows of 80.

    One block of two warps; x: A then B, 32-bit words; out: (64, 8) float32 in fragment order.
    """
    gemm = ops.gemm_simt(dtype)
    size = 4 if dtype == "float32" else 2
    words = 80 * size // 4

    def run(x: ptr, out: out_ptr, k: int32):
        tid = thread_index_x()
        base = shared_base()
        for i in range(tid, 2 * 32 * words, 64):
            store_shared_u32(base + 4 * i, load_global_u32(x + uint64(4 * i), True))
        syncthreads()
        a = base + (tid // 32) * 16 * 80 * size
        b = base + 32 * 80 * size
        acc = full_8(0.5)
        if transposed:
            acc = gemm(acc, a, 80 * size, size, b, size, 80 * size, k)
        else:
            acc = gemm(acc, a, 80 * size, size, b, 80 * size, size, k)
        store_8(out + uint64(32 * tid), acc)

    name = f"gemm_{dtype}_{'nt' if transposed else 'nn'}"
    smem_bytes = 2 * 32 * 80 * size
    return kernel(block=THREADS, smem_bytes=smem_bytes, name=name, key=(dtype, transposed))(run)


GEMMS = {(d, t): make_gemm(d, t) for d in ("float32", "float16", "bfloat16") for t in (False, True)}

ALL = [scalar, convert, fragment, memory, shuffle, index, *GEMMS.values()]
