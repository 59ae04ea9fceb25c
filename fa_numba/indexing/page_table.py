"""On which page of a paged cache a key lies.

A paged key/value cache is a pool of pages of `page_size` slots each. The block table lists, for
each sequence, the pages that hold its slots in order; the pages themselves lie anywhere in the
pool. Finding a key is therefore a division and a look-up: slot ``s`` is row ``s % page_size`` of
page ``block_table[b, s // page_size]``.

Entries of the block table past the last used page are nobody's business: callers leave them
uninitialised. A kernel that loads whole tiles may read such an entry, so it passes every page
number through `clamp_page` before it becomes an address.
"""


def page_and_offset(slot: int, page_size: int) -> tuple[int, int]:
    """Split a slot of a sequence into its place in the block table and its row in the page.

    Parameters
    ----------
    slot : int
        Slot of the sequence, left padding included.
    page_size : int
        Slots of a page.

    Returns
    -------
    page_idx, offset : int
        Column of the block table, and row within the page found there.
    """
    page_idx = slot // page_size
    return page_idx, slot - page_idx * page_size


def num_pages(seqlen: int, page_size: int) -> int:
    """Return the number of pages that a sequence occupies.

    Parameters
    ----------
    seqlen : int
        Slots of the sequence; 0 is allowed.
    page_size : int
        Slots of a page.

    Returns
    -------
    int
    """
    return (seqlen + page_size - 1) // page_size


def clamp_page(page: int, num_blocks: int) -> int:
    """Turn any integer into a page that exists.

    Parameters
    ----------
    page : int
        Entry of a block table, possibly uninitialised memory.
    num_blocks : int
        Pages of the pool, at least 1.

    Returns
    -------
    int
        `page` itself if it is a page of the pool, else the nearest one.
    """
    return min(max(page, 0), num_blocks - 1)
