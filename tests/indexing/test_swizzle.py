import pytest

from fa_numba.indexing.swizzle import num_wavefronts, swizzle

SPANS = (16, 32, 64, 128)


@pytest.mark.parametrize("span", SPANS)
def test_permutes_the_chunks_of_each_row_and_undoes_itself(span):
    addresses = range(2048)
    moved = [swizzle(a, span) for a in addresses]
    assert sorted(moved) == list(addresses)
    for a, b in zip(addresses, moved, strict=True):
        assert swizzle(b, span) == a
        assert b // span == a // span  # stays in its row
        assert b % 16 == a % 16  # chunks of 16 bytes stay whole


@pytest.mark.parametrize("span", [32, 64, 128])
def test_a_column_of_eight_rows_hits_no_bank_twice(span):
    for chunk in range(span // 16):
        for first_row in (0, 8, 24):
            column = [(first_row + r) * span + chunk * 16 for r in range(8)]
            # Rows of `span` bytes: 128 // span of them share the 32 banks without help.
            assert num_wavefronts(column, 16) == span // 16
            assert num_wavefronts([swizzle(a, span) for a in column], 16) == 1


@pytest.mark.parametrize("span", SPANS)
def test_a_row_stays_free_of_conflicts(span):
    row = [swizzle(5 * span + a, span) for a in range(0, span, 4)]
    assert num_wavefronts(row, 4) == 1


@pytest.mark.parametrize(
    ("address", "span", "expected"),
    [
        (0x000, 128, 0x000),
        (0x080, 128, 0x090),
        (0x3F4, 128, 0x384),
        (0x410, 128, 0x410),
        (0x180, 64, 0x1B0),
        (0x200, 64, 0x200),
        (0x080, 32, 0x090),
        (0x180, 32, 0x190),
        (0x100, 32, 0x100),
        (0x3FC, 16, 0x3FC),
    ],
)
def test_golden_addresses(address, span, expected):
    assert swizzle(address, span) == expected


@pytest.mark.parametrize(
    ("addresses", "access_bytes", "expected"),
    [
        ([], 4, 0),
        ([4 * i for i in range(32)], 4, 1),
        ([0] * 32, 4, 1),  # one word for all
        ([4 * (i // 2) for i in range(32)], 4, 1),
        ([8 * i for i in range(32)], 4, 2),
        ([128 * i for i in range(32)], 4, 32),
        ([132 * i for i in range(32)], 4, 1),  # the padding trick
        ([16 * i for i in range(32)], 16, 4),  # 512 bytes take four turns at best
        ([8 * i for i in range(32)], 8, 2),
        ([128 * i for i in range(8)], 16, 8),
        ([128 * i for i in range(16)], 16, 16),
        ([128 * (i % 2) + 16 * (i // 2) for i in range(8)], 16, 2),
        ([0] * 8 + [128 * i for i in range(3)], 16, 1 + 3),  # a last group of three lanes
        ([124, 252], 4, 2),  # the last bank counts as well
    ],
)
def test_wavefronts_golden_values(addresses, access_bytes, expected):
    assert num_wavefronts(addresses, access_bytes) == expected
