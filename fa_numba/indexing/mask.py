"""Which keys a query may attend.

Attention here is masked by at most three rules, all of them intervals of key positions:

- **Right bound** (causality is ``window_right = 0``): key ``j`` lies at most ``window_right``
  positions after the query's own position.
- **Left bound** (a sliding window): key ``j`` lies at most ``window_left`` positions before it.
- **Sink**: the first ``sink_token_length`` keys are exempt from the left bound, but never from
  the right one.

A query's "own position" is ``row + seqlen_k - seqlen_q``: the two sequences are aligned at their
ends, so that the last query sees the last key. This is what decoding needs, where a few new
queries meet a long cache. When ``seqlen_q > seqlen_k`` the first queries own a negative position,
and under a right bound they may attend nothing at all: an *empty row*.

So the keys of a row are ``[col_left, col_right)`` plus the sinks below ``col_right``. All other
modules are derived from these two numbers. A bound of -1 means "unlimited".

The rules are those of ``hopper/mask.h`` in Dao-AILab/flash-attention (commit 0251105a).
"""


def normalize_window(
    causal: bool, window_left: int, window_right: int, seqlen_q: int, seqlen_k: int
) -> tuple[int, int]:
    """Fold causality into the window and clamp it, so that later arithmetic cannot overflow.

    A window at least as long as the longer sequence excludes nothing, so the clamp changes no
    mask, whatever the caller passed as "very large" (2**31 - 1 is common).

    Parameters
    ----------
    causal : bool
        If true, the right bound becomes 0 whatever `window_right` says.
    window_left, window_right : int
        Keys visible before and after the query's own position; negative means unlimited.
    seqlen_q, seqlen_k : int
        Sequence lengths (the longest ones of the batch if they vary).

    Returns
    -------
    window_left, window_right : int
        Each in ``[-1, max(seqlen_q, seqlen_k)]``.
    """
    longest = max(seqlen_q, seqlen_k)
    left = min(max(window_left, -1), longest)
    right = 0 if causal else min(max(window_right, -1), longest)
    return left, right


def col_limits(
    row: int, seqlen_q: int, seqlen_k: int, window_left: int, window_right: int
) -> tuple[int, int]:
    """Return the interval of keys that the window leaves to one query.

    Key ``j`` is allowed iff ``j < col_right`` and (``j >= col_left`` or
    ``j < sink_token_length``).

    Parameters
    ----------
    row : int
        Query index, ``0 <= row < seqlen_q``.
    seqlen_q, seqlen_k : int
        Sequence lengths.
    window_left, window_right : int
        Window bounds, -1 for unlimited; causality is ``window_right = 0``.

    Returns
    -------
    col_left, col_right : int
        Both in ``[0, seqlen_k]``, and ``col_left <= col_right``.
    """
    own_col = row + seqlen_k - seqlen_q
    col_left = 0 if window_left < 0 else min(max(own_col - window_left, 0), seqlen_k)
    col_right = seqlen_k if window_right < 0 else min(max(own_col + 1 + window_right, 0), seqlen_k)
    return col_left, col_right


def row_limits(
    col: int,
    seqlen_q: int,
    seqlen_k: int,
    window_left: int,
    window_right: int,
    sink_token_length: int,
) -> tuple[int, int]:
    """Return the interval of queries that may attend one key: `col_limits` read down a column.

    The backward pass walks the score matrix by columns and needs this view. A sink key has no
    left bound, so every query from ``row_min`` on attends it.

    Parameters
    ----------
    col : int
        Key index, ``0 <= col < seqlen_k``.
    seqlen_q, seqlen_k, window_left, window_right : int
        As for `col_limits`.
    sink_token_length : int
        Number of leading keys exempt from the left bound.

    Returns
    -------
    row_min, row_max : int
        Query ``i`` attends the key iff ``row_min <= i < row_max``; both in ``[0, seqlen_q]``,
        and ``row_min <= row_max``.
    """
    own_row = col + seqlen_q - seqlen_k
    row_min = 0 if window_right < 0 else min(max(own_row - window_right, 0), seqlen_q)
    if window_left < 0 or col < sink_token_length:
        row_max = seqlen_q
    else:
        row_max = min(max(own_row + 1 + window_left, 0), seqlen_q)
    return row_min, row_max


def is_allowed(
    row: int,
    col: int,
    seqlen_q: int,
    seqlen_k: int,
    window_left: int,
    window_right: int,
    sink_token_length: int,
) -> bool:
    """Say whether query `row` may attend key `col`.

    Positions outside the sequences (the padding of a last tile) are never allowed.

    Parameters
    ----------
    row, col : int
        Query and key index; any integers.
    seqlen_q, seqlen_k, window_left, window_right, sink_token_length : int
        As for `row_limits`.

    Returns
    -------
    bool
    """
    if row < 0 or row >= seqlen_q or col < 0:
        return False
    col_left, col_right = col_limits(row, seqlen_q, seqlen_k, window_left, window_right)
    return col < col_right and (col >= col_left or col < sink_token_length)
