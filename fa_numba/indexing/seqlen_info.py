"""Where a sequence starts, and how long it is.

The kernels see four kinds of batches: dense arrays, packed sequences addressed by ``cu_seqlens``,
packed or padded sequences of which only ``seqused`` tokens count, and a key/value cache with an
optional append and left padding. Each is reduced to the same five integers, `SeqlenInfo`, once per
tile; no later code asks which kind it is.

The lengths and offsets of a device batch are read from arrays that the host has not seen. The
constructors therefore clamp what they read to the extent of the data they index: a corrupt entry
may give a wrong length, but never an address out of bounds.

After ``hopper/seqlen.h`` in Dao-AILab/flash-attention (commit 0251105a).
"""

from typing import NamedTuple


class SeqlenInfo(NamedTuple):
    """Position and length of one sequence of queries and of its keys.

    Attributes
    ----------
    offset_q : int
        First row of this sequence in the array of queries (0 where the batch has its own axis).
    seqlen_q : int
        Number of queries.
    offset_k : int
        First row of this sequence in the arrays of keys and values.
    seqlen_k : int
        Number of keys that the mask knows, left padding not counted.
    leftpad_k : int
        Number of rows between `offset_k` and the first valid key.
    """

    offset_q: int
    seqlen_q: int
    offset_k: int
    seqlen_k: int
    leftpad_k: int


def clamp_span(start: int, stop: int, seqused: int, total: int) -> tuple[int, int]:
    """Turn two neighbours of ``cu_seqlens`` into a safe offset and length.

    Parameters
    ----------
    start, stop : int
        ``cu_seqlens[b]`` and ``cu_seqlens[b + 1]``.
    seqused : int
        Number of tokens that count, or negative if all do.
    total : int
        Number of rows of the packed array.

    Returns
    -------
    offset, seqlen : int
        With ``0 <= offset`` and ``offset + seqlen <= total`` for any input.
    """
    offset = min(max(start, 0), total)
    seqlen = max(min(stop, total) - offset, 0)
    if seqused >= 0:
        seqlen = min(seqlen, seqused)
    return offset, seqlen


def dense_seqlen_info(seqlen_q: int, seqlen_k: int) -> SeqlenInfo:
    """Describe a sequence of a dense batch, whose arrays have a batch axis.

    Parameters
    ----------
    seqlen_q, seqlen_k : int
        Lengths shared by the whole batch.

    Returns
    -------
    SeqlenInfo
    """
    return SeqlenInfo(0, seqlen_q, 0, seqlen_k, 0)


def varlen_seqlen_info(
    start_q: int,
    stop_q: int,
    seqused_q: int,
    total_q: int,
    start_k: int,
    stop_k: int,
    seqused_k: int,
    total_k: int,
) -> SeqlenInfo:
    """Describe a sequence of a packed batch.

    The mask counts used tokens: with ``seqused_k`` smaller than the span, the last query is
    aligned with the last *used* key.

    Parameters
    ----------
    start_q, stop_q : int
        ``cu_seqlens_q[b]`` and ``cu_seqlens_q[b + 1]``.
    seqused_q : int
        ``seqused_q[b]``, or -1 if not given.
    total_q : int
        Rows of the packed queries.
    start_k, stop_k, seqused_k, total_k : int
        The same for the keys.

    Returns
    -------
    SeqlenInfo
    """
    offset_q, seqlen_q = clamp_span(start_q, stop_q, seqused_q, total_q)
    offset_k, seqlen_k = clamp_span(start_k, stop_k, seqused_k, total_k)
    return SeqlenInfo(offset_q, seqlen_q, offset_k, seqlen_k, 0)


def cache_seqlen_info(
    offset_q: int,
    seqlen_q: int,
    cache_seqlen: int,
    seqlen_new: int,
    leftpad_k: int,
    capacity: int,
) -> SeqlenInfo:
    """Describe a sequence whose keys lie in a cache row or in pages.

    Parameters
    ----------
    offset_q, seqlen_q : int
        Span of the queries (see `clamp_span`; offset 0 where they have a batch axis).
    cache_seqlen : int
        Filled slots before the append, left padding included.
    seqlen_new : int
        Tokens appended by this call, 0 without an append.
    leftpad_k : int
        Leading slots that hold no key.
    capacity : int
        Slots of the cache row, or pages times page size.

    Returns
    -------
    SeqlenInfo
        Key ``j`` lies in slot ``offset_k + leftpad_k + j``, see `key_slot`.
    """
    filled = min(max(cache_seqlen, 0) + seqlen_new, capacity)
    leftpad = min(max(leftpad_k, 0), filled)
    return SeqlenInfo(offset_q, seqlen_q, 0, filled - leftpad, leftpad)


def key_slot(info: SeqlenInfo, col: int) -> int:
    """Return the row of the key array (or slot of the cache) that holds key `col` of the mask.

    Parameters
    ----------
    info : SeqlenInfo
        The sequence.
    col : int
        Key index, ``0 <= col < info.seqlen_k``.

    Returns
    -------
    int
    """
    return info.offset_k + info.leftpad_k + col


def padded_offset(offset: int, batch_idx: int, tile: int) -> int:
    """Return where sequence `batch_idx` starts in a workspace whose sequences start on tiles.

    The backward keeps per-row workspaces (delta, the base-2 lse, the float32 accumulator of dq)
    that are written by whole tiles. One spare tile for each sequence, and starts rounded down to
    a tile, keep the last tile of a sequence off the first of the next, with no scan over the
    batch: sequence ``b`` owns ``[padded_offset(cu[b], b), padded_offset(cu[b + 1], b + 1))``.

    Parameters
    ----------
    offset : int
        ``cu_seqlens[batch_idx]``.
    batch_idx : int
        Index of the sequence.
    tile : int
        Rows of a tile.

    Returns
    -------
    int
        A multiple of `tile`.
    """
    return (offset + batch_idx * tile) // tile * tile
