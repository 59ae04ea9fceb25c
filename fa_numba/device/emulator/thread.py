"""A thread, as ops see it."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from fa_numba.device.emulator import barriers
from fa_numba.device.emulator.barriers import FULL_MASK, WARP_SIZE
from fa_numba.device.emulator.clocks import Actor, Row
from fa_numba.device.emulator.hazards import EmulationError, Hazard

if TYPE_CHECKING:
    from types import FrameType

    from fa_numba.device.emulator.block import Block

__all__ = ["Thread"]

Bytes = npt.NDArray[np.uint8]
_frame = sys._getframe


class Thread(Actor):
    """One thread of a kernel: what an op's emulation works with.

    Attributes
    ----------
    tid : int
        Number in the block, x fastest.
    index : tuple of int
        Index in the block in x, y, z.
    warp, lane : int
        ``tid // 32`` and ``tid % 32``.
    block : Block
        Its block.
    grid : tuple of int
        Blocks of the launch in x, y, z.
    machine : Machine
        The machine.
    time : float
        Virtual clock, in cycles.
    op : object or None
        The op that it executes.
    """

    __slots__ = (
        "block",
        "finished",
        "frame",
        "greenlet",
        "grid",
        "index",
        "lane",
        "machine",
        "observed",
        "op",
        "tid",
        "time",
        "waiting",
        "warp",
    )

    def __init__(self, block: "Block", tid: int) -> None:
        x, y, _ = block.dim
        self.tid = tid
        self.index = (tid % x, tid // x % y, tid // (x * y))
        self.warp, self.lane = divmod(tid, WARP_SIZE)
        self.block = block
        self.machine = block.machine
        self.grid = block.grid
        self.time = 0.0
        self.op: Any = None
        self.frame: FrameType | None = None
        self.greenlet: Any = None
        self.waiting: tuple[Any, str] | None = None
        self.finished = False
        self.observed = block.machine.observes

    def __repr__(self) -> str:
        """Return the thread's name in reports."""
        return f"thread {self.tid}"

    def execute(self, op: Any, values: Sequence[Any]) -> Any:
        """Run an op's emulation.

        Parameters
        ----------
        op : Op
            The op. Its caller's caller is taken for the kernel's line.
        values : sequence
            The arguments, converted.

        Returns
        -------
        object
            What the emulation returns.
        """
        if self.observed:
            return self.machine.observe(self, op, values, _frame(2))
        if not op.side_effect:
            return op.emulation(*values)
        outer = self.op
        self.op = op
        if outer is None:
            self.frame = _frame(2)
        result = op.emulation(self, *values)
        self.op = outer
        return result

    def shared_read(self, address: int, nbytes: int, align: int | None = None) -> Bytes:
        """Read shared memory.

        Parameters
        ----------
        address : int
            Of the first byte.
        nbytes : int
            How many.
        align : int, optional
            What must divide the address; by default `nbytes`.

        Returns
        -------
        ndarray
            A copy, (nbytes,) uint8.

        Raises
        ------
        EmulationError
            If the bytes are not all in shared memory.
        """
        return self.block.shared.read(self, address, nbytes, align or nbytes)

    def shared_write(self, address: int, data: Bytes, align: int | None = None) -> None:
        """Write bytes, (n,) uint8, to shared memory."""
        self.block.shared.write(self, address, data, align or len(data))

    def shared_read_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce reads of address ranges [lo, hi).

        For an op that reads much at once, from `block.shared.bytes`.
        """
        for lo, hi in ranges:
            self.block.shared.read_range(self, lo, hi)

    def global_read(self, address: int, nbytes: int, align: int | None = None) -> Bytes:
        """Read global memory; see `shared_read`."""
        return self.machine.memory.read(self, address, nbytes, align or nbytes)

    def global_write(self, address: int, data: Bytes, align: int | None = None) -> None:
        """Write bytes, (n,) uint8, to global memory."""
        self.machine.memory.write(self, address, data, align or len(data))

    def barrier(self, number: int, count: int, arrive_only: bool = False) -> None:
        """Come to a named barrier of the block.

        Parameters
        ----------
        number : int
            0 to 15.
        count : int
            Threads that complete it, a multiple of 32.
        arrive_only : bool
            Do not wait. What this thread did before is known to those who do.
        """
        barriers.barrier(self, number, count, arrive_only=arrive_only)

    def warp_exchange(self, value: Any, mask: int = FULL_MASK) -> list[Any]:
        """Exchange a value with other lanes of the warp.

        It orders nothing in memory, as ``shfl.sync`` does not.

        Parameters
        ----------
        value : object
            What this lane brings.
        mask : int
            The lanes that take part, bit by bit. All that still run must come.

        Returns
        -------
        list
            The 32 values by lane, None for a lane that is not there. Not to be changed: all lanes
            share it.
        """
        return barriers.warp_meeting(self, value, mask, orders_memory=False)

    def warp_sync(self, mask: int = FULL_MASK) -> None:
        """Meet the lanes in `mask`, and know afterwards what they have done in memory."""
        barriers.warp_meeting(self, True, mask, orders_memory=True)

    def wait(self, waitable: Any, describe: str) -> None:
        """Stop until `machine.notify` is called with the same object.

        Parameters
        ----------
        waitable : object
            Has a list ``waiters``, and a ``repr`` for deadlock reports.
        describe : str
            What the thread waits at.
        """
        waitable.waiters.append(self)
        self.waiting = (waitable, describe)
        self.machine.executor.suspend()
        self.waiting = None

    def release(self) -> Row:
        """Return what this thread knows, for another to `acquire`: the two halves of an arrival."""
        return self.block.clocks.release(self)

    def acquire(self, row: Row) -> None:
        """Learn what another thread released, or what happened before an operation ended."""
        self.block.clocks.acquire(self, row)

    def site(self) -> int:
        """Return the number of the kernel line that is executed."""
        return self.machine.sites.number(self.frame, self.op)

    def hazard(self, kind: str, message: str) -> Hazard:
        """Report a hazard of this thread at the kernel line that is executed."""
        return self.machine.report(kind, message, self)

    def give_up(self, hazard: Hazard) -> NoReturn:
        """End the launch because of a hazard that nothing sensible can follow."""
        raise EmulationError(str(hazard))

    def origin(self) -> tuple["Thread", int]:
        """Return who acts here, and where: this thread at its kernel line."""
        return self, self.site()
