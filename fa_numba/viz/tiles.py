"""Figures of tiles: which ones a mask leaves, and in which order they are visited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fa_numba.indexing.block_range import (
    ceil_div,
    get_m_block_min_max,
    get_n_block_min_max,
    get_unmasked_n_block_min_max,
    n_block_at,
    n_block_count,
)
from fa_numba.indexing.mask import is_allowed
from fa_numba.viz.style import COLORS, house_style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MASKED", "SKIPPED", "UNMASKED", "loop_order", "mask_tiles"]

SKIPPED, MASKED, UNMASKED = 0, 1, 2


@house_style
def mask_tiles(
    seqlen_q: int,
    seqlen_k: int,
    tile_m: int,
    tile_n: int,
    *,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
) -> tuple[Figure, dict[str, Any]]:
    """Draw a mask and the tiles a kernel visits, masks or skips because of it.

    Parameters
    ----------
    seqlen_q, seqlen_k, tile_m, tile_n : int
        Lengths and tile sizes; small ones make a readable picture.
    window_left, window_right, sink_token_length : int
        The mask; -1 is unlimited, causal is ``window_right=0``.

    Returns
    -------
    figure : matplotlib.figure.Figure
    data : dict
        "allowed" (bool, seqlen_q by seqlen_k), "state" (int, one a tile: `SKIPPED`, `MASKED` or
        `UNMASKED`).
    """
    mask = (seqlen_q, seqlen_k, window_left, window_right, sink_token_length)
    allowed = np.array(
        [[is_allowed(i, j, *mask) for j in range(seqlen_k)] for i in range(seqlen_q)], dtype=bool
    ).reshape(seqlen_q, seqlen_k)
    state = np.full((ceil_div(seqlen_q, tile_m), ceil_div(seqlen_k, tile_n)), SKIPPED)
    for m_block in range(len(state)):
        call = (m_block, tile_m, tile_n, *mask, 1, 0, 1)
        blocks = get_n_block_min_max(*call)
        for step in range(n_block_count(blocks)):
            state[m_block, n_block_at(blocks, step)] = MASKED
        n_min, n_max = get_unmasked_n_block_min_max(*call)
        state[m_block, n_min:n_max] = UNMASKED
    figure = _draw_mask_tiles(allowed, state, tile_m, tile_n)
    return figure, {"allowed": allowed, "state": state}


def _draw_mask_tiles(allowed: np.ndarray, state: np.ndarray, tile_m: int, tile_n: int) -> Figure:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch, Rectangle

    seqlen_q, seqlen_k = allowed.shape
    scale = 5.2 / max(seqlen_q, seqlen_k)
    figure, ax = new_figure(
        width=max(seqlen_k * scale, 2) + 2.6, height=max(seqlen_q * scale, 1.5) + 0.9
    )
    fills = {SKIPPED: "#FFFFFF", MASKED: COLORS["orange"], UNMASKED: COLORS["sky"]}
    colours = ListedColormap([fills[s] for s in (SKIPPED, MASKED, UNMASKED)])
    of_element = np.repeat(np.repeat(state, tile_m, axis=0), tile_n, axis=1)
    ax.imshow(of_element[:seqlen_q, :seqlen_k], cmap=colours, vmin=0, vmax=2, aspect="equal")
    rows, columns = np.nonzero(allowed)
    ax.scatter(columns, rows, s=(scale * 72 * 0.42) ** 2, color=COLORS["black"], marker="s")
    for m_block, n_block in np.ndindex(*state.shape):
        left, top = n_block * tile_n, m_block * tile_m
        width, height = min(tile_n, seqlen_k - left), min(tile_m, seqlen_q - top)
        ax.add_patch(
            Rectangle((left - 0.5, top - 0.5), width, height, fill=False, edgecolor=COLORS["grey"])
        )
    counts = {s: int((state == s).sum()) for s in fills}
    names = {
        UNMASKED: "visited, no mask needed",
        MASKED: "visited, masked",
        SKIPPED: "skipped",
    }
    handles = [
        Patch(facecolor=fills[s], edgecolor=COLORS["grey"], label=f"{name}: {counts[s]}")
        for s, name in names.items()
    ]
    handles.append(Patch(facecolor=COLORS["black"], label="allowed pair"))
    figure.legend(handles=handles, loc="outside right upper")
    ax.grid(visible=False)
    ax.set_xticks(range(0, seqlen_k, tile_n))
    ax.set_yticks(range(0, seqlen_q, tile_m))
    ax.set_xlabel("key j")
    ax.set_ylabel("query i")
    ax.set_title(f"Mask and tiles of {tile_m} x {tile_n}")
    return figure


@house_style
def loop_order(
    seqlen_q: int,
    seqlen_k: int,
    tile_m: int,
    tile_n: int,
    *,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
) -> tuple[Figure, dict[str, Any]]:
    """Draw the order in which FlashAttention-1 and -2 visit the tiles of the score matrix.

    Parameters
    ----------
    seqlen_q, seqlen_k, tile_m, tile_n, window_left, window_right, sink_token_length : int
        As in `mask_tiles`.

    Returns
    -------
    figure : matplotlib.figure.Figure
    data : dict
        "fa1" and "fa2": int arrays, one entry a tile, the step at which it is visited; -1 if it
        is skipped.
    """
    mask = (seqlen_q, seqlen_k, window_left, window_right, sink_token_length)
    n_m, n_n = ceil_div(seqlen_q, tile_m), ceil_div(seqlen_k, tile_n)
    data = {name: np.full((n_m, n_n), -1) for name in ("fa1", "fa2")}
    step = 0
    for n_block in range(n_n):
        for m_block in range(*get_m_block_min_max(n_block, tile_m, tile_n, *mask)):
            data["fa1"][m_block, n_block] = step
            step += 1
    step = 0
    for m_block in range(n_m):
        blocks = get_n_block_min_max(m_block, tile_m, tile_n, *mask, 1, 0, 1)
        for i in range(n_block_count(blocks)):
            data["fa2"][m_block, n_block_at(blocks, i)] = step
            step += 1

    figure, axes = new_figure(2, width=8.4, height=3.6, sharey=True)
    titles = {
        "fa1": "FA-1: one key tile, all query tiles.\nThe output goes to HBM and back",
        "fa2": "FA-2: one query tile, all key tiles.\nThe output stays on the chip",
    }
    for ax, name in zip(axes, ("fa1", "fa2"), strict=True):
        _draw_order(ax, data[name], titles[name])
    axes[0].set_ylabel("query tile (m_block)")
    return figure, data


def _draw_order(ax: Any, order: np.ndarray, title: str) -> None:
    drawn = np.where(order < 0, np.nan, order)
    ax.imshow(drawn, cmap="cividis", aspect="auto")
    middle = order.max() / 2
    for (m_block, n_block), step in np.ndenumerate(order):
        if step >= 0:
            color = "white" if step < middle else "black"
            ax.text(n_block, m_block, str(step), ha="center", va="center", color=color)
    path = np.argwhere(order >= 0)[np.argsort(order[order >= 0])]
    ax.plot(path[:, 1], path[:, 0], color="white", linewidth=0.8, alpha=0.5)
    ax.grid(visible=False)
    ax.set_xticks(range(order.shape[1]))
    ax.set_yticks(range(order.shape[0]))
    ax.set_xlabel("key tile (n_block)")
    ax.set_title(title)
