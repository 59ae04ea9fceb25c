import numpy as np
import pytest

from fa_numba.indexing.head_map import kv_head, pack_row, q_head, unpack_row


@pytest.mark.parametrize("nheads_k", [1, 2, 5])
@pytest.mark.parametrize("g", [1, 2, 3, 7, 8])
def test_heads_of_a_group_are_neighbours(nheads_k, g):
    # np.repeat is how a grouped call is expanded to plain multi-head attention.
    expected = np.repeat(np.arange(nheads_k), g).tolist()
    assert [kv_head(h, g) for h in range(nheads_k * g)] == expected
    heads = [q_head(khead, i, g) for khead in range(nheads_k) for i in range(g)]
    assert heads == list(range(nheads_k * g))


@pytest.mark.parametrize("g", [1, 2, 3, 8])
def test_packed_rows_are_a_reshape_of_query_and_head(g):
    seqlen_q = 5
    # Packing is (seqlen_q, g, headdim) -> (seqlen_q * g, headdim): NumPy's row-major order.
    rows = np.arange(seqlen_q * g).reshape(seqlen_q, g)
    for row in range(seqlen_q):
        for head in range(g):
            assert pack_row(row, head, g) == rows[row, head]
            assert unpack_row(int(rows[row, head]), g) == (row, head)
