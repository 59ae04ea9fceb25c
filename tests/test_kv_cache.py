"""The page allocator, against plain lists."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

import fa_numba as fa


class PagedKVCacheMachine(RuleBasedStateMachine):
    """Any order of calls; the model is one Python list of tokens a sequence."""

    sequences = Bundle("sequences")

    @initialize(num_blocks=st.integers(0, 12), page_size=st.integers(1, 5))
    def start(self, num_blocks, page_size):
        self.cache = fa.PagedKVCache(num_blocks, page_size, 2, 3, headdim_v=1, dtype="float16")
        self.num_blocks, self.page_size = num_blocks, page_size
        self.model = {}
        self.clock = 0

    def pages_of(self, length):
        return -(-length // self.page_size)

    @property
    def free(self):
        return self.num_blocks - sum(self.pages_of(len(t)) for t in self.model.values())

    @rule(target=sequences)
    def allocate(self):
        seq = self.cache.allocate()
        assert seq not in self.model
        self.model[seq] = []
        return seq

    @rule(target=sequences, seqlen=st.integers(0, 30))
    def allocate_filled(self, seqlen):
        if self.pages_of(seqlen) > self.free:
            with pytest.raises(MemoryError, match="more pages"):
                self.cache.allocate(seqlen)
            return multiple()
        seq = self.cache.allocate(seqlen)
        self.model[seq] = [None] * seqlen
        return seq

    @rule(seq=sequences, count=st.integers(0, 8))
    def append(self, seq, count):
        tokens = np.arange(self.clock, self.clock + count, dtype=np.float16)
        self.clock += count
        k = np.broadcast_to(tokens[:, None, None], (count, 2, 3))
        v = -k[:, :, :1]
        length = len(self.model[seq])
        if self.pages_of(length + count) - self.pages_of(length) > self.free:
            with pytest.raises(MemoryError, match=f"sequence {seq} needs"):
                self.cache.append(seq, k, v)
            return
        self.cache.append(seq, k, v)
        self.model[seq] += tokens.tolist()

    @rule(seq=consumes(sequences))
    def release(self, seq):
        self.cache.free(seq)
        del self.model[seq]
        with pytest.raises(KeyError, match="not allocated"):
            self.cache.free(seq)

    @invariant()
    def pages_and_tokens_agree_with_the_lists(self):
        if not hasattr(self, "cache"):
            return
        assert self.cache.num_free_blocks == self.free
        seqs = list(self.model)
        lengths = self.cache.cache_seqlens(seqs)
        table = self.cache.block_table(seqs)
        assert lengths.dtype == table.dtype == np.int32
        used = []
        for row, length, seq in zip(table, lengths, seqs, strict=True):
            assert length == len(self.model[seq])
            pages = row[: self.pages_of(length)]
            used += pages.tolist()
            k = self.cache.k_cache[pages].reshape(-1, 2, 3)[:length]
            v = self.cache.v_cache[pages].reshape(-1, 2)[:length]
            for t, token in enumerate(self.model[seq]):
                if token is not None:
                    assert (k[t] == token).all()
                    assert (v[t] == -token).all()
        assert len(set(used)) == len(used)


PagedKVCacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestPagedKVCache = PagedKVCacheMachine.TestCase


def test_reserve_then_let_the_call_append():
    """A decode step: pages first, then the call writes the token, then the length advances."""
    rng = np.random.default_rng(0)
    cache = fa.PagedKVCache(num_blocks=5, page_size=2, nheads_k=1, headdim=8)
    seq = cache.allocate()
    tokens = rng.standard_normal((3, 3, 1, 8), dtype=np.float32)
    for q, k, v in zip(*tokens, strict=True):
        cache.reserve(seq, 1)
        out = fa.flash_attn_with_kvcache(
            q[None, None], cache.k_cache, cache.v_cache, k[None, None], v[None, None],
            cache_seqlens=cache.cache_seqlens([seq]), block_table=cache.block_table([seq]),
            causal=True,
        )  # fmt: skip
        cache.advance(seq, 1)
    whole = fa.flash_attn_func(*(x[None] for x in tokens), causal=True)
    np.testing.assert_allclose(out[0, 0], whole[0, -1], rtol=1e-5, atol=1e-6)
    assert cache.num_free_blocks == 3


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((4, 0, 1, 8), ValueError, "page_size is 0"),
        ((4, 2, 1, 257), ValueError, "headdim is 257"),
        ((4.5, 2, 1, 8), TypeError, "num_blocks is 4.5"),
    ],
)
def test_bad_geometry(args, error, text):
    with pytest.raises(error, match=text):
        fa.PagedKVCache(*args)


@pytest.mark.parametrize(
    ("k", "v", "error", "text"),
    [
        (np.ones((2, 1, 8)), np.ones((2, 1, 8), np.float32), TypeError, "k is dtype float64"),
        ([1.0], np.ones((2, 1, 8), np.float32), TypeError, "k is list"),
        (np.ones((2, 1, 7), np.float32), np.ones((2, 1, 8), np.float32), ValueError, "k has shape"),
        (np.ones((2, 1, 8), np.float32), np.ones((3, 1, 8), np.float32), ValueError, "v has 3"),
    ],
)
def test_bad_tokens_change_nothing(k, v, error, text):
    cache = fa.PagedKVCache(4, 2, 1, 8)
    seq = cache.allocate()
    with pytest.raises(error, match=text):
        cache.append(seq, k, v)
    assert cache.cache_seqlens([seq]).tolist() == [0]
    assert cache.num_free_blocks == 4
    assert not cache.k_cache.any()


def test_freed_pages_are_used_again_lowest_first():
    cache = fa.PagedKVCache(3, 1, 1, 8)
    first, second = cache.allocate(2), cache.allocate(1)
    assert cache.block_table([first, second]).tolist() == [[0, 1], [2, 0]]
    cache.free(first)
    assert cache.block_table([cache.allocate(2)]).tolist() == [[0, 1]]
