"""Figures of what attention costs: rooflines, memory, traffic, and times on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fa_numba.models import (
    CHIPS,
    arithmetic_intensity,
    attention_hbm_traffic,
    attention_scratch_bytes,
    roofline_time,
)
from fa_numba.models.hbm import Algorithm
from fa_numba.viz.style import (
    COLORS,
    bytes_axis,
    format_bytes,
    house_style,
    new_figure,
    power_of_two_axis,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["hbm_traffic", "measured_cost", "memory_curve", "roofline", "unit_times"]

_CHIP_COLORS = {
    "A100": COLORS["grey"],
    "H100": COLORS["sky"],
    "H200": COLORS["blue"],
    "B200": COLORS["vermillion"],
}
_ALGORITHM_LABELS = {
    "standard": "standard",
    "fa1": "FlashAttention-1\n(keys outside)",
    "fa2": "FlashAttention-2\n(queries outside)",
    "minimal": "minimal",
}
_TENSOR_GROUPS = {
    "q, k, v read": ("q", "k", "v"),
    "S and P": ("s", "p"),
    "out": ("out",),
    "row statistics": ("row_max", "row_sum", "lse"),
}


@house_style
def roofline(
    points: Mapping[str, tuple[float, float]],
    *,
    chips: Sequence[str] = ("A100", "H100", "H200", "B200"),
) -> tuple[Figure, dict[str, Any]]:
    """Draw the rooflines of some chips and where some workloads stand under them.

    Parameters
    ----------
    points : mapping of str to (flops, hbm_bytes)
        The workloads.
    chips : sequence of str
        Keys of `fa_numba.models.CHIPS`.

    Returns
    -------
    figure : matplotlib.figure.Figure
    data : dict
        "intensity" (FLOP/byte, the x axis), "roof" (chip to FLOP/s along it), "ridge" (chip to
        FLOP/byte), "points" (workload to its intensity and its attainable FLOP/s on each chip).
    """
    intensity = np.geomspace(0.25, 16384, 400)
    data: dict[str, Any] = {"intensity": intensity, "roof": {}, "ridge": {}, "points": {}}
    for key in chips:
        chip = CHIPS[key]
        data["roof"][key] = np.minimum(intensity * chip.hbm_bandwidth, chip.tensor_flops)
        data["ridge"][key] = chip.ridge
    for label, (flops, hbm_bytes) in points.items():
        attainable = {
            key: flops / roofline_time(flops, hbm_bytes, CHIPS[key]).seconds for key in chips
        }
        x = arithmetic_intensity(flops, hbm_bytes)
        data["points"][label] = {"intensity": x, "attainable": attainable}

    figure, ax = new_figure(width=8.0, height=4.4)
    for key in chips:
        ax.loglog(intensity, data["roof"][key] / 1e12, color=_CHIP_COLORS[key], label=key)
        ax.plot(
            [data["ridge"][key]],
            [CHIPS[key].tensor_flops / 1e12],
            marker="v",
            markersize=6,
            color=_CHIP_COLORS[key],
        )
    top = max(CHIPS[key].tensor_flops for key in chips) / 1e12
    for label, point in data["points"].items():
        x = point["intensity"]
        ax.axvline(x, color=COLORS["black"], linewidth=0.8, linestyle=":")
        # The name goes where no roof passes: above a low point, below a high one.
        is_low = max(point["attainable"].values()) / 1e12 < top / 10
        ax.annotate(
            label,
            (x, top * 1.5 if is_low else 0.5),
            rotation=90,
            va="top" if is_low else "bottom",
            ha="right",
            fontsize=8.5,
            xytext=(-2, 0),
            textcoords="offset points",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
        )
        for key in chips:
            ax.plot(
                [x],
                [point["attainable"][key] / 1e12],
                marker="o",
                markersize=4.5,
                color=_CHIP_COLORS[key],
            )
    ax.set_ylim(0.4, top * 1.8)
    ax.set_xlim(intensity[0], intensity[-1])
    ax.set_xlabel("arithmetic intensity (FLOP / byte of HBM traffic)")
    ax.set_ylabel("attainable bf16 rate (TFLOP/s)")
    ax.set_title("Roofline: left of the ridge ▾ the memory decides, right of it the tensor cores")
    figure.legend(loc="outside right center")
    return figure, data


@house_style
def memory_curve(
    seqlens: Sequence[int], *, batch: int = 1, nheads: int = 32, bytes_per_element: int = 2
) -> tuple[Figure, dict[str, Any]]:
    """Draw the memory attention needs beside its inputs and output, against the length.

    Parameters
    ----------
    seqlens : sequence of int
        Lengths (queries and keys alike), powers of two.
    batch, nheads, bytes_per_element : int
        Shape of the call and size of one score.

    Returns
    -------
    figure : matplotlib.figure.Figure
    data : dict
        "seqlen", "standard" and "tiled" (bytes).
    """
    data: dict[str, Any] = {"seqlen": np.asarray(seqlens)}
    for algorithm in ("standard", "tiled"):
        data[algorithm] = np.array(
            [
                attention_scratch_bytes(
                    batch,
                    nheads,
                    n,
                    n,
                    bytes_per_element=bytes_per_element,
                    algorithm=algorithm,
                )
                for n in seqlens
            ]
        )
    figure, ax = new_figure()
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    labels = {"standard": "standard: S and P, ∝ N²", "tiled": "tiled: one tile and lse, ∝ N"}
    for algorithm, color, marker in (("standard", "vermillion", "s"), ("tiled", "blue", "o")):
        ax.plot(
            seqlens,
            data[algorithm],
            color=COLORS[color],
            marker=marker,
            label=labels[algorithm],
        )
    capacity = CHIPS["H200"].hbm_capacity
    ax.axhline(capacity, color=COLORS["grey"], linestyle="--", linewidth=1)
    ax.annotate(
        f"all the memory of an H200, {capacity / 1e9:.0f} GB",
        (seqlens[0], capacity),
        xytext=(0, 3),
        textcoords="offset points",
        color=COLORS["grey"],
        fontsize=8.5,
    )
    power_of_two_axis(ax.xaxis, seqlens)
    bytes_axis(ax.yaxis)
    ax.set_xlabel("sequence length N (tokens)")
    ax.set_ylabel("scratch memory (bytes)")
    ax.set_title(f"Scratch memory of {batch * nheads} heads, {8 * bytes_per_element}-bit scores")
    ax.legend(loc="center right")
    return figure, data


@house_style
def hbm_traffic(
    shape: tuple[int, int, int, int, int, int, int],
    *,
    bytes_per_element: int = 2,
    tile_m: int = 128,
    tile_n: int = 128,
    window_left: int = -1,
    window_right: int = -1,
    sink_token_length: int = 0,
    counted: Mapping[str, int] | None = None,
) -> tuple[Figure, dict[str, Any]]:
    """Draw the HBM traffic of one forward call under four algorithms, by tensor.

    Parameters
    ----------
    shape : tuple of int
        (batch, nheads, nheads_k, seqlen_q, seqlen_k, headdim, headdim_v).
    bytes_per_element, tile_m, tile_n, window_left, window_right, sink_token_length : int
        As in `fa_numba.models.attention_hbm_traffic`.
    counted : mapping of str to int, optional
        Bytes that a run really moved (`fa_numba.reference.tile_io.HbmCounter`), by algorithm:
        drawn as diamonds over the model's bars.

    Returns
    -------
    figure : matplotlib.figure.Figure
    data : dict
        Algorithm to {group of tensors: bytes}, and under "counted" the counted bytes.
    """
    data: dict[str, Any] = {"counted": dict(counted or {})}
    order: tuple[Algorithm, ...] = ("standard", "fa1", "fa2", "minimal")
    for algorithm in order:
        traffic = attention_hbm_traffic(
            *shape,
            bytes_per_element=bytes_per_element,
            algorithm=algorithm,
            tile_m=tile_m,
            tile_n=tile_n,
            window_left=window_left,
            window_right=window_right,
            sink_token_length=sink_token_length,
        )
        data[algorithm] = {
            group: sum(traffic.reads.get(name, 0) + traffic.writes.get(name, 0) for name in tensors)
            for group, tensors in _TENSOR_GROUPS.items()
        }

    figure, ax = new_figure()
    left = np.zeros(len(order))
    colors = (COLORS["blue"], COLORS["vermillion"], COLORS["green"], COLORS["orange"])
    for group, color in zip(_TENSOR_GROUPS, colors, strict=True):
        sizes = np.array([data[algorithm][group] for algorithm in order], dtype=float)
        ax.barh(range(len(order)), sizes, left=left, color=color, label=group, height=0.6)
        left += sizes
    for row, total in enumerate(left):
        ax.annotate(
            format_bytes(total),
            (total, row),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
        )
    if counted:
        rows = [list(_ALGORITHM_LABELS).index(name) for name in counted]
        ax.plot(
            list(counted.values()),
            rows,
            linestyle="none",
            marker="D",
            color=COLORS["black"],
            markersize=6,
            label="counted in a run",
        )
    ax.set_yticks(range(len(order)), [_ALGORITHM_LABELS[name] for name in order])
    ax.invert_yaxis()
    bytes_axis(ax.xaxis, top=left.max())
    ax.set_xlim(0, left.max() * 1.18)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("bytes through HBM in one forward call")
    ax.set_title(f"HBM traffic: {shape[3]} queries, {shape[4]} keys, tiles {tile_m} x {tile_n}")
    ax.legend(loc="lower right")
    return figure, data


@house_style
def unit_times(
    flops: float,
    hbm_bytes: float,
    exps: float,
    *,
    chips: Sequence[str] = ("A100", "H100", "H200", "B200"),
) -> tuple[Figure, dict[str, Any]]:
    """Draw how long each unit of each chip is busy with one piece of work.

    Parameters
    ----------
    flops, hbm_bytes, exps : float
        The work: tensor-core FLOPs, bytes through HBM, exponentials.
    chips : sequence of str
        Keys of `fa_numba.models.CHIPS`.

    Returns
    -------
    figure : matplotlib.figure.Figure
    data : dict
        Chip to {"tensor", "mufu", "hbm"}: seconds if that unit were alone.
    """
    data = {}
    for key in chips:
        time = roofline_time(flops, hbm_bytes, CHIPS[key], exps=exps)
        data[key] = {
            "tensor": time.tensor_seconds,
            "mufu": time.mufu_seconds,
            "hbm": time.hbm_seconds,
        }
    figure, ax = new_figure()
    units = (
        ("tensor", "tensor cores (matrix products)", "blue"),
        ("mufu", "MUFU (exponentials)", "vermillion"),
        ("hbm", "HBM (bytes)", "green"),
    )
    width = 0.26
    for column, (unit, label, color) in enumerate(units):
        x = np.arange(len(chips)) + (column - 1) * width
        heights = [data[key][unit] * 1e3 for key in chips]
        ax.bar(x, heights, width=width * 0.92, color=COLORS[color], label=label)
        if unit == "mufu":
            for at, key in zip(x, chips, strict=True):
                share = data[key]["mufu"] / data[key]["tensor"]
                ax.annotate(
                    f"{share:.0%}",
                    (at, data[key]["mufu"] * 1e3),
                    ha="center",
                    xytext=(0, 3),
                    textcoords="offset points",
                    fontsize=8.5,
                )
    ax.set_xticks(range(len(chips)), [CHIPS[key].name for key in chips])
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("chip")
    ax.set_ylabel("time if the unit were alone (ms)")
    ax.set_title("Asymmetric scaling: exponentials as a share of the matrix products' time")
    ax.legend(loc="upper right")
    return figure, data


@house_style
def measured_cost(
    rows: Sequence[Mapping[str, float]], *, title: str = "Measured on this machine"
) -> tuple[Figure, dict[str, Any]]:
    """Draw measured times and peak memories of dense and tiled attention against the length.

    Parameters
    ----------
    rows : sequence of mapping
        One measurement a length: "seqlen", "dense_seconds", "tiled_seconds", "dense_bytes",
        "tiled_bytes".
    title : str
        Title of the left panel.

    Returns
    -------
    figure : matplotlib.figure.Figure
    data : dict of str to ndarray
        The columns of `rows`.
    """
    names = ("seqlen", "dense_seconds", "tiled_seconds", "dense_bytes", "tiled_bytes")
    data = {name: np.array([row[name] for row in rows]) for name in names}
    figure, (left, right) = new_figure(2, width=8.6, height=3.4)
    for ax, quantity in ((left, "seconds"), (right, "bytes")):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=10 if quantity == "seconds" else 2)
        for kind, color, marker in (("dense", "vermillion", "s"), ("tiled", "blue", "o")):
            scale = 1e3 if quantity == "seconds" else 1
            ax.plot(
                data["seqlen"],
                data[f"{kind}_{quantity}"] * scale,
                color=COLORS[color],
                marker=marker,
                label=kind,
            )
        power_of_two_axis(ax.xaxis, [int(n) for n in data["seqlen"]])
        ax.set_xlabel("sequence length N (tokens)")
        ax.legend(loc="upper left")
    bytes_axis(right.yaxis)
    left.set_ylabel("time (ms)")
    right.set_ylabel("peak beside the inputs (bytes)")
    left.set_title(title)
    right.set_title("Peak memory (tracemalloc)")
    return figure, data
