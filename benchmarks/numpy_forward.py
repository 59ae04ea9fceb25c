"""Time and memory of the forward on NumPy arrays, beside the dense formula in NumPy.

``python -m benchmarks.numpy_forward`` prints a table. The peer of every case is what one would
write without this library: two matrix products and a softmax in place, without a mask. It does the
work of all scores; a masked call of ours is measured against the same peer, because skipping
hidden tiles is the point.

The gate of a case is the ratio of best times that we promise. Nothing is asserted here: a busy
machine may miss a gate, and a table that says so is more useful than an exception.
"""

from __future__ import annotations

import argparse
import functools
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.rows import (
    Row,
    append_rows,
    environment,
    format_table,
    interleave,
    time_columns,
)
from fa_numba import flash_attn_func

PEER = "dense NumPy"
OURS = "flash_attn_func"


class Case(NamedTuple):
    """One shape, the flags of our calls on it, and the promised ratios."""

    name: str
    batch: int
    seqlen_q: int
    seqlen_k: int
    nheads: int
    nheads_k: int
    headdim: int
    calls: dict[str, dict[str, Any]]
    gates: dict[str, float]
    repeats: int

    def operands(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        shapes = (
            (self.batch, self.seqlen_q, self.nheads, self.headdim),
            (self.batch, self.seqlen_k, self.nheads_k, self.headdim),
            (self.batch, self.seqlen_k, self.nheads_k, self.headdim),
        )
        q, k, v = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
        return q, k, v

    @property
    def shape(self) -> str:
        return (
            f"batch={self.batch} seqlen_q={self.seqlen_q} seqlen_k={self.seqlen_k} "
            f"nheads={self.nheads} nheads_k={self.nheads_k} headdim={self.headdim}"
        )


def cases(*, quick: bool) -> list[Case]:
    long = 1024 if quick else 4096
    masks: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {"causal": True},
        "window (256, 0)": {"window_size": (256, 0)},
    }
    # The gates hold at 4096 only: at a quarter of that a window is a larger share of the keys.
    gates = {} if quick else {"full": 1.1, "causal": 0.6, "window (256, 0)": 0.15}
    return [
        Case("prefill", 1, long, long, 8, 8, 64, masks, gates, repeats=3),
        Case("short sentences", 32, 12, 12, 12, 12, 32, {"full": {}}, {}, repeats=30),
        Case("decode", 8, 1, long, 32, 8, 64, {"full": {}}, {}, repeats=10),
    ]


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention by the formula, as fast as plain NumPy does it: heads of a group share k and v."""
    batch, seqlen_q, nheads, headdim = q.shape
    nheads_k = k.shape[2]
    scaled = q.transpose(0, 2, 1, 3) * np.float32(headdim**-0.5)
    scaled = scaled.reshape(batch, nheads_k, nheads // nheads_k * seqlen_q, headdim)
    s = scaled @ k.transpose(0, 2, 3, 1)
    s -= s.max(axis=-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(axis=-1, keepdims=True)
    out = s @ v.transpose(0, 2, 1, 3)
    return out.reshape(batch, nheads, seqlen_q, headdim).transpose(0, 2, 1, 3)


def time_case(case: Case) -> list[Row]:
    operands = case.operands()
    contestants: dict[str, Callable[[], Any]] = {PEER: functools.partial(dense, *operands)}
    for name, flags in case.calls.items():
        contestants[name] = functools.partial(flash_attn_func, *operands, **flags)
    times = interleave(contestants, case.repeats)
    rows = []
    for name, values in times.items():
        gate = case.gates.get(name)
        columns = time_columns(values, times[PEER])
        rows.append(
            {
                "case": case.name,
                "shape": case.shape,
                "dtype": "float32",
                "contestant": PEER if name == PEER else OURS,
                "mask": "full" if name == PEER else name,
                **columns,
                "peak_mib": "",
                "gate": "" if gate is None else f"<= {gate}",
                "verdict": _verdict(float(columns["ratio"]), gate),
            }
        )
    return rows


def memory_rows(*, quick: bool) -> list[Row]:
    """Return the peak of what a call allocates, its result included, at a length and twice that."""
    rows: list[Row] = []
    peaks: list[int] = []
    for seqlen in (1024, 2048) if quick else (4096, 8192):
        case = Case("memory", 1, seqlen, seqlen, 8, 8, 64, {}, {}, repeats=0)
        operands = case.operands()
        tracemalloc.start()
        flash_attn_func(*operands, causal=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        ratio = peaks[-1] / peaks[0]
        is_gated = len(peaks) == 2
        rows.append(
            {
                "case": f"memory, {seqlen}",
                "shape": case.shape,
                "dtype": "float32",
                "contestant": OURS,
                "mask": "causal",
                "median_s": "",
                "best_s": "",
                "ratio": f"{ratio:.3f}",
                "peak_mib": f"{peaks[-1] / 2**20:.1f}",
                "gate": "<= 2.2" if is_gated else "",
                "verdict": _verdict(ratio, 2.2 if is_gated else None),
            }
        )
    return rows


def _verdict(ratio: float, gate: float | None) -> str:
    if gate is None:
        return ""
    return "kept" if ratio <= gate else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the length, no time gates"
    )
    parser.add_argument("--save", action="store_true", help="append to results/numpy_forward.csv")
    options = parser.parse_args()

    where = environment()
    print(", ".join(f"{name} {value}" for name, value in where.items()), end="\n\n")
    rows = [row for case in cases(quick=options.quick) for row in time_case(case)]
    rows += memory_rows(quick=options.quick)
    columns = (
        "case",
        "contestant",
        "mask",
        "median_s",
        "best_s",
        "ratio",
        "peak_mib",
        "gate",
        "verdict",
    )
    print(format_table(rows, columns))
    if options.save:
        print(f"\nappended to {append_rows('numpy_forward', [where | row for row in rows])}")


if __name__ == "__main__":
    main()
