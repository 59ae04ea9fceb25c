"""Cost models against counting by hand: masks drawn in full, tile walks done one tile at a time."""

import itertools

import numpy as np
import pytest

from fa_numba import models
from fa_numba.models import (
    CHIPS,
    allowed_pairs,
    arithmetic_intensity,
    attention_exps,
    attention_flops,
    attention_hbm_bytes,
    attention_hbm_traffic,
    attention_scratch_bytes,
    key_rows_read,
    query_rows_read,
    roofline_time,
)
from fa_numba.reference.flash_bwd import flash_bwd
from fa_numba.reference.flash_fwd import flash_fwd, flash_fwd_fa1
from fa_numba.reference.tile_io import HbmCounter

LENGTHS = [(1, 1), (1, 9), (9, 1), (7, 7), (13, 5), (5, 13), (16, 16), (11, 24)]
MASKS = [
    (-1, -1, 0),
    (-1, 0, 0),
    (3, 0, 0),
    (0, 3, 0),
    (0, 0, 0),
    (2, -1, 0),
    (4, 2, 0),
    (3, 0, 2),
    (0, 0, 5),
    (2, 1, 100),
    (100, 100, 3),
]


def dense_mask(seqlen_q, seqlen_k, left, right, sink):
    """The mask, pair by pair, from its definition."""
    query = np.arange(seqlen_q)[:, None] + seqlen_k - seqlen_q
    key = np.arange(seqlen_k)[None, :]
    allowed = np.ones((seqlen_q, seqlen_k), dtype=bool)
    if right >= 0:
        allowed &= key <= query + right
    if left >= 0:
        allowed &= (key >= query - left) | (key < sink)
    return allowed


def window(mask):
    return dict(zip(("window_left", "window_right", "sink_token_length"), mask, strict=True))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("mask", MASKS)
def test_allowed_pairs_is_the_number_of_ones_in_the_mask(lengths, mask):
    assert allowed_pairs(*lengths, **window(mask)) == dense_mask(*lengths, *mask).sum()


@pytest.mark.parametrize("lengths", [(0, 0), (0, 5), (5, 0)])
def test_no_rows_or_no_keys_make_no_pairs(lengths):
    for mask in MASKS:
        assert allowed_pairs(*lengths, **window(mask)) == 0


def test_allowed_pairs_of_a_million_tokens_is_exact():
    n = 1_000_000
    assert allowed_pairs(n, n, window_right=0) == n * (n + 1) // 2


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("tiles", [(4, 4), (3, 5), (16, 2)])
def test_tile_walks_read_the_tiles_that_hold_a_pair_and_no_others(lengths, mask, tiles):
    allowed = dense_mask(*lengths, *mask)
    tile_m, tile_n = tiles
    key_rows = query_rows = 0
    for m, n in itertools.product(range(0, lengths[0], tile_m), range(0, lengths[1], tile_n)):
        tile = allowed[m : m + tile_m, n : n + tile_n]
        if tile.any():
            query_rows += tile.shape[0]
            key_rows += tile.shape[1]
    assert key_rows_read(*lengths, *tiles, **window(mask)) == key_rows
    assert query_rows_read(*lengths, *tiles, **window(mask)) == query_rows


@pytest.mark.parametrize("group", [1, 2, 3, 5])
def test_packed_heads_share_a_tile_walk(group):
    seqlen_q, seqlen_k, tile_m, tile_n, mask = 11, 19, 4, 3, (5, 0, 0)
    packed = np.repeat(dense_mask(seqlen_q, seqlen_k, *mask), group, axis=0)
    expected = sum(
        packed[m : m + tile_m, n : n + tile_n].shape[1]
        for m in range(0, seqlen_q * group, tile_m)
        for n in range(0, seqlen_k, tile_n)
        if packed[m : m + tile_m, n : n + tile_n].any()
    )
    rows = key_rows_read(
        seqlen_q, seqlen_k, tile_m, tile_n, **window(mask), qhead_per_khead_packed=group
    )
    assert rows == expected


def test_flops_count_a_multiply_add_as_two_and_the_backward_as_five_products():
    assert attention_flops(2, 3, 5, 7, 11, 13) == 2 * 3 * 5 * 7 * (2 * 11 + 2 * 13)
    assert attention_flops(2, 3, 5, 7, 11, 13, backward=True) == 2 * 3 * 5 * 7 * 2 * (33 + 26)
    forward = attention_flops(1, 1, 64, 64, 8, 8)
    assert attention_flops(1, 1, 64, 64, 8, 8, backward=True) == 2.5 * forward


def test_flops_and_exps_follow_the_mask():
    mask = window((3, 1, 2))
    pairs = allowed_pairs(9, 12, **mask)
    assert attention_flops(2, 4, 9, 12, 8, 6, **mask) == 2 * 4 * pairs * 2 * (8 + 6)
    assert attention_exps(2, 4, 9, 12, **mask) == 2 * 4 * pairs


def counted(counter):
    return counter.reads, counter.writes


def operands(seqlen_q, seqlen_k, nheads, nheads_k, headdim=8, headdim_v=5, dtype=np.float32):
    rng = np.random.default_rng(7)
    return tuple(
        rng.normal(size=(2, seqlen, heads, dim)).astype(dtype)
        for seqlen, heads, dim in (
            (seqlen_q, nheads, headdim),
            (seqlen_k, nheads_k, headdim),
            (seqlen_k, nheads_k, headdim_v),
        )
    )


RUNS = pytest.mark.parametrize(
    ("lengths", "mask"),
    [
        ((33, 33), (-1, -1, 0)),
        ((33, 50), (-1, 0, 0)),
        ((50, 33), (-1, 0, 0)),
        ((40, 61), (9, 0, 3)),
        ((17, 64), (0, 5, 0)),
    ],
)


@RUNS
@pytest.mark.parametrize(("nheads", "nheads_k"), [(3, 3), (6, 2)])
def test_fa2_model_is_what_a_run_of_flash_fwd_moves(lengths, mask, nheads, nheads_k):
    """The reference keeps a group of heads in one tile: PackGQA with group x tile_m rows."""
    q, k, v = operands(*lengths, nheads, nheads_k)
    counter, group = HbmCounter(), nheads // nheads_k
    flash_fwd(q, k, v, softmax_scale=1.0, tile_m=8, tile_n=16, counter=counter, **window(mask))
    traffic = attention_hbm_traffic(
        2, nheads, nheads_k, *lengths, 8, 5,
        bytes_per_element=4, algorithm="fa2", tile_m=8 * group, tile_n=16, pack_gqa=True,
        **window(mask),
    )  # fmt: skip
    assert counted(counter) == traffic


def test_fa2_model_of_float16_is_what_a_run_moves():
    q, k, v = operands(33, 50, 2, 2, dtype=np.float16)
    out, counter = np.empty((2, 33, 2, 5), np.float16), HbmCounter()
    flash_fwd(q, k, v, softmax_scale=1.0, tile_m=8, tile_n=16, counter=counter, out=out)
    traffic = attention_hbm_traffic(
        2, 2, 2, 33, 50, 8, 5, bytes_per_element=2, algorithm="fa2", tile_m=8, tile_n=16
    )
    assert counted(counter) == traffic


@RUNS
@pytest.mark.parametrize(("nheads", "nheads_k"), [(3, 3), (6, 2)])
def test_fa1_model_is_what_a_run_of_flash_fwd_fa1_moves(lengths, mask, nheads, nheads_k):
    q, k, v = operands(*lengths, nheads, nheads_k)
    counter = HbmCounter()
    flash_fwd_fa1(q, k, v, softmax_scale=1.0, tile_m=8, tile_n=16, counter=counter, **window(mask))
    traffic = attention_hbm_traffic(
        2, nheads, nheads_k, *lengths, 8, 5,
        bytes_per_element=4, algorithm="fa1", tile_m=8, tile_n=16, **window(mask),
    )  # fmt: skip
    assert counted(counter) == traffic


@RUNS
@pytest.mark.parametrize(("nheads", "nheads_k"), [(3, 3), (6, 2)])
def test_fa2_backward_model_is_what_a_run_of_flash_bwd_moves(lengths, mask, nheads, nheads_k):
    q, k, v = operands(*lengths, nheads, nheads_k)
    out, lse = flash_fwd(q, k, v, softmax_scale=1.0, **window(mask))
    counter = HbmCounter()
    flash_bwd(
        out, q, k, v, out, lse,
        softmax_scale=1.0, tile_m=8, tile_n=16, counter=counter, **window(mask),
    )  # fmt: skip
    traffic = attention_hbm_traffic(
        2, nheads, nheads_k, *lengths, 8, 5,
        bytes_per_element=4, algorithm="fa2", tile_m=8, tile_n=16, backward=True, **window(mask),
    )  # fmt: skip
    assert counted(counter) == traffic


SHAPE = (2, 6, 3, 10, 14, 8, 5)  # batch, nheads, nheads_k, seqlen_q, seqlen_k, headdim, headdim_v


def test_minimal_traffic_is_every_input_and_output_once():
    q, k, v = 2 * 6 * 10 * 8, 2 * 3 * 14 * 8, 2 * 3 * 14 * 5
    out, lse = 2 * 6 * 10 * 5, 2 * 6 * 10
    total = attention_hbm_bytes(*SHAPE, bytes_per_element=2)
    assert total == 2 * (q + k + v + out) + 4 * lse
    backward = attention_hbm_bytes(*SHAPE, bytes_per_element=2, backward=True)
    assert backward == 2 * (2 * q + 2 * k + 2 * v + 2 * out) + 4 * lse


def test_float64_statistics_are_float64():
    traffic = attention_hbm_traffic(*SHAPE, bytes_per_element=8)
    assert traffic.writes["lse"] == 2 * 6 * 10 * 8


def test_standard_traffic_moves_the_score_matrix_four_times_and_seven_backward():
    scores = 2 * 6 * 10 * 14 * 2
    forward = attention_hbm_traffic(*SHAPE, bytes_per_element=2, algorithm="standard")
    assert forward.reads["s"] == forward.reads["p"] == scores
    assert forward.writes["s"] == forward.writes["p"] == scores
    backward = attention_hbm_traffic(
        *SHAPE, bytes_per_element=2, algorithm="standard", backward=True
    )
    square = [
        tensors[name] for tensors in backward for name in tensors if name in ("s", "p", "dp", "ds")
    ]
    assert sum(square) == 7 * scores


def test_standard_traffic_ignores_the_mask_and_fa2_does_not():
    shape = (1, 1, 1, 64, 64, 8, 8)
    for algorithm, ratio in (("standard", 1.0), ("fa2", 36 / 64)):
        full, causal = (
            attention_hbm_traffic(
                *shape,
                bytes_per_element=2,
                algorithm=algorithm,
                tile_m=8,
                tile_n=8,
                window_right=right,
            )
            for right in (-1, 0)
        )
        assert causal.reads["k"] == ratio * full.reads["k"]


def test_fa1_traffic_one_tile_at_a_time():
    """Algorithm 1 of the FlashAttention paper, walked with a pencil."""
    seqlen_q, seqlen_k, d, dv, tile_m, tile_n = 10, 14, 8, 5, 4, 6
    mask = (4, 1, 2)
    allowed = dense_mask(seqlen_q, seqlen_k, *mask)
    moved = seqlen_q * (dv * 2 + 2 * 4)  # out, row_max and row_sum are initialised in HBM
    for n in range(0, seqlen_k, tile_n):
        columns = allowed[:, n : n + tile_n]
        moved += columns.shape[1] * (d + dv) * 2
        for m in range(0, seqlen_q, tile_m):
            tile = columns[m : m + tile_m]
            if tile.any():
                moved += len(tile) * (d * 2 + 2 * (dv * 2 + 2 * 4))
    total = attention_hbm_bytes(
        1,
        1,
        1,
        seqlen_q,
        seqlen_k,
        d,
        dv,
        bytes_per_element=2,
        algorithm="fa1",
        tile_m=tile_m,
        tile_n=tile_n,
        **window(mask),
    )
    assert total == moved


def test_packing_the_heads_of_a_group_divides_the_reads_of_k_by_it():
    shape = (1, 8, 1, 16, 64, 8, 8)
    reads = [
        attention_hbm_traffic(
            *shape, bytes_per_element=2, algorithm="fa2", tile_m=128, tile_n=16, pack_gqa=pack
        ).reads["k"]
        for pack in (False, True)
    ]
    assert reads == [8 * 64 * 8 * 2, 64 * 8 * 2]


@pytest.mark.parametrize("backward", [False, True])
def test_algorithms_rank_as_the_papers_say_at_long_lengths(backward):
    sizes = [
        attention_hbm_bytes(
            1,
            1,
            1,
            4096,
            4096,
            64,
            64,
            bytes_per_element=2,
            algorithm=algorithm,
            tile_m=128,
            tile_n=128,
            backward=backward,
        )
        for algorithm in ("minimal", "fa2", "fa1", "standard")
    ]
    assert sizes[0] < sizes[1]
    assert sizes[0] < sizes[2] < sizes[3]
    if not backward:
        assert sizes[1] < sizes[2]


def test_unknown_algorithm_is_refused_by_name():
    with pytest.raises(ValueError, match="minimal, standard, fa1, fa2, got 'fa9'"):
        attention_hbm_bytes(*SHAPE, bytes_per_element=2, algorithm="fa9")
    with pytest.raises(ValueError, match="standard or tiled, got 'fa9'"):
        attention_scratch_bytes(1, 1, 8, 8, bytes_per_element=2, algorithm="fa9")


def test_scratch_grows_with_the_square_or_with_the_length():
    def scratch(n, algorithm):
        return attention_scratch_bytes(2, 4, n, n, bytes_per_element=2, algorithm=algorithm)

    assert scratch(1024, "standard") == 2 * 8 * 1024**2 * 2
    assert scratch(2048, "standard") == 4 * scratch(1024, "standard")
    assert scratch(1024, "tiled") == 8 * (1024 * 4 + 128 * 128 * 2)
    assert scratch(2048, "tiled") - scratch(1024, "tiled") == 8 * 1024 * 4


def test_intensity_and_its_edges():
    assert arithmetic_intensity(300, 100) == 3
    assert arithmetic_intensity(0, 0) == 0
    assert arithmetic_intensity(1, 0) == float("inf")


def test_chips_agree_with_themselves():
    """tensor_flops = SMs x FLOPs a clock x clock; FLOPs a clock and SM is a power of two."""
    for name, flops_per_clock in {"A100": 2048, "H100": 4096, "H200": 4096, "B200": 8192}.items():
        chip = CHIPS[name]
        peak = chip.n_sm * flops_per_clock * chip.tensor_clock
        assert peak == pytest.approx(chip.tensor_flops, rel=2e-3)
        assert "NVIDIA" in chip.source


def test_roofline_takes_the_slowest_resource():
    chip = CHIPS["H100"]
    tensor = roofline_time(chip.tensor_flops, 0, chip)
    assert (tensor.seconds, tensor.bound) == (1.0, "tensor")
    hbm = roofline_time(chip.tensor_flops, 2 * chip.hbm_bandwidth, chip)
    assert (hbm.seconds, hbm.bound, hbm.tensor_seconds) == (2.0, "hbm", 1.0)
    mufu = roofline_time(chip.tensor_flops, chip.hbm_bandwidth, chip, exps=3 * chip.exp_rate)
    assert (mufu.seconds, mufu.bound) == (3.0, "mufu")


def test_exponentials_take_half_the_time_of_the_matrix_products_on_h100_and_all_of_it_on_b200():
    """The feeds and speeds of the FlashAttention-3 and -4 papers, head dimension 128."""
    flops = attention_flops(1, 16, 8192, 8192, 128, 128)
    exps = attention_exps(1, 16, 8192, 8192)
    ratio = {}
    for name, chip in CHIPS.items():
        time = roofline_time(flops, 0, chip, exps=exps)
        ratio[name] = time.mufu_seconds / time.tensor_seconds
    assert ratio["H100"] == pytest.approx(0.5, rel=1e-3)
    assert ratio["B200"] == pytest.approx(1.0, rel=1e-2)


def test_the_package_exports_what_it_lists():
    for name in models.__all__:
        assert getattr(models, name) is not None
