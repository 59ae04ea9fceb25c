"""From a problem to a plan: which family serves it, with which tiles, and why.

:func:`make_plan` is a pure function of the problem (and later of the device), so a plan can be
tested, cached and printed; :func:`explain_problem` prints it with what follows from it: the key
tiles that each query tile visits, the arithmetic, the memory traffic.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

from fa_numba.arrays import numpy_dtype
from fa_numba.indexing.block_range import (
    BlockRange,
    get_n_block_min_max,
    get_unmasked_n_block_min_max,
    n_block_count,
    num_m_blocks,
)
from fa_numba.problem import AttentionProblem

__all__ = ["Explanation", "Plan", "explain_problem", "make_plan"]

MAX_LISTED_BLOCKS = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """How a problem will be run.

    Attributes
    ----------
    family
        ``"reference"``, ``"simt"``, ``"sm80"`` or ``"sm90"``.
    reason
        Why this family, in one sentence.
    tile_m, tile_n
        Rows and keys of a score tile; with pack_gqa a row is a (query, head of the group) pair.
    scheduler
        The tile scheduler that hands out query tiles.
    num_splits
        KV splits, at least 1.
    pack_gqa
        Whether the heads of a group share a query tile.
    smem_bytes, registers
        Shared memory of a block and registers of a thread; None where the family has neither.
    """

    family: str
    reason: str
    tile_m: int
    tile_n: int
    scheduler: str
    num_splits: int
    pack_gqa: bool
    smem_bytes: int | None
    registers: int | None


def make_plan(problem: AttentionProblem) -> Plan:
    """Choose the family and its configuration for a forward on NumPy arrays.

    Parameters
    ----------
    problem
        The problem.

    Returns
    -------
    Plan
        The plan; the same problem gives the same plan.

    Raises
    ------
    ValueError
        If the family asked for cannot serve the problem.
    """
    from fa_numba.reference.flash_fwd import default_tiles

    if problem.backend not in ("auto", "reference"):
        raise ValueError(
            f"backend={problem.backend!r} runs on GPU arrays, or on NumPy arrays inside "
            "fa_numba.emulate(), and this version has no kernel of that family yet; NumPy arrays "
            "run with backend='reference' or 'auto'"
        )
    reason = "NumPy arrays: the tiled loop in NumPy"
    if problem.backend == "reference":
        reason = "asked for by backend='reference'"
    group = problem.qhead_per_khead
    queries, tile_n = default_tiles(
        problem.seqlen_q, problem.seqlen_k, group, problem.window_left, problem.window_right
    )
    return Plan(
        family="reference",
        reason=reason,
        tile_m=queries * group,
        tile_n=tile_n,
        scheduler="SingleTile",
        # Heads and row blocks already occupy the few cores; splitting the keys would only add work.
        num_splits=max(1, problem.num_splits),
        # The loop stacks the heads of a group in one tile, asked for or not: nothing is gained by
        # reading K and V once for each of them.
        pack_gqa=group > 1,
        smem_bytes=None,
        registers=None,
    )


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a call would do; printing it gives a table.

    Attributes
    ----------
    problem, plan
        The normalised call and the plan for it.
    n_blocks
        For each query tile, the key tiles it visits (before splitting).
    tiles_total, tiles_visited, tiles_masked
        Score tiles of one head of one sequence: all, those visited, and those of them that need a
        mask.
    flops
        Multiply-adds count two; only allowed (query, key) pairs count.
    hbm_bytes
        Bytes of q, k, v, out and lse, each moved once.
    """

    problem: AttentionProblem
    plan: Plan
    n_blocks: tuple[BlockRange, ...]
    tiles_total: int
    tiles_visited: int
    tiles_masked: int
    flops: int
    hbm_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain, JSON-serialisable values."""
        return {
            "problem": asdict(self.problem),
            "plan": asdict(self.plan),
            "n_blocks": [r._asdict() for r in self.n_blocks],
            **{f.name: getattr(self, f.name) for f in fields(self) if f.type is int},
        }

    def __str__(self) -> str:
        """Return the table."""
        width = max(len(name) for name, _ in self._rows())
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self._rows())

    def _tiles_text(self) -> str:
        share = self.tiles_visited / self.tiles_total if self.tiles_total else 0.0
        visited = f"{self.tiles_visited} of {self.tiles_total} visited ({share:.0%})"
        return f"{visited} per head, {self.tiles_masked} of them masked"

    def _rows(self) -> list[tuple[str, str]]:
        problem, plan = self.problem, self.plan
        rows = [
            ("family", f"{plan.family} ({plan.reason})"),
            (
                "lengths",
                f"batch {problem.batch}, seqlen_q {problem.seqlen_q}, seqlen_k {problem.seqlen_k}",
            ),
            ("heads", f"{problem.nheads}, of K and V {problem.nheads_k}"),
            ("head dim", f"{problem.headdim}, of V {problem.headdim_v}"),
            ("dtype", f"{problem.dtype} -> {problem.out_dtype}"),
            ("score", f"softmax_scale {problem.softmax_scale:.6g}{_softcap_text(problem)}"),
            ("mask", _mask_text(problem)),
            ("tiles", f"tile_m {plan.tile_m}, tile_n {plan.tile_n}, scheduler {plan.scheduler}"),
            ("parallelism", f"num_splits {plan.num_splits}, pack_gqa {plan.pack_gqa}"),
            ("resources", _resource_text(plan)),
            ("key tiles", self._tiles_text()),
            ("FLOPs", f"{self.flops:,}"),
            ("HBM bytes", f"{self.hbm_bytes:,} (each operand moved once)"),
        ]
        for m_block in _listed(len(self.n_blocks)):
            if m_block is None:
                rows.append(("  ...", ""))
            else:
                rows.append((f"  m_block {m_block}", _range_text(self.n_blocks[m_block])))
        return rows


def explain_problem(problem: AttentionProblem) -> Explanation:
    """Plan a problem and work out what the plan implies.

    Parameters
    ----------
    problem
        The problem; where lengths vary by sequence, its longest sequence is explained.

    Returns
    -------
    Explanation
        The report.
    """
    from fa_numba.models.cost import attention_flops
    from fa_numba.models.hbm import attention_hbm_traffic

    plan = make_plan(problem)
    packed = problem.qhead_per_khead if plan.pack_gqa else 1
    mask = (problem.window_left, problem.window_right, problem.sink_token_length)
    geometry = (plan.tile_m, plan.tile_n, problem.seqlen_q, problem.seqlen_k, *mask)
    m_blocks = range(num_m_blocks(plan.tile_m, problem.seqlen_q, packed))
    n_blocks = [get_n_block_min_max(m, *geometry, packed, 0, 1) for m in m_blocks]
    unmasked = [get_unmasked_n_block_min_max(m, *geometry, packed, 0, 1) for m in m_blocks]
    visited = sum(map(n_block_count, n_blocks))
    traffic = attention_hbm_traffic(
        problem.batch,
        problem.nheads,
        problem.nheads_k,
        problem.seqlen_q,
        problem.seqlen_k,
        problem.headdim,
        problem.headdim_v,
        bytes_per_element=numpy_dtype(problem.dtype).itemsize,
    )
    # The model knows one size for all operands; the output of FP8 inputs is wider than they are.
    out_elements = problem.batch * problem.seqlen_q * problem.nheads * problem.headdim_v
    out_bytes = out_elements * numpy_dtype(problem.out_dtype).itemsize
    return Explanation(
        problem=problem,
        plan=plan,
        n_blocks=tuple(n_blocks),
        tiles_total=len(n_blocks) * -(-problem.seqlen_k // plan.tile_n),
        tiles_visited=visited,
        tiles_masked=visited - sum(stop - start for start, stop in unmasked),
        flops=attention_flops(
            problem.batch,
            problem.nheads,
            problem.seqlen_q,
            problem.seqlen_k,
            problem.headdim,
            problem.headdim_v,
            window_left=problem.window_left,
            window_right=problem.window_right,
            sink_token_length=problem.sink_token_length,
        ),
        hbm_bytes=traffic.total - traffic.writes["out"] + out_bytes,
    )


def _softcap_text(problem: AttentionProblem) -> str:
    return f", softcap {problem.softcap:.6g}" if problem.softcap else ""


def _mask_text(problem: AttentionProblem) -> str:
    if problem.is_causal:
        text = "causal (bottom-right aligned)"
    elif problem.is_local:
        sides = [
            "unlimited" if w < 0 else str(w) for w in (problem.window_left, problem.window_right)
        ]
        text = f"window ({', '.join(sides)}), bottom-right aligned"
    else:
        return "none"
    sink = problem.sink_token_length if problem.window_left >= 0 else 0
    return f"{text}, sink {sink}" if sink else text


def _resource_text(plan: Plan) -> str:
    if plan.smem_bytes is None:
        return "host memory; no shared memory, no registers to allocate"
    return f"{plan.smem_bytes:,} bytes of shared memory, {plan.registers} registers a thread"


def _range_text(r: BlockRange) -> str:
    text = f"n_block [{r.n_block_min}, {r.n_block_max})"
    if r.n_sink_max > r.n_sink_min:
        text = f"n_block [{r.n_sink_min}, {r.n_sink_max}) for the sink and {text[8:]}"
    return text


def _listed(count: int) -> list[int | None]:
    """Indices to print: all of a short list, both ends of a long one with a gap (None)."""
    if count <= MAX_LISTED_BLOCKS:
        return list(range(count))
    half = MAX_LISTED_BLOCKS // 2
    return [*range(half), None, *range(count - half, count)]
