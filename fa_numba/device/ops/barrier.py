"""Barriers: who waits for whom, and from when on memory written before can be read.

A block has 16 named barriers, 0 to 15. A barrier completes when `count` threads have arrived, and
is then ready for the next round. Counts are multiples of 32: whole warps arrive.
"""

from typing import Any

from fa_numba.device.ops.declare import instruction

__all__ = ["bar_arrive", "bar_sync", "bar_warp_sync", "syncthreads"]


@instruction("bar.sync 0;", "void()", since=(5, 0), section="bar", side_effect=True, cycles=20)
def syncthreads(thread: Any) -> None:
    """Wait until all threads of the block are here.

    Since sm_10. Afterwards everything that any of them wrote to shared or global memory before can
    be read by all. Uses named barrier 0.

    Warnings
    --------
    Every thread of the block must come here; in a branch that some do not take, the block hangs.
    """
    x, y, z = thread.block.dim
    thread.barrier(0, x * y * z)


@instruction(
    "bar.sync $0, $1;", "void(u32, u32)", since=(5, 0), section="bar", side_effect=True, cycles=20
)
def bar_sync(thread: Any, barrier_id: int, count: int) -> None:
    """Arrive at a named barrier and wait until `count` threads have arrived.

    Since sm_20. Afterwards everything that they wrote to memory before can be read.

    Parameters
    ----------
    barrier_id : uint32
        0 to 15. 0 is also that of `syncthreads`.
    count : uint32
        Threads that take part, those that only arrive included; a multiple of 32.

    Warnings
    --------
    All lanes of a warp must take the same branch to it.
    """
    thread.barrier(barrier_id, count)


@instruction(
    "bar.arrive $0, $1;", "void(u32, u32)", since=(5, 0), section="bar", side_effect=True, cycles=4
)
def bar_arrive(thread: Any, barrier_id: int, count: int) -> None:
    """Arrive at a named barrier and go on.

    Since sm_20. The threads that wait there with `bar_sync` can afterwards read what this one wrote
    before; this one learns nothing about what they did.

    Parameters
    ----------
    barrier_id : uint32
        0 to 15.
    count : uint32
        Threads that take part, those that wait included; a multiple of 32.

    Warnings
    --------
    A thread that arrives twice before the round completes counts twice.
    """
    thread.barrier(barrier_id, count, arrive_only=True)


@instruction(
    "bar.warp.sync $0;", "void(u32)", since=(5, 0), section="bar.warp.sync", side_effect=True
)
def bar_warp_sync(thread: Any, mask: int) -> None:
    """Wait until the lanes of the mask are here; orders their accesses to memory.

    Since sm_30. A shuffle makes lanes wait for each other too, but orders no memory.

    Parameters
    ----------
    mask : uint32
        Bit per lane that takes part, this one included; 0xFFFFFFFF for the whole warp.
    """
    thread.warp_sync(mask)
