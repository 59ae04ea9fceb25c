"""Exercises of notebook 01, what attention costs."""

from __future__ import annotations

import math

from fa_numba.exercises.checker import Answer, Exercise, Mutant, WrongAnswerError, require_close
from fa_numba.models import CHIPS, Chip, allowed_pairs

__all__ = ["EXERCISES"]

# seqlen_q, seqlen_k, headdim, headdim_v, bytes_per_element, and what the case is about
_SHAPES = (
    (8, 8, 4, 4, 1, "Count S and P: each is written once and read once, 4 passes in all."),
    (8, 8, 4, 4, 2, "Elements have bytes_per_element bytes."),
    (7, 13, 4, 4, 2, "seqlen_q and seqlen_k differ here: S has seqlen_q rows, k has seqlen_k."),
    (7, 13, 3, 11, 4, "headdim and headdim_v differ here: v and out have headdim_v columns."),
)


def hbm_bytes_standard(
    seqlen_q: int, seqlen_k: int, headdim: int, headdim_v: int, bytes_per_element: int
) -> int:
    """Count the bytes the standard algorithm moves for one head."""
    scores = 4 * seqlen_q * seqlen_k
    inputs_and_output = (seqlen_q + seqlen_k) * headdim + (seqlen_k + seqlen_q) * headdim_v
    return (scores + inputs_and_output) * bytes_per_element


def _verify_hbm_bytes_standard(answer: Answer) -> None:
    for *shape, hint in _SHAPES:
        got = answer(*shape)
        require_close(got, hbm_bytes_standard(*shape), what=f"the traffic of {shape}", hint=hint)


def arithmetic_intensity(
    seqlen_q: int, seqlen_k: int, headdim: int, bytes_per_element: int
) -> float:
    """Return FLOPs per byte of one head when only q, k, v and out move."""
    flops = 4 * seqlen_q * seqlen_k * headdim
    moved = (2 * seqlen_q + 2 * seqlen_k) * headdim * bytes_per_element
    return flops / moved


def _verify_arithmetic_intensity(answer: Answer) -> None:
    for seqlen_q, seqlen_k, headdim, size, hint in (
        (64, 64, 16, 2, "FLOPs (2 a multiply-add, two products) over bytes of q, k, v and out."),
        (64, 64, 16, 4, "Wider elements are more bytes for the same FLOPs."),
        (1, 1000, 128, 2, "One query (decode): k and v have seqlen_k rows, q and out seqlen_q."),
        (37, 11, 5, 1, "More queries than keys: keep seqlen_q and seqlen_k apart."),
    ):
        shape = (seqlen_q, seqlen_k, headdim, size)
        want = arithmetic_intensity(*shape)
        require_close(answer(*shape), want, what=f"the intensity of {shape}", hint=hint)


def is_memory_bound(intensity: float, chip: Chip) -> bool:
    """Tell whether HBM, not the tensor cores, limits work of this intensity."""
    return intensity * chip.hbm_bandwidth < chip.tensor_flops


def _verify_is_memory_bound(answer: Answer) -> None:
    for key, chip in CHIPS.items():
        for factor in (0.01, 0.99, 1.01, 100):
            got = answer(factor * chip.ridge, chip)
            if bool(got) != (factor < 1):
                raise WrongAnswerError(
                    f"{factor * chip.ridge:.1f} FLOP/byte on {key} is "
                    f"{'memory' if factor < 1 else 'compute'} bound, your answer says otherwise. "
                    "Compare with the ridge: tensor_flops over hbm_bandwidth of this chip."
                )


def causal_pairs(seqlen_q: int, seqlen_k: int) -> int:
    """Count the pairs that a causal mask, aligned at the bottom right, allows."""
    offset = seqlen_k - seqlen_q
    return sum(max(0, min(row + offset + 1, seqlen_k)) for row in range(seqlen_q))


def _verify_causal_pairs(answer: Answer) -> None:
    for seqlen_q, seqlen_k, hint in (
        (6, 6, "Row i sees the keys 0 … i, itself included."),
        (1, 9, "One query at the end of 9 keys sees them all: align at the bottom right."),
        (4, 9, "The last query sees every key: align at the bottom right."),
        (9, 4, "More queries than keys: the first rows see nothing, never a negative number."),
        (0, 5, "No queries, no pairs."),
    ):
        want = allowed_pairs(seqlen_q, seqlen_k, window_right=0)
        what = f"the number of pairs for {seqlen_q} queries and {seqlen_k} keys"
        require_close(answer(seqlen_q, seqlen_k), want, what=what, hint=hint)


EXERCISES = (
    Exercise(
        "01_hbm_bytes_standard",
        _verify_hbm_bytes_standard,
        hbm_bytes_standard,
        (
            Mutant(
                "forgets that S and P are read back",
                lambda m, n, d, e, b: (2 * m * n + (m + n) * (d + e)) * b,
                "read once, 4 passes",
            ),
            Mutant(
                "moves only the inputs and the output",
                lambda m, n, d, e, b: (m + n) * (d + e) * b,
                "Count S and P",
            ),
            Mutant(
                "counts elements instead of bytes",
                lambda m, n, d, e, b: 4 * m * n + (m + n) * (d + e),
                "bytes_per_element bytes",
            ),
            Mutant(
                "takes S for a square of the query length",
                lambda m, n, d, e, b: (4 * m * m + (m + n) * (d + e)) * b,
                "seqlen_q and seqlen_k differ",
            ),
            Mutant(
                "gives v the head dimension of k",
                lambda m, n, d, e, b: (4 * m * n + (m + n) * 2 * d) * b,
                "headdim and headdim_v differ",
            ),
        ),
        "At 4096 tokens and head dim 64 that is 130 MiB a head, for 2 MiB of inputs and output.",
    ),
    Exercise(
        "01_arithmetic_intensity",
        _verify_arithmetic_intensity,
        arithmetic_intensity,
        (
            Mutant(
                "counts a multiply-add as one",
                lambda m, n, d, b: m * n / ((m + n) * b),
                "2 a multiply-add",
            ),
            Mutant(
                "bytes over FLOPs",
                lambda m, n, d, b: ((2 * m + 2 * n) * d * b) / (4 * m * n * d),
                "FLOPs (2 a multiply-add",
            ),
            Mutant(
                "lets S and P through HBM",
                lambda m, n, d, b: 4 * m * n * d / (((2 * m + 2 * n) * d + 4 * m * n) * b),
                "over bytes of q, k, v and out",
            ),
            Mutant(
                "16-bit elements whatever is asked",
                lambda m, n, d, b: 4 * m * n * d / ((2 * m + 2 * n) * d * 2),
                "Wider elements",
            ),
            Mutant(
                "takes every tensor to be as long as q",
                lambda m, n, d, b: 4 * m * n * d / (4 * m * d * b),
                "One query (decode)",
            ),
        ),
        "Long prefill grows with the length; decode is stuck near 1 FLOP/byte in 16 bits.",
    ),
    Exercise(
        "01_is_memory_bound",
        _verify_is_memory_bound,
        is_memory_bound,
        (
            Mutant("compares the wrong way", lambda i, chip: i > chip.ridge, "the ridge"),
            Mutant("one ridge for all chips", lambda i, chip: i < 295, "of this chip"),
            Mutant(
                "the FP32 rate instead of the tensor cores'",
                lambda i, chip: i < chip.fp32_flops / chip.hbm_bandwidth,
                "tensor_flops over",
            ),
            Mutant("always true", lambda i, chip: True, "compute bound"),
        ),
        "One division of two data-sheet numbers, and you know what to optimise.",
    ),
    Exercise(
        "01_causal_pairs",
        _verify_causal_pairs,
        causal_pairs,
        (
            Mutant("half of the square", lambda m, n: m * n / 2, "itself included"),
            Mutant("excludes the diagonal", lambda m, n: m * (m - 1) // 2, "itself included"),
            Mutant(
                "aligned at the top left",
                lambda m, n: sum(min(i + 1, n) for i in range(m)),
                "bottom right",
            ),
            Mutant(
                "lets the empty rows count negative",
                lambda m, n: sum(min(i + n - m + 1, n) for i in range(m)),
                "never a negative number",
            ),
            Mutant(
                "a closed form that needs a query",
                lambda m, n: causal_pairs(m, n) if m else math.comb(n, 2),
                "No queries",
            ),
        ),
        "This count times 4·headdim is the causal FLOPs.",
    ),
)
