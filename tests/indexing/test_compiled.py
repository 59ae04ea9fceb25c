"""The functions of `fa_numba.indexing` compile unchanged, for the host and for the GPU."""

import inspect
import itertools
import random
import sys
from collections.abc import Mapping
from types import FunctionType

import numba
import pytest
from numba import cuda

import fa_numba.indexing.bind
from fa_numba.indexing import (
    block_range,
    fast_divmod,
    fragment_layout,
    head_map,
    mask,
    page_table,
    seqlen_info,
    swizzle,
    tile_scheduler,
    varlen_scheduler,
)

pytestmark = pytest.mark.compile

MODULES = (
    block_range,
    fast_divmod,
    fragment_layout,
    head_map,
    mask,
    page_table,
    seqlen_info,
    swizzle,
    tile_scheduler,
    varlen_scheduler,
)

# Builds Python lists and sorts them with a key: the host prepares, kernels only read.
HOST_ONLY = {varlen_scheduler.varlen_params}


def products(*axes):
    return list(itertools.product(*axes))


def random_geometries(count, *tail):
    """(block, tile_m, tile_n, seqlen_q, seqlen_k, left, right, sink, *tail) drawn from ranges."""
    rng = random.Random(0)
    bounds = ((0, 5), (1, 8), (1, 8), (0, 24), (0, 24), (-1, 20), (-1, 20), (0, 20), *tail)
    return [tuple(rng.randint(*bound) for bound in bounds) for _ in range(count)]


RANGE = block_range.BlockRange(0, 2, 5, 9)
DIVISORS = (1, 2, 3, 7, 641, 2**30 + 1, 2**31 - 1)
LINEAR = tile_scheduler.linear_params(3, 4, 2, 2)
SECTIONED = tile_scheduler.sectioned_params(3, 5, 2, 2, 4, True)
WORK = tile_scheduler.WorkTile(1, 2, 3, 1, True)
VARLEN = varlen_scheduler.VarlenParams(
    4, True, (3, 0, 5, 1), (1, 1, 2, 1), (2, 4, 1, 3), (2, 0, 3, 1)
)
START = varlen_scheduler.VarlenCursor(0, 0)
INFO = seqlen_info.SeqlenInfo(3, 5, 7, 9, 2)

# Arguments to try, for every public function.
ARGUMENTS = {
    mask.normalize_window: products((False, True), (-3, 4, 2**31 - 1), (-1, 0, 9), (5,), (0, 8)),
    mask.col_limits: products(range(5), (5,), (0, 3, 9), (-1, 0, 2), (-1, 0, 2)),
    mask.row_limits: products(range(5), (0, 3, 9), (5,), (-1, 0, 2), (-1, 0, 2), (0, 3)),
    mask.is_allowed: products((-1, 0, 4, 9), (-1, 0, 2, 5), (9,), (5,), (-1, 2), (0, 1), (0, 1)),
    block_range.ceil_div: products(range(9), (1, 4)),
    block_range.num_m_blocks: products((1, 4), (0, 9), (1, 3)),
    block_range.query_limits: products(range(4), (4,), (9,), (1, 3)),
    block_range.split_range: products((RANGE,), range(4), (4,)),
    block_range.get_n_block_min_max: random_geometries(200, (1, 3), (0, 1), (2, 3)),
    block_range.get_unmasked_n_block_min_max: random_geometries(200, (1, 3), (0, 1), (2, 3)),
    block_range.n_block_count: [(RANGE,)],
    block_range.n_block_at: products((RANGE,), range(6)),
    block_range.get_m_block_min_max: random_geometries(200),
    block_range.get_unmasked_m_block_min_max: random_geometries(200),
    seqlen_info.clamp_span: products((-5, 0, 3, 2**31 - 1), (-5, 2, 9), (-1, 0, 4), (0, 8)),
    seqlen_info.dense_seqlen_info: [(3, 4)],
    seqlen_info.varlen_seqlen_info: [(3, 7, -1, 9, 4, 12, 3, 10)],
    seqlen_info.cache_seqlen_info: products((0, 3), (2,), (-1, 5, 20), (0, 2), (-1, 0, 9), (16,)),
    seqlen_info.key_slot: [(INFO, 4)],
    seqlen_info.padded_offset: products((0, 5, 70), (0, 3), (1, 64)),
    head_map.kv_head: products(range(8), (1, 3)),
    head_map.q_head: products(range(3), range(2), (1, 3)),
    head_map.unpack_row: products(range(8), (1, 3)),
    head_map.pack_row: products(range(3), range(2), (1, 3)),
    page_table.page_and_offset: products((0, 5, 300), (1, 16, 100)),
    page_table.num_pages: products((0, 5, 300), (1, 16, 100)),
    page_table.clamp_page: products((-(2**31), -1, 0, 3, 2**31 - 1), (1, 3)),
    fast_divmod.make_fast_divmod: products(DIVISORS),
    fast_divmod.fast_div: products(
        (0, 1, 640, 641, 2**31 - 1), map(fast_divmod.make_fast_divmod, DIVISORS)
    ),
    fast_divmod.fast_divmod: products(
        (0, 1, 640, 641, 2**31 - 1), map(fast_divmod.make_fast_divmod, DIVISORS)
    ),
    tile_scheduler.num_tiles: [(LINEAR,), (SECTIONED,)],
    tile_scheduler.next_tile_static: [(3, 4)],
    tile_scheduler.next_tile_dynamic: [(3, 4)],
    tile_scheduler.linear_params: products((0, 3), (4,), (2,), (1, 2)),
    tile_scheduler.linear_tile_of_index: products((LINEAR,), range(50)),
    tile_scheduler.heads_in_l2: products((2**20, 2**25), (0, 2**18, 2**30)),
    tile_scheduler.sectioned_params: products((0, 3), (5,), (2,), (2,), (4, 100), (False, True)),
    tile_scheduler.dynamic_persistent_params: [(8, 4, 2, 1, 2, 8192, 128, 64, 2)],
    tile_scheduler.single_tile_bwd_params: [(8, 16, 2, 4096, 128, 64, 2, True)],
    tile_scheduler.sectioned_tile_of_index: products((SECTIONED,), range(62)),
    tile_scheduler.fit_to_sequence: products((WORK,), (4,), (1, 2, 4), (1, 2), (False, True)),
    varlen_scheduler.varlen_nheads_in_l2: products((0, 3, 60), (0, 64), (1, 4), (8,)),
    varlen_scheduler.varlen_sort_key: products((3,), (10,), (128,), (64,), (False, True)),
    varlen_scheduler.varlen_seek: products((VARLEN,), (START,), range(62)),
    varlen_scheduler.varlen_num_tiles: [(VARLEN,)],
    varlen_scheduler.varlen_block_coord: products(range(9), (3,), (1, 3), (5,), (2,), (0, 1)),
    varlen_scheduler.varlen_tile_at: products((VARLEN,), (START,), range(4)),
    varlen_scheduler.varlen_tile_of_index: products((VARLEN,), range(62)),
    fragment_layout.acc_coord: products(range(32), range(9)),
    fragment_layout.acc_owner: products(range(16), range(20)),
    fragment_layout.warpgroup_acc_coord: products(range(0, 128, 7), range(9)),
    fragment_layout.warpgroup_acc_owner: products(range(64), range(9)),
    fragment_layout.a_operand_coord: products(range(32), range(17)),
    fragment_layout.a_operand_owner: products(range(16), range(20)),
    fragment_layout.b_operand_coord: products(range(32), range(9)),
    fragment_layout.b_operand_owner: products(range(20), range(8)),
    swizzle.swizzle: products((0, 0x80, 0x3F4, 0x184), (16, 32, 64, 128)),
    swizzle.num_wavefronts: [
        (tuple(128 * i for i in range(8)), 16),
        (tuple(8 * i for i in range(32)), 4),
    ],
}


def public_functions():
    return {
        function
        for module in MODULES
        for name, function in vars(module).items()
        if isinstance(function, FunctionType)
        and function.__module__ == module.__name__
        and not name.startswith("_")
    }


def test_every_public_function_is_listed_and_positional():
    assert public_functions() == ARGUMENTS.keys() | HOST_ONLY
    for function in public_functions():
        for parameter in inspect.signature(function).parameters.values():
            assert parameter.kind is parameter.POSITIONAL_OR_KEYWORD, function
            assert parameter.default is parameter.empty, function


@pytest.fixture(scope="module")
def on_host():
    """Functions compiled for the host, shared so that callees compile once."""
    bound: Mapping = {}
    return lambda function: fa_numba.indexing.bind.bind(function, numba.njit, bound)


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda f: f.__name__)
def test_compiled_for_the_host_it_gives_the_same_values(function, on_host):
    compiled = on_host(function)
    for arguments in ARGUMENTS[function]:
        expected = function(*arguments)
        got = compiled(*arguments)
        assert got == expected, arguments
        assert type(got) is type(expected)


def ptx_of(kernel, *argument_types):
    # Needs libNVVM and NVRTC, which the test extra brings, but no GPU and no driver.
    if sys.platform == "darwin":
        pytest.skip("NVIDIA's compiler libraries do not exist for macOS")
    ptx, _ = cuda.compile(kernel, numba.void(*argument_types), cc=(9, 0), device=False, abi="numba")
    return ptx


@pytest.fixture(scope="module")
def on_gpu():
    """Functions ready to be inlined in a kernel, the one form that needs no driver."""
    bound: Mapping = {}
    decorate = cuda.jit(device=True, inline="always")
    return lambda function: fa_numba.indexing.bind.bind(function, decorate, bound)


INTS = numba.int32[::1]


def assert_integer_kernel(ptx):
    """All code is in the kernel, and all of it is integer: float64 would be slow beyond reason."""
    assert ".target sm_90" in ptx
    assert ".visible .entry" in ptx
    assert "st.global" in ptx
    assert "call" not in ptx
    assert ".f64" not in ptx
    assert ".f32" not in ptx


def test_mask_and_forward_range_in_a_kernel(on_gpu):
    allowed = on_gpu(mask.is_allowed)
    n_range = on_gpu(block_range.get_n_block_min_max)
    unmasked = on_gpu(block_range.get_unmasked_n_block_min_max)
    count = on_gpu(block_range.n_block_count)
    block_at = on_gpu(block_range.n_block_at)

    def kernel(out, a):
        m = cuda.blockIdx.x
        r = n_range(m, 128, 64, a[0], a[1], a[2], a[3], a[4], 4, cuda.blockIdx.y, a[5])
        n_min, n_max = unmasked(m, 128, 64, a[0], a[1], a[2], a[3], a[4], 4, cuda.blockIdx.y, a[5])
        for i in range(count(r)):
            n = block_at(r, i)
            masked = n < n_min or n >= n_max
            if masked and allowed(m * 128, n * 64, a[0], a[1], a[2], a[3], a[4]):
                out[n] = 1

    ptx = ptx_of(kernel, INTS, INTS)
    assert_integer_kernel(ptx)
    # Tile sizes and group are constants here, so the only division left is the split's.
    assert ptx.count("div.") + ptx.count("rem.") <= 6


def test_backward_range_and_window_in_a_kernel(on_gpu):
    m_range = on_gpu(block_range.get_m_block_min_max)
    unmasked = on_gpu(block_range.get_unmasked_m_block_min_max)
    normalize = on_gpu(mask.normalize_window)

    def kernel(out, a):
        n = cuda.blockIdx.x
        left, right = normalize(True, a[2], a[3], a[0], a[1])
        m_min, m_max = m_range(n, 64, 128, a[0], a[1], left, right, a[4])
        u_min, u_max = unmasked(n, 64, 128, a[0], a[1], left, right, a[4])
        for m in range(m_min, m_max):
            out[m] = u_min <= m < u_max

    assert_integer_kernel(ptx_of(kernel, INTS, INTS))


@pytest.mark.parametrize("name", ["linear", "sectioned"])
def test_schedulers_in_a_kernel_without_a_division(on_gpu, name):
    params = {"linear": LINEAR, "sectioned": SECTIONED}[name]
    tile_of_index = on_gpu(getattr(tile_scheduler, f"{name}_tile_of_index"))
    next_tile = on_gpu(tile_scheduler.next_tile_static)

    def kernel(out, params):
        tile_idx = cuda.blockIdx.x
        work = tile_of_index(params, tile_idx)
        while work.valid:
            out[tile_idx] = work.block + work.head + work.batch + work.split_idx
            tile_idx = next_tile(tile_idx, cuda.gridDim.x)
            work = tile_of_index(params, tile_idx)

    ptx = ptx_of(kernel, INTS, numba.typeof(params))
    assert_integer_kernel(ptx)
    # The point of fast_divmod.
    assert "div." not in ptx
    assert "rem." not in ptx


def test_varlen_scheduler_in_a_kernel_reads_device_arrays(on_gpu):
    seek = on_gpu(varlen_scheduler.varlen_seek)
    tile_at = on_gpu(varlen_scheduler.varlen_tile_at)
    fit = on_gpu(tile_scheduler.fit_to_sequence)
    make_params = varlen_scheduler.VarlenParams
    make_cursor = varlen_scheduler.VarlenCursor

    def kernel(out, num_m_blocks, num_splits, nheads_in_l2, batch_order):
        params = make_params(8, True, num_m_blocks, num_splits, nheads_in_l2, batch_order)
        tile_idx = cuda.blockIdx.x
        cursor = seek(params, make_cursor(0, 0), tile_idx)
        work = tile_at(params, cursor, tile_idx)
        work = fit(work, 9, num_m_blocks[work.batch], num_splits[work.batch], True)
        out[tile_idx] = work.block + work.head + work.batch + work.split_idx

    assert_integer_kernel(ptx_of(kernel, INTS, INTS, INTS, INTS, INTS))


def test_layouts_pages_heads_and_lengths_in_a_kernel(on_gpu):
    coord = on_gpu(fragment_layout.warpgroup_acc_coord)
    owner = on_gpu(fragment_layout.a_operand_owner)
    b_coord = on_gpu(fragment_layout.b_operand_coord)
    swizzled = on_gpu(swizzle.swizzle)
    page = on_gpu(page_table.page_and_offset)
    clamp = on_gpu(page_table.clamp_page)
    unpack = on_gpu(head_map.unpack_row)
    kv_head = on_gpu(head_map.kv_head)
    lengths = on_gpu(seqlen_info.varlen_seqlen_info)
    slot_of = on_gpu(seqlen_info.key_slot)
    make_divmod = on_gpu(fast_divmod.make_fast_divmod)
    divmod_by = on_gpu(fast_divmod.fast_divmod)

    def kernel(out, cu, table):
        b = cuda.blockIdx.x
        info = lengths(cu[b], cu[b + 1], -1, 99, cu[b], cu[b + 1], -1, 99)
        row, col = coord(cuda.threadIdx.x, 3)
        lane, element = owner(row % 16, col)
        k, column = b_coord(lane, element)
        query, head = unpack(row, 4)
        page_idx, offset = page(slot_of(info, col), 16)
        quotient, remainder = divmod_by(cuda.threadIdx.x, make_divmod(cu[b]))
        place = swizzled(query * 128 + k * 2, 128) + clamp(table[page_idx], 9) * 16 + offset
        out[place] = kv_head(head, 4) + column + quotient + remainder

    assert_integer_kernel(ptx_of(kernel, INTS, INTS, INTS))
