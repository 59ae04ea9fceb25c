"""WrongAnswerError answers to the exercises of notebook 02, each with one mistake."""

from __future__ import annotations

from typing import Any

import numpy as np

from fa_numba.exercises.checker import Mutant
from fa_numba.exercises.online_softmax_solutions import lse, merge

__all__ = ["LSE_MUTANTS", "MERGE_MUTANTS", "TILED_ROW_MUTANTS", "UPDATE_MUTANTS"]

INF = float("inf")


def _update(row_max: float, row_sum: float, scores: np.ndarray, **wrong: Any) -> Any:
    """Update with a named part done wrong; the mutants are made of it."""
    new_max = max(row_max, scores.max(initial=-np.inf))
    new_max = wrong.get("new_max", lambda *_: new_max)(row_max, scores)
    safe = 0.0 if new_max == -np.inf and not wrong.get("unsafe") else new_max
    scale = wrong.get("scale", lambda old, new: np.exp(old - new))(row_max, safe)
    shift = wrong.get("shift", lambda _: safe)(scores)
    return new_max, row_sum * scale + np.exp(scores - shift).sum()


UPDATE_MUTANTS = (
    Mutant(
        "keeps the old sum as it is",
        lambda m, s, x: _update(m, s, x, scale=lambda old, new: 1.0),
        "rescale the old sum",
    ),
    Mutant(
        "rescales by the inverse factor",
        lambda m, s, x: _update(
            m, s, x, scale=lambda old, new: np.exp(new - old) if old > -INF else 0.0
        ),
        "rescale the old sum",
    ),
    Mutant(
        "forgets the old maximum",
        lambda m, s, x: _update(m, s, x, new_max=lambda old, tile: tile.max()),
        "The maximum stays",
    ),
    Mutant(
        "measures new terms from the maximum of their own tile",
        lambda m, s, x: _update(m, s, x, shift=lambda tile: tile.max()),
        "not their own",
    ),
    Mutant(
        "starts the maximum at zero",
        lambda m, s, x: _update(max(m, 0.0) if m > -INF else m, s, x),
        "rescale the old sum",
    ),
    Mutant(
        "NaN when nothing has been seen",
        lambda m, s, x: _update(m, s, x, unsafe=True),
        "-inf - -inf",
    ),
    Mutant(
        "drops a tile of one score",
        lambda m, s, x: _update(m, s, x if len(x) > 1 else x[:0]),
        "tile of one score",
    ),
    Mutant(
        "exponentials without a shift",
        lambda m, s, x: (
            new := max(m, x.max()),
            (s * np.exp(m) + np.exp(x).sum()) / np.exp(new) if new > -INF else 0.0,
        ),
        "exp(1000) overflows",
    ),
)


def _weighted(out_a: Any, w_a: Any, out_b: Any, w_b: Any) -> Any:
    return (w_a[:, None] * out_a + w_b[:, None] * out_b) / (w_a + w_b)[:, None]


def _merge_shifted(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, *, guard: bool) -> Any:
    """Merge without the select; `guard` keeps two empty parts from making NaN."""
    top = np.maximum(lse_a, lse_b)
    if guard:
        top = np.where(top == -INF, 0.0, top)
    w_a, w_b = np.exp(lse_a - top), np.exp(lse_b - top)
    total = w_a + w_b
    safe = np.where(total > 0, total, 1.0) if guard else total
    out = (w_a[:, None] * out_a + w_b[:, None] * out_b) / safe[:, None]
    return out, top + np.log(total)


MERGE_MUTANTS = (
    Mutant(
        "takes the mean of the parts",
        lambda a, la, b, lb: ((a + b) / 2, merge(a, la, b, lb)[1]),
        "Weigh each part",
    ),
    Mutant(
        "adds the two lse",
        lambda a, la, b, lb: (merge(a, la, b, lb)[0], la + lb),
        "lse is",
    ),
    Mutant(
        "keeps the larger lse",
        lambda a, la, b, lb: (merge(a, la, b, lb)[0], np.maximum(la, lb)),
        "lse is",
    ),
    Mutant(
        "weighs by lse instead of exp(lse)",
        lambda a, la, b, lb: (_weighted(a, la, b, lb), merge(a, la, b, lb)[1]),
        "exp of its lse",
    ),
    Mutant(
        "swaps the weights",
        lambda a, la, b, lb: (merge(b, la, a, lb)[0], merge(a, la, b, lb)[1]),
        "exp of its lse",
    ),
    Mutant(
        "forgets to divide by the sum of the weights",
        lambda a, la, b, lb: (
            np.exp(la)[:, None] * a + np.exp(lb)[:, None] * b,
            merge(a, la, b, lb)[1],
        ),
        "then divide by the sum",
    ),
    Mutant(
        "exponentials without a shift",
        lambda a, la, b, lb: (
            _weighted(a, np.exp(la), b, np.exp(lb)),
            np.log(np.exp(la) + np.exp(lb)),
        ),
        "exp(900) overflows",
    ),
    Mutant(
        "NaN for two empty parts",
        lambda a, la, b, lb: _merge_shifted(a, la, b, lb, guard=False),
        "Two empty parts",
    ),
    Mutant(
        "multiplies the garbage of an empty part by zero",
        lambda a, la, b, lb: _merge_shifted(a, la, b, lb, guard=True),
        "0·NaN is NaN",
    ),
)


def _walk(q: Any, k: Any, v: Any, tile_n: int, **wrong: Any) -> Any:
    """Tiled attention with a named part done wrong; the mutants are made of it."""
    m, total, acc = -np.inf, 0.0, np.zeros(v.shape[1])
    stop = len(k) - len(k) % tile_n if wrong.get("drop_tail") else len(k)
    for start in range(0, stop, tile_n):
        s = k[start : start + tile_n] @ q * wrong.get("scale", 1 / np.sqrt(len(q)))
        new = 0.0 if wrong.get("no_max") else max(m, s.max())
        p, alpha = np.exp(s - new), np.exp(m - new) if m > -INF else 0.0
        if wrong.get("no_max"):
            alpha = 1.0
        total = total * alpha + p.sum()
        acc = acc * (1.0 if wrong.get("keep_acc") else alpha) + p @ v[start : start + tile_n]
        if wrong.get("divide_early"):
            acc = acc / total
        m = new
    return acc / (1.0 if wrong.get("divide_early") or wrong.get("never_divide") else total)


TILED_ROW_MUTANTS = (
    Mutant(
        "no scale",
        lambda q, k, v, t: _walk(q, k, v, t, scale=1.0),
        "sqrt(headdim)",
    ),
    Mutant(
        "divides by headdim instead of its root",
        lambda q, k, v, t: _walk(q, k, v, t, scale=1 / len(q)),
        "sqrt(headdim)",
    ),
    Mutant(
        "takes the scale from headdim_v",
        lambda q, k, v, t: _walk(q, k, v, t, scale=v.shape[1] ** -0.5),
        "headdim_v differs",
    ),
    Mutant(
        "never divides by the sum",
        lambda q, k, v, t: _walk(q, k, v, t, never_divide=True),
        "safe softmax",
    ),
    Mutant(
        "rescales the sum but not the output",
        lambda q, k, v, t: _walk(q, k, v, t, keep_acc=True),
        "the old output",
    ),
    Mutant(
        "divides after every tile",
        lambda q, k, v, t: _walk(q, k, v, t, divide_early=True),
        "divide at the end",
    ),
    Mutant(
        "drops the tail",
        lambda q, k, v, t: _walk(q, k, v, t, drop_tail=True),
        "the last tile has one row",
    ),
    Mutant(
        "exponentials without the maximum",
        lambda q, k, v, t: _walk(q, k, v, t, no_max=True),
        "subtract the running maximum",
    ),
    Mutant(
        "loads everything at once",
        lambda q, k, v, t: _walk(q, k, v, len(k)),
        "Loop over the tiles",
    ),
    Mutant(
        "turns k into an array",
        lambda q, k, v, t: _walk(q, np.asarray(k), np.asarray(v), t),
        "used the whole of k",
    ),
    Mutant(
        "two passes: the maximum first",
        lambda q, k, v, t: (
            max((k[i : i + t] @ q).max() for i in range(0, len(k), t)),
            _walk(q, k, v, t),
        )[1],
        "one pass is enough",
    ),
)

LSE_MUTANTS = (
    Mutant(
        "base 2",
        lambda s: lse(s) / np.log(2),
        "natural logarithm",
    ),
    Mutant(
        "the maximum alone",
        lambda s: s.max(axis=1, initial=-np.inf),
        "ln 8",
    ),
    Mutant(
        "forgets to add the maximum back",
        lambda s: lse(s) - s.max(axis=1, initial=-np.inf),
        "Sum over the keys",
    ),
    Mutant(
        "one number for the whole matrix",
        lambda s: np.log(np.exp(s).sum()),
        "shape",
    ),
    Mutant(
        "no shift",
        lambda s: np.log(np.exp(s).sum(axis=1)),
        "exp(1000) overflows",
    ),
    Mutant(
        "NaN for an empty row",
        lambda s: (
            (m := s.max(axis=1, initial=-np.inf)) + np.log(np.exp(s - m[:, None]).sum(axis=1))
        ),
        "no key at all",
    ),
    Mutant(
        "+inf for an empty row, as some libraries have it",
        lambda s: np.where(np.isneginf(lse(s)), np.inf, lse(s)),
        "no key at all",
    ),
    Mutant(
        "a maximum that needs a key",
        lambda s: (s.max(axis=1), lse(s))[1],
        "ValueError",
    ),
)
