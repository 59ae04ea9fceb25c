"""Solutions of notebook 02: the online softmax in four small functions."""

from __future__ import annotations

import numpy as np

__all__ = ["lse", "merge", "online_update", "tiled_row"]


def online_update(row_max: float, row_sum: float, scores: np.ndarray) -> tuple[float, float]:
    """Fold one tile of scores into the running maximum and the running sum."""
    new_max = max(row_max, scores.max(initial=-np.inf))
    if new_max == -np.inf:  # nothing seen yet that counts
        return -np.inf, 0.0
    return new_max, row_sum * np.exp(row_max - new_max) + np.exp(scores - new_max).sum()


def lse(scores: np.ndarray) -> np.ndarray:
    """Return ln Σ exp(scores) of each row, -inf for a row without keys."""
    row_max = scores.max(axis=1, initial=-np.inf)
    shift = np.where(row_max == -np.inf, 0.0, row_max)
    return shift + np.log(np.exp(scores - shift[:, None]).sum(axis=1))


def merge(
    out_a: np.ndarray, lse_a: np.ndarray, out_b: np.ndarray, lse_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Merge the attention over two disjoint sets of keys; an empty one has lse = -inf."""
    top = np.maximum(lse_a, lse_b)
    shift = np.where(top == -np.inf, 0.0, top)
    weight_a, weight_b = np.exp(lse_a - shift), np.exp(lse_b - shift)
    total = weight_a + weight_b
    out = np.zeros_like(out_a)
    for weight, part in ((weight_a, out_a), (weight_b, out_b)):
        share = weight / np.where(total > 0, total, 1.0)
        out += np.where(share[:, None] > 0, share[:, None] * part, 0.0)
    return out, shift + np.log(total)


def tiled_row(q: np.ndarray, k: np.ndarray, v: np.ndarray, tile_n: int) -> np.ndarray:
    """Attend with one query to keys and values that are read in tiles of tile_n rows."""
    row_max, row_sum, acc_o = -np.inf, 0.0, np.zeros(v.shape[1])
    for start in range(0, len(k), tile_n):
        scores = k[start : start + tile_n] @ q / np.sqrt(len(q))
        new_max = max(row_max, scores.max())
        p = np.exp(scores - new_max)
        row_scale = np.exp(row_max - new_max)
        row_sum = row_sum * row_scale + p.sum()
        acc_o = acc_o * row_scale + p @ v[start : start + tile_n]
        row_max = new_max
    return acc_o / row_sum
