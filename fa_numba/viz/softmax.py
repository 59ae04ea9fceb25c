"""Figures of the online softmax: its running statistics, its rescales, its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fa_numba.reference.softmax import LOG2_E, OnlineSoftmax
from fa_numba.viz.style import COLORS, house_style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["online_softmax_trace", "rescale_counts", "softmax_errors"]

_SERIES = ("blue", "vermillion", "green", "orange", "purple", "sky")
_MARKERS = ("o", "s", "^", "D", "v", "P")


def _walk(
    scores: NDArray[Any], tile_n: int, rescale_threshold: float
) -> tuple[list[dict[str, Any]], OnlineSoftmax]:
    """Feed rows of natural-log scores to the reference's online softmax, tile by tile."""
    state = OnlineSoftmax(scores.shape[:-1], np.float64, rescale_threshold=rescale_threshold)
    steps = []
    for start in range(0, scores.shape[-1], tile_n):
        with np.errstate(invalid="ignore"):  # -inf - -inf in a row that has seen no key yet
            p, row_scale = state.update(scores[..., start : start + tile_n] * LOG2_E)
        steps.append(
            {
                "row_max": state.row_max[..., 0] / LOG2_E,
                "row_sum": state.row_sum[..., 0],
                "row_scale": row_scale[..., 0],
                "largest_p": p.max(),
            }
        )
    return steps, state


@house_style
def online_softmax_trace(
    scores: ArrayLike, tile_n: int, *, rescale_threshold: float = 0.0
) -> tuple[Figure, dict[str, Any]]:
    """Draw what the online softmax keeps of one row, tile after tile.

    Parameters
    ----------
    scores : array_like, (seqlen_k,)
        Scores of one query, natural log; -inf for masked keys.
    tile_n : int
        Keys a tile.
    rescale_threshold : float, default 0
        τ, in units of log 2 as in `fa_numba.reference.softmax.OnlineSoftmax`: a new maximum that
        beats the old one by at most τ is ignored.

    Returns
    -------
    figure : matplotlib.figure.Figure
    data : dict
        "row_max", "row_sum", "row_scale" (one entry a tile) and the final "lse".
    """
    row = np.asarray(scores, dtype=np.float64)
    steps, state = _walk(row[None], tile_n, rescale_threshold)
    names = ("row_max", "row_sum", "row_scale")
    data: dict[str, Any] = {name: np.array([step[name][0] for step in steps]) for name in names}
    data["lse"] = float(state.finalize()[1][0])

    figure, (top, middle, bottom) = new_figure(nrows=3, height=5.4, sharex=True)
    edges = np.arange(len(steps) + 1) * tile_n
    keys = np.arange(len(row))
    top.plot(keys + 0.5, row, linestyle="none", marker=".", color=COLORS["grey"], label="score")
    top.stairs(data["row_max"], edges, baseline=None, color=COLORS["blue"], label="row_max")
    top.axhline(data["lse"], color=COLORS["black"], linewidth=1, linestyle=":", label="final lse")
    top.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    top.set_ylabel("score\n(natural log)")
    centers = edges[:-1] + tile_n / 2
    middle.bar(centers, data["row_sum"], width=tile_n * 0.8, color=COLORS["green"])
    middle.set_ylabel("row_sum")
    bottom.bar(centers, data["row_scale"], width=tile_n * 0.8, color=COLORS["orange"])
    for x, scale in zip(centers, data["row_scale"], strict=True):
        bottom.annotate(
            f"{scale:.2g}",
            (x, scale),
            ha="center",
            xytext=(0, 2),
            textcoords="offset points",
            fontsize=8,
        )
    bottom.set_ylim(0, 1.25)
    bottom.set_ylabel("row_scale")
    bottom.set_xlabel(f"key (tiles of {tile_n})")
    for ax in (top, middle, bottom):
        ax.set_xticks(edges)
        ax.grid(axis="y", visible=False)
    top.set_title("One row: a new maximum shrinks everything summed before it")
    return figure, data


@house_style
def rescale_counts(
    scores: Mapping[str, ArrayLike], tile_n: int, thresholds: Sequence[float]
) -> tuple[Figure, dict[str, Any]]:
    """Draw how many rescales a threshold τ leaves, and how large P grows for it.

    Parameters
    ----------
    scores : mapping of str to array_like, (rows, seqlen_k)
        Named sets of rows of scores, natural log.
    tile_n : int
        Keys a tile.
    thresholds : sequence of float
        Values of τ, in units of log 2; 0 should be among them.

    Returns
    -------
    figure : matplotlib.figure.Figure
    data : dict
        "thresholds", "updates" (name to the number of row-tiles after the first), "rescaled"
        (name to the number of rescales at each τ), "largest_p" (name to the largest entry of P).
    """
    data: dict[str, Any] = {
        "thresholds": np.asarray(thresholds, dtype=float),
        "updates": {},
        "rescaled": {},
        "largest_p": {},
    }
    for name, rows in scores.items():
        array = np.asarray(rows, dtype=np.float64)
        walks = [_walk(array, tile_n, threshold)[0] for threshold in thresholds]
        # The first tile has nothing to rescale: its row_scale of 0 meets an empty accumulator.
        data["updates"][name] = (len(walks[0]) - 1) * len(array)
        data["rescaled"][name] = np.array(
            [sum(int((step["row_scale"] < 1).sum()) for step in steps[1:]) for steps in walks]
        )
        data["largest_p"][name] = np.array(
            [max(step["largest_p"] for step in steps) for steps in walks]
        )

    figure, (left, right) = new_figure(2, width=8.6, height=3.5)
    for (name, rescaled), color, marker in zip(
        data["rescaled"].items(), _SERIES, _MARKERS, strict=False
    ):
        style = {"color": COLORS[color], "marker": marker, "markersize": 4.5}
        left.plot(thresholds, 100 * rescaled / data["updates"][name], label=name, **style)
        right.plot(thresholds, data["largest_p"][name], label=name, **style)
    right.plot(
        thresholds,
        np.exp2(data["thresholds"]),
        color=COLORS["black"],
        linestyle=":",
        label="bound $2^τ$",
    )
    for ax in (left, right):
        ax.axvline(8, color=COLORS["grey"], linestyle="--", linewidth=1)
        ax.set_xlabel("threshold τ (log 2; dashed: 8, as in FA-4)")
        ax.legend()
    left.set_ylim(bottom=0)
    left.set_ylabel("row-tiles that rescale (%)")
    left.set_title("Rescales that are left")
    right.set_yscale("log", base=2)
    right.set_ylabel("largest entry of P")
    right.set_title("The price: P above 1")
    return figure, data


@house_style
def softmax_errors(
    largest_score: ArrayLike, errors: Mapping[str, ArrayLike]
) -> tuple[Figure, dict[str, Any]]:
    """Draw the error of several ways to compute attention against the size of the scores.

    Parameters
    ----------
    largest_score : array_like, (n,)
        The largest score of each experiment, natural log.
    errors : mapping of str to array_like, (n,)
        Largest absolute error of the output, by method; NaN or infinity where the method broke
        down, drawn as a cross at the top.

    Returns
    -------
    figure : matplotlib.figure.Figure
    data : dict
        "largest_score", "errors" (as arrays), "broken" (name to bool array).
    """
    x = np.asarray(largest_score, dtype=float)
    curves = {name: np.asarray(values, dtype=float) for name, values in errors.items()}
    broken = {name: ~np.isfinite(values) for name, values in curves.items()}
    finite = np.concatenate([values[np.isfinite(values)] for values in curves.values()])
    ceiling = 4 * finite.max()

    figure, ax = new_figure(width=7.6)
    for (name, values), color, marker in zip(curves.items(), _SERIES, _MARKERS, strict=False):
        shown = np.where(broken[name], np.nan, values)
        ax.loglog(x, shown, color=COLORS[color], marker=marker, markersize=4.5, label=name)
        if broken[name].any():
            at = x[broken[name]]
            ax.plot(
                at, np.full(len(at), ceiling), linestyle="none", marker="x", color=COLORS[color]
            )
    if any(mask.any() for mask in broken.values()):
        ax.annotate(
            "× = NaN or infinity",
            (x[0], ceiling),
            va="center",
            fontsize=8.5,
            color=COLORS["grey"],
        )
    ax.set_xlabel("largest score of a row (natural log)")
    ax.set_ylabel("largest absolute error of out")
    ax.set_title("Error against float64")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure, {"largest_score": x, "errors": curves, "broken": broken}
