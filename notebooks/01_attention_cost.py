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
# # 01 · What attention costs
#
# **Goal.** After this notebook you can say, before running anything, how much arithmetic,
# memory and memory traffic an attention call needs, which of them it waits for on a given GPU,
# and why FlashAttention changes the answer without changing the result.
#
# **Prerequisites.** Python, NumPy, and the formula softmax(QKᵀ)V. No GPU.
#
# **Time.** About 45 minutes with the four exercises.
#
# | term | 中文 | in one sentence |
# | --- | --- | --- |
# | FLOP | 浮点运算 | one floating-point addition or multiplication; a multiply-add is two |
# | HBM | 高带宽显存 | the large memory of a GPU: tens of GB, a few TB/s |
# | SRAM, shared memory | 片上内存 / 共享内存 | the small memory inside an SM: about 200 KB |
# | tile, tiling | 分块 | a block of a matrix that fits into SRAM; working block by block |
# | arithmetic intensity | 算术强度 | FLOPs done for each byte that moves through HBM |
# | roofline | 屋顶线模型 | the lower of two limits: bandwidth × intensity, and peak FLOP/s |
# | prefill, decode | 预填充 / 解码 | reading a whole prompt at once; writing token by token |
# | IO-aware | IO 感知 | designed by counting bytes moved, not only operations |
# | MUFU | 多功能单元 | the unit of an SM that evaluates exponentials |

# %%
# %matplotlib inline
import time
import tracemalloc

import numpy as np

import fa_numba
from fa_numba import models, viz
from fa_numba.exercises import check
from fa_numba.reference.flash_fwd import HbmCounter, flash_fwd, flash_fwd_fa1

# %% [markdown]
# ## Attention in four lines
#
# Every query row is compared with every key row, the scores of a row become weights that sum to 1,
# and the output row is the weighted mean of the value rows. That is all, and it is four lines of
# NumPy. We call it *dense* because the whole score matrix exists at once.


# %%
def dense_attention(q, k, v):
    """One head: q (seqlen_q, headdim), k (seqlen_k, headdim), v (seqlen_k, headdim_v)."""
    s = q @ k.T / np.sqrt(q.shape[1])  # (seqlen_q, seqlen_k)
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p @ v  # (seqlen_q, headdim_v)


rng = np.random.default_rng(0)
seqlen, headdim = 257, 64
q, k, v = rng.normal(size=(3, seqlen, headdim)).astype(np.float32)
dense = dense_attention(q, k, v)
dense.shape

# %% [markdown]
# The library computes the same function without ever holding the 257 × 257 matrix. Its arrays
# have the layout (batch, seqlen, nheads, headdim), so one head of one sequence gets two axes of
# length 1. First things first: **tiled is dense**, to rounding.

# %%
tiled = fa_numba.flash_attn_func(*(x[None, :, None, :] for x in (q, k, v)))[0, :, 0, :]
np.testing.assert_allclose(tiled, dense, rtol=1e-4, atol=1e-5)
float(abs(tiled - dense).max())

# %% [markdown]
# How much arithmetic is that? Each of the seqlen_q · seqlen_k scores needs headdim
# multiply-adds, and each weight meets headdim_v numbers of its value row. A multiply-add counts
# as two FLOPs:
#
# $$\text{FLOPs of a head} = 2\,N_q N_k\,(d + d_v) = 4 N^2 d \ \text{ if all lengths agree.}$$
#
# The softmax itself (a maximum, a subtraction, an exponential, a sum, a division a score) is not in
# the formula. It is few operations beside 4d, but remember it: it returns at the end.

# %%
assert models.attention_flops(1, 1, seqlen, seqlen, headdim, headdim) == 4 * seqlen**2 * headdim

# One layer of a Llama-3-8B-like model reading a prompt of 8192 tokens.
llama = {"batch": 1, "nheads": 32, "seqlen_q": 8192, "seqlen_k": 8192}
flops = models.attention_flops(**llama, headdim=128, headdim_v=128)
print(
    f"{flops / 1e12:.2f} TFLOP, {flops / models.CHIPS['H200'].tensor_flops * 1e3:.2f} ms on an H200"
)

# %% [markdown]
# ## The square that does not fit
#
# Arithmetic is the cheap part. Look at the intermediate matrices: dense attention writes S and
# P, two matrices of N × N a head, and at 16 bits a number they grow past any GPU long before
# the inputs do. Double the length and they take four times the memory. The tiled algorithm
# keeps one tile of scores a head, and one number a row (`lse`, the subject of notebook 02).

# %%
figure, data = viz.memory_curve([2**n for n in range(9, 18)], nheads=32)
figure

# %%
at_8k = list(data["seqlen"]).index(8192)
assert data["standard"][at_8k] == 2 * 32 * 8192**2 * 2
print(f"at 8k tokens: {data['standard'][at_8k] / 1e9:.1f} GB dense,", end=" ")
print(f"{data['tiled'][at_8k] / 1e6:.1f} MB tiled, for one sequence and one layer")

# %% [markdown]
# Running out of memory is the loud failure. The quiet one is that every byte of S and P also has to
# *travel*, and travelling is what GPUs are short of.
#
# ## Two memories
#
# A GPU has a large memory (HBM), off the chip, and in each of its 100-odd SMs a small one (SRAM,
# which CUDA calls shared memory). The model of the FlashAttention paper keeps only this:
#
# - arrays live in HBM; arithmetic happens on what is in SRAM;
# - every byte that crosses between the two is counted, and nothing else is.
#
# The standard algorithm runs three kernels. Each reads its operands from HBM and writes its result
# there: S = QKᵀ is written, read back to make P, P is written, and read back to meet V. Four passes
# over an N × N matrix, whatever the mask says.

# %%
shape = (
    1,
    1,
    1,
    4096,
    4096,
    64,
    64,
)  # batch, nheads, nheads_k, seqlen_q, seqlen_k, headdim, headdim_v
traffic = models.attention_hbm_traffic(*shape, bytes_per_element=2, algorithm="standard")
for name, size in (*traffic.reads.items(), *traffic.writes.items()):
    print(f"{name:4} {size / 2**20:7.2f} MiB")
least = models.attention_hbm_bytes(*shape, bytes_per_element=2, algorithm="minimal")
print(f"all  {traffic.total / 2**20:7.2f} MiB, of which {least / 2**20:.2f} MiB had to move")

# %% [markdown]
# ### Exercise 1: bytes of the standard algorithm
#
# Count them yourself, for one head without a mask. About 3 lines.


# %%
def hbm_bytes_standard(seqlen_q, seqlen_k, headdim, headdim_v, bytes_per_element):
    """Bytes read and written by the standard algorithm for one head."""
    raise NotImplementedError


check("01_hbm_bytes_standard", hbm_bytes_standard)

# %% [markdown]
# ## Three ways to wait
#
# A piece of GPU work takes as long as the slowest of three things:
#
# 1. **compute**: the arithmetic units are busy all the time;
# 2. **bandwidth**: they wait for bytes;
# 3. **overhead**: everything waits for Python, for kernel launches, for the first byte of a read.
#
# They call for different cures. A faster kernel does not cure overhead, fewer FLOPs do not cure a
# wait for bytes. So find out first which one it is.
#
# Overhead is the easiest to see: make the problem smaller, and the time does not shrink. Here,
# on the CPU, a call costs a fixed time before its first multiplication.


# %%
def best_seconds(function, repeats=5):
    """The shortest of some runs, after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


for n in (1, 4, 16, 64, 256):
    x = rng.normal(size=(1, n, 1, 64)).astype(np.float32)
    seconds = best_seconds(lambda x=x: fa_numba.flash_attn_func(x, x, x))
    work = models.attention_flops(1, 1, n, n, 64, 64)
    print(f"{n:4} tokens {seconds * 1e6:8.0f} µs {work / seconds / 1e9:9.4f} GFLOP/s")

# %% [markdown]
# Compute and bandwidth are told apart by one division. **Arithmetic intensity** is FLOPs per
# byte of HBM traffic. A chip has a ratio of its own, its *ridge*: peak FLOP/s over bytes/s.
# Below the ridge the memory cannot feed the arithmetic units; above it, it can.

# %%
for chip in models.CHIPS.values():
    print(
        f"{chip.name:14} {chip.tensor_flops / 1e12:6.0f} TFLOP/s bf16, "
        f"{chip.hbm_bandwidth / 1e12:5.2f} TB/s: ridge {chip.ridge:3.0f} FLOP/byte"
    )

# %% [markdown]
# ### Exercise 2: arithmetic intensity
#
# For one head that moves only what it must (q, k, v in, out out; ignore lse; headdim_v = headdim).
# About 3 lines.


# %%
def arithmetic_intensity(seqlen_q, seqlen_k, headdim, bytes_per_element):
    """FLOPs per byte of one head."""
    raise NotImplementedError


check("01_arithmetic_intensity", arithmetic_intensity)

# %% [markdown]
# ### Exercise 3: memory bound or not
#
# `chip` has the attributes `tensor_flops` (FLOP/s) and `hbm_bandwidth` (bytes/s). One line.


# %%
def is_memory_bound(intensity, chip):
    """True if work of this intensity waits for HBM on this chip."""
    raise NotImplementedError


check("01_is_memory_bound", is_memory_bound)
# %% [markdown]
# ## Tiles instead of squares
#
# The cure for traffic is to finish a tile of scores while it is in SRAM: make it, turn it into
# weights, multiply it with its values, forget it. S and P never reach HBM. The softmax is in
# the way, because a row's weights depend on all of its scores; notebook 02 removes that
# obstacle. Here we only count.
#
# There are two ways to walk over the tiles of the score matrix. FlashAttention-1 takes one tile
# of keys and lets all queries pass by; each row's unfinished output goes to HBM and returns for
# the next key tile. FlashAttention-2 takes one tile of queries and lets all keys pass by; the
# output stays on the chip until it is done, and every query tile is a job of its own, which
# gives a GPU more to do at once. The numbers are the order of the visits.

# %%
figure, data = viz.loop_order(20, 20, 4, 4)
figure

# %% [markdown]
# `fa_numba.reference` runs both orders, and a counter adds up each tile that is loaded or
# stored. So the traffic below is not only a formula: it is what a run moved (the diamonds), and
# the model must agree with it to the byte.

# %%
q4, k4, v4 = rng.normal(size=(3, 1, 512, 4, 64)).astype(np.float32)
counted, outputs = {}, {}
for name, forward in (("fa1", flash_fwd_fa1), ("fa2", flash_fwd)):
    counter = HbmCounter()
    outputs[name], _ = forward(
        q4, k4, v4, softmax_scale=64**-0.5, tile_m=64, tile_n=64, counter=counter
    )
    counted[name] = counter.total

np.testing.assert_allclose(outputs["fa1"], outputs["fa2"], rtol=1e-4, atol=1e-5)
for name, total in counted.items():
    assert total == models.attention_hbm_bytes(
        1, 4, 4, 512, 512, 64, 64, bytes_per_element=4, algorithm=name, tile_m=64, tile_n=64
    )

figure, data = viz.hbm_traffic(
    (1, 4, 4, 512, 512, 64, 64), bytes_per_element=4, tile_m=64, tile_n=64, counted=counted
)
figure

# %% [markdown]
# With queries outside, k and v are read once for every query tile: N / tile_m times. A taller
# tile reads them less often, and how tall it can be is a matter of how much SRAM there is. That
# is the theorem of the paper in one line: the traffic is of order N²d² / M for an SRAM of M
# numbers, and of order N² for the standard algorithm; M is several times d². A tile of 32 rows
# gains nothing:

# %%
for tile_m in (32, 64, 128, 256):
    moved = models.attention_hbm_bytes(*shape, bytes_per_element=2, algorithm="fa2", tile_m=tile_m)
    print(f"tile_m {tile_m:4}: {moved / 2**20:6.1f} MiB (standard: {traffic.total / 2**20:.1f})")

# %% [markdown]
# Counting every tile read is the strict view. A real GPU has an L2 cache of tens of MB between
# SRAM and HBM, and the keys and values of a head (4 MiB for 8192 tokens, head dim 128, 16 bits)
# fit into it. Reads that find their tile in L2 do not touch HBM, so the truth lies between
# "fa2" and "minimal".
#
# ## Prefill and decode
#
# The same formula, two very different workloads:
#
# - **prefill** (预填充): all tokens of a prompt are queries. A tile of keys that was loaded serves
#   thousands of queries, so intensity grows with the length;
# - **decode** (解码): one query, the newest token, against all cached keys. Each key is loaded,
#   used for one dot product a query head, and dropped. No loop order can help: there is nothing
#   to reuse.

# %%
heads = {"mha": (1, 32, 32), "gqa": (1, 32, 8)}


def point(kind, seqlen_q, algorithm):
    """FLOPs and HBM bytes against 8192 keys, head dim 128, 16 bits."""
    work = models.attention_flops(1, 32, seqlen_q, 8192, 128, 128)
    moved = models.attention_hbm_bytes(
        *heads[kind], seqlen_q, 8192, 128, 128, bytes_per_element=2, algorithm=algorithm
    )
    return work, moved


points = {
    "decode, 32 KV heads": point("mha", 1, "minimal"),
    "decode, 8 KV heads": point("gqa", 1, "minimal"),
    "prefill, standard": point("gqa", 8192, "standard"),
    "prefill, FA-2 tiles": point("gqa", 8192, "fa2"),
    "prefill, minimal": point("gqa", 8192, "minimal"),
}
figure, data = viz.roofline(points)
figure

# %% [markdown]
# Read it from left to right:
#
# - decode sits at 1 FLOP/byte, some 200 times left of the ridge: its time is the time to read
#   the KV cache, and the tensor cores idle. A larger batch does not help, because each sequence
#   brings its own cache. Sharing KV heads among query heads does (GQA: 4 query heads a KV head,
#   4 times the intensity);
# - standard prefill is memory bound although it does 1.1 TFLOP: S and P eat the bandwidth;
# - FA-2's tiles move it near the ridge even if no read ever hits the L2 cache, and far beyond it if
#   all repeated reads do. Prefill is a compute problem; standard attention just hid that.

# %%
intensity = {name: entry["intensity"] for name, entry in data["points"].items()}
assert 0.9 < intensity["decode, 32 KV heads"] < 1.01
assert 3.5 < intensity["decode, 8 KV heads"] < 4.01
assert intensity["prefill, standard"] < models.CHIPS["A100"].ridge < intensity["prefill, minimal"]

cache = models.roofline_time(*points["decode, 8 KV heads"], models.CHIPS["H200"])
print(f"decode step of one layer on an H200: {cache.seconds * 1e6:.1f} µs, bound by {cache.bound}")

# %% [markdown]
# ## What a mask saves
#
# A causal mask hides the future: half of the pairs. Only an algorithm that works in tiles can
# cash in, by *skipping* tiles without an allowed pair. Tiles that are allowed in full need no
# mask at all; only those on the edge do. `fa_numba.indexing` computes the three kinds from the
# lengths, and this picture, the NumPy reference and the kernels all call the same function.

# %%
figure, data = viz.mask_tiles(24, 28, 4, 4, window_right=0)
figure

# %% [markdown]
# Note the alignment: with more keys than queries, the *last* query sees all keys (bottom right).
# That is what a decoder needs, whose queries are the newest tokens. A sliding window cuts the other
# side as well, and *sink* tokens (注意力沉积) stay visible to everyone.

# %%
figure, data = viz.mask_tiles(24, 28, 4, 4, window_left=7, window_right=0, sink_token_length=2)
figure

# %%
full = models.allowed_pairs(8192, 8192)
for label, window in (
    ("causal", {"window_right": 0}),
    ("causal, window of 1024", {"window_left": 1023, "window_right": 0}),
):
    pairs = models.allowed_pairs(8192, 8192, **window)
    rows = models.key_rows_read(8192, 8192, 128, 128, **window)
    print(f"{label:24} {pairs / full:6.1%} of the pairs, {rows / (64 * 8192):6.1%} of the tiles")

# %% [markdown]
# ### Exercise 4: pairs under a causal mask
#
# Count the allowed pairs of a causal mask that is aligned at the bottom right: query i sees key
# j if j ≤ i + seqlen_k − seqlen_q. Mind the case of more queries than keys. 1 to 3 lines.


# %%
def causal_pairs(seqlen_q, seqlen_k):
    """Number of (query, key) pairs that the mask allows."""
    raise NotImplementedError


check("01_causal_pairs", causal_pairs)
# %% [markdown]
# ## Asymmetric scaling
#
# One cost was left out: the exponentials. There is one for each allowed pair, against 4d FLOPs
# of matrix products, 512 for head dim 128. That sounds like nothing, until one looks at the
# chip: an SM has tensor cores for the products, but only 16 exponentials a clock in its MUFU.
# The tensor cores of an SM have doubled their rate with each generation; from the A100
# to the B200 the MUFU has stayed (非对称缩放).

# %%
figure, data = viz.unit_times(
    *point("gqa", 8192, "minimal"), models.attention_exps(1, 32, 8192, 8192)
)
figure

# %%
share = {chip: times["mufu"] / times["tensor"] for chip, times in data.items()}
assert abs(share["H100"] - 0.5) < 0.01
assert abs(share["B200"] - 1.0) < 0.01
share

# %% [markdown]
# On a Hopper GPU the exponentials take half as long as the matrix products; if the two do not
# overlap, a third of the time is gone. Hiding one behind the other is the main subject of
# FlashAttention-3. On a B200 both take equally long, and FlashAttention-4 computes part of the
# exponentials as polynomials on ordinary arithmetic units (`fa_numba.reference.exp2`).
#
# ## On this machine
#
# A CPU has the same two problems on a smaller scale: RAM is its HBM, the L2 cache its SRAM.
# Below, dense attention against `flash_attn_func`, which on NumPy arrays runs the tiled loop in
# NumPy. Time is the best of a few runs; memory is the peak that tracemalloc sees beside the
# inputs.


# %%
def dense_heads(q, k, v):
    """Dense attention on (batch, seqlen, nheads, headdim), all heads at once."""
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    s = q @ k.swapaxes(2, 3) / np.float32(np.sqrt(q.shape[3]))
    p = np.exp(s - s.max(axis=3, keepdims=True))
    p /= p.sum(axis=3, keepdims=True)
    return (p @ v).swapaxes(1, 2)


def peak_bytes(function):
    """Largest amount of memory that is allocated at once during a call."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


rows = []
for n in (256, 512, 1024, 2048):
    qkv = rng.normal(size=(3, 1, n, 4, 64)).astype(np.float32)
    np.testing.assert_allclose(
        fa_numba.flash_attn_func(*qkv), dense_heads(*qkv), rtol=1e-3, atol=1e-5
    )
    row = {"seqlen": n}
    for kind, function in (("dense", dense_heads), ("tiled", fa_numba.flash_attn_func)):
        row[f"{kind}_seconds"] = best_seconds(lambda f=function, x=qkv: f(*x), repeats=3)
        row[f"{kind}_bytes"] = peak_bytes(lambda f=function, x=qkv: f(*x))
    rows.append(row)

figure, data = viz.measured_cost(rows, title="4 heads, head dim 64, float32")
figure

# %%
growth = {
    kind: float(data[f"{kind}_bytes"][-1] / data[f"{kind}_bytes"][-2])
    for kind in ("dense", "tiled")
}
assert growth["dense"] > 3.5  # four times for twice the length
assert growth["tiled"] < 2.5
growth

# %% [markdown]
# Where memory is concerned the two curves part early. Where time is concerned the gain is
# modest on a CPU, and at short lengths dense may win: the tiled loop pays Python overhead a
# tile (the third way to wait). On a GPU, where the ridge is far higher, traffic decides.
#
# ## Ask before you run
#
# All of this arithmetic is built into the library. `explain` takes shapes, not data, and says
# what a call would do: which family of kernels serves it, tiles, visited blocks, FLOPs, bytes.
# The same table comes from `python -m fa_numba explain`.

# %%
print(fa_numba.explain((1, 8192, 32, 128), (1, 8192, 8, 128), "bfloat16", causal=True))

# %% [markdown]
# ## Where to find it in the code
#
# | here | there |
# | --- | --- |
# | FLOPs, exponentials, scratch memory | `fa_numba/models/cost.py` |
# | HBM traffic of four algorithms, forward and backward | `fa_numba/models/hbm.py` |
# | chips and the roofline, with their sources | `fa_numba/models/roofline.py` |
# | which tiles are visited, masked, skipped | `fa_numba/indexing/block_range.py` |
# | both loop orders, and the byte counter | `fa_numba/reference/flash_fwd.py`, `tile_io.py` |
# | the exercises' solutions: `print(solution("01_causal_pairs"))` | `fa_numba/exercises/` |
#
# ## Summary
#
# - Attention is 4N²d FLOPs a head; dense attention adds two N × N matrices and moves each to memory
#   and back.
# - Work waits for compute, bandwidth or overhead. Intensity against the ridge tells the first
#   two apart: prefill is compute bound once S and P stay on the chip, decode is bandwidth bound
#   unless very many query heads share a KV head.
# - Tiling changes the traffic from N² to N²d²/M, and lets a mask save time by skipping tiles.
# - Exponentials are the next wall: tensor cores grew, the MUFU did not.
#
# ## What next
#
# The one thing we took on trust is that a softmax can be computed tile by tile.
# [02 · The online softmax](02_online_softmax.ipynb) shows how.
#
# Sources: FlashAttention (arXiv 2205.14135, sections 2 and 3), FlashAttention-2 (2307.08691),
# FlashAttention-3 (2407.08608), FlashAttention-4 (2603.05451); Williams, Waterman and Patterson,
# *Roofline* (2009); the triage into compute, bandwidth and overhead follows Horace He, *Making Deep
# Learning Go Brrrr From First Principles* (2022). Chip data: NVIDIA data sheets, named in
# `models/roofline.py`.
