"""Integer logic of attention: which tiles exist, which of them are needed, and who does which.

Nothing here touches a floating-point number. Each module answers one question with plain functions
on plain integers (positional arguments, tuples as results, no NumPy, no state):

- `mask`: which keys may a query attend?
- `block_range`: which key tiles must a query tile visit, and which need no mask?
- `seqlen_info`: where does a sequence start, and how long is it?
- `head_map`: which key/value head serves a query head, and how are the heads of a group packed?
- `page_table`: on which page of a paged cache does a key lie?
- `fast_divmod`: how to divide by a run-time constant without a division?
- `tile_scheduler`, `varlen_scheduler`: which tile does a thread block work on next?
- `fragment_layout`: which matrix element does a thread hold in which register?
- `swizzle`: where in shared memory does a byte go so that no bank is hit twice?
- `bind`: how are these functions handed to a compiler?

Because the functions are only integer arithmetic, the same source runs on the host, in the NumPy
reference, in the figures, and, compiled by Numba, inside the kernels. There is one place to look
for "which tiles does a causal window visit?", and one place to test it.
"""
