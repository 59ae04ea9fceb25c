import numpy as np
import pytest

from fa_numba.indexing.fragment_layout import (
    a_operand_coord,
    a_operand_owner,
    acc_coord,
    acc_owner,
    b_operand_coord,
    b_operand_owner,
    warpgroup_acc_coord,
    warpgroup_acc_owner,
)

LANES = range(32)


@pytest.mark.parametrize(
    ("coord", "owner", "threads", "elements", "shape"),
    [
        (acc_coord, acc_owner, 32, 4, (16, 8)),
        (acc_coord, acc_owner, 32, 64, (16, 128)),
        (warpgroup_acc_coord, warpgroup_acc_owner, 128, 4, (64, 8)),
        (warpgroup_acc_coord, warpgroup_acc_owner, 128, 32, (64, 64)),
        (a_operand_coord, a_operand_owner, 32, 8, (16, 16)),
        (a_operand_coord, a_operand_owner, 32, 32, (16, 64)),
        (b_operand_coord, b_operand_owner, 32, 4, (16, 8)),
        (b_operand_coord, b_operand_owner, 32, 16, (64, 8)),
    ],
)
def test_each_matrix_element_has_one_owner(coord, owner, threads, elements, shape):
    held = {(t, e): coord(t, e) for t in range(threads) for e in range(elements)}
    assert sorted(held.values()) == list(np.ndindex(shape))
    for (thread, element), (i, j) in held.items():
        assert owner(i, j) == (thread, element)


def test_the_accumulator_is_the_next_a_operand():
    for lane in LANES:
        for element in range(64):
            assert a_operand_coord(lane, element) == acc_coord(lane, element)


@pytest.mark.parametrize(
    ("coord", "lane", "expected"),
    [
        # The figures of the PTX ISA for m16n8k16: lane 0, lane 5 (row group 1, thread 1), lane 31.
        (acc_coord, 0, [(0, 0), (0, 1), (8, 0), (8, 1)]),
        (acc_coord, 5, [(1, 2), (1, 3), (9, 2), (9, 3)]),
        (acc_coord, 31, [(7, 6), (7, 7), (15, 6), (15, 7)]),
        (
            a_operand_coord,
            5,
            [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)],
        ),
        (b_operand_coord, 5, [(2, 1), (3, 1), (10, 1), (11, 1)]),
        (b_operand_coord, 31, [(6, 7), (7, 7), (14, 7), (15, 7)]),
    ],
)
def test_golden_fragments(coord, lane, expected):
    assert [coord(lane, element) for element in range(len(expected))] == expected


def test_golden_warpgroup_rows():
    # Warp 2 of the warpgroup starts at row 32; the third group of 8 columns starts at element 8.
    assert warpgroup_acc_coord(64, 0) == (32, 0)
    assert warpgroup_acc_coord(64 + 5, 10) == (32 + 9, 16 + 2)
    assert warpgroup_acc_owner(63, 7) == (127, 3)


def test_a_row_lives_in_one_quad():
    for row in range(16):
        owners = {acc_owner(row, col)[0] for col in range(128)}
        quad = 4 * (row % 8)
        assert owners == {quad, quad + 1, quad + 2, quad + 3}
