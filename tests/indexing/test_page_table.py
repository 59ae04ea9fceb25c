import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_numba.indexing.page_table import clamp_page, num_pages, page_and_offset
from tests.indexing.brute import thorough


@pytest.mark.parametrize("page_size", [1, 4, 16, 64, 100, 256])
def test_slots_fill_page_after_page(page_size):
    slots = range(3 * page_size)
    expected = [(page, offset) for page in range(3) for offset in range(page_size)]
    assert [page_and_offset(slot, page_size) for slot in slots] == expected


@pytest.mark.parametrize("page_size", [1, 4, 7])
def test_num_pages_is_one_more_than_the_last_slots_page(page_size):
    assert num_pages(0, page_size) == 0
    for seqlen in range(1, 4 * page_size + 1):
        assert num_pages(seqlen, page_size) == page_and_offset(seqlen - 1, page_size)[0] + 1


@thorough
@given(st.integers(-(2**31), 2**31 - 1), st.integers(1, 2**31 - 1))
def test_clamp_page_is_a_page_of_the_pool(page, num_blocks):
    clamped = clamp_page(page, num_blocks)
    assert 0 <= clamped < num_blocks
    if 0 <= page < num_blocks:
        assert clamped == page


def test_clamp_page_examples():
    assert [clamp_page(page, 4) for page in (-(2**31), -1, 0, 3, 4, 2**31 - 1)] == [
        0, 0, 0, 3, 3, 3
    ]  # fmt: skip
