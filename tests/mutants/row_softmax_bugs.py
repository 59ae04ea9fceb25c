"""Bugs that one makes in such a kernel, as edits of its source, and the report that names each.

`found` is a kind of hazard (`fa_numba.device.emulator.hazards.KINDS`), ``"deadlock"`` or ``"wrong
numbers"``. For a hazard, `at` is part of the source line that the report must show.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tests.mutants.row_softmax_case import Case, source


class Edit(NamedTuple):
    """Text of a module, there exactly once, and what replaces it."""

    module: str
    old: str
    new: str


kernel, softmax, tile_io = (partial(Edit, m) for m in ("row_softmax", "softmax", "tile_io"))

# Two warps, two blocks, two tiles of columns, and a tail on either side.
COMMON = Case("bfloat16", 37, 75, tile_m=32)
ALIGNED = Case("bfloat16", 37, 75, "aligned", tile_m=32)
ONE_TILE = Case("bfloat16", 16, 33)


@dataclass(frozen=True)
class Bug:
    """A bug: what is wrong, how that shows, and the edits that make it."""

    name: str
    found: str
    edits: tuple[Edit, ...]
    at: str = ""
    case: Case = COMMON

    def texts(self) -> dict[str, str]:
        """Return the changed modules."""
        changed: dict[str, str] = {}
        for edit in self.edits:
            text = changed.get(edit.module, source(edit.module))
            assert text.count(edit.old) == 1, (self.name, text.count(edit.old), edit)
            changed[edit.module] = text.replace(edit.old, edit.new)
        return changed


# The barriers, each with the end of its comment.
SYNC = "            syncthreads()\n"
WHOLE = "what the others have loaded.\n" + SYNC
ALL_READ = "may overwrite this one.\n            syncthreads()\n            if n_block"
WHOLE_AGAIN = "may be stored by other threads.\n" + SYNC
NAMED_BARRIERS = kernel("    syncthreads,\n", "    bar_arrive,\n    bar_sync,\n    syncthreads,\n")

FIRST_LOOP = "row_max, row_sum = init_rows()\n        for n_block in range(n_block_max):"
SECOND_LOAD = "row_start, col_start, rows, cols)\n            # The tile is whole, as above."
UPDATE = "            _, row_max, row_sum, _ = update("
MASK = "col_start + col, 0, cols, 0, cols,"
LOADED_ROWS = "if row_start + row < rows else 0\n            words = load_chunk("
STORED_ROWS = "if row_start + row < rows else 0\n            words = load_shared_u32x4("
LOADED_CHUNKS = (
    "for i in range(thread_index_x(), num_chunks, threads):\n"
    "            row, col = i // row_chunks, i % row_chunks * chunk\n"
    "            place = x"
)
STORE = "store_tile(tile, out, out_row_stride, row_start, col_start,"
TAIL_OF_LOAD = (
    "        if 0 < count < chunk:\n            return load_elements(place, count)\n"
    "        return load_global_u32x4(place, count >= chunk)"
)

# Where the reports point to.
AT_FILL = "store_shared_u32x4(tile + offset(row, col), words)"
AT_READ = "return load_shared_u32(place), load_shared_u32(place + eight_rows)"
AT_TAKE = "words = load_shared_u32x4(tile + offset(row, col))"
AT_LOAD = "low, high = load_global_u16(place, count > 0)"
AT_STORE = "store_global_u16(place, word, count > 0)"
AT_LSE = "store_global_f32(place, row_lse_0,"
AT_KERNEL = "def row_softmax("


def without(barrier: str) -> Edit:
    """Remove a barrier."""
    return kernel(barrier, barrier.replace(SYNC, ""))


def only(branch: str, barrier: str, sync: str = "syncthreads()") -> Edit:
    """Move a barrier into a branch."""
    inside = f"            if {branch}:\n                {sync}\n"
    return kernel(barrier, barrier.replace(SYNC, inside))


BARRIERS = (
    Bug("no barrier after the load", "race", (without(WHOLE),), AT_READ),
    Bug(
        "no barrier before the next tile overwrites",
        "race",
        (without(ALL_READ),),
        AT_FILL,
    ),
    Bug("no barrier before the store", "race", (without(WHOLE_AGAIN),), AT_TAKE),
    Bug(
        "barrier in a branch that half a warp takes",
        "divergent-barrier",
        (only("lane() < 16", WHOLE),),
        "syncthreads()",
    ),
    Bug(
        "barrier in a branch that one warp takes",
        "deadlock",
        (only("row < 16", ALL_READ),),
    ),
    Bug(
        "an arrival too few: it waits for a warp that is not there",
        "deadlock",
        (NAMED_BARRIERS, kernel(WHOLE, WHOLE.replace("syncthreads()", "bar_sync(1, 96)"))),
    ),
    Bug(
        "an arrival too few: one warp never comes",
        "deadlock",
        (NAMED_BARRIERS, only("row >= 16", WHOLE, "bar_sync(1, 64)")),
    ),
    Bug(
        "a barrier that counts one warp of two",
        "race",
        (NAMED_BARRIERS, kernel(WHOLE, WHOLE.replace("syncthreads()", "bar_sync(1, 32)"))),
        AT_READ,
    ),
    Bug(
        "arrives and does not wait",
        "race",
        (
            NAMED_BARRIERS,
            kernel(WHOLE_AGAIN, WHOLE_AGAIN.replace("syncthreads()", "bar_arrive(1, 64)")),
        ),
        AT_TAKE,
    ),
    Bug(
        "shuffle in a branch",
        "divergent-barrier",
        (kernel(UPDATE, "            if row < 3:\n    " + UPDATE),),
        "quad_",
        Case("bfloat16", 16, 64),
    ),
    Bug(
        "shuffle in a branch, and a barrier behind it",
        "deadlock",
        (kernel(UPDATE, "            if lane() < 16:\n    " + UPDATE),),
    ),
)

NUMERICS = (
    Bug(
        "row max not reduced over the quad",
        "wrong numbers",
        (softmax("quad_max(fmax(maxima[1], new_1))", "fmax(maxima[1], new_1)"),),
    ),
    Bug(
        "row sum not reduced over the quad",
        "wrong numbers",
        (softmax("quad_sum(sums[0]), quad", "sums[0], quad"),),
    ),
    Bug(
        "rescale missing",
        "wrong numbers",
        (softmax("fma(sums[0], row_scale_0, sum_0)", "sums[0] + sum_0"),),
    ),
    Bug(
        "maximum of the last tile, not of all",
        "wrong numbers",
        (softmax("quad_max(fmax(maxima[0], new_0))", "quad_max(new_0)"),),
    ),
    Bug(
        "a row of -inf subtracts -inf",
        "wrong numbers",
        (softmax("return select_less(_MINUS_INF, maximum, maximum, 0.0)", "return maximum"),),
    ),
)

RANGES = (
    Bug(
        "mask one column too wide",
        "wrong numbers",
        (kernel(MASK, "col_start + col, 0, cols + 1, 0, cols,"),),
    ),
    Bug(
        "mask one column too narrow",
        "wrong numbers",
        (kernel(MASK, "col_start + col, 0, cols, 0, cols - 1,"),),
    ),
    Bug(
        "mask cuts the first column",
        "wrong numbers",
        (kernel(MASK, "col_start + col, 1, cols, 0, cols,"),),
        case=ONE_TILE,
    ),
    Bug(
        "no mask",
        "wrong numbers",
        (kernel("if n_block == n_block_max - 1:", "if n_block == n_block_max:"),),
    ),
    Bug(
        "one tile too many",
        "wrong numbers",
        (kernel(FIRST_LOOP, FIRST_LOOP.replace("max):", "max + 1):")),),
    ),
    Bug(
        "one tile too few",
        "wrong numbers",
        (kernel(FIRST_LOOP, FIRST_LOOP.replace("max):", "max - 1):")),),
    ),
    Bug(
        "starts a tile too early",
        "out-of-bounds",
        (kernel(FIRST_LOOP, FIRST_LOOP.replace("range(", "range(-1, ")),),
        AT_LOAD,
    ),
    Bug(
        "tail not zeroed",
        "uninitialised",
        (
            tile_io(
                f"            {AT_FILL}", f"            if count > 0:\n                {AT_FILL}"
            ),
        ),
        AT_READ,
    ),
    Bug(
        "half of the tile not loaded",
        "uninitialised",
        (tile_io(LOADED_CHUNKS, LOADED_CHUNKS.replace("num_chunks", "num_chunks // 2")),),
        AT_READ,
    ),
    Bug(
        "loads one row too far",
        "out-of-bounds",
        (tile_io(LOADED_ROWS, LOADED_ROWS.replace("<", "<=")),),
        AT_LOAD,
    ),
    Bug(
        "loads a whole vector where the row ends inside",
        "out-of-bounds",
        (tile_io(TAIL_OF_LOAD, "        return load_global_u32x4(place, count > 0)"),),
        "load_global_u32x4(place, count > 0)",
        ALIGNED,
    ),
)

OUTPUTS = (
    Bug(
        "stores one row too far",
        "out-of-bounds",
        (tile_io(STORED_ROWS, STORED_ROWS.replace("<", "<=")),),
        AT_STORE,
    ),
    Bug(
        "stores lse one row too far",
        "out-of-bounds",
        (kernel("row_lse_0, row_start + row < rows)", "row_lse_0, row_start + row <= rows)"),),
        AT_LSE,
    ),
    Bug(
        "a row of the output unwritten",
        "unwritten",
        (tile_io(STORED_ROWS, STORED_ROWS.replace("rows else", "rows - 1 else")),),
        AT_KERNEL,
    ),
    Bug(
        "the lse of a row unwritten",
        "unwritten",
        (kernel("row_start + row + 8 < rows)", "row_start + row + 9 < rows)"),),
        AT_KERNEL,
        ONE_TILE,
    ),
    Bug(
        "wrong row map: every warp takes the rows of the first",
        "double-write",
        (kernel("warpgroup_acc_coord(thread_index_x(), 0)", "warpgroup_acc_coord(lane(), 0)"),),
        AT_LSE,
    ),
    Bug(
        "wrong row map: the second row is 4 below, not 8",
        "race",
        (tile_io("eight_rows = 8 * ", "eight_rows = 4 * "),),
        "store_shared_u32(place",
        ONE_TILE,
    ),
    Bug(
        "two blocks write the same rows",
        "double-write",
        (kernel("block_index_x() * tile_m", "block_index_x() * 16"),),
        AT_LSE,
    ),
    Bug(
        "two lanes write the same lse",
        "double-write",
        (kernel("if lane() % 4 == 0:", "if lane() % 2 == 0:"),),
        AT_LSE,
    ),
    Bug(
        "stale index: every tile is stored where the last one belongs",
        "unwritten",
        (kernel(STORE, STORE.replace("col_start", "(n_block_max - 1) * tile_n")),),
        AT_KERNEL,
    ),
    Bug(
        "stale index: the second pass loads the last tile again",
        "wrong numbers",
        (kernel(SECOND_LOAD, SECOND_LOAD.replace("col_start", "(n_block_max - 1) * tile_n")),),
    ),
    Bug(
        "stores into the input",
        "read-only",
        (kernel(STORE, STORE.replace("out, out_row", "x, x_row")),),
        AT_STORE,
    ),
)

ADDRESSES = (
    Bug(
        "32-bit offset",
        "out-of-bounds",
        (tile_io("place = x + uint64(", "place = x + uint32("),),
        "load_global_u32x4(place, count >= chunk)",
        Case("bfloat16", 9, 64, "reversed"),
    ),
    Bug(
        "misaligned vectors: nobody looked at the distance of rows",
        "misaligned",
        (kernel("[_address(x), _address(out), *row_bytes]", "[_address(x)]"),),
        "load_global_u32x4(place, count >= chunk)",
    ),
    Bug(
        "past the end of shared memory: sized for 16-bit numbers",
        "out-of-bounds",
        (kernel("self.tile_n * ITEMSIZE[self.dtype]", "self.tile_n * 2"),),
        AT_FILL,
        Case("float32", 9, 33),
    ),
    Bug(
        "swizzled on the way in only",
        "wrong numbers",
        (tile_io(AT_TAKE, "words = load_shared_u32x4(tile + row * 128 + col * itemsize)"),),
        case=ONE_TILE,
    ),
    Bug(
        "another swizzle on the way in: a thread stores what another will overwrite",
        "race",
        (tile_io(AT_FILL, "store_shared_u32x4(tile + swizzle(offset(row, col), 64), words)"),),
        "offset(row, col)",
    ),
)

BUGS = (*BARRIERS, *NUMERICS, *RANGES, *OUTPUTS, *ADDRESSES)
