# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · The online softmax
#
# **Goal.** After this notebook you can compute a softmax, and attention, over keys that arrive
# tile by tile, merge results that were computed apart, and say what each detail of the loop in
# a FlashAttention kernel is for, its barriers included.
#
# **Prerequisites.** [01 · What attention costs](01_attention_cost.ipynb): why nobody wants to
# hold the N × N matrix.
#
# **Time.** About 60 minutes with the four exercises.
#
# | term | 中文 | in one sentence |
# | --- | --- | --- |
# | safe softmax | 安全 softmax | subtract the row's maximum before the exponential |
# | online softmax | 在线 softmax | a running maximum, and a running sum that follows it |
# | row_max, row_sum (m, ℓ) | 行最大值 / 行和 | what the online softmax keeps of a row |
# | row_scale (α) | 缩放因子 | the factor that corrects old sums: exp(old maximum − new maximum) |
# | rescale O | 输出重缩放 | the same factor on the unfinished output |
# | lse | 对数-求和-指数 | ln Σ exp(score) of a row, natural logarithm |
# | merge, combine | 合并 | make one result of two, computed over different keys |
# | conditional rescale, τ | 条件重缩放 | keep the old maximum until it is beaten by more than τ |
#
# All scores and every lse here are in natural-log units unless it says *log 2*.

# %%
# %matplotlib inline
import functools
import importlib.util
import inspect
import itertools
import math
import tempfile
import textwrap
from pathlib import Path

import numpy as np

import fa_numba
from fa_numba import viz
from fa_numba.exercises import check
from fa_numba.fast import row_softmax as row_softmax_module
from fa_numba.fast.row_softmax import run_row_softmax
from fa_numba.reference.attention import attention
from fa_numba.reference.flash_fwd import flash_fwd
from fa_numba.reference.row_softmax import row_softmax

rng = np.random.default_rng(2)

# %% [markdown]
# ## Where the obvious softmax breaks
#
# A softmax turns scores into positive weights that sum to 1: pᵢ = exp(sᵢ) / Σ exp(sⱼ). Written
# down like that it works until a score is about 11 in float16, 89 in float32, 710 in float64.
# Then exp is infinity, and infinity over infinity is NaN. Scores of 11 are nothing special.


# %%
def naive_softmax(s):
    e = np.exp(s)
    return e / e.sum()


for dtype in (np.float16, np.float32, np.float64):
    largest = np.log(np.finfo(dtype).max)
    with np.errstate(over="ignore", invalid="ignore"):
        p = naive_softmax(np.array([largest - 1, largest + 1], dtype))
    print(f"{np.dtype(dtype).name}: exp overflows above {largest:6.2f}, softmax there: {p}")

# %% [markdown]
# ## Safe softmax
#
# A softmax does not change when a constant is subtracted from all scores: exp(s − c) = exp(s) ·
# exp(−c), and the factor cancels. Subtract the maximum, and the largest exponent is 0: nothing
# overflows, and the sum is at least 1, so that no division goes wrong. Terms that underflow to
# 0 are smaller than the rounding error of the sum anyway.


# %%
def safe_softmax(s):
    row_max = s.max()  # first pass over the scores
    row_sum = np.exp(s - row_max).sum()  # second pass
    return np.exp(s - row_max) / row_sum  # third pass


s = rng.normal(size=1000)
np.testing.assert_allclose(safe_softmax(s), naive_softmax(s), rtol=1e-12)
np.testing.assert_allclose(safe_softmax(s + 1e4), safe_softmax(s), rtol=1e-9)

# %% [markdown]
# The price is an order: the maximum must be known before the first exponential, so all scores
# of the row must be seen before anything can be done with one of them. Three passes over the
# row. If the row is too long for the fast memory, it is three trips to the slow one, and that
# is the obstacle that notebook 01 left standing.
#
# ## One pass for the maximum and the sum
#
# Milakov and Gimelshein (2018) noticed that the sum need not wait. Suppose some scores have
# been summed with respect to the maximum so far, m, and a new tile brings the maximum to m′.
# Every old term is exp(s − m) and should be exp(s − m′). It is wrong by the same factor as all
# the others:
#
# $$e^{s - m'} = e^{s - m}\cdot e^{m - m'} \qquad\Rightarrow\qquad
# \ell' = \ell\, e^{m - m'} + \sum_{\text{tile}} e^{s - m'}$$
#
# So two numbers a row, m and ℓ, are enough. They start at −∞ and 0; the first tile then needs
# no special case, because exp(−∞) is 0.
#
# Below, one row of 64 scores in tiles of 8, run through the library's `OnlineSoftmax`. When the
# maximum (blue) steps up, row_scale drops below 1 and shrinks the sum; when it stays, row_scale
# is 1 and the sum only grows. The first row_scale is 0: it meets an empty sum.

# %%
row = 2 * rng.normal(size=64) + np.linspace(0, 4, 64)
figure, data = viz.online_softmax_trace(row, tile_n=8)
figure

# %%
dense_max, dense_sum = row.max(), np.exp(row - row.max()).sum()
np.testing.assert_allclose(data["row_max"][-1], dense_max)
np.testing.assert_allclose(data["row_sum"][-1], dense_sum)
print(f"maximum {dense_max:.4f} and sum {dense_sum:.4f}: the same in one pass")

# %% [markdown]
# ### Exercise 1: the update
#
# Write the step for one row. `scores` is a 1-D array; masked keys are −inf in it, and a tile
# may be masked whole. 3 or 4 lines.


# %%
def online_update(row_max, row_sum, scores):
    """Return the new (row_max, row_sum) after one more tile of scores."""
    raise NotImplementedError


check("02_online_update", online_update)
# %% [markdown]
# ## One number for a whole row
#
# m and ℓ always occur together, as m + ln ℓ. That is the *log-sum-exp* of the row,
#
# $$\text{lse} = \ln \sum_j e^{s_j} = m + \ln \ell, \qquad p_j = e^{s_j - \text{lse}}$$
#
# and it no longer depends on which maximum was used. One float32 a row: the forward pass hands
# it to the backward pass, which recomputes P from it (重计算) instead of storing N × N numbers.
# All functions of this library return it on request, in natural log.

# %%
q, k, v = rng.normal(size=(3, 1, 200, 2, 32)).astype(np.float32)
out, lse = fa_numba.flash_attn_func(q, k, v, return_lse=True)

scores = np.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(32)
p = np.exp(scores - lse[..., None])
np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-5)
np.testing.assert_allclose(np.einsum("bhij,bjhd->bihd", p, v), out, rtol=1e-3, atol=1e-5)
lse.shape, lse.dtype  # (batch, nheads, seqlen_q)

# %% [markdown]
# ### Exercise 2: log-sum-exp
#
# For a matrix of scores, one lse a row. Rows may be all −inf, and there may be no keys at all.
# About 3 lines.


# %%
def lse_of_rows(scores):
    """Return ln Σ exp(scores) along axis 1; -inf for a row without keys."""
    raise NotImplementedError


check("02_lse", lse_of_rows)

# %% [markdown]
# ## Merging what was computed apart
#
# Nothing in the update says that the old sum came from *earlier* tiles. Two workers can each
# take half of the keys, and each ends with an output and an lse of its own. An output is a
# weighted mean of values, its lse says how much weight went into it, so the whole is a weighted
# mean of the two:
#
# $$\text{out} = \frac{e^{\text{lse}_a}\,\text{out}_a + e^{\text{lse}_b}\,\text{out}_b}
# {e^{\text{lse}_a} + e^{\text{lse}_b}}, \qquad
# \text{lse} = \ln\left(e^{\text{lse}_a} + e^{\text{lse}_b}\right)$$
#
# computed safely, of course: subtract the larger lse first. This is an operation on pairs (out,
# lse), and it is
#
# - **associative**: parts may be merged in any grouping, as a chain or as a tree;
# - **commutative**: in any order;
# - with a **neutral element**: no keys at all, lse = −∞.
#
# So the keys of one query may be spread over thread blocks (split-KV, also called
# Flash-Decoding), over GPUs (ring attention), or over a cached prefix and a new suffix. **Split
# is unsplit:**


# %%
def merge_two(a, b):
    """Merge two (out, lse) pairs with the library's combine."""
    return fa_numba.flash_attn_combine(np.stack([a[0], b[0]]), np.stack([a[1], b[1]]))


edges = [0, 7, 64, 65, 150, 200]
parts = [
    fa_numba.flash_attn_func(q, k[:, start:stop], v[:, start:stop], return_lse=True)
    for start, stop in itertools.pairwise(edges)
]
groupings = {
    "all at once": fa_numba.flash_attn_combine(*(np.stack(x) for x in zip(*parts, strict=True))),
    "a chain": functools.reduce(merge_two, parts),
    "a chain from the right": functools.reduce(merge_two, parts[::-1]),
    "a tree": merge_two(
        merge_two(merge_two(parts[0], parts[3]), merge_two(parts[4], parts[1])), parts[2]
    ),
}
for name, (merged_out, merged_lse) in groupings.items():
    np.testing.assert_allclose(merged_lse, lse, rtol=1e-5)
    np.testing.assert_allclose(merged_out, out, rtol=1e-3, atol=1e-6)
    print(f"{name:24} differs from one call by {abs(merged_out - out).max():.1e}")

# %% [markdown]
# The results agree to rounding, not bit for bit: the sums are rounded in a different order.
# What does hold bit for bit is that an empty part changes nothing, whatever its memory
# contains:

# %%
empty = np.full_like(parts[0][0], np.nan), np.full_like(parts[0][1], -np.inf)
for merged in (merge_two(parts[0], empty), merge_two(empty, parts[0])):
    np.testing.assert_array_equal(merged[0], parts[0][0])
    np.testing.assert_array_equal(merged[1], parts[0][1])

# %% [markdown]
# ### Exercise 3: merge
#
# Write it for `out` of shape (rows, headdim_v) and `lse` of shape (rows,). Either part may be
# empty in some rows (lse = −inf), and the output of an empty part may hold garbage. About 7
# lines.


# %%
def merge(out_a, lse_a, out_b, lse_b):
    """Return (out, lse) over the keys of both parts."""
    raise NotImplementedError


check("02_merge", merge)

# %% [markdown]
# ## From the softmax to attention
#
# The output is a sum over keys as well, Σ pⱼ vⱼ, so it gets the same correction as ℓ. That is
# the whole loop of FlashAttention, for one tile of queries:
#
# > for each tile of keys: S = QKᵀ · scale, and −∞ where the mask forbids;
# > m′ = max(m, rowmax S);   α = exp(m − m′);   P = exp(S − m′);
# > ℓ = α ℓ + rowsum P;   O = α O + P V;   m = m′
# >
# > at the end: O / ℓ, and lse = m + ln ℓ
#
# P is never normalised inside the loop; one division a row at the end is enough. That was one
# of the savings of FlashAttention-2.
#
# ### Exercise 4: attention for one row
#
# One query `q` (headdim,), keys `k` (seqlen_k, headdim) and values `v` (seqlen_k, headdim_v),
# read in tiles of `tile_n` rows. The checker hands you k and v as if they lay in HBM: ask for
# more than a tile at once, or for the same row twice, and it will notice. About 9 lines.


# %%
def tiled_row(q, k, v, tile_n):
    """Return softmax(q·k / sqrt(headdim))·v for one query."""
    raise NotImplementedError


check("02_tiled_row", tiled_row)
# %% [markdown]
# Tiles are an implementation detail. Whatever their size, even when they divide nothing,
# **tiled is dense**: here `reference.flash_fwd` against the float64 oracle, which is written
# without tiles and shares no code with it.

# %%
q64, k64, v64 = (x.astype(np.float64) for x in (q, k, v))
oracle_out, oracle_lse = attention(q64, k64, v64, causal=True)
for tile_m, tile_n in ((1, 1), (7, 3), (64, 64), (128, 33), (512, 512)):
    tiled_out, tiled_lse = flash_fwd(
        q64, k64, v64, softmax_scale=32**-0.5, window_right=0, tile_m=tile_m, tile_n=tile_n
    )
    np.testing.assert_allclose(tiled_out, oracle_out, atol=1e-13)
    np.testing.assert_allclose(tiled_lse, oracle_lse, atol=1e-13)
    print(f"tiles of {tile_m:3} x {tile_n:3}: error {abs(tiled_out - oracle_out).max():.1e}")

# %% [markdown]
# ## Rows that see nothing
#
# A query may have no key at all: causal attention with more queries than keys (the mask is
# aligned at the bottom right, so the first rows stay empty), an empty sequence in a batch, a
# split that a window emptied. Then m stays −∞, and a careless m − m is NaN. Libraries have
# returned NaN, the mean of all values, and lse = +∞ here. In this one it is the neutral element
# of the merge, everywhere: **out = 0, lse = −∞**. The code replaces m by 0 in the subtraction,
# and that is all it takes.

# %%
out5, lse5 = fa_numba.flash_attn_func(q[:, :5], k[:, :3], v[:, :3], causal=True, return_lse=True)
assert (out5[:, :2] == 0).all()
assert (lse5[:, :, :2] == -np.inf).all()
assert np.isfinite(lse5[:, :, 2:]).all()
lse5[0]

# %% [markdown]
# ## Base two
#
# GPUs have an instruction for 2^x, not for eˣ. Since eˣ = 2^(x · log₂ e), a kernel keeps its
# scores in units of log 2. The factor log₂ e costs nothing, because there already is one: the
# softmax scale. And s · c − m · c, with c = scale · log₂ e, is a single fused multiply-add a
# score. At the end lse goes back to natural log, with one multiplication by ln 2 a row.

# %%
raw = rng.normal(size=(4, 50)) * 10  # q·k before scaling
scale = 32**-0.5
c = scale * math.log2(math.e)
m = raw.max(axis=1, keepdims=True)
np.testing.assert_allclose(np.exp2(raw * c - m * c), np.exp(scale * raw - scale * m), rtol=1e-12)

# %% [markdown]
# ## Skipping rescales
#
# α O is a multiplication for each element of the output tile, in every step, and it sits
# between two matrix products. Often α is just 1. FlashAttention-4 goes one step further:
# **if the new maximum beats the old one by no more than τ, keep the old one**. Nothing was ever
# wrong with a maximum that is not the true one, as long as nothing overflows: the final
# division by ℓ cancels any choice of m. P may then exceed 1, but by no more than 2^τ. With τ =
# 8 (in units of log 2) that is 256, harmless in bfloat16 and in float16, whose largest number
# is 65504.
#
# How often does it help? Scores of independent random keys are the easy case: the maximum
# settles early. Scores that rise along the row, as for a model that favours recent tokens, are
# the hard one.

# %%
random_scores = rng.normal(size=(256, 4096))
rising_scores = random_scores + np.linspace(0, 12, 4096)
figure, data = viz.rescale_counts(
    {"random": random_scores, "rising": rising_scores},
    tile_n=128,
    thresholds=np.arange(0, 12.5, 0.5),
)
figure

# %%
at_8 = list(data["thresholds"]).index(8)
for name, rescaled in data["rescaled"].items():
    updates = data["updates"][name]
    print(f"{name:7} of {updates} updates: τ = 0 rescales {rescaled[0]}, τ = 8 {rescaled[at_8]}")
assert data["rescaled"]["random"][at_8] == 0
assert data["rescaled"]["rising"][at_8] < data["rescaled"]["rising"][0] / 4

# %% [markdown]
# The result does not change, to rounding. And where P is rounded to FP8, whose largest number
# is 448 and whose P is already scaled by 2⁸, there is no room left for a τ. The reference
# refuses the combination rather than overflow:

# %%
options = {"softmax_scale": 32**-0.5, "tile_m": 16, "tile_n": 16}
eager, eager_lse = flash_fwd(q, k, v, **options)
lazy, lazy_lse = flash_fwd(q, k, v, **options, rescale_threshold=8)
np.testing.assert_allclose(lazy, eager, rtol=1e-4, atol=1e-6)
np.testing.assert_allclose(lazy_lse, eager_lse, rtol=1e-6)

try:
    flash_fwd(q, k, v, **options, rescale_threshold=8, max_offset=8, p_dtype="float8_e4m3fn")
except ValueError as error:
    print(error)

# %% [markdown]
# ## What 16 bits cost
#
# Inputs and outputs are 16-bit numbers on a GPU. What must be wider inside? Below, the error of
# the output against float64, for scores of growing size, for four ways to compute:
#
# - naive, everything in float16: breaks as soon as exp overflows;
# - safe, everything in float16: never NaN, but a score near 1000 is rounded to a multiple of ½,
#   and the exponential turns that into a factor of up to e^¼ either way;
# - tiled as the kernels do it: float16 inputs, S, m, ℓ and O in float32, and only P rounded to
#   float16 for the second matrix product;
# - the same with float32 inputs throughout.


# %%
def dense_float16(q, k, v, shift):
    """Dense attention of one head with every intermediate result in float16."""
    s = (q @ k.T) * np.float16(q.shape[1] ** -0.5)
    e = np.exp(s - s.max(axis=1, keepdims=True) if shift else s)
    return (e / e.sum(axis=1, keepdims=True)) @ v


def error(out, reference):
    """Largest absolute error; NaN if anything is NaN or infinite."""
    worst = abs(out.astype(np.float64) - reference).max()
    return worst if np.isfinite(worst) else np.nan


qh, kh, vh = rng.normal(size=(3, 256, 64)).astype(np.float16)
largest, errors = [], {}
for gain in 2.0 ** np.arange(-1, 9):
    one = [x[None, :, None, :] for x in ((gain * qh).astype(np.float16), kh, vh)]
    reference, _ = attention(*one)
    largest.append((one[0][0, :, 0] @ kh.T.astype(np.float64)).max() / 8)
    with np.errstate(over="ignore", invalid="ignore"):
        flat = [x[0, :, 0] for x in one]
        results = {
            "naive, all float16": dense_float16(*flat, shift=False)[None, :, None],
            "safe, all float16": dense_float16(*flat, shift=True)[None, :, None],
            "tiled, float32 inside": flash_fwd(*one, softmax_scale=1 / 8, p_dtype=np.float16)[0],
            "tiled, all float32": fa_numba.flash_attn_func(*(x.astype(np.float32) for x in one)),
        }
    for name, out in results.items():
        errors.setdefault(name, []).append(error(out, reference))

figure, data = viz.softmax_errors(largest, errors)
figure

# %%
assert np.isnan(errors["naive, all float16"][-1])
assert max(errors["tiled, float32 inside"]) < 1e-3 < max(errors["safe, all float16"])
assert max(errors["tiled, all float32"]) < 1e-3

# %% [markdown]
# A 16-bit P is good enough: its errors have no common sign and average out. 16-bit *scores* are
# not. That is why tensor cores take 16-bit operands and accumulate in float32, and why the
# online softmax runs on those accumulators.
#
# ## The loop as a kernel
#
# So far a tile was a NumPy array, and one Python thread did everything. On a GPU a *block* of
# threads shares the work. `row_softmax` is the loop above without the matrix products: the
# softmax and the lse of every row of a matrix, in two passes. A warp of 32 threads takes 16
# rows, and each row of a tile is spread over the registers of four threads, a *quad*. The path
# of a tile is
#
# > global memory → **shared memory** → registers → update of m and ℓ,
#
# where the threads that carry an element into shared memory are not those that compute with it.
# Here is the whole kernel; the names in it are those of this notebook.

# %%
source = inspect.getsource(row_softmax_module)
kernel_start = source.index("        row_start = block_index_x()")
kernel_stop = source.index("    return row_softmax")
print(textwrap.dedent(source[kernel_start:kernel_stop]))

# %% [markdown]
# No GPU is needed to run it. `fa_numba.emulate()` is a machine that calls this function once
# for every thread, keeps shared memory byte by byte, and watches who touches what. Below, 20
# rows of 150 scores for a block of two warps; the matrix has a row without any score, and no
# tile divides it.

# %%
x = rng.normal(size=(20, 150)).astype(np.float16)
x[3] = -np.inf
p, x_lse = np.full_like(x, np.nan), np.full(20, np.nan, np.float32)

with fa_numba.emulate() as machine:
    run_row_softmax(x, p, x_lse, tile_m=32, target="emulator")

assert machine.hazards == []
told_p, told_lse = row_softmax(x)
np.testing.assert_allclose(x_lse, told_lse, rtol=1e-5)
np.testing.assert_allclose(p.astype(np.float32), told_p.astype(np.float32), atol=1e-4)
x_lse

# %% [markdown]
# ### A barrier less
#
# `syncthreads()` waits for all threads of the block. The kernel has four of them, each with a
# comment that says what it makes safe. What if one is missing? A GPU gives no error: it gives
# right results as long as the threads happen to run in a lucky order, on this card, with this
# compiler. The emulator does not need luck. It knows for every byte who wrote it and who read it
# last, and whether a barrier stands between them.


# %%
def without_barrier(number, folder):
    """Return `run_row_softmax` of a copy of the module that lacks one of its barriers."""
    parts = source.split("            syncthreads()\n")
    text = "            syncthreads()\n".join(parts[: number + 1])
    text += "            pass\n" + "            syncthreads()\n".join(parts[number + 1 :])
    path = Path(folder) / f"without_barrier_{number}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run_row_softmax


with tempfile.TemporaryDirectory() as folder:
    for number in range(source.count("            syncthreads()\n")):
        broken = without_barrier(number, folder)
        x_lse[:] = np.nan
        with fa_numba.emulate() as machine:
            broken(x, p, x_lse, tile_m=32, target="emulator")
        wrong = ~np.isclose(x_lse, told_lse) | ~np.isclose(p, told_p, atol=1e-3).all(axis=1)
        race = next(hazard for hazard in machine.hazards if hazard.kind == "race")
        print(f"without barrier {number + 1}: {wrong.sum()} of 20 rows are wrong, and there is a")
        print(textwrap.fill(str(race), 96), end="\n\n")

# %% [markdown]
# Each report names the two threads, the byte, and both source lines: the one that came too early
# and the one that it should have waited for. Look at the numbers, too. Without the second barrier
# all rows are right: a test that only compares numbers would have passed, here and perhaps on
# most GPUs.
#
# Two questions to the reader. Between `read_fragment` and `write_fragment`, and between
# `store_tile` and the next `load_tile`, the same bytes change hands without any barrier, and
# the emulator is content. Why? (The comments in the kernel answer it. Move one of the four
# barriers to see that the emulator notices.)
#
# ## Where to find it in the code
#
# | here | there |
# | --- | --- |
# | the update, τ, base two, lse | `fa_numba/reference/softmax.py`, class `OnlineSoftmax` |
# | the loop around it | `fa_numba/reference/flash_fwd.py`, function `flash_fwd` |
# | division by ℓ and empty rows | `fa_numba/reference/epilogue.py` |
# | the merge | `fa_numba/reference/flash_fwd_combine.py`; public: `flash_attn_combine` |
# | the oracle | `fa_numba/reference/attention.py` |
# | the kernel | `fa_numba/fast/row_softmax.py`; in NumPy `fa_numba/reference/row_softmax.py` |
# | the update on registers | `fa_numba/fast/softmax.py` |
# | the machine without a GPU | `fa_numba/device/emulator/`; public: `fa_numba.emulate` |
# | the exercises' solutions: `print(solution("02_merge"))` | `fa_numba/exercises/` |
#
# ## Summary
#
# - Subtracting the maximum makes a softmax safe; the online softmax makes it a single pass,
#   with a correction factor exp(m − m′) when the maximum moves.
# - (out, lse) pairs merge like numbers add: in any order and grouping, with an empty part as
#   zero. Split-KV and everything like it rests on that.
# - Empty rows are part of the definition, not an accident: 0 and −∞.
# - Kernels count in base two, may skip small rescales, and keep S, m, ℓ and O in float32
#   whatever the inputs are.
# - Threads that exchange tiles through shared memory need a barrier wherever bytes pass from one
#   to another. Right numbers are no proof of it; the emulator's report is.
#
# ## What next
#
# Notebook 03 (planned) looks at the tiles themselves, and 04 (planned) at the masks: causal,
# window, sinks, odd lengths, and which tiles need none of them. The [syllabus](README.md) lists
# the rest.
#
# Sources: Milakov and Gimelshein, *Online normalizer calculation for softmax* (arXiv
# 1805.02867); FlashAttention (2205.14135, section 3.1), FlashAttention-2 (2307.08691, section
# 3.1), FlashAttention-3 (2407.08608), FlashAttention-4 (2603.05451, conditional rescaling);
# Dao, Haziza, Massa and Sizov, *Flash-Decoding* (2023).
