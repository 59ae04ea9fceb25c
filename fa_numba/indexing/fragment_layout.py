"""Which matrix element a thread holds in which register.

A tensor-core instruction works on matrices that are spread over the registers of a warp: no thread
owns a row, each owns a fixed scatter of elements. The kernels mask, exponentiate and rescale those
registers in place, so they must know for each element which row and column it is.

The **accumulator** of ``mma.m16n8`` repeats a pattern every 8 columns. Lane ``l`` of a warp holds
two neighbouring columns of row ``l // 4`` and the same two of row ``l // 4 + 8``:

    ============  ================  ========================
    element       row               column
    ============  ================  ========================
    ``4j``        ``l // 4``        ``8j + 2 (l % 4)``
    ``4j + 1``    ``l // 4``        ``8j + 2 (l % 4) + 1``
    ``4j + 2``    ``l // 4 + 8``    ``8j + 2 (l % 4)``
    ``4j + 3``    ``l // 4 + 8``    ``8j + 2 (l % 4) + 1``
    ============  ================  ========================

Two consequences carry the whole design. A row lives in the four lanes of one *quad*, so a row
maximum or sum needs two shuffles. And the **A operand** of ``mma.m16n8k16`` has, for 16-bit types,
exactly this layout (with ``j`` counting groups of 8 along k), so the probabilities that one product
left in an accumulator are, once converted, the left operand of the next one, with no data movement.

Hopper's ``wgmma.m64nNk16`` keeps the same pattern: warp ``w`` of the four in a warpgroup holds rows
``16w`` to ``16w + 15``. Sources: PTX ISA, "Matrix fragments for mma.m16n8k16" and "Register
fragments for wgmma.mma_async.m64nNk16".
"""


def acc_coord(lane: int, element: int) -> tuple[int, int]:
    """Return the row and column of an accumulator element in a warp's tile of 16 rows.

    Parameters
    ----------
    lane : int
        Lane of the warp, 0 to 31.
    element : int
        Index in the thread's fragment; a tile of N columns has ``N // 2`` elements a thread.

    Returns
    -------
    row, col : int
    """
    row = lane // 4 + 8 * (element // 2 % 2)
    col = 8 * (element // 4) + 2 * (lane % 4) + element % 2
    return row, col


def acc_owner(row: int, col: int) -> tuple[int, int]:
    """Return who holds an element of a warp's accumulator tile: the inverse of `acc_coord`.

    Parameters
    ----------
    row : int
        Row of the warp's tile, 0 to 15.
    col : int
        Column of the tile.

    Returns
    -------
    lane, element : int
    """
    lane = 4 * (row % 8) + col % 8 // 2
    element = 4 * (col // 8) + 2 * (row // 8) + col % 2
    return lane, element


def warpgroup_acc_coord(thread: int, element: int) -> tuple[int, int]:
    """Return the row and column of an accumulator element in a warpgroup's tile of 64 rows.

    Parameters
    ----------
    thread : int
        Thread of the warpgroup, 0 to 127.
    element : int
        Index in the thread's fragment.

    Returns
    -------
    row, col : int
    """
    row, col = acc_coord(thread % 32, element)
    return 16 * (thread // 32) + row, col


def warpgroup_acc_owner(row: int, col: int) -> tuple[int, int]:
    """Return who holds an element of a warpgroup's tile: the inverse of `warpgroup_acc_coord`.

    Parameters
    ----------
    row : int
        Row of the warpgroup's tile, 0 to 63.
    col : int
        Column of the tile.

    Returns
    -------
    thread, element : int
    """
    lane, element = acc_owner(row % 16, col)
    return 32 * (row // 16) + lane, element


def a_operand_coord(lane: int, element: int) -> tuple[int, int]:
    """Return the row and the k index of an A-operand element of ``mma.m16n8k16``, 16-bit types.

    An instruction takes 8 elements a thread; element ``8s + i`` belongs to k-step ``s``. Written
    from the definition of the instruction; it equals `acc_coord`.

    Parameters
    ----------
    lane : int
        Lane of the warp, 0 to 31.
    element : int
        Index in the thread's fragment.

    Returns
    -------
    row, k : int
    """
    k_step = element // 8
    i = element % 8
    row = lane // 4
    if i // 2 % 2 == 1:
        row += 8
    k = 16 * k_step + 2 * (lane % 4) + i % 2
    if i >= 4:
        k += 8
    return row, k


def a_operand_owner(row: int, k: int) -> tuple[int, int]:
    """Return who holds an A-operand element: the inverse of `a_operand_coord`.

    Parameters
    ----------
    row : int
        Row of the operand, 0 to 15.
    k : int
        Index along the contraction.

    Returns
    -------
    lane, element : int
    """
    return acc_owner(row, k)


def b_operand_coord(lane: int, element: int) -> tuple[int, int]:
    """Return the k index and the column of a B-operand element of ``mma.m16n8k16``, 16-bit types.

    An instruction takes 4 elements a thread; element ``4s + i`` belongs to k-step ``s``.

    Parameters
    ----------
    lane : int
        Lane of the warp, 0 to 31.
    element : int
        Index in the thread's fragment.

    Returns
    -------
    k, col : int
        With ``col`` from 0 to 7.
    """
    k = 8 * (element // 2) + 2 * (lane % 4) + element % 2
    return k, lane // 4


def b_operand_owner(k: int, col: int) -> tuple[int, int]:
    """Return who holds a B-operand element: the inverse of `b_operand_coord`.

    Parameters
    ----------
    k : int
        Index along the contraction.
    col : int
        Column of the operand, 0 to 7.

    Returns
    -------
    lane, element : int
    """
    lane = 4 * col + k % 8 // 2
    element = 2 * (k // 8) + k % 2
    return lane, element
