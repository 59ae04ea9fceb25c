"""Attention in NumPy: what every kernel must compute, written to be read.

Two kinds of modules live here.

The *oracles*, `attention` and `attention_grad`, evaluate the dense formulas in float64 and share no
code with anything else.

The *tellings* are the algorithms themselves, tile by tile, under the names that the kernels have:

- `flash_fwd`: the forward in the loop orders of FlashAttention-2 and FlashAttention-1, and split
  along the keys; `flash_fwd_combine` merges the splits;
- its stages `tile_io` (where a tile comes from), `score_mod` (scale and softcap), `mask`, `softmax`
  (the online softmax) and `epilogue` (normalise and store);
- `flash_bwd`: the backward with its pre- and postprocess;
- `append_kv` and `rotary`: a KV cache; `quant`: FP8; `exp2`: the exponential in software.

Nothing here imports Numba.
"""
