"""Exercises of notebook 02, the online softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from fa_numba.exercises.checker import (
    Answer,
    Exercise,
    WrongAnswerError,
    require_close,
    require_pair,
)
from fa_numba.exercises.online_softmax_mutants import (
    LSE_MUTANTS,
    MERGE_MUTANTS,
    TILED_ROW_MUTANTS,
    UPDATE_MUTANTS,
)
from fa_numba.exercises.online_softmax_solutions import lse, merge, online_update, tiled_row

__all__ = ["EXERCISES", "TileReader"]

INF = float("inf")


def _update_cases() -> list[tuple[float, float, np.ndarray, str]]:
    rng = np.random.default_rng(1)
    tile = rng.normal(size=13)
    masked = np.where(np.arange(13) % 3 == 0, -INF, tile)
    return [
        (-INF, 0.0, tile, "The first tile: the old sum is 0 and exp(-inf) is 0."),
        (
            9.0,
            2.5,
            tile,
            "The maximum stays, and new terms are measured from it, not their own.",
        ),
        (-9.0, 2.5, tile, "The maximum rises: rescale the old sum by exp(old max - new max)."),
        (0.5, 1.0, masked, "Scores of -inf are masked keys: they add exp(-inf) = 0."),
        (3.0, 4.0, np.full(5, -INF), "A tile that is masked whole changes nothing."),
        (-INF, 0.0, np.full(5, -INF), "Nothing seen yet: (-inf, 0). Beware of -inf - -inf."),
        (-50.0, 1.0, tile - 40, "All scores are negative: the maximum is below 0."),
        (995.0, 1.5, tile + 1000, "exp(1000) overflows: subtract the maximum before exp."),
        (1.0, 1.5, tile[:1], "A tile of one score is a tile."),
    ]


def _verify_online_update(answer: Answer) -> None:
    for row_max, row_sum, scores, hint in _update_cases():
        want_max, want_sum = online_update(row_max, row_sum, scores)
        result = answer(row_max, row_sum, scores.copy())
        got_max, got_sum = require_pair(result, names="(row_max, row_sum)")
        require_close(got_max, want_max, what="the new row_max", hint=hint)
        require_close(got_sum, want_sum, what="the new row_sum", hint=hint)


def _merge_cases() -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, str]]:
    rng = np.random.default_rng(2)
    rows, headdim_v = 5, 3
    out_a, out_b = rng.normal(size=(2, rows, headdim_v))
    lse_a, lse_b = rng.normal(size=(2, rows))
    empty = np.full(rows, -INF)
    some = np.where(np.arange(rows) % 2 == 0, -INF, lse_b)
    garbage = np.where(np.isinf(some)[:, None], np.nan, out_b)
    zero = np.zeros_like(out_a)
    return [
        (out_a, lse_a, out_b, lse_b, "Weigh each part by exp of its lse, then divide by the sum."),
        (out_a, lse_a, out_b, lse_a + 3, "The part with the larger lse weighs more."),
        (out_a, lse_a + 900, out_b, lse_b + 901, "exp(900) overflows: subtract the larger lse."),
        (out_a, lse_a - 900, out_b, lse_b - 901, "exp(-900) underflows: subtract the larger lse."),
        (out_a, lse_a, zero, empty, "An empty part (lse = -inf) leaves the other as it is."),
        (zero, empty, zero, empty, "Two empty parts make an empty one: out 0, lse -inf, no NaN."),
        (
            out_a,
            lse_a,
            garbage,
            some,
            "out of an empty part may be anything, and 0·NaN is NaN.",
        ),
    ]


def _verify_merge(answer: Answer) -> None:
    for *parts, hint in _merge_cases():
        want_out, want_lse = merge(*parts)
        result = answer(*(part.copy() for part in parts))
        got_out, got_lse = require_pair(result, names="(out, lse)")
        require_close(got_lse, want_lse, what="lse", hint=hint)
        require_close(got_out, want_out, what="out", hint=hint)


class TileReader:
    """An array that lives in HBM: it can be read by row slices of at most `tile` rows, once.

    The checker of "02_tiled_row" hands k and v over in this form, so that an answer which reads
    the whole array at once, or reads it twice, is noticed.
    """

    def __init__(self, array: np.ndarray, tile: int, name: str) -> None:
        self._array, self._tile, self._name = array, tile, name
        self._visits = np.zeros(len(array), dtype=int)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self._array.shape

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._array)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Return a copy of the rows of a slice, if the tile and the single pass allow it."""
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise WrongAnswerError(f"read {self._name} by row slices, {self._name}[start:stop]")
        start, stop, _ = rows.indices(len(self))
        if stop - start > self._tile:
            raise WrongAnswerError(
                f"you read {stop - start} rows of {self._name} at once; the fast memory holds "
                f"tile_n = {self._tile}. Loop over the tiles."
            )
        self._visits[start:stop] += 1
        if (self._visits > 1).any():
            raise WrongAnswerError(f"you read a row of {self._name} twice; one pass is enough.")
        return self._array[start:stop].copy()

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        """Refuse to be used whole."""
        raise WrongAnswerError(
            f"you used the whole of {self._name}; the fast memory holds tile_n = {self._tile} "
            f"rows. Loop over the tiles {self._name}[start:start + tile_n]."
        )


def _verify_tiled_row(answer: Answer) -> None:
    rng = np.random.default_rng(3)
    for seqlen_k, headdim, headdim_v, tile_n, gain, hint in (
        (4, 9, 9, 4, 1.0, "One tile: a safe softmax of q·k / sqrt(headdim), times v."),
        (4, 9, 5, 4, 1.0, "headdim_v differs: scale by 1 / sqrt(headdim), not headdim_v."),
        (
            12,
            9,
            5,
            4,
            1.0,
            "Several tiles: rescale the old sum and the old output; divide at the end.",
        ),
        (13, 9, 5, 4, 1.0, "13 keys in tiles of 4: the last tile has one row."),
        (37, 16, 7, 8, 4000.0, "Large scores: subtract the running maximum before exp."),
    ):
        q = gain * rng.normal(size=headdim)
        k = rng.normal(size=(seqlen_k, headdim))
        v = rng.normal(size=(seqlen_k, headdim_v))
        want = tiled_row(q, k, v, tile_n)
        got = answer(q.copy(), TileReader(k, tile_n, "k"), TileReader(v, tile_n, "v"), tile_n)
        require_close(got, want, what="out", hint=hint)


def _verify_lse(answer: Answer) -> None:
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(5, 11))
    masked = np.where(rng.random(scores.shape) < 0.4, -INF, scores)
    masked[2] = -INF
    for case, hint in (
        (np.zeros((3, 8)), "Eight equal scores of 0: lse = ln 8, the natural logarithm."),
        (scores, "Sum over the keys of a row, one number a row."),
        (scores + 1000, "exp(1000) overflows: subtract the maximum of the row, add it back."),
        (scores - 1000, "exp(-1000) underflows: subtract the maximum of the row, add it back."),
        (masked, "Row 2 has no key at all: its lse is -inf. Beware of -inf - -inf."),
        (np.zeros((2, 0)), "No keys: the sum is empty, lse is -inf."),
    ):
        require_close(answer(case.copy()), lse(case), what="lse", hint=hint)


EXERCISES = (
    Exercise(
        "02_online_update",
        _verify_online_update,
        online_update,
        UPDATE_MUTANTS,
        "Two numbers a row now stand for any number of keys.",
    ),
    Exercise(
        "02_lse",
        _verify_lse,
        lse,
        LSE_MUTANTS,
        "This one number a row is all that the backward pass and split-KV need to know.",
    ),
    Exercise(
        "02_merge",
        _verify_merge,
        merge,
        MERGE_MUTANTS,
        "Split-KV, ring attention and the KV cache all end in this function.",
    ),
    Exercise(
        "02_tiled_row",
        _verify_tiled_row,
        tiled_row,
        TILED_ROW_MUTANTS,
        "That is FlashAttention for one row. The rest is doing it fast.",
    ),
)
