"""Bad input (contract §4): one sentence that names the argument, what was got, what is accepted."""

import re

import ml_dtypes
import numpy as np
import pytest

import fa_numba as fa


def i32(*values):
    return np.array(values, np.int32)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


Q, K = (2, 5, 4, 8), (2, 7, 2, 8)


def dense(q=Q, k=K, v=K, **flags):
    arrays = [x if isinstance(x, np.ndarray) else zeros(*x) for x in (q, k, v)]
    return lambda: fa.flash_attn_func(*arrays, **flags)


def varlen(**changes):
    args = {
        "q": zeros(9, 4, 8), "k": zeros(12, 2, 8), "v": zeros(12, 2, 8),
        "cu_seqlens_q": i32(0, 4, 9), "cu_seqlens_k": i32(0, 7, 12),
        "max_seqlen_q": 5, "max_seqlen_k": 7, **changes,
    }  # fmt: skip
    return lambda: fa.flash_attn_varlen_func(**args)


def paged_varlen(**changes):
    paged = {
        "k": zeros(3, 4, 2, 8), "v": zeros(3, 4, 2, 8), "seqused_k": i32(7, 5),
        "cu_seqlens_k": None, "block_table": i32(0, 1, 2, 0).reshape(2, 2), **changes,
    }  # fmt: skip
    return varlen(**paged)


def kvcache(**changes):
    args = {
        "q": zeros(2, 3, 4, 8), "k_cache": zeros(2, 16, 2, 8), "v_cache": zeros(2, 16, 2, 8),
        "k": zeros(2, 3, 2, 8), "v": zeros(2, 3, 2, 8), "cache_seqlens": i32(4, 0), **changes,
    }  # fmt: skip
    return lambda: fa.flash_attn_with_kvcache(**args)


def paged_kvcache(**changes):
    pages = {"k_cache": zeros(6, 4, 2, 8), "v_cache": zeros(6, 4, 2, 8)}
    return kvcache(**{**pages, "block_table": i32(0, 1, 2, 3, 4, 5).reshape(2, 3), **changes})


def backward(**changes):
    args = {
        "dout": zeros(2, 5, 4, 8), "q": zeros(*Q), "k": zeros(*K), "v": zeros(*K),
        "out": zeros(2, 5, 4, 8), "lse": zeros(2, 4, 5), **changes,
    }  # fmt: skip
    return lambda: fa.flash_attn_backward(**args)


def shared_rows(batch, *shape):
    """A writable array whose sequences are all the same memory."""
    x = zeros(*shape)
    return np.lib.stride_tricks.as_strided(x, (batch, *shape), (0, *x.strides))


class FakeCudaArray:
    """What the checks can see of a GPU array."""

    dtype, ndim, shape = np.dtype(np.float32), 4, Q

    def __dlpack_device__(self):
        return (2, 1)


HALF, BF16, FP8 = np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn

CASES = {
    # shapes, heads, ranks
    "heads do not divide": (dense(q=(2, 5, 3, 8)), ValueError, "q has 3 heads and k has 2"),
    "no KV heads": (dense(k=(2, 7, 0, 8), v=(2, 7, 0, 8)), ValueError, "k has 0"),
    "k and v lengths": (dense(v=(2, 6, 2, 8)), ValueError, "v has shape (2, 6, 2) and k has"),
    "k and v heads": (dense(v=(2, 7, 4, 8)), ValueError, "v has shape (2, 7, 4) and k has"),
    "headdim of k": (dense(k=(2, 7, 2, 6)), ValueError, "k has headdim 6 and q has headdim 8"),
    "batch of k": (
        dense(k=(3, 7, 2, 8), v=(3, 7, 2, 8)),
        ValueError,
        "k has batch 3 and q has batch 2",
    ),
    "rank of q": (dense(q=(5, 4, 8)), ValueError, "q has 3 dimensions, shape (5, 4, 8)"),
    "rank of packed k": (
        varlen(k=zeros(1, 12, 2, 8)),
        ValueError,
        "k has 4 dimensions, shape (1, 12, 2, 8); accepted are 3: (total, heads, headdim)",
    ),
    "pages that are rows": (
        paged_varlen(k=zeros(12, 2, 8)),
        ValueError,
        "accepted are 4: pages (num_blocks, page_size, heads, headdim), as block_table was given",
    ),
    "rank of packed q": (varlen(q=zeros(1, 9, 4, 8)), ValueError, "q has 4 dimensions"),
    "headdim 257": (
        dense((1, 1, 1, 257), (1, 1, 1, 257), (1, 1, 1, 8)),
        ValueError,
        "headdim is 257",
    ),
    "headdim_v 0": (dense(v=(2, 7, 2, 0)), ValueError, "headdim_v is 0; accepted are 1 to 256"),
    # dtypes, libraries, devices
    "mixed dtypes": (dense(k=zeros(*K, dtype=HALF)), TypeError, "k has dtype float16 and q has"),
    "integer dtype": (dense(q=zeros(*Q, dtype=np.int32)), TypeError, "q has dtype int32"),
    "uint8 without dtype": (dense(q=zeros(*Q, dtype=np.uint8)), TypeError, "pass dtype='float8"),
    "dtype that q has not": (
        dense(dtype="float16"),
        TypeError,
        "accepted is float16, as dtype='float16'",
    ),
    "dtype unknown": (dense(dtype="float12"), TypeError, "dtype is 'float12'; accepted are"),
    "a list": (lambda: fa.flash_attn_func([1.0], zeros(*K), zeros(*K)), TypeError, "q is a list"),
    "a masked array": (
        dense(v=np.ma.masked_array(zeros(*K), mask=True)),
        TypeError,
        "v is a masked array, and its mask would be ignored",
    ),
    "masked lengths": (
        varlen(seqused_k=np.ma.masked_array(i32(7, 5), mask=[0, 1])),
        TypeError,
        "seqused_k is a masked array",
    ),
    "None": (lambda: fa.flash_attn_func(None, zeros(*K), zeros(*K)), TypeError, "q is None"),
    "a GPU array": (
        lambda: fa.flash_attn_func(*[FakeCudaArray()] * 3),
        TypeError,
        "no GPU kernel family yet",
    ),
    "two devices": (
        lambda: fa.flash_attn_func(FakeCudaArray(), zeros(*K), zeros(*K)),
        ValueError,
        "k is on cpu and q is on cuda:1",
    ),
    "out_dtype of float32": (dense(out_dtype="float16"), ValueError, "out_dtype is 'float16'"),
    "out_dtype float64 of FP8": (
        dense(*(zeros(*s, dtype=FP8) for s in (Q, K, K)), out_dtype="float64"),
        ValueError,
        "accepted for FP8 inputs are bfloat16, float16, float32",
    ),
    "out_dtype no dtype": (dense(out_dtype="wide"), TypeError, "out_dtype is 'wide'"),
    # flags
    "window a number": (dense(window_size=3), ValueError, "window_size is 3; accepted is a pair"),
    "window of three": (dense(window_size=(1, 2, 3)), ValueError, "accepted is a pair"),
    "window of floats": (dense(window_size=(1.5, 0)), TypeError, "window_size[0] is 1.5"),
    "softcap negative": (dense(softcap=-1.0), ValueError, "softcap is -1.0"),
    "softcap nan": (dense(softcap=float("nan")), ValueError, "softcap is nan"),
    "softcap text": (dense(softcap="x"), TypeError, "softcap is 'x'; accepted is a number"),
    "scale negative": (dense(softmax_scale=-0.1), ValueError, "for a negative one negate q"),
    "scale inf": (dense(softmax_scale=float("inf")), ValueError, "softmax_scale is inf"),
    "scale nan": (dense(softmax_scale=float("nan")), ValueError, "softmax_scale is nan"),
    "scale beyond float32": (
        dense(softmax_scale=1e39),
        ValueError,
        "softmax_scale is 1e+39; accepted is a finite value >= 0",
    ),
    "softcap beyond float32": (dense(softcap=1e39), ValueError, "at most 1.7e+38 for float32"),
    "softcap inf": (dense(softcap=float("inf")), ValueError, "softcap is inf"),
    "softcap tiny": (
        dense(softcap=1e-42),
        ValueError,
        "softcap is 1e-42; accepted are 0, which means none, and from 5.9e-39 on",
    ),
    "sink negative": (dense(sink_token_length=-1), ValueError, "sink_token_length is -1"),
    "num_splits negative": (dense(num_splits=-1), ValueError, "num_splits is -1"),
    "num_splits 257": (dense(num_splits=257), ValueError, "accepted is an integer from 0 to 256"),
    "softcap digits": (dense(softcap="3"), TypeError, "softcap is '3'; accepted is a number"),
    "softcap of a list": (dense(softcap=np.array([3.0])), TypeError, "softcap is array([3.])"),
    "softcap huge": (dense(softcap=10**400), ValueError, "softcap is an integer beyond 1e308"),
    "scale a bool": (dense(softmax_scale=True), TypeError, "softmax_scale is True; accepted is a"),
    "window of bools": (dense(window_size=(True, 0)), TypeError, "window_size[0] is True"),
    "sink a bool": (dense(sink_token_length=True), TypeError, "sink_token_length is True"),
    "causal a word": (dense(causal="no"), TypeError, "causal is 'no'; accepted is True or False"),
    "causal nan": (dense(causal=float("nan")), TypeError, "causal is nan"),
    "causal None": (dense(causal=None), TypeError, "causal is None"),
    "causal by sequence": (
        dense(causal=np.array([True, False])),
        TypeError,
        "causal is an array of shape (2,); accepted is True or False",
    ),
    "pack_gqa a number": (dense(pack_gqa=2), TypeError, "pack_gqa is 2"),
    "return_lse a word": (dense(return_lse="yes"), TypeError, "return_lse is 'yes'"),
    "validate a word": (varlen(validate="yes"), TypeError, "validate is 'yes'"),
    "deterministic a word": (backward(deterministic="yes"), TypeError, "deterministic is 'yes'"),
    "backward: validate": (backward(validate=None), TypeError, "validate is None"),
    "rotary_interleaved a word": (
        kvcache(rotary_interleaved="halves"),
        TypeError,
        "rotary_interleaved is 'halves'",
    ),
    "backend an array": (dense(backend=np.array(["auto", "sm80"])), ValueError, "backend is array"),
    "rotate a word": (
        lambda: fa.quantize(zeros(*Q), rotate="yes"),
        TypeError,
        "rotate is 'yes'",
    ),
    "num_splits float": (dense(num_splits=2.0), TypeError, "num_splits is 2.0"),
    "backend unknown": (dense(backend="cuda"), ValueError, "backend is 'cuda'; accepted are"),
    "backend of kernels": (dense(backend="sm80"), ValueError, "NumPy arrays run with backend="),
    "unknown keyword": (dense(causa=True), TypeError, "causa"),
    # other libraries' keywords
    "dropout_p": (
        dense(dropout_p=0.1),
        TypeError,
        "dropout_p was given to flash_attn_func; dropout is not",
    ),
    "alibi_slopes": (dense(alibi_slopes=zeros(4)), TypeError, "ALiBi is not implemented"),
    "qv": (dense(qv=zeros(*Q)), TypeError, "qv was given"),
    "attention_chunk": (dense(attention_chunk=64), TypeError, "chunked attention"),
    "s_aux": (varlen(s_aux=zeros(4)), TypeError, "s_aux was given to flash_attn_varlen_func"),
    "page_table": (kvcache(page_table=i32(0)), TypeError, "the one spelling here is block_table"),
    "deterministic forward": (
        dense(deterministic=True),
        TypeError,
        "deterministic was given to flash_attn_func; a forward always is",
    ),
    "learnable_sink": (dense(learnable_sink=zeros(4)), TypeError, "learnable_sink was given to"),
    "sm_margin": (dense(sm_margin=8), TypeError, "sm_margin was given to flash_attn_func;"),
    "scheduler_metadata": (kvcache(scheduler_metadata=i32(0)), TypeError, "prepares its own"),
    "return_attn_probs": (dense(return_attn_probs=True), TypeError, "return_lse"),
    "return_softmax_lse": (kvcache(return_softmax_lse=True), TypeError, "return_lse"),
    # out
    "shape of out": (dense(out=zeros(2, 5, 4, 9)), ValueError, "out has shape (2, 5, 4, 9)"),
    "dtype of out": (dense(out=zeros(2, 5, 4, 8, dtype=HALF)), TypeError, "out has dtype float16"),
    "out read-only": (
        dense(out=np.broadcast_to(np.float32(0), (2, 5, 4, 8))),
        ValueError,
        "out is read-only",
    ),
    "out with shared rows": (
        dense(out=shared_rows(2, 5, 4, 8)),
        ValueError,
        "out has strides (0, 128, 32, 4) for shape (2, 5, 4, 8)",
    ),
    # FP8
    "descale without FP8": (dense(k_descale=zeros(2, 2)), TypeError, "k_descale was given with"),
    "descale of q by q's heads": (
        dense(*(zeros(*s, dtype=FP8) for s in (Q, K, K)), q_descale=zeros(2, 4)),
        ValueError,
        "q_descale has shape (2, 4); accepted is (batch, nheads_k) = (2, 2)",
    ),
    "descale a float": (
        dense(*(zeros(*s, dtype=FP8) for s in (Q, K, K)), v_descale=1.0),
        TypeError,
        "v_descale is float; accepted is a float32 array",
    ),
    "descale of float64": (
        dense(*(zeros(*s, dtype=FP8) for s in (Q, K, K)), v_descale=zeros(2, 2, dtype=float)),
        TypeError,
        "v_descale is dtype float64",
    ),
    # packed arrays
    "qkv of four": (
        lambda: fa.flash_attn_qkvpacked_func(zeros(2, 5, 4, 4, 8)),
        ValueError,
        "qkv has shape (2, 5, 4, 4, 8); accepted is (batch, seqlen, 3, heads",
    ),
    "kv not an array": (
        lambda: fa.flash_attn_kvpacked_func(zeros(*Q), 3),
        TypeError,
        "kv is a int",
    ),
    "varlen qkv padded": (
        lambda: fa.flash_attn_varlen_qkvpacked_func(zeros(2, 5, 3, 4, 8), i32(0, 5), 5),
        ValueError,
        "accepted is (total, 3, heads, headdim)",
    ),
    # varlen
    "cu_seqlens int64": (
        varlen(cu_seqlens_q=np.array([0, 4, 9])),
        TypeError,
        "cu_seqlens_q has dtype int64",
    ),
    "cu_seqlens a list": (varlen(cu_seqlens_q=[0, 4, 9]), TypeError, "cu_seqlens_q is a list"),
    "cu_seqlens rank": (
        varlen(cu_seqlens_q=i32(0, 9)[None]),
        ValueError,
        "cu_seqlens_q has shape (1, 2)",
    ),
    "cu_seqlens empty": (varlen(cu_seqlens_q=i32()), ValueError, "cu_seqlens_q is empty"),
    "cu_seqlens lengths": (varlen(cu_seqlens_k=i32(0, 12)), ValueError, "cu_seqlens_k has shape"),
    "cu_seqlens decreasing": (varlen(cu_seqlens_k=i32(0, 7, 6)), ValueError, "never decrease"),
    "cu_seqlens negative": (
        varlen(cu_seqlens_q=i32(-1, 4, 9)),
        ValueError,
        "cu_seqlens_q is [-1  4  9]",
    ),
    "cu_seqlens too long": (varlen(cu_seqlens_q=i32(0, 4, 10)), ValueError, "q has 9 rows"),
    "cu_seqlens_k None": (
        varlen(cu_seqlens_k=None),
        TypeError,
        "only with block_table and seqused_k",
    ),
    "max_seqlen_q short": (
        varlen(max_seqlen_q=4),
        ValueError,
        "max_seqlen_q is 4; a sequence has 5",
    ),
    "max_seqlen_k short": (varlen(max_seqlen_k=6), ValueError, "max_seqlen_k is 6"),
    "max_seqlen_q float": (varlen(max_seqlen_q=5.0), TypeError, "max_seqlen_q is 5.0"),
    "seqused above": (varlen(seqused_k=i32(8, 5)), ValueError, "seqused_k is [8 5]"),
    "seqused negative": (varlen(seqused_q=i32(-1, 5)), ValueError, "seqused_q is [-1  5]"),
    "seqused length": (varlen(seqused_q=i32(1)), ValueError, "seqused_q has shape (1,)"),
    "paged: page number": (
        paged_varlen(block_table=i32(0, 1, 2, 3).reshape(2, 2)),
        ValueError,
        "block_table[1, 1] is 3; accepted are 0 to 2",
    ),
    "paged: negative page": (
        paged_varlen(block_table=i32(0, -1, 2, 0).reshape(2, 2)),
        ValueError,
        "block_table[0, 1]",
    ),
    "paged: page of a sink": (
        paged_varlen(
            block_table=i32(9, 1, 2, 0).reshape(2, 2),
            window_size=(0, 0),
            sink_token_length=1,
            cu_seqlens_q=i32(0, 1, 2),
            q=zeros(2, 4, 8),
        ),
        ValueError,
        "block_table[0, 0] is 9; accepted are 0 to 2",
    ),
    "paged: beyond the table": (
        paged_varlen(seqused_k=None, cu_seqlens_k=i32(0, 9, 12), max_seqlen_k=9),
        ValueError,
        "cu_seqlens_k gives a length of 9; block_table holds 2 pages of 4 rows",
    ),
    "paged: seqused beyond": (
        paged_varlen(seqused_k=i32(9, 1), max_seqlen_k=9),
        ValueError,
        "seqused_k is [9 1]",
    ),
    "paged: table rank": (paged_varlen(block_table=i32(0, 1)), ValueError, "block_table has shape"),
    "paged: table dtype": (
        paged_varlen(block_table=np.zeros((2, 2), np.int64)),
        TypeError,
        "block_table has dtype",
    ),
    # KV cache
    "k without v": (kvcache(v=None), TypeError, "v is None; k and v come together"),
    "v without k": (kvcache(k=None), TypeError, "k is None; k and v come together"),
    "k without cache_seqlens": (kvcache(cache_seqlens=None), ValueError, "cache_seqlens is None"),
    "cache_seqlens negative": (
        kvcache(cache_seqlens=i32(-1, 0)),
        ValueError,
        "cache_seqlens is [-1  0]",
    ),
    "cache_seqlens negative int": (kvcache(cache_seqlens=-1), ValueError, "cache_seqlens is -1"),
    "cache_seqlens length": (
        kvcache(cache_seqlens=i32(1, 1, 1)),
        ValueError,
        "cache_seqlens has shape (3,)",
    ),
    "cache_seqlens int64": (
        kvcache(cache_seqlens=np.array([1, 1])),
        TypeError,
        "cache_seqlens has dtype int64",
    ),
    "cache_seqlens float": (kvcache(cache_seqlens=1.0), TypeError, "cache_seqlens is 1.0"),
    "cache overflow": (kvcache(cache_seqlens=i32(14, 0)), ValueError, "the cache holds 16"),
    "cache overflow by an int": (
        kvcache(cache_seqlens=2**63 - 1),
        ValueError,
        "cache_seqlens is 9223372036854775807 and 3 tokens are appended; the cache holds 16",
    ),
    "cache overflow by a huge int": (
        kvcache(cache_seqlens=2**70, k=None, v=None),
        ValueError,
        "cache_seqlens is 1180591620717411303424 and 0 tokens",
    ),
    "batch of new k": (
        kvcache(k=zeros(1, 3, 2, 8), v=zeros(1, 3, 2, 8)),
        ValueError,
        "k has shape (1, 3, 2, 8)",
    ),
    "lengths of k and v": (kvcache(v=zeros(2, 2, 2, 8)), ValueError, "v has shape (2, 2) and k"),
    "dtype of k": (kvcache(k=zeros(2, 3, 2, 8, dtype=HALF)), TypeError, "k has dtype float16 and"),
    "dtype of the cache": (
        kvcache(k_cache=zeros(2, 16, 2, 8, dtype=HALF)),
        TypeError,
        "k_cache has dtype float16",
    ),
    "cache rows": (
        kvcache(k_cache=zeros(3, 16, 2, 8), v_cache=zeros(3, 16, 2, 8)),
        ValueError,
        "k_cache has 3 rows and q has batch 2",
    ),
    "cache read-only": (
        kvcache(k_cache=np.broadcast_to(np.float32(0), (2, 16, 2, 8))),
        ValueError,
        "k_cache is read-only",
    ),
    "cache with shared rows": (
        kvcache(v_cache=shared_rows(2, 16, 2, 8)),
        ValueError,
        "v_cache has strides (0, 64, 32, 4)",
    ),
    "cache_batch_idx range": (
        kvcache(cache_batch_idx=i32(0, 2)),
        ValueError,
        "cache_batch_idx is [0 2]",
    ),
    "cache_batch_idx twice": (kvcache(cache_batch_idx=i32(1, 1)), ValueError, "may be named once"),
    "cache_leftpad negative": (
        kvcache(cache_leftpad=i32(-1, 0)),
        ValueError,
        "cache_leftpad is [-1  0]",
    ),
    "cache_leftpad beyond": (
        kvcache(cache_leftpad=i32(0, 4)),
        ValueError,
        "cache_leftpad is [0 4]",
    ),
    "cache_leftpad with pages": (
        paged_kvcache(cache_leftpad=i32(0, 0)),
        ValueError,
        "cache_leftpad was given with block_table",
    ),
    "cache_batch_idx with pages": (
        paged_kvcache(cache_batch_idx=i32(0, 1)),
        ValueError,
        "cache_batch_idx was given with block_table",
    ),
    "append to no page": (
        paged_kvcache(block_table=i32(0, 9, 2, 3, 4, 5).reshape(2, 3)),
        ValueError,
        "block_table[0, 1] is 9",
    ),
    "append behind a window to no page": (
        paged_kvcache(
            q=zeros(2, 1, 4, 8),
            window_size=(0, 0),
            block_table=i32(0, 9, 2, 3, 4, 5).reshape(2, 3),
            cache_seqlens=i32(7, 0),
        ),
        ValueError,
        "block_table[0] names pages [9 2] for new tokens",
    ),
    "rotary without k": (
        kvcache(k=None, v=None, rotary_cos=zeros(16, 4), rotary_sin=zeros(16, 4)),
        ValueError,
        "rotary_cos was given without k",
    ),
    "rotary_cos alone": (kvcache(rotary_cos=zeros(16, 4)), TypeError, "rotary_sin is None"),
    "rotary_sin alone": (kvcache(rotary_sin=zeros(16, 4)), TypeError, "rotary_cos is None"),
    "rotary shapes": (
        kvcache(rotary_cos=zeros(16, 4), rotary_sin=zeros(16, 2)),
        ValueError,
        "rotary_sin has shape (16, 2)",
    ),
    "rotary_dim": (
        kvcache(rotary_cos=zeros(16, 5), rotary_sin=zeros(16, 5)),
        ValueError,
        "rotary_dim is 10; accepted are 2 to headdim = 8",
    ),
    "rotary_dim 0": (
        kvcache(rotary_cos=zeros(16, 0), rotary_sin=zeros(16, 0)),
        ValueError,
        "rotary_dim is 0; accepted are 2 to headdim = 8",
    ),
    "rotary positions": (
        kvcache(rotary_cos=zeros(6, 4), rotary_sin=zeros(6, 4)),
        ValueError,
        "rotary_cos has 6 positions; the call reaches position 6",
    ),
    "max_seqlen_q alone": (kvcache(max_seqlen_q=3), TypeError, "max_seqlen_q was given without"),
    "cu_seqlens_q alone": (
        kvcache(q=zeros(6, 4, 8), cu_seqlens_q=i32(0, 3, 6)),
        TypeError,
        "max_seqlen_q is None",
    ),
    "max_seqlen_q short of packed q": (
        kvcache(q=zeros(6, 4, 8), cu_seqlens_q=i32(0, 2, 6), max_seqlen_q=3),
        ValueError,
        "max_seqlen_q is 3; a sequence has 4",
    ),
    # combine
    "combine: rank": (
        lambda: fa.flash_attn_combine(zeros(2, 3, 4, 5), zeros(2, 3, 4)),
        ValueError,
        "out_partial has 4 dimensions",
    ),
    "combine: dtype": (
        lambda: fa.flash_attn_combine(zeros(2, 1, 3, 4, 8, dtype=BF16), zeros(2, 1, 4, 3)),
        TypeError,
        "out_partial has dtype bfloat16",
    ),
    "combine: FlashAttention-3's lse": (
        lambda: fa.flash_attn_combine(zeros(2, 1, 3, 4, 8), zeros(2, 1, 3, 4)),
        ValueError,
        "FlashAttention-3's layout: swap its last two axes",
    ),
    "combine: lse shape": (
        lambda: fa.flash_attn_combine(zeros(2, 1, 3, 4, 8), zeros(2, 1, 4, 4)),
        ValueError,
        "lse_partial has shape (2, 1, 4, 4)",
    ),
    "combine: no partial": (
        lambda: fa.flash_attn_combine(zeros(0, 1, 3, 4, 8), zeros(0, 1, 4, 3)),
        ValueError,
        "num_splits of out_partial is 0",
    ),
    "combine: FP8 out": (
        lambda: fa.flash_attn_combine(zeros(2, 1, 3, 4, 8), zeros(2, 1, 4, 3), out_dtype=FP8),
        TypeError,
        "out_dtype is 'float8_e4m3fn'",
    ),
    "combine: FlashAttention-2's lse of an empty row": (
        lambda: fa.flash_attn_combine(
            zeros(2, 1, 3, 4, 8), np.full((2, 1, 4, 3), np.inf, np.float32)
        ),
        ValueError,
        "lse_partial holds +inf; accepted is -inf for an empty partial",
    ),
    # backward
    "backward of FP8": (
        backward(q=zeros(*Q, dtype=FP8), k=zeros(*K, dtype=FP8), v=zeros(*K, dtype=FP8)),
        TypeError,
        "the backward accepts",
    ),
    "backward: dout": (backward(dout=zeros(2, 5, 4, 7)), ValueError, "dout has shape (2, 5, 4, 7)"),
    "backward: dout dtype": (
        backward(dout=zeros(2, 5, 4, 8, dtype=HALF)),
        TypeError,
        "dout has dtype float16; accepted is float32",
    ),
    "backward: lse": (
        backward(lse=zeros(2, 5, 4)),
        ValueError,
        "lse has shape (2, 5, 4); accepted",
    ),
    "backward: lse dtype": (
        backward(lse=zeros(2, 4, 5, dtype=float)),
        TypeError,
        "lse has dtype float64",
    ),
    "backward: dlse": (backward(dlse=zeros(2, 4, 6)), ValueError, "dlse has shape (2, 4, 6)"),
    # the rest
    "quantize granularity": (
        lambda: fa.quantize(zeros(*Q), granularity="row"),
        ValueError,
        "granularity is 'row'",
    ),
    "quantize heads": (lambda: fa.quantize(zeros(*Q), nheads_k=3), ValueError, "nheads_k is 3"),
    "quantize block": (lambda: fa.quantize(zeros(*Q), block=0), ValueError, "block is 0"),
    "explain rank": (
        lambda: fa.explain((1, 2, 3), K, "float32"),
        ValueError,
        "q_shape is (1, 2, 3)",
    ),
    "explain an array": (
        lambda: fa.explain(zeros(*Q), K, "float32"),
        TypeError,
        "q_shape is a ndarray; accepted is a shape",
    ),
    "explain a number": (lambda: fa.explain(Q, 7, "float32"), TypeError, "k_shape is a int"),
    "explain dropout": (
        lambda: fa.explain(Q, K, "float32", dropout_p=0.1),
        TypeError,
        "dropout_p was given to explain; dropout is not implemented",
    ),
    "explain no dtype": (lambda: fa.explain(Q, K, None), TypeError, "dtype is None; accepted are"),
    "quantize nothing": (
        lambda: fa.quantize(zeros(2, 5, 4, 0), rotate=True),
        ValueError,
        "x has shape (2, 5, 4, 0); accepted is a headdim",
    ),
    "explain batch": (
        lambda: fa.explain((1, 5, 4, 8), K, "float32"),
        ValueError,
        "batch and headdim must be equal",
    ),
    "explain device": (
        lambda: fa.explain(Q, K, "float32", device="H100"),
        ValueError,
        "device is 'H100'",
    ),
    "unpad mask shape": (
        lambda: fa.unpad_input(zeros(2, 3, 4), np.ones((2, 4), bool)),
        ValueError,
        "mask has shape (2, 4)",
    ),
    "unpad mask dtype": (
        lambda: fa.unpad_input(zeros(2, 3), zeros(2, 3)),
        TypeError,
        "mask has dtype float32",
    ),
    "unpad a list": (lambda: fa.unpad_input([1], np.ones((1, 1), bool)), TypeError, "x is a list"),
    "pad indices": (
        lambda: fa.pad_input(zeros(2, 4), np.array([0, 6]), 2, 3),
        ValueError,
        "indices reach from 0 to 6; accepted are 0 to batch * seqlen - 1 = 5",
    ),
    "pad count": (
        lambda: fa.pad_input(zeros(2, 4), np.array([0]), 2, 3),
        ValueError,
        "indices has shape (1,)",
    ),
    "pad indices dtype": (
        lambda: fa.pad_input(zeros(1, 4), zeros(1), 2, 3),
        TypeError,
        "indices is not an integer array",
    ),
    "pad a list": (lambda: fa.pad_input([0.0], np.array([0]), 2, 3), TypeError, "packed is a list"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused_by_name(name):
    call, error, text = CASES[name]
    with pytest.raises(error, match=re.escape(text)) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    if name != "unknown keyword":
        assert ";" in message, "what was got; what is accepted"


@pytest.mark.parametrize("call", [dense(), varlen(), paged_varlen(), kvcache(), paged_kvcache()])
def test_the_unchanged_calls_are_accepted(call):
    """Every refusal above is due to the one thing that the case changed."""
    assert np.isfinite(call()).all()


@pytest.mark.parametrize(
    ("dtype", "factors"),
    [
        (
            np.float32,
            [(2.0**127, 0.0), (2.0**127, 1.0), (0.5, 2.0**127), (0.5, 2.0**-127), (0, 2.0**-127)],
        ),
        (np.float64, [(1e300, 0.0), (0.5, 1e300), (0.5, 1e-300)]),
        (HALF, [(1e30, 1e-8)]),
    ],
)
def test_accepted_factors_never_make_nan_of_zero(dtype, factors):
    for scale, cap in factors:
        arrays = (zeros(*shape, dtype=dtype) for shape in (Q, K, K))
        assert np.isfinite(dense(*arrays, softmax_scale=scale, softcap=cap)()).all()


def test_foreign_keywords_are_accepted_where_they_are_off():
    plain = dense()()
    off = dense(dropout_p=0.0, alibi_slopes=None, attention_chunk=0, return_attn_probs=False)()
    np.testing.assert_array_equal(off, plain)


def test_nothing_is_written_when_a_call_is_refused():
    cache = zeros(2, 16, 2, 8)
    with pytest.raises(ValueError, match="the cache holds 16"):
        kvcache(
            k_cache=cache, v_cache=cache, k=np.ones((2, 3, 2, 8), np.float32),
            cache_seqlens=i32(0, 14),
        )()  # fmt: skip
    with pytest.raises(ValueError, match="softcap"):
        kvcache(k_cache=cache, k=np.ones((2, 3, 2, 8), np.float32), softcap=-1.0)()
    with pytest.raises(TypeError, match="return_lse"):
        kvcache(
            k_cache=cache, k=np.ones((2, 3, 2, 8), np.float32), return_lse=np.array([True, True])
        )()
    assert not cache.any()


def test_unmasked_queries_need_one_rotary_position():
    """All rows of an unmasked call stand at cache_seqlens; new tokens reach position 4 here."""
    q, new, tables = zeros(2, 9, 4, 8), zeros(2, 1, 2, 8), zeros(5, 4)
    call = {"q": q, "k": new, "v": new, "rotary_cos": tables, "rotary_sin": tables}
    assert np.isfinite(kvcache(**call)()).all()
    with pytest.raises(
        ValueError, match="rotary_cos has 5 positions; the call reaches position 12"
    ):
        kvcache(**call, causal=True)()


def test_numbers_and_flags_of_numpy_are_accepted():
    plain = dense(causal=True, softcap=3.0, softmax_scale=0.5, window_size=(3, 0), num_splits=2)()
    same = dense(
        causal=np.bool_(True), softcap=np.float16(3), softmax_scale=np.array(0.5),
        window_size=np.array([3, 0], np.uint8), num_splits=np.array(2), pack_gqa=1,
        return_lse=np.False_,
    )()  # fmt: skip
    np.testing.assert_array_equal(same, plain)


def test_page_numbers_of_dead_keys_may_be_anything():
    """The first page of sequence 0 lies left of the window; nothing reads its number."""
    table = i32(2**31 - 1, 1, 2, 0).reshape(2, 2)
    run = paged_varlen(
        block_table=table, window_size=(0, 0), cu_seqlens_q=i32(0, 1, 2), q=zeros(2, 4, 8)
    )
    assert np.isfinite(run()).all()
