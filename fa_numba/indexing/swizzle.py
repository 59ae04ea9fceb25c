"""Where in shared memory a byte goes so that no bank is hit twice.

Shared memory has 32 banks of 4 bytes: byte address ``a`` lies in bank ``a // 4 % 32``, and two
different words of one bank cannot be read at once. A matrix whose rows are 128 bytes long puts all
rows' first bytes in the same bank, so reading a column (eight rows of 16 bytes, as ``ldmatrix`` and
the tensor cores do) takes eight turns.

The remedy is to permute the eight 16-byte chunks of each row by an XOR with the row number: column
``c`` of row ``r`` moves to chunk ``c ^ r``. A row stays in its row, a column spreads over all
banks, and applying the map twice gives the identity. On addresses, the row number is bits 7 to 9
and the chunk number bits 4 to 6.

The narrower modes do the same for rows of 64 or 32 bytes, of which two or four share 128 bytes: XOR
two bits or one. These are the modes of Hopper's tensor maps and matrix descriptors
(``SWIZZLE_128B``, ``SWIZZLE_64B``, ``SWIZZLE_32B``; PTX ISA, "Swizzling modes"; CUTLASS's
``Swizzle<3, 4, 3>``, ``<2, 4, 3>`` and ``<1, 4, 3>``). A tile must start at a multiple of eight
times the span, or the address bits are not its row bits.
"""

from collections.abc import Sequence

NUM_BANKS = 32
BANK_BYTES = 4


def swizzle(address: int, span: int) -> int:
    """Permute 16-byte chunks within `span` bytes by an XOR with the 128-byte line's number.

    Parameters
    ----------
    address : int
        Byte address in shared memory, or offset from a tile's aligned start.
    span : int
        Bytes of a row: 128, 64, 32, or 16 (for which nothing moves).

    Returns
    -------
    int
        The permuted address. The map is its own inverse.
    """
    return address ^ (((address >> 7) & (span // 16 - 1)) << 4)


def num_wavefronts(addresses: Sequence[int], access_bytes: int) -> int:
    """Count the turns that shared memory takes to serve one access of a warp.

    The hardware serves 128 bytes a turn at best: wide accesses are first cut into groups of
    ``128 // access_bytes`` lanes. A group takes as many turns as its worst bank has different
    words; lanes that read the same word share a turn.

    Parameters
    ----------
    addresses : sequence of int
        Byte address of each lane, a multiple of `access_bytes`.
    access_bytes : int
        Width of each lane's access: 4, 8 or 16.

    Returns
    -------
    int
        Conflict-free means ``ceil(len(addresses) * access_bytes / 128)``.
    """
    lanes_per_group = NUM_BANKS * BANK_BYTES // access_bytes
    total = 0
    for start in range(0, len(addresses), lanes_per_group):
        words = set()
        for lane in range(start, min(start + lanes_per_group, len(addresses))):
            first_word = addresses[lane] // BANK_BYTES
            for i in range(access_bytes // BANK_BYTES):
                words.add(first_word + i)
        turns = 0
        for bank in range(NUM_BANKS):
            hits = 0
            for word in words:
                if word % NUM_BANKS == bank:
                    hits += 1
            turns = max(turns, hits)
        total += turns
    return total
