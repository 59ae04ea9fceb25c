"""A block of threads, and its warps."""

from typing import TYPE_CHECKING

from fa_numba.device.emulator import barriers
from fa_numba.device.emulator.barriers import WARP_SIZE, NamedBarrier, WarpMeeting
from fa_numba.device.emulator.clocks import Clocks
from fa_numba.device.emulator.shared import SharedMemory
from fa_numba.device.emulator.thread import Thread

if TYPE_CHECKING:
    from fa_numba.device.emulator.machine import Machine

__all__ = ["Block", "Warp"]

Index = tuple[int, int, int]


class Warp:
    """Up to 32 threads of a block.

    Attributes
    ----------
    threads : list of Thread
        By lane.
    running : int
        Lanes that have not finished, as bits.
    meetings : dict
        Meetings under way, by mask.
    """

    __slots__ = ("meetings", "running", "threads")

    def __init__(self, threads: list[Thread]) -> None:
        self.threads = threads
        self.running = (1 << len(threads)) - 1
        self.meetings: dict[int, WarpMeeting] = {}


class Block:
    """A block of threads.

    Attributes
    ----------
    index : tuple of int
        Index in the grid in x, y, z.
    dim : tuple of int
        Threads in x, y, z.
    grid : tuple of int
        Blocks of the launch.
    rank : int
        Number in the cluster.
    cluster : list of Block
        The blocks that run together, by rank.
    threads : list of Thread
        All threads.
    warps : list of Warp
        All warps.
    shared : SharedMemory
        Its shared memory.
    barriers : dict
        Named barriers in use, by number.
    clocks : Clocks
        Of all threads that run together.
    """

    def __init__(
        self, machine: "Machine", index: Index, dim: Index, grid: Index, rank: int
    ) -> None:
        self.machine = machine
        self.index = index
        self.dim = dim
        self.grid = grid
        self.rank = rank
        self.threads = [Thread(self, tid) for tid in range(dim[0] * dim[1] * dim[2])]
        groups = range(0, len(self.threads), WARP_SIZE)
        self.warps = [Warp(self.threads[i : i + WARP_SIZE]) for i in groups]
        self.barriers: dict[int, NamedBarrier] = {}
        self.clocks: Clocks
        self.shared: SharedMemory
        self.cluster: list[Block] = [self]

    def start(self, clocks: Clocks, smem_bytes: int, cluster: "list[Block]") -> None:
        """Give the block its clocks, its shared memory and the blocks of its cluster."""
        self.clocks = clocks
        self.cluster = cluster
        self.shared = SharedMemory(self, smem_bytes)

    def settle(self, witness: Thread) -> None:
        """Note that all threads have met: what was before conflicts with nothing after."""
        self.shared.shadow.settle(witness)

    def finish(self, thread: Thread) -> None:
        """Note that a thread has returned: its warp waits for it no longer."""
        thread.finished = True
        warp = self.warps[thread.warp]
        warp.running &= ~(1 << thread.lane)
        for meeting in list(warp.meetings.values()):
            if meeting.lanes:
                barriers.complete_if_full(thread, meeting)
