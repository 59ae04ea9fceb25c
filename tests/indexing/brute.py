"""Brute force for the tests of `fa_numba.indexing`: dense masks straight from the definition."""

import os

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

# Derandomised, so that a failure is the same everywhere. Mutation testing runs the suite hundreds
# of times: it asks for fewer examples, and a failing one need not be made small.
EXAMPLES = os.environ.get("FA_NUMBA_EXAMPLES")
thorough = settings(
    derandomize=True,
    deadline=None,
    max_examples=int(EXAMPLES or 300),
    phases=(Phase.explicit, Phase.generate) if EXAMPLES else tuple(Phase),
)

lengths = st.integers(0, 24)
tiles = st.integers(1, 8)
windows = st.integers(-1, 26)
sinks = st.one_of(st.just(0), st.integers(1, 26))
groups = st.integers(1, 4)


def dense_mask(seqlen_q, seqlen_k, window_left, window_right, sink_token_length):
    """Allowed (query, key) pairs, from the definition: bottom-right aligned window plus sinks."""
    i = np.arange(seqlen_q)[:, None]
    j = np.arange(seqlen_k)[None, :]
    diagonal = i + seqlen_k - seqlen_q
    allowed = np.ones((seqlen_q, seqlen_k), bool)
    if window_right >= 0:
        allowed &= j <= diagonal + window_right
    if window_left >= 0:
        allowed &= (j >= diagonal - window_left) | (j < sink_token_length)
    return allowed


def tiles_of(mask, tile_m, tile_n, reduce):
    """`reduce` (any or all) over each tile of a mask, existing entries only."""
    rows, cols = mask.shape
    return np.array(
        [
            [
                bool(reduce(mask[m : m + tile_m, n : n + tile_n].ravel()))
                for n in range(0, cols, tile_n)
            ]
            for m in range(0, rows, tile_m)
        ],
        bool,
    ).reshape(-(-rows // tile_m), -(-cols // tile_n))


def whole_tiles(mask, tile_m, tile_n):
    """Tiles whose existing rows attend every column, none of which lies past the last key."""
    whole = tiles_of(mask, tile_m, tile_n, np.all)
    if mask.shape[1] % tile_n:
        whole[:, -1] = False
    return whole
