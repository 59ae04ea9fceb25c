"""Which key/value head serves a query head, and how the heads of a group are packed.

In grouped-query attention, ``qhead_per_khead`` neighbouring query heads share one key/value head.
Two uses follow. Without packing, query head ``h`` just reads key/value head ``h // g``. With
**PackGQA**, a row tile holds the queries of a whole group, as packed rows
``query * g + head_in_group``. All its rows meet the same keys, so K and V are loaded once for the
group, and a single decoded token fills ``g`` rows of a tile rather than one.

The query index is the slow one, so that rows of one query stay together and the mask limits still
grow with the row (`block_range` relies on it). After ``hopper/pack_gqa.h`` in
Dao-AILab/flash-attention (commit 0251105a).
"""


def kv_head(q_head: int, qhead_per_khead: int) -> int:
    """Return the key/value head that a query head reads.

    Parameters
    ----------
    q_head : int
        Query head.
    qhead_per_khead : int
        Query heads of a group, ``nheads // nheads_k``.

    Returns
    -------
    int
    """
    return q_head // qhead_per_khead


def q_head(kv_head: int, head_in_group: int, qhead_per_khead: int) -> int:
    """Return the query head at one place of a key/value head's group.

    Parameters
    ----------
    kv_head : int
        Key/value head.
    head_in_group : int
        Place in the group, ``0 <= head_in_group < qhead_per_khead``.
    qhead_per_khead : int
        Query heads of a group.

    Returns
    -------
    int
    """
    return kv_head * qhead_per_khead + head_in_group


def unpack_row(packed_row: int, qhead_per_khead: int) -> tuple[int, int]:
    """Split a packed row into its query and its head.

    Parameters
    ----------
    packed_row : int
        Row of the packed query matrix.
    qhead_per_khead : int
        Heads packed into the rows.

    Returns
    -------
    row, head_in_group : int
        Query index, and place of the head in its group.
    """
    row = packed_row // qhead_per_khead
    return row, packed_row - row * qhead_per_khead


def pack_row(row: int, head_in_group: int, qhead_per_khead: int) -> int:
    """Return the packed row of a query and a head: the inverse of `unpack_row`.

    Parameters
    ----------
    row : int
        Query index.
    head_in_group : int
        Place of the head in its group.
    qhead_per_khead : int
        Heads packed into the rows.

    Returns
    -------
    int
    """
    return row * qhead_per_khead + head_in_group
