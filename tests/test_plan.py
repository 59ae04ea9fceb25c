"""Plans and their explanation."""

import json

import numpy as np
import pytest

import fa_numba as fa
from fa_numba.plan import make_plan
from fa_numba.problem import make_problem
from fa_numba.reference.attention import allowed_keys

SHAPES = [
    ((2, 300, 6, 40), (2, 700, 3, 40), {}),
    ((1, 1000, 2, 64), (1, 1000, 2, 64), {"causal": True}),
    ((1, 900, 2, 64), (1, 700, 2, 64), {"causal": True}),
    ((1, 1500, 2, 64), (1, 1600, 1, 64), {"window_size": (300, 20), "sink_token_length": 5}),
    ((3, 1, 8, 64), (3, 3000, 2, 64), {"causal": True, "pack_gqa": True}),
    ((1, 0, 1, 8), (1, 5, 1, 8), {}),
]


@pytest.mark.parametrize(("q_shape", "k_shape", "flags"), SHAPES)
def test_tiles_and_flops_are_those_of_the_mask(q_shape, k_shape, flags):
    """The report's counts against a dense boolean mask."""
    report = fa.explain(q_shape, k_shape, "float16", **flags)
    mask_flags = {"causal": False, "window_size": (-1, -1), "sink_token_length": 0}
    mask_flags |= {name: value for name, value in flags.items() if name in mask_flags}
    allowed = allowed_keys(q_shape[1], k_shape[1], **mask_flags)
    batch, _, nheads, headdim = q_shape
    assert report.flops == 4 * batch * nheads * headdim * int(allowed.sum())

    plan = report.plan
    rows = np.repeat(allowed, nheads // k_shape[2] if plan.pack_gqa else 1, axis=0)
    tiles = [
        rows[m : m + plan.tile_m, n : n + plan.tile_n]
        for m in range(0, rows.shape[0], plan.tile_m)
        for n in range(0, rows.shape[1], plan.tile_n)
    ]
    assert report.tiles_total == len(tiles)
    assert report.tiles_visited == sum(bool(tile.any()) for tile in tiles)
    # The last column tile is masked too where keys end inside it.
    full = [tile for tile in tiles if tile.all() and tile.shape[1] == plan.tile_n]
    assert plan.tile_m % (nheads // k_shape[2] if plan.pack_gqa else 1) == 0
    assert report.tiles_masked == report.tiles_visited - len(full)


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "size", "out_size", "lse_size"),
    [
        ("float16", None, 2, 2, 4),
        ("float64", None, 8, 8, 8),
        ("float8_e4m3fn", None, 1, 2, 4),
        ("float8_e4m3fn", "float32", 1, 4, 4),
    ],
)
@pytest.mark.parametrize("flags", [{}, {"causal": True}, {"window_size": (3, 0)}])
def test_bytes_are_each_operand_once(dtype, out_dtype, size, out_size, lse_size, flags):
    report = fa.explain(
        (2, 30, 4, 16), (2, 50, 2, 16), dtype, headdim_v=8, out_dtype=out_dtype, **flags
    )
    operands = 2 * 30 * 4 * 16 + 2 * 50 * 2 * 16 + 2 * 50 * 2 * 8
    out, lse = 2 * 30 * 4 * 8, 2 * 4 * 30
    assert report.hbm_bytes == size * operands + out_size * out + lse_size * lse


def test_the_table_says_what_was_chosen():
    report = fa.explain(
        (1, 4000, 8, 64), (1, 4000, 2, 64), "bfloat16", window_size=(256, 0), sink_token_length=4,
        softcap=30.0, num_splits=3,
    )  # fmt: skip
    text = str(report)
    for part in (
        "reference (NumPy arrays", "seqlen_q 4000", "window (256, 0), bottom-right aligned, sink 4",
        "softcap 30", "num_splits 3", "softmax_scale 0.125", "bfloat16 -> bfloat16",
        f"{report.flops:,}", "for the sink and [", "  ...",
    ):  # fmt: skip
        assert part in text, part
    unmasked = fa.explain((1, 9, 1, 8), (1, 9, 1, 8), "float32")
    assert "causal (bottom-right aligned)" in str(
        fa.explain((1, 9, 1, 8), (1, 9, 1, 8), "float32", causal=True)
    )
    rows = dict(line.split(maxsplit=1) for line in str(unmasked).splitlines())
    assert rows["mask"] == "none"
    one_sided = fa.explain((1, 9, 1, 8), (1, 9, 1, 8), "float32", window_size=(3, -1))
    assert "window (3, unlimited)" in str(one_sided)


def test_as_dict_is_json():
    report = fa.explain((1, 40, 2, 8), (1, 40, 2, 8), "float32", causal=True)
    values = json.loads(json.dumps(report.as_dict()))
    assert values["plan"]["family"] == "reference"
    assert values["flops"] == report.flops
    assert values["problem"]["window_right"] == 0
    assert values["n_blocks"][0]["n_block_max"] == 1


def test_the_same_problem_gives_the_same_plan():
    def problem():
        return make_problem(
            layout="dense", batch=1, seqlen_q=1, seqlen_k=4096, nheads=8, nheads_k=1, headdim=64,
            headdim_v=64, dtype="float32", num_splits=0,
        )  # fmt: skip

    plan = make_plan(problem())
    assert plan == make_plan(problem())
    assert plan.num_splits == 1


def test_the_reason_says_who_chose():
    shape = (1, 8, 1, 8)
    assert "NumPy arrays" in fa.explain(shape, shape, "float32").plan.reason
    asked = fa.explain(shape, shape, "float32", backend="reference")
    assert "asked for" in asked.plan.reason
